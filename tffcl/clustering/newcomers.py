"""Clients that arrive after clustering: the extended proximity matrix and their clusters.

Source: PACFL (AAAI 2023), Alg. 2 (proximity matrix extension) and Alg. 3 (newcomers).
"""

import numpy as np

from tffcl.clustering import hierarchical
from tffcl.errors import UserError


def extend_proximity(proximity: np.ndarray, cross: np.ndarray, within: np.ndarray) -> np.ndarray:
    """Puts the extended proximity matrix together (PACFL Alg. 2).

    Args:
      proximity: Numbers [M, M]: the old clients among themselves.
      cross: Numbers [M, B]: old clients by new clients.
      within: Numbers [B, B]: the new clients among themselves.

    Returns:
      [M + B, M + B] of the common type: old clients first, in their order.

    Raises:
      UserError: If the shapes do not fit together.
    """
    proximity, cross, within = (np.asarray(block) for block in (proximity, cross, within))
    old = proximity.shape[0] if proximity.ndim else 0
    new = within.shape[0] if within.ndim else 0
    if proximity.shape != (old, old) or within.shape != (new, new) or cross.shape != (old, new):
        raise UserError(
            f"proximity {proximity.shape}, cross {cross.shape} and within {within.shape} do not fit; they "
            "must be [M, M], [M, B] and [B, B]"
        )
    return np.block([[proximity, cross], [cross.T, within]])


def distances_to_clusters(proximity: np.ndarray, labels: np.ndarray, *, linkage: str) -> np.ndarray:
    """Computes how far each newcomer is from each existing cluster.

    The distance follows the linkage: the lowest ("single"), the largest ("complete") or the mean ("average",
    "weighted") proximity to the cluster's members, or the height at which the newcomer alone would merge with it
    ("ward"). For "weighted" (WPGMA) that is a choice: its distance depends on the order in which the members merged,
    which is not kept.

    Args:
      proximity: Numbers [M + B, M + B], from `extend_proximity`.
      labels: Integers [M], the old clients' clusters, numbered from 0.
      linkage: One of `choices.WITH_WARD`.

    Returns:
      Float64 [B, K] with K = largest label + 1, unit of the proximity; infinity for a number without members.

    Raises:
      UserError: For an unknown linkage, or if proximity or labels are not as described.
    """
    hierarchical.check_linkage(linkage)
    proximity = hierarchical.check_proximity(proximity)
    labels = _checked_labels(labels, len(proximity))
    clusters = int(labels.max(initial=-1)) + 1
    order = np.argsort(labels, kind="stable")
    # Members of a cluster are put side by side, so that one reduction handles all clusters.
    cross = proximity[len(labels) :][:, order].astype(np.float64)
    present, starts, sizes = np.unique(labels[order], return_index=True, return_counts=True)
    result = np.full((len(cross), clusters), np.inf)
    if len(present) == 0:
        return result
    if linkage == "single":
        result[:, present] = np.minimum.reduceat(cross, starts, axis=1)
    elif linkage == "complete":
        result[:, present] = np.maximum.reduceat(cross, starts, axis=1)
    elif linkage == "ward":
        squares = np.add.reduceat(cross**2, starts, axis=1) / sizes - _spreads(
            proximity[np.ix_(order, order)], starts, sizes
        )
        result[:, present] = np.sqrt(np.maximum(2 * sizes / (sizes + 1) * squares, 0))
    else:
        result[:, present] = np.add.reduceat(cross, starts, axis=1) / sizes
    return result


def assign_newcomers(proximity: np.ndarray, labels: np.ndarray, *, threshold: float, linkage: str) -> np.ndarray:
    """Gives newcomers the nearest existing cluster, or new clusters (PACFL Alg. 3).

    Alg. 3 line 4 runs HC again on the extended matrix. Taken literally, that can change the cluster of an
    old client: a newcomer between two clusters can bridge them, a new nearest pair changes the order of the
    merges, and the numbering starts afresh. The paper states the opposite as a property ("without altering
    the cluster IDs of the other clients", section 2), and old clients' models belong to their cluster IDs.
    This function keeps the stated property:

    1. Old labels stay.
    2. A newcomer joins the nearest existing cluster if its distance (see `distances_to_clusters`) is at most
       the threshold; the lower label wins a tie. Newcomers are taken one by one against the old clients
       only, so their order does not matter. Except with "single", a copy of a member at the fringe of a
       wide cluster can be nearer to another cluster, by this distance, than to its own.
    3. The others are clustered among themselves at the same threshold and linkage; their clusters get the
       labels from K on.

    Args:
      proximity: Numbers [M + B, M + B], from `extend_proximity`; old clients first. M or B may be 0.
      labels: Integers [M], the old clients' clusters, numbered from 0.
      threshold: The threshold that cut the old clients' tree (unit of the proximity).
      linkage: One of `choices.WITH_WARD`.

    Returns:
      Int32 [M + B]; the first M are `labels`.

    Raises:
      UserError: For an unknown linkage, a negative or NaN threshold, or if proximity or labels are not as
        described.
    """
    threshold = hierarchical.check_threshold(threshold)
    distances = distances_to_clusters(proximity, labels, linkage=linkage)
    proximity, labels = np.asarray(proximity), np.asarray(labels, np.int32)
    new, clusters = distances.shape
    joined = np.full(new, -1, np.int32)
    if clusters:
        nearest = distances.argmin(axis=1)
        near = distances[np.arange(new), nearest] <= threshold
        joined[near] = nearest[near]
    rest = np.flatnonzero(joined < 0)
    if len(rest):
        places = len(labels) + rest
        dendrogram = hierarchical.build_dendrogram(proximity[np.ix_(places, places)], linkage)
        joined[rest] = clusters + hierarchical.cut(dendrogram, threshold=threshold)
    return np.concatenate([labels, joined])


def _spreads(proximity: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Mean squared distance of each cluster's members to their mean, float64 [K]; members stand side by side."""
    ends = starts + sizes
    blocks = [proximity[start:end, start:end].astype(np.float64) for start, end in zip(starts, ends)]
    return np.array([(block**2).mean() / 2 for block in blocks])


def _checked_labels(labels: np.ndarray, clients: int) -> np.ndarray:
    """Returns the old labels as int32, or raises UserError."""
    labels = np.asarray(labels)
    if labels.size == 0:
        labels = labels.astype(np.int32)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) > clients:
        raise UserError(
            f"labels are {labels.dtype} of shape {labels.shape}; they must be whole numbers, one per old "
            f"client and at most {clients}"
        )
    if labels.min(initial=0) < 0:
        raise UserError(f"labels have {labels.min()}; clusters are numbered from 0")
    return labels.astype(np.int32)
