"""How far the clusters of a round are from the truth (FLIS, section III-D and Fig. 3)."""

import numpy as np

from tffcl.clients.population import Population
from tffcl.rounds.traffic import RoundMetrics


def truly_related(population: Population, client_ids: np.ndarray) -> np.ndarray | None:
    """Which clients belong together.

    Where the partition has groups, those of the same group. Else by labels, as the FLIS authors' code: client j belongs to
    client i's cluster if it has at least half of i's labels (rounded up). That relation need not be symmetric.

    Args:
      population: The clients that there are, with groups or label counts.
      client_ids: `[m]`.

    Returns:
      `bool [m, m]`, true on the diagonal; None where neither groups nor labels are known.
    """
    rows = population.index(client_ids)
    if population.groups is not None:
        groups = population.groups[rows]
        return groups[:, np.newaxis] == groups[np.newaxis, :]
    if population.label_counts is None:
        return None
    held = population.label_counts[rows] > 0
    shared = held.astype(np.int64) @ held.T
    return shared >= np.ceil(held.sum(axis=1, keepdims=True) / 2)


def clustering_error(population: Population, metrics: RoundMetrics) -> float | None:
    """False positives and false negatives of a round's relatedness, mean over the clients of the cohort.

    Args:
      population: The clients that there are.
      metrics: Of the round, with a relatedness.

    Returns:
      From 0 to the cohort's size minus 1.
    """
    truth = truly_related(population, metrics.client_ids)
    return None if truth is None else float(((metrics.relatedness > 0) != truth).sum(axis=1).mean())
