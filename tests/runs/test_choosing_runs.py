"""Whole runs of the methods whose clients answer or choose: FLIS (DC), FLIS (HC), IFCA."""

import dataclasses
import json
import types

import numpy as np
import pytest

from tests.runs.finished_runs import check_files_agree, check_first_client, check_resume, rows_of
from tffcl.clients.population import Population
from tffcl.errors import UserError
from tffcl.lab.batches import newcomers
from tffcl.lab.cli.main import main
from tffcl.lab.tasks import resolve
from tffcl.runs.summary import clustering_error, truly_related

METHODS = ("flis_dc", "ifca")
SHORT = {
    "dataset": {"server_examples": 200},
    "train": {"rounds": 5},
    "evaluation": {"every": 2},
    "checkpoint": {"every": 1, "keep": 9},
    "newcomers": {"clients": 4, "epochs": 1},
}


def resolved(algorithm, **method):
    return resolve.resolve("demo_digits", algorithm, overrides={**SHORT, "algorithms": {algorithm: method}})


@pytest.mark.slow  # of IFCA there is one in test_own_data, of FLIS (DC) one below
@pytest.mark.parametrize("algorithm", METHODS)
def test_a_run_says_all_that_every_method_says(finished_run, algorithm):
    _, out, summary = finished_run(algorithm)
    assert 0.1 < summary["accuracy"]["local"]["mean"] <= 1
    assert summary["clusters"]["count"] >= 1
    check_files_agree(out, summary)
    rows = rows_of(out / "rounds.csv")
    evaluated = [bool(row["ari"]) for row in rows]
    assert evaluated == [False, True, False, True, True]
    assert ("clustering_error" in rows[0]) == (algorithm == "flis_dc")
    assert (summary["traffic"]["signature_bytes"] > 0) == algorithm.startswith("flis")


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["flis_dc", "ifca"])
def test_a_resumed_run_ends_as_the_whole_one(finished_run, tmp_path, algorithm):
    """From round 3, which has no evaluation: what clients chose before does not matter."""
    _, out, whole = finished_run(algorithm)
    check_resume(resolved(algorithm), out, whole, tmp_path / "again", saved=3)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", METHODS)
def test_newcomers_join(finished_run, algorithm):
    _, out, summary = finished_run(algorithm)
    contents = newcomers.join_newcomers(out, show_progress=False)
    assert contents["newcomers"] == 4
    assert contents["accuracy"]["local"]["mean"] > contents["accuracy"]["cluster"]["mean"] - 0.3
    assert sum(contents["clusters"]["joined"].values()) + contents["clusters"]["founded"] >= 1
    check_first_client(out)


@pytest.mark.slow
def test_the_report_says_where_the_authors_look_at_test_data(tmp_path, capsys):
    out = tmp_path / "leak"
    arguments = ["run", "demo_digits", "--algorithm", "flis_dc", "--rounds", "1", "--out", str(out)]
    for pair in (
        "dataset.server_examples=50",
        'dataset.server_split="test"',
        "algorithms.flis_dc.choose_by=test_accuracy",
    ):
        arguments += ["--set", pair]
    assert main(arguments) == 0, capsys.readouterr().err
    notes = json.loads((out / "summary.json").read_text())["notes"]
    assert any("50 images are from the test set that clients are tested on" in note for note in notes)
    assert any("choose_by 'test_accuracy'" in note for note in notes)
    (row,) = rows_of(out / "rounds.csv")
    assert row["ari"] and row["clustering_error"]
    page = (out / "report.html").read_text()
    assert "choose_by &#39;test_accuracy&#39;" in page and "from the test set that clients are tested on" in page


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            ["run", "demo_digits", "--algorithm", "flis_dc"],
            "the server has no data to compare models on; give dataset.server_examples",
        ),
        (
            ["run", "demo_digits", "--algorithm", "ifca", "--set", "algorithms.ifca.choose_by=validation"],
            "unknown algorithms.ifca.choose_by 'validation'; did you mean 'validation_loss'?",
        ),
        (
            (
                "run demo_digits --algorithm flis_dc --set dataset.server_examples=100 --set "
                "algorithms.flis_dc.threshold=2"
            ).split(),
            "threshold is 2.0; it must be a similarity, from 0 to 1",
        ),
        (["similarity", "demo_digits", "--signature", "inferense"], "did you mean 'inference'"),
    ],
)
def test_one_line_for_a_mistake(capsys, tmp_path, arguments, message):
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("tffcl: ") and message in error


def test_clients_belong_together_by_group_or_by_half_of_their_labels():
    labels = [[0, 1], [1, 2], [3], [0, 1, 2], [3, 0]]
    examples = {
        client: (np.zeros([len(own), 1, 1, 1], np.uint8), np.array(own, np.int32)) for client, own in enumerate(labels)
    }
    by_labels = Population.from_arrays(examples)
    expected = [[1, 1, 0, 1, 1], [1, 1, 0, 1, 0], [0, 0, 1, 0, 1], [1, 1, 0, 1, 0], [1, 0, 1, 1, 1]]
    related = truly_related(by_labels, np.arange(5))
    np.testing.assert_array_equal(related, np.array(expected, bool))
    alone = types.SimpleNamespace(client_ids=np.arange(5), relatedness=np.eye(5))
    assert clustering_error(by_labels, alone) == (np.sum(expected) - 5) / 5
    everyone = types.SimpleNamespace(client_ids=np.arange(5), relatedness=np.ones([5, 5]))
    assert clustering_error(by_labels, everyone) == (25 - np.sum(expected)) / 5
    grouped = dataclasses.replace(by_labels, groups=np.array([0, 1, 0, 1, 1]))
    np.testing.assert_array_equal(truly_related(grouped, np.array([0, 2, 4])), [[1, 1, 0], [1, 1, 0], [0, 0, 1]])
    unknown = dataclasses.replace(by_labels, label_counts=None)
    assert truly_related(unknown, np.arange(5)) is None and clustering_error(unknown, alone) is None


def test_threshold_0_is_refused_nowhere_but_negative_is():
    assert resolved("flis_dc", threshold=0).method.threshold == 0.0
    with pytest.raises(UserError, match="threshold is -0.5"):
        resolved("flis_dc", threshold=-0.5)
