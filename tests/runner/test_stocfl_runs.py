"""Whole runs of StoCFL, FedProx and Ditto on digits."""

import numpy as np
import pytest

import tffcl
from tests.runner.finished_runs import check_files_agree, check_newcomers_and_models, check_resume, rows_of
from tffcl.cli import main
from tffcl.experiments import config, similarity

METHODS = {"stocfl": {"threshold": 0.3}, "fedprox": {"proximal_weight": 0.1}, "ditto": {"proximal_weight": 0.1}}
SHORT = {
    "train": {"rounds": 5, "clients_per_round": 12, "local_epochs": 2},
    "evaluation": {"every": 2},
    "checkpoint": {"every": 2},
    "newcomers": {"clients": 4, "epochs": 1},
}


def resolved(name):
    return config.resolve("demo_digits", name, overrides={**SHORT, "algorithms": {name: METHODS[name]}})


@pytest.fixture(scope="module", params=METHODS)
def finished(request, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / request.param
    return request.param, out, tffcl.run(resolved(request.param), out, show_progress=False).summary


def history(out):
    """The clusters after each round, by name of the file; the clients are those of clients.csv."""
    clients = [int(row["client_id"]) for row in rows_of(out / "clients.csv")]
    found = {path.name: np.load(path) for path in (out / "history").glob("*.npy")}
    assert all(then.tolist() == clients for then, _ in found.values())
    return {name: clusters for name, (_, clusters) in found.items()}


def test_a_run_its_newcomers_and_its_models(finished):
    name, out, summary = finished
    assert summary["accuracy"]["cluster"]["mean"] > 0.3
    assert summary["accuracy"]["global"]["mean"] > 0.3  # FedProx has one model only, the others a global one beside theirs
    check_files_agree(out, summary)
    check_newcomers_and_models(out, 4)


def test_a_resumed_run_ends_as_the_whole_one(finished, tmp_path):
    name, out, whole = finished
    again = tmp_path / "again"
    check_resume(resolved(name), out, whole, again)
    before, after = history(out), history(again)
    assert before.keys() == after.keys()
    for key in before:
        np.testing.assert_array_equal(before[key], after[key])
    unlike = {"seconds"}
    assert [{k: v for k, v in row.items() if k not in unlike} for row in rows_of(out / "rounds.csv")] == [
        {k: v for k, v in row.items() if k not in unlike} for row in rows_of(again / "rounds.csv")
    ]


def test_the_history_is_the_clusters_of_each_round(finished):
    name, out, summary = finished
    found = history(out)
    last = found[max(found)]
    assert last.tolist() == [int(row["cluster"]) for row in rows_of(out / "clients.csv")]
    if name == "stocfl":
        counts = [int(row["clusters"]) for row in rows_of(out / "rounds.csv")]
        assert len(np.unique(found["000001.npy"])) == counts[0] and len(np.unique(last)) == counts[-1] < counts[0]
        assert [int(row["known_clients"]) for row in rows_of(out / "rounds.csv")][0] == 12
        assert summary["traffic"]["signature_bytes"] > 0
    else:
        assert len(found) == 1


def test_the_report_shows_how_clusters_merged(finished):
    name, out, _ = finished
    assert main(["report", str(out)]) == 0
    shown = {path.stem for path in (out / "figures").glob("*.png")}
    own = {"merging", "representations"}
    assert own <= shown if name == "stocfl" else not own & shown


def test_similarity_is_what_everyone_in_the_first_round_gives(tmp_path):
    everyone = {**SHORT, "train": {"rounds": 1, "clients_per_round": 40}, "algorithms": {"stocfl": {"threshold": 0.3}}}
    del everyone["newcomers"]
    how = config.resolve("demo_digits", "stocfl", overrides=everyone)
    lines = similarity.similarity(how, tmp_path / "similarity")
    assert "within true groups" in lines and (tmp_path / "similarity" / "histogram.png").stat().st_size > 5_000
    tffcl.run(how, tmp_path / "run", show_progress=False)
    with np.load(tmp_path / "similarity" / "proximity.npz") as saved:
        pairs = set(zip(saved["labels"].tolist(), history(tmp_path / "run")["000001.npy"].tolist()))
    assert len(pairs) == len({first for first, _ in pairs}) == len({second for _, second in pairs}) > 1
