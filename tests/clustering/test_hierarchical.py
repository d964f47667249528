"""Tests for trees, cuts and suggested thresholds."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from scipy.cluster import hierarchy
from sklearn.cluster import AgglomerativeClustering

from tests.oracles.wpgma import wpgma
from tffcl.choices import LINKAGES
from tffcl.clustering import hierarchical
from tffcl.clustering.hierarchical import build_dendrogram, cut, suggest_threshold, threshold_for
from tffcl.errors import UserError


def random_proximity(seed, clients):
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.uniform(1, 90, size=(clients, clients)), 1)
    return (upper + upper.T).astype(np.float32)


def groups(labels):
    return {frozenset(np.flatnonzero(labels == each)) for each in np.unique(labels)}


def tree(heights):
    """A tree of singles joining one after the other at the given heights."""
    clients = len(heights) + 1
    matrix = np.zeros((clients, clients))
    for k, height in enumerate(heights):
        matrix[k + 1, : k + 1] = matrix[: k + 1, k + 1] = height
    return build_dendrogram(matrix, "single")


def assert_numbered_by_first_member(labels):
    first = [int(np.flatnonzero(labels == each)[0]) for each in range(labels.max() + 1)]
    assert first == sorted(first)


tree_sizes = st.integers(1, 25)
seeds = st.integers(0, 2**32 - 1)
levels_of_ties = st.integers(1, 4)
linkages = st.sampled_from(sorted(LINKAGES))


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(seed=seeds, clients=st.integers(2, 25), linkage=linkages, threshold=st.floats(0, 100))
def test_cut_at_threshold_agrees_with_fcluster(seed, clients, linkage, threshold):
    dendrogram = build_dendrogram(random_proximity(seed, clients), linkage)
    expected = hierarchy.fcluster(dendrogram.merges, threshold, criterion="distance")
    labels = cut(dendrogram, threshold=threshold)
    assert groups(labels) == groups(expected)
    assert labels.dtype == np.int32
    assert_numbered_by_first_member(labels)


@pytest.mark.parametrize("linkage", ["single", "complete", "average"])
@pytest.mark.parametrize("seed", range(4))
def test_cuts_agree_with_scikit_learn(linkage, seed):
    matrix = random_proximity(seed, 30)
    dendrogram = build_dendrogram(matrix, linkage)
    for number in (1, 2, 5, 17, 30):
        model = AgglomerativeClustering(n_clusters=number, metric="precomputed", linkage=linkage)
        assert groups(cut(dendrogram, num_clusters=number)) == groups(model.fit_predict(matrix))
    for threshold in np.quantile(dendrogram.heights, [0.1, 0.5, 0.9]):
        model = AgglomerativeClustering(
            n_clusters=None, distance_threshold=threshold + 1e-3, metric="precomputed", linkage=linkage
        )
        assert groups(cut(dendrogram, threshold=threshold + 1e-3)) == groups(model.fit_predict(matrix))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("threshold", [5.0, 20.0, 40.0, 1000.0])
def test_weighted_agrees_with_plain_wpgma(seed, threshold):
    matrix = random_proximity(seed, 18)
    heights, clusters = wpgma(matrix, threshold)
    dendrogram = build_dendrogram(matrix, "weighted")
    np.testing.assert_allclose(dendrogram.heights[: len(heights)], heights, rtol=1e-9)
    assert groups(cut(dendrogram, threshold=threshold)) == clusters


def test_weighted_and_average_differ():
    # {0, 1, 2} (2 joins last) to 3: WPGMA (4 + 10) / 2, UPGMA (4 + 4 + 10) / 3.
    matrix = np.array([[0, 1, 2, 4], [1, 0, 2, 4], [2, 2, 0, 10], [4, 4, 10, 0]], float)
    assert build_dendrogram(matrix, "weighted").heights.tolist() == [1, 2, 7]
    assert build_dendrogram(matrix, "average").heights.tolist() == [1, 2, 6]
    assert build_dendrogram(matrix, "single").heights.tolist() == [1, 2, 4]
    assert build_dendrogram(matrix, "complete").heights.tolist() == [1, 2, 10]


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(seed=seeds, clients=tree_sizes, linkage=linkages, levels=levels_of_ties, data=st.data())
def test_number_of_clusters_is_met_also_with_ties(seed, clients, linkage, levels, data):
    upper = np.triu(np.random.default_rng(seed).integers(0, levels, size=(clients, clients)), 1)
    dendrogram = build_dendrogram((upper + upper.T).astype(np.float32), linkage)
    number = data.draw(st.integers(1, clients))
    labels = cut(dendrogram, num_clusters=number)
    assert sorted(set(labels.tolist())) == list(range(number))
    assert_numbered_by_first_member(labels)


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(seed=seeds, clients=tree_sizes, linkage=linkages, data=st.data())
def test_threshold_for_gives_the_number(seed, clients, linkage, data):
    dendrogram = build_dendrogram(random_proximity(seed, clients), linkage)
    number = data.draw(st.integers(1, clients))
    threshold = threshold_for(dendrogram, number)
    assert np.isfinite(threshold)
    by_threshold = cut(dendrogram, threshold=threshold)
    np.testing.assert_array_equal(by_threshold, cut(dendrogram, num_clusters=number))


def test_threshold_lies_midway():
    dendrogram = tree([2, 4, 10])
    assert threshold_for(dendrogram, 4) == 1
    assert threshold_for(dendrogram, 3) == 3
    assert threshold_for(dendrogram, 2) == 7
    assert threshold_for(dendrogram, 1) == pytest.approx(10.5)


@pytest.mark.parametrize("low", [1.0, np.nextafter(1.0, 2)])
def test_threshold_between_neighbouring_floats(low):
    # The middle is rounded down for one and up for the other.
    dendrogram = tree([low, np.nextafter(low, 2)])
    assert len(set(cut(dendrogram, threshold=threshold_for(dendrogram, 2)))) == 2


def test_no_threshold_where_heights_are_equal():
    dendrogram = tree([0, 0, 5, 5, 9])
    with pytest.raises(UserError, match="all merges at 5 are made together and leave 2"):
        threshold_for(dendrogram, 3)
    with pytest.raises(UserError, match="no threshold gives 6 clusters"):
        threshold_for(dendrogram, 6)
    assert len(set(cut(dendrogram, num_clusters=3))) == 3
    assert threshold_for(dendrogram, 4) == 2.5


def test_merges_of_equal_height_are_made():
    dendrogram = tree([1.5, 4])
    assert cut(dendrogram, threshold=1.5).tolist() == [0, 0, 1]
    assert cut(dendrogram, threshold=1.4999).tolist() == [0, 1, 2]
    assert cut(dendrogram, threshold=np.inf).tolist() == [0, 0, 0]
    assert cut(dendrogram, threshold=0).tolist() == [0, 1, 2]
    assert cut(tree([0, 4]), threshold=0).tolist() == [0, 0, 1]


def test_one_client():
    dendrogram = build_dendrogram(np.zeros((1, 1), np.float32))
    assert dendrogram.num_leaves == 1
    assert dendrogram.heights.shape == (0,)
    assert cut(dendrogram, threshold=3.0).tolist() == [0]
    assert cut(dendrogram, num_clusters=1).tolist() == [0]
    assert threshold_for(dendrogram, 1) == 0


def test_dendrogram_is_scipys():
    matrix = random_proximity(0, 9)
    dendrogram = build_dendrogram(matrix)
    assert dendrogram.linkage == "average"
    assert dendrogram.merges.shape == (8, 4)
    assert dendrogram.num_leaves == 9
    assert hierarchy.is_valid_linkage(dendrogram.merges)
    assert (np.diff(dendrogram.heights) >= 0).all()
    with pytest.raises(AttributeError):
        dendrogram.linkage = "single"


def test_proximity_is_not_changed():
    matrix = random_proximity(1, 9)
    before = matrix.copy()
    build_dendrogram(matrix)
    np.testing.assert_array_equal(matrix, before)


def bad(i, j, value, clients=4):
    matrix = random_proximity(2, clients)
    matrix[i, j] = value
    return matrix


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.zeros((2, 3)), "square"),
        (np.zeros(4), "square"),
        (np.zeros((2, 2), complex), "numbers"),
        (np.zeros((0, 0)), "at least one"),
        (bad(1, 2, np.nan), "NaN or infinite"),
        (bad(1, 2, np.inf), "NaN or infinite"),
        (bad(3, 1, 500.0), r"not symmetric: \[1, 3\]"),
        (bad(599, 300, 500.0, 600), r"not symmetric: \[300, 599\]"),
        (bad(2, 2, 1.0), "diagonal"),
        (-random_proximity(2, 4), "negative"),
    ],
)
def test_bad_proximity(matrix, message):
    with pytest.raises(UserError, match=message):
        build_dendrogram(matrix)


def test_rounding_is_no_asymmetry():
    matrix = random_proximity(3, 6)
    matrix[4, 1] = np.nextafter(matrix[4, 1], np.float32(100))
    assert build_dendrogram(matrix).num_leaves == 6
    matrix[4, 1] += 1e-3 * matrix.max() / 10
    with pytest.raises(UserError, match="not symmetric"):
        build_dendrogram(matrix)


def test_rounding_below_zero_is_zero():
    matrix = np.array([[0, -1e-6, 9], [-1e-6, 0, 9], [9, 9, 0]], np.float32)
    dendrogram = build_dendrogram(matrix)
    assert dendrogram.heights.tolist() == [0, 9]
    assert matrix[0, 1] < 0


def test_unknown_linkage():
    with pytest.raises(UserError, match="did you mean 'weighted'"):
        build_dendrogram(np.zeros((2, 2)), "weigthed")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "exactly one"),
        ({"threshold": 1.0, "num_clusters": 2}, "exactly one"),
        ({"threshold": -0.1}, "threshold is -0.1"),
        ({"threshold": float("nan")}, "threshold is nan"),
        ({"threshold": "wide"}, "threshold is 'wide'"),
        ({"num_clusters": 0}, "from 1 to 4"),
        ({"num_clusters": 5}, "from 1 to 4"),
        ({"num_clusters": 2.0}, "whole number"),
        ({"num_clusters": True}, "whole number"),
    ],
)
def test_bad_cuts(arguments, message):
    with pytest.raises(UserError, match=message):
        cut(tree([1, 2, 3]), **arguments)


def test_bad_number_for_threshold():
    with pytest.raises(UserError, match="from 1 to 4"):
        threshold_for(tree([1, 2, 3]), 5)


def test_suggestion_takes_the_largest_relative_gap():
    suggestion = suggest_threshold(tree([7.0, 7.5, 8.1, 21.3, 25.0, 26.0]), unit="degrees")
    assert suggestion.num_clusters == 4
    assert suggestion.threshold == pytest.approx((8.1 + 21.3) / 2)
    assert suggestion.ratio == pytest.approx(21.3 / 8.1)
    assert suggestion.reason == (
        "merging 5 clusters into 4 takes 8.1 degrees, 4 into 3 takes 21.3: the largest relative gap (2.6 times)"
    )
    assert len(set(cut(tree([7.0, 7.5, 8.1, 21.3, 25.0, 26.0]), threshold=suggestion.threshold))) == 4


@pytest.mark.parametrize("linkage", LINKAGES)
def test_suggestion_finds_planted_groups(linkage):
    rng = np.random.default_rng(4)
    group = np.repeat([0, 1, 2], [10, 4, 7])
    matrix = np.where(group[:, None] == group, 5, 40) + rng.uniform(0, 3, size=(21, 21))
    matrix = np.triu(matrix, 1) + np.triu(matrix, 1).T
    dendrogram = build_dendrogram(matrix, linkage)
    suggestion = suggest_threshold(dendrogram)
    assert suggestion.num_clusters == 3
    np.testing.assert_array_equal(cut(dendrogram, threshold=suggestion.threshold), group)
    assert suggestion.ratio > 3


def test_tiny_heights_do_not_decide():
    # 0 to 1e-9 and 1e-9 to 1e-3 are huge ratios; 1 to 10 is the gap that counts.
    suggestion = suggest_threshold(tree([0, 0, 1e-9, 1e-3, 0.9, 1, 10]))
    assert (suggestion.num_clusters, suggestion.ratio) == (2, pytest.approx(10))
    floored = suggest_threshold(tree([0, 0, 0, 0.2, 10, 11]))
    assert floored.num_clusters == 3
    assert floored.ratio == pytest.approx(10 / 1.1)
    assert "at least 9.1 times" in floored.reason


def test_extremes_at_the_bottom_do_not_decide():
    # The lowest merge of twelve clients is far below the others; twelve clients in eleven clusters is absurd.
    suggestion = suggest_threshold(tree([1, 4, 4.1, 4.2, 4.3, 4.4, 4.5, 4.6, 4.7, 4.8, 7]))
    assert suggestion.num_clusters == 2
    # A third of the clients must be merged away: 4 of 12, and 5 of 13.
    assert suggest_threshold(tree([1] * 3 + [4] * 8)).num_clusters == 1
    assert suggest_threshold(tree([1] * 4 + [4] * 7)).num_clusters == 8
    assert suggest_threshold(tree([1] * 4 + [4] * 8)).num_clusters == 1


def test_equal_gaps_give_the_fewest_clusters():
    assert suggest_threshold(tree([1, 1, 2, 4, 8])).num_clusters == 2


def test_weak_gap_is_named():
    suggestion = suggest_threshold(tree([10, 10.1, 10.2, 10.9, 11]), unit="degrees")
    assert suggestion.num_clusters == 3
    assert suggestion.ratio == pytest.approx(10.9 / 10.2)
    assert "look alike" in suggestion.reason
    assert "weak gap (1.1 times)" in suggestion.reason
    assert not suggestion.is_clear and "next largest" not in suggestion.reason


def test_groups_within_groups_are_not_called_alike():
    """Four groups, of which two and two are nearer to each other: the gap above them hides the one between the four."""
    suggestion = suggest_threshold(tree([10.0] * 8 + [13.0, 13.2, 19.0]))
    assert suggestion.num_clusters == 2 and not suggestion.is_clear
    assert (
        "look alike" not in suggestion.reason and "; the next largest is at 4 clusters (1.3 times)" in suggestion.reason
    )
    assert suggest_threshold(tree([10.0] * 8 + [16.0, 16.2, 19.0])).is_clear
    assert suggest_threshold(tree([10.0] * 8 + [15.0] * 3)).is_clear
    weak = suggest_threshold(tree([10.0] * 8 + [14.9] * 3)), suggest_threshold(tree([10.0] * 8 + [12.0] * 3))
    assert not any(each.is_clear or "look alike" in each.reason for each in weak)


@pytest.mark.parametrize("heights", [[], [0], [8.0], [0, 0], [7, 7, 7, 7]])
def test_nothing_to_compare_is_one_cluster(heights):
    dendrogram = tree(heights)
    suggestion = suggest_threshold(dendrogram, unit="degrees")
    assert (suggestion.num_clusters, suggestion.ratio) == (1, 1.0) and suggestion.is_clear
    assert cut(dendrogram, threshold=suggestion.threshold).max() == 0
    assert suggestion.reason


def test_three_clients():
    suggestion = suggest_threshold(tree([2, 30]))
    assert (suggestion.num_clusters, suggestion.threshold) == (2, 16)


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(seed=seeds, clients=tree_sizes, linkage=linkages)
def test_suggestion_is_consistent(seed, clients, linkage):
    dendrogram = build_dendrogram(random_proximity(seed, clients), linkage)
    suggestion = suggest_threshold(dendrogram, "degrees")
    assert len(set(cut(dendrogram, threshold=suggestion.threshold))) == suggestion.num_clusters
    assert 1 <= suggestion.num_clusters <= max(1, clients - 1)
    assert 1 <= suggestion.ratio <= 10.0001
    assert "\n" not in suggestion.reason
    assert set(LINKAGES) == {"single", "complete", "average", "weighted"}


def test_check_threshold_returns_a_float():
    assert hierarchical.check_threshold(np.float32(2.5)) == 2.5


def test_as_many_clusters_as_identical_clients_have_a_threshold_that_merges_nobody_else():
    alike = build_dendrogram(np.array([[0, 0, 9], [0, 0, 9], [9, 9, 0.0]]), "average")
    assert hierarchical.threshold_of(alike, 3) == 0.0  # a newcomer at 8 is no member of anybody's cluster
    assert hierarchical.threshold_of(alike, 2) == pytest.approx(4.5)


@pytest.mark.parametrize("clients", [2, 5, 12])
def test_ward_of_distances_is_ward_of_points(clients):
    points = np.random.default_rng(clients).normal(size=(clients, 3))
    matrix = np.linalg.norm(points[:, None] - points, axis=-1)
    found, expected = build_dendrogram(matrix, "ward"), hierarchical.build_ward_dendrogram(points)
    np.testing.assert_allclose(found.heights, expected.heights, rtol=1e-6)
    np.testing.assert_array_equal(found.merges[:, :2], expected.merges[:, :2])
