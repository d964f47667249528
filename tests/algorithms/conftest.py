"""The model and the clients of the tests of limits, an encoder and clients in groups; a module may have its own."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from tffcl.algorithms.contracts import population_of
from tffcl.client_work.autoencoding import build_adam_steps, start_adam
from tffcl.models.autoencoder import build_autoencoder
from tffcl.models.mlp import build_mlp

PAIRS = [(0, 1), (2, 3), (4, 6)]
OWNERS = [0, 1, 2, 0, 1, 2, 0, 1, 2]  # group of each of nine clients


@pytest.fixture(scope="module")
def model():
    return build_mlp((8, 8, 1), 10, hidden=16, normalization=(0.3, 0.4), seed=3)


@pytest.fixture
def population(digit_clients):
    return digit_clients([31, 40, 25, 50, 12])


@pytest.fixture(scope="module")
def encoder(digits):
    """Trained on the digits 5, 7, 8 and 9 only."""
    x, y = digits
    x = x[np.isin(y, (5, 7, 8, 9))]
    autoencoder = build_autoencoder((8, 8, 1), latent=16, seed=1)
    steps, state = build_adam_steps(autoencoder, 20, 3e-3), start_adam(autoencoder.initial)
    rng = np.random.default_rng(0)
    for _ in range(15):
        state, _ = steps(state, x, rng.permutation(len(x)).astype(np.int32))
    return autoencoder, state["vector"].numpy()


@pytest.fixture(scope="module")
def grouped(digits):
    """Nine clients in three groups of two digits each, which no two groups share."""
    x, y = digits
    clients = {}
    for client, group in enumerate(OWNERS):
        rows = np.flatnonzero(np.isin(y, PAIRS[group]))
        own = rows[OWNERS[:client].count(group) :: 3]
        clients[client] = tf.data.Dataset.from_tensor_slices(collections.OrderedDict(x=x[own], y=y[own]))
    return population_of(clients)
