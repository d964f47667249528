"""Soft clusters: how much of each cluster every client is of, by how far it is from the clusters' members."""

import numpy as np
from scipy.special import softmax


def memberships(
    proximity: np.ndarray, labels: np.ndarray, temperature: float | None = None, members: int | None = None
) -> np.ndarray:
    """Returns softmax(-distance / temperature) over the clusters for every client.

    A client's distance to a cluster is the mean proximity to its members, itself left out; that of a cluster's only
    member to it is 0.

    Args:
      proximity: Numbers `[N, N]`.
      labels: `int [N]`, the clusters, numbered from 0.
      temperature: In the unit of the proximity; None is a tenth of the mean proximity of two clients.
      members: So many first clients are members of clusters, others are just compared with them; default all.

    Returns:
      `float32 [N, K]`, which sum to one; 0 for a cluster without members.
    """
    count, members = len(labels), len(labels) if members is None else members
    if temperature is None:
        between = ~np.eye(members, dtype=bool)
        temperature = 0.1 * float(proximity[:members, :members][between].mean()) if members > 1 else 1.0
    one_hot = np.eye(labels.max() + 1)[labels]
    one_hot[members:] = 0
    others = one_hot.sum(axis=0) - one_hot
    sums = np.asarray(proximity, float) @ one_hot - one_hot * np.diag(proximity)[:, np.newaxis]
    empty = (others == 0) & (one_hot == 0)
    distances = np.where(empty, np.inf, sums / np.maximum(others, 1))
    if not members:
        return np.full([count, len(one_hot.T)], 1 / len(one_hot.T), np.float32)
    return softmax(-distances / max(temperature, np.finfo(float).tiny), axis=1).astype(np.float32)
