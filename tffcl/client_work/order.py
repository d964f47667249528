"""In which order a client visits its examples."""

import tensorflow as tf


def visiting_order(count, seed):
    """Draws a permutation of the numbers below `count`.

    By sorting random numbers and not by TensorFlow's own shuffle, an operation that device runtimes lack.

    Args:
      count: `int32`, n.
      seed: `int32 [2]`.

    Returns:
      `int32 [n]`, decided by the seed.
    """
    drawn = tf.random.stateless_uniform([count], seed, minval=None, maxval=None, dtype=tf.int32)
    return tf.argsort(drawn, stable=True)
