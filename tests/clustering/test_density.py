"""FLUX's grouping: against scikit-learn's and SciPy's single linkage, the knee, and newcomers."""

import numpy as np
import pytest
from scipy.cluster import hierarchy
from scipy.spatial import distance

from tffcl.clustering import density


def blobs(seed, sizes=(5, 4, 1), spread=0.05):
    rng = np.random.default_rng(seed)
    centres = rng.permutation(np.arange(len(sizes) * 4).reshape(len(sizes), 4) * 1.0)
    return np.concatenate([centre + rng.normal(0, spread, [size, 4]) for centre, size in zip(centres, sizes)])


@pytest.mark.parametrize("seed", range(4))
def test_it_is_single_linkage_cut_at_eps(seed):
    points = np.random.default_rng(seed).normal(size=[15, 3])
    labels, eps = density.dense_groups(points, scale=0.9)
    expected = hierarchy.fcluster(hierarchy.linkage(distance.pdist(points), "single"), eps, "distance")
    assert len(set(zip(labels.tolist(), expected.tolist()))) == len(set(labels.tolist())) == len(set(expected.tolist()))


@pytest.mark.parametrize("seed", range(4))
def test_who_is_near_to_nobody_is_alone(seed, neighbourhood="gap"):
    labels, eps = density.dense_groups(blobs(seed), neighbourhood)
    assert 0.05 < eps < 8
    assert [len(set(labels[rows].tolist())) for rows in (slice(5), slice(5, 9), slice(9, 10))] == [1, 1, 1]
    assert len(set(labels.tolist())) == 3


def test_the_knee_is_the_bend_of_the_nearest_distances():
    points = np.array([0.0, 1.0, 3.0, 4.0, 6.0, 7.0, 20.0])[:, np.newaxis]
    apart = np.abs(points - points.T)
    assert density.knee_distance(apart) == 1.0  # the nearest distances are 1, 1, 1, 1, 1, 1 and 13
    assert density.knee_distance(np.array([[0.0, 2.0], [2.0, 0.0]])) == 2.0


def test_few_and_equal_points():
    assert density.dense_groups(np.zeros([1, 3]))[0].tolist() == [0]
    assert density.dense_groups(np.zeros([4, 3]))[0].tolist() == [0, 0, 0, 0]


def test_kinds_are_scaled_by_their_own_spread():
    descriptors = {"small": np.array([[0.0, 1.0], [2.0, 3.0]]), "large": np.array([[100.0], [300.0]])}
    points, spreads = density.scaled(descriptors)
    assert spreads == {"small": pytest.approx(np.std([0, 1, 2, 3])), "large": 100.0}
    np.testing.assert_allclose(points[:, 2], [1, 3])
    np.testing.assert_allclose(density.scaled({"large": np.array([[50.0]])}, spreads)[0], [[0.5]])


def test_newcomers_join_the_nearest_mean():
    known = np.array([[0.0], [2.0], [10.0]])
    assert density.nearest_groups(known, np.array([3, 3, 1]), np.array([[5.4], [5.6], [-9.0]])).tolist() == [3, 1, 3]
