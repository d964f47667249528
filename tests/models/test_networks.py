"""The papers' networks: sizes, forward passes against Keras, dropout, training."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.models import images, keras_models
from tffcl.client_work.local_sgd import LocalTraining, build_local_sgd
from tffcl.errors import UserError
from tffcl.models.classifiers import (
    build_char_lstm,
    build_leaf_cnn,
    build_mlp,
    build_resnet9,
    build_stocfl_cifar_cnn,
    build_stocfl_femnist_cnn,
)
from tffcl.models.flat import mean_cross_entropy
from tffcl.registry import MODELS

GREY, COLOUR = (28, 28, 1), (32, 32, 3)
SEED = np.array([3, 4], np.int32)


def layer_sizes(model):
    return [part.stop - part.start for part in model.layer_slices().values()]


def test_resnet9_has_the_parameters_of_pacfl_table_11():
    # (i, o) of the table's convolutions; each with a bias and two values a channel for GroupNorm.
    convolutions = [(3, 64), (64, 128), (128, 128), (128, 128), (128, 256), (256, 512), (512, 512), (512, 512)]
    expected = [9 * i * o + o + 2 * o for i, o in convolutions] + [512 * 100 + 100]
    model = build_resnet9(COLOUR, 100)
    assert layer_sizes(model) == expected
    assert model.size == model.initial.size == sum(expected) == 6_621_540
    assert build_resnet9(COLOUR, 10).size == 6_621_540 - 90 * 513


@pytest.mark.parametrize("classes, size", [(62, 6_603_710), (47, 6_572_975)])
def test_leaf_cnn_has_leafs_parameters(classes, size):
    model = build_leaf_cnn(GREY, classes)
    assert layer_sizes(model) == [25 * 32 + 32, 25 * 32 * 64 + 64, 3136 * 2048 + 2048, 2049 * classes]
    assert model.size == model.initial.size == size


def test_stocfl_femnist_cnn_has_the_parameters_of_its_source():
    # Reddi et al. 2021, table of the EMNIST model, layer by layer.
    model = build_stocfl_femnist_cnn(GREY, 62)
    assert layer_sizes(model) == [320, 18_496, 1_179_776, 7_998]
    assert model.size == model.initial.size == 1_206_590


def test_stocfl_cifar_cnn_is_lenet5_with_or_without_its_layer_of_84():
    model = build_stocfl_cifar_cnn(COLOUR, 10)
    assert layer_sizes(model) == [75 * 6 + 6, 150 * 16 + 16, 400 * 120 + 120, 120 * 10 + 10]
    assert model.size == model.initial.size == 52_202
    assert build_stocfl_cifar_cnn(COLOUR, 10, dense_layers=3).size == 62_006  # PACFL Table 10


@pytest.mark.parametrize(
    "model, keras",
    [
        (lambda **k: build_mlp(GREY, 10, dropout=0.5, **k), lambda: keras_models.mlp(10)),
        (lambda **k: build_leaf_cnn(GREY, 47, **k), lambda: keras_models.leaf_cnn(47)),
        (lambda **k: build_stocfl_femnist_cnn(GREY, 62, **k), lambda: keras_models.stocfl_femnist_cnn(62)),
        (lambda **k: build_stocfl_cifar_cnn(COLOUR, 10, **k), lambda: keras_models.stocfl_cifar_cnn(10, [120])),
        (
            lambda **k: build_stocfl_cifar_cnn(COLOUR, 10, dense_layers=3, **k),
            lambda: keras_models.stocfl_cifar_cnn(10, [120, 84]),
        ),
        pytest.param(
            lambda **k: build_resnet9(COLOUR, 100, **k), lambda: keras_models.resnet9(100), marks=pytest.mark.slow
        ),
    ],
    ids=["mlp", "leaf", "stocfl femnist", "stocfl cifar 2", "stocfl cifar 3", "resnet9"],
)
def test_it_is_the_keras_model_with_the_same_weights(model, keras):
    model = model(normalization=(0.3, 0.4), seed=1)
    # Noise on top, for scales other than 1 and offsets other than 0.
    vector = model.initial + 0.02 * np.random.default_rng(2).standard_normal(model.size).astype(np.float32)
    batch = images.noise(3, model.input_shape)
    expected = keras_models.same_weights(keras(), model, vector)((batch / 255 - 0.3) / 0.4, training=False)
    tensors = model.unravel(tf.constant(vector))
    # Twice: nothing is drawn at inference.
    for _ in range(2):
        logits = model.logits(tensors, model.preprocess(batch), None)
        np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-4)
    functional = model.functional.predict_on_batch((tuple(tensors), ()), batch, False)
    np.testing.assert_allclose(functional, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "build, options",
    [
        (build_mlp, {"dropout": 0.5}),
        (build_stocfl_femnist_cnn, {"dense_dropout": 0}),
        (build_stocfl_femnist_cnn, {"conv_dropout": 0}),
    ],
    ids=["mlp", "after convolutions", "between dense layers"],
)
def test_the_seed_decides_what_is_dropped(build, options):
    model = build(GREY, 10, **options)
    features = model.preprocess(images.noise(2, GREY))
    tensors = model.unravel(tf.constant(model.initial))
    none, first, again, other = (model.logits(tensors, features, seed).numpy() for seed in (None, SEED, SEED, SEED + 1))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.01 * np.abs(none).max()
    assert np.abs(first - none).max() > 0.01 * np.abs(none).max()


@pytest.mark.parametrize(
    "build, options",
    [(build_mlp, {"hidden": 30, "dropout": 0.5}), (build_stocfl_femnist_cnn, {"conv_dropout": 0})],
    ids=["mlp", "stocfl"],
)
def test_dropout_before_the_last_layer_keeps_the_mean_of_the_logits(build, options):
    model = build((6, 6, 1), 10, **options)
    features = tf.repeat(model.preprocess(images.noise(1, model.input_shape)), 4000, axis=0)
    tensors = model.unravel(tf.constant(model.initial))
    dropped = model.logits(tensors, features, SEED).numpy()
    error = dropped.std(axis=0) / np.sqrt(4000)
    assert (np.abs(dropped.mean(axis=0) - model.logits(tensors, features[:1], None)[0]) < 5 * error).all()


def test_rate_0_drops_nothing():
    model = build_stocfl_femnist_cnn((6, 6, 1), 10, conv_dropout=0, dense_dropout=0)
    features, tensors = model.preprocess(images.noise(5, (6, 6, 1))), model.unravel(tf.constant(model.initial))
    np.testing.assert_array_equal(model.logits(tensors, features, SEED), model.logits(tensors, features, None))


@pytest.mark.parametrize(
    "build, shape, count, training",
    [
        (functools.partial(build_mlp, dropout=0.5), GREY, 60, LocalTraining(epochs=3, learning_rate=0.05)),
        (build_stocfl_cifar_cnn, COLOUR, 100, LocalTraining(epochs=3, learning_rate=0.05, momentum=0.9)),
        pytest.param(build_resnet9, COLOUR, 10, LocalTraining(epochs=3, learning_rate=0.001), marks=pytest.mark.slow),
    ],
    ids=["mlp", "stocfl cifar", "resnet9"],
)
def test_sgd_learns_digits(digits, build, shape, count, training):
    model = build(shape, 10)
    x, y = images.resized(digits[0][:count], model.input_shape), digits[1][:count]

    def loss(vector):
        return float(mean_cross_entropy(model.logits(model.unravel(vector), model.preprocess(x), None), y))

    trained, _ = build_local_sgd(model, training)(model.initial, x, y, SEED)
    assert loss(trained) < 0.95 * loss(tf.constant(model.initial))
    assert np.isfinite(trained).all()


@pytest.mark.parametrize("name", sorted({*MODELS} - {"char_lstm"}))
def test_the_catalog_builds_every_model(name):
    model = MODELS[name].builder()(COLOUR, 7, normalization=(0.5, 0.5), seed=3)
    assert model.name == name and model.num_classes == 7
    tensors, features = model.unravel(tf.constant(model.initial)), model.preprocess(images.noise(2, COLOUR))
    assert model.logits(tensors, features, None).shape == (2, 7)


def test_without_classes_a_network_predicts_a_number_by_squared_error():
    model = build_mlp((5,), None, hidden=3, normalization=None, seed=1)
    assert model.objective.name == "numbers" and model.size == 5 * 3 + 3 + 3 + 1
    assert [each.name for each in model.metrics] == ["mae", "mse", "r2"]
    x, y = np.ones((4, 5), np.float32), np.arange(4, dtype=np.float32)
    outputs = model.logits(model.unravel(tf.constant(model.initial)), x, None)
    np.testing.assert_allclose(model.objective.losses(outputs, y), (outputs[:, 0] - y) ** 2, rtol=1e-6)
    np.testing.assert_allclose(model.objective.loss(outputs, y), np.mean((outputs[:, 0] - y) ** 2), rtol=1e-6)


@pytest.mark.slow
def test_the_network_for_characters_answers_at_each_place_and_follows_its_seed():
    model = build_char_lstm((3,), 11, embedding=3, units=4, layers=2, seed=2**62 + 3)
    tokens = tf.constant(np.arange(6).reshape(2, 3), tf.int32)
    answers = model.logits(model.unravel(tf.constant(model.initial)), tokens, None)
    assert answers.shape == (2, 3, 11) and model.label_shape == (3,) and model.num_classes == 11
    assert model.size == 11 * 3 + 4 * 4 * (3 + 4 + 1) + 4 * 4 * (4 + 4 + 1) + 5 * 11
    later = tf.concat([tokens[:, :2], tokens[:, 2:] + 1], axis=1)
    changed = model.logits(model.unravel(tf.constant(model.initial)), later, None)
    np.testing.assert_allclose(changed[:, :2], answers[:, :2], atol=1e-6)  # a place sees what stands before it
    same, other = (build_char_lstm((3,), 11, embedding=3, units=4, layers=2, seed=2**62 + n) for n in (3, 4))
    np.testing.assert_array_equal(same.initial, model.initial)
    assert not np.array_equal(other.initial, model.initial)
    for shape, classes, given in (((8, 8, 1), 7, (0.5, 0.5)), ((6,), None, None)):
        with pytest.raises(UserError, match="char_lstm needs sequences of characters"):
            build_char_lstm(shape, classes, normalization=given)


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: build_resnet9((28, 28, 1), 10), "resnet9 needs images of at least 32x32, not 28x28"),
        (lambda: build_leaf_cnn((3, 8, 1), 10), "leaf_cnn needs images of at least 4x4, not 3x8"),
        (lambda: build_stocfl_femnist_cnn((5, 5, 1), 10), "at least 6x6, not 5x5"),
        (lambda: build_stocfl_cifar_cnn((15, 32, 3), 10), "stocfl_cifar_cnn needs images of at least 16x16, not 15x32"),
        (lambda: build_leaf_cnn((28, 28), 10), "height x width x channels, not 28x28"),
        (lambda: build_leaf_cnn((28, 28, 0), 10), "height x width x channels, not 28x28x0"),
        (lambda: build_stocfl_cifar_cnn(COLOUR, 10, dense_layers=4), r"dense_layers is 4; it must be 2 .* or 3"),
        (lambda: build_stocfl_femnist_cnn(GREY, 10, conv_dropout=1), "conv_dropout is 1; it must be a number from 0"),
        (lambda: build_stocfl_femnist_cnn(GREY, 10, dense_dropout="0.5"), "dense_dropout is '0.5'; it must be"),
        (lambda: build_mlp(GREY, 10, dropout=-0.1), "dropout is -0.1; it must be a number from 0 to below 1"),
        (lambda: build_mlp(GREY, 10, dropout=float("nan")), "dropout is nan"),
        (lambda: build_mlp(GREY, 10, dropout=True), "dropout is True"),
    ],
)
def test_bad_input(build, message):
    with pytest.raises(UserError, match=message) as caught:
        build()
    assert "\n" not in str(caught.value)
