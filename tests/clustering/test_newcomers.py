"""Tests for the clusters of newcomers."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tffcl.choices import LINKAGES
from tffcl.clustering.hierarchical import build_dendrogram, cut
from tffcl.clustering.newcomers import assign_newcomers, distances_to_clusters, extend_proximity
from tffcl.clustering.proximity import principal_angles
from tffcl.errors import UserError


def line(*places):
    """Proximity of points on a line."""
    return np.abs(np.subtract.outer(places, places)).astype(np.float64)


def test_extension_puts_blocks_in_place():
    got = extend_proximity([[1, 2], [3, 4]], [[5], [6]], [[7]])
    assert got.tolist() == [[1, 2, 5], [3, 4, 6], [5, 6, 7]]
    got = extend_proximity([[1]], [[2, 3]], [[4, 5], [6, 7]])
    assert got.tolist() == [[1, 2, 3], [2, 4, 5], [3, 6, 7]]


def test_extension_equals_the_matrix_of_all():
    bases = np.linalg.qr(np.random.default_rng(0).normal(size=(9, 8, 2)))[0].astype(np.float32)
    old, new = bases[:6], bases[6:]
    got = extend_proximity(principal_angles(old), principal_angles(old, others=new), principal_angles(new))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, principal_angles(bases), atol=1e-4)


@pytest.mark.parametrize(
    "shapes",
    [
        ((3, 3), (2, 3), (2, 2)),
        ((3, 2), (3, 2), (2, 2)),
        ((3, 3), (3, 2), (2, 3)),
        ((3,), (3, 2), (2, 2)),
        ((), (0, 1), (0, 0)),
    ],
)
def test_extension_checks_shapes(shapes):
    with pytest.raises(UserError, match="do not fit"):
        extend_proximity(*(np.zeros(shape) for shape in shapes))


def test_distances_follow_the_linkage():
    matrix = line(0, 2, 10, 20, 3)
    labels = [0, 0, 1, 2]
    expected = {"single": [1, 7, 17], "complete": [3, 7, 17], "average": [2, 7, 17], "weighted": [2, 7, 17]}
    for linkage in LINKAGES:
        got = distances_to_clusters(matrix, labels, linkage=linkage)
        np.testing.assert_array_equal(got, [expected[linkage]])


def test_distances_with_interleaved_labels_and_an_empty_number():
    rng = np.random.default_rng(1)
    matrix = line(*rng.uniform(0, 50, size=12))
    labels = np.array([3, 0, 3, 1, 0, 0, 1, 3])
    got = distances_to_clusters(matrix, labels, linkage="complete")
    assert got.shape == (4, 4)
    assert np.isinf(got[:, 2]).all()
    for b in range(4):
        for k in (0, 1, 3):
            assert got[b, k] == max(matrix[8 + b, i] for i in range(8) if labels[i] == k)


@pytest.mark.parametrize("linkage", LINKAGES)
def test_near_join_far_found_new_clusters(linkage):
    # Old: {0, 1}, {30, 31}. New: 0.5 joins the first, 29 the second; 70, 71 and 90 are near to nobody.
    matrix = line(0, 1, 30, 31, 0.5, 70, 29, 90, 71)
    got = assign_newcomers(matrix, [0, 0, 1, 1], threshold=3, linkage=linkage)
    assert got.dtype == np.int32
    assert got.tolist() == [0, 0, 1, 1, 0, 2, 1, 3, 2]


def test_new_clusters_are_numbered_after_the_largest_number_also_where_one_has_no_members():
    """The number of a cluster is the row of its model: 1 has nobody, and 2 is taken."""
    assert assign_newcomers(line(0, 30, 90), [0, 2], threshold=3, linkage="average").tolist() == [0, 2, 3]


def test_distance_equal_to_the_threshold_joins():
    matrix = line(0, 5)
    assert assign_newcomers(matrix, [0], threshold=5, linkage="single").tolist() == [0, 0]
    assert assign_newcomers(matrix, [0], threshold=4.99, linkage="single").tolist() == [0, 1]


def test_the_nearest_cluster_wins_and_ties_go_to_the_lower():
    assert assign_newcomers(line(0, 10, 6), [0, 1], threshold=20, linkage="average").tolist() == [0, 1, 1]
    assert assign_newcomers(line(0, 10, 5), [1, 0], threshold=20, linkage="average").tolist() == [1, 0, 0]


def test_a_bridge_does_not_merge_old_clusters():
    # Between two clusters: clustering anew with single linkage would make one of all.
    matrix = line(0, 4, 2)
    assert cut(build_dendrogram(matrix, "single"), threshold=2).tolist() == [0, 0, 0]
    assert assign_newcomers(matrix, [0, 1], threshold=2, linkage="single").tolist() == [0, 1, 0]


def test_linkage_decides_who_is_near():
    matrix = line(0, 8, 9)
    labels = [0, 0]
    assert assign_newcomers(matrix, labels, threshold=4.9, linkage="single")[2] == 0
    assert assign_newcomers(matrix, labels, threshold=4.9, linkage="average")[2] == 1
    assert assign_newcomers(matrix, labels, threshold=5, linkage="average")[2] == 0
    assert assign_newcomers(matrix, labels, threshold=8.9, linkage="complete")[2] == 1


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(
    seed=st.integers(0, 2**32 - 1),
    old=st.integers(1, 15),
    new=st.integers(0, 8),
    threshold=st.floats(0, 60),
    linkage=st.sampled_from(sorted(LINKAGES)),
)
def test_old_labels_stay_and_the_new_are_numbered_on(seed, old, new, threshold, linkage):
    rng = np.random.default_rng(seed)
    matrix = line(*rng.uniform(0, 100, size=old + new))
    labels = cut(build_dendrogram(matrix[:old, :old], linkage), threshold=threshold)
    got = assign_newcomers(matrix, labels, threshold=threshold, linkage=linkage)
    np.testing.assert_array_equal(got[:old], labels)
    assert sorted(set(got.tolist())) == list(range(got.max() + 1))
    order = rng.permutation(new)
    places = np.concatenate([np.arange(old), old + order])
    again = assign_newcomers(matrix[np.ix_(places, places)], labels, threshold=threshold, linkage=linkage)
    joined = got[old:] < labels.max() + 1
    np.testing.assert_array_equal(again[old:][np.argsort(order)][joined], got[old:][joined])


@hypothesis.settings(deadline=None, max_examples=40)
@hypothesis.given(seed=st.integers(0, 2**32 - 1), clients=st.integers(1, 15))
def test_copies_of_members_join_their_cluster(seed, clients):
    rng = np.random.default_rng(seed)
    places = rng.uniform(0, 100, size=clients)
    threshold = rng.uniform(0, 60)
    labels = cut(build_dendrogram(line(*places), "single"), threshold=threshold)
    copied = rng.integers(0, clients, size=5)
    got = assign_newcomers(line(*places, *places[copied]), labels, threshold=threshold, linkage="single")
    np.testing.assert_array_equal(got[clients:], labels[copied])


@pytest.mark.parametrize("linkage", LINKAGES)
def test_copies_of_members_of_compact_clusters_join_them(linkage):
    places = [0, 1, 2, 30, 31, 70]
    got = assign_newcomers(line(*places, *places), [0, 0, 0, 1, 1, 2], threshold=5, linkage=linkage)
    assert got[6:].tolist() == [0, 0, 0, 1, 1, 2]


def test_a_copy_at_the_fringe_of_a_wide_cluster():
    # By the farthest member, 0 is at 3 from its own cluster {0, 1, 2, 3} and at 2.5 from {-2.5}.
    old = line(0, 1, 2, 3, -2.5)
    labels = cut(build_dendrogram(old, "complete"), threshold=3)
    assert labels.tolist() == [0, 0, 0, 0, 1]
    got = assign_newcomers(line(0, 1, 2, 3, -2.5, 0), labels, threshold=3, linkage="complete")
    assert got[5] == 1


@pytest.mark.parametrize("linkage", LINKAGES)
def test_signatures_end_to_end(linkage):
    rng = np.random.default_rng(2)
    centres = rng.normal(size=(3, 40, 3))
    group = np.array([0, 1, 0, 1, 1, 0, 0, 1, 2, 2, 2])
    bases = np.linalg.qr(centres[group] + 0.1 * rng.normal(size=(11, 40, 3)))[0].astype(np.float32)
    copies = np.concatenate([bases[:8], bases[[1, 2]], bases[8:]])
    old, new = copies[:8], copies[8:]
    matrix = extend_proximity(
        principal_angles(old, metric="trace"),
        principal_angles(old, metric="trace", others=new),
        principal_angles(new, metric="trace"),
    )
    labels = cut(build_dendrogram(matrix[:8, :8], linkage), num_clusters=2)
    np.testing.assert_array_equal(labels, group[:8])
    got = assign_newcomers(matrix, labels, threshold=90, linkage=linkage)
    assert got.tolist() == [*group[:8], 1, 0, 2, 2, 2]


def test_nobody_old_and_nobody_new():
    matrix = line(0, 1, 50)
    assert assign_newcomers(matrix, [], threshold=2, linkage="average").tolist() == [0, 0, 1]
    assert assign_newcomers(matrix, [4, 4, 0], threshold=2, linkage="average").tolist() == [4, 4, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"labels": [0, 0, 1, 1, 2]}, "at most 4"),
        ({"labels": [0, -1]}, "numbered from 0"),
        ({"labels": [0.0, 1.0]}, "whole numbers"),
        ({"labels": [[0, 1]]}, "whole numbers"),
        ({"threshold": -1}, "threshold"),
        ({"threshold": float("nan")}, "threshold"),
        ({"linkage": "median"}, "unknown linkage 'median'"),
        ({"proximity": np.zeros((2, 3))}, "square"),
        ({"proximity": np.full((4, 4), np.nan)}, "NaN"),
    ],
)
def test_bad_arguments(arguments, message):
    good = {"proximity": line(0, 1, 2, 3), "labels": [0, 1], "threshold": 1.0, "linkage": "average"}
    with pytest.raises(UserError, match=message):
        assign_newcomers(**{**good, **arguments})


def test_distances_check_their_arguments():
    with pytest.raises(UserError, match="unknown linkage"):
        distances_to_clusters(line(0, 1), [0], linkage="centroid")
    with pytest.raises(UserError, match="whole numbers"):
        distances_to_clusters(line(0, 1), [0.5], linkage="single")


def test_a_newcomers_ward_distance_is_the_height_at_which_it_would_merge():
    rng = np.random.default_rng(3)
    points, labels = rng.normal(size=(9, 4)), np.array([0, 2, 0, 2, 2, 1])
    matrix = np.linalg.norm(points[:, None] - points, axis=-1)
    got = distances_to_clusters(matrix, labels, linkage="ward")
    for new, row in enumerate(got):
        for cluster, found in enumerate(row):
            members = points[:6][labels == cluster]
            size = len(members)
            expected = np.sqrt(2 * size / (size + 1)) * np.linalg.norm(points[6 + new] - members.mean(axis=0))
            assert found == pytest.approx(expected)
