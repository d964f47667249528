"""Whole runs of StoCFL, FedProx and Ditto on digits."""

import functools
import signal
import subprocess
import sys

import numpy as np
import pytest

import tffcl
from tests.runs.finished_runs import check_files_agree, check_newcomers_and_models, check_resume, rows_of
from tffcl.lab.batches import similarity
from tffcl.lab.cli.main import main
from tffcl.lab.tasks import resolve
from tffcl.runs.checkpoints import Checkpoints
from tffcl.runs.run_files import read_run

METHODS = {"stocfl": {"threshold": 0.3}, "ditto": {"proximal_weight": 0.1}}
SHORT = {
    "train": {"rounds": 5, "clients_per_round": 12},
    "evaluation": {"every": 2},
    "checkpoint": {"every": 2},
    "newcomers": {"clients": 4, "epochs": 1},
}


def resolved(name):
    return resolve.resolve("demo_digits", name, overrides={**SHORT, "algorithms": {name: METHODS[name]}})


# One of Ditto is in test_clients_who_left, too.
@pytest.fixture(params=["stocfl", pytest.param("ditto", marks=pytest.mark.slow)])
def finished(request, finished_run):
    return finished_run(request.param)


def history(out):
    """The clusters of the clients of clients.csv after each round that changed some."""
    return dict(read_run(out).history)


@pytest.mark.slow
def test_a_run_its_newcomers_and_its_models(finished):
    name, out, summary = finished
    assert summary["accuracy"]["cluster"]["mean"] > 0.3
    # A global model is beside theirs.
    assert summary["accuracy"]["global"]["mean"] > 0.3
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
    assert without_times(rows_of(out / "rounds.csv")) == without_times(rows_of(again / "rounds.csv"))


# A run that is killed after round 4 has trained; what clients keep is on disk by then, the newest checkpoint is of
# round 2.
KILLED = """
import functools, os, signal, sys
from tffcl.lab.cli.main import main
from tffcl.clients import client_state
from tffcl.runs import loop

# Nothing stays in memory.
client_state.KeptStore.__init__ = functools.partialmethod(client_state.KeptStore.__init__, memory_bytes=0)
real = loop.next_round
def killed_in_round_4(run):
    real(run)
    if run.round_number == 4:
        os.kill(os.getpid(), signal.SIGKILL)
loop.next_round = killed_in_round_4
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_killed_run_whose_clients_keep_models_resumes_as_if_nothing_had_been(finished_run, tmp_path):
    _, out, whole = finished_run("ditto")
    killed = tmp_path / "killed"
    tables = {**SHORT, "algorithms.ditto": METHODS["ditto"]}
    settings = [f"--set={name}.{key}={value}" for name, table in tables.items() for key, value in table.items()]
    command = ["run", "demo_digits", "--algorithm", "ditto", "--out", str(killed), *settings]
    done = subprocess.run([sys.executable, "-c", KILLED, *command], capture_output=True, text=True, timeout=300)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert Checkpoints(killed / "checkpoints").latest() == 2 and len(rows_of(killed / "rounds.csv")) == 3
    assert len(versions(killed) - named(killed, 2)) == 2 * 12  # newer ones, of rounds 3 and 4
    summary = tffcl.run(resolved("ditto"), killed, resume=True, show_progress=False).summary
    assert {**summary, "seconds": None} == {**whole, "seconds": None}
    assert without_times(rows_of(killed / "rounds.csv")) == without_times(rows_of(out / "rounds.csv"))
    assert (killed / "clients.csv").read_bytes() == (out / "clients.csv").read_bytes()
    for client in (int(row["client_id"]) for row in rows_of(out / "clients.csv")):
        same = (run.model_of(client) for run in (loaded(killed), loaded(out)))
        np.testing.assert_array_equal(*same)
    assert versions(killed) == set().union(
        *(named(killed, each) for each in Checkpoints(killed / "checkpoints").rounds())
    )


def versions(out):
    """The files of what clients keep."""
    return {path.name for path in (out / "kept").iterdir()}


def named(out, number):
    """Those of them that a checkpoint names."""
    with np.load(out / "checkpoints" / f"round_{number:06}.npz") as saved:
        return {f"{client}.{version}.npz" for client, version in saved["kept versions"]}


@functools.cache
def loaded(out):
    return tffcl.load_run(out)


def without_times(rows):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def test_the_history_is_the_clusters_of_each_round(finished):
    name, out, summary = finished
    found = history(out)
    last = found[max(found)]
    assert last.tolist() == [int(row["cluster"]) for row in rows_of(out / "clients.csv")]
    if name == "stocfl":
        rows, told = rows_of(out / "rounds.csv"), summary["clusters"]
        # Nobody whom the server has not met.
        assert [row["clusters"] for row in rows] == [row["known_clusters"] for row in rows]
        assert told["count"] == len(told["sizes"]) == int(rows[-1]["clusters"]) < len(np.unique(found[1]))
        assert told["unknown"] == len(last) - int(rows[-1]["known_clients"]) == len(last) - sum(told["sizes"]) > 0
        assert len(np.unique(last)) == told["count"] + told["unknown"]  # they are in clusters of their own
        assert int(rows[0]["known_clients"]) == 12
        assert summary["traffic"]["signature_bytes"] > 0
    else:
        assert len(found) == 1


def test_the_report_shows_how_clusters_merged(finished):
    name, out, _ = finished
    assert main(["report", str(out)]) == 0
    shown = {path.stem for path in (out / "figures").glob("*.png")}
    own = {"merging", "representations"}
    assert own <= shown if name == "stocfl" else not own & shown


@pytest.mark.slow  # other signatures are shown in test_similarity
def test_similarity_is_what_everyone_in_the_first_round_gives(tmp_path):
    everyone = {**SHORT, "train": {"rounds": 1, "clients_per_round": 40}, "algorithms": {"stocfl": {"threshold": 0.3}}}
    del everyone["newcomers"]
    how = resolve.resolve("demo_digits", "stocfl", overrides=everyone)
    lines = similarity.write_similarity(how, tmp_path / "similarity")
    assert "within true groups" in lines and (tmp_path / "similarity" / "histogram.png").stat().st_size > 5_000
    tffcl.run(how, tmp_path / "run", show_progress=False)
    with np.load(tmp_path / "similarity" / "proximity.npz") as saved:
        pairs = set(zip(saved["labels"].tolist(), history(tmp_path / "run")[1].tolist()))
    assert len(pairs) == len({first for first, _ in pairs}) == len({second for _, second in pairs}) > 1
