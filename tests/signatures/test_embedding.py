"""FLT's signature: the centres of codes, with and without fine-tuning on the client."""

import collections

import numpy as np
import pytest
import tensorflow as tf
from sklearn.cluster import KMeans

from tffcl.aggregators.collect import by_client
from tffcl.client_work.autoencoding import build_encode, build_fine_tune, build_steps, start_steps
from tffcl.client_work.kmeans import build_kmeans
from tffcl.errors import UserError
from tffcl.models.autoencoder import build_autoencoder
from tffcl.rounds.client_queries import build_collection
from tffcl.signatures.embedding import FINE_TUNE_RATES, build_embedding

SPEC = collections.OrderedDict(x=tf.TensorSpec((8, 8, 1), tf.uint8), y=tf.TensorSpec((), tf.int32))
SEED = np.array([4, 0], np.int32)


@pytest.fixture(scope="module")
def autoencoder():
    return build_autoencoder((8, 8, 1), latent=12, seed=1)


def dataset(digits, rows):
    return tf.data.Dataset.from_tensor_slices(collections.OrderedDict(x=digits[0][rows], y=digits[1][rows]))


def error(autoencoder, vector, x):
    return float(autoencoder.loss(autoencoder.unravel(tf.constant(vector)), autoencoder.preprocess(x)))


@pytest.mark.parametrize("count", [0, 1, 250, 300])
def test_codes_batch_by_batch(digits, autoencoder, count):
    x, vector = digits[0][:count], tf.constant(autoencoder.initial)
    codes = build_encode(autoencoder)(vector, x)
    assert codes.shape == (count, 12)
    if count:
        expected = autoencoder.encode(autoencoder.unravel(vector), autoencoder.preprocess(x))
        np.testing.assert_allclose(codes, expected, atol=1e-5)


@pytest.mark.slow
def test_the_steps_are_adam(digits, autoencoder):
    """Algorithm 1 of Kingma and Ba line by line, in float64; Keras puts epsilon elsewhere, which small
    gradients show.
    """
    x = digits[0][:25]
    order = np.random.default_rng(0).permutation(25).astype(np.int32)
    state, total = build_steps(autoencoder, 10, 1e-3)(start_steps(autoencoder.initial), x, order)
    theta, first, second, summed = autoencoder.initial.astype(float), 0.0, 0.0, 0.0
    for age, start in enumerate((0, 10, 20), 1):
        features, vector = autoencoder.preprocess(x[order[start : start + 10]]), tf.Variable(theta, dtype=tf.float32)
        with tf.GradientTape() as tape:
            loss = autoencoder.loss(autoencoder.unravel(vector), features)
        slope = tape.gradient(loss, vector).numpy().astype(float)
        summed += float(loss) * len(features)
        first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2
        theta = theta - 1e-3 * (first / (1 - 0.9**age)) / (np.sqrt(second / (1 - 0.999**age)) + 1e-8)
    assert int(state["steps"]) == 3 and float(total) == pytest.approx(summed, rel=1e-5)
    np.testing.assert_allclose(state["vector"], theta, atol=1e-6)
    assert np.abs(theta - autoencoder.initial).max() > 2e-3


def test_the_steps_of_sgd(digits, autoencoder):
    x, order = digits[0][:25], np.random.default_rng(0).permutation(25).astype(np.int32)
    state, _ = build_steps(autoencoder, 10, 0.5, "sgd")(start_steps(autoencoder.initial), x, order)
    theta = autoencoder.initial.astype(float)
    for start in (0, 10, 20):
        features, vector = autoencoder.preprocess(x[order[start : start + 10]]), tf.Variable(theta, dtype=tf.float32)
        with tf.GradientTape() as tape:
            loss = autoencoder.loss(autoencoder.unravel(vector), features)
        theta = theta - 0.5 * tape.gradient(loss, vector).numpy()
    np.testing.assert_allclose(state["vector"], theta, atol=1e-6)
    assert np.abs(theta - autoencoder.initial).max() > 1e-4


@pytest.mark.slow
def test_clients_with_the_same_images_visit_them_in_orders_of_their_own(tff_worker, digits, autoencoder):
    options = {"num_centres": 1, "fine_tune_epochs": 2, "optimizer": "adam", "seed": 4}
    signature = build_embedding(autoencoder, autoencoder.initial, SPEC, **options)
    cohort = [
        collections.OrderedDict(examples=dataset(digits, slice(0, 40)), client_id=np.int32(each)) for each in (0, 1)
    ]
    first, second = by_client(build_collection(signature)(signature.context, cohort)[1], [0, 1])["centres"]
    assert np.abs(first - second).max() > 1e-6
    assert FINE_TUNE_RATES == {"sgd": 0.01, "adam": 0.001}


@pytest.mark.slow
def test_steps_in_parts_are_steps_at_once(digits, autoencoder):
    x, order = digits[0][:60], np.arange(60, dtype=np.int32)
    steps = build_steps(autoencoder, 10, 1e-3)
    at_once, _ = steps(start_steps(autoencoder.initial), x, order)
    half, _ = steps(start_steps(autoencoder.initial), x, order[:30])
    both, _ = steps(half, x, order[30:])
    np.testing.assert_allclose(both["vector"], at_once["vector"], atol=1e-6)


@pytest.mark.slow
def test_fine_tuning_lowers_the_error_on_the_clients_images(digits, autoencoder):
    fine_tune = build_fine_tune(autoencoder, 5, 10, 1e-3)
    x = digits[0][:100]
    tuned = fine_tune(autoencoder.initial, x, SEED).numpy()
    assert error(autoencoder, tuned, x) < 0.8 * error(autoencoder, autoencoder.initial, x)
    np.testing.assert_array_equal(fine_tune(autoencoder.initial, x[:0], SEED), autoencoder.initial)


def test_the_centres_are_those_of_the_codes(tff_worker, digits, autoencoder):
    signature = build_embedding(autoencoder, autoencoder.initial, SPEC, num_centres=3, seed=2)
    assert signature.context_type["encoder"].shape == (autoencoder.layer_slices()["encoder_output"].stop,)
    found = signature.computation(signature.context, dataset(digits, slice(0, 80)))
    codes = autoencoder.encode(
        autoencoder.unravel(tf.constant(autoencoder.initial)), autoencoder.preprocess(digits[0][:80])
    )
    codes = codes.numpy()
    least = ((codes[:, None] - found["centres"]) ** 2).sum(axis=2).min(axis=1).sum()
    assert found["mask"].all()
    assert least <= 1.02 * KMeans(3, n_init=10, random_state=0).fit(codes).inertia_
    found = signature.computation(signature.context, dataset(digits, slice(0, 0)))  # without examples all are masked
    assert not found["mask"].any() and not found["centres"].any()


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [2, 0])
def test_the_collected_signatures_in_the_runtime(tff_worker, digits, autoencoder, epochs):
    signature = build_embedding(autoencoder, autoencoder.initial, SPEC, num_centres=4, fine_tune_epochs=epochs, seed=4)
    assert str(signature.value_type) == "<centres=float32[4,12],mask=bool[4]>"
    sent = autoencoder.size if epochs else autoencoder.layer_slices()["encoder_output"].stop
    assert signature.context_type["encoder"].shape == (sent,)  # the decoder travels with fine-tuning only
    rows = [slice(0, 40), slice(40, 42), slice(50, 80)]
    cohort = [
        collections.OrderedDict(examples=dataset(digits, each), client_id=np.int32(client))
        for client, each in enumerate(rows)
    ]
    context, collected = build_collection(signature)(signature.context, cohort)
    np.testing.assert_array_equal(context["encoder"], signature.context["encoder"])
    value = by_client(collected, [0, 1, 2])
    assert value["mask"].sum(axis=1).tolist() == [4, 2, 4]
    for client, each in enumerate(rows):
        vector = autoencoder.initial
        own = tf.random.experimental.stateless_fold_in(SEED, client)
        if epochs:
            vector = build_fine_tune(autoencoder, epochs, 10, 0.01, "sgd")(vector, digits[0][each], own)
        codes = build_encode(autoencoder)(vector, digits[0][each])
        seed = tf.random.experimental.stateless_fold_in(own, 1)
        expected = build_kmeans(4)(codes, seed)
        np.testing.assert_allclose(value["centres"][client], expected["centres"], atol=1e-4)


def test_a_client_makes_as_many_centres_as_it_has_classes(tff_worker, digits, autoencoder):
    """FLT section IV-A3: "k can be adjusted according to the number of client classes"."""
    signature = build_embedding(autoencoder, autoencoder.initial, SPEC, num_centres=10, by_class=True)
    for classes in ([3], [1, 7], range(10)):
        rows = np.flatnonzero(np.isin(digits[1], classes))[:60]
        found = signature.computation(signature.context, dataset(digits, rows))
        np.testing.assert_array_equal(found["mask"], np.arange(10) < len(classes))


def spec(shape, dtype=tf.uint8):
    return collections.OrderedDict(x=tf.TensorSpec(shape, dtype), y=tf.TensorSpec((), tf.int32))


@pytest.mark.parametrize(
    "example_spec, options, message",
    [
        (spec((8, 8, 3)), {}, "takes uint8 images of 8x8x1, the clients' are uint8 of 8x8x3"),
        (spec((28, 28, 1)), {}, "the clients' are uint8 of 28x28x1"),
        (spec((8, 8, 1), tf.float32), {}, "the clients' are float32 of 8x8x1"),
        (SPEC, {"num_centres": 0}, "num_centres is 0"),
        (
            SPEC | {"y": tf.TensorSpec((), tf.float32)},
            {"by_class": True},
            "need one class label an example; give num_centres as",
        ),
        (
            SPEC | {"y": tf.TensorSpec((3,), tf.int32)},
            {"by_class": True},
            "need one class label an example; give num_centres as",
        ),
        (SPEC, {"by_class": True, "noise_multiplier": 1.0}, "how many classes a client has is its own"),
        (SPEC, {"fine_tune_epochs": -1}, "fine_tune_epochs is -1; it must be a whole number from 0"),
        (SPEC, {"batch_size": 0}, "batch_size is 0"),
        (SPEC, {"learning_rate": float("nan")}, "learning_rate is nan; it must be a number above 0"),
    ],
)
def test_bad_input(autoencoder, example_spec, options, message):
    with pytest.raises(UserError, match=message) as caught:
        build_embedding(autoencoder, autoencoder.initial, example_spec, **options)
    assert "\n" not in str(caught.value)


def test_a_bad_vector(autoencoder):
    with pytest.raises(UserError, match=r"of shape \[7\]; conv_autoencoder has \d+ parameters"):
        build_embedding(autoencoder, np.zeros(7), SPEC)
    with pytest.raises(UserError, match="NaN or infinite"):
        build_embedding(autoencoder, np.full(autoencoder.size, np.nan), SPEC)
