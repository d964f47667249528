"""How much a client counts in the means of a round."""

import tensorflow as tf


def by_examples(report) -> tf.Tensor:
    """The weight of a client in means: its number of training examples, as in FedAvg."""
    return tf.cast(report["examples"], tf.float32)


def uniform(report) -> tf.Tensor:
    """The weight of a client in means: the same for all."""
    return tf.ones_like(report["examples"], tf.float32)


WEIGHTINGS = {"examples": by_examples, "uniform": uniform}  # as a task names them
