"""Groupings into a given number of clusters without a tree: k-means, k-FED, a Gaussian mixture, spectral clustering.

Each takes how far clients are apart or a vector of each, and places newcomers in the clusters that there are.
"""

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
from scipy.spatial import distance
from scipy.stats import norm
from sklearn.cluster import KMeans, spectral_clustering
from sklearn.mixture import GaussianMixture

from tffcl.clustering import newcomers
from tffcl.clustering.density import nearest_groups
from tffcl.clustering.hierarchical import by_first_member
from tffcl.clustering.model_kmeans import without_dimensions
from tffcl.clustering.threads import single_thread

_STARTS = 10  # of k-means, and of the fit of a mixture by it


@dataclasses.dataclass(frozen=True)
class Grouping:
    """A way to group clients into a number of clusters.

    Attributes:
      group: `(proximity [N, N], points [N, ...], num_clusters, seed) -> int [N]`, clusters of any numbers; fewer than
        asked for where fewer clients differ.
      place: `(proximity [M + B, M + B], points [M + B, ...], labels [M]) -> int [B]`, the clusters that newcomers join;
        old clients first.
      of_points: Whether it takes points, and not the proximity alone: a vector of each client, in which Euclidean
        distances mean something.
    """

    group: Callable[[np.ndarray, np.ndarray | None, int, int], np.ndarray]
    place: Callable[[np.ndarray, np.ndarray | None, np.ndarray], np.ndarray]
    of_points: bool = True

    def __call__(self, proximity: np.ndarray, points: np.ndarray | None, num_clusters: int, seed: int) -> np.ndarray:
        """Returns the clusters `int32 [N]`, numbered from 0 in the order of their first members."""
        with single_thread():
            return by_first_member(self.group(proximity, points, num_clusters, seed))


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
    those it has already. From the paper is how centres are grouped; that a client is where most of its centres are, and
    among equals where the nearest is, is ours.

    Args:
      centres: Numbers `[N, k, d]`, NaN for a centre that is not there.
      num_clusters: K; fewer clusters where fewer centres differ, or no client has most of its centres in one.

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
    """Which of the means `[K, d]` most centres of each client `[N, k, d]` are nearest to, `int [N]`."""
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

    The similarity of two clients at distance d is exp(-(d / s)² / 2), s the median distance of two clients that are not
    at 0 from each other; the graph is cut as by Ng, Jordan and Weiss (2001).
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
    """Places newcomers in the cluster whose mean point is nearest, or is so to most of their centres; see
    `Grouping.place`."""
    del proximity
    known, arrived = points[: len(labels)], points[len(labels) :]
    if points.ndim == 2:
        return nearest_groups(known, labels, arrived)
    groups = np.unique(labels)
    means = np.stack([np.nanmean(known[labels == group].reshape(-1, points.shape[2]), axis=0) for group in groups])
    return groups[_where_most_are(arrived, means)]


def place_by_proximity(proximity: np.ndarray, points: np.ndarray | None, labels: np.ndarray) -> np.ndarray:
    """Places newcomers in the cluster to whose members they are nearest in the mean, see `Grouping.place`."""
    del points
    return newcomers.distances_to_clusters(proximity, labels, linkage="average").argmin(axis=1)


GROUPINGS: Mapping[str, Grouping] = {
    "kmeans": Grouping(kmeans, place_at_centres),
    "gaussian_mixture": Grouping(_gaussian_mixture, place_at_centres),
    "spectral": Grouping(spectral, place_by_proximity, of_points=False),
}


_FLOOR = 1e-6  # least variance of a component, as a share of that of all points along their longest axis


@dataclasses.dataclass(frozen=True, eq=False)
class Mixture:
    """A fitted mixture of K Gaussians.

    Attributes:
      labels: `int32 [N]`, the component that each point most likely comes from.
      probabilities: `float64 [N, K]`, rows sum to one: how likely it comes from each.
      variances: `float64 [K]`, of each component in each direction in which the points differ.
    """

    labels: np.ndarray
    probabilities: np.ndarray
    variances: np.ndarray


def fit_mixture(points: np.ndarray, num_components: int, seed: int = 0) -> Mixture:
    """Fits a mixture of spherical Gaussians by expectation maximisation.

    A component has one variance for all directions, as noise that makes vectors private has, and as few vectors of many
    entries leave no other choice.

    Args:
      points: Numbers `[N, d]`.
      num_components: K; where fewer points differ there are as many components as these.
      seed: Of the starts.
    """
    number = min(num_components, len(np.unique(points, axis=0)))
    if number == 1:
        spread = np.var(points, axis=0).mean(keepdims=True)
        return Mixture(np.zeros(len(points), np.int32), np.ones([len(points), 1]), spread)
    axes = without_dimensions(np.asarray(points, np.float64))
    spreads = axes.var(axis=0)
    axes, spread = axes[:, spreads > _FLOOR * spreads.max()], spreads.max()  # along the others there is rounding only
    mixture = GaussianMixture(
        number, covariance_type="spherical", n_init=_STARTS, random_state=seed % 2**32, reg_covar=_FLOOR
    )
    with single_thread():
        probabilities = mixture.fit(axes / np.sqrt(spread)).predict_proba(axes / np.sqrt(spread))
    return Mixture(probabilities.argmax(axis=1).astype(np.int32), probabilities, mixture.covariances_ * spread)


def largest_overlap(points: np.ndarray, mixture: Mixture) -> float:
    """Returns by how much the two components overlap that overlap most, from 0 for none to 1.

    It is 2 Q(d / (2 σ)) of two components whose means are d apart, σ the larger standard deviation and Q the tail of
    the standard normal distribution (the MPO of R-DPCFL, Malekmohammadi et al., TMLR 2025).

    Args:
      points: Numbers `[N, d]`, those that the mixture was fitted to.
      mixture: From `fit_mixture`; one of a single component overlaps nothing.
    """
    shares = mixture.probabilities / np.maximum(mixture.probabilities.sum(axis=0), np.finfo(float).tiny)
    apart = distance.pdist(shares.T @ points)
    if not len(apart):
        return 0.0
    spreads = np.sqrt(mixture.variances)
    larger = np.maximum.outer(spreads, spreads)[np.triu_indices(len(spreads), 1)]
    return float(2 * norm.sf(apart / (2 * larger)).max())
