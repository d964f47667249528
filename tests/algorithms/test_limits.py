"""What the methods become at their limits, and FedAvg against TFF's own."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.algorithms.contracts import Cohort
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.algorithms.pacfl import PrincipalAngleClustering, build_pacfl
from tffcl.algorithms.solo import build_solo
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.client_work.order import visiting_order

TRAINING = LocalTraining(epochs=2, batch_size=10, learning_rate=0.1, momentum=0.5)
COHORTS = [(0, 1, 2, 3, 4), (1, 3, 4), (0, 2, 3)]


def train(algorithm, population, cohorts=COHORTS):
    state = algorithm.initialize(population)
    for number, clients in enumerate(cohorts, 1):
        state, _ = algorithm.next(state, Cohort(population, np.array(clients), (7, number)))
    return state


def models_of(algorithm, state, population):
    models, keys = algorithm.assign(state, population.client_ids)
    return models[keys]


def assert_close(first, second):
    np.testing.assert_allclose(first, second, rtol=0, atol=2e-6)


def test_training_moves_the_models(tff_worker, model, population):
    state = train(build_fedavg(model, TRAINING), population)
    assert np.abs(state.models[0] - model.initial).max() > 0.05


def test_pacfl_with_one_cluster_is_fedavg(tff_worker, model, population):
    pacfl = build_pacfl(model, TRAINING, PrincipalAngleClustering(num_clusters=1))
    fedavg = build_fedavg(model, TRAINING)
    clustered, averaged = train(pacfl, population), train(fedavg, population)
    assert clustered.models.shape[0] == 1
    assert_close(clustered.models, averaged.models)


def test_pacfl_with_as_many_clusters_as_clients_is_solo(tff_worker, model, population):
    pacfl = build_pacfl(model, TRAINING, PrincipalAngleClustering(num_clusters=5))
    solo = build_solo(model, TRAINING)
    clustered, alone = train(pacfl, population), train(solo, population)
    assert sorted(clustered.assignment) == [0, 1, 2, 3, 4]
    assert_close(models_of(pacfl, clustered, population), models_of(solo, alone, population))


def test_a_cluster_that_nobody_of_the_cohort_belongs_to_keeps_its_model(tff_worker, model, population):
    pacfl = build_pacfl(model, TRAINING, PrincipalAngleClustering(num_clusters=3))
    before = train(pacfl, population, COHORTS[:1])
    absent = before.assignment[0]
    others = population.client_ids[before.assignment != absent]
    after, _ = pacfl.next(before, Cohort(population, others, (7, 2)))
    np.testing.assert_array_equal(after.models[absent], before.models[absent])
    changed = np.abs(after.models - before.models).max(axis=1) > 0
    assert changed.sum() == 2


def test_fedavg_is_tff_learnings_fedavg(tff_worker, model, population):
    """The same batches in the same order give the same model as `build_weighted_fed_avg`."""
    process = tff.learning.algorithms.build_weighted_fed_avg(
        model.functional,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(TRAINING.learning_rate, TRAINING.momentum),
        server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
    )
    theirs = process.initialize()
    for number, clients in enumerate(COHORTS, 1):
        cohort = Cohort(population, np.array(clients), (7, number))
        theirs = process.next(theirs, [batches_of(population, cohort, client) for client in clients]).state
    ours = train(build_fedavg(model, TRAINING), population)
    assert_close(ours.models[0], model.ravel(process.get_model_weights(theirs).trainable))


def batches_of(population, cohort, client):
    """The client's batches of all epochs in the order that our client work visits them, as `(x, y)`."""
    data = next(iter(population.examples(client).batch(1000)))
    n = len(data["y"])
    batches = []
    for epoch in range(TRAINING.epochs):
        seed = cohort.client_seed(client) + np.array([0, epoch], np.int32)
        order = visiting_order(n, seed).numpy()
        batches += [order[start : start + TRAINING.batch_size] for start in range(0, n, TRAINING.batch_size)]

    # One flat list of examples with their batch's number, grouped again: batches of unequal size in one data set.
    flat = np.concatenate(batches)
    lengths = tf.data.Dataset.from_tensor_slices(np.cumsum([0] + [len(batch) for batch in batches])).window(
        2, 1, drop_remainder=True
    )
    bounds = lengths.flat_map(lambda pair: pair.batch(2))
    x, y = data["x"].numpy()[flat], data["y"].numpy()[flat]
    return bounds.map(lambda pair: (tf.constant(x)[pair[0] : pair[1]], tf.constant(y)[pair[0] : pair[1]]))


def test_select_and_broadcast_give_the_same_models(tff_worker, model, population):
    from tffcl.algorithms.clustered_training import build_training_process, cohort_inputs

    cohort = Cohort(population, np.array([0, 1, 2, 3]), (7, 1))
    results = []
    for distribution in ("broadcast", "select"):
        process = build_training_process(model, TRAINING, distribution=distribution, local_test=True)
        state = collections.OrderedDict(models=np.stack([model.initial, model.initial * 2]), aggregator=())
        results.append(process.next(state, cohort_inputs(cohort, key=np.array([0, 1, 1, 0], np.int32)))[0]["models"])
    assert_close(*results)
    assert np.abs(results[0][1] - 2 * model.initial).max() > 0.01


def test_the_same_seed_gives_the_same_models_and_another_gives_others(tff_worker, model, population):
    algorithm = build_fedavg(model, TRAINING)
    state = algorithm.initialize(population)

    def after(seed):
        return algorithm.next(state, Cohort(population, np.array([0, 3]), seed))[0].models

    np.testing.assert_array_equal(after((1, 1)), after((1, 1)))
    assert np.abs(after((1, 1)) - after((2, 1))).max() > 1e-6
    assert np.abs(after((1, 1)) - after((1, 2))).max() > 1e-6
