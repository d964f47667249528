"""Rounds and bytes to a target accuracy, held against the rows of rounds.csv, counted by hand."""

import json
import math
import types

import numpy as np
import pytest

from tests.lab.cli.test_cli import fails
from tests.runs.finished_runs import rows_of
from tffcl.lab.cli.main import main
from tffcl.lab.reporting import batch_index, targets
from tffcl.lab.reporting.batch_index import write_index
from tffcl.lab.reporting.number_format import Stat

COMMAND = "compare demo_digits --algorithms pacfl,fedavg --rounds 5 --set train.clients_per_round=10".split()
WANTED = ["--target", "local=30", "--target", "cluster=100", "--target", "cluster=30"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """PACFL and FedAvg with three targets; its tests leave it as it is."""
    out = tmp_path_factory.mktemp("targets") / "out"
    assert main([*COMMAND, *WANTED, "--out", str(out)]) == 0
    return out


def by_hand(place, column, percent):
    """Round, bytes and megabits a client to a target, None if it is not reached."""
    rows = rows_of(place / "rounds.csv")
    assert all(row["cluster_accuracy"] for row in rows)  # every round is evaluated
    total = json.loads((place / "summary.json").read_text())["traffic"]
    beside = (
        total["down_bytes"] + total["up_bytes"] - sum(int(row["down_bytes"]) + int(row["up_bytes"]) for row in rows)
    )
    sent = 0
    for row in rows:
        sent += int(row["down_bytes"]) + int(row["up_bytes"])
        if 100 * float(row[column]) >= percent:
            return int(row["round"]), sent + beside, sent * 8e-6 / 40
    return None


@pytest.mark.slow
def test_the_numbers_are_those_of_the_rounds(compared):
    rows = rows_of(compared / "targets.csv")
    asked = [("local", 30), ("cluster", 100), ("cluster", 30)]
    assert [(row["algorithm"], row["metric"], float(row["target"])) for row in rows] == [
        (method, *target) for target in asked for method in ("pacfl", "fedavg")
    ]
    reached = 0
    for row in rows:
        place = compared / row["algorithm"] / "seed-0"
        found = by_hand(place, f"{row['metric']}_accuracy", float(row["target"]))
        reached += found is not None
        assert row["seeds_reached"] == str(int(found is not None))
        if found:
            assert (int(row["rounds"]), int(row["bytes"])) == found[:2]
            assert float(row["megabits_a_client"]) == pytest.approx(found[2])
        else:
            assert row["rounds"] == row["bytes"] == ""
        every = by_hand(place, "local_accuracy_all", 30)
        if row["metric"] == "local" and every:
            assert int(row["rounds_of_all"]) == every[0]
            assert found and every[0] > found[0]  # it takes some rounds until most have been sampled
    assert 2 < reached < 6


@pytest.mark.slow
def test_the_text_and_the_page_have_them(compared, capsys):
    assert main(["report", str(compared)]) == 0
    out = capsys.readouterr().out
    assert "rounds, never trained counted" in out and "cluster 100 %  not reached" in out
    page = (compared / "report.html").read_text()
    assert "Rounds and bytes to a target" in page and "not reached" in page


@pytest.mark.slow
def test_the_authors_way_is_traffic_over_all_clients(compared):
    """0.1 x 32 bit x parameters x 2 a round, for a tenth of the clients; here a quarter."""
    fedavg = next(run for run in batch_index.find_runs(compared) if run.method == "fedavg")
    (row,) = targets.reached([fedavg], [targets.Target("cluster", 1)])
    parameters = 64 * 64 + 64 + 64 * 10 + 10
    assert row.rounds.mean == 1
    assert row.megabits.mean == pytest.approx(0.25 * 32e-6 * parameters * 2, rel=0.01)  # and weights of a few bytes


@pytest.mark.parametrize(
    "text, message",
    [
        *(
            (text, "is not METRIC=VALUE, e.g. local=75 or cluster_auc=0.9")
            for text in ("local", "local=", "local=high")
        ),
        *((text, "local is from 0 to 100 %") for text in ("local=0", "local=101")),
        ("cluster_auc=90", "cluster_auc is from 0 to 1"),
        ("accuracy=75", "unknown metric of --target 'accuracy'; did you mean 'local_accuracy'?"),
        ("cluster_auc=0.9", "needs the metric: --set 'evaluation.metrics"),
    ],
)
def test_a_wrong_target_is_one_line(capsys, tmp_path, text, message):
    told = fails(capsys, *COMMAND, "--target", text, "--out", str(tmp_path / "out"))
    assert message in told and not (tmp_path / "out").exists()


@pytest.mark.parametrize("share, percent", [("0.75", "75"), ("1", "100"), (".005", "0.5")])
def test_a_share_is_no_percentage(capsys, tmp_path, share, percent):
    told = fails(capsys, *COMMAND, "--target", f"local={share}", "--out", str(tmp_path / "out"))
    assert f"--target 'local={share}' is " in told and f"did you mean local={percent}?" in told


def test_a_target_that_was_noted_earlier_is_read_still(tmp_path):
    write_index(tmp_path, "comparison", {"algorithms": ["pacfl"], "targets": ["local=0.75"]})
    assert targets.read_targets(tmp_path) == [targets.Target("local", 0.75)]


@pytest.mark.slow
def test_the_page_sorts_by_numbers(compared):
    rows = targets.reached(batch_index.find_runs(compared), [targets.Target("cluster", 1)])
    for row, line in zip(rows, targets.to_table(rows).rows, strict=True):
        assert [cell.value for cell in line[2:5]] == [row.rounds.mean, row.total_bytes.mean, row.megabits.mean]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["global", "cluster_auc"])
def test_what_a_run_does_not_measure_is_told_apart_from_what_it_does_not_reach(compared, name):
    pacfl = next(run for run in batch_index.find_runs(compared) if run.method == "pacfl")
    (row,) = targets.reached([pacfl], [targets.Target(name, 1)])
    assert row.rounds.count == 0 and targets.cells(row)[2] == "not measured" and np.isnan(row.megabits.mean)


def test_a_suggested_target_is_of_each_methods_best_seed():
    """The greatest multiple of 5 % that it reaches, also where it falls after that, and half of several methods."""
    fedavg, _, pacfl, _, other = seeds = [
        types.SimpleNamespace(method=method, rounds={"cluster_accuracy": np.array([np.nan, best, best - 0.1])})
        for method, best in (("fedavg", 0.64), ("fedavg", 0.31), ("pacfl", 0.84), ("pacfl", 0.84), ("other", 0.8))
    ]
    other.rounds["cluster_accuracy"] = other.rounds["cluster_accuracy"] - 1e-15  # a mean that is 80 % but for rounding
    assert targets.suggested(seeds[:2]) == [targets.Target("cluster", 60)]
    assert targets.suggested([other]) == [targets.Target("cluster", 80)]
    assert targets.suggested([fedavg, pacfl]) == targets.suggested(seeds[:4]) == [targets.Target("cluster", 80)]


def test_seeds_that_never_reach_a_local_target_are_told_in_either_count():
    of = {name: Stat.of([3.0, 4.0]) for name in ("rounds", "total_bytes", "megabits")}
    row = targets.Reached("fedavg", targets.Target("local", 60), **of, rounds_of_all=Stat.of([math.nan, 4]), seeds=2)
    assert targets.cells(row)[5:] == ["4 (1 not reached)", "2"]


@pytest.mark.slow
def test_a_target_of_what_is_better_the_less_is_reached_from_above(compared):
    fedavg = next(run for run in batch_index.find_runs(compared) if run.method == "fedavg")
    losses = fedavg.rounds["train_loss"]
    limit = float(np.mean(losses))
    (row,) = targets.reached([fedavg], [targets.parse_target(f"train_loss={limit}")])
    assert row.rounds.mean == 1 + np.flatnonzero(losses <= limit)[0] > 1
    assert targets.cells(row)[1].startswith("train_loss ") and "%" not in targets.cells(row)[1]
