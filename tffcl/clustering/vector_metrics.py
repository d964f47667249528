"""Metrics of clients whose signature is one vector, or any structure that can be laid out as one."""

from collections.abc import Mapping

import numpy as np
from scipy.spatial import distance

from tffcl.clustering.stochastic import cosine_distances

VECTOR_METRICS = {
    "euclidean": "the Euclidean distance of the signatures",
    "cosine": "1 minus the cosine of the signatures",
}


def vector_distances(metric: str, first: Mapping, second: Mapping | None) -> np.ndarray:
    """Returns how far clients are apart.

    Args:
      metric: A name in `VECTOR_METRICS`.
      first: Arrays `[N, ...]` by name.
      second: Arrays `[M, ...]` by name, or None for the first's clients among each other.

    Returns:
      `float32 [N, M]`, or `[N, N]` with a diagonal of 0.
    """
    points = as_vectors(first)
    others = None if second is None else as_vectors(second)
    if metric == "cosine":
        return cosine_distances(points, others)
    if others is None:
        return distance.squareform(distance.pdist(points)).astype(np.float32)
    return distance.cdist(points, others).astype(np.float32)


def as_vectors(signatures: Mapping[str, np.ndarray]) -> np.ndarray:
    """Lays the arrays `[N, ...]` of each client's signature out as one vector, `float64 [N, d]`."""
    return np.concatenate([np.asarray(each, np.float64).reshape(len(each), -1) for each in signatures.values()], axis=1)
