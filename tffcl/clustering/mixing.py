"""Mixes of models that the server makes itself, and which models it keeps."""

import numpy as np


def with_stored(mixes: np.ndarray, shares: np.ndarray, where: np.ndarray, models: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Adds the models of those who did not take part to the mixes of the cohort (FLT Alg. 3 line 17 as printed: W̄ has all).

    Args:
      mixes: `float32 [r, P]`, means over the cohort.
      shares: `[r, N]`, relatedness times number of examples.
      where: `[m]`, the cohort's columns.
      models: `float32 [K, P]`, from before the round.
      rows: `int32 [N]`, which is whose.

    Returns:
      `float32 [r, P]`, the means over all clients.
    """
    absent = np.delete(np.arange(shares.shape[1]), where)
    of_models = np.zeros((len(models), len(mixes)), np.float32)
    np.add.at(of_models, rows[absent], shares[:, absent].T)
    of_cohort, total = shares[:, where].sum(axis=1, keepdims=True), shares.sum(axis=1, keepdims=True)
    return ((of_cohort * mixes + of_models.T @ models) / total).astype(np.float32)


def only_used(models: np.ndarray, new: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Only the models that somebody has, and everyone's row among them; `rows` counts `models` first, then `new`."""
    used, renumbered = np.unique(rows, return_inverse=True)
    old = used < len(models)
    # Not the two joined and then picked from: with a model for each of many clients that is gigabytes more. Mode "clip",
    # because "raise" makes a copy of its own.
    kept = np.empty((len(used), models.shape[1]), np.float32)
    np.take(models, used[old], axis=0, out=kept[: old.sum()], mode="clip")
    np.take(new, used[~old] - len(models), axis=0, out=kept[old.sum() :], mode="clip")
    return kept, renumbered.astype(np.int32)
