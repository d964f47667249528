"""Whom clients see alike, by how their losses go beside those of others (FedGWC, ICML 2025, arXiv:2502.03340)."""

import warnings

import numpy as np
from scipy.spatial import distance
from sklearn.cluster import SpectralClustering
from sklearn.manifold import SpectralEmbedding
from sklearn.metrics import davies_bouldin_score

from tffcl.clustering.threads import single_thread

_LEAST_VARIANCE = 1e-16  # the authors' code's


def gaussian_weights(losses: np.ndarray, examples: np.ndarray) -> np.ndarray:
    """Weighs the clients of a round by how near their losses are to the mean: of each local step a reward
    exp(-(l - μ)² / 2σ²), of these the mean, and of that the share in the sum over the clients.

    Args:
      losses: `float [m, S]`, each client's losses at S steps of its local training.
      examples: `int [m]`, how much it counts in μ and σ².

    Returns:
      `float64 [m]`, which sum to 1.
    """
    losses, shares = np.asarray(losses, np.float64), np.asarray(examples, np.float64) / np.sum(examples)
    apart = (losses - shares @ losses) ** 2
    rewards = np.exp(-apart / 2 / (shares @ apart + _LEAST_VARIANCE)).mean(axis=1)
    return rewards / rewards.sum()


def affinity_of_perceptions(interactions: np.ndarray, gamma: float) -> np.ndarray:
    """Compares how clients see all others: exp(-γ ‖v_i - v_j‖²), v_i column i of the interactions, scaled to 0 to 1,
    without the entries of i and j themselves (unbiased perception vectors).

    Args:
      interactions: P `float [n, n]`: row i has the weights of client i beside each other client.
      gamma: γ.

    Returns:
      `float64 [n, n]`, symmetric, with a zero diagonal.
    """
    seen = np.asarray(interactions, np.float64).T
    seen = (seen - seen.min()) / max(seen.max() - seen.min(), 1e-8)
    own = (seen.diagonal()[:, np.newaxis] - seen.T) ** 2  # (i, j): what i and j see of i
    apart = distance.squareform(distance.pdist(seen, "sqeuclidean")) - own - own.T
    found = np.exp(-gamma * np.maximum(apart, 0))
    np.fill_diagonal(found, 0)
    return found


def split(affinity: np.ndarray, most: int, seed: int) -> np.ndarray | None:
    """Splits a cluster by spectral clustering into as many parts as have the least Davies-Bouldin score in the spectral
    embedding.

    Args:
      affinity: `float [n, n]` of its clients.
      most: So many parts at most.
      seed: Where eigenvectors are searched from.

    Returns:
      `int32 [n]`, the part of each client; None where no score is below 1 or all are alike, so that the
      cluster stays whole.
    """
    others = affinity[~np.eye(len(affinity), dtype=bool)]
    if np.ptp(others) < 1e-9:  # all alike: every embedding is as good, and which one is found is a matter of rounding
        return None
    best, found = 1.0, None
    for parts in range(2, min(most, len(affinity) - 1) + 1):
        options = {"n_components": parts, "affinity": "precomputed", "random_state": seed % 2**32}
        with single_thread(), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of clients that nobody is like
            labels = SpectralClustering(parts, assign_labels="cluster_qr", **options).fit_predict(affinity)
            embedded = SpectralEmbedding(**options).fit_transform(affinity)
        if len(np.unique(labels)) == parts and (score := davies_bouldin_score(embedded, labels)) < best:
            best, found = score, labels.astype(np.int32)
    return found
