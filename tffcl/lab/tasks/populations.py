"""Makes, from a federated data set, the clients that computations see in each round of a run."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from tffcl.aggregators.upload_attacks import OF_DATA
from tffcl.clients import cohort
from tffcl.clients.client_examples import ClientExamples
from tffcl.clients.population import Population
from tffcl.errors import UserError
from tffcl.lab.datasets.core import FederatedDataset
from tffcl.lab.datasets.images import Images
from tffcl.lab.tasks.resolve import RunConfig
from tffcl.lab.tasks.settings import with_imitators, with_wrong_labels


def build_population(federated: FederatedDataset, clients=None, *, versions: np.ndarray | None = None) -> Population:
    """Makes the population of a `lab.datasets.core.FederatedDataset`.

    Args:
      clients: Only these client IDs; default all.
      versions: `int [N]`, how often the data of each client have changed; default never.
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
        versions=np.zeros(len(ids), np.int32) if versions is None else versions[ids].astype(np.int32),
        label_counts=None if counts is None else counts[ids],
        groups=None if federated.true_groups is None else federated.true_groups[ids],
        group_names=federated.group_names,
        note=federated.note,
        measured_noise=federated.measured_noise,
        table=federated.table and federated.table.rules,
        label_names=federated.class_names,
        names=None if federated.client_names is None else np.array(federated.client_names)[ids],
    )


def build_populations(config: RunConfig, federated: FederatedDataset) -> tuple[Population, Mapping[int, Population]]:
    """Makes the populations of a run: the first one, and one for each later round in which clients join or data change.

    Returns:
      `(first population, {round: population from that round on})`.
    """
    changes = {config.newcomers.round if config.newcomers.any else 0, *config.drift.rounds(config.train.rounds)}
    return population_in(config, federated, 0), {
        start: population_in(config, federated, start) for start in sorted(changes - {0})
    }


def population_in(config: RunConfig, federated: FederatedDataset, round_number: int) -> Population:
    """Makes the population of a round of a run, with the false data of malicious clients; round 0 is before the
    first."""
    attack = config.attack
    malicious = attack.malicious(config.participants(federated.num_clients), config.seed)
    held, versions = drifted_in(config, federated, round_number)
    found = build_population(held, _there_in(config, federated, round_number), versions=versions)
    if attack.kind in OF_DATA and len(malicious):
        found = with_wrong_labels(found, malicious, held.classes_for(f"attack {attack.kind}"))
    if attack.imitated_group is not None and len(malicious):
        first = population_in(config, federated, 0) if round_number else None
        found = with_imitators(found, malicious, attack.imitated_group, first)
    return found


def _there_in(config: RunConfig, federated: FederatedDataset, round_number: int) -> np.ndarray:
    """Returns the clients that are there in a round of a run, `int [n]`."""
    everyone = 0 < config.newcomers.round <= round_number
    return np.arange(federated.num_clients) if everyone else config.participants(federated.num_clients)


def drifted_in(
    config: RunConfig, federated: FederatedDataset, round_number: int
) -> tuple[FederatedDataset, np.ndarray]:
    """Returns the data set in a round of a run, and how often the data of each client have changed, `int [N]`."""
    how, versions = config.drift, np.zeros(federated.num_clients, np.int64)
    changes = len(how.rounds(round_number))
    if not changes:
        return federated, versions
    if how.pattern == "swapped":
        there = _there_in(config, federated, how.round - 1)
        versions[there] = changes
        return exchanged(federated, next_groups(federated, there)), versions
    clients = drifting(config, federated)
    versions[clients] = changes
    if how.pattern == "recurrent" and changes % 2 == 0:
        return federated, versions
    share = changes / how.steps if how.pattern == "incremental" else 1.0
    seed = cohort.stream(config.seed, "drift")
    return exchanged(federated, passed_on(federated, clients), share, seed=seed), versions


def drifting(config: RunConfig, federated: FederatedDataset) -> np.ndarray:
    """Returns the clients whose data change in the middle of a run, `int [n]`; all were there before the change."""
    there = _there_in(config, federated, config.drift.round - 1)
    return drifting_clients(federated, config.drift.clients, there, seed=cohort.stream(config.seed, "drift"))


def drifting_clients(federated: FederatedDataset, count: int, there: np.ndarray, *, seed: int) -> np.ndarray:
    """Draws `count` clients whose data change, evenly over the true groups where there are any.

    Args:
      federated: The data of each client before the change.
      there: The clients to draw from; newcomers have no data that could change before they join.
      seed: Decides which clients are drawn.

    Returns:
      Int64 [count], in the order in which `passed_on` moves their data: clients of one group are neighbours.

    Raises:
      UserError: If `there` has fewer clients, or `count` is below 2: one client has nobody to exchange data with.
    """
    if not 2 <= count <= len(there):
        raise UserError(
            f"drift.clients is {count}; it must be from 2 to the number of clients that take part before, {len(there)}"
        )
    order = np.random.default_rng(seed).permutation(federated.num_clients)
    order = order[np.isin(order, there)]
    if federated.true_groups is None:
        return order[:count]
    groups = federated.true_groups[order]
    # The first client of every group comes before the second client of any group, and so on.
    turn = np.empty(len(order), np.int64)
    for group in np.unique(groups):
        turn[groups == group] = np.arange((groups == group).sum())
    chosen = order[np.argsort(turn, kind="stable")[:count]]
    return chosen[np.argsort(federated.true_groups[chosen], kind="stable")]


def passed_on(federated: FederatedDataset, clients: np.ndarray) -> np.ndarray:
    """Returns whose data each client holds, `int [N]`, after some clients exchanged theirs.

    Each client takes the data of the client that is `step` places further in the list. `step` is the size of the
    largest group in the list (1 without groups), so every client changes its group if no group has more than half of
    the listed clients. The union of all data stays the same.

    Args:
      federated: The data of each client before the change.
      clients: Distinct client IDs, from `drifting_clients`.
    """
    truth = federated.true_groups
    step = 1 if truth is None else int(np.bincount(truth[clients]).max()) % len(clients)
    source = np.arange(federated.num_clients)
    source[clients] = np.roll(clients, -max(step, 1))
    return source


def next_groups(federated: FederatedDataset, there: np.ndarray) -> np.ndarray:
    """Returns whose data each client holds, `int [N]`, when each true group holds the data of the next group.

    The first client of a group takes the data of the first client of the next group, and so on. If the next group is
    smaller, its clients are used again from the first.

    Args:
      federated: The data of each client before the change.
      there: The clients that are there before the change; all others keep their data, and nobody takes it.

    Raises:
      UserError: If the partition has no groups, or only one.
    """
    truth = federated.true_groups
    if truth is None or (groups := np.unique(truth[there])).size < 2:
        raise UserError('drift.pattern is "swapped", and this partition has no groups to swap; take "sudden"')
    source = np.arange(federated.num_clients)
    for group, following in zip(groups, np.roll(groups, -1)):
        own, others = (there[truth[there] == each] for each in (group, following))
        source[own] = np.resize(others, len(own))
    return source


def exchanged(
    federated: FederatedDataset, source: np.ndarray, share: float = 1.0, *, seed: int = 0
) -> FederatedDataset:
    """Returns the data set after clients took the data of others: training, test and validation examples, true group.

    Args:
      federated: The data of each client before the change.
      source: `int [N]`, whose data each client takes.
      share: The share of the other client's examples that a client takes; it keeps the rest of its own. From one half
        on, its true group is the other client's.
      seed: Decides which examples, if not all; those of a smaller share are among those of a larger share.
    """

    def held(indices):
        if indices is None or share == 1:
            return indices and tuple(indices[other] for other in source)

        def parts(client):
            # At random, because a partition may store a client's examples in the order of their classes.
            drawn = np.random.default_rng([seed, client]).permutation(indices[client])
            return np.split(drawn, [round(share * len(drawn))])

        return tuple(
            indices[client] if other == client else np.concatenate([parts(other)[0], parts(client)[1]])
            for client, other in enumerate(source)
        )

    truth = federated.true_groups
    return dataclasses.replace(
        federated,
        train_indices=held(federated.train_indices),
        test_indices=held(federated.test_indices),
        validation_indices=held(federated.validation_indices),
        true_groups=truth if truth is None or share < 0.5 else truth[source],
    )
