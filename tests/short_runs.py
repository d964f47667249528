"""What tests of training share: hyper-parameters, cohorts, short runs of methods and their comparison."""

import collections

import numpy as np
import tensorflow as tf

from tffcl.client_work.client_work import visiting_order
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clients.client_examples import ClientExamples
from tffcl.clients.cohort import Cohort
from tffcl.clients.population import Population
from tffcl.models.model_rows import assigned

TRAINING = LocalTraining(epochs=2, batch_size=10, learning_rate=0.1, momentum=0.5)
COHORTS = ((0, 1, 2, 3, 4), (1, 3, 4), (0, 2, 3))  # of the fixture `population`


def cohort_of(population: Population, clients, number: int, **more) -> Cohort:
    """The clients of round `number`."""
    return Cohort(population, np.array(clients), (7, number), **more)


def train(method, population: Population, cohorts=COHORTS, state=None):
    """The state after a round of each cohort."""
    state = state or method.initialize(population)
    for number, clients in enumerate(cohorts, 1):
        state, _ = method.next(state, cohort_of(population, clients, number))
    return state


def models_of(method, state, population: Population) -> np.ndarray:
    """The model of every client, `[N, P]`, of a mixture the mean."""
    models, given = method.models_for(state, population.client_ids)
    used = assigned(given)
    return models[used.rows] if used.weights is None else used.weights @ models


def assert_close(first, second):
    np.testing.assert_allclose(first, second, rtol=0, atol=2e-6)


def split(population: Population, newcomers) -> tuple[Population, Population]:
    """The population without some of its clients, and these."""
    others = [client for client in population.client_ids if client not in newcomers]
    return population.restricted(others), population.restricted(newcomers)


def deployed_inputs(cohort: Cohort, **fields) -> list[collections.OrderedDict]:
    """The inputs of clients as they are deployed: without test examples."""
    inputs = cohort.inputs(**fields)
    for each in inputs:
        del each["test_examples"]
        each["examples"] = ClientExamples(**each["examples"]).dataset
    return inputs


def learned_by_tff(process, model, population: Population, cohorts=COHORTS) -> np.ndarray:
    """What a process of `tff.learning` makes of the model `[P]`, with the batches that our clients visit."""
    state = process.initialize()
    for number, clients in enumerate(cohorts, 1):
        cohort = cohort_of(population, clients, number)
        state = process.next(state, [batches_of(population, cohort, client) for client in clients]).state
    return model.ravel(process.get_model_weights(state).trainable)


def batch_rows(population: Population, cohort: Cohort, client: int) -> list[np.ndarray]:
    """Which of its examples a client visits in each step of `TRAINING`'s epochs."""
    n, batches = len(population.train(client)), []
    for epoch in range(TRAINING.epochs):
        order = visiting_order(n, cohort.client_seed(client) + np.array([0, epoch], np.int32)).numpy()
        batches += [order[start : start + TRAINING.batch_size] for start in range(0, n, TRAINING.batch_size)]
    return batches


def batches_of(population: Population, cohort: Cohort, client: int) -> tf.data.Dataset:
    """The client's batches of all epochs of `TRAINING` in the order that our client work visits them, as `(x, y)`."""
    data = next(iter(population.train(client).dataset.batch(1000)))
    batches = batch_rows(population, cohort, client)

    # One flat list of examples with their batch's number, grouped again: batches of unequal size in one data set.
    flat = np.concatenate(batches)
    lengths = tf.data.Dataset.from_tensor_slices(np.cumsum([0] + [len(batch) for batch in batches])).window(
        2, 1, drop_remainder=True
    )
    bounds = lengths.flat_map(lambda pair: pair.batch(2))
    x, y = data["x"].numpy()[flat], data["y"].numpy()[flat]
    return bounds.map(lambda pair: (tf.constant(x)[pair[0] : pair[1]], tf.constant(y)[pair[0] : pair[1]]))
