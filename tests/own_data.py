"""Data and models as users bring them: arrays by client with text IDs, Keras models, a plain functional model."""

import collections
import functools

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from sklearn.datasets import load_breast_cancer

import tffcl
from tests import digits

layers = tf.keras.layers
CROSS_ENTROPY = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
LETTERS, LENGTH = 12, 9  # of the text


def spec(x_shape, dtype, *label_shape):
    """The input_spec `(x, y)` of batches of such examples."""
    return tf.TensorSpec([None, *x_shape], dtype), tf.TensorSpec([None, *label_shape], tf.int32)


def sequential(*stack, seed=1):
    """A Keras model of these layers, with the weights that the seed decides."""
    tf.keras.utils.set_random_seed(seed)
    return tf.keras.Sequential(list(stack))


@functools.cache
def patients():
    """scikit-learn's breast_cancer: `(x float32 [569, 30], y int64 [569])`, features of mean 0 and deviation 1."""
    data = load_breast_cancer()
    return ((data.data - data.data.mean(0)) / data.data.std(0)).astype(np.float32), data.target


def clinics(count=6):
    """`(train, test)` by text ID: every other clinic has the signs of half of its features turned."""
    x, y = patients()
    train, test = {}, {}
    for clinic in range(count):
        own = slice(clinic * 50, clinic * 50 + 30 + clinic), slice(clinic * 50 + 40, clinic * 50 + 50)
        turned = x * np.where(np.arange(30) < 15 * (clinic % 2), -1, 1).astype(np.float32)
        train[f"clinic_{clinic}"], test[f"clinic_{clinic}"] = ((turned[rows], y[rows]) for rows in own)
    return train, test


def keras_perceptron():
    return sequential(layers.Dense(6, activation="relu", input_shape=(30,)), layers.Dense(2))


def new_perceptron():
    return tffcl.FlatModel.from_keras(keras_perceptron(), CROSS_ENTROPY, spec([30], tf.float32))


perceptron = functools.cache(new_perceptron)  # one object, so that what is traced for one test serves the others


def cameras():
    """Digits as uint8 images; those of every other camera are turned by a quarter."""
    x, y = digits.load()
    train, test = {}, {}
    for camera in range(6):
        images = np.rot90(x, camera % 2, axes=(1, 2))
        rows, tests = slice(camera * 30, camera * 30 + 30), slice(1000 + camera * 10, 1010 + camera * 10)
        train[f"camera {camera}"], test[f"camera {camera}"] = (images[rows], y[rows]), (images[tests], y[tests])
    return train, test


def keras_cnn():
    return sequential(
        layers.Rescaling(1 / 255, input_shape=(8, 8, 1)),
        layers.Conv2D(4, 3, activation="relu"),
        layers.MaxPool2D(),
        layers.Flatten(),
        layers.Dense(10),
    )


@functools.cache
def cnn():
    return tffcl.FlatModel.from_keras(keras_cnn(), CROSS_ENTROPY, spec([8, 8, 1], tf.uint8))


def writers(count=6):
    """Text as letters and the letters that follow them, `int32 [n, L]`: some go up the alphabet, the others down."""
    rng = np.random.default_rng(0)

    def sentences(up, n):
        steps = rng.integers(1, 3, (n, LENGTH + 1)) * (1 if up else -1)
        text = (np.cumsum(steps, axis=1) % LETTERS).astype(np.int32)
        return text[:, :-1], text[:, 1:]

    names = [f"writer {writer}" for writer in range(count)]
    return tuple({name: sentences(place % 2, n) for place, name in enumerate(names)} for n in (20, 6))


def keras_letters():
    return sequential(
        layers.Embedding(LETTERS, 4, input_length=LENGTH),
        layers.SimpleRNN(6, return_sequences=True),
        layers.Dense(LETTERS),
    )


@functools.cache
def letters():
    return tffcl.FlatModel.from_keras(keras_letters(), CROSS_ENTROPY, spec([LENGTH], tf.int32, LENGTH))


def functional():
    """Softmax regression as a plain functional model of batches `<x, y>`; what is not trained scales the features."""

    @tf.function
    def predict(weights, x, training):
        (kernel, bias), (scale,) = weights
        return tf.matmul(x * scale, kernel) + bias

    def loss(output, label, sample_weight=None):
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(label, output))

    x, y = spec([30], tf.float32)
    kernel = np.random.default_rng(2).normal(0, 0.1, [30, 2]).astype(np.float32)
    return tff.learning.models.FunctionalModel(
        initial_weights=((kernel, np.zeros(2, np.float32)), (np.float32(0.5),)),
        predict_on_batch_fn=predict,
        loss_fn=loss,
        input_spec=collections.OrderedDict(x=x, y=y),
    )


@functools.cache
def regression():
    """One object, so that what is traced for one test serves the others."""
    return tffcl.FlatModel.from_functional(functional(), "regression")


def client_data(examples):
    """The same as TFF's ClientData."""
    return tff.simulation.datasets.TestClientData(
        {client: collections.OrderedDict(x=x, y=y) for client, (x, y) in examples.items()}
    )


def series():
    """Short series of two values, and which of three kinds each is: the kind decides the slope."""
    rng = np.random.default_rng(4)

    def some(n):
        y = rng.integers(0, 3, n)
        slopes = (y - 1)[:, None, None] * np.linspace(-1, 1, 8)[:, None]
        return (slopes + rng.normal(0, 0.3, (n, 8, 2))).astype(np.float32), y

    return tuple({f"sensor {each}": some(n) for each in range(6)} for n in (20, 6))


def recurrent(layer=layers.LSTM):
    """A classifier of series by a recurrent layer's last state."""
    return tffcl.FlatModel.from_keras(
        sequential(layer(4, input_shape=(8, 2)), layers.Dense(3)), CROSS_ENTROPY, spec([8, 2], tf.float32)
    )
