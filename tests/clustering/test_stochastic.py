import numpy as np
import pytest
from scipy.cluster import hierarchy
from sklearn.metrics.pairwise import cosine_distances, cosine_similarity

from tests.oracles import stocfl_clustering as oracle
from tffcl import choices
from tffcl.clustering import stochastic

NOBODY = stochastic.Partition(
    np.zeros(0, np.int32), np.zeros([0, 6], np.float32), np.zeros(0, np.int32), np.zeros(0, bool)
)


def groups(rng, sizes, spread, dimensions=6):
    """Signatures around one random direction a group, and who is of which."""
    truth = np.repeat(np.arange(len(sizes)), sizes)
    centres = rng.normal(size=[len(sizes), dimensions])
    noise = rng.normal(size=[len(truth), dimensions])
    return (centres[truth] + spread * noise).astype(np.float32), truth


def as_sets(labels):
    return sorted(np.flatnonzero(labels == each).tolist() for each in np.unique(labels))


def run(signatures, cohorts, threshold, linkage="single"):
    """Rounds of the server; yields cluster IDs [N] and the partition after each."""
    partition, labels = NOBODY, np.arange(len(signatures))
    known = np.zeros(len(signatures), bool)
    for cohort in cohorts:
        fresh = np.array([client for client in sorted(cohort) if not known[client]], int)
        partition = stochastic.with_singletons(partition, fresh, signatures[fresh])
        known[fresh] = True
        merging = stochastic.merge(partition, threshold, linkage)
        labels[known] = merging.partition.ids[merging.places[np.searchsorted(partition.ids, labels[known])]]
        partition = merging.partition
        yield labels.copy(), partition


@pytest.mark.parametrize("threshold", [-1, 0.3, 0.7, 0.9, 0.97, 1])
@pytest.mark.parametrize("seed", range(4))
def test_rounds_are_those_of_the_printed_algorithm(seed, threshold, monkeypatch):
    """Which compares every pair in every round; strips of one row at a time must not matter."""
    monkeypatch.setattr(stochastic, "_STRIP", 1 if seed % 2 else 2**22)
    rng = np.random.default_rng(seed)
    signatures, _ = groups(rng, [9, 7, 8], 0.5)
    cohorts = [rng.choice(24, 6, replace=False) for _ in range(8)]
    server = oracle.Server(24, signatures, threshold)
    for cohort, (labels, partition) in zip(cohorts, run(signatures, cohorts, threshold)):
        server.round(cohort)
        assert as_sets(labels) == sorted(server.clusters)
        assert stochastic.objective(partition.sums) == pytest.approx(server.objective(), abs=1e-4)
        np.testing.assert_array_equal(partition.sizes, [np.sum(labels == each) for each in partition.ids])
        assert all(each == np.flatnonzero(labels == each).min() for each in partition.ids)
        for each, total in zip(partition.ids, partition.sums):
            np.testing.assert_allclose(total, signatures[labels == each].sum(axis=0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_all_at_once_is_single_linkage(seed):
    signatures, _ = groups(np.random.default_rng(seed), [12, 8, 10], 0.6)
    merges = hierarchy.linkage(signatures.astype(float), "single", "cosine")
    for cut in (0.01, 0.05, 0.2, 0.5, 0.9):
        expected = as_sets(hierarchy.fcluster(merges, cut, "distance"))
        ((labels, _),) = run(signatures, [range(30)], 1 - cut)
        assert as_sets(labels) == expected


@pytest.mark.parametrize("spread, threshold", [(0.2, 0.8), (0.5, 0.8), (0.5, 0.6), (1.0, 0.9)])
def test_centroid_linkage_is_greedy_where_groups_are_clear_and_ends_where_no_pair_is_left(spread, threshold):
    for seed in range(6):
        signatures, truth = groups(np.random.default_rng(seed), [6, 6, 6], spread, 40)
        nobody = stochastic.Partition(NOBODY.ids, np.zeros([0, 40], np.float32), NOBODY.sizes, NOBODY.changed)
        partition = stochastic.with_singletons(nobody, np.arange(18), signatures)
        merging = stochastic.merge(partition, threshold, "centroid")
        left = cosine_similarity(merging.partition.sums) - 2 * np.eye(len(merging.partition))
        assert left.max(initial=-2) <= threshold
        found = as_sets(merging.places)
        assert found == oracle.greedy(signatures, threshold)
        if spread == 0.2:
            assert found == as_sets(truth)
        assert not merging.partition.changed.any()


def test_models_that_nobody_has_trained_are_averaged_by_members():
    """Two clusters of one and three newcomers, beside one that has trained."""
    partition = stochastic.Partition(np.arange(3), np.eye(3, dtype=np.float32), np.array([2, 1, 3]), np.zeros(3, bool))
    trained, signatures = np.arange(6) < 2, np.zeros((6, 3), np.float32)
    known = stochastic.KnownClients(np.ones(6, bool), trained, signatures, partition, np.array([1, 2, 3], np.int32))
    models = np.array([[9, 9], [1, 2], [4, 0], [0, 8]], np.float32)
    found, rows = known.merged_models(models, np.array([0, 0, 1, 2, 2, 2]), np.array([0, 1, 1]), 2, "mean")
    np.testing.assert_array_equal(found[rows], [[1, 2], [1, 6]])


@pytest.mark.parametrize("linkage", choices.MERGE_RULES)
def test_a_cosine_equal_to_the_threshold_does_not_merge(linkage):
    """In float32, in which it is a little above the 0.3 of float64."""
    signatures = np.array([[0, -2, -1, -1, 2, 0], [2, -2, -1, 0, -1, 0]], np.float32)
    partition = stochastic.with_singletons(NOBODY, np.arange(2), signatures)
    assert [stochastic.merge(partition, tau, linkage).merges for tau in (0.3, 0.2999)] == [0, 1]


def test_centroid_linkage_looks_again_at_pairs_that_others_came_before():
    """Four directions: the second is nearest to the first, and so is the third, whose next, the fourth, is left to it
    when the first two have merged, and is within the 36 degrees of the threshold."""
    angles = np.radians([0.0, -20.0, 31.0, 66.0])
    signatures = np.stack([np.cos(angles), np.sin(angles), *np.zeros((4, 4))], axis=1).astype(np.float32)
    partition = stochastic.with_singletons(NOBODY, np.arange(4), signatures)
    found = stochastic.merge(partition, float(np.cos(np.radians(36))), "centroid")
    assert found.places.tolist() == [0, 0, 1, 1]


def test_centroid_linkage_is_not_led_astray_by_one_pair():
    """Two wide groups with one pair between them above τ: single linkage joins them, averaging does not."""
    rng = np.random.default_rng(0)
    signatures, truth = groups(rng, [20, 20], 1.0, 40)
    cosines = cosine_similarity(signatures)
    threshold = cosines[:20, 20:].max() - 1e-3
    nobody = stochastic.Partition(NOBODY.ids, np.zeros([0, 40], np.float32), NOBODY.sizes, NOBODY.changed)
    partition = stochastic.with_singletons(nobody, np.arange(40), signatures)
    for linkage in choices.MERGE_RULES:
        places = stochastic.merge(partition, threshold, linkage).places
        mixed = any(len(set(truth[places == each])) > 1 for each in np.unique(places))
        assert mixed == (linkage == "single")


def test_the_lowest_threshold_is_below_the_cosines_of_opposite_vectors():
    """Rounding puts some of them below -1."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        first = rng.normal(size=(1, 40)).astype(np.float32)
        both = np.concatenate([first, -first * np.float32(rng.uniform(0.5, 2))])
        nobody = stochastic.Partition(NOBODY.ids, np.zeros([0, 40], np.float32), NOBODY.sizes, NOBODY.changed)
        partition = stochastic.with_singletons(nobody, np.arange(2), both)
        for linkage in choices.MERGE_RULES:
            assert len(stochastic.merge(partition, -1.0, linkage).partition) == 1
        assert len(stochastic.merge_sampled(partition, np.arange(2), both, -1.0).partition) == 1
        one = stochastic.with_singletons(nobody, np.arange(1), both[:1])
        assert stochastic.infer(one, both[1:], -1.0).founded.tolist() == [-1]


def test_centroid_linkage_in_strips(monkeypatch):
    signatures, _ = groups(np.random.default_rng(3), [9, 9, 9], 0.8)
    whole = [labels for labels, _ in run(signatures, [range(0, 27, 2), range(27)], 0.7, "centroid")]
    monkeypatch.setattr(stochastic, "_STRIP", 1)
    parts = [labels for labels, _ in run(signatures, [range(0, 27, 2), range(27)], 0.7, "centroid")]
    np.testing.assert_array_equal(whole, parts)


def test_equal_directions_merge_at_every_threshold_below_1_and_never_at_1():
    signatures = np.ones([7, 6], np.float32) * np.arange(1, 8, dtype=np.float32)[:, None]
    for linkage in choices.MERGE_RULES:
        assert len({*next(run(signatures, [range(7)], 0.9999, linkage))[0]}) == 1
        assert len({*next(run(signatures, [range(7)], 1, linkage))[0]}) == 7


def test_what_merged_is_compared_anew_in_the_next_round():
    """Two at a cosine of 0.5 merge; a third, at 0.4 to each, is at 0.8 / sqrt(3) = 0.46 to their mean, above
    τ = 0.45.
    """
    gram = np.array([[1, 0.5, 0.4], [0.5, 1, 0.4], [0.4, 0.4, 1]])
    signatures = np.zeros([3, 6], np.float32)
    signatures[:, :3] = np.linalg.cholesky(gram)
    first, second = (labels for labels, _ in run(signatures, [range(3), [2]], 0.45))
    assert first.tolist() == [0, 0, 2] and second.tolist() == [0, 0, 0]
    server = oracle.Server(3, signatures, 0.45)
    for cohort, labels in (([0, 1, 2], first), ([2], second)):
        server.round(cohort)
        assert sorted(server.clusters) == as_sets(labels)
    assert len(set(next(run(signatures, [range(3)], 0.45, "centroid"))[0])) == 1


def test_a_signature_of_zeros_is_alike_to_nobody():
    signatures = np.eye(3, 6, dtype=np.float32)
    signatures[1] = 0
    labels, _ = next(run(signatures, [range(3)], 0.0))
    assert len(set(labels)) == 3
    np.testing.assert_array_equal(stochastic.cosine_distances(signatures), 1 - np.eye(3))


def test_clusters_of_absent_clients_are_not_compared_again(monkeypatch):
    rng = np.random.default_rng(0)
    signatures, _ = groups(rng, [5, 5], 0.1)
    rounds = run(signatures, [range(6), [1, 2], [7]], 0.9)
    next(rounds)
    next(rounds)  # here the clusters that merged in the first round are compared
    looked = []
    real = stochastic.connected
    monkeypatch.setattr(
        stochastic, "connected", lambda units, touched, tau: looked.append(len(touched)) or real(units, touched, tau)
    )
    next(rounds)
    assert looked == [1]


def test_merging_by_the_cohort_only_is_the_authors_way():
    """Clusters are judged by the sampled members alone; those that are not sampled are left alone."""
    east, north = np.array([1.0, 0]), np.array([0, 1.0])
    signatures = np.stack([east, east, north, east + 0.1 * north, north]).astype(np.float32)
    partition = stochastic.Partition(
        np.array([0, 2, 4], np.int32),
        np.stack([signatures[[0, 1, 3]].sum(0), signatures[2], signatures[4]]),
        np.array([3, 1, 1], np.int32),
        np.zeros(3, bool),
    )
    merging = stochastic.merge_sampled(partition, np.array([0, 2]), signatures[[3, 2]], 0.05)
    np.testing.assert_array_equal(merging.places, [0, 0, 1])
    np.testing.assert_array_equal(merging.partition.ids, [0, 4])
    np.testing.assert_array_equal(merging.partition.sizes, [4, 1])
    assert stochastic.merge_sampled(partition, np.array([0, 2]), signatures[[0, 2]], 0.05).merges == 0


def test_models_merge_by_members_or_the_larger_wins():
    models = np.arange(12, dtype=np.float32).reshape(4, 3) ** 2
    places, merged = stochastic.merge_models(models, np.array([1, 3, 2, 2]), np.array([5, 5, 8, 8]), "mean")
    np.testing.assert_array_equal(places, [5, 8])
    np.testing.assert_allclose(merged, [(models[0] + 3 * models[1]) / 4, (models[2] + models[3]) / 2])
    _, larger = stochastic.merge_models(models, np.array([1, 3, 2, 2]), np.array([5, 5, 8, 8]), "larger")
    np.testing.assert_array_equal(larger, models[[1, 2]])


@pytest.mark.parametrize("seed", range(3))
def test_newcomers_join_the_closest_or_found_clusters(seed):
    rng = np.random.default_rng(seed)
    signatures, _ = groups(rng, [8, 8], 0.1)
    *_, (_, partition) = run(signatures, [range(16)], 0.9)
    strangers, _ = groups(rng, [3, 2], 0.05)
    arrivals = np.concatenate([signatures[:2] + 0.01, strangers])
    cosines = cosine_similarity(arrivals, partition.sums)
    threshold = 0.9
    found = stochastic.infer(partition, arrivals, threshold)
    np.testing.assert_array_equal(found.closest, cosines.argmax(axis=1))
    np.testing.assert_array_equal(found.founded < 0, cosines.max(axis=1) >= threshold)
    alone = np.flatnonzero(found.founded >= 0)
    merges = hierarchy.linkage(arrivals[alone].astype(float), "single", "cosine")
    assert as_sets(found.founded[alone]) == as_sets(hierarchy.fcluster(merges, 1 - threshold, "distance"))
    mirrored = stochastic.infer(partition, arrivals[::-1], threshold)
    assert as_sets(mirrored.founded[::-1][alone]) == as_sets(found.founded[alone])


def test_a_cluster_that_newcomers_join_is_compared_again():
    """Their signatures have turned it: at first a cosine of 0.6 holds it apart from the other."""
    known = np.array([[1, 0], [0.6, 0.8]], np.float32)
    partition = stochastic.Partition(np.arange(2), known, np.ones(2, np.int32), np.zeros(2, bool))
    assert len(stochastic.merge(partition, 0.9).partition) == 2
    joined = stochastic.with_members(partition, np.array([0]), np.array([[0.8, 0.6]], np.float32))
    assert joined.changed.tolist() == [True, False] and joined.sizes.tolist() == [2, 1]
    assert len(stochastic.merge(joined, 0.81).partition) == 1


def test_a_newcomer_at_exactly_the_threshold_joins():
    """Section 3.3 says d >= τ, where line 14 of Alg. 1 merges above τ."""
    known = np.array([[1, 0, 0, 0]], np.float32)
    newcomers = np.array([[1, 1, 1, 1], [0, 1, 0, 0]], np.float32)  # cosines of 1/2 and 0
    one = stochastic.Partition(np.arange(1), known, np.ones(1, np.int32), np.ones(1, bool))
    for threshold, founded in [(0.0, [-1, -1]), (0.5, [-1, 0]), (0.51, [0, 1])]:
        assert stochastic.infer(one, newcomers, threshold).founded.tolist() == founded
    both = stochastic.with_singletons(one, np.arange(1, 3), newcomers)
    assert len(stochastic.merge(both, 0.5).partition) == 3


@pytest.mark.parametrize("seed", range(3))
def test_a_newcomer_of_a_known_signature_joins_at_any_threshold(seed):
    """Its cosine is 1, and rounding must not decide."""
    signatures = np.random.default_rng(seed).standard_normal((6, 500)).astype(np.float32)
    known = stochastic.Partition(np.arange(6), signatures, np.ones(6, np.int32), np.ones(6, bool))
    found = stochastic.infer(known, 3 * signatures, 1.0)
    assert found.closest.tolist() == list(range(6)) and found.founded.tolist() == [-1] * 6


def test_cosine_distances_are_scikit_learns():
    rng = np.random.default_rng(1)
    first, second = rng.normal(size=[9, 20]).astype(np.float32), rng.normal(size=[4, 20]).astype(np.float32)
    np.testing.assert_allclose(stochastic.cosine_distances(first), cosine_distances(first), atol=1e-6)
    np.testing.assert_allclose(stochastic.cosine_distances(first, second), cosine_distances(first, second), atol=1e-6)


def test_what_is_known_of_clients_is_in_the_order_of_their_places_whenever_they_came():
    known = stochastic.KnownClients.nobody(5, 2)
    for came in ([1, 4], [2]):
        signed = np.repeat(np.array(came, np.float32)[:, np.newaxis], 2, axis=1)
        known = known.with_clients(np.array(came), signed, known.partition, known.rows)
    assert known.signatures[:, 0].tolist() == [1, 2, 4] and known.mask.tolist() == [False, True, True, False, True]
    assert known.signatures_of(np.array([4, 1]))[:, 1].tolist() == [4, 1]
    grown = known.with_strangers(2, np.array([5, 0, 1, 2, 6, 3, 4]))
    assert np.flatnonzero(grown.mask).tolist() == [2, 3, 6] and len(grown.trained) == 7
    assert grown.signatures_of(np.array([6, 3]))[:, 0].tolist() == [4, 2]
