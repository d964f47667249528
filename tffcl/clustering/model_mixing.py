"""Mixes of models that the server makes itself, and which models it keeps."""

import numpy as np

from tffcl.clients.large_rows import joined, let_go, slices


def with_stored(mixes: np.ndarray, shares: np.ndarray, where: np.ndarray, models: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Adds the models of those who did not take part to the mixes of the cohort (FLT Alg. 3 line 17: W̄ has all).

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

    def parts():
        for few in slices(len(mixes), mixes[:1].nbytes):
            yield (of_cohort[few] * mixes[few] + of_models[:, few].T @ models) / total[few]
            let_go(models)
            let_go(mixes)

    return joined(parts(), mixes.shape)


def only_used(models: np.ndarray, new: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Only the models that somebody has, and everyone's row among them; `rows` counts `models` first, then `new`."""
    used, renumbered = np.unique(rows, return_inverse=True)
    renumbered = renumbered.astype(np.int32)
    old, added = used[used < len(models)], used[used >= len(models)] - len(models)
    if not len(old) and len(added) == len(new):
        return new, renumbered

    def parts():
        for source, wanted in ((models, old), (new, added)):
            for few in slices(len(wanted), source[:1].nbytes):
                yield source[wanted[few]]
                let_go(source)

    return joined(parts(), (len(used), models.shape[1])), renumbered
