"""Whatever happens to the files of a run: it survives, or one clear line says what is wrong; nothing is silently wrong.

Every case has its own copy of one run that was stopped after three of its four rounds, or of the same run finished.
"""

import dataclasses
import errno
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

import tffcl
from tests.runner.finished_runs import rows_of
from tffcl.cli import main
from tffcl.errors import UserError
from tffcl.experiments import config, prepare
from tffcl.experiments.run import run
from tffcl.runner import fingerprint
from tffcl.runner.checkpoints import Checkpoints
from tffcl.runner.history import ClusterHistory
from tffcl.runner.lock import locked
from tffcl.runner.round_metrics import Metrics

SETTINGS = {
    "train": {"rounds": 4, "clients_per_round": 3, "local_epochs": 1},
    "partition": {"clients": 8},
    "model": {"hidden": 4},
    "evaluation": {"every": 2},
    "checkpoint": {"every": 1},
}


def resolved(seed=0, rounds=4):
    train = {**SETTINGS["train"], "rounds": rounds}
    return config.resolve("demo_digits", "fedavg", seed=seed, overrides={**SETTINGS, "train": train})


def go(out, **options):
    return run(resolved(), out, show_progress=False, **options)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """`{"stopped": after round 3, "finished": ...}`, directories that no test changes, and the finished run's summary."""
    place = tmp_path_factory.mktemp("damage")
    assert go(place / "stopped", until=3) is None
    shutil.copytree(place / "stopped", place / "finished")
    return place, go(place / "finished", resume=True).summary


@pytest.fixture
def stopped(runs, tmp_path):
    return shutil.copytree(runs[0] / "stopped", tmp_path / "run")


@pytest.fixture
def finished(runs, tmp_path):
    return shutil.copytree(runs[0] / "finished", tmp_path / "run")


def refused(out, *, unchanged=True, **options):
    """The line with which a run is refused; what is in the directory stays as it is."""
    before = contents(out)
    with pytest.raises(UserError) as told:
        go(out, **options)
    assert "\n" not in str(told.value)
    if unchanged:
        assert contents(out) == before
    return str(told.value)


def contents(out):
    files = sorted(path for path in out.rglob("*") if path.is_file())
    return {path.relative_to(out): path.read_bytes() for path in files}


def assert_same_result(found, summary):
    for key in ("accuracy", "clusters", "traffic", "notes"):
        assert found[key] == summary[key]


# --- What a resumed run finds, and survives ---


def truncate(path):
    path.write_bytes(path.read_bytes()[:-200])


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def empty(path):
    path.write_bytes(b"")


NEWEST = "checkpoints/round_000003.npz"


@pytest.mark.parametrize("damage", [truncate, flip, empty])
def test_a_damaged_checkpoint_the_one_before(stopped, runs, capsys, damage):
    damage(stopped / NEWEST)
    found = go(stopped, resume=True)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tffcl: the checkpoint of round 3 cannot be read (")
    assert line.endswith("; the run goes on from round 2")
    assert_same_result(found.summary, runs[1])
    assert [row["round"] for row in rows_of(stopped / "rounds.csv")] == ["1", "2", "3", "4"]


def test_all_checkpoints_damaged(stopped):
    for path in (stopped / "checkpoints").iterdir():
        truncate(path)
    assert "the checkpoint of round 3 cannot be read" in refused(stopped, resume=True, unchanged=False)
    assert (stopped / NEWEST).exists()


def test_a_checkpoint_of_another_run(stopped, tmp_path, runs, capsys):
    run(resolved(seed=1), tmp_path / "other", show_progress=False, until=3)
    shutil.copy(tmp_path / "other" / NEWEST, stopped / NEWEST)
    found = go(stopped, resume=True)
    assert "it is of another run" in capsys.readouterr().err
    assert_same_result(found.summary, runs[1])


def test_rows_of_rounds_are_missing(stopped, runs, capsys):
    (stopped / "rounds.csv").unlink()
    assert_same_result(go(stopped, resume=True).summary, runs[1])
    assert "rounds.csv was missing; its rounds 1 to 3 are lost" in capsys.readouterr().err
    assert [row["round"] for row in rows_of(stopped / "rounds.csv")] == ["4"]


def test_a_row_that_was_half_written(stopped, runs, capsys):
    with open(stopped / "rounds.csv", "a") as file:
        file.write("4,0.1")
    assert_same_result(go(stopped, resume=True).summary, runs[1])
    assert capsys.readouterr().err == ""
    assert [row["round"] for row in rows_of(stopped / "rounds.csv")] == ["1", "2", "3", "4"]


def test_rows_in_the_middle_are_told_and_no_row_is_there_twice(tmp_path, capsys):
    file = tmp_path / "rounds.csv"
    file.write_text("round,a\r\n1,5\r\n1,6\r\n3\r\n5,7\r\n6,8\r\n")
    Metrics(tmp_path, 5)
    assert "no rows of rounds 2 to 4;" in capsys.readouterr().err
    assert file.read_text().split() == ["round,a", "1,5", "5,7"]


def test_leftovers_are_cleared(stopped, runs):
    left = ["rounds.csv_temp1234", "summary.json.partial", "checkpoints/round_000004.partial", "run.lock"]
    for name in left:
        (stopped / name).write_bytes(b"half")
    assert_same_result(go(stopped, resume=True).summary, runs[1])
    assert not [name for name in left if (stopped / name).exists()]


def test_files_of_others_stay(stopped, runs):
    foreign = ["history/notes.npy", "checkpoints/mine.bin", "a.partial"]
    for name in foreign:
        (stopped / name).write_bytes(b"mine")
    assert_same_result(go(stopped, resume=True).summary, runs[1])
    assert all((stopped / name).read_bytes() == b"mine" for name in foreign)


# --- What it finds, and refuses ---


def is_text(text):
    return lambda path: path.write_text(text)


def is_directory(path):
    path.unlink(missing_ok=True)
    path.mkdir()


def is_file(path):
    shutil.rmtree(path, ignore_errors=True)
    path.write_text("")


REFUSED = {
    "settings that are no TOML": ("config.toml", is_text("= ="), "config.toml is damaged"),
    "settings that are no text": ("config.toml", lambda path: path.write_bytes(b"\xff\xfe"), "config.toml is damaged"),
    "settings of another run": ("config.toml", is_text("seed = 3"), "holds another run"),
    "no settings": ("config.toml", os.unlink, "config.toml is missing"),
    "settings that are a directory": ("config.toml", is_directory, "config.toml is not a file"),
    "a marker that is no JSON": ("run.json", is_text("{"), "run.json is damaged, or not a run's"),
    "a marker that is somebody else's": ("run.json", is_text('{"run": 1}'), "run.json is damaged, or not a run's"),
    "a marker that is a directory": ("run.json", is_directory, "run.json is not a file"),
    "a result that is no JSON": ("summary.json", is_text("{"), "summary.json is damaged"),
    "a result that is a list": ("summary.json", is_text("[]"), "summary.json is damaged"),
    "a result of somebody else": ("summary.json", is_text('{"task": "demo_digits"}'), "is not the result of the run"),
    "a result that is a directory": ("summary.json", is_directory, "summary.json is not a file"),
    "rows that are a directory": ("rounds.csv", is_directory, "rounds.csv is not a file"),
    "rounds that are a file": ("history", is_file, "history is a file"),
    "checkpoints that are a file": ("checkpoints", is_file, "checkpoints is a file"),
    "TensorBoard that is a file": ("tensorboard", is_file, "tensorboard is a file"),
    "figures that are a file": ("figures", is_file, "figures is a file"),
    "a checkpoint that is a directory": (NEWEST, is_directory, "round_000003.npz is not a file"),
}


@pytest.mark.parametrize("name, damage, told", REFUSED.values(), ids=REFUSED)
def test_damage_is_refused_by_name(stopped, name, damage, told):
    damage(stopped / name)
    assert told in refused(stopped, resume=True)


REFUSED_LATER = {
    "rows that are no text": ("rounds.csv", lambda path: path.write_bytes(b"\xff\xfe\0"), "rounds.csv is damaged"),
    "rows of something else": ("rounds.csv", is_text("a,b\n1,2\n"), "rounds.csv is damaged"),
    "clusters of a round": ("history/000001.npy", truncate, "000001.npy is damaged"),
    "clusters of another shape": ("history/000001.npy", lambda path: np.save(path, np.zeros(3)), "000001.npy is damaged"),
}


@pytest.mark.parametrize("name, damage, told", REFUSED_LATER.values(), ids=REFUSED_LATER)
def test_damage_to_what_was_noted_is_refused_by_name(stopped, name, damage, told):
    damage(stopped / name)
    assert told in refused(stopped, resume=True, unchanged=False)


def test_a_checkpoint_after_the_last_round(stopped):
    shutil.copy(stopped / NEWEST, stopped / "checkpoints/round_000009.npz")
    told = refused(stopped, resume=True, unchanged=False)
    assert "round_000009.npz is of a round after the run's last, 4" in told
    with pytest.raises(UserError, match="checkpoint of round 9, but the run has 4"):
        tffcl.load_run(stopped)


def test_a_foreign_result_is_nobodys(finished, runs, tmp_path):
    """It is not reported, nor is a comparison content with it."""
    from tffcl.experiments import compare
    from tffcl.reporting.files import read_run

    summary = json.loads((finished / "summary.json").read_text())
    summary["accuracy"]["cluster"]["mean"] = 0.999
    (finished / "summary.json").write_text(json.dumps(summary))
    for read in (read_run, compare.read_summary):
        with pytest.raises(UserError, match="is not the result of the run in this directory"):
            read(finished)
    (finished / "run.json").unlink()  # a run of an earlier version
    (finished / "summary.json").write_text(json.dumps({**summary, "seed": 5}))
    with pytest.raises(UserError, match="of another run: its seed is 5, not 0"):
        compare.read_summary(finished)


def test_other_settings_than_the_run_was_started_with(finished):
    text = (finished / "config.toml").read_text()
    (finished / "config.toml").write_text(text.replace("learning_rate = 0.1", "learning_rate = 0.2"))
    with pytest.raises(UserError, match="config.toml is not as the run has written it"):
        tffcl.load_run(finished)


# --- Whose the directory is ---


@pytest.mark.parametrize("lost", [["config.toml"], ["config.toml", "run.json"]], ids=["settings", "settings and marker"])
def test_no_old_model_survives_overwriting(stopped, lost):
    for name in lost:
        (stopped / name).unlink()
    run(resolved(seed=3), stopped, overwrite=True, show_progress=False, until=1)
    assert Checkpoints(stopped / "checkpoints").rounds() == [0, 1]
    assert tffcl.load_run(stopped).round_number == 1
    assert len(list((stopped / "history").iterdir())) == 1
    assert len(rows_of(stopped / "rounds.csv")) == 1


def test_overwriting_leaves_what_no_run_has_written(finished, capsys):
    foreign = ["checkpoints/mine.bin", "figures/holiday.png", "notes.txt", "figures/inner/accuracy.png"]
    for name in foreign:
        (finished / name).parent.mkdir(exist_ok=True, parents=True)
        (finished / name).write_text("mine")
    (finished / "figures/accuracy.png").write_text("ours")
    go(finished, overwrite=True, until=1)
    told = capsys.readouterr().err
    for name in foreign:
        assert (finished / name).read_text() == "mine"
        assert str(finished / name) in told or "inner" in name
    assert not (finished / "figures/accuracy.png").exists() and not (finished / "summary.json").exists()


@pytest.mark.parametrize("name", ["config.toml", "summary.json", "rounds.csv", "report.html", "run.json", NEWEST])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_users_own_file_is_refused_by_name(tmp_path, name, overwrite):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('title = "mine"')
    assert str(tmp_path / name) in refused(tmp_path, overwrite=overwrite)


@pytest.mark.parametrize("name", ["comparison.toml", "sweep.toml", "search.json", "results/study.json", "manifest.json"])
def test_no_run_inside_something_else(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("")
    assert f"({name}); a run of its own needs another --out" in refused(tmp_path, overwrite=True)


def test_no_comparison_inside_a_run(finished):
    from tffcl.experiments import compare

    with pytest.raises(UserError, match="holds a run; a comparison needs another --out"):
        compare.compare([resolved()], finished, show_progress=False)


def test_an_export_deletes_nothing(finished, tmp_path, capsys):
    (tmp_path / "exp.partial").mkdir()
    (tmp_path / "exp.partial" / "mine").write_text("mine")
    assert main(["export", str(finished), "--to", str(tmp_path / "exp")]) == 2
    assert f"{tmp_path / 'exp.partial'} exists" in capsys.readouterr().err
    assert (tmp_path / "exp.partial" / "mine").read_text() == "mine"


# --- Two runs, one directory ---

HOLD = """
import pathlib, sys
from tffcl.runner.lock import locked
with locked(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_second_is_told_who_holds_it_and_a_dead_one_holds_nothing(stopped, runs):
    command = [sys.executable, "-c", HOLD, str(stopped)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "held\n"
        for options in ({"resume": True}, {"overwrite": True}):
            told = refused(stopped, **options)
            assert f"is being written by another run (process {other.pid}, since 20" in told
    finally:
        other.kill()
        other.communicate()
    assert (stopped / "run.lock").exists()
    assert_same_result(go(stopped, resume=True).summary, runs[1])
    assert not (stopped / "run.lock").exists()


def test_two_runs_of_one_process(tmp_path):
    with locked(tmp_path / "run"), pytest.raises(UserError, match=f"process {os.getpid()}"):
        go(tmp_path / "run")
    assert not list((tmp_path / "run").iterdir())


def test_two_comparisons_or_studies_in_one_directory(tmp_path):
    from tffcl.experiments import compare, study, study_files

    planned = study.plan(study_files.load_study("demo_digits"), rounds=2)
    calls = [lambda: compare.compare([resolved()], tmp_path, show_progress=False), lambda: study.run_study(planned, tmp_path)]
    for call in calls:
        with locked(tmp_path), pytest.raises(UserError, match=f"being written by another run .process {os.getpid()}"):
            call()
    assert not list(tmp_path.iterdir())


def test_a_study_whose_contents_are_damaged(tmp_path):
    from tffcl.experiments import study, study_files

    file = tmp_path / "results" / "study.json"
    file.parent.mkdir()
    for damage in ("{", "[]", '{"study": "demo_digits"}'):
        file.write_text(damage)
        with pytest.raises(UserError, match="study.json is damaged: [^\n]*$"):
            study.run_study(study.plan(study_files.load_study("demo_digits"), rounds=2), tmp_path)


# --- Data that changed ---


def test_data_that_changed(finished, stopped_again, monkeypatch):
    federated = prepare.load_data(resolved())
    train = federated.train.x.copy()
    train[5, 3, 3] ^= 1
    changed = dataclasses.replace(federated, train=dataclasses.replace(federated.train, x=train))
    monkeypatch.setattr(prepare, "load_data", lambda *_: changed)
    assert f"the data have changed since the run in {stopped_again}: training images differ;" in refused(
        stopped_again, resume=True
    )
    with pytest.raises(UserError, match="training images differ"):
        tffcl.load_run(finished)


@pytest.fixture
def stopped_again(runs, tmp_path):
    return shutil.copytree(runs[0] / "stopped", tmp_path / "stopped again")


def test_every_part_of_the_data_counts(population):
    federated = prepare.load_data(resolved())
    before = prepare.data_fingerprint(federated)
    assert before == prepare.data_fingerprint(federated)
    fewer = [index[:-1] for index in federated.test_indices]
    after = prepare.data_fingerprint(dataclasses.replace(federated, test_indices=tuple(fewer)))
    with pytest.raises(UserError, match="the clients' shares of test examples differ"):
        fingerprint.check_same_data("OUT", before, after)
    own, other = (fingerprint.of_populations({0: each}) for each in (population, population.restricted([0, 1, 2, 3])))
    with pytest.raises(UserError, match=r"clients differ \(4, not 5\), sizes of clients differ"):
        fingerprint.check_same_data("OUT", own, other)


# --- The disk ---


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device", "somewhere")


@pytest.mark.parametrize("place, name", [(Checkpoints, "save"), (Metrics, "release"), (ClusterHistory, "save")])
def test_a_full_disk_is_one_line_and_the_run_goes_on_when_there_is_room(stopped, runs, monkeypatch, place, name):
    with monkeypatch.context() as patched:
        patched.setattr(place, name, full)
        told = refused(stopped, resume=True, unchanged=False)
    assert told == (
        "somewhere cannot be written: No space left on device (what was done up to round 3 is saved, later rounds "
        "are lost; the same command with --resume goes on when it can be written)"
    )
    assert_same_result(go(stopped, resume=True).summary, runs[1])
    assert [row["round"] for row in rows_of(stopped / "rounds.csv")] == ["1", "2", "3", "4"]


def test_a_directory_that_is_deleted_in_the_middle(tmp_path, monkeypatch):
    save = ClusterHistory.save

    def delete(self, number, *more):
        save(self, number, *more)
        if number == 2:
            shutil.rmtree(tmp_path / "run")

    monkeypatch.setattr(ClusterHistory, "save", delete)
    with pytest.raises(UserError, match=r"cannot be written: .* \(nothing of the run is saved\)"):
        go(tmp_path / "run")


@pytest.mark.parametrize("out", ["/proc/run", "/proc/1/run", "/dev/full/run", "x" * 300, "a\0b"], ids=range(5))
@pytest.mark.parametrize("command", ["run", "compare", "report", "newcomers"])
def test_names_that_cannot_be(tmp_path, monkeypatch, capsys, command, out):
    monkeypatch.chdir(tmp_path)
    task = ["demo_digits", "--rounds", "1", "--out", out]
    more = {"run": [*task, "--algorithm", "fedavg"], "compare": [*task, "--algorithms", "fedavg"]}
    assert main([command, *more.get(command, [out])]) == 2
    told = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
    assert len(told) == 1 and told[0].startswith("tffcl: ") and len(told[0]) < 400, told
