"""Groups by density, whose number nobody gives (FLUX): DBSCAN at a distance that the data say."""

from collections.abc import Mapping

import numpy as np
from scipy.spatial import distance
from sklearn.cluster import DBSCAN

from tffcl.clustering import hierarchical

_LEAST_SPREAD = 1e-12  # of a descriptor, below which it says nothing


def scaled(descriptors: Mapping[str, np.ndarray], spreads: Mapping[str, float] | None = None) -> tuple[np.ndarray, dict]:
    """Lays descriptors out as vectors, each kind divided by its standard deviation over all clients and entries.

    Args:
      descriptors: Arrays `[N, ...]` by name.
      spreads: The deviations of an earlier call, for newcomers; None: those of these clients.

    Returns:
      `(float64 [N, d], {name: deviation})`.
    """
    if spreads is None:
        spreads = {name: max(float(np.std(value)), _LEAST_SPREAD) for name, value in descriptors.items()}
    parts = [np.asarray(value, np.float64).reshape(len(value), -1) / spreads[name] for name, value in descriptors.items()]
    return np.concatenate(parts, axis=1), dict(spreads)


def knee_distance(apart: np.ndarray) -> float:
    """Returns the distance to the nearest neighbour at which the clients' sorted distances bend upwards most.

    The knee is where the convex curve, scaled to the unit square, lies farthest below the diagonal (Kneedle: Satopää et al.
    2011).

    Args:
      apart: `float [N, N]`, N from 2, zero on the diagonal.
    """
    nearest = np.sort(np.where(np.eye(len(apart), dtype=bool), np.inf, apart).min(axis=1))
    rise = nearest[-1] - nearest[0]
    if rise <= 0:
        return float(nearest[-1])
    below = np.linspace(0, 1, len(nearest)) - (nearest - nearest[0]) / rise
    return float(nearest[below.argmax()])


def gap_distance(apart: np.ndarray) -> float:
    """Returns where the tree of single linkage is cut by `hierarchical.suggest_threshold`."""
    return hierarchical.suggest_threshold(hierarchical.build_dendrogram(apart, "single")).threshold


def nearest_groups(known: np.ndarray, labels: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Returns for each of the points `[M, d]` the group, of `labels [N]` of `known [N, d]`, whose mean is nearest, `int32 [M]`."""
    groups = np.unique(labels)
    centres = np.stack([known[labels == group].mean(axis=0) for group in groups])
    return groups[distance.cdist(points, centres).argmin(axis=1)].astype(np.int32)


NEIGHBOURHOODS = {
    "knee": "the distance to the nearest neighbour at which the clients' sorted ones bend upwards most (the authors' code)",
    "gap": "where the tree of single linkage has its largest relative gap, as in the other methods that cut a tree",
}


def dense_groups(points: np.ndarray, neighbourhood: str = "knee", scale: float = 1.0) -> tuple[np.ndarray, float]:
    """Groups points whose neighbours are near; one that is near to nobody is a group of its own.

    DBSCAN with two points to a neighbourhood: the connected parts of "nearer than eps", as single linkage cut at eps.

    Args:
      points: `float [N, d]`.
      neighbourhood: A name in `NEIGHBOURHOODS`: how eps is found.
      scale: What that distance is multiplied by for eps.

    Returns:
      `(labels int32 [N], eps)`.
    """
    apart = distance.squareform(distance.pdist(points))
    if len(points) < 2:
        return np.zeros(len(points), np.int32), 0.0
    found = knee_distance(apart) if neighbourhood == "knee" else gap_distance(apart)
    eps = scale * found
    # Of equal points the distance is 0, and eps must be above it.
    labels = DBSCAN(eps=max(eps, np.finfo(float).tiny), min_samples=2, metric="precomputed").fit_predict(apart)
    alone = labels < 0
    labels[alone] = labels.max() + 1 + np.arange(alone.sum())
    return labels.astype(np.int32), eps
