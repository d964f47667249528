"""What holds of every finished run, whatever the method."""

import csv
import shutil

import pytest

import tffcl
from tffcl.lab.batches import newcomers
from tffcl.runs.checkpoints import Checkpoints


def rows_of(file):
    """The rows of a CSV file, each a dictionary of text."""
    with open(file, newline="", encoding="utf-8") as opened:
        return list(csv.DictReader(opened))


def without_times(of):
    """A summary, or a row of rounds.csv, without its seconds."""
    return {key: value for key, value in of.items() if key != "seconds"}


def check_newcomers_and_models(out, count, data_dir=None):
    """So many newcomers join, and the loaded run's first client answers as clients.csv says."""
    assert newcomers.join_newcomers(out, data_dir=data_dir, show_progress=False)["newcomers"] == count
    check_first_client(out, data_dir)


def check_first_client(out, data_dir=None):
    """The loaded run's first client answers as clients.csv says."""
    trained = tffcl.load_run(out, data_dir=data_dir)
    row = rows_of(out / "clients.csv")[0]
    client = int(row["client_id"])
    test = trained.federated.test.take(trained.federated.test_indices[client])
    assert (trained.predict(client, test.x) == test.y).mean() == pytest.approx(float(row["cluster_accuracy"]), abs=1e-6)
    assert trained.cluster_of(client) == int(row["cluster"])


def check_files_agree(out, summary):
    """The summary that a run gave is the mean of its clients, and what its last round says."""
    clients, last = rows_of(out / "clients.csv"), rows_of(out / "rounds.csv")[-1]
    for kind in ("cluster", "local"):
        known = [float(row[f"{kind}_accuracy"]) for row in clients if row[f"{kind}_accuracy"]]
        mean = summary["accuracy"][kind]["mean"]
        assert mean == pytest.approx(sum(known) / len(known), abs=1e-6)
        assert mean == pytest.approx(float(last[f"{kind}_accuracy"]), abs=1e-9)


def unfinished_copy(out, again, saved=None):
    """Copies a run without its summary and its newest checkpoint, or without all checkpoints after round `saved`."""
    shutil.copytree(out, again)
    (again / "summary.json").unlink()
    rounds = Checkpoints(again / "checkpoints").rounds()
    lost = rounds[-1:] if saved is None else [number for number in rounds if number > saved]
    assert lost and len(lost) < len(rounds)
    for number in lost:
        (again / "checkpoints" / f"round_{number:06}.npz").unlink()


def check_resume(config, out, whole, again, data_dir=None, saved=None):
    """A copy of a run, see `unfinished_copy`, ends as the whole one when it is resumed in `again`."""
    unfinished_copy(out, again, saved)
    summary = tffcl.run(config, again, data_dir=data_dir, resume=True, show_progress=False).summary
    for key in ("accuracy", "clusters", "traffic", "notes"):
        assert summary[key] == whole[key]
    return summary
