"""Agreement of clusters with true groups, where they agree in part: against values worked out by hand."""

import dataclasses
import math
import types

import numpy as np
import pytest

import tffcl
from tffcl.runs import cluster_history, summary
from tffcl.runs.cluster_history import NO_CLUSTER
from tffcl.runs.summary import agreement, features_apart, mutual_information, rand_index, wasserstein_adjusted_score

# Three groups of two; one client of the second is with the first.
GROUPS, CLUSTERS = [0, 0, 1, 1, 2, 2], [0, 0, 0, 1, 2, 2]


def test_the_adjusted_rand_index_of_a_part():
    """Pairs together in both: 1 + 1; in groups: 3; in clusters: 3 + 1; by chance 3 · 4 / 15."""
    chance = 3 * 4 / 15
    assert rand_index(GROUPS, CLUSTERS) == pytest.approx((2 - chance) / ((3 + 4) / 2 - chance))


def test_the_normalised_mutual_information_of_a_part():
    """Over the mean of the two entropies."""
    told = [(2, 2, 3), (1, 2, 3), (1, 2, 1), (2, 2, 2)]  # clients of group and cluster, of the group, of the cluster
    mutual = sum(both / 6 * math.log(6 * both / (group * cluster)) for both, group, cluster in told)
    entropies = math.log(3), -sum(share * math.log(share) for share in (3 / 6, 1 / 6, 2 / 6))
    assert mutual_information(GROUPS, CLUSTERS) == pytest.approx(2 * mutual / sum(entropies))


def test_there_is_no_index_without_groups():
    assert rand_index(None, CLUSTERS) is None and mutual_information(None, CLUSTERS) is None


def test_of_nobody_there_is_no_index():
    """scikit-learn's index of nothing is 1."""
    population = types.SimpleNamespace(groups=np.array(GROUPS), index=lambda ids: ids)
    views = types.SimpleNamespace(client_ids=np.arange(len(GROUPS)), clusters=np.array(CLUSTERS))
    assert agreement(population, views, np.zeros(len(GROUPS), bool)) is None
    assert agreement(population, views) == rand_index(GROUPS, CLUSTERS)


def test_the_wasserstein_adjusted_score_of_four_clients():
    """Two spread over both labels and two with one label each, whichever: distances between the sorted shares."""
    counts, clusters = np.array([[3, 3], [2, 3], [4, 0], [0, 5]]), np.array([0, 0, 1, 1])
    shares = [(0.5, 0.5), (0.4, 0.6), (0, 1), (0, 1)]
    apart = [[math.dist(one, other) for other in shares] for one in shares]
    values = []
    for client, cluster in enumerate(clusters):
        own = sum(apart[client][i] for i in range(4) if clusters[i] == cluster)  # one other, and itself at 0
        others = sum(apart[client][i] for i in range(4) if clusters[i] != cluster) / 2
        values.append((others - own) / max(own, others))
    assert wasserstein_adjusted_score(counts, clusters) == pytest.approx(sum(values) / 4)
    assert wasserstein_adjusted_score(counts, np.zeros(4, int)) is None
    assert wasserstein_adjusted_score(counts, np.arange(4)) is None
    assert wasserstein_adjusted_score(None, clusters) is None
    # Who is in no cluster, as nobody asked it, is in none with the others in no cluster.
    more = np.append(counts, [[1, 0], [1, 1]], axis=0), np.append(clusters, [NO_CLUSTER, NO_CLUSTER])
    assert wasserstein_adjusted_score(*more) == wasserstein_adjusted_score(counts, clusters)


def test_the_wasserstein_adjusted_score_of_very_many_is_that_of_some(monkeypatch):
    """Of clients that are alike in each cluster it is 1, whoever is drawn."""
    monkeypatch.setattr(summary, "_MOST_COMPARED", 8)
    assert wasserstein_adjusted_score(np.array([[3, 3], [4, 0]] * 6), np.array([0, 1] * 6)) == pytest.approx(1)


def test_clusters_differ_by_their_means_in_deviations_of_all_examples(monkeypatch):
    """Of clients of unequal sizes, one of which is in no cluster; the three features that are furthest first."""
    rng, x = np.random.default_rng(0), {}
    moved = {"a": (0, 0, 0, 0), "b": (0, 0, 1, 0), "c": (3, 0, -8, 20), "d": (3, 0, -8, 20), "e": (99, 99, 99, 99)}
    for number, (client, means) in enumerate(moved.items()):
        x[client] = (means + rng.normal(0, [1, 1, 2, 30], [10 + 5 * number, 4])).astype(np.float32)
    population = tffcl.Population.from_arrays({client: (each, np.zeros(len(each), int)) for client, each in x.items()})
    names = types.SimpleNamespace(feature_names=("age", "dose", "pulse", "weight"))
    table = dataclasses.replace(population, table=names)
    found = features_apart(table, np.array([4, 4, 7, 7, NO_CLUSTER]))
    assert found.keys() == {"4", "7"}
    known = np.concatenate([x[client] for client in "abcd"]).astype(float)
    for cluster, members in (("4", "ab"), ("7", "cd")):
        apart = np.concatenate([x[client] for client in members]).mean(axis=0) - known.mean(axis=0)
        expected = dict(zip(names.feature_names, apart / known.std(axis=0)))
        assert found[cluster] == pytest.approx({name: expected[name] for name in ("pulse", "age", "weight")}, rel=1e-4)
        assert list(found[cluster]) == sorted(found[cluster], key=lambda name: -abs(expected[name]))
    monkeypatch.setattr(cluster_history, "MOST_CLUSTERS", 1)
    assert features_apart(table, np.array([4, 7, 7, 7, 4])).keys() == {"7"}  # the largest
    assert features_apart(population, np.zeros(5, int)) is features_apart(table, np.arange(5)) is None
