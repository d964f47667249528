"""Which models FedDrift merges: those that do about as well on each other's data (AISTATS 2023, arXiv:2206.00799)."""

import numpy as np

from tffcl.clustering.hierarchical import build_dendrogram, cut


def cross_losses(losses: np.ndarray, clusters: np.ndarray, examples: np.ndarray) -> np.ndarray:
    """Returns the loss of each cluster's model on the data of each cluster.

    Args:
      losses: `float [m, K]`; row c has client c's mean losses under the K models.
      clusters: `int [m]`, the cluster of each client.
      examples: `int [m]`, how many examples each has its losses on.

    Returns:
      L `float64 [K, K]`: entry (i, j) is the mean loss of model i over the examples of cluster j's clients; NaN in the
      columns of clusters that none of the clients is in.
    """
    found = np.full([losses.shape[1]] * 2, np.nan)
    for cluster in np.unique(clusters):
        members = clusters == cluster
        found[:, cluster] = np.average(losses[members].astype(np.float64), axis=0, weights=examples[members])
    return found


def merged_clusters(apart: np.ndarray, threshold: float) -> np.ndarray:
    """Finds which clusters merge: those of complete linkage up to δ, where i and j are max(L_ij - L_ii, L_ji - L_jj, 0)
    apart.

    A cluster on whose data no loss of its own model is known, or none that is finite, merges with nobody.

    Args:
      apart: L `float64 [K, K]`, from `cross_losses`.
      threshold: δ.

    Returns:
      `int32 [K]`: labels 0..K'-1, in the order of each one's first cluster.
    """
    labels, known = np.arange(len(apart)), np.flatnonzero(np.isfinite(apart.diagonal()))
    if len(known):
        worse = apart[np.ix_(known, known)] - apart.diagonal()[known][:, np.newaxis]
        distances = np.minimum(np.fmax(np.fmax(worse, worse.T), 0), np.finfo(np.float32).max)
        groups = cut(build_dendrogram(distances, "complete"), threshold=threshold)
        labels[known] = known[np.unique(groups, return_index=True)[1]][groups]
    return np.unique(labels, return_inverse=True)[1].astype(np.int32)


def merged_models(models: np.ndarray, labels: np.ndarray, members: np.ndarray) -> np.ndarray:
    """Returns the models `float32 [K', P]` of clusters that merged: means, weighted by the clients of each.

    Args:
      models: `float32 [K, P]`, before.
      labels: `int32 [K]`, the cluster of now that each has become a part of.
      members: `int32 [M]`, the cluster of before of each client that counts; of those that merge somebody does.
    """
    found = models[np.unique(labels, return_index=True)[1]]
    for label in np.flatnonzero(np.bincount(labels) > 1):
        parts = np.flatnonzero(labels == label)
        found[label] = np.average(models[parts], axis=0, weights=np.bincount(members, minlength=len(labels))[parts])
    return found
