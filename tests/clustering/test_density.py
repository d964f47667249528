"""FLUX's grouping: against scikit-learn's and SciPy's single linkage, the knee, and newcomers."""

import numpy as np
import pytest
from scipy.cluster import hierarchy
from scipy.spatial import distance
from sklearn.preprocessing import MinMaxScaler

from tffcl.clustering import groupings


def blobs(seed):
    rng, sizes = np.random.default_rng(seed), (5, 4, 1)
    centres = rng.permutation(np.arange(len(sizes) * 4).reshape(len(sizes), 4) * 1.0)
    return np.concatenate([centre + rng.normal(0, 0.05, [size, 4]) for centre, size in zip(centres, sizes)])


@pytest.mark.parametrize("seed", range(4))
def test_it_is_single_linkage_cut_at_eps(seed):
    points = np.random.default_rng(seed).normal(size=[15, 3])
    labels, eps = groupings.dense_groups(points, scale=0.9)
    assert eps == pytest.approx(0.9 * groupings.dense_groups(points)[1])
    expected = hierarchy.fcluster(hierarchy.linkage(distance.pdist(points), "single"), eps, "distance")
    assert len(set(zip(labels.tolist(), expected.tolist()))) == len(set(labels.tolist())) == len(set(expected.tolist()))


@pytest.mark.parametrize("seed", range(4))
def test_who_is_near_to_nobody_is_alone(seed, neighbourhood="gap"):
    labels, eps = groupings.dense_groups(blobs(seed), neighbourhood)
    assert 0.05 < eps < 8
    assert [len(set(labels[rows].tolist())) for rows in (slice(5), slice(5, 9), slice(9, 10))] == [1, 1, 1]
    assert len(set(labels.tolist())) == 3


def test_the_gap_is_that_of_single_linkage():
    """Heights of 1, 1.2 and 7.8; those of average linkage are 1, 1.7 and 8.9."""
    points = np.array([[0.0], [1.0], [2.2], [10.0]])
    for scale in (1.0, 0.5):
        labels, eps = groupings.dense_groups(points, "gap", scale)
        assert eps == pytest.approx(scale * (1.2 + 7.8) / 2) and labels.tolist() == [0, 0, 0, 1]


# Where kneed 0.9.0, KneeLocator(range(n), distances, curve="convex", direction="increasing"), finds the elbow.
KNEES = [9, 10, 12, 11, 18, 20, 23, 24, 18, 23, 28, 28, 33, 36, 32, 39, 32, 45, 43, 43, 50, 48, 49, 47]


@pytest.mark.parametrize("seed, place", enumerate(KNEES))
def test_the_knee_is_the_first_as_kneed_finds_it(seed, place):
    rng = np.random.default_rng(seed)
    centres, clients = rng.normal(0, 3, [5, 4]), 12 + 2 * seed
    points = centres[rng.integers(0, 5, clients)] + rng.normal(0, 0.1 * (1 + seed % 8), [clients, 4])
    apart = distance.squareform(distance.pdist(points))
    nearest = np.sort(np.where(np.eye(clients, dtype=bool), np.inf, apart).min(axis=1))
    assert groupings.knee_distance(apart) == nearest[place]


def test_a_curve_without_a_knee_gives_its_largest_distance():
    points = np.array([0.0, 1.0, 3.0])[:, np.newaxis]  # 1, 1 and 2: kneed finds none
    assert groupings.knee_distance(np.abs(points - points.T)) == 2.0
    assert groupings.knee_distance(np.array([[0.0, 2.0], [2.0, 0.0]])) == 2.0


def test_few_and_equal_points():
    assert groupings.dense_groups(np.zeros([1, 3]))[0].tolist() == [0]
    assert groupings.dense_groups(np.zeros([4, 3]))[0].tolist() == [0, 0, 0, 0]


def test_blocks_are_scaled_by_their_own_span_as_scikit_learns_min_max():
    """The authors scale each block of a vector, all clients and entries together."""
    rng = np.random.default_rng(0)
    descriptors = {
        "marginal": rng.normal(0, 5, [6, 2, 3]),
        "conditional": rng.normal(0, [[[1], [40]]] * 4, [6, 4, 2, 3]),
    }
    descriptors["conditional"][:, 3] = -1  # a class that nobody has
    points, spans = groupings.scaled(descriptors)
    blocks = np.concatenate([value.reshape(6, -1, 3) for value in descriptors.values()], axis=1)
    expected = [MinMaxScaler().fit_transform(blocks[:, k].reshape(-1, 1)).reshape(6, 3) for k in range(blocks.shape[1])]
    np.testing.assert_allclose(distance.pdist(points), distance.pdist(np.concatenate(expected, axis=1)), atol=1e-12)
    np.testing.assert_array_equal(groupings.scaled({"marginal": descriptors["marginal"][:2]}, spans)[0], points[:2, :6])


def test_newcomers_join_the_nearest_mean():
    known = np.array([[0.0], [2.0], [10.0]])
    assert groupings.nearest_groups(known, np.array([3, 3, 1]), np.array([[5.4], [5.6], [-9.0]])).tolist() == [3, 1, 3]
