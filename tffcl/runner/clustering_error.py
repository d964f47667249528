"""How far the clusters of a round are from the truth (FLIS, section III-D and Fig. 3)."""

import numpy as np

from tffcl.algorithms.contracts import RoundMetrics


def truly_related(federated, client_ids: np.ndarray) -> np.ndarray:
    """Which clients belong together.

    Where the partition has groups, those of the same group. Else by labels, as the FLIS authors' code: client j belongs to
    client i's cluster if it has at least half of i's labels (rounded up). That relation need not be symmetric.

    Args:
      federated: Who holds what (a `datasets.core.FederatedDataset`).
      client_ids: `[m]`.

    Returns:
      `bool [m, m]`, true on the diagonal.
    """
    if federated.true_groups is not None:
        groups = federated.true_groups[client_ids]
        return groups[:, np.newaxis] == groups[np.newaxis, :]
    labels, classes = federated.train.y, int(federated.train.y.max()) + 1
    held = np.stack([np.bincount(labels[federated.train_indices[client]], minlength=classes) > 0 for client in client_ids])
    shared = held.astype(np.int64) @ held.T
    return shared >= np.ceil(held.sum(axis=1, keepdims=True) / 2)


def clustering_error(federated, metrics: RoundMetrics) -> float:
    """False positives and false negatives of a round's relatedness, mean over the clients of the cohort.

    Args:
      federated: Who holds what.
      metrics: Of the round, with a relatedness.

    Returns:
      From 0 to the cohort's size minus 1.
    """
    related = metrics.relatedness > 0
    return float((related != truly_related(federated, metrics.client_ids)).sum(axis=1).mean())
