"""Groups by density, of which no number is given (FLUX): DBSCAN at a distance that is found in the data."""

from collections.abc import Mapping

import numpy as np
from scipy.spatial import distance
from sklearn.cluster import DBSCAN

from tffcl.clustering import hierarchical


def scaled(
    descriptors: Mapping[str, np.ndarray], spans: Mapping[str, np.ndarray] | None = None
) -> tuple[np.ndarray, dict]:
    """Lays descriptors out as vectors, each block divided by its span over all clients and entries (the authors'
    min-max scaling).

    Where a block begins is left as it is: it moves no distance.

    Args:
      descriptors: Arrays `[N, ..., d]` by name; the last axis is the entries of a block, those before it number the
        blocks.
      spans: What an earlier call returned, for newcomers; None: those of these clients.

    Returns:
      `(float64 [N, entries of all blocks], {name: span of each block, float64 [...]})`.
    """
    arrays = {name: np.asarray(value, np.float64) for name, value in descriptors.items()}
    if spans is None:
        spans = {name: np.ptp(value, axis=(0, -1)) for name, value in arrays.items()}
    parts = [value / np.where(spans[name] > 0, spans[name], 1.0)[..., np.newaxis] for name, value in arrays.items()]
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1), dict(spans)


def knee_distance(apart: np.ndarray) -> float:
    """Returns the distance to the nearest neighbour at which the clients' sorted distances bend upwards.

    Kneedle (Satopää et al. 2011, section III) for a convex curve that rises, with sensitivity 1: of the curve, scaled
    to the unit square and turned about its middle, less the diagonal, the first local maximum after which that falls by
    more than a mean step before it rises again. A curve without a knee gives its largest distance, which leaves nobody
    alone.

    Args:
      apart: `float [N, N]`, zero on the diagonal; of a single client it is 0.
    """
    if len(apart) < 2:
        return 0.0
    nearest = np.sort(np.where(np.eye(len(apart), dtype=bool), np.inf, apart).min(axis=1))
    rise, last, peak = nearest[-1] - nearest[0], len(nearest) - 1, None
    if rise <= 0:
        return float(nearest[-1])
    # Two clients that are each other's nearest have one distance, and the curve then falls by a mean step to the last
    # bit: whether that is more than one is rounding, so each operation is that of the package kneed, which the authors
    # use.
    diagonal = np.flip(1 - np.arange(last + 1) / last)
    above = np.flip(1 - (nearest - nearest[0]) / rise) - diagonal
    step = np.diff(diagonal).mean()
    for place in range(last):
        before, here, after = above[max(place - 1, 0)], above[place], above[place + 1]
        if here >= max(before, after):
            peak = place
        if here <= min(before, after):
            peak = None
        if peak is not None and after < above[peak] - step:
            return float(nearest[last - peak])
    return float(nearest[-1])


def nearest_groups(known: np.ndarray, labels: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Returns for each of the points `[M, d]` the group, of `labels [N]` of `known [N, d]`, whose mean is nearest,
    `int32 [M]`."""
    groups = np.unique(labels)
    centres = np.stack([known[labels == group].mean(axis=0) for group in groups])
    return groups[distance.cdist(points, centres).argmin(axis=1)].astype(np.int32)


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
    if neighbourhood == "knee":
        found = knee_distance(apart)
    else:
        found = hierarchical.suggest_threshold(hierarchical.build_dendrogram(apart, "single")).threshold
    eps = scale * found
    # Of equal points the distance is 0, and eps must be above it.
    labels = DBSCAN(eps=max(eps, np.finfo(float).tiny), min_samples=2, metric="precomputed").fit_predict(apart)
    alone = labels < 0
    labels[alone] = labels.max() + 1 + np.arange(alone.sum())
    return labels.astype(np.int32), eps
