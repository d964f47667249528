"""Whose a directory is: runs and strangers' files, two runs at a time, data that changed, disks that are full."""

import contextlib
import dataclasses
import errno
import gc
import os
import pathlib
import shutil
import subprocess
import sys
import tomllib

import pytest
import tomli_w

import tffcl
from tests.runs.finished_runs import rows_of
from tests.runs.stopped_runs import NEWEST, assert_same_result, go, refused, resolved
from tffcl import files
from tffcl.clients.client_examples import ClientExamples
from tffcl.errors import UserError
from tffcl.lab.batches.run import run
from tffcl.lab.cli.main import main
from tffcl.lab.tasks import build
from tffcl.runs import fingerprint
from tffcl.runs.checkpoints import Checkpoints
from tffcl.runs.cluster_history import ClusterHistory
from tffcl.runs.directory_lock import locked
from tffcl.runs.privacy import Ledger, PrivacySettings
from tffcl.runs.round_files import RoundsTable, TensorBoard
from tffcl.runs.run_directory import RunDirectory, State

# --- Whose the directory is ---


def test_a_run_that_goes_on_with_edited_code_says_so_and_notes_both(tmp_path, capsys):
    directory, settings, noted = RunDirectory(tmp_path / "run"), resolved().as_dict(), []
    directory.path.mkdir()
    for code in ("a", "b", "b"):
        directory.claim(settings, {}, {"mine.py": code}, anew=not noted)
        noted.append(
            (tomllib.loads((directory / "config.toml").read_text())["versions"]["mine.py"], capsys.readouterr().err)
        )
    told = f"tffcl: mine.py was edited since the run in {directory} began; it goes on with the code of now\n"
    assert noted == [("a", ""), ("a / b", told), ("a / b", "")]
    about = {"task": settings["task"], "algorithm": settings["algorithm"], "seed": 0, "rounds": 4}
    directory.write_summary(about)
    directory.claim(settings, {}, {"mine.py": "c"}, anew=False)  # which has nothing left to do
    assert '"mine.py" = "a / b"' in (directory / "config.toml").read_text() and capsys.readouterr().err == ""


@pytest.mark.slow
def test_what_a_kill_leaves_of_a_run_that_is_removed_is_still_a_runs(finished, tmp_path, monkeypatch):
    settings, unlink = resolved().as_dict(), pathlib.Path.unlink
    removed = []
    for kept in range(100):
        place = shutil.copytree(finished, tmp_path / f"{kept}")

        def killed(path, kept=kept):
            removed.append(path)
            if len(removed) > kept:
                raise KeyboardInterrupt
            unlink(path)

        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            patch.setattr(pathlib.Path, "unlink", killed)
            RunDirectory(place).clear()
            break
        removed.clear()
        RunDirectory(place).check_claim(settings, resume=True, overwrite=False)
    assert kept > 8 and not [*place.iterdir()]


@pytest.mark.slow
def test_no_old_model_survives_overwriting(stopped):
    (stopped / "config.toml").unlink()
    run(resolved(seed=3), stopped, overwrite=True, show_progress=False, until=1)
    assert Checkpoints(stopped / "checkpoints").rounds() == [0, 1]
    assert tffcl.load_run(stopped).round_number == 1
    assert len(list((stopped / "history").iterdir())) == 1
    assert len(rows_of(stopped / "rounds.csv")) == 1


def test_a_run_without_a_marker_is_nobodys(stopped):
    (stopped / "run.json").unlink()
    for options in ({}, {"resume": True}, {"overwrite": True}):
        assert f"{stopped / 'config.toml'} is no run's, and a run would write over it" in refused(stopped, **options)


def test_a_run_that_was_killed_before_its_first_checkpoint_is_not_taken_over_by_another(stopped):
    shutil.rmtree(stopped / "checkpoints")
    with pytest.raises(
        UserError, match="its seed is 0, not 3; resume with its own.*overwrite=True, or give another directory"
    ):
        run(resolved(seed=3), stopped, resume=True, show_progress=False)
    assert go(stopped, resume=True, until=1) is None
    assert Checkpoints(stopped / "checkpoints").rounds() == [0, 1]


def test_a_run_that_had_diverged_and_goes_on_is_no_longer_said_to(stopped):
    directory = RunDirectory(stopped)
    directory.write_failure({"algorithm": "fedavg"})
    assert directory.state is State.DIVERGED
    assert go(stopped, resume=True, until=3) is None and directory.state is State.BEGUN
    assert not (stopped / "failed.json").exists()


def test_overwriting_leaves_what_no_run_has_written(finished, capsys):
    foreign = ["checkpoints/mine.bin", "figures/holiday.png", "notes.txt", "figures/inner/accuracy.png"]
    for name in foreign:
        (finished / name).parent.mkdir(exist_ok=True, parents=True)
        (finished / name).write_text("mine")
    RunDirectory(finished).list_files(["figures/accuracy.png"])
    (finished / "figures/accuracy.png").write_text("ours")
    with pytest.raises(UserError, match="figures/holiday.png is not of the run, which would write over it"):
        RunDirectory(finished).list_files(["figures/holiday.png"])
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


@pytest.mark.parametrize("name", ["batch.json", "results/batch.json", "manifest.json"])
def test_no_run_inside_something_else(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("")
    assert f"({name}); a run of its own needs another directory" in refused(tmp_path, overwrite=True)


def test_no_comparison_inside_a_run(finished):
    from tffcl.lab.batches import compare

    with pytest.raises(UserError, match="holds a run; a comparison needs another directory"):
        compare.compare_runs([resolved()], finished, show_progress=False)


def test_an_export_deletes_nothing(finished, tmp_path, capsys):
    (tmp_path / "exp.partial").mkdir()
    (tmp_path / "exp.partial" / "mine").write_text("mine")
    assert main(["export", str(finished), "--to", str(tmp_path / "exp")]) == 2
    assert f"{tmp_path / 'exp.partial'} exists" in capsys.readouterr().err
    assert (tmp_path / "exp.partial" / "mine").read_text() == "mine"


def test_how_far_a_run_has_come(stopped, runs):
    directories = [RunDirectory(runs[0] / name) for name in ("nothing", "stopped", "finished")]
    assert [each.state.value for each in directories] == ["", "begun", "finished"]
    assert [each.ended for each in directories] == ["", "", "finished"]
    RunDirectory(stopped).write_failure({"reason": "it diverged"})
    assert RunDirectory(stopped).ended == "diverged"


def test_what_cannot_be_read_is_named_before_a_run_goes_on(stopped, monkeypatch):
    """And not the directory, nor is what it holds taken for nothing."""
    ledger = Ledger(PrivacySettings(), clients=3)
    ledger.file = stopped / "ledger.json"
    ledger.file.write_text("{}")

    def refusing(read):
        def of(path, *more):
            if path.name == unreadable:
                raise PermissionError(13, "Permission denied", str(path))
            return read(path, *more)

        return of

    monkeypatch.setattr(files, "opened", refusing(files.opened))
    monkeypatch.setattr(pathlib.Path, "iterdir", refusing(pathlib.Path.iterdir))
    for unreadable in ("run.json", "config.toml", "checkpoints", "history"):
        with pytest.raises(UserError, match=f"^{stopped / unreadable} cannot be read: Permission denied$"):
            RunDirectory(stopped).check_claim(resolved().as_dict(), resume=True, overwrite=False)
    unreadable = "checkpoints"
    with pytest.raises(UserError, match="checkpoints cannot be read: Permission denied"):
        Checkpoints(stopped / "checkpoints").latest()
    unreadable = "ledger.json"
    with pytest.raises(UserError, match="ledger.json, which counts .* cannot be read .*Permission denied"):
        ledger.read_file()


# --- Two runs, one directory ---

HOLD = """
import pathlib, sys
from tffcl.runs.directory_lock import locked
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
    from tffcl.lab.batches import compare, study, study_file

    planned = study.plan(study_file.load_study("demo_digits"), rounds=2)
    calls = [
        lambda: compare.compare_runs([resolved()], tmp_path, show_progress=False),
        lambda: study.run_study(planned, tmp_path),
    ]
    for call in calls:
        with locked(tmp_path), pytest.raises(UserError, match=f"being written by another run .process {os.getpid()}"):
            call()
    assert not list(tmp_path.iterdir())


def test_a_study_whose_contents_are_damaged(tmp_path):
    from tffcl.lab.batches import study, study_file

    file = tmp_path / "results" / "batch.json"
    file.parent.mkdir()
    for damage in ("{", "[]", '{"study": "demo_digits"}', '{"kind": "study", "study": "demo_digits"}'):
        file.write_text(damage)
        with pytest.raises(UserError, match="batch.json is (damaged: |not of a study)[^\n]*$"):
            study.run_study(study.plan(study_file.load_study("demo_digits"), rounds=2), tmp_path)


def test_resume_and_overwrite_together_are_refused(finished):
    """One keeps what the other deletes: rounds of two runs would stand in one table."""
    assert "resume goes on with the run that is there, overwrite deletes it" in refused(
        finished, resume=True, overwrite=True
    )


# --- Links ---

WRITTEN = (
    "run.lock run.json config.toml rounds.csv summary.json report.html samples.npz checkpoints/round_000003.npz "
    "history/000001.npy checkpoints history tensorboard figures kept"
).split()


@pytest.mark.parametrize("name", WRITTEN)
def test_no_link_in_a_runs_directory_is_written_through(stopped, tmp_path, name):
    """Who may write there would choose which files of the user are written over."""
    own = tmp_path / "own"
    if (stopped / name).is_dir():
        shutil.move(stopped / name, own)
    elif (stopped / name).exists():
        shutil.move(stopped / name, own)
    else:
        own.write_text("mine")
    (stopped / name).symlink_to(own)
    for options in ({"resume": True}, {"overwrite": True}):
        assert f"{name} is a link" in refused(stopped, **options)


@pytest.mark.parametrize("kind", ["is a link", "is not a file"])
@pytest.mark.parametrize("name", ["kept/0.1.npz", "history/000001.npy", "checkpoints/round_000001.npz"])
def test_what_is_no_file_where_a_run_writes_for_its_clients_is_refused_first(stopped, name, kind):
    (stopped / name).parent.mkdir(exist_ok=True)
    (stopped / name).unlink(missing_ok=True)
    (stopped / name).symlink_to("/nowhere/at/all") if kind == "is a link" else (stopped / name).mkdir()
    for options in ({"resume": True}, {"overwrite": True}):
        assert f"{name} {kind}" in refused(stopped, **options)


def test_a_half_written_file_that_is_a_link_is_not_followed(stopped, tmp_path, runs):
    own = tmp_path / "own"
    own.write_text("mine")
    for name in ("run.json", "summary.json", "checkpoints/round_000004.npz"):
        (stopped / f"{name}.partial").symlink_to(own)
    assert_same_result(go(stopped, resume=True).summary, runs[1])
    assert own.read_text() == "mine"


def test_a_lock_that_is_another_file_is_not_emptied(stopped, tmp_path):
    own = tmp_path / "own"
    own.write_text("mine")
    os.link(own, stopped / "run.lock")
    assert "run.lock is another file, too" in refused(stopped, resume=True)


def test_a_directory_that_is_itself_a_link_is_the_users_choice(stopped, tmp_path, runs):
    (tmp_path / "link").symlink_to(stopped)
    assert_same_result(go(tmp_path / "link", resume=True).summary, runs[1])


@pytest.mark.parametrize("name", ["fedavg", "fedavg/seed-0"])
def test_a_comparison_writes_no_run_through_a_link(tmp_path, name, capsys):
    out, own = tmp_path / "out", tmp_path / "own"
    own.mkdir()
    (out / name).parent.mkdir(parents=True)
    (out / name).symlink_to(own)
    assert main(["compare", "demo_digits", "--algorithms", "fedavg", "--rounds", "1", "--out", str(out)]) == 2
    assert f"{out / name} is a link, and runs are written through none" in capsys.readouterr().err
    assert not list(own.iterdir())


def test_models_and_examples_of_clients_are_their_owners_alone(finished):
    private = [*(finished / "checkpoints").iterdir(), finished / "samples.npz"]
    assert {path.stat().st_mode & 0o077 for path in private} == {0}
    assert (finished / "summary.json").stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


# --- Data that changed ---


def test_data_that_changed(finished, stopped_again, monkeypatch):
    federated = build.load_data(resolved())
    train = federated.train.x.copy()
    train[5, 3, 3] ^= 1
    changed = dataclasses.replace(federated, train=dataclasses.replace(federated.train, x=train))
    monkeypatch.setattr(build, "load_data", lambda *_: changed)
    assert f"the data have changed since the run in {stopped_again}: training images differ;" in refused(
        stopped_again, resume=True
    )
    with pytest.raises(UserError, match="training images differ"):
        tffcl.load_run(finished)


@pytest.fixture
def stopped_again(runs, tmp_path):
    return shutil.copytree(runs[0] / "stopped", tmp_path / "stopped again")


@pytest.mark.parametrize("train, was", [({"rounds": "x"}, "'x'"), ({}, "None")])
def test_damaged_rounds_are_those_of_another_run(tmp_path, train, was):
    (tmp_path / "config.toml").write_text(tomli_w.dumps({"train": train}))
    with pytest.raises(UserError, match=f"holds another run: its train.rounds is {was}, not 4; "):
        RunDirectory(tmp_path).check_same({"train": {"rounds": 4}}, longer=True)


def check_same_data(before, now):
    directory = RunDirectory("OUT")
    directory.marker = lambda: {"data": before}
    fingerprint.check_same_data(directory, now)


def test_every_part_of_the_data_counts(population):
    federated = build.load_data(resolved())
    before = build.data_fingerprint(federated)
    assert before == build.data_fingerprint(federated)
    fewer = [index[:-1] for index in federated.test_indices]
    after = build.data_fingerprint(dataclasses.replace(federated, test_indices=tuple(fewer)))
    with pytest.raises(UserError, match="the clients' shares of test examples differ"):
        check_same_data(before, after)
    own, other = (fingerprint.of_populations({0: each}) for each in (population, population.restricted([0, 1, 2, 3])))
    with pytest.raises(UserError, match=r"clients differ \(4, not 5\), sizes of clients differ"):
        check_same_data(own, other)


def test_validation_examples_and_who_is_tested_on_how_many_count_too(population):
    tests, ids = population.pooled_tests, population.client_ids[:2]

    def told(first, **more):
        own = {0: ClientExamples(tests.x[:first], tests.y[:first]), 1: ClientExamples(tests.x[first:], tests.y[first:])}
        few = dataclasses.replace(population.restricted(ids), test_examples=own, **more)
        return fingerprint.of_populations({0: few})

    assert told(5) == told(5)
    with pytest.raises(UserError, match="run in OUT: test examples differ;"):
        check_same_data(told(5), told(6))
    validated = told(5, validation_examples=population.test_examples)
    with pytest.raises(UserError, match="run in OUT: validation examples are new;"):
        check_same_data(told(5), validated)
    with pytest.raises(UserError, match="run in OUT: validation examples differ"):
        check_same_data(validated, told(5, validation_examples=population.train_examples))


# --- The disk ---


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device", "somewhere")


@pytest.mark.parametrize(
    "place, name",
    [
        (Checkpoints, "save"),
        (RoundsTable, "after_round"),
        *(pytest.param(each, "after_round", marks=pytest.mark.slow) for each in (TensorBoard, ClusterHistory)),
    ],
)
def test_a_full_disk_is_one_line_and_the_run_goes_on_when_there_is_room(stopped, runs, monkeypatch, place, name):
    with monkeypatch.context() as patched:
        patched.setattr(place, name, full)
        told = refused(stopped, resume=True, unchanged=False)
    assert told == (
        "somewhere cannot be written: No space left on device (what was done up to round 3 is saved, later rounds "
        "are lost; resume=True goes on when it can be written)"
    )
    assert_same_result(go(stopped, resume=True).summary, runs[1])
    assert [row["round"] for row in rows_of(stopped / "rounds.csv")] == ["1", "2", "3", "4"]


@pytest.mark.slow  # the same with a disk that is full indeed, beside the faults that are made above
@pytest.mark.parametrize("room", [12, 28, 40])
def test_a_disk_that_is_full(tmp_path, runs, room):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={room}k", "tmpfs", str(disk)], capture_output=True
    ).returncode:
        pytest.skip("only root may mount a small disk")
    try:
        try:
            found = go(disk / "run")
        except UserError as error:
            assert "cannot be written: No space left on device" in str(error)
            subprocess.run(["mount", "-o", "remount,size=10m", str(disk)], check=True)
            found = go(disk / "run", resume=True)
        assert_same_result(found.summary, runs[1])
        assert [row["round"] for row in rows_of(disk / "run" / "rounds.csv")] == ["1", "2", "3", "4"]
        del found
        gc.collect()  # TensorBoard's files are open until their writers are collected
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        assert "Read-only file system" in refused(disk / "run", overwrite=True)
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_directory_that_is_deleted_in_the_middle(tmp_path, monkeypatch):
    save = ClusterHistory.after_round

    def delete(self, run):
        save(self, run)
        if run.round_number == 2:
            shutil.rmtree(tmp_path / "run")

    monkeypatch.setattr(ClusterHistory, "after_round", delete)
    with pytest.raises(UserError, match=r"cannot be written: .* \(nothing of the run is saved\)"):
        go(tmp_path / "run")


@pytest.mark.parametrize("out", ["/proc/run", "/proc/1/run", "/dev/full/run", "x" * 300, "a\0b"], ids=range(5))
@pytest.mark.parametrize("command", ["run", "compare", "report", "newcomers"])
def test_names_that_cannot_be(tmp_path, monkeypatch, capsys, command, out):
    monkeypatch.chdir(tmp_path)
    task = ["demo_digits", "--rounds", "1", "--out", out]
    more = {"run": [*task, "--algorithm", "fedavg"], "compare": [*task, "--algorithms", "fedavg"]}
    assert main([command, *more.get(command, [out])]) == 2
    told = [
        line for line in capsys.readouterr().err.splitlines() if line.strip() and not line.startswith("1 run: about")
    ]
    assert len(told) == 1 and told[0].startswith("tffcl: ") and len(told[0]) < 400, told


OURS = {
    "comparison": ["report.html", "table.csv", "targets.csv", "batch.json"],
    "sweep": ["report.html", "sweep.csv", "batch.json"],
}


@pytest.mark.parametrize("what, name", [(what, name) for what, names in OURS.items() for name in names])
def test_a_comparison_or_a_sweep_never_replaces_a_users_own_file(tmp_path, what, name, capsys):
    (tmp_path / name).write_text('title = "mine"')
    commands = {
        "comparison": ["compare", "demo_digits", "--algorithms", "fedavg"],
        "sweep": ["sweep", "demo_digits", "--algorithm", "pacfl", "--over", "threshold=150,210"],
    }
    for more in ([], ["--overwrite"], ["--resume"]):
        assert main([*commands[what], "--out", str(tmp_path), *more]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"tffcl: {tmp_path / name} is not of a {what}, which would write over it"), said
    assert [path.name for path in tmp_path.iterdir()] == [name] and (tmp_path / name).read_text() == 'title = "mine"'


def test_a_study_never_replaces_a_users_own_table(tmp_path, capsys):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "table.csv").write_text("mine")
    assert main(["study", "demo_digits", "--rounds", "2", "--out", str(tmp_path)]) == 2
    assert "table.csv is not of a study, which would write over it" in capsys.readouterr().err
    assert (tmp_path / "results" / "table.csv").read_text() == "mine"


@pytest.mark.parametrize("name", ["batch.json", "manifest.json"])
def test_the_directory_of_several_runs_or_of_an_export_is_no_runs(tmp_path, name):
    (tmp_path / name).write_text("{}")
    with pytest.raises(UserError, match=f"{name}.; a run of its own needs another directory"):
        RunDirectory(tmp_path).check_claim({}, resume=False, overwrite=False)
