"""FLT's server side: the map of the centres, distances of clients, who is related to whom, clusters and newcomers."""

import itertools

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from scipy.cluster import hierarchy
from scipy.optimize import linear_sum_assignment
from scipy.spatial import distance

from tffcl.choices import DISTANCES
from tffcl.clustering import hierarchical, taskonomy
from tffcl.clustering.relatedness_graph import starting_models, suggested_gamma, with_stored
from tffcl.clustering.taskonomy import assign_to_nearest, client_distances, flatten, relate
from tffcl.errors import UserError

seeds = st.integers(0, 2**32 - 1)
names = st.sampled_from(sorted(DISTANCES))
quick = hypothesis.settings(deadline=None, max_examples=40)


def random_clients(seed, clients, centres=4, dimension=2):
    rng = np.random.default_rng(seed)
    mask = rng.random((clients, centres)) < 0.7
    mask[np.arange(clients), rng.integers(0, centres, clients)] = True
    points = rng.normal(size=(clients, centres, dimension)).astype(np.float32)
    # What is masked must not matter.
    points[~mask] = np.nan
    return points, mask


def by_loop(points, mask, others, others_mask, pair):
    return [
        [pair(a[real].astype(float), b[other].astype(float)) for b, other in zip(others, others_mask)]
        for a, real in zip(points, mask)
    ]


def nearest_centres(a, b):
    return min(np.linalg.norm(u - v) for u in a for v in b)


def best_permutation(a, b):
    """The authors' loop (FLT, cluster.py:37-58)."""
    few, many = sorted((a, b), key=len)
    sums = [
        sum(((u - many[place]) ** 2).sum() for u, place in zip(few, places))
        for places in itertools.permutations(range(len(many)), len(few))
    ]
    return np.sqrt(min(sums)) / len(few)


def best_assignment(a, b):
    costs = distance.cdist(a, b, "sqeuclidean")
    return np.sqrt(costs[linear_sum_assignment(costs)].sum()) / min(len(a), len(b))


ORACLES = {"closest_pair": nearest_centres, "matching": best_permutation}


@quick
@hypothesis.given(seeds, names, st.integers(1, 5), st.integers(1, 5), st.integers(1, 3))
def test_distances_are_those_of_plain_loops(seed, name, centres, other_centres, dimension):
    ours = random_clients(seed, 4, centres, dimension)
    theirs = random_clients(seed ^ 1, 3, other_centres, dimension)
    found = client_distances(*ours, *theirs, distance=name)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, by_loop(*ours, *theirs, ORACLES[name]), rtol=1e-6)


@pytest.mark.parametrize("centres", [1, 2, 5, 8, 9, 12])
def test_matching_is_the_linear_assignment(centres):
    ours, theirs = random_clients(centres, 12, centres), random_clients(99, 9, 7)
    np.testing.assert_allclose(
        client_distances(*ours, *theirs, distance="matching"), by_loop(*ours, *theirs, best_assignment), rtol=1e-6
    )


@pytest.mark.parametrize("name", DISTANCES)
def test_more_clients_than_a_block(name):
    points, mask = random_clients(3, 300, 3)
    found = client_distances(points, mask, distance=name)
    np.testing.assert_array_equal(found, found.T)
    assert not found.diagonal().any()
    np.testing.assert_array_equal(client_distances(points, mask, points, mask, distance=name)[:, 7], found[:, 7])


@quick
@hypothesis.given(seeds, names)
def test_order_of_clients_and_centres_does_not_matter(seed, name):
    points, mask = random_clients(seed, 8)
    rng = np.random.default_rng(seed)
    clients, centres = rng.permutation(8), rng.permutation(4)
    found = client_distances(points, mask, distance=name)
    mixed = client_distances(points[clients][:, centres], mask[clients][:, centres], distance=name)
    np.testing.assert_allclose(mixed, found[np.ix_(clients, clients)], rtol=1e-6)


def test_matching_divides_by_the_number_and_not_its_root():
    one, two = np.zeros((1, 4, 1), np.float32), np.full((1, 4, 1), 3, np.float32)
    every = np.ones((1, 4), bool)
    assert client_distances(one, every, two, every, distance="matching") == 1.5  # sqrt(4 * 9) / 4
    assert client_distances(one, every, two, every) == 3


def test_no_clients():
    points, mask = random_clients(0, 3)
    assert client_distances(points[:0], mask[:0]).shape == (0, 0)
    assert client_distances(points[:0], mask[:0], points, mask, distance="matching").shape == (0, 3)


def test_near_clients_are_related_and_far_ones_not():
    distances = np.array([[0, 0.5, 1], [0.5, 0, 3], [1, 3, 0]])
    np.testing.assert_array_equal(relate(distances, 1.0), [[1, 1, 0], [1, 1, 0], [0, 0, 1]])
    np.testing.assert_array_equal(relate(distances, 1.01), [[1, 1, 1], [1, 1, 0], [1, 0, 1]])
    assert relate(distances, np.inf).all() and relate(distances, 1e-9).dtype == np.float32
    np.testing.assert_array_equal(relate(distances, 1e-9), np.eye(3))


def blocks_of(groups):
    return (groups[:, None] == groups).astype(np.float32)


def first_member_numbers(groups):
    numbers = {}
    return np.array([numbers.setdefault(each, len(numbers)) for each in groups])


@quick
@hypothesis.given(st.lists(st.integers(0, 6), min_size=1, max_size=40), st.data())
def test_disjoint_blocks_come_out(groups, data):
    groups = np.array(groups)
    expected = first_member_numbers(groups)
    labels, merges = flatten(blocks_of(groups))
    assert labels.dtype == np.int32 and merges.shape == (len(groups) - 1, 4)
    np.testing.assert_array_equal(labels, expected)
    np.testing.assert_array_equal(flatten(blocks_of(groups), expected.max() + 1)[0], expected)
    number = data.draw(st.integers(1, len(groups)))
    some = flatten(blocks_of(groups), number)[0]
    # Equal rows are never parted, and there are no more clusters than asked for.
    assert some.max() + 1 == min(number, expected.max() + 1)
    assert all(len(set(some[groups == each])) == 1 for each in groups)


@pytest.mark.parametrize("number", [None, 5])
def test_a_ring_of_clusters_that_share_classes_comes_apart(number):
    # FLT's scenario 2: each of five clusters is related to the two beside it.
    groups = np.random.default_rng(0).integers(0, 5, 100)
    apart = (groups[:, None] - groups) % 5
    labels, _ = flatten(np.isin(apart, [0, 1, 4]), number)
    np.testing.assert_array_equal(labels, first_member_numbers(groups))


@pytest.mark.parametrize("number", [None, 6])
@pytest.mark.parametrize("seed", range(3))
def test_noisy_blocks_come_out_in_any_order(seed, number):
    rng = np.random.default_rng(seed)
    groups = rng.permutation(np.repeat(np.arange(6), 20))
    wrong = np.triu(rng.random((120, 120)) < 0.05, 1)
    related = (blocks_of(groups) != 0) ^ wrong ^ wrong.T
    np.testing.assert_array_equal(flatten(related, number)[0], first_member_numbers(groups))
    order = rng.permutation(120)
    mixed = flatten(related[np.ix_(order, order)], number)[0]
    np.testing.assert_array_equal(mixed, first_member_numbers(groups[order]))


def test_the_tree_is_wards_on_the_rows():
    rng = np.random.default_rng(0)
    related = np.triu(rng.random((30, 30)) < 0.3, 1)
    related = related | related.T | np.eye(30, dtype=bool)
    merges = flatten(related, 4)[1]
    expected = hierarchy.linkage(related.astype(float), "ward")
    np.testing.assert_allclose(merges[:, 2], expected[:, 2], rtol=1e-9)
    rows = rng.normal(size=(30, 4))
    np.testing.assert_allclose(
        hierarchical.build_ward_dendrogram(rows).merges, hierarchy.linkage(rows, "ward"), rtol=1e-9
    )


def test_ward_of_distances_is_that_of_the_rows_whose_distances_they_are():
    assert hierarchical.build_ward_dendrogram(np.eye(1)).num_leaves == 1
    rows = np.random.default_rng(0).normal(size=(9, 3))
    apart = np.linalg.norm(rows[:, np.newaxis] - rows, axis=2)
    found, expected = hierarchical.build_dendrogram(apart, "ward"), hierarchical.build_ward_dendrogram(rows)
    np.testing.assert_allclose(found.merges, expected.merges, rtol=1e-6)
    with pytest.raises(UserError, match=r"rows are float64 of shape \(0, 3\)"):
        hierarchical.build_ward_dendrogram(np.zeros((0, 3)))


def two_clusters():
    """Clusters around the classes {0, 10} and {10, 20}, the class 10 in both."""
    known = np.array([[[0.0], [10]], [[20], [10]], [[0.1], [10.1]], [[10.1], [20.1]]], np.float32)
    return known, np.ones((4, 2), bool), np.array([3, 1, 3, 1])


def test_newcomers_join_the_cluster_with_the_same_classes():
    known, mask, labels = two_clusters()
    new = np.array([[[9.9], [19.9]], [[10.2], [0.2]], [[0.3], [0]]], np.float32)
    real = np.array([[True, True], [True, True], [True, False]])
    joined = assign_to_nearest(new, real, known, mask, labels)
    assert joined.dtype == np.int32
    np.testing.assert_array_equal(joined, [1, 3, 3])
    assert assign_to_nearest(new[:0], real[:0], known, mask, labels).shape == (0,)


@quick
@hypothesis.given(seeds)
def test_newcomers_go_where_the_mean_distance_is_least(seed):
    new, known = random_clients(seed, 5), random_clients(seed ^ 1, 9)
    labels = np.random.default_rng(seed).integers(0, 4, 9)
    apart = client_distances(*new, *known, distance="matching").astype(float)
    means = [
        apart[:, labels == each].mean(axis=1) if (labels == each).any() else np.full(5, np.inf) for each in range(4)
    ]
    found = assign_to_nearest(*new, *known, labels)
    np.testing.assert_allclose(np.array(means)[found, np.arange(5)], np.min(means, axis=0), rtol=1e-9)


def test_means_are_over_all_clients_also_those_that_did_not_take_part():
    """FLT's Alg. 3, line 17; two of the absent have one model."""
    rng = np.random.default_rng(0)
    models, rows = rng.normal(size=(3, 4)).astype(np.float32), np.array([2, 0, 1, 0, 1])
    trained, where, shares = models[rows].copy(), np.array([0, 4]), rng.uniform(1, 9, (2, 5)).astype(np.float32)
    trained[where] = rng.normal(size=(2, 4))
    mixes = np.stack([np.average(trained[where], axis=0, weights=share[where]) for share in shares]).astype(np.float32)
    expected = [np.average(trained, axis=0, weights=share) for share in shares]
    np.testing.assert_allclose(with_stored(mixes, shares, where, models, rows), expected, rtol=1e-5)


def test_newcomers_start_from_the_mean_of_their_relatives_models_or_the_nearest_clients():
    models, rows = np.array([[1.0, 0], [0, 4], [7, 7]], np.float32), np.array([0, 0, 1, 2])
    across = np.array([[9.0, 3], [9, 9], [1, 9], [5, 2]])
    found = starting_models(models, rows, np.array([[1, 1, 1, 0], [0, 0, 0, 0]]), across)
    np.testing.assert_allclose(found, [[2 / 3, 4 / 3], [7, 7]], rtol=1e-6)


def test_gamma_is_suggested_by_average_linkage():
    """Merges of 1, 1.7 and 8.9; those of single linkage are 1, 1.2 and 7.8."""
    line = np.array([[0.0], [1.0], [2.2], [10.0]])
    assert suggested_gamma(distance.cdist(line, line)).threshold == pytest.approx((3.4 / 2 + 26.8 / 3) / 2)


@pytest.fixture(scope="module")
def centres():
    """30 clients of 3 groups; a group's clients have centres around 2 places of their own, and some 1 of them."""
    rng = np.random.default_rng(0)
    groups = np.arange(30) % 3
    places = 8 * rng.normal(size=(6, 10))
    made = places[2 * groups[:, None] + [0, 1]] + 0.2 * rng.normal(size=(30, 2, 10))
    mask = np.ones((30, 2), bool)
    mask[::7, 1] = False
    return made.astype(np.float32), mask, groups


OPTIONS = {"seed": 5, "num_neighbors": 6}


@pytest.fixture(scope="module")
def fitted(centres):
    return taskonomy.fit_map(*centres[:2], **OPTIONS)


def test_groups_come_out_of_the_map(centres, fitted):
    _, mask, groups = centres
    assert fitted.points.shape == (30, 2, 2) and fitted.points.dtype == np.float32
    assert not fitted.points[~mask].any()
    related = relate(client_distances(fitted.points, mask), 2.0)
    np.testing.assert_array_equal(flatten(related, 3)[0], groups)


def test_the_same_centres_and_seed_make_the_same_map(centres, fitted):
    made, mask, _ = centres
    np.testing.assert_array_equal(taskonomy.fit_map(made, mask, **OPTIONS).points, fitted.points)
    other = taskonomy.fit_map(made, mask, **{**OPTIONS, "seed": 6}).points
    assert not np.array_equal(other, fitted.points)


def test_the_map_does_not_depend_on_order_or_on_what_is_masked(centres, fitted):
    made, mask, _ = centres
    order = np.random.default_rng(1).permutation(30)
    garbage = np.where(mask[..., None], made, np.nan)
    mixed = taskonomy.fit_map(garbage[order][:, ::-1], mask[order][:, ::-1], **OPTIONS).points
    np.testing.assert_array_equal(mixed, fitted.points[order][:, ::-1])


def test_newcomers_are_placed_one_by_one_beside_their_like(centres, fitted):
    made, mask, groups = centres
    new = made[:6] + np.float32(0.05)
    placed = fitted.place(new, mask[:6])
    assert placed.shape == (6, 2, 2) and not placed[~mask[:6]].any()
    np.testing.assert_array_equal(assign_to_nearest(placed, mask[:6], fitted.points, mask, groups), groups[:6])
    np.testing.assert_array_equal(fitted.place(new[3:4], mask[3:4])[0], placed[3])
    again = taskonomy.fit_map(made, mask, **OPTIONS)
    np.testing.assert_array_equal(again.place(new, mask[:6]), placed)
    assert fitted.place(new[:0], mask[:0]).shape == (0, 2, 2)
    with pytest.raises(UserError, match="centres of newcomers have 9 features; the map was made of 10"):
        fitted.place(new[:, :, :9], mask[:6])


@pytest.mark.parametrize("count", [4, 9])
def test_few_centres_and_equal_ones(count):
    made = np.random.default_rng(0).normal(size=(count, 1, 5)).astype(np.float32)
    copies = np.concatenate([made, made])
    points = taskonomy.fit_map(copies, np.ones((2 * count, 1), bool), seed=0, num_components=3).points
    assert points.shape == (2 * count, 1, 3) and np.isfinite(points).all()
    np.testing.assert_array_equal(points[:count], points[count:])


ONE = np.ones((3, 1), bool)


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: taskonomy.fit_map(np.zeros((9, 1, 2)), np.ones((9, 1), bool), seed=0),
            "at least 4 different ones; there are 1: more centres of each client .num_centres. would do",
        ),
        (lambda: taskonomy.fit_map(np.zeros((3, 1, 2)), ONE, seed=0, num_neighbors=1), "num_neighbors 1 .* at least 2"),
        (lambda: taskonomy.fit_map(np.zeros((3, 1, 2)), ONE, seed=0, min_dist=1.5), "min_dist 1.5; .* from 0 to 1"),
        (lambda: client_distances(np.zeros((3, 1, 2)), ONE, distance="match"), "did you mean 'matching'"),
        (lambda: client_distances(np.zeros((3, 1)), ONE), r"centres of the clients are float64 of shape \(3, 1\)"),
        (lambda: client_distances(np.zeros((3, 1, 2)), ONE[:2]), r"mask of the clients is bool of shape \(2, 1\)"),
        (lambda: client_distances(np.zeros((3, 1, 2)), ~ONE), "client 0 has no centre"),
        (lambda: client_distances(np.full((3, 1, 2), np.nan), ONE), "centres of client 0 have NaN"),
        (lambda: client_distances(np.zeros((3, 1, 2)), ONE, None, ONE), "others_mask is given without others"),
        (
            lambda: client_distances(np.zeros((3, 1, 2)), ONE, np.zeros((3, 1, 3)), ONE),
            "have 2 features and those of others 3",
        ),
        (lambda: relate(np.zeros((2, 2)), 0), "gamma is 0; it must be positive"),
        (lambda: relate(np.zeros((2, 2)), float("nan")), "gamma is nan; it must be positive"),
        (lambda: relate(np.zeros((2, 3)), 1), "must be a square matrix"),
        (lambda: flatten(np.full((2, 2), 0.5)), "must be a square matrix of 0 and 1"),
        (lambda: flatten(np.zeros((0, 0))), "of at least one client"),
        (lambda: flatten(np.zeros((2, 2))), "symmetric with a diagonal of 1"),
        (lambda: flatten(np.array([[1, 1], [0, 1]])), "symmetric with a diagonal of 1"),
        (lambda: flatten(np.eye(2), 3), "num_clusters is 3; it must be a whole number from 1 to 2"),
        (
            lambda: assign_to_nearest(np.zeros((3, 1, 2)), ONE, np.zeros((3, 1, 2)), ONE, [0, 1]),
            "one for each of the 3 clients",
        ),
        (lambda: assign_to_nearest(np.zeros((3, 1, 2)), ONE, np.zeros((3, 1, 2)), ONE, [0, 1, -1]), "from 0 on"),
    ],
)
def test_what_cannot_be(call, message):
    with pytest.raises(UserError, match=message) as error:
        call()
    assert "\n" not in str(error.value)
