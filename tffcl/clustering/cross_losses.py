"""Which models FedDrift's clients take, open and merge, by their losses under all of them (AISTATS 2023,
arXiv:2206.00799)."""

import dataclasses

import numpy as np

from tffcl.clustering.hierarchical import build_dendrogram, cut


@dataclasses.dataclass(frozen=True, eq=False)
class Concepts:
    """What the losses of m clients say of K models, which are K' with those that are opened.

    Attributes:
      chosen: `int32 [m]`, the model of each client, before any merge.
      least: `float [m]`, its least loss under the K models.
      drifted: `bool [m]`, whose least loss has risen by more than δ; each of them opens a model, or all open one.
      origins: `int [K']`, the models that these are, or are copies of.
      untrained: `bool [K']`, which nobody has trained yet.
      labels: `int32 [K']`, the one that each is merged into, in the order of their first parts.
    """

    chosen: np.ndarray
    least: np.ndarray
    drifted: np.ndarray
    origins: np.ndarray
    untrained: np.ndarray
    labels: np.ndarray

    @property
    def first(self) -> np.ndarray:
        """`int [L]`, the first of the K' models that each one after the merges is made of."""
        return np.unique(self.labels, return_index=True)[1]


def find_concepts(
    losses: np.ndarray,
    owners: np.ndarray,
    before: np.ndarray,
    untrained: np.ndarray,
    examples: np.ndarray,
    *,
    threshold: float,
    eager: bool,
) -> Concepts:
    """Finds which models clients take and open, and which merge.

    Args:
      losses: `float [m, K]`; row c has client c's mean losses under the K models.
      owners: `int [m]`, the model of each client.
      before: `float [m]`, the least loss of each when it was last asked.
      untrained: `bool [K]`, which nobody has trained yet.
      examples: `int [m]`, how many examples each has its losses on.
      threshold: δ.
      eager: Whether all that have drifted open one model, and none merge (FedDrift-Eager).
    """
    count, (best, least) = losses.shape[1], best_models(losses, owners, untrained)
    drifted = (least > before + threshold) & ~untrained[owners]
    founders, chosen = best[drifted][: 1 if eager else None], best.copy()
    chosen[drifted] = count + np.arange(drifted.sum()) * (not eager)
    origins, untrained = np.append(np.arange(count), founders), np.append(untrained, np.ones(len(founders), bool))
    if eager:
        return Concepts(chosen, least, drifted, origins, untrained, np.arange(len(origins), dtype=np.int32))
    rows = np.append(np.arange(len(chosen)), np.flatnonzero(~drifted))  # of what clients have now, and had before
    apart = cross_losses(losses[rows], np.append(chosen, owners[~drifted]), examples[rows], untrained)
    return Concepts(chosen, least, drifted, origins, untrained, merged_clusters(apart, threshold))


def best_models(losses: np.ndarray, owners: np.ndarray, untrained: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns of each client the model of least loss, `int32 [m]`, and that loss.

    Args:
      losses: `float [m, K]`; row c has client c's mean losses under the K models.
      owners: `int [m]`, the model of each client, or -1.
      untrained: `bool [K]`, the models that nobody has trained yet: they are only for their owners.
    """
    closed = untrained & (owners[:, np.newaxis] != np.arange(losses.shape[1]))
    best = np.where(closed, np.inf, losses).argmin(axis=1).astype(np.int32)
    return best, losses[np.arange(len(best)), best]


def cross_losses(losses: np.ndarray, clusters: np.ndarray, examples: np.ndarray, untrained: np.ndarray) -> np.ndarray:
    """Returns the loss of each cluster's model on the data of each cluster.

    Args:
      losses: `float [m, K]`; row c has client c's mean losses under the K models that were tried.
      clusters: `int [m]`, the cluster of each client.
      examples: `int [m]`, how many examples each has its losses on.
      untrained: `bool [K']`, which models nobody has trained yet; those from K on are among them.

    Returns:
      L `float64 [K', K']`: entry (i, j) is the mean loss of model i over the examples of cluster j's clients; NaN in
      the rows of untrained models and the columns of clusters that none of the clients is in.
    """
    found = np.full([len(untrained)] * 2, np.nan)
    for cluster in np.unique(clusters):
        members = clusters == cluster
        tried = np.average(losses[members].astype(np.float64), axis=0, weights=examples[members])
        found[: len(tried), cluster] = tried
    found[untrained] = np.nan
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


def merged_models(models: np.ndarray, origins: np.ndarray, labels: np.ndarray, members: np.ndarray) -> np.ndarray:
    """Returns the models `float32 [L, P]` of clusters that merged: means, weighted by the clients of each.

    Args:
      models: `float32 [K, P]`, before.
      origins: `int [K']`, of which of these each is a copy that is there before the merges.
      labels: `int32 [K']`, the one of the L that each has become a part of.
      members: `int32 [M]`, which of the K' each client that counts has; of those that merge somebody does.
    """
    found = models[origins[np.unique(labels, return_index=True)[1]]]
    for label in np.flatnonzero(np.bincount(labels) > 1):
        parts = np.flatnonzero(labels == label)
        weights = np.bincount(members, minlength=len(labels))[parts]
        found[label] = np.average(models[origins[parts]], axis=0, weights=weights)
    return found
