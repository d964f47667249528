import numpy as np
import pytest
import tensorflow as tf

from tffcl.errors import UserError
from tffcl.models.classifiers import build_lenet5, build_mlp


@pytest.mark.parametrize(
    "model, size",
    [
        (lambda: build_lenet5((28, 28, 1), 10), 44_426),
        (lambda: build_lenet5((32, 32, 3), 10), 62_006),
        (lambda: build_lenet5((32, 32, 3), 40), 62_006 + 30 * 85),
        (lambda: build_mlp((28, 28, 1), 10), 784 * 200 + 200 + 2010),
        (lambda: build_mlp((28, 28, 1), 10, hidden=2048), 784 * 2048 + 2048 + 20490),
    ],
)
def test_parameter_counts(model, size):
    built = model()
    assert built.size == built.initial.size == size
    last = list(built.layer_slices().values())[-1]
    assert last.stop == size


def keras_lenet5():
    layers = tf.keras.layers
    return tf.keras.Sequential([
        layers.Conv2D(6, 5, activation="relu", input_shape=(28, 28, 1)), layers.MaxPool2D(),
        layers.Conv2D(16, 5, activation="relu"), layers.MaxPool2D(), layers.Flatten(),
        layers.Dense(120, "relu"), layers.Dense(84, "relu"), layers.Dense(10),
    ])  # fmt: skip


def test_lenet5_is_the_keras_model_with_the_same_weights():
    model = build_lenet5((28, 28, 1), 10, normalization=(0.1307, 0.3081), seed=1)
    keras = keras_lenet5()
    keras.set_weights(list(model.functional.initial_weights[0]))
    images = np.random.default_rng(0).integers(0, 256, (7, 28, 28, 1)).astype(np.uint8)
    expected = keras((images / 255 - 0.1307) / 0.3081)
    logits = model.functional.predict_on_batch(model.functional.initial_weights, images, False)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
    flat = model.logits(model.unravel(tf.constant(model.initial)), model.preprocess(images), None)
    np.testing.assert_allclose(flat, expected, rtol=1e-4, atol=1e-5)


def test_ravel_and_unravel_are_inverse():
    model = build_mlp((8, 8, 1), 10, hidden=5, seed=2)
    vector = np.random.default_rng(0).standard_normal(model.size).astype(np.float32)
    np.testing.assert_array_equal(model.ravel([part.numpy() for part in model.unravel(tf.constant(vector))]), vector)
    with pytest.raises(UserError, match="shapes"):
        model.ravel([vector])


def test_channels_have_their_own_normalization():
    model = build_mlp((2, 2, 3), 2, normalization=((0.5, 0.4, 0.3), (0.2, 0.25, 0.5)))
    image = np.full((1, 2, 2, 3), 255, np.uint8)
    np.testing.assert_allclose(model.preprocess(image)[0, 0, 0], [2.5, 2.4, 1.4], rtol=1e-5)


def test_ifca_reference_is_xavier_normal_with_standard_normal_biases():
    model = build_mlp((28, 28, 1), 300, hidden=400, initialization="ifca_reference", seed=4)
    hidden, bias, output, _ = model.functional.initial_weights[0]
    assert hidden.std() == pytest.approx(np.sqrt(2 / (784 + 400)), rel=0.02)
    assert output.std() == pytest.approx(np.sqrt(2 / (400 + 300)), rel=0.02)
    assert bias.std() == pytest.approx(1, rel=0.15)
    assert np.abs(hidden).max() > 3 * hidden.std()


@pytest.mark.parametrize("initialization", ["torch_default", "glorot"])
def test_initialisations(initialization):
    model = build_mlp((28, 28, 1), 10, initialization=initialization, seed=4)
    kernel, bias = model.functional.initial_weights[0][:2]
    bound = {"torch_default": 1 / 28, "glorot": np.sqrt(6 / 984)}[initialization]
    assert np.abs(kernel).max() <= bound
    assert kernel.std() == pytest.approx(bound / np.sqrt(3), rel=0.02)
    assert (np.abs(bias).max() > 0) == (initialization == "torch_default")


def test_the_seed_decides_the_weights():
    first, again, other = (build_mlp((8, 8, 1), 10, seed=seed).initial for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0


def test_bad_input():
    with pytest.raises(UserError, match="at least 16x16, not 8x8"):
        build_lenet5((8, 8, 1), 10)
    for hidden in (0, 2.5, "many", float("nan"), True):
        with pytest.raises(UserError, match=f"hidden is {hidden!r}; it must be a whole number from 1"):
            build_mlp((8, 8, 1), 10, hidden=hidden)
    with pytest.raises(UserError, match="did you mean 'glorot'"):
        build_mlp((8, 8, 1), 10, initialization="glorott")
