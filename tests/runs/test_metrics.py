"""The table of metrics: what it says of a run's files, and of targets."""

import dataclasses
import types

import numpy as np
import pytest

from tffcl.algorithms.method import Views
from tffcl.errors import UserError
from tffcl.runs import metrics
from tffcl.runs.metrics import BY_KEY, METRICS
from tffcl.runs.summary import cluster_numbers


def test_names_are_unique_and_each_number_has_a_place():
    for names in ([each.key for each in METRICS], [each.name for each in METRICS]):
        assert len(set(names)) == len(names)
    assert all(each.column or each.source for each in METRICS)
    assert all(each.title and each.axis for each in METRICS if each.panels)
    assert {each.better for each in METRICS} == {metrics.UP, metrics.DOWN, ""}


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
    for right in range(101):  # of 100 examples: 100 * 0.58 is less than 58
        assert BY_KEY["cluster_accuracy"].first_reached({"cluster_accuracy": np.array([right / 100])}, right) == 0


def test_the_share_of_the_largest_cluster_is_of_the_known_clients():
    views = Views(np.arange(5), np.array([0, 0, 0, 1, 2]), known=np.array([True, True, False, True, False]))
    population = types.SimpleNamespace(groups=None)
    assert cluster_numbers(population, views)["largest_cluster"] == pytest.approx(2 / 3)
    nobody = dataclasses.replace(views, known=np.zeros(5, bool))
    assert cluster_numbers(population, nobody)["largest_cluster"] is None
