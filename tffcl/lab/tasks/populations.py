"""From a federated data set to the clients that computations see, in every round of a run."""

import functools
from collections.abc import Mapping

import numpy as np

from tffcl.clients import sampling
from tffcl.clients.client_examples import PooledTests, as_examples
from tffcl.clients.population import Population
from tffcl.lab.datasets.core import FederatedDataset
from tffcl.lab.datasets.drift import drifted, drifting_clients
from tffcl.lab.tasks.resolve import RunConfig


def build_population(federated: FederatedDataset, clients=None, *, changed=()) -> Population:
    """Makes the population of a `lab.datasets.core.FederatedDataset`.

    Each client's `tf.data.Dataset`s are made once, when first asked for, and kept.

    Args:
      federated: Who holds what.
      clients: Only these client IDs; default all.
      changed: Clients whose data are not what they were at first.
    """
    ids = np.arange(federated.num_clients) if clients is None else np.sort(np.asarray(clients))
    sizes = np.array([len(federated.train_indices[client]) for client in ids], np.int32)

    def arrays(client):
        indices = federated.train_indices[client]
        return federated.train.x[indices], federated.train.y[indices]

    def test_arrays(client):
        indices = federated.test_indices[client]
        return federated.test.x[indices], federated.test.y[indices]

    @functools.cache
    def examples(client):
        return as_examples(*arrays(client))

    held = federated.validation_indices
    shared = {}  # clients with the same test set hold the same array of indices: one data set serves them all

    def test_examples(client):
        indices = federated.test_indices[client]
        if id(indices) not in shared:
            shared[id(indices)] = as_examples(*test_arrays(client))
        return shared[id(indices)]

    return Population(
        ids.astype(np.int32),
        sizes,
        examples,
        test_examples,
        versions=np.isin(ids, changed).astype(np.int32),
        tests=PooledTests(federated.test.x, federated.test.y, tuple(federated.test_indices[client] for client in ids)),
        label_counts=federated.label_counts()[ids],
        groups=None if federated.true_groups is None else federated.true_groups[ids],
        note=federated.note,
        arrays=arrays,
        test_arrays=test_arrays,
        validation=held and PooledTests(federated.train.x, federated.train.y, tuple(held[client] for client in ids)),
    )


def build_populations(config: RunConfig, federated: FederatedDataset) -> tuple[Population, Mapping[int, Population]]:
    """Makes the populations of a run: before the first round, and from later rounds on where clients join or data change.

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
