"""Models of each kind that users bring, by methods of each kind: trained, given back, exported, by two workers and
in shards too."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import tffcl
from tests import own_data
from tests.models.test_keras_function import frozen_base
from tests.own_data import CROSS_ENTROPY, LENGTH, LETTERS, layers, sequential, spec
from tests.runtime.processes import SILENCE, pair_of_workers
from tffcl.client_work.client_work import visiting_order
from tffcl.client_work.local_sgd import build_local_sgd

A = tffcl.algorithms


def mobilenet(**more):
    tf.keras.utils.set_random_seed(1)
    return tf.keras.applications.MobileNetV2(weights=None, input_shape=(32, 32, 3), alpha=0.35, **more)


def transferred(dropout=0.2):
    base = mobilenet(include_top=False, pooling="avg")
    base.trainable = False
    inputs = tf.keras.Input((32, 32, 3))
    return tf.keras.Model(inputs, layers.Dense(3)(layers.Dropout(dropout)(base(inputs, training=False))))


def normalized():
    return sequential(
        layers.Dense(8, "relu", input_shape=(30,)), layers.BatchNormalization(momentum=0.8), layers.Dense(2)
    )


def lstm():
    return sequential(layers.Embedding(LETTERS, 4, input_length=LENGTH), layers.LSTM(6), layers.Dense(3))


@functools.cache
def pictures():
    """Clients of random pictures, with a bright stripe where the label says; of every other client one further down."""
    clients = {}
    for client in range(4):
        rng = np.random.default_rng(client)
        x, y = rng.normal(0, 0.3, (16, 32, 32, 3)).astype("f4"), rng.integers(0, 3, 16)
        for picture, label in zip(x, y, strict=True):
            picture[8 * (label + client % 2) :][:8] += 1
        clients[f"c{client}"] = x, y
    return clients


@functools.cache
def patients():
    return {f"c{client}": arrays for client, arrays in enumerate(own_data.clinics(4)[0].values())}


@functools.cache
def texts():
    """Clients of sentences, whose label is of the last letter."""
    train, _ = own_data.writers(4)
    return {f"c{client}": (x, x[:, -1] % 3) for client, (x, _) in enumerate(train.values())}


PICTURES = spec([32, 32, 3], tf.float32)
KINDS = {
    "mobilenet": (functools.partial(mobilenet, classes=3, classifier_activation=None), PICTURES, pictures),
    "transferred": (transferred, PICTURES, pictures),
    "batch norm": (normalized, spec([30], tf.float32), patients),
    "lstm": (lstm, spec([LENGTH], tf.int32), texts),
}
METHODS = {"pacfl": {"parameters": A.PACFLParameters(num_clusters=2, threshold=None)}, "flis_dc": {}, "fedavg": {}}


@functools.cache
def model_of(kind):
    build, input_spec, _ = KINDS[kind]
    return tffcl.FlatModel.from_keras(build(), CROSS_ENTROPY, input_spec, kind, metrics=("accuracy", "f1", "log_loss"))


@pytest.fixture(scope="module")
def two_workers():
    with pair_of_workers() as processes:
        yield processes


@pytest.mark.slow
@pytest.mark.parametrize("kind, method", [("mobilenet", "fedavg"), ("transferred", "pacfl"), ("lstm", "flis_dc")])
def test_a_model_is_trained_and_given_back(tff_worker, worker, request, tmp_path, capsys, kind, method):
    model, clients = model_of(kind), KINDS[kind][2]()
    options = METHODS[method] | ({"server_images": clients["c0"][0][:6]} if method == "flis_dc" else {})
    made = getattr(A, f"build_{method}")(model, tffcl.LocalTraining(batch_size=8), **options)
    population = tffcl.Population.from_arrays(clients, clients)

    # It normalizes features of one pixel: by the order of sums models differ by 6e-8 after a round, 0.01 after two.
    rounds = 1 if kind == "mobilenet" else 2

    def run(place, **more):
        return tffcl.train(made, population, rounds=rounds, clients_per_round=4, out=tmp_path / place, **more)

    result, x = run("run"), clients["c1"][0]
    result.keras_model_of("c1").save(tmp_path / "c1.keras")
    outputs = tf.keras.models.load_model(tmp_path / "c1.keras").predict(x, verbose=0)
    np.testing.assert_array_equal(result.predict("c1", x), outputs.argmax(axis=-1))
    np.testing.assert_allclose(result.predict("c1", x, probabilities=True), tf.nn.softmax(outputs), atol=1e-5)
    assert np.any(result.model_of("c1") != model.initial)
    tffcl.export_result(result, tmp_path / "export")
    saved = np.load(tmp_path / "export" / "state" / "models.npy")
    assert np.abs(saved - result.model_of("c1")).max(axis=1).min() == 0
    targets = ",".join(each.target for each in request.getfixturevalue("two_workers").started)
    try:
        again = run("again", workers=tffcl.RemoteWorkers.parse(targets, SILENCE), shards=2)
    finally:
        worker.use_local_worker()
    said = capsys.readouterr().err
    assert "4 clients of a round compute in 2 blocks of 2" in said and "each block in 1 shards" in said
    np.testing.assert_allclose(again.model_of("c1"), result.model_of("c1"), atol=1e-4)
    for kind in ("cluster", "local"):  # what clients' own models give for their tests comes from the workers
        of_both = again.clients[f"{kind}_log_loss"], result.clients[f"{kind}_log_loss"]
        np.testing.assert_allclose(*of_both, atol=1e-3)


def steady(dropout=0.0):
    """A transferred net without masks, which no two steps share."""
    return transferred(dropout)


@pytest.mark.parametrize(
    "build, input_spec, data",
    [
        (frozen_base, *KINDS["batch norm"][1:]),
        pytest.param(lstm, *KINDS["lstm"][1:], marks=pytest.mark.slow),
        pytest.param(steady, *KINDS["transferred"][1:], marks=pytest.mark.slow),
        pytest.param(*KINDS["mobilenet"], marks=pytest.mark.slow),
    ],
)
def test_a_step_is_that_of_fit(build, input_spec, data):
    """All weights after one step of `fit` on a batch: trained, renewed, and frozen ones.

    The batch is in the order in which a client visits it: in MobileNetV2, whose gradients are up to 70 here, another
    order of sums takes single units over the bounds of their ReLU6.
    """
    keras, (x, y) = build(), data()["c1"]
    model, y = tffcl.FlatModel.from_keras(keras, CROSS_ENTROPY, input_spec), y.astype(np.int32)
    training = tffcl.LocalTraining(epochs=1, batch_size=len(x), learning_rate=0.05, momentum=0.0)
    vector, _ = build_local_sgd(model, training)(model.initial, x, y, tf.constant([1, 2]))
    order = visiting_order(len(x), np.array([1, 2], np.int32)).numpy()
    found = model.keras.with_weights(model.unravel(vector)).get_weights()
    first = keras.get_weights()
    keras.compile(tf.keras.optimizers.SGD(0.05), CROSS_ENTROPY, run_eagerly=True)
    keras.fit(x[order], y[order], len(x), shuffle=False, verbose=0)
    largest = max(np.abs(now - before).max() for now, before in zip(keras.get_weights(), first, strict=True)) / 0.05
    for mine, theirs in zip(found, keras.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-6 * max(1.0, largest / 5))
    moved = [np.any(now != before) for now, before in zip(keras.get_weights(), first, strict=True)]
    assert sum(moved) >= len(model.keras.places) - 2
