"""What several runs will take, said before they start; and a comparison to which seeds are added."""

import dataclasses
import pathlib
import tomllib

import pytest
import tomli_w

from tffcl.errors import UserError
from tffcl.lab.batches import batch, compare
from tffcl.lab.reporting import batch_index, report
from tffcl.lab.tasks import resolve as config
from tffcl.lab.tasks import task_file
from tffcl.runs.run_directory import RunDirectory


def configs(seeds, algorithms=("fedavg", "solo"), rounds=2):
    overrides = {"train": {"rounds": rounds}}
    return [
        config.resolve("demo_digits", name, seed=seed, overrides=overrides) for seed in seeds for name in algorithms
    ]


@pytest.fixture
def ran(monkeypatch):
    """The runs that were made: each takes 2 s, and no time."""
    made = []

    def run(self, job, until=None):
        asked, place = job.config, self.place(job)
        made.append((asked.algorithm, asked.seed))
        place.mkdir(parents=True, exist_ok=True)
        directory = RunDirectory(place)
        directory.claim(asked.as_dict(), {}, {}, anew=True)
        about = {"task": asked.task, "algorithm": asked.algorithm, "seed": asked.seed, "rounds": asked.train.rounds}
        directory.write_summary({**about, "seconds": {"total": 2.0}})

    monkeypatch.setattr(batch.Batch, "run_or_note", run)
    monkeypatch.setattr(compare.report, "write_table", lambda _: None)
    monkeypatch.setattr(batch.runtime, "renew_local_worker", lambda **_: None)
    return made


@pytest.fixture
def nothing_known(monkeypatch):
    monkeypatch.setattr(batch, "earlier_runs", lambda *_: {})


def test_seeds_are_added_to_those_that_are_there(tmp_path, ran, capsys):
    compare.compare_runs(configs([0]), tmp_path)
    assert ran == [("fedavg", 0), ("solo", 0)]
    before = (tmp_path / "solo" / "seed-0" / "run.json").read_bytes()
    capsys.readouterr()
    assert len(compare.compare_runs(configs([0, 1, 2]), tmp_path)) == 6
    assert ran[2:] == [(name, seed) for seed in (1, 2) for name in ("fedavg", "solo")]
    assert (tmp_path / "solo" / "seed-0" / "run.json").read_bytes() == before
    said = capsys.readouterr().err
    assert "6 runs, 4 to do" in said
    assert "[2/6] solo, seed 0: finished before" in said and "[6/6] solo, seed 2" in said
    compare.compare_runs(configs([1], ["fedavg", "pacfl"]), tmp_path)  # fewer seeds, one method more
    assert ran[6:] == [("pacfl", 1)]


def test_what_is_all_there_is_not_run_again(tmp_path, ran, capsys):
    first = compare.compare_runs(configs([0, 1]), tmp_path)
    capsys.readouterr()
    assert compare.compare_runs(configs([0, 1]), tmp_path) == first and len(ran) == 4
    assert capsys.readouterr().err == "nothing to do: all 4 runs are there; overwrite=True runs them anew\n"
    assert compare.compare_runs(configs([1]), tmp_path, resume=True) == first[2:] and len(ran) == 4
    compare.compare_runs(configs([0, 1]), tmp_path, overwrite=True)
    assert len(ran) == 8


def test_a_method_that_cannot_be_built_is_told_before_the_others_run(tmp_path, ran):
    wrong = {"algorithms": {"lg_fedavg": {"local_layers": ["nope"]}}}
    last = config.resolve("demo_digits", "lg_fedavg", overrides={"train": {"rounds": 2}, **wrong})
    with pytest.raises(UserError, match="unknown layer of mlp in local_layers 'nope'"):
        compare.compare_runs([*configs([0]), last], tmp_path / "out")
    assert ran == [] and not (tmp_path / "out").exists()


def test_what_has_not_ended_does_not_go_on_unasked(tmp_path, ran):
    compare.compare_runs(configs([0]), tmp_path)
    (tmp_path / "solo" / "seed-0" / "summary.json").unlink()
    (tmp_path / "solo" / "seed-0" / "checkpoints").mkdir()
    (tmp_path / "solo" / "seed-0" / "checkpoints" / "round_000001.npz").touch()
    with pytest.raises(UserError, match="holds a run already; resume=True"):
        compare.compare_runs(configs([0]), tmp_path)
    assert len(ran) == 2


def test_a_run_that_was_ended_before_its_first_checkpoint_begins_anew(tmp_path, monkeypatch):
    (before,), (now,) = configs([0], ["solo"], rounds=3), configs([0], ["solo"])
    (place := tmp_path / "solo" / "seed-0").mkdir(parents=True)
    RunDirectory(place).claim(before.as_dict(), {}, {}, anew=True)
    with pytest.raises(UserError, match="rounds is 3, not 2"):
        compare.compare_runs([now], tmp_path, resume=True)
    assert not (tmp_path / "batch.json").exists()  # what is refused is refused before anything is written

    def run(config, place, *, resume, **_):
        RunDirectory(place).check_claim(config.as_dict(), resume=resume, overwrite=False)
        raise RuntimeError("it has begun")

    monkeypatch.setattr(batch, "run", run)
    with pytest.raises(RuntimeError, match="it has begun"):
        compare.compare_runs([now], tmp_path)


def test_the_first_run_tells_what_the_others_of_its_task_take(tmp_path, ran, nothing_known, capsys):
    compare.compare_runs(configs([0, 1]), tmp_path)
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "4 runs, 4 to do",
        "[1/4] fedavg, seed 0",
        "[2/4] solo, seed 0: about 2 s; all that is left: 6 s",
        "[3/4] fedavg, seed 1: about 2 s; all that is left: 4 s",
        "[4/4] solo, seed 1: about 2 s; all that is left: 2 s",
    ]


def test_what_earlier_runs_took_is_corrected_by_what_these_take(tmp_path, ran, monkeypatch, capsys):
    known = configs([1])
    rates = {batch.settings_key(each.as_dict()): 10.0 for each in known}
    monkeypatch.setattr(batch, "earlier_runs", lambda *_: rates)
    compare.compare_runs(known, tmp_path)
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "2 runs, 2 to do: about 40 s, going by earlier runs",
        "[1/2] fedavg, seed 1: about 20 s; all that is left: 40 s",
        "[2/2] solo, seed 1: about 2 s; all that is left: 2 s",  # a tenth, as the one before
    ]


def test_runs_of_the_same_setting_are_remembered(tmp_path, ran, capsys):
    compare.compare_runs(configs([0]), tmp_path)
    capsys.readouterr()
    compare.compare_runs(configs([0, 1]), tmp_path)
    assert capsys.readouterr().err.startswith("4 runs, 2 to do: about 4 s, going by earlier runs\n")


def test_a_damaged_run_elsewhere_tells_nothing(tmp_path):
    asked = [each.as_dict() for each in configs([0], ["solo"])]
    place = tmp_path / "old" / "seed-0"
    place.mkdir(parents=True)
    (place / "summary.json").touch()
    named = tomli_w.dumps({key: asked[0][key] for key in ("task", "algorithm")})
    (place / "config.toml").write_text(f"{named}train = 3\n")
    assert batch.earlier_runs([tmp_path], asked) == {}
    (place / "config.toml").write_text(tomli_w.dumps(asked[0]))
    for seconds in ("2", "NaN", "1e999", "-2", "1" + "0" * 400):
        (place / "summary.json").write_text(f'{{"rounds": 1, "seconds": {{"total": {seconds}}}}}')
        assert list(batch.earlier_runs([tmp_path], asked).values()) == ([2] if seconds == "2" else [])


@pytest.mark.parametrize(
    "index", ["{", "[]", '{"cells": 3}', '{"cells": [3]}', "CELL 3}]}", 'CELL "/etc"}]}', 'CELL "a\\u0000b"}]}']
)
def test_a_damaged_index_of_a_study_tells_nothing(tmp_path, monkeypatch, index):
    (asked,) = configs([0], ["solo"])
    (tmp_path / "league").mkdir()
    cell = f'{{"cells": [{{"task": "{asked.task}", "method": "solo", "directory": '
    (tmp_path / "league" / "batch.json").write_text(index.replace("CELL ", cell))
    monkeypatch.setattr(task_file, "results_directory", lambda: tmp_path)
    job = batch.Job(asked, pathlib.PurePath("x"), "a run")
    assert batch.Estimate({job: 3}, batch.earlier_places([job])[:-1]).of() == ""


def test_of_a_run_that_was_ended_only_the_rounds_after_its_checkpoint_are_left(
    tmp_path, ran, nothing_known, monkeypatch, capsys
):
    asked = configs([1, 2], ["solo"], rounds=20)
    monkeypatch.setattr(batch, "earlier_runs", lambda *_: {batch.settings_key(asked[0].as_dict()): 0.1})
    place = tmp_path / "solo" / "seed-1"
    (place / "checkpoints").mkdir(parents=True)
    (place / "checkpoints" / "round_000010.npz").touch()
    monkeypatch.setattr(batch.RunDirectory, "check_claim", lambda *_, **__: None)
    compare.compare_runs(asked, tmp_path, resume=True)
    known, first, *_ = capsys.readouterr().err.splitlines()
    assert known == "2 runs, 2 to do: about 3 s, going by earlier runs"
    assert first == "[1/2] solo, seed 1: about 1 s; all that is left: 3 s"


def test_the_cheapest_of_a_seed_comes_first(tmp_path, ran, monkeypatch):
    asked = configs([0, 1])
    monkeypatch.setattr(batch, "earlier_runs", lambda *_: {batch.settings_key(asked[0].as_dict()): 9.0})
    jobs = [batch.Job(each, pathlib.PurePath(each.algorithm, f"seed-{each.seed}"), each.algorithm) for each in asked]
    some = batch.Batch("comparison", tmp_path, batch.Options(show_progress=False))
    with some.claimed(jobs, {"algorithms": [], "targets": []}):
        some.run(jobs, cheapest_first=True)
    assert ran == [("solo", 0), ("fedavg", 0), ("solo", 1), ("fedavg", 1)]


def test_runs_of_other_settings_are_not_parsed(tmp_path, ran, monkeypatch):
    """There are thousands of kept runs, and every command that begins a run of the package's tasks looks them up."""
    (one,) = configs([0], ["solo"])
    for asked in (one, dataclasses.replace(one, task="my_clinics")):
        *kept, own = batch.earlier_places([batch.Job(asked, pathlib.PurePath("x"), "a run")])
        files = [file for place in kept for file in place.glob("seed-*/config.toml")]
        assert own == pathlib.Path("runs", asked.task) and bool(kept) == bool(files) == (asked is one)
        for file in files:
            assert tomllib.loads(file.read_text())["task"] == one.task and "solo" in file.read_text(), file
    compare.compare_runs(configs([0]), tmp_path)
    (fedavg, _) = configs([1])
    parsed, parse = [], batch.parse_toml
    monkeypatch.setattr(batch, "parse_toml", lambda text: parsed.append(text) or parse(text))
    assert set(batch.earlier_runs([tmp_path], [fedavg.as_dict()])) == {batch.settings_key(fedavg.as_dict())}
    assert len(parsed) == 1 and 'algorithm = "fedavg"' in parsed[0]


def test_a_directory_is_of_one_kind_of_batch(tmp_path, ran):
    compare.compare_runs(configs([0]), tmp_path)
    with pytest.raises(UserError, match="holds a comparison .batch.json.; a sweep needs another directory"):
        batch.Batch("sweep", tmp_path, batch.Options())


@pytest.mark.parametrize("damage", [None, "{", '{"kind": "comparison"}'], ids=["lost", "cut", "a part"])
def test_a_comparison_goes_on_without_its_index(tmp_path, ran, damage):
    first = compare.compare_runs(configs([0]), tmp_path)
    (tmp_path / "table.csv").write_text("algorithm\n")
    index, before = tmp_path / "batch.json", (tmp_path / "batch.json").read_text()
    if damage:
        index.write_text(damage)
        with pytest.raises(UserError, match=r"batch.json is (not of a comparison.*; move it|damaged: .*; without it)"):
            compare.compare_runs(configs([0]), tmp_path)
    index.unlink()
    assert compare.compare_runs(configs([0]), tmp_path) == first and len(ran) == 2
    assert index.read_text() == before


@pytest.mark.parametrize("name", ["table.csv", "report.html", "targets.csv"])
def test_a_file_of_a_users_own_beside_runs_without_an_index_stays(tmp_path, ran, name):
    compare.compare_runs(configs([0]), tmp_path)
    (tmp_path / "batch.json").unlink()
    (tmp_path / name).write_text("<!DOCTYPE html><title>mine</title>")
    for write in (lambda: compare.compare_runs(configs([0]), tmp_path), lambda: report.write_report(tmp_path)):
        with pytest.raises(UserError, match=rf"{name} was not made by tffcl, which would write over it; move it"):
            write()
    assert (tmp_path / name).read_text() == "<!DOCTYPE html><title>mine</title>"


@pytest.mark.parametrize("damage", ["{", "[]", "3", '{"kind": 3}', '{"kind": "league"}', '{"kind": "comparison"}'])
def test_a_damaged_index_is_one_line(tmp_path, damage):
    (tmp_path / "batch.json").write_text(damage)
    with pytest.raises(UserError, match=r"batch.json is damaged: [^\n]*$"):
        batch_index.read_order(tmp_path)
    with pytest.raises(UserError, match=r"batch.json is [^\n]*$"):
        compare.compare_runs(configs([0]), tmp_path)


def test_an_index_that_cannot_be_read_is_not_said_to_be_somebody_elses(tmp_path):
    (tmp_path / "batch.json").mkdir()
    for kind in ("comparison", "sweep"):
        with pytest.raises(UserError, match=f"^{tmp_path / 'batch.json'} is not a file$"):
            batch.Batch(kind, tmp_path, batch.Options())
