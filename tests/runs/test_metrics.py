"""The table of metrics: what it says of a run's files, and of targets."""

import dataclasses
import types

import numpy as np
import pytest

from tffcl.algorithms.method import Views
from tffcl.errors import UserError
from tffcl.runs import metrics, summary
from tffcl.runs.cluster_history import NO_CLUSTER
from tffcl.runs.metrics import BY_KEY, METRICS
from tffcl.runs.summary import cluster_numbers, mutual_information, rand_index


def test_names_are_unique_and_each_number_has_a_place():
    for names in ([each.key for each in METRICS], [each.name for each in METRICS]):
        assert len(set(names)) == len(names)
    assert all(each.column or each.source for each in METRICS)
    assert all(each.title and each.axis for each in METRICS if each.panels)
    assert {each.better for each in METRICS} == {metrics.UP, metrics.DOWN, ""}
    shares = {each.key for each in METRICS if each.unit == "%" and each.better != metrics.UP}
    assert shares == {"local_trained", "largest_cluster", "participation_gap"}  # neither more nor less is better


def test_a_column_is_found_by_name():
    assert metrics.find("clustering_error") is BY_KEY["clustering_error"]  # and not its deviation
    assert metrics.find("train_loss").better == metrics.DOWN and metrics.find("cluster_accuracy").better == metrics.UP
    with pytest.raises(UserError, match="did you mean 'cluster_accuracy'"):
        metrics.find("cluster_acuracy")


def test_a_number_is_read_where_the_files_have_it():
    errors = np.array([np.nan, 1.0, 4.0])
    summary = {("accuracy", "cluster", "variance"): 0.02}
    run = types.SimpleNamespace(
        rounds={"clustering_error": errors, "merges": errors}, number=lambda *keys: summary[keys]
    )
    found = {key: BY_KEY[key].of_run(run) for key in ("clustering_error", "clustering_error_over_rounds", "merges")}
    assert found == pytest.approx({"clustering_error": 2.5, "clustering_error_over_rounds": 4.5**0.5, "merges": 4})
    assert BY_KEY["cluster_variance"].of_run(run) == pytest.approx(200) and np.isnan(BY_KEY["objective"].of_run(run))


def test_a_target_is_reached_upwards_or_downwards():
    rounds = {"cluster_accuracy": np.array([np.nan, 0.5, 0.7, 0.6]), "train_loss": np.array([2.0, 1.5, 0.4, 0.5])}
    assert BY_KEY["cluster_accuracy"].first_reached(rounds, 60) == 2
    assert BY_KEY["cluster_accuracy"].first_reached(rounds, 71) is None
    assert BY_KEY["train_loss"].first_reached(rounds, 1.5) == 1
    assert BY_KEY["ari"].first_reached(rounds, 0) is None
    assert BY_KEY["ari"].first_reached({"ari": np.array([-0.6, -0.5])}, -0.5) == 1
    for right in range(101):  # of 100 examples: 100 * 0.58 is less than 58
        assert BY_KEY["cluster_accuracy"].first_reached({"cluster_accuracy": np.array([right / 100])}, right) == 0


def test_a_run_measures_what_its_model_and_its_clients_have():
    whole, numbers = metrics.measured(["auc"]), metrics.measured(["mae"], has_accuracy=False)
    assert {"cluster_accuracy", "validation_cluster_accuracy", "validation_cluster_auc", "train_loss"} < whole.keys()
    assert {"cluster_mae", "validation_cluster_mae", "train_loss"} < numbers.keys()
    assert not [column for column in numbers if column.endswith("accuracy")]
    untold = metrics.measured(["auc"], validation=False)
    assert whole.keys() - untold.keys() == {column for column in whole if column.startswith("validation_")}


def test_the_share_of_the_largest_cluster_is_of_the_known_clients():
    views = Views(np.arange(5), np.array([0, 0, 0, 1, 2]), known=np.array([True, True, False, True, False]))
    population = types.SimpleNamespace(groups=None)
    assert cluster_numbers(population, views)["largest_cluster"] == pytest.approx(2 / 3)
    nobody = dataclasses.replace(views, known=np.zeros(5, bool))
    assert cluster_numbers(population, nobody)["largest_cluster"] is None


def test_the_agreement_of_the_known_clients_stands_beside_that_of_all():
    """Which is of those that are in a cluster."""
    groups, clusters = np.array([0, 0, 1, 1, 0, 1]), np.array([0, 0, 0, 1, 2, NO_CLUSTER])
    population = types.SimpleNamespace(groups=groups, index=lambda ids: ids, label_counts=None)
    views = Views(np.arange(6), clusters, known=np.array([True, True, True, True, False, False]))
    numbers, further = cluster_numbers(population, views), summary._information(population, views)
    for index, found, name in ((rand_index, numbers, "ari"), (mutual_information, further, "nmi")):
        expected = [index(groups[:count], clusters[:count]) for count in (4, 5)]
        assert [found[f"known_{name}"], found[name]] == expected and expected[0] != pytest.approx(expected[1])
    assert numbers["ari"] != pytest.approx(further["nmi"])
    everyone = dataclasses.replace(views, known=None)
    assert "known_ari" not in cluster_numbers(population, everyone)
