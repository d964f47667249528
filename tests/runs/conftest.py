"""What tests of whole runs share."""

import functools
import shutil

import pytest

import tffcl
from tests.runs import stopped_runs


@pytest.fixture(scope="session")
def kept(tmp_path_factory):
    """Where the encoder is kept: one pre-training serves all runs."""
    return str(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def finished_run(request, tmp_path_factory, kept):
    """Runs what the module's `resolved(name)` sets once, when it is first asked for: `name -> (name, directory,
    summary)`.
    """

    @functools.cache
    def run(name):
        out = tmp_path_factory.mktemp(request.module.__name__.rpartition(".")[2]) / name
        return name, out, tffcl.run(request.module.resolved(name), out, data_dir=kept, show_progress=False).summary

    return run


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """`{"stopped": after round 3, "finished": ...}`, directories that no test changes, and the finished
    run's summary.
    """
    place = tmp_path_factory.mktemp("damage")
    assert stopped_runs.go(place / "stopped", until=3) is None
    shutil.copytree(place / "stopped", place / "finished")
    return place, stopped_runs.go(place / "finished", resume=True).summary


@pytest.fixture
def stopped(runs, tmp_path):
    return shutil.copytree(runs[0] / "stopped", tmp_path / "run")


@pytest.fixture
def finished(runs, tmp_path):
    return shutil.copytree(runs[0] / "finished", tmp_path / "run")
