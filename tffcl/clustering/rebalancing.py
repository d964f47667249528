"""Clusters of a least size: clients of large ones move at random (RR-Cluster, Yang et al. 2025, arXiv:2508.06183)."""

import numpy as np


def rebalanced(choices: np.ndarray, clusters: int, least: int, rng: np.random.Generator) -> np.ndarray:
    """Moves clients one by one, each drawn from those whose cluster has more than the least size, until no cluster has
    less.

    Args:
      choices: `int [m]`, the clusters that clients chose.
      clusters: K.
      least: B; where there are too few clients as many as each cluster can have.
      rng: Draws them.

    Returns:
      `int32 [m]`.
    """
    found, least = np.array(choices, np.int32), min(least, len(choices) // clusters)
    for cluster in range(clusters):
        for _ in range(least - np.sum(found == cluster)):
            large = np.bincount(found, minlength=clusters) > least
            found[rng.choice(np.flatnonzero(large[found]))] = cluster
    return found


def moving_shares(sizes: np.ndarray, least: int) -> np.ndarray:
    """Returns which share of each cluster must move to each, so that all are expected to have the least size.

    Args:
      sizes: `float [K]`, how many clients are expected to choose each.
      least: B, as of `rebalanced`.

    Returns:
      `float64 [K, K]`, rows sum to 1: large clusters give in proportion to what they have above the least size.
    """
    sizes = np.maximum(np.asarray(sizes, np.float64), 0)
    least = min(least, sizes.sum() / len(sizes))
    lacking, above = np.maximum(least - sizes, 0), np.maximum(sizes - least, 0)
    if not lacking.sum():
        return np.eye(len(sizes))
    given = np.divide(lacking.sum() * above / above.sum(), sizes, out=np.zeros(len(sizes)), where=sizes > 0)
    return np.diag(1 - given) + np.outer(given, lacking / lacking.sum())


def sizes_before(sizes: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Returns how many clients chose each cluster, `float64 [K]`, of which so many were left when shares had moved."""
    return np.maximum(np.linalg.lstsq(shares.T, np.asarray(sizes, np.float64), rcond=None)[0], 0)
