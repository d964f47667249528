"""Agglomerative hierarchical clustering of a proximity matrix, and the choice of its cut.

Source: PACFL (AAAI 2023), Alg. 1 line 11, HC(A, beta); Müllner, "Modern hierarchical, agglomerative
clustering algorithms", arXiv:1109.2378 (2011), for the algorithms behind SciPy's linkage.
"""

import dataclasses

import numpy as np
from scipy import sparse
from scipy.cluster import hierarchy
from scipy.sparse import csgraph
from scipy.spatial import distance

from tffcl.choices import GAP, WITH_WARD
from tffcl.clustering.stochastic import cosine_distances
from tffcl.errors import UserError, unknown

# Asymmetry and diagonal entries up to this, relative to the largest entry, count as float32 rounding.
_RELATIVE_TOLERANCE = 1e-5

# The number of rows of the matrix that are compared with their mirror image at a time.
_STRIP = 256

# In a ratio of two heights, a height counts as at least this part of the highest one. Ratios of tiny heights are noise,
# and ratios to 0 are undefined.
_HEIGHT_FLOOR = 0.1

# The first merges join the few nearest pairs of many; ratios of such extremes are noise. A suggestion merges away at
# least one in this many clients.
_CLIENTS_PER_MERGE = 3

# Below the first ratio the reason says that no gap stands out, below the second that the clients look alike. Trees in
# which groups are parts of larger groups are also between them: e.g. images turned by 0 and 180 degrees are nearer to
# each other than to those turned by 90.
_CLEAR_RATIO, _ALIKE_RATIO = 1.5, 1.2

# Heights with a ratio up to this are equal up to float32 rounding.
_EQUAL_RATIO = 1.0 + 1e-6


@dataclasses.dataclass(frozen=True, eq=False)
class Dendrogram:
    """All merges of N leaves, lowest first.

    Attributes:
      merges: Float64 [N - 1, 4], SciPy's linkage matrix: the two nodes merged (leaves are 0..N-1, merge k
        makes node N + k), the height of the merge (unit of the proximity), and the number of leaves below.
      linkage: One of `WITH_WARD`.
    """

    merges: np.ndarray
    linkage: str

    @property
    def num_leaves(self) -> int:
        return len(self.merges) + 1

    @property
    def heights(self) -> np.ndarray:
        """Float64 [N - 1]: the heights of the merges, ascending."""
        return self.merges[:, 2]


@dataclasses.dataclass(frozen=True)
class Suggestion:
    """Where to cut a dendrogram.

    Attributes:
      threshold: Merges up to this height are made (unit of the proximity).
      num_clusters: The number of clusters that this gives.
      ratio: Height of the first merge not made divided by that of the last one made, both floored; 1 if there was
        nothing to compare.
      reason: One sentence for people.
    """

    threshold: float
    num_clusters: int
    ratio: float
    reason: str

    @property
    def is_clear(self) -> bool:
        """Whether the gap stands out, or there is none: if so, the threshold is advice, else only a place to look."""
        return self.ratio >= _CLEAR_RATIO or self.num_clusters == 1

    @property
    def doubts(self) -> tuple[str, ...]:
        """The reason, if it shows no groups or no clear ones; else nothing."""
        return () if self.is_clear and self.num_clusters > 1 else (self.reason,)


def check_proximity(proximity: np.ndarray) -> np.ndarray:
    """Returns the proximity matrix as an array.

    Args:
      proximity: Numbers [N, N], dissimilarities: symmetric, not negative, zero diagonal. N may be 0.

    Raises:
      UserError: If it is anything else. Up to 1e-5 of the largest entry counts as rounding.
    """
    matrix = np.asarray(proximity)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.dtype.kind not in "fiu":
        raise UserError(f"proximity is {matrix.dtype} of shape {matrix.shape}; it must be a square matrix of numbers")
    if not np.isfinite(matrix).all():
        raise UserError("proximity has NaN or infinite entries; all must be finite")
    tolerance = _RELATIVE_TOLERANCE * float(matrix.max(initial=0))
    if matrix.min(initial=0) < -tolerance:
        raise UserError(f"proximity has negative entries (least: {matrix.min():.6g}); 0 means alike")
    if np.abs(matrix.diagonal()).max(initial=0) > tolerance:
        raise UserError("proximity has a diagonal that is not zero; a client is at 0 from itself")
    _check_symmetry(matrix, tolerance)
    return matrix


def check_linkage(linkage: str):
    """Raises UserError if a linkage is unknown."""
    if linkage not in WITH_WARD:
        raise unknown("linkage", linkage, WITH_WARD)


def check_threshold(threshold: float) -> float:
    """Returns the threshold as a float; infinity merges everything.

    Raises:
      UserError: If it is negative, NaN or not a number.
    """
    try:
        value = float(threshold)
    except (TypeError, ValueError):
        value = float("nan")
    if not value >= 0:
        raise UserError(f"threshold is {threshold!r}; it must be a number from 0 on")
    return value


def build_dendrogram(proximity: np.ndarray, linkage: str = "average") -> Dendrogram:
    """Merges the two nearest clusters until one is left.

    Args:
      proximity: Numbers [N, N], N >= 1: dissimilarities in any unit; see `check_proximity`.
      linkage: One of `WITH_WARD`, which defines the distance between two clusters. "ward" takes the dissimilarities as
        Euclidean distances (the formula of Lance and Williams). With every linkage the merge heights never decrease.

    Raises:
      UserError: For an unknown linkage, or a matrix that is not a proximity of at least one client.
    """
    check_linkage(linkage)
    matrix = check_proximity(proximity)
    if len(matrix) == 0:
        raise UserError("proximity has no clients; it must have at least one")
    if len(matrix) == 1:
        return Dendrogram(np.zeros((0, 4)), linkage)
    condensed = distance.squareform(matrix, checks=False)
    return Dendrogram(hierarchy.linkage(np.maximum(condensed, 0, out=condensed), method=linkage), linkage)


def build_ward_dendrogram(rows: np.ndarray) -> Dendrogram:
    """Merges the two clusters whose union adds least to the sum of squared distances to the means (Ward).

    It takes points, not a proximity matrix: Ward's method is defined for Euclidean distances between points,
    which angles and dissimilarities in general are not. Hence "ward" is in `WITH_WARD` and not in `LINKAGES`.

    Args:
      rows: Bools or numbers [N, d], N >= 1: a point per leaf.

    Returns:
      A dendrogram with the linkage "ward". The height of a merge of two leaves is their Euclidean distance; that
      of clusters a and b is sqrt(2 |a| |b| / (|a| + |b|)) times the distance of their means. The heights
      never decrease, and equal rows merge first, at exactly 0.

    Raises:
      UserError: If the rows are anything else.
    """
    rows = np.asarray(rows)
    if rows.ndim != 2 or len(rows) == 0 or rows.dtype.kind not in "bfiu" or not np.isfinite(rows).all():
        raise UserError(
            f"rows are {rows.dtype} of shape {rows.shape}; they must be finite numbers of shape [leaves, "
            "features] with at least one leaf"
        )
    if len(rows) == 1:
        return Dendrogram(np.zeros((0, 4)), "ward")
    points = rows.astype(np.float64)
    if rows.dtype.kind == "f":
        condensed = distance.pdist(points)
    else:
        # Whole numbers: exact, so equal rows are at 0, and ten times faster than pairwise differences.
        products = points @ points.T
        lengths = products.diagonal()
        condensed = np.sqrt(distance.squareform(lengths[:, None] + lengths - 2 * products, checks=False))
    return Dendrogram(hierarchy.linkage(condensed, method="ward"), "ward")


def cut(dendrogram: Dendrogram, *, threshold: float | None = None, num_clusters: int | None = None) -> np.ndarray:
    """Cuts the tree into flat clusters.

    Args:
      threshold: Make all merges of height <= threshold (PACFL's beta; its code merges when equal, too).
      num_clusters: Make the lowest merges until this many clusters are left, also if heights are tied.

    Returns:
      Int32 [N]: labels 0..K-1, numbered in the order of each cluster's first member.

    Raises:
      UserError: Unless exactly one of the two is given, for a negative or NaN threshold, and for less than
        one cluster or more clusters than leaves.
    """
    if (threshold is None) == (num_clusters is None):
        raise UserError("give exactly one of threshold and num_clusters")
    if threshold is not None:
        made = int(np.searchsorted(dendrogram.heights, check_threshold(threshold), side="right"))
    else:
        made = dendrogram.num_leaves - _checked_number(dendrogram, num_clusters)
    return _labels_after(dendrogram, made)


def threshold_for(dendrogram: Dendrogram, num_clusters: int) -> float:
    """Returns a threshold that `cut` turns into `num_clusters` clusters.

    It lies midway between the last merge made and the first one not made. For as many clusters as leaves it
    is half the lowest height; for one cluster it is 1.05 times the highest. Always finite.

    Raises:
      UserError: If the number is out of range, or if no threshold gives it since the two heights are equal
        (or, for as many clusters as leaves, the lowest is 0). `cut` by number works even then.
    """
    made = dendrogram.num_leaves - _checked_number(dendrogram, num_clusters)
    heights = dendrogram.heights
    if made == len(heights):
        return float(1.05 * heights[-1]) if made else 0.0
    if made == 0:
        below, above = 0.0, float(heights[0])
    else:
        below, above = float(heights[made - 1]), float(heights[made])
    if below == above:
        fewer = dendrogram.num_leaves - int(np.searchsorted(heights, above, side="right"))
        raise UserError(
            f"no threshold gives {num_clusters} clusters: all merges at {above:.6g} are made together and "
            f"leave {fewer}; cut by the number of clusters instead"
        )
    middle = below + (above - below) / 2
    # Neighbouring floats have no middle; the lower one still excludes the upper merge.
    return middle if middle < above else below


def suggest_threshold(dendrogram: Dendrogram, unit: str = "") -> Suggestion:
    """Suggests the cut at the largest relative gap between consecutive merge heights.

    If clusters are real, merges inside them are low and the first merge across them is high, so the height
    jumps. The rule compares the ratios of each height to the one before, where heights below a tenth of the
    highest count as that tenth, and at least a third of the clients are merged away, because the ratios of tiny
    heights, and of the extremes at the bottom of a tree, are noise. Among equal ratios, the fewest clusters
    win. One cluster cannot win by a gap (nothing comes after the last merge); it is suggested only if
    nothing can be compared: for up to two clients, or if no height exceeds the one before it. A weak gap is
    still returned, and the reason says so. This is a heuristic of this package, not of a paper.

    Args:
      unit: Unit of the heights for the sentence, e.g. "degrees".
    """
    heights = dendrogram.heights
    clients = dendrogram.num_leaves
    tail = f" {unit}" if unit else ""
    if clients == 1:
        return _one_cluster(dendrogram, "there is one client, hence one cluster")
    top = f"{_short(heights[-1])}{tail}"
    if clients == 2:
        return _one_cluster(dendrogram, f"one merge, at {top}, shows no gap: the two clients stay together")
    floored = np.maximum(heights, _HEIGHT_FLOOR * heights[-1])
    ratios = np.ones(clients - 2) if heights[-1] <= 0 else floored[1:] / floored[:-1]
    # Entry i cuts after i + 1 merges.
    ratios[: -(-clients // _CLIENTS_PER_MERGE) - 1] = 1.0
    best = len(ratios) - 1 - int(np.argmax(ratios[::-1]))
    if ratios[best] <= _EQUAL_RATIO:
        reason = f"the clients look alike: no merge takes more than the one before it ({top})"
        return _one_cluster(dendrogram, reason)
    number = clients - best - 1
    ratio = float(ratios[best])
    at_least = bool(floored[best] > heights[best])
    reason = _gap_sentence(number, heights[best], heights[best + 1], ratio, at_least, tail)
    if ratio < _CLEAR_RATIO:
        ratios[best] = 1.0
        after = len(ratios) - 1 - int(np.argmax(ratios[::-1]))
        if ratios[after] >= _ALIKE_RATIO:
            reason = f"{reason}; the next largest is at {clients - after - 1} clusters ({ratios[after]:.1f} times)"
    return Suggestion(threshold_for(dendrogram, number), number, ratio, reason)


def _one_cluster(dendrogram: Dendrogram, reason: str) -> Suggestion:
    """Returns the suggestion for a tree without any gap."""
    return Suggestion(threshold_for(dendrogram, 1), 1, 1.0, reason)


def _gap_sentence(number: int, low: float, high: float, ratio: float, at_least: bool, tail: str) -> str:
    """Says in one sentence between which merges the gap is, and whether it is weak."""
    times = f"{'at least ' if at_least else ''}{ratio:.1f} times"
    steps = (
        f"merging {number + 1} clusters into {number} takes {_short(low)}{tail}, "
        f"{number} into {number - 1} takes {_short(high)}"
    )
    if ratio < _CLEAR_RATIO:
        alike = ", the clients look alike" if ratio < _ALIKE_RATIO else ""
        return f"no gap stands out{alike}: {steps}, the largest but a weak gap ({times})"
    return f"{steps}: the largest relative gap ({times})"


def _short(height: float) -> str:
    """Formats a height with one decimal, and small ones with three significant digits."""
    return f"{height:.1f}" if height >= 1 or height == 0 else f"{height:.3g}"


def _check_symmetry(matrix: np.ndarray, tolerance: float) -> None:
    """Raises UserError for two mirrored entries further apart than the tolerance."""
    # A strip at a time: a whole difference matrix would double the memory.
    for start in range(0, len(matrix), _STRIP):
        rows = matrix[start : start + _STRIP]
        columns = matrix[:, start : start + _STRIP].T.astype(np.float64)
        apart = np.abs(rows - columns)
        if apart.max() > tolerance:
            i, j = np.unravel_index(int(apart.argmax()), apart.shape)
            raise UserError(
                f"proximity is not symmetric: [{start + i}, {j}] is {rows[i, j]:.6g}, [{j}, {start + i}] is "
                f"{columns[i, j]:.6g}"
            )


def _checked_number(dendrogram: Dendrogram, num_clusters: int) -> int:
    """Returns the number of clusters as an int, or raises UserError."""
    leaves = dendrogram.num_leaves
    whole = isinstance(num_clusters, (int, np.integer)) and not isinstance(num_clusters, bool)
    if not whole or not 1 <= num_clusters <= leaves:
        raise UserError(f"num_clusters is {num_clusters!r}; it must be a whole number from 1 to {leaves}")
    return int(num_clusters)


def _labels_after(dendrogram: Dendrogram, made: int) -> np.ndarray:
    """Returns the labels, int32 [N], after the first `made` merges."""
    leaves = dendrogram.num_leaves
    children = dendrogram.merges[:made, :2].astype(np.int64).ravel()
    parents = np.repeat(np.arange(leaves, leaves + made), 2)
    size = leaves + made
    graph = sparse.coo_matrix((np.ones(2 * made, np.int8), (parents, children)), shape=(size, size))
    _, component = csgraph.connected_components(graph, directed=False)
    return by_first_member(component[:leaves])


def by_first_member(labels: np.ndarray) -> np.ndarray:
    """Returns labels [N] of any numbers as int32 [N] from 0, in the order of each cluster's first member."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int32)
    rank[np.argsort(first)] = np.arange(len(first), dtype=np.int32)
    return rank[inverse]


def numbers_of(dendrogram: Dendrogram) -> list[int]:
    """Returns the numbers of clusters that some threshold gives, ascending; heights within rounding of each other are
    equal."""
    heights = dendrogram.heights
    rises = heights > np.concatenate([[0.0], heights[:-1]]) * _EQUAL_RATIO
    return [1, *(dendrogram.num_leaves - int(made) for made in np.flatnonzero(rises)[::-1])]


def group(proximity: np.ndarray, linkage: str, threshold: float | str | None, num_clusters: int | None):
    """Clusters a proximity matrix by a threshold or by count.

    Args:
      proximity: `[N, N]`.
      linkage: A name in `LINKAGES`.
      threshold: Clusters up to this distance are merged; `GAP`: up to where the tree has its largest relative gap.
      num_clusters: The number of clusters, instead of a threshold; fewer if fewer clients differ, since clients at
        distance 0 are in one cluster.

    Returns:
      `(labels int32 [N], dendrogram, threshold)`; the threshold is one that gives these labels, for newcomers.

    Raises:
      UserError: If there are more clusters than clients.
    """
    dendrogram = build_dendrogram(proximity, linkage)
    if num_clusters is not None:
        different = int(cut(dendrogram, threshold=0.0).max()) + 1
        number = min(_checked_number(dendrogram, num_clusters), different)
        return cut(dendrogram, num_clusters=number), dendrogram, threshold_of(dendrogram, number)
    if threshold == GAP:
        threshold = suggest_threshold(dendrogram).threshold
    return cut(dendrogram, threshold=threshold), dendrogram, threshold


def threshold_of(dendrogram: Dendrogram, num_clusters: int) -> float:
    """Returns a threshold for newcomers to clusters that were cut by count."""
    try:
        return threshold_for(dendrogram, num_clusters)
    except UserError:
        # With merges of equal height no threshold gives this number, so the last merge that was made is the limit.
        made = dendrogram.num_leaves - num_clusters
        return float(dendrogram.heights[made - 1]) if made else 0.0


def bipartition(updates: np.ndarray, linkage: str = "single", gate: float | None = None) -> np.ndarray | None:
    """Splits clients into two halves by the cosines of their updates (Sattler et al. 2021, Alg. 1).

    Args:
      updates: `float32 [m, P]`, m from 2.
      linkage: "single" makes the largest cosine across the halves as small as possible, since single linkage cut at two
        is that min-max bipartition. "complete" is what the authors' notebook does.
      gate: γ. Split only if sqrt((1 - α) / 2) is above it, where α is the largest cosine across the halves. None:
        always split.

    Returns:
      `bool [m]`, the clients in the second half; None if the gate is closed.
    """
    apart = cosine_distances(updates)
    second = cut(build_dendrogram(apart, linkage), num_clusters=2) == 1
    if gate is not None and np.sqrt(apart[second][:, ~second].min() / 2) <= gate:
        return None
    return second


def nearer_second(updates: np.ndarray, halves: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Returns `bool [n]`, which of the updates `[n, P]` are more like an update of the second half than of the first;
    the halves are `[m1, P]` and `[m2, P]`."""
    first, second = (cosine_distances(updates, half).min(axis=1) for half in halves)
    return second < first
