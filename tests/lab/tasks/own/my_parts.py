"""Data, partition, model and aggregation of one's own, for a task file."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from sklearn import datasets, model_selection

from tffcl import Dataset, FlatModel, Partition, aggregation


def build_cancer(*, test_share: float = 0.25):
    """Loads scikit-learn's breast cancer data, 30 numbers an example.

    Args:
      test_share: Of the examples.
    """
    x, y = datasets.load_breast_cancer(return_X_y=True)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    train_x, test_x, train_y, test_y = model_selection.train_test_split(x, y, test_size=test_share, random_state=0)
    return Dataset.from_arrays("cancer", (train_x, train_y), (test_x, test_y))


def build_halves(dataset, clients: int = 6, *, seed):
    """Half of the clients hold small, half of them large values of the first number."""
    rng = np.random.default_rng(seed)
    parts = {}
    for split, examples in (("train", dataset.train), ("test", dataset.test)):
        order = np.argsort(examples.x[:, 0])
        halves = [rng.permutation(half) for half in np.array_split(order, 2)]
        parts[split] = tuple(part for half in halves for part in np.array_split(half, clients // 2))
    return Partition(**parts, groups=np.repeat(np.arange(2, dtype=np.int32), clients // 2))


def build_net(input_shape, num_classes, *, hidden: int = 8, seed):
    """Builds a small Keras network."""
    tf.keras.utils.set_random_seed(seed % 2**32)
    keras = tf.keras.Sequential(
        [tf.keras.layers.Dense(hidden, activation="relu", input_shape=input_shape), tf.keras.layers.Dense(num_classes)]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    spec = (tf.TensorSpec([None, *input_shape], tf.float32), tf.TensorSpec([None], tf.int32))
    return FlatModel.from_keras(keras, loss, spec)


def build_nothing():
    """An aggregation whose author forgot `return`."""
    aggregation("dp")


def build_inner():
    """Builds TFF's mean, which then runs inside each cluster."""
    return tff.aggregators.MeanFactory()
