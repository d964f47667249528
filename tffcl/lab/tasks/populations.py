"""From a federated data set to the clients that computations see, in every round of a run."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from tffcl.clients import sampling
from tffcl.clients.client_examples import ClientExamples
from tffcl.clients.population import Population
from tffcl.errors import UserError
from tffcl.lab.datasets.core import FederatedDataset
from tffcl.lab.datasets.images import Images
from tffcl.lab.tasks.resolve import RunConfig


def build_population(federated: FederatedDataset, clients=None, *, changed=()) -> Population:
    """Makes the population of a `lab.datasets.core.FederatedDataset`.

    Args:
      federated: Who holds what.
      clients: Only these client IDs; default all.
      changed: Clients whose data are not what they were at first.
    """
    ids = np.arange(federated.num_clients) if clients is None else np.sort(np.asarray(clients))
    counts = federated.label_counts()

    def of_clients(images: Images, indices):
        # Clients that hold the same array of indices share their examples, hence one data set.
        examples = {id(rows): ClientExamples(images.x, images.y, rows) for rows in (indices[client] for client in ids)}
        return {client: examples[id(indices[client])] for client in ids.tolist()}

    return Population(
        ids.astype(np.int32),
        of_clients(federated.train, federated.train_indices),
        of_clients(federated.test, federated.test_indices),
        federated.validation_indices and of_clients(federated.train, federated.validation_indices),
        versions=np.isin(ids, changed).astype(np.int32),
        label_counts=None if counts is None else counts[ids],
        groups=None if federated.true_groups is None else federated.true_groups[ids],
        note=federated.note,
        label_names=federated.class_names,
        names=None if federated.client_names is None else np.array(federated.client_names)[ids],
    )


def build_populations(config: RunConfig, federated: FederatedDataset) -> tuple[Population, Mapping[int, Population]]:
    """Makes the populations of a run: before the first round, and from later rounds on where clients join or data
    change.

    Returns:
      `(population, {round: population from then on})`.
    """
    participants, _ = held_out(config, federated)
    changes = {config.newcomers.round if config.newcomers.any else 0, config.drift.round if config.drift.clients else 0}
    return build_population(federated, participants), {
        start: population_in(config, federated, start) for start in sorted(changes - {0})
    }


def population_in(config: RunConfig, federated: FederatedDataset, round_number: int) -> Population:
    """Makes the population that holds in a round of a run; 0 is before the first."""
    joining, drift = config.newcomers, config.drift
    clients, changed = None, ()
    if not 0 < joining.round <= round_number:
        clients, _ = held_out(config, federated)
    if drift.clients and drift.round <= round_number:
        changed = drifting(config, federated)
        federated = drifted(federated, changed)
    return build_population(federated, clients, changed=changed)


def held_out(config: RunConfig, federated: FederatedDataset) -> tuple[np.ndarray, np.ndarray]:
    """Returns who takes part from the first round on, and the newcomers, see `sampling.hold_out`."""
    return sampling.hold_out(federated.num_clients, config.newcomers.count(federated.num_clients), config.seed)


def drifting(config: RunConfig, federated: FederatedDataset) -> np.ndarray:
    """Returns the clients whose data change in the middle of a run, `int [n]`."""
    return drifting_clients(federated, config.drift.clients, seed=sampling.stream(config.seed, "drift"))


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
