"""What tests of whole runs share."""

import functools

import pytest

import tffcl


@pytest.fixture(scope="session")
def kept(tmp_path_factory):
    """Where the encoder is kept: one pre-training serves all runs."""
    return str(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def finished_run(request, tmp_path_factory, kept):
    """Runs what the module's `resolved(name)` sets once, when it is first asked for: `name -> (name, directory, summary)`."""

    @functools.cache
    def run(name):
        out = tmp_path_factory.mktemp(request.module.__name__.rpartition(".")[2]) / name
        return name, out, tffcl.run(request.module.resolved(name), out, data_dir=kept, show_progress=False).summary

    return run
