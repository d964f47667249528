"""Callbacks of a run: a user's own, early stopping, and what becomes of a run that one of them ends or breaks."""

import dataclasses
import types

import numpy as np
import pytest

import tffcl
from tests.runs.finished_runs import rows_of
from tests.short_runs import TRAINING
from tffcl.errors import UserError
from tffcl.runs.callbacks import EarlyStopping
from tffcl.runs.checkpoints import Checkpoints
from tffcl.runs.run import Interrupted


def running(model, population, directory):
    """What trains for seven rounds, FedAvg unless told otherwise; `(out, *callbacks, ...) -> result or None`."""

    def run(out, *callbacks, population=population, build=tffcl.algorithms.build_fedavg, **more):
        how = {
            "rounds": 7,
            "clients_per_round": 2,
            "evaluate_every": 1,
            "checkpoint_every": 3,
            "show_progress": False,
        } | more
        return tffcl.train(build(model, TRAINING), population, callbacks=callbacks, out=directory / out, **how)

    return run


@pytest.fixture
def go(model, population, tmp_path):
    return running(model, population, tmp_path)


@pytest.fixture(scope="module")
def whole(model, population, tmp_path_factory):
    """A run of four rounds, of which no test loses anything."""
    return running(model, population, tmp_path_factory.mktemp("callbacks"))("whole", rounds=4)


def same(first, second):
    """Whether two results are of one run, but for times."""
    for name in first.summary.keys() - {"seconds"}:
        assert first.summary[name] == second.summary[name], name
    for name in first.round_columns.keys() - {"seconds"}:
        np.testing.assert_array_equal(first.round_columns[name], second.round_columns[name])
    np.testing.assert_array_equal(first.model_of(0), second.model_of(0))


class Mine(tffcl.Callback):
    """Counts rounds over a resumption, and does what it is told to in one of them."""

    def __init__(self, number=0, act=None):
        self.number, self.act, self.seen = number, act, []

    def begin(self, run):
        self.seen.append(("begin", run.round_number))

    def after_round(self, run):
        run.callback_states["mine"] = run.callback_states.get("mine", 0) + 1
        self.seen.append((run.round_number, run.callback_states["mine"]))
        return self.act(run) if run.round_number == self.number else None

    def end(self, run):
        self.seen.append(("end", run.stopped))


@pytest.mark.slow
def test_a_resumed_run_calls_from_where_it_goes_on(go, whole):
    first, second = Mine(), Mine()
    assert go("run", first, rounds=4, until=2) is None
    result = go("run", second, resume=True, rounds=4)
    assert first.seen == [("begin", 0), (1, 1), (2, 2), ("end", "")]
    assert second.seen == [("begin", 2), (3, 3), (4, 4), ("end", "")]
    same(result, whole)


@pytest.mark.parametrize(
    "act",
    [lambda run: 1 / 0, lambda run: True, pytest.param(lambda run: open("/nowhere/at/all"), marks=pytest.mark.slow)],
)
def test_an_error_in_a_callback_is_one_line_and_loses_nothing(go, whole, act):
    mine, other = Mine(2, act), Mine()
    with pytest.raises(
        UserError,
        match=r"the callback Mine (failed in after_round: \w+: .*|returned True .*, or None) \(rounds 1 to 2 are saved",
    ) as raised:
        go("run", mine, other, rounds=4)
    assert "\n" not in str(raised.value) and mine.seen[-1] == ("end", "") and (2, 4) in other.seen
    same(go("run", resume=True, rounds=4), whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    "leave, why",
    [
        (lambda run: run.callback_states.update(mine=np.zeros(2)), "Object of type ndarray is not JSON serializable"),
        (lambda run: setattr(run, "callback_states", None), "NoneType in place of a dict"),
    ],
)
def test_a_state_that_no_checkpoint_holds_is_one_line_and_the_round_stays(go, whole, leave, why):
    other = Mine()
    with pytest.raises(UserError) as raised:
        go("run", Mine(2, leave), other, rounds=4)
    assert str(raised.value) == (
        f"the callback Mine left in run.callback_states in after_round what is no JSON value: {why} "
        "(rounds 1 to 2 are saved)"
    )
    assert (2, 3) in other.seen  # the failed one's count is that of the round before
    same(go("run", resume=True, rounds=4), whole)


@pytest.mark.parametrize(
    "number", [pytest.param(2, marks=pytest.mark.slow), 4], ids=["in the middle", "in the last round"]
)
def test_ctrl_c_in_a_callback_ends_the_run_with_its_round(go, whole, number):
    def interrupt(run):
        raise KeyboardInterrupt

    with pytest.raises(Interrupted, match=f"stopped after round {number};"):
        go("run", Mine(number, interrupt), rounds=4)
    same(go("run", resume=True, rounds=4), whole)


def test_an_error_at_the_end_is_told_and_the_result_stays(go, capsys):
    mine = Mine()
    mine.end = lambda run: 1 / 0
    assert go("run", mine, rounds=1).summary["rounds"] == 1
    assert "tffcl: the callback Mine failed in end: ZeroDivisionError" in capsys.readouterr().err


def test_a_reason_ends_the_run_and_its_result_says_so(go, capsys):
    """At a round without an evaluation too: every client's own model is tested, as in the run that has no more
    rounds."""
    result = go("run", Mine(2, lambda run: "that will do"), evaluate_every=5)
    assert result.summary["stopped"] == "stopped after round 2: that will do" in result.summary["notes"]
    assert (
        result.summary["stopped"] in capsys.readouterr().err and Checkpoints(result.out / "checkpoints").latest() == 2
    )
    whole = go("whole", rounds=2, evaluate_every=5)
    assert whole.summary["accuracy"] == result.summary["accuracy"] and "stopped" not in whole.summary
    rows = [[{**row, "seconds": ""} for row in rows_of(each.out / "rounds.csv")] for each in (result, whole)]
    assert rows[0] == rows[1] and float(rows[0][-1]["cluster_accuracy"]) > 0


def test_what_is_no_callback_is_told(go):
    with pytest.raises(
        UserError, match="one of callbacks is of str; it must be an object of a class that derives from tffcl.Callback"
    ):
        go("run", "mine")
    with pytest.raises(UserError, match="unknown metric 'accuracy'; did you mean 'ari'|unknown metric 'accuracy'"):
        EarlyStopping("accuracy", 3)


def stops_at(values, patience, min_delta=0.0, sign=1):
    """The round with which a run of these values, by round, ends; None if it does not."""
    best = since = None
    for number, value in values.items():
        if best is None or sign * (value - best) > min_delta:
            best, since = value, 0
        else:
            since += 1
        if since == patience:
            return number
    return None


def test_a_value_that_is_as_good_as_the_best_is_no_better():
    """As accuracies on few examples often are; a round without a value counts for nothing."""
    stopping, reasons, soon = EarlyStopping("train_loss", 2), [], EarlyStopping("train_loss", 1)
    run = types.SimpleNamespace(callback_states={}, evaluation=None, stage=types.SimpleNamespace(validator=None))
    for run.round_number, value in enumerate([0.5, 0.5, 0.4, 0.4, None, 0.4], 1):
        run.metrics = {"train_loss": value}
        reasons.append(stopping.after_round(run))
    assert reasons[:5] == [None] * 5
    assert "train_loss has not become better than its 0.4 of round 3 in 2 values since" in reasons[5]
    run.callback_states = {}
    assert soon.after_round(run) is None
    run.round_number = 7
    assert "of round 6 in 1 value since" in soon.after_round(run)


@pytest.mark.slow
@pytest.mark.parametrize(
    "metric, every, min_delta, sign", [("cluster_accuracy", 2, 0.04, 1), ("train_loss", 7, 0.3, -1)]
)
def test_early_stopping_ends_where_the_metric_stays_and_a_resumed_run_there_too(
    go, capsys, metric, every, min_delta, sign
):
    how, stopping = {"evaluate_every": every, "rounds": 12}, EarlyStopping(metric, 2, min_delta)
    free = go("free", **how)
    values = {
        number: value
        for number, value in zip(free.round_columns["round"], free.round_columns[metric])
        if value == value
    }
    expected = stops_at(values, 2, min_delta, sign)
    assert expected is not None and expected < 12
    whole = go("whole", stopping, **how)
    assert whole.summary["rounds"] == expected == len(rows_of(whole.out / "rounds.csv"))
    assert whole.summary["stopped"].startswith(
        f"stopped after round {expected:g}: {metric} has not become better than its "
    )
    assert ("of test data" in capsys.readouterr().err) == (metric != "train_loss")
    assert go("run", stopping, until=int(expected) - 1, **how) is None
    same(go("run", stopping, resume=True, **how), whole)
    same(go("run", stopping, resume=True, **how), whole)  # it has ended: no further round
    assert go("run", dataclasses.replace(stopping, patience=5), resume=True, until=int(expected) + 1, **how) is None


def test_early_stopping_chooses_on_validation_data_where_there_is_some(go, population, capsys):
    held = dataclasses.replace(population, validation_examples=population.test_examples)
    result = go("run", EarlyStopping("cluster_accuracy", 1, 1.0), population=held, rounds=3)
    assert "validation_cluster_accuracy has not become better than its " in result.summary["stopped"]
    assert result.summary["rounds"] == 2 and "of test data" not in capsys.readouterr().err


def test_early_stopping_promises_no_validation_data_where_the_metric_has_none(go, capsys):
    for metric, has_some in (("cluster_accuracy", True), ("local_accuracy", False)):
        go(metric, EarlyStopping(metric, 9), rounds=1)
        line = capsys.readouterr().err
        assert f"early stopping chooses by {metric}, which is of test data" in line
        assert ("clients.with_validation(0.1)" in line) == has_some


def test_early_stopping_by_what_a_method_has_not_says_once_that_it_ends_nothing(go, capsys):
    go("solo", EarlyStopping("global_accuracy", 1), build=tffcl.algorithms.build_solo, rounds=2)
    assert capsys.readouterr().err.count("global_accuracy has no value here, and while that is so early stopping") == 1
    go("fedavg", EarlyStopping("global_accuracy", 9), rounds=1)
    assert "has no value here" not in capsys.readouterr().err


def test_early_stopping_on_validation_data_that_nobody_has_is_told_before_anything_is_written(go, tmp_path):
    with pytest.raises(UserError, match=r"by validation_global_accuracy, and clients have no validation examples; .*"):
        go("run", EarlyStopping("validation_global_accuracy", 3))
    assert not (tmp_path / "run").exists()


def test_early_stopping_goes_on_by_one_kind_of_examples(go, population, tmp_path):
    """Accuracies on test examples are no values of the same series."""
    held = dataclasses.replace(population, validation_examples=population.test_examples)
    stopping = EarlyStopping("cluster_accuracy", 3)
    for first, then, since in ((held, population, "from round 2 on"), (population, held, "in the first rounds")):
        with pytest.raises(UserError, match=f"by validation_cluster_accuracy, and .* no validation examples {since}, "):
            go("run", stopping, population=first, later={2: then}, rounds=3)
    assert not (tmp_path / "run").exists()
    go("loss", EarlyStopping("train_loss", 9), population=held, later={2: population}, rounds=2)


@pytest.mark.slow
def test_runs_of_a_task_that_end_at_different_rounds_stand_in_one_table(tmp_path):
    early = {"metric": "cluster_accuracy", "patience": 1, "min_delta": 0.02}
    tables = {"train": {"rounds": 8, "clients_per_round": 6, "early_stopping": early}, "partition": {"clients": 12}}
    tables |= {"model": {"hidden": 8}, "dataset": {"validation": 0.2}, "evaluation": {"every": 1}}
    configs = [tffcl.resolve("demo_digits", name, overrides=tables) for name in ("fedavg", "solo")]
    mine = Mine()
    summaries = tffcl.compare(configs, tmp_path, show_progress=False, callbacks=[mine])
    assert mine.seen.count(("begin", 0)) == 2 and [("end", each["stopped"]) for each in summaries] == [
        each for each in mine.seen if each[0] == "end"
    ]
    lengths = [summary["rounds"] for summary in summaries]
    assert (
        len({*lengths}) == 2 and max(lengths) < 8 and all("validation_cluster" in each["stopped"] for each in summaries)
    )
    for row, summary in zip(rows_of(tmp_path / "table.csv"), summaries, strict=True):
        assert float(row["cluster_accuracy_percent"]) == pytest.approx(100 * summary["accuracy"]["cluster"]["mean"])
    assert tffcl.compare(configs, tmp_path, resume=True, show_progress=False) == summaries
    run = tmp_path / "solo" / "seed-0"
    assert tffcl.load_run(run).round_number == lengths[1]
    assert tffcl.run(configs[1], run, resume=True, show_progress=False).summary["accuracy"] == summaries[1]["accuracy"]
