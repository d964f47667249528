"""The three sentences at the head of a report: against SciPy, and what they say where there is nothing to find."""

import dataclasses

import numpy as np
import pytest
import scipy.stats

from tests.lab.reporting.conftest import write_run
from tffcl.lab.reporting import verdict
from tffcl.registry import GIVEN, ORACLE
from tffcl.runs.metrics import BY_KEY
from tffcl.runs.run_files import read_run

CLUSTER = BY_KEY["cluster_accuracy"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    places = [(name, seed) for name in ("fedavg", "pacfl") for seed in (0, 1)]
    for name, seed in places:
        write_run(out / name / f"seed-{seed}", name, seed)
    return [read_run(out / name / f"seed-{seed}", name) for name, seed in places]


def test_the_difference_is_tested_over_pairs_of_client_and_seed(runs):
    fedavg, pacfl = runs[:2], runs[2:]
    found = [100 * (two.clients.cluster_accuracy - one.clients.cluster_accuracy) for one, two in zip(fedavg, pacfl)]
    apart, chance, pairs = verdict.paired_test(pacfl, fedavg, CLUSTER)
    found = np.concatenate(found)
    assert pairs == np.sum(~np.isnan(found)) and apart == pytest.approx(np.nanmean(found))
    assert chance == pytest.approx(scipy.stats.ttest_1samp(found[~np.isnan(found)], 0).pvalue)


def test_seeds_that_disagree_tell_nothing(runs):
    one, two = runs[2:]
    worse = dataclasses.replace(one.clients, cluster_accuracy=runs[0].clients.cluster_accuracy - 0.5)
    assert verdict.paired_test([dataclasses.replace(one, clients=worse), two], runs[:2], CLUSTER)[1] == 1


def test_a_difference_is_of_the_seeds_that_both_have(runs):
    """Three seeds of one method beside one of another, with which it is worse."""
    found = []
    right = np.ones(len(runs[0].clients))
    for seed, accuracies in enumerate((runs[0].clients.cluster_accuracy - 0.1, right, right)):
        accuracy = runs[2].summary["accuracy"] | {"cluster": {"mean": float(np.nanmean(accuracies))}}
        clients = dataclasses.replace(runs[2].clients, cluster_accuracy=accuracies)
        summary = runs[2].summary | {"accuracy": accuracy, "seed": seed}
        found.append(dataclasses.replace(runs[2], clients=clients, summary=summary))
    _, best, _ = verdict.verdict([runs[0], *found])
    assert best.startswith("Best by cluster accuracy is pacfl with ")
    assert "10.0 points below fedavg with the seeds that both have" in best


def test_a_comparison_has_three_sentences(runs):
    groups, best, cost = verdict.verdict(runs)
    assert groups.startswith("There are groups: pacfl finds 3 clusters (adjusted Rand index with the true groups 1.00)")
    assert groups.endswith("fedavg has one model for all.")
    assert best.startswith("Best by cluster accuracy is pacfl with ") and "points above fedavg, beyond chance" in best
    assert best.endswith("pairs of client and seed.")
    assert cost.startswith("pacfl sent ") and " as much as fedavg" in cost and cost.endswith(" here.")


def test_fedavg_is_known_as_python_calls_it(runs):
    name = {"algorithm": "FedAvg"}
    called = [dataclasses.replace(run, method="FedAvg", summary=run.summary | name) for run in runs[:2]]
    _, best, cost = verdict.verdict([*called, *runs[2:]])
    assert "points above FedAvg" in best and " as much as FedAvg" in cost


@pytest.mark.parametrize("note", [GIVEN, ORACLE])
def test_groups_that_a_method_was_told_are_not_found(runs, note):
    told = [dataclasses.replace(run, method="given", summary=run.summary | {"notes": [note]}) for run in runs[2:]]
    same = [dataclasses.replace(run, clients=plain.clients) for run, plain in zip(told, runs[:2])]
    nothing = "Nothing shows that there are groups: given was told 3 clusters; no model of a cluster is better than"
    assert verdict.verdict([*runs[:2], *same])[0].startswith(nothing)
    gain = "There are groups by which models gain: given was told 3 clusters; fedavg has one model for all."
    assert verdict.verdict([*runs[:2], *told])[0] == gain


def test_no_groups_and_no_difference_are_answers(runs):
    same = [dataclasses.replace(run, method="other", path=run.path / "x") for run in runs[:2]]
    groups, best, _ = verdict.verdict([*runs[:2], *same])
    assert groups == "No groups were found; fedavg and other have one model for all."
    assert "0.0 points above" in best and "not beyond chance (p = 1)" in best


def test_clusters_that_nobody_gains_by_are_no_groups(runs):
    """Three clusters whose agreement with true groups is not known, with the accuracies of one model for all."""
    fake = []
    for plain, clustered in zip(runs[:2], runs[2:]):
        same = dataclasses.replace(clustered.clients, cluster_accuracy=plain.clients.cluster_accuracy)
        summary = clustered.summary | {"clusters": clustered.summary["clusters"] | {"ari": None}}
        fake.append(dataclasses.replace(clustered, clients=same, summary=summary))
    assert verdict.verdict([*runs[:2], *fake])[0] == (
        "Nothing shows that there are groups: pacfl finds 3 clusters; no model of a cluster is better than fedavg's "
        "beyond chance; fedavg has one model for all."
    )


def test_a_single_run_says_what_would_tell_more(runs):
    groups, best, _ = verdict.verdict(runs[2:3])
    assert groups.startswith("There are groups: pacfl finds 3 clusters")
    assert "known beside another method (tffcl compare)" in best
