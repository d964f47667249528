"""The small variant of every task runs with PACFL from the command line, on the real data; the rest only resolve."""

import json
import os
import pathlib

import pytest

from tffcl.cli import main
from tffcl.experiments import tasks

SMALL = [name for name in tasks.task_names() if name.endswith("_small")]
# One of every kind of partition and model in the suite; the others are a matter of many minutes.
QUICK = {
    "pacfl_fmnist_label_skew_20_small",
    "pacfl_fmnist_dirichlet_small",
    "flt_mnist_scenario_2_small",
    "stocfl_rotated_mnist_1200_small",
    "stocfl_shifted_mnist_small",
    "stocfl_hybrid_mnist_small",
    "pacfl_mix4_small",
}
WHERE = {"emnist_letters": "emnist/letters", "femnist": "emnist_all.sqlite", "usps": "usps.npz", "digits": "."}


def missing(name):
    """The first data set of a task that is not laid out here, or None."""
    root = os.environ.get("TFFCL_DATA_DIR")
    dataset = tasks.load_task(name).contents["dataset"]
    for each in dataset.get("names", [dataset.get("name")]):
        if root is None or not (pathlib.Path(root) / WHERE.get(each, each)).exists():
            return each
    return None


def test_every_task_has_a_small_variant():
    whole = {name for name in tasks.task_names() if not name.endswith("_small")} - {"demo_digits"}
    assert {f"{name}_small" for name in whole} <= set(SMALL)
    assert len(whole) > 40


@pytest.mark.parametrize("algorithm", ["flis_dc", "flis_hc", "ifca"])
@pytest.mark.parametrize(
    "name", [pytest.param("flis_fmnist_label_skew_20_small", marks=pytest.mark.slow), "flis_rotated_mnist_small"]
)
def test_flis_and_ifca_run_on_flis_tasks(name, algorithm, tmp_path, capsys):
    absent = missing(name)
    if absent:
        pytest.skip(f"{absent} is not in TFFCL_DATA_DIR; lay it out there to run this")
    assert main(["run", name, "--algorithm", algorithm, "--out", str(tmp_path / "out")]) == 0, capsys.readouterr().err
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert 0 < summary["accuracy"]["local"]["mean"] <= 1


@pytest.mark.parametrize("algorithm", ["stocfl", "fedprox", "ditto", "ifca"])
@pytest.mark.parametrize(
    "name",
    [
        "stocfl_threshold_mnist_small",
        *(
            pytest.param(f"stocfl_{n}_small", marks=pytest.mark.slow)
            for n in ("femnist", "rotated_cifar10", "rotated_mnist_4800")
        ),
    ],
)
def test_stocfl_and_what_it_is_compared_with_run_on_stocfl_tasks(name, algorithm, tmp_path, capsys):
    absent = missing(name)
    if absent:
        pytest.skip(f"{absent} is not in TFFCL_DATA_DIR; lay it out there to run this")
    few = ["--set", "algorithms.ifca.num_clusters=2"] if algorithm == "ifca" else []
    assert main(["run", name, "--algorithm", algorithm, "--out", str(tmp_path / "out"), *few]) == 0, capsys.readouterr().err
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert 0 < summary["accuracy"]["local"]["mean"] <= 1
    assert (summary["traffic"]["signature_bytes"] > 0) == (algorithm == "stocfl")


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in SMALL])
def test_the_small_variant_runs(name, tmp_path, capsys):
    absent = missing(name)
    if absent:
        pytest.skip(f"{absent} is not in TFFCL_DATA_DIR; lay it out there to run this")
    code = main(["run", name, "--algorithm", "pacfl", "--out", str(tmp_path / "out")])
    assert code == 0, capsys.readouterr().err
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert 0 <= summary["accuracy"]["cluster"]["mean"] <= 1
    assert summary["accuracy"]["local"]["share"] > 0
    assert summary["traffic"]["signature_bytes"] > 0
    assert (tmp_path / "out" / "report.html").stat().st_size > 50_000
