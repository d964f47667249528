"""What holds of every finished run, whatever the method."""

import csv
import shutil

import pytest

import tffcl
from tffcl.experiments import joining as newcomers
from tffcl.experiments import run


def check_newcomers_and_models(out, count, data_dir=None):
    """So many newcomers join, and the loaded run's first client answers as clients.csv says."""
    assert newcomers.join_newcomers(out, data_dir=data_dir, show_progress=False)["newcomers"] == count
    trained = tffcl.load_run(out, data_dir=data_dir)
    with open(out / "clients.csv", newline="") as file:
        row = next(csv.DictReader(file))
    test = trained.federated.test.take(trained.federated.test_indices[int(row["client_id"])])
    answers = trained.predict(int(row["client_id"]), test.x)
    assert (answers == test.y).mean() == pytest.approx(float(row["cluster_accuracy"]), abs=1e-6)


def check_resume(config, out, whole, again, data_dir=None):
    """A run whose newest checkpoint is lost ends as the whole one when it is resumed in `again`."""
    shutil.copytree(out, again)
    (again / "summary.json").unlink()
    newest = max((again / "checkpoints").iterdir(), key=lambda path: int(path.name.split("_")[-1]))
    shutil.rmtree(newest)
    summary = run.run(config, again, data_dir=data_dir, resume=True, show_progress=False)
    for key in ("accuracy", "clusters", "traffic"):
        assert summary[key] == whole[key]
