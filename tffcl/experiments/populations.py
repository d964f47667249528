"""From a federated data set to the clients that computations see."""

import collections
import functools

import numpy as np
import tensorflow as tf

from tffcl.algorithms.contracts import Population


def build_population(federated, clients=None, *, changed=()) -> Population:
    """Makes the population of a `datasets.core.FederatedDataset`.

    Each client's `tf.data.Dataset`s are made once, when first asked for, and kept.

    Args:
      federated: Who holds what.
      clients: Only these client IDs; default all.
      changed: Clients whose data are not what they were at first.
    """
    ids = np.arange(federated.num_clients) if clients is None else np.sort(np.asarray(clients))
    sizes = np.array([len(federated.train_indices[client]) for client in ids], np.int32)

    def dataset(pool, indices):
        return tf.data.Dataset.from_tensor_slices(collections.OrderedDict(x=pool.x[indices], y=pool.y[indices]))

    @functools.cache
    def examples(client):
        return dataset(federated.train, federated.train_indices[client])

    shared = {}  # clients with the same test set hold the same array of indices: one data set serves them all

    def test_examples(client):
        indices = federated.test_indices[client]
        if id(indices) not in shared:
            shared[id(indices)] = dataset(federated.test, indices)
        return shared[id(indices)]

    return Population(ids.astype(np.int32), sizes, examples, test_examples, np.isin(ids, changed).astype(np.int32))
