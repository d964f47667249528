"""Runs a signature on a population, a bounded number of clients at a time."""

import collections
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.collect import by_client
from tffcl.algorithms.contracts import Population
from tffcl.signatures.signature import Signature, build_collection

_CLIENTS_AT_A_TIME = 50  # bounds the data in flight; a round number keeps the runtime's executors few


def build_signing(signature: Signature) -> Callable[[Population], object]:
    """Builds `sign(population) -> value structure with NumPy rows [N, ...]` in the order of the population's IDs.

    Args:
      signature: What every client computes.
    """
    collection: tff.Computation = build_collection(signature)

    def sign(population: Population):
        return in_waves(lambda clients: collection(signature.context, clients)[1], population, population.examples)

    return sign


def in_waves(ask: Callable, population: Population, examples: Callable[[int], tf.data.Dataset]):
    """Asks all clients of a population, a bounded number at a time.

    Args:
      ask: `(clients: list of <examples,client_id>) -> <client_id,value>`, as `collect` returns it.
      population: Whom.
      examples: Client ID to the examples that it is asked about.

    Returns:
      The value structure with NumPy rows `[N, ...]` in the order of the population's IDs.
    """
    parts = []
    for start in range(0, len(population.client_ids), _CLIENTS_AT_A_TIME):
        ids = population.client_ids[start : start + _CLIENTS_AT_A_TIME]
        clients = [collections.OrderedDict(examples=examples(int(client)), client_id=np.int32(client)) for client in ids]
        parts.append(by_client(ask(clients), ids))
    return tf.nest.map_structure(lambda *rows: np.concatenate(rows), *parts)
