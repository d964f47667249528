"""Small tasks of all data sets, partitions and models run with PACFL from the command line, on the real data.

Every run is slow: `test_kept_numbers_come_back` runs a small task always, and `test_cli` the demo's."""

import json
import math
import os
import pathlib

import pytest

import tffcl
from tests.runs.finished_runs import check_files_agree, rows_of
from tffcl.lab.cli.main import main
from tffcl.lab.tasks import task_file

SMALL = [name for name in task_file.task_names() if name.endswith("_small")]
FLIS = [("flis_fmnist_label_skew_20_small", "flis_dc"), ("flis_rotated_mnist_small", "flis_hc")]
STOCFL = [
    ("stocfl_threshold_mnist_small", "stocfl"),
    ("stocfl_femnist_small", "ditto"),
    ("stocfl_rotated_cifar10_small", "stocfl"),
    ("stocfl_rotated_mnist_4800_small", "ifca"),
]


def parts_of(name):
    """The data sets, the partition and the model of a task."""
    task = task_file.load_task(name).contents
    data = task["dataset"].get("names") or [task["dataset"]["name"]]
    return {(part, task[part]["name"]) for part in ("partition", "model")} | {("dataset", each) for each in data}


def of_each_kind(names, others):
    """Tasks that have with the others all data sets, partitions and models: each the most of what is still missing."""
    left, met, kinds = {name: parts_of(name) for name in names}, set().union(*map(parts_of, others)), []
    while missed := set().union(*left.values()) - met:
        kinds.append(max(left, key=lambda name: len(left[name] & missed)))
        met |= left[kinds[-1]]
    return kinds


# Three rounds of one epoch, of small images of many classes or turned ones, teach a convolutional network next to
# nothing.
AT_CHANCE = {"flt_femnist_scenario_3_cnn_small", "stocfl_rotated_cifar10_small"}
WHERE = {"emnist_letters": "emnist/letters", "femnist": "emnist_all.sqlite", "usps": "usps.npz"}
WHERE |= dict.fromkeys(("digits", "breast_cancer", "diabetes", "texts"), ".")  # which are installed


def missing(name):
    """The first data set of a task that is not laid out here, or None."""
    root = os.environ.get("TFFCL_DATA_DIR")
    dataset = task_file.load_task(name).contents["dataset"]
    for each in dataset.get("names", [dataset.get("name")]):
        if root is None or not (pathlib.Path(root) / WHERE.get(each, each)).exists():
            return each
    return None


def check_run(out) -> dict:
    """What a broken run would not give: files that agree, saved models that answer as they say, training that taught
    something.

    Returns:
      The summary.
    """
    summary = json.loads((out / "summary.json").read_text())
    run = tffcl.load_run(out)
    if run.federated.num_classes is None:  # numbers are neither right nor wrong
        assert 0 < summary["metrics"]["mae"]["cluster"]["mean"] < 1
        return summary
    check_files_agree(out, summary)
    names = run.federated.client_names
    rows = rows_of(out / "clients.csv")
    for row in rows[:: max(1, len(rows) // 5)]:
        client = row["client_id"] if names else int(row["client_id"])
        test = run.federated.test.take(run.federated.test_indices[names.index(client) if names else client])
        right = (run.predict(client, test.x) == test.y).mean()
        assert right == pytest.approx(float(row["cluster_accuracy"]), abs=1e-6)
        assert run.cluster_of(client) == int(row["cluster"])
    local = summary["accuracy"]["local"]
    assert local["mean"] > 1 / run.federated.num_classes or run.config.task in AT_CHANCE
    trained = sum(int(row["rounds_trained"]) > 0 for row in rows) / len(rows)
    assert local["share"] == trained
    # A ResNet's first steps on a hundred classes have a loss above that of guessing.
    losses = [float(row["train_loss"]) for row in rows_of(out / "rounds.csv")]
    assert losses[-1] < max(1.2 * math.log(run.federated.num_classes), losses[0])
    return summary


def test_every_task_has_a_small_variant():
    whole = {name for name in task_file.task_names() if not name.endswith("_small")} - {"demo_digits"}
    assert {f"{name}_small" for name in whole} <= set(SMALL)
    assert len(whole) > 40


@pytest.mark.slow
@pytest.mark.parametrize("name, algorithm", FLIS)
def test_flis_runs_on_flis_tasks(name, algorithm, tmp_path, capsys):
    absent = missing(name)
    if absent:
        pytest.skip(f"{absent} is not in TFFCL_DATA_DIR; lay it out there to run this")
    assert main(["run", name, "--algorithm", algorithm, "--out", str(tmp_path / "out")]) == 0, capsys.readouterr().err
    check_run(tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("name, algorithm", STOCFL)
def test_stocfl_and_what_it_is_compared_with_run_on_stocfl_tasks(name, algorithm, tmp_path, capsys):
    absent = missing(name)
    if absent:
        pytest.skip(f"{absent} is not in TFFCL_DATA_DIR; lay it out there to run this")
    few = ["--set", "algorithms.ifca.num_clusters=2"] if algorithm == "ifca" else []
    assert main(["run", name, "--algorithm", algorithm, "--out", str(tmp_path / "out"), *few]) == 0, (
        capsys.readouterr().err
    )
    summary = check_run(tmp_path / "out")
    assert (summary["traffic"]["signature_bytes"] > 0) == (algorithm == "stocfl")


@pytest.mark.slow
@pytest.mark.parametrize("name", of_each_kind(SMALL, [name for name, _ in [*FLIS, *STOCFL]]))
def test_the_small_variant_runs(name, tmp_path, capsys):
    absent = missing(name)
    if absent:
        pytest.skip(f"{absent} is not in TFFCL_DATA_DIR; lay it out there to run this")
    code = main(["run", name, "--algorithm", "pacfl", "--out", str(tmp_path / "out")])
    assert code == 0, capsys.readouterr().err
    summary = check_run(tmp_path / "out")
    assert summary["traffic"]["signature_bytes"] > 0
    assert "<svg" in (tmp_path / "out" / "report.html").read_text()
