"""What several runs will take, said before they start; and a comparison to which seeds are added."""

import pathlib
import types

import pytest

from tffcl.errors import Diverged, UserError
from tffcl.lab.batches import compare, run_time_estimate, study_pace
from tffcl.lab.batches.study_pace import Pace
from tffcl.lab.reporting.number_format import human_time
from tffcl.lab.tasks import resolve as config
from tffcl.runs.run_directory import RunDirectory


def configs(seeds, algorithms=("fedavg", "solo"), rounds=2):
    overrides = {"train": {"rounds": rounds}}
    return [config.resolve("demo_digits", name, seed=seed, overrides=overrides) for seed in seeds for name in algorithms]


@pytest.fixture
def ran(monkeypatch):
    """The runs that were made: each takes 2 s, and no time."""
    made = []

    def run(asked, place, **_):
        made.append((asked.algorithm, asked.seed))
        place.mkdir(parents=True, exist_ok=True)
        directory = RunDirectory(place)
        directory.claim(asked.as_dict(), {}, anew=True)
        about = {"task": asked.task, "algorithm": asked.algorithm, "seed": asked.seed, "rounds": asked.train.rounds}
        directory.write_summary({**about, "seconds": {"total": 2.0}})

    monkeypatch.setattr(compare, "run_or_note", run)
    monkeypatch.setattr(compare.report, "write_table", lambda _: None)
    monkeypatch.setattr(compare.runtime, "renew_local_worker", lambda **_: None)
    return made


@pytest.fixture(autouse=True)
def trials(monkeypatch):
    monkeypatch.setattr(run_time_estimate, "WORTH_A_TRIAL", 4000)


@pytest.mark.parametrize("damage", ["", "[]", '{"task": 3}', '{"task": {"setup": 1.0}}'])
def test_trials_that_are_damaged_are_made_again(tmp_path, damage):
    """A kill while they are written must not stop every later call."""
    (tmp_path / "trials.json").write_text(damage)
    assert run_time_estimate._kept_paces(tmp_path / "trials.json") == {}


@pytest.fixture
def nothing_known(monkeypatch):
    monkeypatch.setattr(study_pace, "earlier_runs", lambda *_: {})


def test_seeds_are_added_to_those_that_are_there(tmp_path, ran, capsys):
    compare.compare(configs([0]), tmp_path)
    assert ran == [("fedavg", 0), ("solo", 0)]
    before = (tmp_path / "solo" / "seed-0" / "run.json").read_bytes()
    capsys.readouterr()
    assert len(compare.compare(configs([0, 1, 2]), tmp_path)) == 6
    assert ran[2:] == [(name, seed) for seed in (1, 2) for name in ("fedavg", "solo")]
    assert (tmp_path / "solo" / "seed-0" / "run.json").read_bytes() == before
    said = capsys.readouterr().err
    assert "6 runs, 4 to do" in said
    assert "[2/6] solo, seed 0: finished before" in said and "[6/6] solo, seed 2" in said
    compare.compare(configs([1], ["fedavg", "pacfl"]), tmp_path)  # fewer seeds, one method more
    assert ran[6:] == [("pacfl", 1)]


def test_what_is_all_there_is_not_run_again(tmp_path, ran, capsys):
    first = compare.compare(configs([0, 1]), tmp_path)
    capsys.readouterr()
    assert compare.compare(configs([0, 1]), tmp_path) == first and len(ran) == 4
    assert capsys.readouterr().err == "nothing to do: all 4 runs are there; --overwrite runs them anew\n"
    assert compare.compare(configs([1]), tmp_path, resume=True) == first[2:] and len(ran) == 4
    compare.compare(configs([0, 1]), tmp_path, overwrite=True)
    assert len(ran) == 8


def test_what_has_not_ended_does_not_go_on_unasked(tmp_path, ran):
    compare.compare(configs([0]), tmp_path)
    (tmp_path / "solo" / "seed-0" / "summary.json").unlink()
    (tmp_path / "solo" / "seed-0" / "checkpoints").mkdir()
    (tmp_path / "solo" / "seed-0" / "checkpoints" / "round_000001.npz").touch()
    with pytest.raises(UserError, match="holds a run already; --resume"):
        compare.compare(configs([0]), tmp_path)
    assert len(ran) == 2


def test_long_runs_get_a_trial_and_what_is_left_follows_what_runs_took(tmp_path, ran, nothing_known, monkeypatch, capsys):
    monkeypatch.setattr(study_pace, "try_out", lambda *_: Pace(setup=1.0, training=0.01, evaluation=0.0, clients=40))
    compare.compare(configs([0, 1], rounds=100), tmp_path)
    said = capsys.readouterr().err.splitlines()
    each = 1 + 100 * 20 * 5 * 0.01  # rounds, clients and local epochs of the task
    assert said[:2] == [
        "a short trial of demo_digits ...",
        f"4 runs, 4 to do: about {human_time(4 * each)} on this machine as it is now",
    ]
    assert said[2] == "[1/4] fedavg, seed 0: about 2 min; all that is left: 7 min"
    assert "[2/4] solo, seed 0: about 2 s; all that is left: 6 s" in said


def test_short_runs_get_none_and_the_first_is_the_trial_of_the_others(tmp_path, ran, nothing_known, monkeypatch, capsys):
    monkeypatch.setattr(study_pace, "try_out", lambda *_: pytest.fail("a trial would take longer than the runs"))
    compare.compare(configs([0, 1]), tmp_path)
    said = capsys.readouterr().err.splitlines()
    assert said[:2] == ["4 runs, 4 to do", "[1/4] fedavg, seed 0"]
    assert said[2] == "[2/4] solo, seed 0: about 2 s; all that is left: 6 s"


def test_runs_of_the_same_setting_are_remembered(tmp_path, ran, capsys):
    compare.compare(configs([0]), tmp_path / "first")
    capsys.readouterr()
    jobs = [run_time_estimate.Job("again", each, tmp_path / "first" / "again" / "seed-1") for each in configs([1])]
    run_time_estimate.started(jobs, None, anew=False)
    assert capsys.readouterr().err == "2 runs, 2 to do: about 4 s, going by earlier runs\n"


def test_of_a_run_that_was_ended_only_the_rounds_after_its_checkpoint_are_left(tmp_path, ran, capsys):
    compare.compare(configs([0], rounds=20), tmp_path)
    place = tmp_path / "solo" / "seed-1"
    (place / "checkpoints").mkdir(parents=True)
    (place / "checkpoints" / "round_000010.npz").touch()
    capsys.readouterr()
    (asked,) = configs([1], ["solo"], rounds=20)
    jobs = [run_time_estimate.Job("solo, seed 1", asked, place)]
    run_time_estimate.started(jobs, None, anew=False).announce(jobs[0], "")
    known, going_on = capsys.readouterr().err.splitlines()
    assert known == "1 run: about 1 s, going by earlier runs"
    assert going_on == "[1/1] solo, seed 1: about 1 s; all that is left: 1 s"
    run_time_estimate.started(jobs, None, anew=True).announce(jobs[0], "")
    assert capsys.readouterr().err.startswith("1 run: about 2 s")


def test_runs_of_other_settings_are_not_parsed(tmp_path, ran, nothing_known, monkeypatch):
    """There are a thousand kept runs, and every command that begins a run looks them up."""
    compare.compare(configs([0]), tmp_path)
    monkeypatch.undo()
    (fedavg, _) = configs([1])
    parsed, parse = [], study_pace.parse_toml
    monkeypatch.setattr(study_pace, "parse_toml", lambda text: parsed.append(text) or parse(text))
    assert set(study_pace.earlier_runs([tmp_path], [fedavg.as_dict()])) == {study_pace.fingerprint(fedavg.as_dict())}
    assert len(parsed) == 1 and 'algorithm = "fedavg"' in parsed[0]


def test_a_run_of_its_own_does_not_look_through_what_is_around_it(tmp_path, ran, monkeypatch):
    """Two directories above `--out ~/mine` are the homes of all users."""
    looked = []
    monkeypatch.setattr(study_pace, "earlier_runs", lambda roots, _: looked.extend(roots) or {})
    (config, _) = configs([1])
    run_time_estimate.started([run_time_estimate.Job("mine", config, tmp_path / "mine")], None, anew=False)
    assert looked and not [root for root in looked if tmp_path.is_relative_to(root.resolve())]


@pytest.mark.parametrize("error, told", [(UserError("no data"), True), (Diverged("not finite"), False)])
def test_a_trial_that_fails(tmp_path, ran, nothing_known, monkeypatch, capsys, error, told):
    """What no run could do either is told at once; a divergence of the trial's method is not that of the others."""

    def fail(*_):
        raise error

    monkeypatch.setattr(study_pace, "try_out", fail)
    if told:
        with pytest.raises(UserError, match="no data"):
            compare.compare(configs([0], rounds=100), tmp_path)
        assert not ran
    else:
        compare.compare(configs([0], rounds=100), tmp_path)
        assert len(ran) == 2 and "no trial of demo_digits: not finite" in capsys.readouterr().err


def test_a_trial_tells_what_a_round_takes_from_what_its_clients_take(monkeypatch):
    def run(asked, place, **_):
        train = asked.train
        usual = 0.25 + 0.003 * train.clients_per_round * train.local_epochs
        seconds = [20.0, *[usual] * (train.rounds - 2), usual + 1.5]  # the first traces, the last is evaluated
        pathlib.Path(place, "rounds.csv").write_text("\n".join(["seconds", *map(str, seconds)]) + "\n")
        return types.SimpleNamespace(summary={"seconds": {"clustering": 2.0}, "clusters": {"sizes": [25, 15]}})

    monkeypatch.setattr(study_pace, "run", run)
    overrides = {"train": {"rounds": 100, "participation": 0.5}, "evaluation": {"every": 10}}
    long = config.resolve("demo_digits", "fedavg", overrides=overrides)
    clients = 20 * long.train.local_epochs
    assert study_pace.try_out(long, None).seconds(long) == pytest.approx(7 + 100 * (0.25 + 0.003 * clients) + 11 * 1.5)
    two = config.resolve("demo_digits", "fedavg", overrides={**overrides, "train": {"rounds": 100, "clients_per_round": 2}})
    assert study_pace.try_out(two, None).seconds(two) == pytest.approx(
        7 + 100 * (0.25 + 0.006 * two.train.local_epochs) + 11 * 1.5
    )


def test_a_trial_of_a_private_run_has_no_budget(tff_worker):
    """Plain FedAvg, which is what is tried, has no noise: a budget would refuse it."""
    overrides = {
        "aggregation": {"name": "dp", "noise_multiplier": 3.0},
        "privacy": {"epsilon": 50.0},
        "attack": {"share": 0.2, "kind": "sign_flip"},
        "partition": {"clients": 4},
        "model": {"hidden": 4},
        "train": {"clients_per_round": 2},
    }
    assert study_pace.try_out(config.resolve("demo_digits", "fedavg", overrides=overrides), None).clients == 4
