"""Groupings without a tree: k-means, k-FED, Gaussian mixtures, spectral and density clustering, k-means on models. A
`Grouping` takes the distances of clients or a vector of each client, and places newcomers in the existing clusters.
Density clustering, which needs no number of clusters, is FLUX's: DBSCAN at a distance that is found in the data.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
import threadpoolctl
from scipy.optimize import linear_sum_assignment
from scipy.spatial import distance
from scipy.stats import norm
from sklearn.cluster import DBSCAN, KMeans, spectral_clustering
from sklearn.mixture import GaussianMixture

from tffcl.clustering import hierarchical, newcomers
from tffcl.clustering.hierarchical import by_first_member
from tffcl.display import counted
from tffcl.errors import UserError


def single_thread() -> contextlib.AbstractContextManager:
    """Returns a context in which OpenMP's loops, those of scikit-learn, run in one thread.

    These loops use a thread for each core, and threads wait for each other in busy loops. If the cores have other work
    (a TFF worker, another run), 40 clients are laid out 25 times slower than in one thread, and 10,000 are grouped 10
    times slower. Sums also differ in their last bits with the number of threads, so that a run would depend on the
    machine's number of cores.
    """
    # The loops are looked up each time, in milliseconds, because a package that is imported later brings its own.
    return threadpoolctl.threadpool_limits(limits=1, user_api="openmp")


def scaled(
    descriptors: Mapping[str, np.ndarray], spans: Mapping[str, np.ndarray] | None = None
) -> tuple[np.ndarray, dict]:
    """Lays descriptors out as vectors, each block divided by its span over all clients and entries (the authors'
    min-max scaling).

    The minimum of a block is not subtracted, since it does not change distances.

    Args:
      descriptors: Arrays `[N, ..., d]` by name; the last axis is the entries of a block, those before it number the
        blocks.
      spans: The spans that an earlier call returned, for newcomers; None: those of these clients.

    Returns:
      `(float64 [N, entries of all blocks], {name: span of each block, float64 [...]})`.
    """
    arrays = {name: np.asarray(value, np.float64) for name, value in descriptors.items()}
    if spans is None:
        spans = {name: np.ptp(value, axis=(0, -1)) for name, value in arrays.items()}
    parts = [value / np.where(spans[name] > 0, spans[name], 1.0)[..., np.newaxis] for name, value in arrays.items()]
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1), dict(spans)


ONE_DISTANCE = "two clients have one distance, which shows neither a bend nor a gap: they stay together"


def knee_distance(apart: np.ndarray) -> float:
    """Returns the distance to the nearest neighbour at which the clients' sorted distances bend upwards.

    This is Kneedle (Satopää et al. 2011, section III) for a convex rising curve, with sensitivity 1: the curve is
    scaled to the unit square and turned about its middle, and the diagonal is subtracted; the knee is the first local
    maximum after which the difference falls by more than a mean step before it rises again. A curve without a knee
    gives its largest distance, which leaves no client alone.

    Args:
      apart: `float [N, N]`, distances, zero on the diagonal; a single client has the distance 0.
    """
    if len(apart) < 2:
        return 0.0
    nearest = np.sort(np.where(np.eye(len(apart), dtype=bool), np.inf, apart).min(axis=1))
    rise, last, peak = nearest[-1] - nearest[0], len(nearest) - 1, None
    if rise <= 0:
        return float(nearest[-1])
    # Two clients that are each other's nearest have one distance, and there the curve falls by exactly a mean step.
    # Rounding decides whether that is more than one, so each operation is as in the package kneed, which the authors
    # use.
    diagonal = np.flip(1 - np.arange(last + 1) / last)
    above = np.flip(1 - (nearest - nearest[0]) / rise) - diagonal
    step = np.diff(diagonal).mean()
    for place in range(last):
        before, here, after = above[max(place - 1, 0)], above[place], above[place + 1]
        if here >= max(before, after):
            peak = place
        if peak is not None and after < above[peak] - step:
            return float(nearest[last - peak])
    return float(nearest[-1])


def nearest_groups(known: np.ndarray, labels: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Returns for each of the points `[M, d]` the group with the nearest mean, `int32 [M]`; `labels [N]` are the groups
    of `known [N, d]`."""
    groups = np.unique(labels)
    centres = np.stack([known[labels == group].mean(axis=0) for group in groups])
    return groups[distance.cdist(points, centres).argmin(axis=1)].astype(np.int32)


def dense_groups(points: np.ndarray, neighbourhood: str = "knee", scale: float = 1.0) -> tuple[np.ndarray, float]:
    """Groups points whose neighbours are near; a point without near points is a group of its own.

    DBSCAN with two points in a neighbourhood: the connected parts of "nearer than eps", like single linkage cut at eps.

    Args:
      points: `float [N, d]`.
      neighbourhood: A name in `NEIGHBOURHOODS`: how eps is found.
      scale: Multiplies the distance that is found, to give eps.

    Returns:
      `(labels int32 [N], eps)`.
    """
    apart = distance.squareform(distance.pdist(points))
    if len(points) < 2:
        return np.zeros(len(points), np.int32), 0.0
    if neighbourhood == "knee":
        found = knee_distance(apart)
    else:
        found = hierarchical.suggest_threshold(hierarchical.build_dendrogram(apart, "single")).threshold
    eps = scale * found
    # Equal points have the distance 0, and eps must be above it.
    labels = DBSCAN(eps=max(eps, np.finfo(float).tiny), min_samples=2, metric="precomputed").fit_predict(apart)
    alone = labels < 0
    labels[alone] = labels.max() + 1 + np.arange(alone.sum())
    return labels.astype(np.int32), eps


_STARTS = 10  # starts of k-means, and of the fit of a mixture


@dataclasses.dataclass(frozen=True)
class Grouping:
    """A way to group clients into a number of clusters.

    Attributes:
      group: `(proximity [N, N], points [N, ...], num_clusters, seed) -> int [N]`, clusters with any numbers from 0 on;
        fewer than asked for if fewer clients differ.
      place: `(proximity [M + B, M + B], points [M + B, ...], labels [M]) -> int [B]`, the clusters that newcomers join,
        by the numbers of `labels`, which count the clusters by their first members; old clients come first.
      of_points: Whether it takes points besides the proximity: a vector of each client, for which Euclidean distances
        are meaningful.
    """

    group: Callable[[np.ndarray, np.ndarray | None, int, int], np.ndarray]
    place: Callable[[np.ndarray, np.ndarray | None, np.ndarray], np.ndarray]
    of_points: bool = True

    def __call__(self, proximity: np.ndarray, points: np.ndarray | None, num_clusters: int, seed: int) -> np.ndarray:
        """Returns the clusters `int32 [N]`, numbered from 0 in the order of their first members; UserError if `group`
        gives something else."""
        with single_thread():
            found = np.asarray(self.group(proximity, points, num_clusters, seed))
        clients = len(points if proximity is None else proximity)
        if found.shape != (clients,) or found.dtype.hasobject:
            there = f"{found.dtype} {list(found.shape)}"
            raise UserError(f"the grouping gives {there}; it must be a cluster for each of {clients} clients")
        if found.dtype.kind in "if" and len(nowhere := found[~(found >= 0)]):
            raise UserError(
                f"the grouping gives {nowhere[0]} to {counted(len(nowhere), 'client')}; clusters are numbered from 0 "
                "on, and who is in none, as -1 of scikit-learn says, must have one of its own"
            )
        return by_first_member(found)


def kmeans(proximity: np.ndarray, points: np.ndarray, num_clusters: int, seed: int) -> np.ndarray:
    """Groups clients by k-means on a vector `[N, d]` of each, or on centres `[N, k, d]` by `kfed`; see `Grouping`."""
    del proximity
    if points.ndim == 3:
        return kfed(points, num_clusters)
    number = min(num_clusters, len(np.unique(points, axis=0)))
    return KMeans(number, n_init=_STARTS, random_state=seed % 2**32).fit_predict(points)


def kfed(centres: np.ndarray, num_clusters: int) -> np.ndarray:
    """Groups clients by k-means on the centres of all of them (k-FED, Dennis, Li and Smith, ICML 2021, Alg. 2).

    Lloyd's method starts at the centres of the first client and, one after another, at the centre that is farthest from
    those chosen before. The grouping of centres is from the paper. The rule that a client joins the cluster of most of
    its centres, and among equal ones that of the nearest, is ours.

    Args:
      centres: Numbers `[N, k, d]`, NaN for a missing centre.
      num_clusters: K; there are fewer clusters if fewer centres differ, or if no client has most of its centres in one.

    Returns:
      `int [N]`.
    """
    clients, there = np.nonzero(~np.isnan(centres).any(axis=2))
    points = centres[clients, there]
    number = min(num_clusters, len(np.unique(points, axis=0)))
    starts = np.unique(points[clients == clients[0]], axis=0)[:number]
    while len(starts) < number:
        farthest = distance.cdist(points, starts).min(axis=1).argmax()
        starts = np.concatenate([starts, points[farthest : farthest + 1]])
    return _where_most_are(centres, KMeans(number, init=starts, n_init=1).fit(points).cluster_centers_)


def _where_most_are(centres: np.ndarray, means: np.ndarray) -> np.ndarray:
    """For each client `[N, k, d]` the one of the means `[K, d]` that is nearest to most of its centres, `int [N]`."""
    apart = distance.cdist(centres.reshape(-1, centres.shape[2]), means).reshape(*centres.shape[:2], len(means))
    there = ~np.isnan(centres).any(axis=2)
    apart = np.where(there[..., np.newaxis], apart, np.inf)
    nearest = apart.argmin(axis=2)
    votes = (there[..., np.newaxis] & (nearest[..., np.newaxis] == np.arange(len(means)))).sum(axis=1)
    least = np.where(votes == votes.max(axis=1, keepdims=True), apart.min(axis=1), np.inf)
    return least.argmin(axis=1)


def _gaussian_mixture(proximity: np.ndarray, points: np.ndarray, num_clusters: int, seed: int) -> np.ndarray:
    del proximity
    return fit_mixture(points, num_clusters, seed).labels


def spectral(proximity: np.ndarray, points: np.ndarray | None, num_clusters: int, seed: int) -> np.ndarray:
    """Groups clients by the graph of their similarities, see `Grouping`.

    The similarity of two clients at distance d is exp(-(d / s)² / 2), where s is the median of the distances above 0;
    the graph is cut as by Ng, Jordan and Weiss (2001).
    """
    del points
    apart = distance.squareform(proximity, checks=False)
    if num_clusters == 1 or not apart.any():
        return np.zeros(len(proximity), np.int32)
    similarity = np.exp(-((proximity / np.median(apart[apart > 0])) ** 2) / 2)
    number = min(num_clusters, len(np.unique(proximity, axis=0)))
    if number == len(proximity):
        return np.arange(number)
    return spectral_clustering(similarity, n_clusters=number, random_state=seed % 2**32)


def place_at_centres(proximity: np.ndarray, points: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Places newcomers in the cluster whose mean point is nearest, or nearest to most of their centres; see
    `Grouping.place`."""
    del proximity
    known, arrived = points[: len(labels)], points[len(labels) :]
    if points.ndim == 2:
        return nearest_groups(known, labels, arrived)
    groups = np.unique(labels)
    means = np.stack([np.nanmean(known[labels == group].reshape(-1, points.shape[2]), axis=0) for group in groups])
    return groups[_where_most_are(arrived, means)]


def place_by_proximity(proximity: np.ndarray, points: np.ndarray | None, labels: np.ndarray) -> np.ndarray:
    """Places newcomers in the cluster with the lowest mean distance to its members, see `Grouping.place`."""
    del points
    return newcomers.distances_to_clusters(proximity, labels, linkage="average").argmin(axis=1)


GROUPINGS: Mapping[str, Grouping] = {
    "kmeans": Grouping(kmeans, place_at_centres),
    "gaussian_mixture": Grouping(_gaussian_mixture, place_at_centres),
    "spectral": Grouping(spectral, place_by_proximity, of_points=False),
}


_FLOOR = 1e-6  # lowest variance of a component, as a share of the variance of all points along their longest axis


@dataclasses.dataclass(frozen=True, eq=False)
class Mixture:
    """A fitted mixture of K Gaussians.

    Attributes:
      labels: `int32 [N]`, the component that each point most likely comes from.
      probabilities: `float64 [N, K]`, the probability that each point comes from each component; rows sum to one.
      variances: `float64 [K]`, the variance of each component in each direction in which the points differ.
    """

    labels: np.ndarray
    probabilities: np.ndarray
    variances: np.ndarray


def fit_mixture(points: np.ndarray, num_components: int, seed: int = 0) -> Mixture:
    """Fits a mixture of spherical Gaussians by expectation maximisation.

    A component has one variance for all directions, like the noise that makes vectors private, and because few vectors
    with many entries do not allow more.

    Args:
      points: Numbers `[N, d]`.
      num_components: K; if fewer points differ, as many components as points that differ.
      seed: Seed of the starts.
    """
    number = min(num_components, len(np.unique(points, axis=0)))
    if number == 1:
        spread = np.var(points, axis=0).mean(keepdims=True)
        return Mixture(np.zeros(len(points), np.int32), np.ones([len(points), 1]), spread)
    axes = without_dimensions(np.asarray(points, np.float64))
    spreads = axes.var(axis=0)
    axes, spread = axes[:, spreads > _FLOOR * spreads.max()], spreads.max()  # the others are rounding
    mixture = GaussianMixture(
        number, covariance_type="spherical", n_init=_STARTS, random_state=seed % 2**32, reg_covar=_FLOOR
    )
    with single_thread():
        probabilities = mixture.fit(axes / np.sqrt(spread)).predict_proba(axes / np.sqrt(spread))
    return Mixture(probabilities.argmax(axis=1).astype(np.int32), probabilities, mixture.covariances_ * spread)


def largest_overlap(points: np.ndarray, mixture: Mixture) -> float:
    """Returns the largest overlap of two components, from 0 for none to 1.

    The overlap is 2 Q(d / (2 σ)) for two components whose means are d apart, where σ is the larger standard deviation
    and Q the tail of the standard normal distribution (the MPO of R-DPCFL, Malekmohammadi et al., TMLR 2025).

    Args:
      points: Numbers `[N, d]`, those that the mixture was fitted to.
      mixture: From `fit_mixture`; a single component has no overlap.
    """
    shares = mixture.probabilities / np.maximum(mixture.probabilities.sum(axis=0), np.finfo(float).tiny)
    apart = distance.pdist(shares.T @ points)
    if not len(apart):
        return 0.0
    spreads = np.sqrt(mixture.variances)
    larger = np.maximum.outer(spreads, spreads)[np.triu_indices(len(spreads), 1)]
    return float(2 * norm.sf(apart / (2 * larger)).max())


_AT_A_TIME = 1 << 18  # parameters whose float64 copies are in memory
_FIRST_STARTS = 20  # of k-means in the first round, as in FLT's code


def first_groups(trained: np.ndarray, num_clusters: int, seed: int) -> np.ndarray:
    """Clusters the models of the first round, when there are no centres yet, by k-means with several starts.

    Args:
      trained: `float32 [m, P]`.
      num_clusters: K, at most m.
      seed: Seed of the starts.

    Returns:
      `int32 [m]`.
    """
    # m models span at most m - 1 dimensions, whatever P is; k-means finds the same there in a fraction of the time.
    points = without_dimensions(trained)
    with single_thread():
        found = KMeans(num_clusters, n_init=_FIRST_STARTS, random_state=seed % 2**32).fit_predict(points)
    return found.astype(np.int32)


def nearest_centres(trained: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """The E-step: returns the nearest centre of each model.

    A library's k-means would move a centre without models to the farthest model, so that a group without clients in a
    round would lose its centre.

    Args:
      trained: `float32 [m, P]`.
      centres: `float32 [K, P]`.

    Returns:
      `int32 [m]`; the lower number wins a tie.
    """
    squares = np.zeros((len(trained), len(centres)))
    for start in range(0, trained.shape[1], _AT_A_TIME):
        columns = slice(start, start + _AT_A_TIME)
        squares += distance.cdist(trained[:, columns], centres[:, columns], "sqeuclidean")
    return squares.argmin(axis=1).astype(np.int32)


def without_dimensions(vectors: np.ndarray) -> np.ndarray:
    """Points `float64 [n, n]` with the same distances as `vectors [n, P]`: their coordinates along principal axes."""
    # scikit-learn's PCA would make two more arrays [n, P], a copy and components: gigabytes for a large cohort's CNNs.
    mean, products = vectors.mean(axis=0, dtype=np.float64), np.zeros((len(vectors), len(vectors)))
    for start in range(0, vectors.shape[1], _AT_A_TIME):
        part = vectors[:, start : start + _AT_A_TIME] - mean[start : start + _AT_A_TIME]
        products += part @ part.T
    values, axes = np.linalg.eigh(products)
    return axes * np.sqrt(np.maximum(values, 0))


def weighted_means(centres: np.ndarray, trained: np.ndarray, found: np.ndarray, examples: np.ndarray) -> np.ndarray:
    """The M-step: means of the models by cluster, weighted by examples; a centre without models stays.

    Args:
      centres: `float32 [K, P]`, the old centres.
      trained: `float32 [m, P]`.
      found: `int32 [m]`, the cluster of each model.
      examples: `int32 [m]`, training examples.

    Returns:
      `float32 [K, P]`.
    """
    centres = centres.copy()
    for cluster in np.unique(found):
        members = found == cluster
        shares = (examples[members] / examples[members].sum()).astype(np.float32)
        for start in range(0, trained.shape[1], _AT_A_TIME):  # in parts, because picking the members makes a copy
            columns = slice(start, start + _AT_A_TIME)
            centres[cluster, columns] = shares @ trained[members, columns]
    return centres


def group_by_losses(losses: np.ndarray, *, square_root: bool = False, seed: int = 0) -> np.ndarray:
    """Clusters clients by k-means on their vectors of losses and gives each cluster the model that suits it.

    Clusters and models are matched so that the sum of all clients' losses under their models is lowest (the Hungarian
    method). If fewer vectors differ than there are models, as with few clients, some models have no cluster. A loss
    that is not finite counts as twice the largest finite one, and as at least 2, so that it is the worst and no
    distance is infinite.

    Args:
      losses: `float [m, K]`; row i has client i's mean losses under the K models.
      square_root: Whether to cluster and match the square roots of the losses.
      seed: Seed of k-means' starts.

    Returns:
      `int32 [m]`, each client's model.
    """
    losses = np.asarray(losses, np.float64)
    finite = np.isfinite(losses)
    losses = np.where(finite, losses, 2 * np.max(losses, where=finite, initial=1.0))
    points = np.sqrt(losses) if square_root else losses
    models = points.shape[1]
    different = min(models, len(np.unique(points, axis=0)))
    with single_thread():
        found = KMeans(different, n_init=_STARTS, random_state=seed % 2**32).fit_predict(points)
    costs = np.stack([points[found == cluster].sum(axis=0) for cluster in range(different)])
    _, columns = linear_sum_assignment(costs)
    return columns[found].astype(np.int32)
