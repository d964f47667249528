"""Splits of a cluster by the directions in which its members want to move (CFL section IV)."""

import numpy as np

from tffcl.clustering import hierarchical
from tffcl.clustering.stochastic import cosine_distances


def bipartition(updates: np.ndarray, linkage: str = "single", gate: float | None = None) -> np.ndarray | None:
    """Splits clients into two halves by the cosines of their updates (Sattler et al. 2021, Alg. 1).

    Args:
      updates: `float32 [m, P]`, m from 2.
      linkage: "single" makes the largest cosine across the halves as small as it can be: single linkage cut at two is that
        min-max bipartition. "complete" is what the authors' notebook does.
      gate: γ; split only if sqrt((1 - α) / 2) is above it, α the largest cosine across the halves. None: always.

    Returns:
      `bool [m]`, who is in the second half; None where the gate is closed.
    """
    apart = cosine_distances(updates)
    second = hierarchical.cut(hierarchical.build_dendrogram(apart, linkage), num_clusters=2) == 1
    if gate is not None and np.sqrt(apart[second][:, ~second].min() / 2) <= gate:
        return None
    return second


def nearer_second(updates: np.ndarray, halves: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Returns `bool [n]`: which of the updates `[n, P]` are most like one of the second half's, of halves `[m1, P]` and `[m2, P]`."""
    first, second = (cosine_distances(updates, half).min(axis=1) for half in halves)
    return second < first
