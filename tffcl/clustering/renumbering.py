"""Clusters that are formed anew: which of the clusters before each goes on, and from what model it starts."""

import numpy as np
from scipy.optimize import linear_sum_assignment


def renumbered(labels: np.ndarray, before: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Orders clusters as those before that most of their members were in, and tells who is in another one than before.

    Args:
      labels: `int [N]`, from 0.
      before: `int [N]`, from 0.

    Returns:
      `int32 [N]`, the same clusters, numbered from 0 without gaps: where one has gone, those after it move up. And `bool
      [N]`, who is not in the cluster that goes on where it was.
    """
    shared = np.zeros((labels.max() + 1, max(before.max(), labels.max()) + 1), np.int64)
    np.add.at(shared, (labels, before), 1)
    _, number = linear_sum_assignment(shared, maximize=True)
    _, dense = np.unique(number, return_inverse=True)
    return dense[labels].astype(np.int32), number[labels] != before


def mean_of_members(models: np.ndarray, before: np.ndarray, labels: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The models that clusters start from when they are formed anew: their members' models so far, weighted by examples.

    The paper does not say where the new clusters' models come from.

    Args:
      models: `float32 [K, P]`.
      before: `int [N]`, whose model is which row.
      labels: `int [N]`, the new clusters, from 0.
      sizes: `[N]`, training examples.

    Returns:
      `float32 [K', P]`.
    """
    shares = np.zeros((labels.max() + 1, len(models)))
    np.add.at(shares, (labels, before), sizes)
    return (shares / shares.sum(axis=1, keepdims=True)).astype(np.float32) @ models
