"""From a federated data set to the clients that computations see, in every round of a run."""

from collections.abc import Mapping

import numpy as np

from tffcl.clients import sampling
from tffcl.clients.client_examples import ClientExamples
from tffcl.clients.population import Population
from tffcl.lab.datasets.core import FederatedDataset, Images
from tffcl.lab.datasets.drift import drifted, drifting_clients
from tffcl.lab.tasks.resolve import RunConfig


def build_population(federated: FederatedDataset, clients=None, *, changed=()) -> Population:
    """Makes the population of a `lab.datasets.core.FederatedDataset`.

    Args:
      federated: Who holds what.
      clients: Only these client IDs; default all.
      changed: Clients whose data are not what they were at first.
    """
    ids = np.arange(federated.num_clients) if clients is None else np.sort(np.asarray(clients))

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
        label_counts=federated.label_counts()[ids],
        groups=None if federated.true_groups is None else federated.true_groups[ids],
        note=federated.note,
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
