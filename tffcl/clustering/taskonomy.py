"""FLT's server side: which clients are related, according to the k-means centres that they sent.

Source: Jamali-Rad, Abdizadeh and Singh, "Federated Learning With Taskonomy for Non-IID Data" (FLT), IEEE TNNLS 2022,
Alg. 2 (FCR) lines 12 to 19 and section III. The authors' code: https://github.com/hjraad/FLT, src/utils/cluster.py.

The steps, in the order of the paper: `fit_map` (line 14), `client_distances` (line 16), `relate` (line 17),
`flatten` (lines 18 and 19); `assign_to_nearest` for clients that come later (section III-B4).
"""

import dataclasses
import math
import warnings
from collections.abc import Iterator

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.spatial import distance as spatial

from tffcl.choices import CENTRE_METRICS
from tffcl.clustering import hierarchical
from tffcl.clustering.projection import LEAST, new_reducer
from tffcl.errors import UserError, unknown

# Clients on each side of a block of pairs, so few that its arrays stay in the cache.
_SIDE = 128

# For up to so many centres per client the best matching is found for a whole block of pairs at once, in time k 2^k; for
# more, pair by pair in time k^3.
_MOST_BY_SUBSETS = 8


def client_distances(
    points: np.ndarray,
    mask: np.ndarray,
    others: np.ndarray | None = None,
    others_mask: np.ndarray | None = None,
    *,
    distance: str = "closest_pair",
) -> np.ndarray:
    """Computes the distances of all pairs of clients (FLT Alg. 2 line 16) by name.

    Args:
      points: Float [N, k, u]: each client's centres, in UMAP's map or any other space.
      mask: Bool [N, k], which of them exist.
      others: Float [M, l, u], a second set of clients; default the same ones.
      others_mask: Bool [M, l].
      distance: One of `CENTRE_METRICS`. "closest_pair" is `min over r, s of |u_ir - u_js|`. With "matching", each of
        the n centres of the client with fewer of them is matched to another one of the other client, so that the sum of
        squared distances is least; the result is the root of that sum over n (cluster.py:37-58). It is not a root mean
        square: the same distances between more centres come out smaller, by the root of n. With "wasserstein" it is the
        mean distance that a client's centres, all of one weight, must be moved to become the other's.

    Returns:
      Float32 [N, M], in the unit of the points. Without `others` symmetric with a diagonal of exactly 0.

    Raises:
      UserError: For an unknown distance, arrays that do not fit, or a client without centres or with some not finite.
    """
    if distance not in CENTRE_METRICS:
        raise unknown("distance", distance, CENTRE_METRICS)
    return _all_pairs(points, mask, others, others_mask, _KERNELS[distance])


def relate(distances: np.ndarray, gamma: float) -> np.ndarray:
    """Relates clients that are nearer to each other than gamma (FLT Alg. 2 line 17).

    The paper prints `Sign(A - gamma)`, which is 1 for the clients that are far from each other: its sign is inverted.
    The authors' code relates the near ones (cluster.py:391-394), as does the text; so does this function.

    Args:
      distances: Numbers [N, N], from `client_distances`.
      gamma: Threshold, in the unit of the distances; the paper's is 1. Infinity relates everyone.

    Returns:
      Float32 [N, N] of 0 and 1, symmetric, with a diagonal of 1.

    Raises:
      UserError: If gamma is not positive, or `distances` is no matrix of distances.
    """
    if not gamma > 0:
        raise UserError(f"gamma is {gamma}; it must be positive, or no client is related to any other")
    related = (hierarchical.check_proximity(distances) < gamma).astype(np.float32)
    # If rounding puts mirrored entries on both sides of gamma, the two clients are related.
    related = np.maximum(related, related.T)
    np.fill_diagonal(related, 1)
    return related


def flatten(relatedness: np.ndarray, num_clusters: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Cuts the relatedness into disjoint clusters (FLT Alg. 2 lines 18 and 19; section IV-A3: Ward's method).

    The rows of the matrix are clustered: clients are alike if they are related to the same clients. Clients with equal
    rows always share a cluster, so there may be fewer clusters than asked for. The authors' code does the same up to
    there, but then takes the members from the order of the leaves (cluster.py:531), which scrambles them; that is not
    reproduced.

    Without a number, "the best fitting number of clusters" (section III-B2) is: if the matrix consists of disjoint
    blocks of ones, those blocks; else the cut at the largest relative gap, `hierarchical.suggest_threshold`.

    Args:
      relatedness: Bools, or numbers 0 and 1, [N, N], N >= 1, symmetric with a diagonal of 1; see `relate`.
      num_clusters: C, how many clusters at most; None: as many as fit best.

    Returns:
      Labels int32 [N], numbered by each cluster's first member, and the merges float64 [N - 1, 4], SciPy's linkage
      matrix (see `hierarchical.Dendrogram`).

    Raises:
      UserError: If the matrix is not as described, or the number is not from 1 to N.
    """
    related = _checked_relatedness(relatedness)
    dendrogram = hierarchical.build_ward_dendrogram(related)
    alike = hierarchical.cut(dendrogram, threshold=0.0)
    if num_clusters is not None:
        labels = hierarchical.cut(dendrogram, num_clusters=num_clusters)
        labels = alike if labels.max() > alike.max() else labels
    elif np.array_equal(related, alike[:, None] == alike):
        labels = alike
    else:
        threshold = hierarchical.suggest_threshold(dendrogram).threshold
        labels = hierarchical.cut(dendrogram, threshold=threshold)
    return labels, dendrogram.merges


def assign_to_nearest(
    points: np.ndarray, mask: np.ndarray, known: np.ndarray, known_mask: np.ndarray, labels: np.ndarray
) -> np.ndarray:
    """Gives newcomers the nearest of the existing clusters (FLT section III-B4, last sentence).

    The paper takes the distance "to the (average) latent embeddings of the clusters" and leaves it as future work.
    Centres have no common order over the clients, so there is no mean of them; here it is the mean over a cluster's
    members of their distance to the newcomer. That is of the matching, and not of the paper's Alg. 2: if clusters share
    a class, the closest pair is as near in one as in the other, while the matching looks at all classes.

    Args:
      points: Float [B, k, u]: the newcomers' centres, in the encoder's space or in the map (`CentreMap.place`).
      mask: Bool [B, k], which of them exist.
      known: Float [N, l, u]: the centres of the clients in clusters, in the same space.
      known_mask: Bool [N, l].
      labels: Integers [N], their clusters, numbered from 0.

    Returns:
      Int32 [B]; the lower label wins a tie.

    Raises:
      UserError: If there are no clusters, or for labels or arrays that do not fit.
    """
    labels = np.asarray(labels)
    if labels.shape != (len(known),) or labels.dtype.kind not in "iu" or labels.size == 0 or labels.min() < 0:
        raise UserError(
            f"labels are {labels.dtype} of shape {labels.shape}; they must be whole numbers from 0 on, one for each of "
            f"the {len(known)} clients in clusters, at least one"
        )
    apart = client_distances(points, mask, known, known_mask, distance="matching").astype(np.float64)
    present, member = np.unique(labels, return_inverse=True)
    sums = apart @ np.eye(len(present))[member]
    return present[(sums / np.bincount(member)).argmin(axis=1)].astype(np.int32)


def _checked_relatedness(relatedness) -> np.ndarray:
    """Returns the relatedness as bool [N, N], or raises UserError."""
    matrix = np.asarray(relatedness)
    square = matrix.ndim == 2 and 0 < matrix.shape[0] == matrix.shape[1]
    related = matrix != 0
    if not square or matrix.dtype.kind not in "bfiu" or not np.array_equal(related, matrix):
        raise UserError(
            f"relatedness is {matrix.dtype} of shape {matrix.shape}; it must be a square matrix of 0 and 1 of at least "
            "one client"
        )
    if not related.diagonal().all() or not np.array_equal(related, related.T):
        raise UserError("relatedness must be symmetric with a diagonal of 1: a client is related to itself")
    return related


def _all_pairs(points, mask, others, others_mask, kernel) -> np.ndarray:
    """Runs `kernel` on blocks of pairs of clients that have equally many centres on each side."""
    points, mask = checked_centres(points, mask, "client")
    symmetric = others is None
    if symmetric and others_mask is not None:
        raise UserError("others_mask is given without others")
    others, others_mask = (points, mask) if symmetric else checked_centres(others, others_mask, "other client")
    if points.shape[2] != others.shape[2]:
        raise UserError(
            f"centres have {points.shape[2]} features and those of others {others.shape[2]}; they must be equal"
        )
    result = np.full((len(points), len(others)), np.inf, np.float32)
    blocks, other_blocks = list(_blocks(points, mask)), list(_blocks(others, others_mask))
    for place, (rows, left) in enumerate(blocks):
        # Blocks come in the same order on both sides, so the second half of a symmetric matrix mirrors the first.
        for columns, right in other_blocks[place if symmetric else 0 :]:
            small, large = (left, right) if left.shape[1] <= right.shape[1] else (right, left)
            part = kernel(_squares(small, large))
            result[np.ix_(rows, columns)] = part if small is left else part.T
    # Sums in another order differ in the last bit; the minimum of the two is the same from both sides.
    return np.minimum(result, result.T) if symmetric else result


def _blocks(points: np.ndarray, mask: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields clients with equally many centres, at most `_SIDE` at a time, fewer if these are many: places [n] and
    centres float64 [n, count, u]."""
    counts = mask.sum(axis=1)
    for count in np.unique(counts):
        places = np.flatnonzero(counts == count)
        side = max(min(_SIDE, _SIDE * _MOST_BY_SUBSETS // max(count, 1)), 1)
        for start in range(0, len(places), side):
            some = places[start : start + side]
            own = points[some][mask[some]].astype(np.float64)
            yield some, own.reshape(len(some), count, points.shape[2])


def _squares(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Returns the squared distances of all centres, float64 [n centres, m centres, clients, clients]."""
    (one, n, dimension), (two, m, _) = left.shape, right.shape
    flat = spatial.cdist(left.reshape(one * n, dimension), right.reshape(two * m, dimension), "sqeuclidean")
    return np.ascontiguousarray(flat.reshape(one, n, two, m).transpose(1, 3, 0, 2))


def _matched(squares: np.ndarray) -> np.ndarray:
    n, m = squares.shape[:2]
    total = _least_by_subsets(squares) if m <= _MOST_BY_SUBSETS else _least_by_assignment(squares)
    return np.sqrt(total) / n


def _least_by_subsets(squares: np.ndarray) -> np.ndarray:
    """Returns the least sum of a matching of n centres into m >= n, for all pairs of clients at once.

    This is dynamic programming: the first i centres take i of the m others, and only which ones matters for the next.
    With k centres on both sides this takes k 2^(k-1) sums; k! permutations would take k each.

    Args:
      squares: Float64 [n, m, clients, clients].
    """
    least = {0: np.zeros(squares.shape[2:])}
    for row in squares:
        longer: dict[int, np.ndarray] = {}
        for taken, total in least.items():
            for place, cost in enumerate(row):
                subset = taken | 1 << place
                if subset == taken:
                    continue
                sums = total + cost
                longer[subset] = np.minimum(longer[subset], sums, out=sums) if subset in longer else sums
        least = longer
    return np.minimum.reduce(list(least.values()))


def _least_by_assignment(squares: np.ndarray) -> np.ndarray:
    """Does the same as `_least_by_subsets`, by the Hungarian method and pair by pair."""
    result = np.empty(squares.shape[2:])
    for i, j in np.ndindex(*result.shape):
        costs = squares[:, :, i, j]
        result[i, j] = costs[linear_sum_assignment(costs)].sum()
    return result


def _transported(squares: np.ndarray) -> np.ndarray:
    """The 1-Wasserstein distance. With equal weights it is a matching in which each centre is repeated until both
    clients have equally many."""
    n, m = squares.shape[:2]
    each = math.lcm(n, m)
    apart = np.sqrt(squares).repeat(each // n, axis=0).repeat(each // m, axis=1)
    return _least_by_assignment(apart) / each


_KERNELS = {
    "closest_pair": lambda squares: np.sqrt(squares.min(axis=(0, 1))),
    "matching": _matched,
    "wasserstein": _transported,
}


_SPREAD = 1.0  # UMAP's default, and the largest min_dist that it takes


@dataclasses.dataclass(frozen=True, eq=False)
class CentreMap:
    """Centres laid out by UMAP, and the fitted reducer that lays out more of them.

    The reducer is not a set of arrays, so it is not for a checkpoint. Keep the centres and the options instead:
    `fit_map` of the same centres with the same seed gives the same map on the same machine.

    Attributes:
      points: Float32 [N, k, u]: where the centres lie; masked ones are zero.
      num_features: e, of the centres.
      reducer: The fitted `umap.UMAP`.
    """

    points: np.ndarray
    num_features: int
    reducer: object

    def place(self, centres: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Lays the centres of newcomers out in the same map, which stays unchanged.

        UMAP's transform weighs the centres of a batch against each other. Each client is transformed alone, as in the
        authors' code, so its points do not depend on who came with it.

        Args:
          centres: Float [B, k, e]; k may differ from the k of the clients before.
          mask: Bool [B, k], which centres exist.

        Returns:
          Float32 [B, k, u]; masked entries are zero.

        Raises:
          UserError: For arrays that do not fit, or a client without centres or with some that are not finite.
        """
        centres, mask = checked_centres(centres, mask, "newcomer")
        if centres.shape[2] != self.num_features:
            raise UserError(
                f"centres of newcomers have {centres.shape[2]} features; the map was made of {self.num_features}"
            )
        points = np.zeros((*mask.shape, self.points.shape[2]), np.float32)
        for place, (own, real) in enumerate(zip(centres, mask, strict=True)):
            points[place, real] = self.reducer.transform(np.ascontiguousarray(own[real], np.float32))
        return points


def fit_map(
    centres: np.ndarray,
    mask: np.ndarray,
    *,
    seed: int,
    num_components: int = 2,
    num_neighbors: int = 15,
    min_dist: float = 0.1,
) -> CentreMap:
    """Lays the centres of all clients out by UMAP (McInnes et al. 2018, arXiv:1802.03426), FLT Alg. 2 line 14.

    The defaults are umap-learn's and the authors'. Equal centres count once and come to the same point: UMAP scatters
    copies if there are more of them than neighbours. The centres are sorted before the fit, so the map does not depend
    on the order of the clients or of a client's centres.

    Args:
      centres: Float [N, k, e]: each client's k-means centres in the encoder's latent space.
      mask: Bool [N, k], which centres exist.
      seed: Decides the layout.
      num_components: u, dimensions of the map; 2 or 3 in the paper.
      num_neighbors: How many neighbours of a centre are kept near; all others if there are fewer.
      min_dist: How near points may lie in the map, 0 to 1; its unit is the unit of gamma.

    Raises:
      UserError: If there are fewer than 4 different centres, for arrays that do not fit, a client without centres or
        with some that are not finite, or an option out of range.
    """
    if num_components < 1 or num_neighbors < 2 or not 0 <= min_dist <= _SPREAD:
        raise UserError(
            f"num_components is {num_components}, num_neighbors {num_neighbors} and min_dist {min_dist}; they must be "
            f"at least 1, at least 2 and from 0 to {_SPREAD:g}"
        )
    centres, mask = checked_centres(centres, mask, "client")
    # Adding 0 turns -0 into 0; it would sort differently.
    distinct, place = np.unique(centres[mask].astype(np.float32) + np.float32(0), axis=0, return_inverse=True)
    if len(distinct) < LEAST:
        raise UserError(
            f"a map of centres needs at least {LEAST} different ones; there are {len(distinct)}: more centres of each "
            "client (num_centres) would do, or clients whose data differ"
        )
    reducer = new_reducer(
        len(distinct), seed, num_components=num_components, num_neighbors=num_neighbors, min_dist=min_dist,
        transform_seed=seed,
    )  # fmt: skip
    with warnings.catch_warnings():
        # If the spectral layout fails, UMAP warns and starts from a random one.
        warnings.simplefilter("ignore")
        reducer.fit(distinct)
    points = np.zeros((*mask.shape, num_components), np.float32)
    points[mask] = reducer.embedding_[place.reshape(-1)]
    return CentreMap(points, centres.shape[2], reducer)


def checked_centres(centres, mask, who: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns centres [n, k, e] and their mask [n, k] as arrays, if every client has a centre and all are finite.

    Raises:
      UserError: If not; the message names the client by `who` and its place.
    """
    centres, mask = np.asarray(centres), np.asarray(mask)
    if centres.ndim != 3 or centres.dtype.kind not in "fiu":
        raise UserError(
            f"centres of the {who}s are {centres.dtype} of shape {centres.shape}; they must be numbers of shape "
            "[clients, centres, features]"
        )
    if mask.shape != centres.shape[:2] or mask.dtype != bool:
        raise UserError(
            f"the mask of the {who}s is {mask.dtype} of shape {mask.shape}; it must be bool of shape "
            f"{centres.shape[:2]}"
        )
    empty = ~mask.any(axis=1)
    if empty.any():
        raise UserError(
            f"{who} {empty.argmax()} has no centre, as one whose encoder diverges in fine-tuning; each "
            f"must have one at least"
        )
    bad = (~np.isfinite(centres).all(axis=2) & mask).any(axis=1)
    if bad.any():
        raise UserError(f"the centres of {who} {bad.argmax()} have NaN or infinite entries")
    return centres, mask
