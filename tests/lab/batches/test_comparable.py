"""What is in a comparison's directory is of the settings of what is added; a table never mixes two settings."""

import pathlib
import re

import pytest

from tests.lab.batches.test_batch import ran  # noqa: F401
from tffcl.errors import UserError
from tffcl.lab.batches import batch, compare
from tffcl.lab.cli.main import main
from tffcl.lab.tasks import resolve

OWN = """
extends = "demo_digits"
description = "mine"
[train]
rounds = 2
[algorithms.fedavg]
[algorithms.solo]
local_epochs = 1
"""


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def task(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(OWN)
    return file


@pytest.fixture(autouse=True)
def no_runs(ran, monkeypatch):  # noqa: F811
    """Runs take no time, and their report is another matter."""
    monkeypatch.setattr("tffcl.lab.cli.command_options.print_report", lambda *_: None)
    return ran


def compared(task, out, *options):
    return main(["compare", str(task), "--out", str(out), *options])


def refused(capsys, task, out, *options):
    capsys.readouterr()
    assert compared(task, out, *options) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_seeds_of_other_settings_are_refused_by_name(out, task, no_runs, capsys):
    assert compared(task, out, "--algorithms", "fedavg", "--seeds", "0,1") == 0
    other = ["--algorithms", "fedavg", "--set", "train.learning_rate=0.05"]
    told = refused(capsys, task, out, *other, "--seeds", "2")
    assert f"{out}/fedavg/seed-0 was run with train.learning_rate 0.1, not 0.05" in told
    assert "give another --out, or run it anew (--overwrite with 0 among --seeds)" in told
    assert "(--overwrite with 1 among --seeds)" in refused(capsys, task, out, *other, "--seeds", "0", "--overwrite")
    assert "or run it anew (--overwrite)" in refused(capsys, task, out, *other, "--seeds", "0,1")
    assert len(no_runs) == 2
    assert compared(task, out, *other, "--seeds", "0,1,2", "--overwrite") == 0 and len(no_runs) == 5


@pytest.mark.parametrize(
    "options, told",
    [
        (["--rounds", "3"], "train.rounds 2, not 3"),
        (["--set", "train.momentum=0.9"], "train.momentum 0.5, not 0.9"),
        (["--set", "partition.clients=20"], "partition."),
        (["--target", "local=75"], "evaluation.every"),
        (["--set", "newcomers.clients=4"], "newcomers not set, not {'clients': 4"),
    ],
)
def test_other_methods_must_share_what_methods_share(out, task, capsys, no_runs, options, told):
    assert compared(task, out, "--algorithms", "fedavg,solo") == 0
    line = refused(capsys, task, out, "--algorithms", "pacfl", *options)
    assert told in line and f"{out}/fedavg/seed-0" in line and "(--overwrite with fedavg among --algorithms)" in line
    assert len(no_runs) == 2


def test_python_names_its_arguments(out, task):
    assert compared(task, out, "--algorithms", "fedavg") == 0
    for asked, anew in (("fedavg", ""), ("pacfl", " with fedavg among methods")):
        config = resolve.resolve(str(task), asked, overrides={"train": {"rounds": 3}})
        with pytest.raises(UserError, match=re.escape(f"another out, or run it anew (overwrite=True{anew})")):
            compare.compare([config], out)


def test_another_task_is_refused(out, task, capsys):
    assert compared(task, out, "--algorithms", "fedavg") == 0
    assert "task 'mine', not 'demo_digits'" in refused(
        capsys, "demo_digits", out, "--algorithms", "pacfl", "--rounds", "2"
    )


def test_what_run_left_there_counts(out, task, capsys, monkeypatch):
    (resolved,) = [resolve.resolve(task, "pacfl", overrides={"train": {"rounds": 1}})]
    alone = batch.Batch("comparison", out, batch.Options())
    alone.run_or_note(batch.Job(resolved, pathlib.PurePath("pacfl", "seed-0"), "alone"))
    told = refused(capsys, task, out, "--algorithms", "fedavg")
    assert f"{out}/pacfl/seed-0 was run with train.rounds 1, not 2" in told
    assert "own" not in told.split(" was run with ")[1]


def test_what_a_method_has_of_its_own_may_differ(out, task, no_runs, capsys):
    """By its table in the task's file, and by the command line where it is said again."""
    assert compared(task, out, "--algorithms", "solo") == 0
    assert compared(task, out, "--algorithms", "fedavg", "--set", "algorithms.fedavg.learning_rate=0.05") == 0
    own = "--set algorithms.fedavg.learning_rate=0.05"
    assert f"say that this is fedavg's own ({own})" in refused(capsys, task, out, "--algorithms", "pacfl")
    assert compared(task, out, "--algorithms", "pacfl", "--set", "algorithms.pacfl.num_clusters=4", *own.split()) == 0
    # pacfl's parameter is its own.
    assert compared(task, out, "--algorithms", "solo", "--seeds", "0,1", *own.split()) == 0
    assert no_runs == [("solo", 0), ("fedavg", 0), ("pacfl", 0), ("solo", 1)]


def test_what_only_tells_about_a_task_may_change(out, task, no_runs):
    assert compared(task, out, "--algorithms", "fedavg") == 0
    task.write_text(OWN.replace("mine", "mine, in other words"))
    assert compared(task, out, "--algorithms", "fedavg", "--seeds", "1") == 0
    assert compared(task, out, "--algorithms", "solo") == 0 and len(no_runs) == 3


def test_without_the_task_the_rounds_are_compared(out, task):
    fedavg, solo = (resolve.resolve(task, name) for name in ("fedavg", "solo"))
    compare.compare_runs([solo], out)
    compare.compare_runs([fedavg], out)
    shorter = resolve.resolve(task, "pacfl", overrides={"train": {"rounds": 1}})
    with pytest.raises(UserError, match="train.rounds 2, not 1"):
        compare.compare_runs([shorter], out)


@pytest.mark.parametrize(
    "name, overrides, message",
    [
        ("solo", {"partition": {"clients": 20}}, "seed 1, has partition.clients 20, and fedavg, seed 0, has it 40"),
        ("fedavg", {"train": {"momentum": 0.9}}, "seed 1, has train.momentum 0.9, and fedavg, seed 0, has it 0.5"),
    ],
)
def test_what_python_asks_for_together_is_of_the_same_settings(out, task, no_runs, name, overrides, message):
    asked = [resolve.resolve(task, "fedavg"), resolve.resolve(task, name, seed=1, overrides=overrides)]
    with pytest.raises(UserError, match=message):
        compare.compare_runs(asked, out)
    assert not no_runs and not out.exists()


def test_a_damaged_run_beside_is_named_before_anything_runs(out, task, no_runs, capsys):
    assert compared(task, out, "--algorithms", "fedavg") == 0
    (out / "fedavg" / "seed-0" / "config.toml").write_text("][")
    assert "fedavg/seed-0/config.toml is damaged" in refused(capsys, task, out, "--algorithms", "solo")
    assert len(no_runs) == 1
