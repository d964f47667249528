"""Models and clients of every objective, as users bring them."""

import functools

import numpy as np
import tensorflow as tf

import tffcl
from tests.own_data import layers, sequential
from tffcl.models.graph_function import graph_function

losses = tf.keras.losses
X = tf.TensorSpec([None, 4])


def labels_of(shape=(), dtype=tf.int32):
    return tf.TensorSpec([None, *shape], dtype)


def in_graph(function, *given):
    """What a function gives in TensorFlow's graph, as NumPy arrays."""
    specs = [tf.TensorSpec(each.shape, each.dtype) for each in given]
    found = graph_function(function, *specs)(*map(tf.constant, given))
    return tf.nest.map_structure(lambda each: each.numpy(), found)


def keras(outputs, activation=None):
    return sequential(layers.Dense(6, activation="relu", input_shape=(4,)), layers.Dense(outputs, activation))


# Name to: outputs and last activation, loss, spec of labels, options of from_keras, scores [n, 3] to labels.
OBJECTIVES = {
    "binary": ((1, "sigmoid"), losses.BinaryCrossentropy(), labels_of(), {}, lambda scores: scores[:, 0] > 0),
    "binary logits": (
        (1,), losses.BinaryCrossentropy(from_logits=True), labels_of((1,)), {}, lambda scores: scores[:, 0] > 0
    ),
    "labels": (
        (3,), losses.BinaryCrossentropy(from_logits=True), labels_of((3,)), {}, lambda scores: (scores > 0).astype(int)
    ),
    "numbers": ((1,), losses.MeanSquaredError(), labels_of((), tf.float32), {}, lambda scores: scores[:, 0]),
    "several numbers": ((3,), losses.Huber(), labels_of((3,), tf.float32), {}, lambda scores: scores),
    "reconstruction": (
        (4,), losses.MeanSquaredError(), labels_of((4,), tf.float32), {"objective": "reconstruction"},
        lambda scores: (scores[:, 0] > 0).astype(int),
    ),
    "one-hot": (
        (3,), losses.CategoricalCrossentropy(from_logits=True), labels_of((3,), tf.float32), {},
        lambda scores: scores.argmax(1),
    ),
    "class weights": (
        (3,), losses.SparseCategoricalCrossentropy(from_logits=True), labels_of(), {"class_weight": {0: 1.0, 1: 5.0}},
        lambda scores: scores.argmax(1),
    ),
}  # fmt: skip


def build(name, **options):
    """A model of an objective, which is traced anew."""
    outputs, loss, label, given, _ = OBJECTIVES[name]
    return tffcl.FlatModel.from_keras(keras(*outputs), loss, (X, label), **given, **options)


model = functools.cache(build)


@functools.cache
def examples(name):
    """`(train, test)` by client: every other one has its labels of the opposite scores."""
    rng = np.random.default_rng(5)
    weights, label = rng.normal(size=(4, 3)), OBJECTIVES[name][4]

    def some(n, turned):
        x = rng.normal(size=(n, 4)).astype(np.float32)
        return x, label(((1 - 2 * turned) * x @ weights).astype(np.float32))

    train, test = ({f"c{each}": some(n + each, each % 2) for each in range(4)} for n in (20, 15))
    return train, test
