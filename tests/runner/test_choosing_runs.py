"""Whole runs of the methods whose clients answer or choose: FLIS (DC), FLIS (HC), IFCA."""

import csv
import json
import types

import numpy as np
import pytest

import tffcl
from tffcl.cli import main
from tffcl.datasets.core import Images
from tffcl.errors import UserError
from tffcl.experiments import config
from tffcl.experiments import joining as newcomers
from tffcl.experiments import run
from tffcl.runner.clustering_error import clustering_error, truly_related

METHODS = ("flis_dc", "flis_hc", "ifca")
SHORT = {
    "dataset": {"server_examples": 200},
    "train": {"rounds": 5},
    "evaluation": {"every": 2},
    "checkpoint": {"every": 1, "keep": 9},
    "newcomers": {"clients": 4, "epochs": 1},
}


def resolved(algorithm, **method):
    return config.resolve("demo_digits", algorithm, overrides={**SHORT, "algorithms": {algorithm: method}})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    found = {}
    for algorithm in METHODS:
        out = tmp_path_factory.mktemp("choosing") / algorithm
        found[algorithm] = out, run.run(resolved(algorithm), out, show_progress=False)
    return found


def rounds_of(out):
    with open(out / "rounds.csv", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("algorithm", METHODS)
def test_a_run_says_all_that_every_method_says(finished, algorithm):
    out, summary = finished[algorithm]
    assert 0.1 < summary["accuracy"]["local"]["mean"] <= 1
    assert summary["clusters"]["count"] >= 1
    rows = rounds_of(out)
    evaluated = [bool(row["ari"]) for row in rows]
    assert evaluated == ([True] * 5 if algorithm == "flis_hc" else [False, True, False, True, True])
    assert ("clustering_error" in rows[0]) == (algorithm == "flis_dc")
    assert (summary["traffic"]["signature_bytes"] > 0) == algorithm.startswith("flis")


@pytest.mark.parametrize("algorithm", ["flis_dc", "ifca"])
def test_a_resumed_run_ends_as_the_whole_one(finished, tmp_path, algorithm):
    """From round 3, which has no evaluation: what clients chose before does not matter."""
    import shutil

    out, whole = finished[algorithm]
    again = tmp_path / "again"
    shutil.copytree(out, again)
    (again / "summary.json").unlink()
    for later in sorted((again / "checkpoints").iterdir()):
        if int(later.name.split("_")[-1]) > 3:
            shutil.rmtree(later)
    summary = run.run(resolved(algorithm), again, resume=True, show_progress=False)
    for key in ("accuracy", "clusters", "traffic"):
        assert summary[key] == whole[key]


@pytest.mark.parametrize("algorithm", METHODS)
def test_newcomers_join(finished, algorithm):
    out, summary = finished[algorithm]
    contents = newcomers.join_newcomers(out, show_progress=False)
    assert contents["newcomers"] == 4
    assert contents["accuracy"]["local"]["mean"] > contents["accuracy"]["cluster"]["mean"] - 0.3
    assert sum(contents["clusters"]["joined"].values()) + contents["clusters"]["founded"] >= 1
    trained = tffcl.load_run(out)
    test = trained.federated.test.take(trained.federated.test_indices[int(trained.state.client_ids[0])])
    with open(out / "clients.csv", newline="") as file:
        first = next(csv.DictReader(file))
    answers = trained.predict(int(first["client_id"]), test.x)
    assert (answers == test.y).mean() == pytest.approx(float(first["cluster_accuracy"]), abs=1e-6)


def test_the_report_says_where_the_authors_look_at_test_data(tmp_path, capsys):
    out = tmp_path / "leak"
    arguments = ["run", "demo_digits", "--algorithm", "flis_dc", "--rounds", "1", "--out", str(out)]
    for pair in ("dataset.server_examples=50", 'dataset.server_split="test"', "algorithms.flis_dc.protocol=authors"):
        arguments += ["--set", pair]
    assert main(arguments) == 0, capsys.readouterr().err
    notes = json.loads((out / "summary.json").read_text())["notes"]
    assert any("50 images are from the test set that clients are tested on" in note for note in notes)
    assert any("protocol 'authors'" in note for note in notes)
    page = (out / "report.html").read_text()
    assert "protocol &#39;authors&#39;" in page and "from the test set that clients are tested on" in page


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            ["run", "demo_digits", "--algorithm", "flis_dc"],
            "the server has no data to compare models on; give dataset.server_examples",
        ),
        (
            ["run", "demo_digits", "--algorithm", "ifca", "--set", "algorithms.ifca.num_clusters=21"],
            "it must be at most the clients of a round, 20",
        ),
        (
            [
                "run",
                "demo_digits",
                "--algorithm",
                "flis_dc",
                "--set",
                "dataset.server_examples=100",
                "--set",
                "algorithms.flis_dc.beta=2",
            ],
            "beta is 2.0; it must be a similarity, from 0 to 1",
        ),
        (["similarity", "demo_digits", "--signature", "inferense"], "did you mean 'inference'"),
    ],
)
def test_one_line_for_a_mistake(capsys, tmp_path, arguments, message):
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("tffcl: ") and message in error


def test_similarity_by_inference(capsys, tmp_path):
    out = tmp_path / "similarity"
    arguments = [
        "similarity",
        "demo_digits",
        "--signature",
        "inference",
        "--set",
        "dataset.server_examples=100",
        "--out",
        str(out),
    ]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert "40 clients of demo_digits, agreement" in printed and " dissimilarity, median" in printed
    assert (out / "proximity.png").stat().st_size > 10_000


def test_clients_belong_together_by_group_or_by_half_of_their_labels():
    labels = [[0, 1], [1, 2], [3], [0, 1, 2], [3, 0]]
    train = Images(np.zeros([10, 1, 1, 1], np.uint8), np.concatenate(labels).astype(np.int32))
    indices = np.split(np.arange(10), np.cumsum([len(each) for each in labels])[:-1])
    federated = types.SimpleNamespace(true_groups=None, train=train, train_indices=indices)
    expected = [[1, 1, 0, 1, 1], [1, 1, 0, 1, 0], [0, 0, 1, 0, 1], [1, 1, 0, 1, 0], [1, 0, 1, 1, 1]]
    related = truly_related(federated, np.arange(5))
    np.testing.assert_array_equal(related, np.array(expected, bool))
    alone = types.SimpleNamespace(client_ids=np.arange(5), relatedness=np.eye(5))
    assert clustering_error(federated, alone) == (np.sum(expected) - 5) / 5
    everyone = types.SimpleNamespace(client_ids=np.arange(5), relatedness=np.ones([5, 5]))
    assert clustering_error(federated, everyone) == (25 - np.sum(expected)) / 5
    grouped = types.SimpleNamespace(true_groups=np.array([0, 1, 0, 1, 1]))
    np.testing.assert_array_equal(truly_related(grouped, np.array([0, 2, 4])), [[1, 1, 0], [1, 1, 0], [0, 0, 1]])


def test_beta_0_is_refused_nowhere_but_negative_is():
    assert resolved("flis_dc", beta=0).method["beta"] == 0.0
    with pytest.raises(UserError, match="beta is -0.5"):
        resolved("flis_dc", beta=-0.5)
