"""Runs that others are held against, an encoder and clients in groups; a module may have its own."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.short_runs import COHORTS, TRAINING, models_of, train
from tffcl.algorithms.ditto import build_ditto
from tffcl.algorithms.fedavg import build_fedavg, build_fedprox
from tffcl.algorithms.solo import build_solo
from tffcl.algorithms.training_parameters import DittoParameters, FedProxParameters
from tffcl.client_work.autoencoding import build_steps, start_steps
from tffcl.clients.population import Population
from tffcl.models import flat, layer_weights, layers
from tffcl.models.autoencoder import build_autoencoder

PAIRS = [(0, 1), (2, 3), (4, 6)]
OWNERS = [0, 1, 2, 0, 1, 2, 0, 1, 2]  # group of each of nine clients
PULL = 0.7  # proximal weight of the reference runs
REFERENCES = {
    "fedavg": build_fedavg,
    "solo": build_solo,
    "fedprox": lambda model, training: build_fedprox(model, training, FedProxParameters(PULL)),
    "ditto": lambda model, training: build_ditto(model, training, DittoParameters(PULL)),
}


@pytest.fixture(scope="session")
def reference(model, population):
    """Runs a method that others are held against, each once: `(name, cohorts) -> (views, models float32 [N, P])`."""

    @functools.cache
    def run(name, cohorts=COHORTS):
        method = REFERENCES[name](model, TRAINING)
        state = train(method, population, cohorts)
        return method.views(state), models_of(method, state, population)

    return run


@pytest.fixture(scope="session")
def convex():
    """Softmax regression on digits, which plain NumPy trains as well."""

    def logits(tensors, features, seed):
        del seed
        return layers.connect(tf.reshape(features, [-1, 64]), *tensors)

    return flat.build_flat_model(
        "softmax", layer_weights.dense("output", 64, 10), logits, input_shape=(8, 8, 1), num_classes=10,
        normalization=(0.3, 0.4), initialization="torch_default", seed=5,
    )  # fmt: skip


def as_arrays(population, client):
    """A client's training examples as softmax regression of `oracles.ifca` takes them."""
    data = next(iter(population.train(client).dataset.batch(10000)))
    x = (data["x"].numpy().reshape(-1, 64) / 255.0 - 0.3) / 0.4
    return x, data["y"].numpy()


@pytest.fixture(scope="session")
def turned(digit_clients):
    """Nine clients in three groups, whose digits are turned by quarters."""
    return digit_clients([60] * 9, turns=OWNERS)


@pytest.fixture(scope="session")
def encoder(digits):
    """Trained on the digits 5, 7, 8 and 9 only."""
    x, y = digits
    x = x[np.isin(y, (5, 7, 8, 9))]
    autoencoder = build_autoencoder((8, 8, 1), latent=16, seed=1)
    steps, state = build_steps(autoencoder, 20, 3e-3), start_steps(autoencoder.initial)
    rng = np.random.default_rng(3)
    for _ in range(15):
        state, _ = steps(state, x, rng.permutation(len(x)).astype(np.int32))
    return autoencoder, state["vector"].numpy()


@pytest.fixture(scope="session")
def grouped(digits):
    """Nine clients in three groups of two digits each, which no two groups share."""
    x, y = digits
    clients = {}
    for client, group in enumerate(OWNERS):
        rows = np.flatnonzero(np.isin(y, PAIRS[group]))
        own = rows[OWNERS[:client].count(group) :: 3]
        clients[client] = x[own], y[own]
    return Population.from_arrays(clients)


def same_groups(labels) -> bool:
    """Whether clusters of the clients `grouped` are their groups."""
    return len(set(zip(OWNERS, np.asarray(labels).tolist()))) == len(set(labels)) == 3
