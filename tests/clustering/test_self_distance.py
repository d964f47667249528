"""Whether clients differ, and in groups: signatures that are means of Gaussian examples, so that chance is
what it is.
"""

import re

import numpy as np
import pytest
from scipy import stats
from scipy.spatial.distance import cdist

from tffcl.clustering import self_distance
from tffcl.clustering.hierarchical import Dendrogram, build_dendrogram, group, numbers_of
from tffcl.clustering.self_distance import ALIKE, DIFFER, FEW, GROUPS, Chance, Halves, able, estimate_chance, judge

FEATURES = 20


def judged(centres, sizes, seed=0, *, least=1, linkage="average"):
    """The verdict on clients whose examples are Gaussian around centres [N, FEATURES]."""
    rng, sizes = np.random.default_rng(seed), np.asarray(sizes)
    halved = np.maximum(sizes // 2, 1)[:, None]
    first, second = (centres + rng.normal(size=(len(sizes), FEATURES)) / np.sqrt(halved) for _ in range(2))
    whole = (first + second) / 2
    rows = able(sizes, least)
    halves = None
    if len(rows) >= self_distance.FEWEST:
        halves = Halves(
            *(cdist(one[rows], other[rows]) for one, other in ((first, first), (second, second), (first, second)))
        )
    return judge(cdist(whole, whole), halves, sizes, least=least, linkage=linkage)


def in_groups(clients, groups, apart, seed=0):
    """Centres of clients in groups one after the other, the groups' centres some `apart` times a unit of
    examples' noise.
    """
    centres = np.random.default_rng(100 + seed).normal(size=(groups, FEATURES))
    return apart * (centres / np.linalg.norm(centres, axis=1, keepdims=True))[np.arange(clients) % groups]


def sizes_of(how, clients, seed):
    if isinstance(how, int):
        return np.full(clients, how)
    return np.clip(np.random.default_rng(seed).lognormal(5, 1, clients), 8, 3000).astype(int)


@pytest.mark.parametrize("sizes", [30, 300, "unequal"], ids=str)
@pytest.mark.parametrize("clients", [5, 12, 60])
def test_clients_that_do_not_differ_are_one_cluster(clients, sizes):
    found = [judged(np.zeros((clients, FEATURES)), sizes_of(sizes, clients, seed), seed).kind for seed in range(20)]
    assert found.count(ALIKE) >= 19, found


@pytest.mark.parametrize("linkage", ["average", "complete", "ward"])
@pytest.mark.parametrize("sizes", [100, "unequal"], ids=str)
@pytest.mark.parametrize("clients, groups", [(12, 2), (12, 3), (40, 4)])
def test_groups_are_found_without_a_number(clients, groups, sizes, linkage):
    verdict = judged(in_groups(clients, groups, 2.0), sizes_of(sizes, clients, 1), linkage=linkage)
    assert verdict.kind == GROUPS and verdict.labels.tolist() == [client % groups for client in range(clients)]
    assert verdict.sentence.startswith(f"{groups} groups: clearly apart, the nearest two are ")
    # The threshold is one of the tree, and cuts it into these clusters.
    assert verdict.dendrogram.heights[-groups] < verdict.threshold < verdict.dendrogram.heights[clients - groups]


def test_weak_groups_need_more_clients_and_no_constant():
    """The groups merge at 1.3 times what chance does, which a tree of clients in one group may reach too."""
    verdict = judged(in_groups(60, 3, 0.6), sizes_of(50, 60, 0))
    assert verdict.kind == GROUPS and verdict.labels.max() == 2
    assert verdict.dendrogram.heights[-2] < 1.6


@pytest.mark.parametrize(
    "clients, apart, said",
    [
        (60, 0.45, r"2 groups: apart by little, the nearest two are 1\.2\d times .*, which may be chance; inside"),
        (120, 0.35, r"4 groups: hardly apart, .* 1\.1\d times .*, which often is chance: these two may be one group"),
    ],
)
def test_groups_that_chance_may_have_parted_are_told_so(clients, apart, said):
    """There are two groups in both; of the second clients one split more is a chance."""
    assert re.match(said, judged(in_groups(clients, 2, apart), sizes_of(50, clients, 0)).sentence)


@pytest.mark.parametrize("seed", range(5))
def test_clients_that_differ_without_groups_are_told_so(seed):
    centres = np.random.default_rng(seed).normal(size=(40, FEATURES)) / 3
    verdict = judged(centres, sizes_of(200, 40, seed), seed)
    assert verdict.kind == DIFFER and not verdict.labels.any()
    assert "clients differ, but not in groups" in verdict.sentence


@pytest.mark.parametrize("groups", [[0, 0, 1, 1, 2], [1, 1, 2, 3, 1], [0, 1, 1, 2, 2]], ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_of_few_clients_nobody_is_put_to_others_that_are_far_from_it(groups, seed):
    """Some have near mates and others none: their spread is no chance."""
    centres = 20 * np.random.default_rng(seed).normal(size=(4, FEATURES))[groups]
    verdict = judged(centres, np.full(5, 300), seed)
    found = len(np.unique(verdict.labels))
    assert (verdict.kind, found) in ((DIFFER, 1), (GROUPS, 3)), verdict.sentence


def test_clients_with_too_few_examples_decide_nothing_and_join_the_nearest_group():
    """One with a single example is far from everybody by chance, and hides no group."""
    sizes = np.full(13, 100)
    sizes[5] = 1
    verdict = judged(in_groups(13, 2, 4.0), sizes, least=3)
    assert verdict.kind == GROUPS and verdict.labels.tolist() == [client % 2 for client in range(13)]
    few = judged(in_groups(13, 2, 4.0), np.full(13, 5), least=3)
    assert few.kind == FEW and not few.labels.any() and "that takes 4 with 6 examples or more each" in few.sentence
    assert judged(np.zeros((1, FEATURES)), [100]).kind == FEW


def test_a_lone_client_that_is_far_from_all_others_is_a_cluster():
    centres = np.zeros((20, FEATURES))
    centres[7, 0] = 5
    verdict = judged(centres, np.full(20, 100))
    assert verdict.kind == GROUPS and np.flatnonzero(verdict.labels).tolist() == [7]
    assert verdict.sentence.endswith("; 1 of them of a single client")


def test_signatures_without_any_chance_in_them():
    """Clients of one label each: halves are equal, and so are clients of one label."""
    labels = np.repeat([0, 1, 2], 5)
    apart = 1.0 - np.equal.outer(labels, labels)
    verdict = judge(apart, Halves(apart, apart, apart), np.full(15, 50), least=1, linkage="average")
    assert verdict.kind == GROUPS and verdict.labels.tolist() == labels.tolist()
    nothing = np.zeros((15, 15))
    verdict = judge(nothing, Halves(nothing, nothing, nothing), np.full(15, 50), least=1, linkage="average")
    assert verdict.kind == ALIKE and not verdict.labels.any()


@pytest.mark.parametrize("exponent", [0.5, 1.0])
def test_the_law_of_chance_is_found_from_clients_of_different_sizes(exponent):
    sizes = np.geomspace(10, 1000, 30)
    noise = np.exp(np.random.default_rng(0).normal(size=30) / 50)
    chance = estimate_chance(Chance(7.0, exponent).between(sizes).diagonal() * noise, sizes)
    assert chance.exponent == pytest.approx(exponent, abs=0.02) and chance.scale == pytest.approx(7, rel=0.1)
    assert estimate_chance(np.full(5, 3.0), np.full(5, 25)).between(np.array([25]))[0, 0] == pytest.approx(
        3.0, rel=0.01
    )


def test_chance_puts_clients_of_unequal_sizes_apart_by_the_mean_of_their_shares():
    found = Chance(7.0, 0.5).between(np.array([50, 200]))
    assert found[0, 1] == found[1, 0] == pytest.approx(7 * ((1 / 50 + 1 / 200) / 2) ** 0.5)


def test_more_groups_than_the_root_of_the_number_of_clients_are_none():
    """Four clients a group; of 24 there are six groups, one more than √24 rounded up, of 16 four."""
    verdicts = [judged(in_groups(4 * groups, groups, 3.0), sizes_of(300, 4 * groups, 0)) for groups in (6, 4)]
    assert [each.kind for each in verdicts] == [DIFFER, GROUPS]
    assert [each.labels.max() for each in verdicts] == [0, 3]


def test_numbers_of_clusters_that_some_threshold_gives():
    line = np.abs(np.subtract.outer([0.0, 0, 0, 1, 1, 5], [0.0, 0, 0, 1, 1, 5]))
    assert numbers_of(build_dendrogram(line)) == [1, 2, 3]
    assert numbers_of(Dendrogram(np.array([[0, 1, 1, 2], [3, 2, 1 + 1e-9, 2], [4, 5, 5, 4]]), "average")) == [1, 2, 4]
    labels, _, threshold = group(line, "average", None, 5)
    assert labels.tolist() == [0, 0, 0, 1, 1, 2] and 0 < threshold < 1


def test_a_split_of_several_clusters_must_be_the_clearer_the_more_there_are():
    """Of two clusters either may have one by chance."""

    class AlwaysSplit:
        split = staticmethod(lambda members: 0.75 * self_distance._RATE)
        inside = staticmethod(lambda labels: (1.0, True))

    points = np.random.default_rng(0).normal(size=(16, 3))
    number, kind, _ = self_distance._answer(build_dendrogram(cdist(points, points)), AlwaysSplit)
    assert (number, kind) == (2, GROUPS)


def halves_of(across, sides, usual=1.0):
    """Halves of either kind that are in two clear groups, `sides bool [m]`, at such distances across, in `usual`
    ones."""
    apart = np.where(np.equal.outer(sides, sides), 1.0, 9.0) - np.eye(len(sides))
    return Halves(apart * usual, apart * usual, across * usual)


def logarithms(across):
    return np.log(across + 1e-3 * np.median(across))


@pytest.mark.parametrize("apart, by_means", [(1.3, False), (1.4, True)])
def test_a_split_is_tested_by_the_halves_that_it_was_not_found_in(apart, by_means):
    """By ranks where the sides are near each other, and else by their means, with the pooled variance."""
    sides = np.arange(11) % 3 == 0
    noise = np.exp(0.6 * np.random.default_rng(2).normal(size=(11, 11)))
    across = noise * np.where(np.equal.outer(sides, sides), 1.0, apart)
    found = []
    for table in (logarithms(across), logarithms(across).T):
        nearer = table[~sides].mean(axis=0) - table[sides].mean(axis=0)
        one, other = nearer[sides], nearer[~sides]
        assert one.min() < other.max()  # some are in doubt
        test = stats.ttest_ind if by_means else stats.mannwhitneyu
        found.append(test(one, other, alternative="greater").pvalue)
    assert max(found) > 1.2 * min(found)
    for each in (across, across.T):
        tests = self_distance._Tests(halves_of(each, sides), np.ones((11, 11)))
        assert tests.split(np.ones(11, bool)) == pytest.approx(min(1, 2 * min(found)), rel=1e-6)
    assert tests.split(np.arange(11) < 3) == 1  # too few to be split
    chance = np.append(np.ones(10), 200.0)  # puts the last, of one example, far from all
    usual = np.add.outer(chance, chance)
    scaled = self_distance._Tests(halves_of(across, sides, usual), usual)
    assert scaled.split(np.ones(11, bool)) == pytest.approx(min(1, 2 * min(found)), rel=1e-6)


def test_several_clients_of_whom_none_is_in_doubt_are_tested_by_their_means_though_they_are_near():
    """Three on either side have no ranks that chance has not."""
    for few, by_means in ((3, True), (2, False)):
        sides = np.arange(7) < few
        across = np.where(np.equal.outer(sides, sides), 1.0, 1.2) * np.linspace(0.99, 1.01, 49).reshape(7, 7)
        table = logarithms(across)
        nearer = table[~sides].mean(axis=0) - table[sides].mean(axis=0)
        test = stats.ttest_ind if by_means else stats.mannwhitneyu
        found = self_distance._confirmed(halves_of(across, sides).first, table)
        assert found == pytest.approx(test(nearer[sides], nearer[~sides], alternative="greater").pvalue, rel=1e-6)


@pytest.mark.parametrize(
    "further, by_chance",
    [
        (np.linspace(0.02, 0.5, 5), True),  # a probability of 0.012
        (np.linspace(0.11, 0.41, 5), True),  # of 0.0025: more than one in 500
        (np.linspace(0.13, 0.39, 5), False),  # of 0.0015
        (np.linspace(0.047, 0.0475, 5), True),  # less than 1.05 times as far is nothing
        (np.linspace(0.05, 0.0505, 5), False),
    ],
)
def test_members_of_a_group_are_as_far_from_each_other_as_from_themselves_by_a_plain_t_test(further, by_chance):
    """Each client with its mates, and those that have none not at all; `further` in logarithms."""
    labels = np.array([0, 0, 1, 1, 1, 2])
    of = np.append(further, 9.0)
    mates = np.equal.outer(labels, labels)
    table = np.where(mates, of[:, np.newaxis], 7.0)  # the same to all of its mates
    skew = np.triu(np.random.default_rng(0).normal(size=(6, 6)), 1)  # what one direction has more, the other has less
    table = np.where(mates, (table + table.T) / 2, table) + skew - skew.T
    np.fill_diagonal(table, 0.0)
    table -= 0.2  # of all, from themselves too
    tests = self_distance._Tests(halves_of(np.exp(table), labels == 0), np.ones((6, 6)))
    tests._across = table
    mutual = (table + table.T) / 2
    own = np.array([np.delete(mutual[i], i)[np.delete(mates[i], i)].mean() - mutual[i, i] for i in range(5)])
    times, alike = tests.inside(labels)
    assert times == pytest.approx(np.exp(own.mean()))
    expected = stats.ttest_1samp(own, 0, alternative="greater").pvalue
    assert alike == by_chance == (times <= 1.05 or expected > 0.002), expected


@pytest.mark.parametrize("short_of, alike", [(0.97, True), (1.03, False)])
def test_pairs_of_which_some_are_far_apart_are_measured_by_the_spread_of_self_distances(short_of, alike):
    """The mean of six distances is then compared with that of six self-distances, all of the same spread: by the error
    of the difference of two means."""
    labels, selves = np.array([0, 0, 1, 1, 2, 2]), np.linspace(-0.4, 0.4, 6)
    error = 1 / stats.ttest_ind_from_stats(1, selves.std(ddof=1), 6, 0, selves.std(ddof=1), 6).statistic
    mean = short_of * stats.t.isf(0.002, 5) * error
    table = np.full((6, 6), 9.0)
    for pair, apart in enumerate((mean - 1, mean, mean + 1)):
        table[2 * pair : 2 * pair + 2, 2 * pair : 2 * pair + 2] = apart
    np.fill_diagonal(table, selves)
    further = (table[np.arange(6), [1, 0, 3, 2, 5, 4]]) - selves
    assert stats.ttest_1samp(further, 0, alternative="greater").pvalue > 0.002  # which their own spread does not tell
    tests = self_distance._Tests(halves_of(np.ones((6, 6)), labels == 0), np.ones((6, 6)))
    tests._across = table
    assert tests.inside(labels) == (pytest.approx(np.exp(mean)), alike)
