"""The optimizers of local training: against Keras' own on the same batches, by name and as TFF's objects; schedules,
clipping, and what clients keep between rounds."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.oracles.corrected_averaging import weights_of_steps
from tests.short_runs import cohort_of
from tffcl.algorithms.cfl import build_cfl
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.algorithms.fednova import build_fednova
from tffcl.algorithms.per_fedavg import build_per_fedavg
from tffcl.algorithms.scaffold import build_scaffold
from tffcl.client_work.client_work import visiting_order
from tffcl.client_work.local_sgd import ScheduledOptimizer, build_local_sgd, rate_factor
from tffcl.client_work.local_training import LearningRateDecay, LocalTraining
from tffcl.errors import UserError
from tffcl.models.classifiers import build_mlp

SEED = np.array([5, 6], np.int32)
BASE = LocalTraining(epochs=2, batch_size=10, learning_rate=0.01)
NAMED = {
    "adam": (dataclasses.replace(BASE, optimizer="adam", beta_1=0.8, epsilon=1e-6), lambda: keras.Adam(0.01, 0.8)),
    "adamw": (
        dataclasses.replace(BASE, optimizer="adamw", beta_2=0.99, weight_decay=0.1, epsilon=1e-6),
        lambda: keras.AdamW(0.01, beta_2=0.99, weight_decay=0.1),
    ),
    # Keras adds ε below the root, where it is the square of ours, and too small to be seen.
    "rmsprop": (
        dataclasses.replace(BASE, optimizer="rmsprop", beta_2=0.95, epsilon=1e-14),
        lambda: keras.RMSprop(0.01, rho=0.95),
    ),
    "kept momentum": (
        dataclasses.replace(BASE, momentum=0.9, optimizer_state="kept"),
        lambda: keras.SGD(0.01, momentum=0.9),
    ),
}
keras = tf.keras.optimizers


@pytest.fixture(scope="module")
def model():
    return build_mlp((8, 8, 1), 10, hidden=6, normalization=(0.3, 0.4), seed=1)


def batches_of(training, seed, n):
    for epoch in range(training.epochs):
        order = visiting_order(n, seed + np.array([0, epoch], np.int32)).numpy()
        size = training.batch_size or n
        yield from (order[start : start + size] for start in range(0, n, size))


def kerass(model, optimizer, training, x, y, clip=None):
    """The model that Keras' optimizer makes of the batches of a local training."""
    variables = [tf.Variable(part) for part in model.unravel(model.initial)]
    for batch in batches_of(training, SEED, len(y)):
        with tf.GradientTape() as tape:
            loss = model.objective.loss(model.logits(variables, model.preprocess(x[batch]), None), y[batch])
        gradients = tape.gradient(loss, variables)
        if clip is not None:
            norm = np.sqrt(sum(np.sum(np.square(each)) for each in gradients))
            gradients = [each * min(1.0, clip / norm) for each in gradients]
        optimizer.apply_gradients(zip(gradients, variables))
    return model.ravel([each.numpy() for each in variables])


@pytest.mark.parametrize("name", NAMED)
def test_a_name_is_kerass_optimizer(digits, model, name):
    training, optimizer = NAMED[name]
    x, y = digits[0][:45], digits[1][:45]
    own = optimizer()
    own.epsilon = training.epsilon and training.epsilon ** (2 if name == "rmsprop" else 1)
    trained, *_ = build_local_sgd(model, training)(model.initial, x, y, SEED)
    np.testing.assert_allclose(trained, kerass(model, own, training, x, y), rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, made",
    [
        ("adam", tff.learning.optimizers.build_adam(0.01, 0.8, epsilon=1e-6)),
        ("rmsprop", tff.learning.optimizers.build_rmsprop(0.01, 0.95, 1e-14)),
        ("adamw", tff.learning.optimizers.build_adamw(0.01, beta_2=0.99, epsilon=1e-6, weight_decay=0.1)),
    ],
)
def test_tffs_object_is_the_name(digits, model, name, made):
    x, y = digits[0][:45], digits[1][:45]
    expected, *_ = build_local_sgd(model, NAMED[name][0])(model.initial, x, y, SEED)
    found, *_ = build_local_sgd(model, dataclasses.replace(BASE, optimizer=made))(model.initial, x, y, SEED)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)


@pytest.mark.slow
def test_an_optimizer_that_looks_at_shapes_trains(digits, model):
    training = LocalTraining(optimizer=tff.learning.optimizers.build_adafactor(0.01), optimizer_state="kept")
    trained, loss, state = build_local_sgd(model, training)(model.initial, digits[0][:45], digits[1][:45], SEED)
    assert np.isfinite(trained.numpy()).all() and np.any(trained != model.initial) and len(state) > 4


@pytest.mark.parametrize(
    "kind", ["sgd", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("momentum", "adam"))]
)
def test_longer_gradients_are_shortened(digits, model, kind):
    x, y = digits[0][:45], digits[1][:45]
    training = dataclasses.replace(BASE, learning_rate=0.1, clip_norm=0.3)
    own = keras.SGD(0.1)
    if kind == "momentum":
        training, own = dataclasses.replace(training, momentum=0.5), keras.SGD(0.1, momentum=0.5)
    if kind == "adam":
        training, own = dataclasses.replace(training, optimizer="adam", learning_rate=0.01), keras.Adam(0.01)
    trained, _ = build_local_sgd(model, training)(model.initial, x, y, SEED)
    np.testing.assert_allclose(trained, kerass(model, own, training, x, y, clip=0.3), rtol=0, atol=2e-6)
    whole, _ = build_local_sgd(model, dataclasses.replace(training, clip_norm=None))(model.initial, x, y, SEED)
    assert np.abs(whole - trained).max() > 1e-3
    if kind == "sgd":
        free, _ = build_local_sgd(model, dataclasses.replace(training, clip_norm=1e6))(model.initial, x, y, SEED)
        np.testing.assert_allclose(free, whole, rtol=0, atol=1e-7)
        # A rate of 0, as at the end of a decay, leaves nothing to shorten.
        still, loss = build_local_sgd(model, training)(model.initial, x, y, SEED, rate_scale=tf.constant(0.0))
        assert np.array_equal(still, model.initial) and np.isfinite(loss)


@pytest.mark.slow
def test_weight_decay_and_proximal_term_are_gradients_of_adam(digits, model):
    """One step on all data: Adam's first step is the sign of the gradient, of which both terms are parts."""
    x, y, centre = digits[0][:45], digits[1][:45], model.draw(9)
    training = LocalTraining(batch_size=0, learning_rate=0.01, optimizer="adam", weight_decay=0.3, proximal_weight=0.6)
    trained, _ = build_local_sgd(model, training)(model.initial, x, y, SEED, tf.constant(centre))
    plain, _ = build_local_sgd(model, LocalTraining(batch_size=0, learning_rate=1.0))(model.initial, x, y, SEED)
    gradient = model.initial - plain.numpy() + 0.3 * model.initial + 0.6 * (model.initial - centre)
    expected = model.initial - 0.01 * gradient / (np.abs(gradient) + 1e-7 / np.sqrt(1 - 0.999))
    np.testing.assert_allclose(trained, expected, rtol=0, atol=2e-6)


SCHEDULES = {
    "every round": (LearningRateDecay(0.9), 0.9 ** np.arange(8)),
    "steps": (LearningRateDecay(0.5, every=3), [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25]),
    "cosine": (
        LearningRateDecay(cosine=4, least=0.1),
        [0.1 + 0.9 * (1 + np.cos(np.pi * min(done, 4) / 4)) / 2 for done in range(8)],
    ),
    "warm-up": (LearningRateDecay(warm_up=4), [0.25, 0.5, 0.75, 1, 1, 1, 1, 1]),
    "warm-up, then steps": (LearningRateDecay(0.5, every=2, warm_up=2), [0.5, 1, 1, 0.5, 0.5, 0.25, 0.25, 0.125]),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_rate_of_each_round(name):
    decay, expected = SCHEDULES[name]
    found = [float(rate_factor(decay, number)) for number in range(1, 9)]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)
    server, rates = ScheduledOptimizer(tff.learning.optimizers.build_sgdm(2.0), decay), []
    state, weights = server.initialize(tf.TensorSpec([], tf.float32)), tf.constant(0.0)
    for _ in range(8):
        state, moved = server.next(state, weights, tf.constant(1.0))
        rates.append(float(weights - moved))
    np.testing.assert_allclose(rates, 2 * np.asarray(expected), rtol=1e-6, atol=1e-7)


class NumPysAdam:
    """Adam on vectors, with what it keeps: steps, mean and mean square."""

    def __init__(self):
        self.steps, self.mean, self.square = 0, 0.0, 0.0

    def step(self, vector, gradient, rate):
        self.steps += 1
        self.mean = 0.9 * self.mean + 0.1 * gradient
        self.square = 0.999 * self.square + 0.001 * gradient**2
        rate *= np.sqrt(1 - 0.999**self.steps) / (1 - 0.9**self.steps)
        return vector - rate * self.mean / (np.sqrt(self.square) + 1e-7)


KEPT = LocalTraining(
    epochs=2, batch_size=7, learning_rate=0.01, optimizer="adam", optimizer_state="kept", learning_rate_decay=0.5
)
ROUNDS = [(0, 2), (1, 3), (0, 1)]


@pytest.mark.parametrize("state", [pytest.param("reset", marks=pytest.mark.slow), "kept"])
def test_what_clients_keep_of_their_optimizer(tff_worker, model, population, state):
    """Three rounds of other clients, whose rate halves, against NumPy."""
    training = dataclasses.replace(KEPT, optimizer_state=state)
    method = build_fedavg(model, training)
    found, expected, own = method.initialize(population), model.initial.astype(float), {}
    for number, clients in enumerate(ROUNDS, 1):
        cohort = cohort_of(population, clients, number)
        found, _ = method.next(found, cohort)
        models, sizes = [], []
        for client in clients:
            adam = own.setdefault(client, NumPysAdam()) if state == "kept" else NumPysAdam()
            data, vector = population.train(client).stacked, expected
            for batch in batches_of(training, cohort.client_seed(client), len(data["y"])):
                gradient = gradient_of(model, vector, data["x"][batch], data["y"][batch])
                vector = adam.step(vector, gradient, 0.01 * 0.5 ** (number - 1))
            models.append(vector)
            sizes.append(len(data["y"]))
        expected = np.average(models, axis=0, weights=sizes)
    np.testing.assert_allclose(found.models[0], expected, rtol=0, atol=5e-6)
    kept = found.optimizers
    assert (kept is None) == (state == "reset")
    if kept is not None:
        assert kept.has(range(5)).tolist() == [True, True, True, True, False]


def gradient_of(model, vector, x, y):
    vector = tf.constant(vector, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(vector)
        loss = model.objective.loss(model.logits(model.unravel(vector), model.preprocess(x), None), y)
    return tape.gradient(loss, vector).numpy().astype(float)


@pytest.mark.slow
def test_single_clients_train_as_if_all_had_their_settings(tff_worker, model, population):
    """Each client's update is that of a training with its epochs and batch size."""
    own = {str(population.name_of(1)): {"epochs": 3}, str(population.name_of(3)): {"epochs": 1, "batch_size": 0}}
    base = LocalTraining(epochs=2, batch_size=7, learning_rate=0.1, momentum=0.5)
    mixed = build_cfl(model, dataclasses.replace(base, clients=own))
    cohort = cohort_of(population, (0, 1, 3), 1)
    keys = np.zeros(3, np.int32)
    updates, _ = mixed.updates(model.initial[np.newaxis], keys, cohort)
    for row, changes in enumerate(({}, {"epochs": 3}, {"epochs": 1, "batch_size": 0})):
        client, alike = cohort.client_ids[row], dataclasses.replace(base, **changes)
        data = population.train(client)
        expected, _ = build_local_sgd(model, alike)(model.initial, data.x, data.y, cohort.client_seed(client))
        np.testing.assert_allclose(updates[row], expected - model.initial, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("build", [build_fednova, build_scaffold])
def test_what_the_steps_of_single_clients_are_worth_follows_from_their_settings(tff_worker, model, population, build):
    """The same updates, in a first round divided by as many steps as each client takes."""
    own = {str(population.name_of(1)): {"epochs": 3}, str(population.name_of(3)): {"epochs": 1, "batch_size": 0}}
    training = LocalTraining(epochs=2, batch_size=7, learning_rate=0.1, momentum=0.5, clients=own)
    cohort, sizes = cohort_of(population, (0, 1, 3), 1), population.sizes[[0, 1, 3]]
    updates, _ = build_cfl(model, training).updates(model.initial[np.newaxis], np.zeros(3, np.int32), cohort)
    norms = [weights_of_steps(steps, 0.1, 0.5).sum() for steps in (2 * -(-sizes[0] // 7), 3 * -(-sizes[1] // 7), 1)]
    directions, shares = updates / np.array(norms)[:, np.newaxis], sizes / sizes.sum()
    method = build(model, training)
    after, _ = method.next(method.initialize(population), cohort)
    if build is build_fednova:
        moved = (shares @ norms) * (shares @ directions)
        np.testing.assert_allclose(after.models[0], model.initial + moved, rtol=0, atol=2e-6)
        assert np.abs(moved - shares @ updates).max() > 1e-2
    else:  # the sum of control variates, which were zero
        np.testing.assert_allclose(after.server["control_sums"][0], -directions.sum(axis=0) / 0.1, rtol=0, atol=2e-5)


MISTAKES = [
    (
        {"optimizer": "adam", "momentum": 0.9},
        "it must be 0 with the optimizer adam, whose keys are learning_rate, beta_1",
    ),
    ({"beta_1": 0.8}, "beta_1 is 0.8; it must be left out with the optimizer sgd, whose keys are learning_rate, "),
    (
        {"optimizer": tff.learning.optimizers.build_adam(0.1), "learning_rate": 0.1},
        "learning_rate is 0.1; it must be left out with the optimizer that was given, which has its own",
    ),
    ({"optimizer": "adm"}, "unknown optimizer 'adm'; did you mean 'adam'"),
    ({"optimizer": 3}, "optimizer is 3; it must be sgd, adam, adamw, rmsprop or a tff.learning.optimizers object"),
    ({"optimizer_state": "kept"}, "SGD without momentum has no state to keep"),
    ({"clients": {"a": {"epoch": 1}}}, "unknown key of clients 'a' 'epoch'; did you mean 'epochs'"),
    ({"clients": {"a": {"epochs": 0}}}, "epochs is 0; it must be a whole number from 1"),
    ({"lr": 0.1}, "it is called learning_rate"),
    ({"schedule": 0.1}, "learning_rate_decay takes a number or a tffcl.LearningRateDecay"),
]


@pytest.mark.parametrize("given, said", MISTAKES)
def test_mistakes(given, said):
    with pytest.raises(UserError, match=said):
        LocalTraining(**given)


@pytest.mark.parametrize("build", [build_scaffold, build_fednova, build_per_fedavg])
@pytest.mark.parametrize("given", [{"optimizer": "adam"}, {"momentum": 0.5, "optimizer_state": "kept"}])
def test_methods_of_plain_sgd_say_so(model, build, given):
    with pytest.raises(UserError, match="must be (sgd|reset)"):
        build(model, LocalTraining(**given))
