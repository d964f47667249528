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
        parts = []
        for start in range(0, len(population.client_ids), _CLIENTS_AT_A_TIME):
            ids = population.client_ids[start : start + _CLIENTS_AT_A_TIME]
            clients = [
                collections.OrderedDict(examples=population.examples(int(client)), client_id=np.int32(client)) for client in ids
            ]
            _, collected = collection(signature.context, clients)
            parts.append(by_client(collected, ids))
        return tf.nest.map_structure(lambda *rows: np.concatenate(rows), *parts)

    return sign
