"""Groupings without a tree: what they find, where newcomers go, and the metrics that come with them."""

import itertools

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.spatial import distance
from scipy.stats import wasserstein_distance
from sklearn.metrics.pairwise import cosine_similarity, rbf_kernel

from tffcl.clustering import groupings
from tffcl.clustering.groupings import GROUPINGS, first_groups, group_by_losses, kfed
from tffcl.clustering.taskonomy import client_distances
from tffcl.clustering.vector_distances import vector_distances, vector_points
from tffcl.errors import UserError

TRUTH = np.repeat([0, 1, 2], 5)


def _points(seed=0, dimensions=40):
    rng = np.random.default_rng(seed)
    centres = 3 * np.random.default_rng(9).normal(size=(3, dimensions))
    return centres[TRUTH] + 0.4 * rng.normal(size=(15, dimensions))


@pytest.mark.parametrize("name", GROUPINGS)
def test_groups_are_found_and_newcomers_join_them(name):
    known, arrived = _points(), _points(seed=1)[::3]
    points = np.concatenate([known, arrived])
    proximity = distance.squareform(distance.pdist(points)).astype(np.float32)
    labels = GROUPINGS[name](proximity[:15, :15], known, 3, seed=2)
    assert labels.dtype == np.int32 and labels.tolist() == TRUTH.tolist()
    assert GROUPINGS[name].place(proximity, points, labels).tolist() == TRUTH[::3].tolist()
    turned = (labels + 1) % 3  # as after clusters were formed again
    assert GROUPINGS[name].place(proximity, points, turned).tolist() == turned[::3].tolist()


BY_KMEANS = {
    "kmeans": lambda points, number, seed: GROUPINGS["kmeans"](None, points, number, seed=seed),
    "first_groups": lambda points, number, seed: first_groups(points, number, seed),
    "losses": lambda points, number, seed: group_by_losses(
        np.pad(points, ((0, 0), (0, number - points.shape[1]))), seed=seed
    ),
}


@pytest.mark.parametrize("name", BY_KMEANS)
def test_many_groups_are_found_from_any_seed(name):
    """One start of k-means misses some of them from each of these seeds."""
    rng, truth = np.random.default_rng(9), np.repeat(np.arange(20), 3)
    points = rng.uniform(0, 10, (20, 2))[truth] + 0.1 * rng.normal(size=(60, 2))
    for seed in range(3):
        assert len({*zip(truth, BY_KMEANS[name](points, 20, seed).tolist())}) == 20


@pytest.mark.parametrize("name", {**GROUPINGS, **BY_KMEANS})
def test_the_seed_decides_where_groups_are_not_clear(name):
    points = np.random.default_rng(1).normal(size=(30, 2))
    apart = distance.squareform(distance.pdist(points))
    group = BY_KMEANS.get(name) or (lambda points, number, seed: GROUPINGS[name](apart, points, number, seed=seed))
    found = [tuple(group(points, 5, seed)) for seed in (0, 1, 2, 3, 2**32 + 3)]
    assert found[3] == found[4] and len(set(found)) > 1


def test_similarities_of_the_graph_are_gaussian_at_the_median_distance(monkeypatch):
    points, seen = _points(), []
    monkeypatch.setattr(groupings, "spectral_clustering", lambda graph, **how: seen.append(graph) or TRUTH)
    apart = distance.pdist(points)
    GROUPINGS["spectral"](distance.squareform(apart), None, 3, seed=0)
    np.testing.assert_allclose(seen[0], rbf_kernel(points, gamma=0.5 / np.median(apart) ** 2), rtol=1e-6)


def test_newcomers_are_placed_by_the_mean_distance_and_by_the_mean_of_all_centres():
    """Neither the nearest nor the farthest member decides, nor the first of a client's centres."""
    across = np.array([[1.0, 9, 4, 4], [1, 6, 4, 4]])
    proximity = np.block([[np.ones([4, 4]) - np.eye(4), across.T], [across, 1 - np.eye(2)]])
    assert GROUPINGS["spectral"].place(proximity, None, np.array([0, 0, 1, 1])).tolist() == [1, 0]
    centres = np.array([[0.0, 8], [5, 25], [3, 8]])[..., np.newaxis]
    assert GROUPINGS["kmeans"].place(None, centres, np.array([0, 1])).tolist() == [0]


def test_clients_at_0_from_each_other_do_not_set_the_scale_of_similarities():
    """Most pairs are: their median would be 0."""
    points = np.repeat([[0.0, 0.0], [3.0, 0.0]], [5, 1], axis=0)
    proximity = distance.squareform(distance.pdist(points))
    assert GROUPINGS["spectral"](proximity, None, 2, seed=0).tolist() == [0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize("name", GROUPINGS)
@pytest.mark.parametrize("number", [1, 2, 6])
def test_clients_that_do_not_differ_stay_together(name, number):
    points = np.repeat([[0.0, 1.0], [5.0, 2.0]], 3, axis=0)
    proximity = distance.squareform(distance.pdist(points))
    assert GROUPINGS[name](proximity, points, number, seed=0).tolist() == [0] * 3 + [int(number > 1)] * 3
    assert GROUPINGS[name](np.zeros([4, 4]), np.ones([4, 2]), number, seed=0).tolist() == [0] * 4


@pytest.mark.parametrize("name", GROUPINGS)
def test_as_many_clusters_as_clients_are_these(name):
    points = _points()
    proximity = distance.squareform(distance.pdist(points))
    assert GROUPINGS[name](proximity, points, 15, seed=0).tolist() == list(range(15))
    assert GROUPINGS[name](proximity[:1, :1], points[:1], 1, seed=0).tolist() == [0]


def test_kfed_starts_at_a_client_and_at_the_farthest_centres():
    """Groups of very unequal sizes, where a start at random centres misses the small ones."""
    corners = np.array([[0.0, 0], [9, 0], [0, 9], [9, 9]])
    owners = np.array([0] * 30 + [1, 2, 3])
    centres = corners[owners][:, np.newaxis] + 0.5 * np.random.default_rng(0).normal(size=(33, 1, 2))
    assert GROUPINGS["kmeans"](None, centres, 4, seed=0).tolist() == owners.tolist()
    assert kfed(np.zeros([3, 2, 2]), 4).tolist() == [0, 0, 0]
    # The third start is far from the nearest of the others, and not from both in the mean, as the last point is.
    line = np.array([[0.0, 0], [14, 0], [7, 0], [14, 6]])[:, np.newaxis]
    found = kfed(line, 3)
    assert found[1] == found[3] and len(set(found.tolist())) == 3


def test_a_client_is_where_most_of_its_centres_are():
    near = np.array([[0.0], [0.2], [9.0]])
    centres = np.stack([near, 9 - near, np.array([[9.1], [np.nan], [1.0]])])
    assert kfed(centres, 2).tolist() == (found := [0, 1, 1]) or kfed(centres, 2).tolist() == [
        1 - each for each in found
    ]
    kmeans = GROUPINGS["kmeans"]
    assert kmeans.place(None, np.concatenate([centres[:2], centres[:1]]), np.array([4, 2])).tolist() == [4]


@pytest.mark.parametrize("found", [None, np.zeros(2, int), np.zeros([3, 1], int)])
def test_a_grouping_that_gives_no_cluster_for_each_client_is_told(found):
    grouping = groupings.Grouping(lambda *_: found, lambda *_: None)
    with pytest.raises(UserError, match="the grouping gives .*; it must be a cluster for each of 3 clients"):
        grouping(np.zeros([3, 3]), None, 2, 0)


@pytest.mark.parametrize("found", [np.array([-1, 0, -1]), np.array([np.nan, 0.0, -1.0])])
def test_clients_in_no_cluster_are_not_made_one(found):
    """As scikit-learn's DBSCAN says of those far from all others."""
    grouping = groupings.Grouping(lambda *_: found, lambda *_: None)
    with pytest.raises(UserError, match="the grouping gives (-1|nan) to 2 clients; .* must have one of its own"):
        grouping(np.zeros([3, 3]), None, 2, 0)


def test_points_of_the_cosine_have_its_root_as_distance():
    first, second = {"value": _points()}, {"value": _points(seed=3)[:4]}
    points, others = vector_points("cosine", first), vector_points("cosine", first, second)
    np.testing.assert_allclose(
        distance.cdist(points, others) ** 2, 2 * vector_distances("cosine", first, second), atol=1e-5
    )
    np.testing.assert_array_equal(vector_points("euclidean", first, second), second["value"])


def test_directions_are_those_of_a_plain_singular_value_decomposition():
    updates, others = {"value": _points()}, {"value": _points(seed=3)[:4]}
    left = np.linalg.svd(updates["value"].T, full_matrices=False)[0][:, :3]
    for given, wanted in ((None, updates), (others, others)):
        found = vector_points("decomposed_cosine", updates, given, directions=3)
        expected = cosine_similarity(wanted["value"], left.T)
        np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-8)
        apart = vector_distances("decomposed_cosine", updates, given, directions=3)
        own = cosine_similarity(updates["value"], left.T)
        np.testing.assert_allclose(apart, distance.cdist(own, expected), atol=1e-6)
    line = {"value": np.outer([1.0, -2.0, 3.0], [2.0, 1.0, 0.5])}  # of one direction, whatever is asked for
    np.testing.assert_allclose(np.abs(vector_points("decomposed_cosine", line, directions=3)), np.ones([3, 1]))
    nothing = vector_points("decomposed_cosine", {"value": np.zeros([3, 4])}, directions=2)
    assert np.isfinite(nothing).all() and len(nothing) == 3


@pytest.mark.parametrize("n, m", [(4, 4), (2, 3), (6, 4), (1, 5)])
def test_the_distance_of_points_is_that_of_linear_programming_and_of_scipy_on_a_line(n, m):
    rng = np.random.default_rng(n * m)
    one, other = rng.normal(size=(1, n, 3)), rng.normal(size=(1, m, 3))
    full = [np.ones([1, each], bool) for each in (n, m)]
    (found,) = client_distances(one, full[0], other, full[1], distance="wasserstein")[0]
    costs = distance.cdist(one[0], other[0])
    flows = np.zeros([n + m, n * m])
    for place, (i, j) in enumerate(itertools.product(range(n), range(m))):
        flows[i, place] = flows[n + j, place] = 1
    exact = linprog(costs.ravel(), A_eq=flows, b_eq=np.repeat([1 / n, 1 / m], [n, m])).fun
    np.testing.assert_allclose(found, exact, rtol=1e-5)
    line = [np.pad(each[..., :1], ((0, 0), (0, 0), (0, 1))) for each in (one, other)]
    (found,) = client_distances(line[0], full[0], line[1], full[1], distance="wasserstein")[0]
    np.testing.assert_allclose(found, wasserstein_distance(one[0, :, 0], other[0, :, 0]), rtol=1e-5)


def test_many_points_of_many_clients_are_compared_in_blocks():
    points = np.random.default_rng(2).normal(size=(40, 32, 2))
    mask = np.ones([40, 32], bool)
    apart = client_distances(points, mask, distance="wasserstein")
    assert not np.diagonal(apart).any() and np.array_equal(apart, apart.T)
    two = client_distances(points[[3]], mask[:1], points[[37]], mask[:1], distance="wasserstein")
    np.testing.assert_allclose(apart[3, 37], two[0, 0], rtol=1e-6)
