"""Choosing a setting by validation accuracy: what is drawn, when points are stopped, and that only the picked one
is tested.
"""

import collections
import json
import math
import types

import numpy as np
import pytest

import tffcl
from tests.lab.cli.test_cli import fails
from tests.runs.finished_runs import rows_of
from tffcl.errors import UserError
from tffcl.lab.batches import batch, search, summaries, sweep
from tffcl.lab.cli.main import main
from tffcl.runs.run_directory import RunDirectory

SHORT = "--rounds 4 --set evaluation.every=1 --set train.clients_per_round=6".split()
HELD = ["--set", "dataset.validation=0.2"]
COMMAND = [*"sweep demo_digits --algorithm fedavg --over learning_rate=0.0001,0.1,1e30,0.001".split(), *SHORT, *HELD]
SELECT = ["--select", "cluster", "--halving", "2", "--fresh-seeds", "2"]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Four learning rates with halving, of which one learns and one diverges: `(directory, batch.json)`; only read
    by tests.
    """
    out = tmp_path_factory.mktemp("search") / "out"
    assert main([*COMMAND, *SELECT, "--out", str(out)]) == 0
    return out, json.loads((out / "batch.json").read_text())


@pytest.mark.parametrize(
    ("points", "rounds", "every", "halving", "expected"),
    [
        (4, 4, 1, 2, [(1, 4), (2, 2), (4, 1)]),
        (9, 90, 10, 3, [(10, 9), (30, 3), (90, 1)]),
        (9, 90, 50, 3, [(50, 9), (90, 3)]),  # only at evaluations
        (8, 5, 10, 2, [(5, 8)]),  # evaluated at the end alone
        (5, 100, 1, 0, [(100, 5)]),
    ],
)
def test_bad_points_stop_at_evaluations(points, rounds, every, halving, expected):
    assert search.rungs(points, rounds, every, halving) == expected


def test_each_rung_is_sorted_by_validation_accuracy_and_halves(found):
    out, contents = found
    rungs = [[point["rounds"] for point in rung["points"]] for rung in contents["rungs"]]
    assert rungs == [[1, 1, 1, 1], [2, 2], [4]]
    for rung in contents["rungs"]:
        for point in rung["points"]:
            value = point["values"][0]
            place = next(out.glob(f"learning_rate-{value:g}/seed-0"), None) or next(
                out.glob("learning_rate-1e*30/seed-0")
            )
            if value == 1e30:
                assert point["score"] is None and (place / "failed.json").is_file()
            else:
                row = rows_of(place / "rounds.csv")[point["rounds"] - 1]
                assert point["score"] == pytest.approx(float(row["validation_cluster_accuracy"]))
        known = [point["score"] for point in rung["points"] if point["score"] is not None]
        assert known == sorted(known, reverse=True)
    stopped = {len(rows_of(place / "rounds.csv")) for place in out.glob("learning_rate-0.0*/seed-0")}
    assert max(stopped) < 4


def test_a_search_over_rounds_takes_each_point_at_its_own_end(tmp_path, monkeypatch):
    def run(self, job, until=None):
        """Becomes better by a tenth in each round, and takes no time."""
        asked, directory = job.config, RunDirectory(self.place(job))
        directory.path.mkdir(parents=True)
        directory.claim(asked.as_dict(), {}, {}, anew=True)
        rows = [f"{number},{number / 10}" for number in range(1, 1 + (until or asked.train.rounds))]
        (directory / "rounds.csv").write_text("\n".join(["round,validation_cluster_accuracy", *rows, ""]))
        found = {kind: {"mean": asked.train.rounds / 10} for kind in ("cluster", "local", "global")}
        about = {"task": asked.task, "algorithm": asked.algorithm, "seed": asked.seed, "rounds": asked.train.rounds}
        if until in (None, asked.train.rounds):
            directory.write_summary({**about, "accuracy": found, "validation": found, "seconds": {"total": 1.0}})

    monkeypatch.setattr(batch.Batch, "run_or_note", run)
    monkeypatch.setattr(batch, "earlier_runs", lambda *_: {})
    monkeypatch.setattr(batch.runtime, "renew_local_worker", lambda **_: None)
    held = {"dataset": {"validation": 0.1}}
    planned = sweep.plan("demo_digits", "fedavg", [sweep.Axis("train.rounds", (2, 4))], overrides=held)
    options = search.SearchOptions("cluster", fresh_seeds=1)
    found = search.run_search(planned, tmp_path / "out", options, show_progress=False)
    assert found.picked == {"rounds": 4}
    assert found.frame["rounds"].tolist() == found.frame["compared_after"].tolist() == [4, 2]


def test_the_picked_one_alone_is_tested_with_fresh_seeds(found, capsys):
    out, contents = found
    picked = contents["picked"]
    assert picked["values"] == [0.1] and picked["seeds"] == [1, 2]
    for seed, cluster in zip(picked["seeds"], picked["test"]["cluster"], strict=True):
        summary = json.loads((out / "picked" / f"seed-{seed}" / "summary.json").read_text())
        assert summary["accuracy"]["cluster"]["mean"] == cluster and summary["seed"] == seed
    assert main(["report", str(out)]) == 0
    text = capsys.readouterr().out
    assert "picked: learning rate 0.1, on test data over the fresh seeds 1, 2:" in text
    test = 50 * sum(picked["test"]["cluster"])
    assert f"cluster {test:.2f} ±" in text
    # The heading of the validation accuracies, and three test accuracies of the picked one.
    assert text.count(" %") == 4
    with pytest.raises(UserError, match="is a search, which has no page"):  # with the test accuracies of all points
        tffcl.write_report(out)


def test_resuming_repeats_nothing(found, monkeypatch):
    out, contents = found
    monkeypatch.setattr(batch, "run", lambda *_, **__: pytest.fail("a run that had ended was run again"))
    assert main([*COMMAND, *SELECT, "--out", str(out), "--resume"]) == 0
    assert json.loads((out / "batch.json").read_text()) == contents


@pytest.mark.parametrize("low, high", [(1, 3), (1, 10)])
def test_whole_numbers_are_drawn_evenly_up_to_both_ends(low, high):
    """Or evenly in their logarithm, of which each has as much as lies nearer to it than to its neighbours."""
    draw, rng = search._range("epochs", f"{low}..{high}"), np.random.default_rng(0)
    counts = collections.Counter(draw(rng) for _ in range(20_000))
    edges = np.arange(low, high + 2) - 0.5
    shares = np.diff(edges if high < 10 * low else np.log(edges))
    assert [counts[each] for each in range(low, high + 1)] == pytest.approx(20_000 * shares / shares.sum(), rel=0.1)


def test_random_points():
    texts = [("--over", "learning_rate=0.001..1"), ("--and", "local_epochs=1..5")]
    axes, points = search.random_axes(texts, "fedavg", 20, seed=0)
    assert [axis.key for axis in axes] == ["train.learning_rate", "train.local_epochs"]
    assert len(set(points)) == 20 and search.random_axes(texts, "fedavg", 20, seed=0)[1] == points
    assert search.random_axes(texts, "fedavg", 20, seed=1)[1] != points
    rates = sorted(rate for rate, _ in points)
    # Even in the logarithm: the middle is near 0.03.
    assert 0.001 <= rates[0] and rates[-1] <= 1 and 0.003 < rates[10] < 0.3
    assert {type(epochs) for _, epochs in points} == {int} and {epochs for _, epochs in points} <= {1, 2, 3, 4, 5}
    with pytest.raises(UserError, match="over gives only 5 different points"):
        search.random_axes(texts[1:], "fedavg", 6, seed=0)
    listed, found = search.random_axes([("--over", "momentum=0,0.5,0.9")], "fedavg", 3, seed=0)
    assert sorted(found) == [(0,), (0.5,), (0.9,)] and set(listed[0].values) == {0, 0.5, 0.9}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--select", "cluster"], "--select needs validation examples"),
        (
            [*HELD, "--select", "cluster", "--set", "evaluation.metrics=['mae']"],
            "unknown metric of --select cluster 'cluster_accuracy'",
        ),
        *(
            (
                [*HELD, *SELECT, *SHORT, "--set", f"{table}.clients=2", "--set", f"{table}.round=3"],
                "--halving 2 compares points after 2 rounds, and clients join or data change from round 3 on",
            )
            for table in ("drift", "newcomers")
        ),
        (
            [*HELD, "--select", "local"],
            "--select 'local' must be cluster or global: local accuracy is taken on test examples",
        ),
        ([*HELD, "--select", "cluster", "--halving", "1"], "--halving 1 must be 2 or more"),
        ([*HELD, "--select", "cluster", "--fresh-seeds", "0"], "--fresh-seeds 0 must be 1 or more"),
        ([*HELD, "--select", "cluster", "--samples", "0"], "--samples 0 must be 2 or more"),
        (["--samples", "3"], "say by which accuracy with --select cluster"),
        (["--fresh-seeds", "2"], "say by which accuracy with --select cluster"),
        ([*HELD, *SELECT, "--and", "clients_per_round=9,41"], "clients_per_round is 41, but there are only 40 clients"),
    ],
)
def test_one_line_says_what_is_wrong(capsys, tmp_path, arguments, message):
    command = ["sweep", "demo_digits", "--algorithm", "fedavg", "--over", "learning_rate=0.1,0.2"]
    assert message in fails(capsys, *command, *arguments, "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_run_whose_budget_is_spent_is_scored_by_what_it_has_come_to(tmp_path):
    """It has fewer rounds than are compared, and no further one may run."""
    (tmp_path / "rounds.csv").write_text("round,validation_cluster_accuracy\n1,0.3\n2,0.4\n")
    about = {"task": "t", "algorithm": "a", "seed": 0, "rounds": 2}
    about["validation"] = {"cluster": {"mean": 0.45}, "global": {"mean": None}}
    (tmp_path / "summary.json").write_text(json.dumps(about))
    assert search.validation(tmp_path, "cluster", 2) == 0.4
    assert search.validation(tmp_path, "cluster", 8) == search.validation(tmp_path, "cluster") == 0.45
    assert math.isnan(search.validation(tmp_path, "global", 8))
    (tmp_path / "summary.json").unlink()
    assert search.validation(tmp_path, "cluster", 8) == -math.inf


@pytest.mark.parametrize(
    ("select", "cure"),
    [
        ("global", "(--)?select cluster is there for every method"),
        ("global_mae", "(--)?select cluster_mae is there for every method"),
        ("cluster", "where labels are numbers to predict there is a metric's, e.g. (--)?select cluster_mae"),
        ("cluster_auc", "it is defined for no client"),
    ],
)
def test_a_metric_that_is_not_there_is_told_after_one_run_with_one_that_is(tmp_path, select, cure):
    about = {"task": "t", "algorithm": "pacfl", "seed": 0, "rounds": 2, "validation": {"cluster": {"mean": None}}}
    (tmp_path / "summary.json").write_text(json.dumps(about))
    job, ran = types.SimpleNamespace(config=types.SimpleNamespace(algorithm="pacfl")), []
    fake = types.SimpleNamespace(
        done=lambda *_: "", place=lambda _: tmp_path, run_or_note=lambda *given: ran.append(given),
        run=lambda jobs, each, **_: [each(job) for job in jobs],
    )  # fmt: skip
    with pytest.raises(UserError, match=rf"pacfl has no {select}(_accuracy)? on validation examples; {cure}"):
        search.scores(fake, [[job], [job]], select, None)
    assert len(ran) == 1


def test_a_search_over_lists_shows_its_points():
    points = [{"values": [[0, 3]], "rounds": 2, "score": 0.5}, {"values": [[0, 6]], "rounds": 2, "score": None}]
    index = {"keys": ["partition.shifts"], "select": "cluster", "rungs": [{"points": points}]}
    found = summaries.Found([], types.SimpleNamespace(out=None, index=index), [], [])
    assert found.frame["shifts"].tolist() == [[0, 3], [0, 6]]
    assert found.frame["validation_cluster_accuracy_percent"].dropna().tolist() == [50.0]


@pytest.mark.slow
def test_a_search_may_choose_by_another_metric(tmp_path, capsys):
    """Of which less is better, and which is shown as it is."""
    command = [*COMMAND, *"--select cluster_log_loss --fresh-seeds 1".split()]
    assert main([*command, "--out", str(tmp_path / "a")]) == 2
    assert "--select cluster_log_loss needs the metric: --set 'evaluation.metrics=" in capsys.readouterr().err
    assert main([*command, "--set", 'evaluation.metrics=["log_loss"]', "--out", str(tmp_path / "b")]) == 0
    contents = json.loads((tmp_path / "b" / "batch.json").read_text())
    scores = [point["score"] for point in contents["rungs"][-1]["points"]]
    assert scores[0] < scores[1] < scores[2] and scores[3] is None
    assert contents["picked"]["validation"] == scores[0] and contents["picked"]["test"]["cluster_log_loss"][0] > 0
    assert f"{scores[0]:.3f}" in capsys.readouterr().out
