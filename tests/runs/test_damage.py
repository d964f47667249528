"""Whatever happens to the files of a run: it survives, or one clear line says what is wrong; nothing is silently wrong.

Every case has its own copy of one run that was stopped after three of its four rounds, or of the same run finished; see
`test_directories.py` for whose a directory is, and for what happens to disks and data.
"""

import json
import os
import shutil
import types

import numpy as np
import pytest

import tffcl
from tests.runs.finished_runs import rows_of
from tests.runs.stopped_runs import NEWEST, assert_same_result, go, refused, resolved
from tffcl.errors import UserError
from tffcl.lab.batches.run import run
from tffcl.lab.tasks.exports import export_run
from tffcl.runs.round_files import RoundsTable
from tffcl.runs.run_directory import RunDirectory
from tffcl.runs.run_files import read_run

# --- What a resumed run finds, and survives ---


def truncate(path):
    path.write_bytes(path.read_bytes()[:-200])


def flip(path):
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 64] = bytes(each ^ 0xFF for each in data[middle : middle + 64])
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [truncate, pytest.param(flip, marks=pytest.mark.slow)])
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


@pytest.mark.slow
def test_a_checkpoint_of_another_run_stays(stopped, tmp_path, runs):
    run(resolved(seed=1), tmp_path / "other", show_progress=False, until=3)
    shutil.copy(tmp_path / "other" / NEWEST, stopped / NEWEST)
    told = f"{stopped / NEWEST} is of another run; move it"
    assert told in refused(stopped, resume=True)
    (stopped / NEWEST).unlink()
    assert_same_result(go(stopped, resume=True).summary, runs[1])


def test_rows_of_rounds_are_missing(stopped, runs, capsys):
    (stopped / "rounds.csv").unlink()
    assert_same_result(go(stopped, resume=True).summary, runs[1])
    assert "rounds.csv was missing; its rounds 1 to 3 are lost" in capsys.readouterr().err
    assert read_run(stopped).rounds["round"].tolist() == [1, 2, 3, 4]  # the lost ones with empty cells
    assert np.isfinite(read_run(stopped).rounds["train_loss"]).tolist() == [False, False, False, True]


def test_a_row_of_a_round_of_thousands_of_digits_is_none(stopped, runs):
    with open(stopped / "rounds.csv", "a") as file:
        file.write(f"1{'0' * 5000},{',' * (len(rows_of(stopped / 'rounds.csv')[0]) - 2)}")
    assert_same_result(go(stopped, resume=True).summary, runs[1])


def test_a_row_that_was_half_written(stopped, runs, capsys):
    with open(stopped / "rounds.csv", "a") as file:
        file.write("4,0.1")
    assert_same_result(go(stopped, resume=True).summary, runs[1])
    assert capsys.readouterr().err == ""
    assert [row["round"] for row in rows_of(stopped / "rounds.csv")] == ["1", "2", "3", "4"]


def test_rows_in_the_middle_are_told_and_no_row_is_there_twice(tmp_path, capsys):
    file = tmp_path / "rounds.csv"
    file.write_text("round,a\r\n1,5\r\n1,6\r\n3\r\n5,7\r\n6,8\r\n")
    RoundsTable().begin(types.SimpleNamespace(directory=RunDirectory(tmp_path), round_number=5))
    assert "no rows of rounds 2 to 4;" in capsys.readouterr().err
    assert file.read_text().split() == ["round,a", "1,5", "2,", "3,", "4,", "5,7"]


def test_a_row_with_what_is_no_number_is_told_before_the_run_goes_on(stopped):
    file = stopped / "rounds.csv"
    names, first, *others = file.read_text().splitlines()
    file.write_text("\n".join([names, first.replace(".", "!", 1), *others[1:]]) + "\n")
    assert "not a number" in refused(stopped, resume=True)


@pytest.mark.slow  # as in test_train
def test_a_longer_run_that_is_interrupted_has_no_result_of_the_shorter_one(finished, tmp_path):
    """Else a comparison, which runs what has no result, would take the shorter run's for its own."""
    assert RunDirectory(finished).ended == "finished"
    found = run(resolved(rounds=6), finished, show_progress=False, resume=True, until=5)
    assert found is None and not RunDirectory(finished).ended and not (finished / "clients.csv").exists()
    found = run(resolved(rounds=6), finished, show_progress=False, resume=True)
    whole = run(resolved(rounds=6), tmp_path / "whole", show_progress=False)
    assert_same_result(found.summary, whole.summary)
    assert RunDirectory(finished).ended == "finished" and read_run(finished).summary["rounds"] == 6


def test_leftovers_are_cleared(stopped, runs):
    left = ["rounds.csv.partial", "summary.json.partial", "checkpoints/round_000004.npz.partial", "run.lock"]
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
    "settings of another run": (
        "config.toml",
        is_text("seed = 3"),
        "config.toml was edited since the run began: task is",
    ),
    "no settings": ("config.toml", os.unlink, "config.toml is missing"),
    "settings nested too deep": ("config.toml", is_text(f"a = {'[' * 30_000}"), "config.toml is damaged"),
    "settings of names without end": ("config.toml", is_text(f"[a{'.a' * 30_000}]"), "config.toml is damaged"),
    "a marker of no data": (
        "run.json",
        is_text('{"tffcl run": "a", "data": NaN}'),
        "run.json is damaged, or not a run's",
    ),
    "a marker of listed data": (
        "run.json",
        is_text('{"tffcl run": "a", "data": [1]}'),
        "run.json is damaged, or not a run's",
    ),
    "settings that are a directory": ("config.toml", is_directory, "config.toml is not a file"),
    "a marker that is no JSON": ("run.json", is_text("{"), "run.json is damaged, or not a run's"),
    "a marker that is somebody else's": ("run.json", is_text('{"run": 1}'), "run.json is damaged, or not a run's"),
    "a marker that is a directory": ("run.json", is_directory, "run.json is not a file"),
    "a result that is no JSON": ("summary.json", is_text("{"), "summary.json is damaged"),
    "a result that is a list": ("summary.json", is_text("[]"), "summary.json is damaged"),
    "a result of somebody else": ("summary.json", is_text('{"task": "demo_digits"}'), "summary.json is damaged"),
    "a result that is a directory": ("summary.json", is_directory, "summary.json is not a file"),
    "rows that are a directory": ("rounds.csv", is_directory, "rounds.csv is not a file"),
    "rounds that are a file": ("history", is_file, "history is a file"),
    "checkpoints that are a file": ("checkpoints", is_file, "checkpoints is a file"),
    "TensorBoard that is a file": ("tensorboard", is_file, "tensorboard is a file"),
    "a marker half written into a directory": ("run.json.partial", is_directory, "run.json.partial is not a file"),
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
    "clusters that are garbage": (
        "history/000001.npy",
        lambda path: path.write_bytes(b"PK\x03\x04"),
        "000001.npy is damaged",
    ),
    "clusters of another shape": (
        "history/000001.npy",
        lambda path: np.save(path, np.zeros(3)),
        "000001.npy is damaged",
    ),
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


def test_a_foreign_result_is_nobodys(finished):
    """It is not reported, nor is a comparison content with it."""
    summary = json.loads((finished / "summary.json").read_text())
    (finished / "summary.json").write_text(json.dumps({**summary, "seed": 5}))
    for read in (read_run, lambda out: RunDirectory(out).summary()):
        with pytest.raises(UserError, match="of another run: its seed is 5, not 0"):
            read(finished)


def test_examples_of_clients_may_be_deleted(finished):
    (finished / "samples.npz").unlink()
    assert read_run(finished).samples is None


def test_a_result_without_one_of_its_files_is_not_reported(finished):
    (finished / "clients.csv").unlink()
    with pytest.raises(UserError, match="clients.csv is missing"):
        read_run(finished)


@pytest.mark.parametrize("files", [["/etc/passwd"], ["../a"], [1], 3])
def test_a_marker_names_its_own_files_only(finished, files):
    marker = json.loads((finished / "run.json").read_text())
    (finished / "run.json").write_text(json.dumps({**marker, "files": files}))
    assert "run.json is damaged" in refused(finished, overwrite=True)


@pytest.mark.parametrize("damage, told", [(truncate, "cannot be read"), (os.unlink, "is missing")])
def test_a_damaged_last_checkpoint_is_not_loaded_and_the_one_before_neither(finished, runs, damage, told):
    """The results are of the last round; `--resume` makes it again."""
    damage(finished / "checkpoints/round_000004.npz")
    for read in (tffcl.load_run, lambda out: export_run(out, out.parent / "export")):
        with pytest.raises(
            UserError, match=rf"{told}.*; a run with resume=True goes on from round 3 and makes it again"
        ):
            read(finished)
    assert_same_result(go(finished, resume=True).summary, runs[1])
    assert tffcl.load_run(finished).round_number == 4
