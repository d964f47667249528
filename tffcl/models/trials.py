"""Made-up examples and weights, to try out what a model returns."""

import numpy as np
import tensorflow as tf


def some_batch(x, label: tf.TensorSpec) -> tuple:
    """Returns four examples `(x, y)` that any model takes: random floats, or zeros for whole numbers, such as tokens.

    Args:
      x: The spec of one example's features, or a structure of specs.
      label: The spec of its label.
    """

    def some(spec):
        shape = [4, *spec.shape]
        features = np.random.default_rng(0).standard_normal(shape) if spec.dtype.is_floating else np.zeros(shape)
        return tf.constant(features.astype(spec.dtype.as_numpy_dtype))

    return tf.nest.map_structure(some, x), tf.zeros([4, *label.shape], label.dtype)


def some_weights(trained) -> list[list[tf.Tensor]]:
    """Returns eight draws of a model's trained weights around those that it has.

    A last layer that begins at zero, as many do, gives the same number for all examples, which does not show what its
    outputs are.

    Args:
      trained: The trained weights, arrays of any shapes.
    """
    rng = np.random.default_rng(0)

    def some(value):
        value = np.asarray(value)
        fan_in = np.prod(value.shape[:-1]) if value.ndim > 1 else 4
        return tf.constant((value + rng.normal(size=value.shape) / np.sqrt(fan_in)).astype(value.dtype))

    return [[some(value) for value in trained] for _ in range(8)]
