"""Whether clients differ at all, and whether in groups: distances in units of a client's distance from itself.

Every client signs its examples, and two random halves of them as well. The distance of its two halves, its
*self-distance*, shows the effect of chance alone on a client of this size. It separates three answers without a number
from the user: nothing differs, there are groups, or clients differ without groups. The method is this package's own;
PACFL's text asks for it ("for IID scenarios, we expect the best fitting number of clusters to be one").

The effect of chance is estimated from the population. If the members of a cluster do not differ, their second halves
say nothing about a split that was found among their first halves: given the first halves, the second ones are
exchangeable, and so are the numbers that say for each of them which side of the split is nearer. A test of these
numbers is therefore valid, although the split was searched for. It uses their ranks, whatever their distribution, or
their means if the sides are clearly apart, or if none of several clients is in doubt, since ranks of few clients can
always be due to chance.
"""

import dataclasses
import math

import numpy as np
from scipy import stats

from tffcl.clustering import hierarchical
from tffcl.clustering.newcomers import assign_newcomers

UNIT = "self-distances"  # unit of the tree; 1 is the distance that chance gives to clients of these sizes

ALIKE, GROUPS, DIFFER, FEW = "alike", "groups", "differ", "few"  # FEW: too few clients for an answer

FEWEST = 4  # the fewest clients whose split can be tested
_RATE = 0.002  # rate of false splits, and of false answers that clients differ
_CLEAR = 1.5  # times the self-distance: sides so far apart are tested by their means, even with few clients
_SEVERAL = 3  # clients of each side: if none of so many is in doubt, means are tested, too
_MOST = 1000  # clients that tests use
# Of 628 simulated splits 60 cut through a true group, most of them below this ratio and none from `_CLEAR` on.
_BY_CHANCE = 1.2
_INSIDE = 1.05  # times the self-distance: clients of a group that are no further apart are alike


@dataclasses.dataclass(frozen=True, eq=False)
class Halves:
    """Distances of the halves of M clients, in the unit of the proximity.

    Attributes:
      first: `[M, M]`, among the first halves.
      second: `[M, M]`, among the second halves.
      across: `[M, M]`, from the first half of each to the second half of each; its diagonal has the self-distances.
    """

    first: np.ndarray
    second: np.ndarray
    across: np.ndarray


@dataclasses.dataclass(frozen=True)
class Chance:
    """The distance of two clients with the same data: scale · ((1/n + 1/m) / 2) ^ exponent, for n and m examples.

    Attributes:
      scale: The scale, in the unit of the proximity.
      exponent: About 1/2 for angles and distances, 1 for measures that grow as their squares.
    """

    scale: float
    exponent: float

    def between(self, sizes: np.ndarray) -> np.ndarray:
        """Returns `float64 [N, N]` for clients with these numbers of examples `[N]`."""
        shares = 1 / np.asarray(sizes, np.float64)
        return self.scale * (np.add.outer(shares, shares) / 2) ** self.exponent


@dataclasses.dataclass(frozen=True, eq=False)
class Verdict:
    """The result of comparing the clients' distances with their self-distances.

    Attributes:
      labels: `int32 [N]`, the clusters; a single one if nothing differs, or if clients differ without groups.
      dendrogram: The tree of the clients' distances in units of self-distances.
      threshold: The height at which it is cut.
      chance: The self-distance; None if it cannot be estimated; then the tree is in the unit of the proximity.
      kind: `ALIKE`, `GROUPS`, `DIFFER` or `FEW`.
      sentence: The answer in a sentence.
    """

    labels: np.ndarray
    dendrogram: hierarchical.Dendrogram
    threshold: float
    chance: Chance | None
    kind: str
    sentence: str


def able(sizes: np.ndarray, least: int) -> np.ndarray:
    """Returns the clients that decide, `int [M]`: those with enough examples for two halves."""
    return np.flatnonzero(np.asarray(sizes) >= 2 * least)


def judge(proximity: np.ndarray, halves: Halves | None, sizes: np.ndarray, *, least: int, linkage: str) -> Verdict:
    """Returns whether clients differ, and clusters them if they do so in groups.

    The clusters are the fewest of the tree inside which nothing differs: no cluster has a split that is found among the
    first halves of its members and confirmed by the second, or the other way round. At most √N clusters, rounded up,
    count as groups. If clients are nevertheless further from others of their cluster than from themselves, they differ
    without groups.

    Args:
      proximity: `[N, N]`, distances of the clients by all their examples.
      halves: Distances of the halves of the clients that are `able`, in their order; None if there are fewer than
        `FEWEST` of them.
      sizes: Integers `[N]`, the clients' numbers of examples.
      least: The number of examples that a half needs. Clients with fewer than twice as many do not decide, and join the
        nearest cluster.
      linkage: A name in `choices.WITH_WARD`.
    """
    sizes = np.asarray(sizes)
    if halves is None:
        tree, labels = hierarchical.build_dendrogram(proximity, linkage), np.zeros(len(sizes), np.int32)
        sentence = (
            f"too few clients to tell whether they differ: that takes {FEWEST} with {2 * least} examples or more each; "
            "one cluster"
        )
        return Verdict(labels, tree, hierarchical.threshold_for(tree, 1), None, FEW, sentence)
    deciding = able(sizes, least)
    halved = sizes[deciding] // 2
    chance = estimate_chance(halves.across.diagonal(), halved)
    scaled = proximity / chance.between(sizes)
    # Clients that do not decide are not in the tree that is cut, but in the one that is shown.
    tree = shown = hierarchical.build_dendrogram(scaled[np.ix_(deciding, deciding)], linkage)
    if len(deciding) < len(sizes):
        shown = hierarchical.build_dendrogram(scaled, linkage)
    number, kind, sentence = _answer(tree, _Tests(halves, chance.between(halved)))
    order = np.concatenate([deciding, np.setdiff1d(np.arange(len(sizes)), deciding)])
    found, labels = hierarchical.cut(tree, num_clusters=number), np.empty(len(sizes), np.int32)
    labels[order] = assign_newcomers(scaled[np.ix_(order, order)], found, threshold=np.inf, linkage=linkage)
    threshold = hierarchical.threshold_for(tree, number)
    if 1 < number < len(deciding):
        # In units of chance the ratio counts: half-way from 1 to 10 is about 3.
        made = len(deciding) - number
        threshold = float(np.sqrt(max(tree.heights[made - 1], threshold * 1e-3) * tree.heights[made]))
    return Verdict(hierarchical.by_first_member(labels), shown, threshold, chance, kind, sentence)


def _answer(tree: hierarchical.Dendrogram, tests: "_Tests") -> tuple[int, str, str]:
    """Returns the number of clusters, the kind of the answer, and the answer in a sentence."""
    clients = tree.num_leaves
    most = int(np.ceil(np.sqrt(clients)))
    for number in hierarchical.numbers_of(tree):
        labels = hierarchical.cut(tree, num_clusters=number)
        if number >= most or number * min(tests.split(labels == one) for one in range(number)) > _RATE:
            break
    apart, alike = tests.inside(labels)
    if not alike:
        everybody, _ = tests.inside(np.zeros(clients, np.int32))
        further = f"{everybody:.2f} times as far from each other as from themselves"
        further += f", {apart:.2f} times inside {number} clusters" if number > 1 else ""
        return (
            1,
            DIFFER,
            f"clients differ, but not in groups: {further}; one cluster, unless threshold or num_clusters is set",
        )
    inside = f"clients are as far from each other as from themselves, up to chance ({apart:.2f} times)"
    if number == 1:
        return 1, ALIKE, f"nothing differs: in what they have sent {inside}; one cluster"
    alone = int((np.bincount(labels) == 1).sum())
    line = f"{number} groups: {_how_clear(tree.heights[clients - number])}; inside them {inside}"
    return number, GROUPS, f"{line}; {alone} of them of a single client" if alone else line


def _how_clear(times: float) -> str:
    """Says how clearly the distance of the nearest two groups, in self-distances, is above chance."""
    line = f"the nearest two are {times:.2f} times as far from each other as chance alone puts clients"
    if times >= _CLEAR:
        return f"clearly apart, {line}"
    if times >= _BY_CHANCE:
        return f"apart by little, {line}, which may be chance"
    return f"hardly apart, {line}, which often is chance: these two may be one group; look with other seeds"


class _Tests:
    """Tests of clusters by the halves of their members."""

    def __init__(self, halves: Halves, usual: np.ndarray):
        self._first, self._second, across = halves.first / usual, halves.second / usual, halves.across / usual
        # In logarithms a factor of two counts the same for any distance; the floor keeps equal halves finite.
        self._across = np.log(across + _floor(across))
        self._looked_at = np.unique(np.linspace(0, len(across) - 1, min(len(across), _MOST)).astype(int))
        self._known: dict[bytes, float] = {}

    def split(self, members: np.ndarray) -> float:
        """The probability that chance alone would confirm the split of the members `bool [M]` as well."""
        rows = self._looked_at[members[self._looked_at]]
        if len(rows) < FEWEST:
            return 1.0
        if rows.tobytes() not in self._known:
            block = np.ix_(rows, rows)
            across = self._across[block]
            both = _confirmed(self._first[block], across), _confirmed(self._second[block], across.T)
            self._known[rows.tobytes()] = min(1.0, 2 * min(both))
        return self._known[rows.tobytes()]

    def inside(self, labels: np.ndarray) -> tuple[float, bool]:
        """The ratio of the distances of a cluster's members from each other to those from themselves, and whether it is
        due to chance."""
        rows = self._looked_at
        labels, across = labels[rows], self._across[np.ix_(rows, rows)]
        same = np.equal.outer(labels, labels) & ~np.eye(len(labels), dtype=bool)
        others = same.sum(axis=1)
        mutual = (across + across.T) / 2
        further = (np.where(same, mutual, 0).sum(axis=1) / np.maximum(others, 1) - across.diagonal())[others > 0]
        if len(further) < 2:
            return 1.0, True
        count, times = len(further), float(np.exp(further.mean()))
        by_chance = _right_tail(further.mean(), further.std(ddof=1) / np.sqrt(count), count - 1)
        if times > _CLEAR:
            # If some clients have near mates and others none, the spread of the ratios hides the difference. The spread
            # of self-distances does not; by chance alone, both distances of a client have it.
            selves = across.diagonal()
            error = selves.std(ddof=1) * np.sqrt(2 / count)
            by_chance = min(by_chance, _right_tail(further.mean(), error, len(selves) - 1))
        return times, times <= _INSIDE or by_chance > _RATE


def _confirmed(apart: np.ndarray, across: np.ndarray) -> float:
    """Splits clients by halves of one kind and tests the split by the others.

    Args:
      apart: `[m, m]`, distances among the halves of one kind.
      across: `[m, m]`, logarithms of the distances of these to the halves of the other kind.

    Returns:
      The probability that chance alone would also confirm it.
    """
    # Ward's split is even; linkages by means of pairs often split off a single odd client.
    one = hierarchical.cut(hierarchical.build_dendrogram(apart, "ward"), num_clusters=2) == 0
    nearer = across[~one].mean(axis=0) - across[one].mean(axis=0)  # how much nearer each half is to the first side
    sides, freedom = (nearer[one], nearer[~one]), len(nearer) - 2
    difference = sides[0].mean() - sides[1].mean()  # twice the logarithm of the ratio by which the sides are apart
    parted = sides[0].min() > sides[1].max() and min(map(len, sides)) >= _SEVERAL
    if difference < 2 * math.log(_CLEAR) and not parted and np.ptp(nearer) > 1e-9:
        return float(stats.mannwhitneyu(*sides, alternative="greater").pvalue)
    variance = sum(((side - side.mean()) ** 2).sum() for side in sides) / freedom
    error = np.sqrt(variance * sum(1 / len(side) for side in sides))
    return _right_tail(difference, error, freedom)


def _right_tail(difference: float, error: float, freedom: int) -> float:
    """The one-sided probability of such a difference, with this standard error, if there is none in truth."""
    if error <= 1e-9:  # all are equal up to rounding
        return float(difference <= 1e-9)
    return float(stats.t.sf(difference / error, freedom))


def estimate_chance(selves: np.ndarray, halved: np.ndarray) -> Chance:
    """Estimates the self-distance from those of clients with halves of these numbers of examples `[M]`."""
    if not len(selves) or not np.any(selves > 0):
        return Chance(1.0, 0.0)
    floor = _floor(selves)
    logarithms, shares = np.log(np.asarray(selves, np.float64) + floor), -np.log(halved)
    # Sizes that hardly differ do not show how distances depend on them.
    exponent = 0.5 if shares.std() < 0.1 else float(np.clip(np.polyfit(shares, logarithms, 1)[0], 0, 1))
    return Chance(float(np.exp((logarithms - exponent * shares).mean())), exponent)


def _floor(distances: np.ndarray) -> float:
    """A distance that is negligible beside these; it is added because 0 has no logarithm."""
    there = distances[distances > 0]
    return 1e-3 * float(np.median(there)) if len(there) else 1.0
