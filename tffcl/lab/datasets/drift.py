"""Clients whose data change: some of them hold what others held before."""

import dataclasses

import numpy as np

from tffcl.errors import UserError
from tffcl.lab.datasets.core import FederatedDataset


def drifting_clients(federated: FederatedDataset, count: int, *, seed: int) -> np.ndarray:
    """Draws the clients whose data change, evenly over the true groups where there are any.

    Args:
      federated: Who holds what before.
      count: How many.
      seed: Decides which.

    Returns:
      Int64 [count], in the order in which `drifted` passes their data on: equal groups stand together.

    Raises:
      UserError: If there are fewer clients, or only one: it has nobody to exchange data with.
    """
    clients = federated.num_clients
    if not 2 <= count <= clients:
        raise UserError(f"drift.clients is {count}; it must be from 2 to the number of clients, {clients}")
    rng = np.random.default_rng(seed)
    order = rng.permutation(clients)
    if federated.true_groups is None:
        return order[:count]
    groups = federated.true_groups[order]
    # The first of every group before the second of any, and so on.
    turn = np.empty(clients, np.int64)
    for group in np.unique(groups):
        turn[groups == group] = np.arange((groups == group).sum())
    chosen = order[np.argsort(turn, kind="stable")[:count]]
    return chosen[np.argsort(federated.true_groups[chosen], kind="stable")]


def drifted(federated: FederatedDataset, clients: np.ndarray) -> FederatedDataset:
    """Lets clients exchange their data: train, test and true group.

    Each takes what stands as many places further in the list as the largest group in it has members, so that everyone
    changes its group if no group has more than half of them. The union of all data stays what it is.

    Args:
      federated: Who holds what before.
      clients: Distinct client IDs, from `drifting_clients`.
    """
    truth, held = federated.true_groups, federated.validation_indices
    step = 1 if truth is None else int(np.bincount(truth[clients]).max()) % len(clients)
    source = np.arange(federated.num_clients)
    source[clients] = np.roll(clients, -max(step, 1))
    return dataclasses.replace(
        federated,
        train_indices=tuple(federated.train_indices[client] for client in source),
        test_indices=tuple(federated.test_indices[client] for client in source),
        validation_indices=held and tuple(held[client] for client in source),
        true_groups=None if truth is None else truth[source],
    )
