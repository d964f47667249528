"""The three sentences at the head of a report: against SciPy, and what they say where there is nothing to find."""

import dataclasses

import numpy as np
import pytest
import scipy.stats

from tests.lab.reporting.conftest import write_run
from tffcl.lab.reporting import verdict
from tffcl.registry import GIVEN, ORACLE
from tffcl.runs.metrics import BY_KEY, rows_of
from tffcl.runs.run_files import read_run

CLUSTER = BY_KEY["cluster_accuracy"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    places = [(name, seed) for name in ("fedavg", "pacfl") for seed in (0, 1)]
    for name, seed in places:
        write_run(out / name / f"seed-{seed}", name, seed)
    return [read_run(out / name / f"seed-{seed}", name) for name, seed in places]


def test_the_difference_is_tested_over_pairs_of_client_and_seed_and_over_seeds(runs):
    fedavg, pacfl = runs[:2], runs[2:]
    fewer = np.where(np.arange(len(pacfl[0].clients)) < 5, np.nan, pacfl[0].clients.cluster_accuracy)  # of one seed
    pacfl = [
        dataclasses.replace(pacfl[0], clients=dataclasses.replace(pacfl[0].clients, cluster_accuracy=fewer)),
        pacfl[1],
    ]
    found = [100 * (two.clients.cluster_accuracy - one.clients.cluster_accuracy) for one, two in zip(fedavg, pacfl)]
    apart, chance, pairs = verdict.paired_test(pacfl, fedavg, CLUSTER)
    found = [each[~np.isnan(each)] for each in found]
    together, means = np.concatenate(found), [each.mean() for each in found]
    assert pairs == len(together) and apart == pytest.approx(together.mean()) != pytest.approx(np.mean(means))
    expected = [scipy.stats.ttest_1samp(each, 0).pvalue for each in (together, means)]
    assert chance == pytest.approx(max(expected)) and expected[0] != pytest.approx(expected[1])
    assert verdict.paired_test(pacfl[:1], fedavg, CLUSTER)[1] == pytest.approx(scipy.stats.ttest_1samp(found[0], 0)[1])


def test_models_that_differ_by_their_seeds_alone_are_seldom_told_apart(runs):
    """Each seed moves the difference of all clients together, as other first weights do."""
    rng, beyond = np.random.default_rng(0), 0
    base = np.full(len(runs[0].clients), 0.5)

    def trained(seed, accuracies):
        clients = dataclasses.replace(runs[0].clients, cluster_accuracy=accuracies)
        return dataclasses.replace(runs[0], clients=clients, summary={**runs[0].summary, "seed": seed})

    for _ in range(200):
        shifts = rng.normal(0, 0.05, 3)
        one = [trained(seed, base + shift + rng.normal(0, 0.01, len(base))) for seed, shift in enumerate(shifts)]
        beyond += verdict.paired_test(one, [trained(seed, base) for seed in range(3)], CLUSTER)[1] < 0.05
    assert beyond <= 20  # a twentieth, and what chance adds to it


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
    pairs = verdict.paired_test(found, runs[:1], CLUSTER)[2]
    assert best.endswith(f"; paired t tests over {pairs} clients; other seeds may say otherwise.")


def test_methods_are_compared_by_the_first_metric_that_a_user_has_named(runs):
    def by(*names):
        found = {name: {"cluster": {"mean": 0.9}} for name in names}
        return verdict.measure_of([dataclasses.replace(run, summary={**run.summary, "metrics": found}) for run in runs])

    keys = [by(*names).key for names in (("auc", "accuracy"), ("accuracy", "auc"), ())]
    assert keys == ["cluster_auc", "cluster_accuracy", "cluster_accuracy"]
    first = dataclasses.replace(runs[0], summary={**runs[0].summary, "metrics": {"auc": {"cluster": {"mean": 0.9}}}})
    assert verdict.measure_of([first, runs[1]]).key == "cluster_accuracy"  # the second was not measured by its AUC


def test_of_a_loss_the_least_is_the_best(runs):
    def with_loss(run, loss):
        losses = {"cluster_log_loss": np.full(len(run.clients), loss)}
        summary = {**run.summary, "metrics": {"log_loss": {"better": "down", "cluster": {"mean": loss}}}}
        return dataclasses.replace(run, clients=dataclasses.replace(run.clients, further=losses), summary=summary)

    _, best, _ = verdict.verdict([with_loss(run, loss) for run, loss in zip(runs, (0.9, 0.9, 0.4, 0.4))])
    assert best.startswith("Best by cluster log loss is pacfl") and " below fedavg" in best


def test_the_pairs_of_each_rival_are_told(runs):
    """The next has both seeds of the best, FedAvg one of them."""
    next_best = []
    for run in runs[2:]:
        clients = dataclasses.replace(run.clients, cluster_accuracy=run.clients.cluster_accuracy - 0.01)
        accuracy = {**run.summary["accuracy"], "cluster": {"mean": run.number("accuracy", "cluster", "mean") - 0.01}}
        summary = {**run.summary, "algorithm": "next", "accuracy": accuracy}
        next_best.append(dataclasses.replace(run, method="next", clients=clients, summary=summary))
    _, best, _ = verdict.verdict([runs[0], *next_best, *runs[2:]])
    pairs = [verdict.paired_test(runs[2:], rival, CLUSTER)[2] for rival in (next_best, runs[:1])]
    assert pairs[0] > pairs[1] and f"paired t tests over {pairs[0]} and {pairs[1]} pairs of client and seed" in best
    assert best.endswith("; other seeds may say otherwise.")  # one seed of FedAvg


def test_clients_with_the_same_test_examples_are_one(runs):
    """One example more of them all that is right is no finding."""
    found = []
    for run, more in zip(runs[:2], (0, 0.005)):
        one = np.full(len(run.clients), 0.5 + more)
        clients = dataclasses.replace(run.clients, cluster_accuracy=one, test_set=np.zeros(len(one), int))
        found.append(dataclasses.replace(run, clients=clients, summary={**run.summary, "seed": 0}))
    assert verdict.paired_test(found[1:], found[:1], CLUSTER) == (pytest.approx(0.5), 1, 1)
    apart = [dataclasses.replace(run, clients=dataclasses.replace(run.clients, test_set=np.arange(len(run.clients))))
             for run in found]  # fmt: skip
    count = len(found[0].clients)
    assert verdict.paired_test(apart[1:], apart[:1], CLUSTER) == (pytest.approx(0.5), 2.0 ** (1 - count), count)


def test_the_difference_is_that_of_the_clients_though_some_share_their_tests(runs):
    """Nine clients share one set; the means over clients and over sets go apart."""
    found = []
    for run, shared, own in zip(runs[:2], (0.80, 0.78), (0.50, 0.60)):
        accuracies = np.where(np.arange(len(run.clients)) < 9, shared, own)
        sets = np.where(np.arange(len(run.clients)) < 9, 0, np.arange(len(run.clients)))
        clients = dataclasses.replace(run.clients, cluster_accuracy=accuracies, test_set=sets)
        found.append(dataclasses.replace(run, clients=clients, summary={**run.summary, "seed": 0}))
    apart, chance, pairs = verdict.paired_test(found[:1], found[1:], CLUSTER)
    own = len(found[0].clients) - 9
    assert apart == pytest.approx((9 * 2 - 10 * own) / (9 + own)) and pairs == 1 + own
    assert chance == pytest.approx(scipy.stats.ttest_1samp([2.0, *[-10.0] * own], 0).pvalue)
    # A run of an earlier version does not tell who shares.
    old = dataclasses.replace(found[0].clients, test_set=np.arange(9 + own))
    assert verdict.paired_test([dataclasses.replace(found[0], clients=old)], found[1:], CLUSTER)[2] == 1 + own


def test_means_that_are_equal_but_for_rounding_are_no_evidence():
    assert verdict._by_chance(np.array([0.1 + 0.2, 0.3])) == verdict._by_chance(np.array([0.3, 0.3])) == 0.5


def test_one_cluster_whose_clients_keep_layers_is_no_model_for_all(runs):
    """LG-FedAvg: nothing is measured of one model."""
    kept = {**runs[0].summary, "accuracy": {**runs[0].summary["accuracy"], "global": {"mean": None}}}
    groups, *_ = verdict.verdict([dataclasses.replace(runs[0], summary=kept), runs[2]])
    assert "fedavg has a model for each client" in groups and "one model for all" not in groups


def test_one_model_for_all_is_known_by_any_metric(runs):
    """A model of numbers has no accuracies."""
    nothing = {"accuracy": {kind: {"mean": None} for kind in ("cluster", "local", "global")}}
    numbers = {"metrics": {"mae": {kind: {"mean": 0.3} for kind in ("cluster", "local", "global")}}}
    groups, *_ = verdict.verdict([dataclasses.replace(runs[0], summary=runs[0].summary | nothing | numbers)])
    assert groups == "No groups were formed; fedavg has one model for all."


def test_a_comparison_has_three_sentences(runs):
    groups, best, cost = verdict.verdict(runs)
    assert groups.startswith("There are groups: pacfl finds 3 clusters (adjusted Rand index with the true groups 1.00)")
    assert groups.endswith("fedavg has one model for all.")
    assert best.startswith("Best by cluster accuracy is pacfl with ") and "points above fedavg, beyond chance" in best
    assert best.endswith("pairs of client and seed and over seeds.")
    assert cost.startswith("pacfl sent ") and " as much as fedavg" in cost and cost.endswith(" here.")


@pytest.mark.parametrize(("apart", "compared", "gains"), [(0.3, 1, True), (0.3, 2, False), (-0.3, 1, False)])
def test_a_gain_is_upwards_and_one_of_all_that_are_compared(monkeypatch, apart, compared, gains):
    """And downwards of a loss."""
    monkeypatch.setattr(verdict, "paired_test", lambda *_: (apart, 0.03, 9))
    assert verdict._beyond_chance({"a": [], "b": []}, CLUSTER, "a", "b", compared) == gains
    falls = verdict._beyond_chance({"a": [], "b": []}, rows_of("log_loss")[0], "a", "b", compared)
    assert falls == (compared == 1 and not gains)


def test_the_best_of_three_is_tested_for_two_comparisons(runs, monkeypatch):
    third = [
        dataclasses.replace(run, method="third", summary={**run.summary, "algorithm": "third"}) for run in runs[2:]
    ]
    monkeypatch.setattr(verdict, "paired_test", lambda *_: (1.0, 0.03, 9))
    _, best, _ = verdict.verdict([*runs, *third])
    assert "not beyond chance (p = 0.06)" in best and ", for the best of 3" in best
    monkeypatch.setattr(verdict, "paired_test", lambda *_: (1.0, 0.7, 9))
    assert "not beyond chance (p = 1)" in verdict.verdict([*runs, *third])[1]


def test_the_cost_is_of_both_ways_and_beside_fedavg(runs):
    """The best sends as much up as FedAvg, and so much more down that it is twice as much."""
    plain = runs[0].summary["traffic"]
    twice = 2 * (plain["up_bytes"] + plain["down_bytes"])
    traffic = {**plain, "down_bytes": twice - plain["up_bytes"]}
    more = [dataclasses.replace(run, summary={**run.summary, "traffic": traffic}) for run in runs[2:]]
    _, _, cost = verdict.verdict([*runs[:2], *more])
    assert ", 2 times as much as fedavg" in cost


def test_one_seed_of_lone_clients_is_no_model_for_each(runs):
    alone = {**runs[3].summary["clusters"], "count": len(runs[3].clients)}
    last = dataclasses.replace(runs[3], summary={**runs[3].summary, "clusters": alone})
    groups, *_ = verdict.verdict([*runs[:3], last])
    assert f"3 to {len(last.clients)} clusters" in groups and "a model for each client" not in groups


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
    assert groups == "No groups were formed; fedavg and other have one model for all."
    assert "equal to other, not beyond chance (p = 1)" in best


def of_agreement(runs, ari, method="pacfl"):
    """Three clusters with the accuracies of one model for all."""
    fake = []
    for plain, clustered in zip(runs[:2], runs[2:]):
        same = dataclasses.replace(clustered.clients, cluster_accuracy=plain.clients.cluster_accuracy)
        summary = clustered.summary | {"clusters": clustered.summary["clusters"] | {"ari": ari}}
        fake.append(dataclasses.replace(clustered, method=method, clients=same, summary=summary))
    return fake


def test_clusters_that_nobody_gains_by_are_no_groups(runs):
    """Three clusters whose agreement with true groups is not known; half of an agreement is one."""
    assert verdict.verdict([*runs[:2], *of_agreement(runs, None)])[0] == (
        "Nothing shows that there are groups: pacfl finds 3 clusters; no model of a cluster is better than fedavg's "
        "beyond chance; fedavg has one model for all."
    )
    assert verdict.verdict([*runs[:2], *of_agreement(runs, 0.49)])[0].startswith("Nothing shows that there are groups")
    assert verdict.verdict([*runs[:2], *of_agreement(runs, 0.5)])[0].startswith("There are groups: pacfl finds 3")


def test_a_gain_of_one_of_two_clusterings_is_tested_for_two_comparisons(runs, monkeypatch):
    monkeypatch.setattr(verdict, "paired_test", lambda *_: (1.0, 0.03, 9))
    one, two = (of_agreement(runs, None, method) for method in ("pacfl", "other"))
    assert verdict.verdict([*runs[:2], *one])[0].startswith("There are groups by which models gain")
    assert verdict.verdict([*runs[:2], *one, *two])[0].startswith("Nothing shows that there are groups")
    monkeypatch.setattr(verdict, "paired_test", lambda own, *_: (1.0, 0.02 if own[0].method == "pacfl" else 0.9, 9))
    assert verdict.verdict([*runs[:2], *one, *two])[0].startswith("There are groups by which models gain")


def test_a_method_with_other_seeds_is_not_held_against_the_best(runs):
    other = dataclasses.replace(runs[0], summary={**runs[0].summary, "seed": 7})
    _, best, _ = verdict.verdict([other, runs[2]])
    assert best.endswith(
        ": fedavg, which was not measured on the same clients; paired t tests over 0 clients; other seeds may say "
        "otherwise."
    )


def test_a_single_run_says_what_would_tell_more(runs):
    groups, best, _ = verdict.verdict(runs[2:3])
    assert groups.startswith("There are groups: pacfl finds 3 clusters")
    assert "known beside another method (tffcl compare)" in best
