"""Local training: epochs of mini-batch SGD with momentum on a model that is one vector."""

import dataclasses
import math

import tensorflow as tf

from tffcl.client_work.order import visiting_order
from tffcl.errors import UserError
from tffcl.models.flat import FlatModel, mean_cross_entropy


@dataclasses.dataclass(frozen=True)
class LocalTraining:
    """Hyper-parameters of a client's local training.

    Attributes:
      epochs: Passes over the local data (E in the papers).
      batch_size: Examples a step; the last batch of an epoch may be smaller. 0 stands for all local data.
      learning_rate: Step size.
      momentum: Of SGD; the velocity starts at zero in every round, as in the papers' code.
      weight_decay: L2 coefficient added to the gradient.
      proximal_weight: μ of FedProx, λ of Ditto and StoCFL: the loss has `proximal_weight / 2 * ||w - centre||^2` added.
    """

    epochs: int = 1
    batch_size: int = 10
    learning_rate: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    proximal_weight: float = 0.0

    def __post_init__(self):
        whole = {"epochs": (self.epochs, 1), "batch_size": (self.batch_size, 0)}
        for name, (value, least) in whole.items():
            if isinstance(value, bool) or int(value) != value or value < least:
                raise UserError(f"{name} is {value}; it must be a whole number from {least}")
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise UserError(f"learning_rate is {self.learning_rate}; it must be a positive number")
        if not 0 <= self.momentum < 1:
            raise UserError(f"momentum is {self.momentum}; it must be from 0 to below 1")
        for name in ("weight_decay", "proximal_weight"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise UserError(f"{name} is {getattr(self, name)}; it must be 0 or more")


def build_local_sgd(model: FlatModel, training: LocalTraining):
    """Builds the client's training as a tf.function.

    Each epoch visits the local examples once in an order drawn from the seed, batch by batch; the velocity follows
    `v <- momentum * v + gradient`, the parameters `w <- w - learning_rate * v`.

    Args:
      model: What is trained.
      training: Hyper-parameters.

    Returns:
      A tf.function `(vector float32[P], x uint8[n, ...], y int32[n], seed int32[2], centre float32[P])` to
      `(vector float32[P], loss float32)`: the trained parameters and the mean training loss over the last epoch, without
      the terms of `weight_decay` and `proximal_weight`. The centre of the proximal term is the vector as it came in unless
      another is given. With n = 0 the vector comes back as it went in, with loss 0.
    """

    def gradient(vector, features, labels, seed, centre):
        with tf.GradientTape() as tape:
            tape.watch(vector)
            loss = mean_cross_entropy(model.logits(model.unravel(vector), features, seed), labels)
        slope = tape.gradient(loss, vector)
        if training.weight_decay:
            slope += training.weight_decay * vector
        if training.proximal_weight:
            slope += training.proximal_weight * (vector - centre)
        return slope, loss

    @tf.function
    def local_sgd(vector, x, y, seed, centre=None):
        centre = vector if centre is None else centre
        features = model.preprocess(x)
        n = tf.shape(y)[0]
        size = training.batch_size or tf.maximum(n, 1)

        def step(start, vector, velocity, total, order, shuffling):
            chosen = order[start : tf.minimum(start + size, n)]
            # The order's seed again, at another place of the stream: what dropout draws in this step.
            dropped = tf.random.experimental.stateless_fold_in(shuffling, start + 1)
            slope, loss = gradient(vector, tf.gather(features, chosen), tf.gather(y, chosen), dropped, centre)
            velocity = training.momentum * velocity + slope
            total += loss * tf.cast(tf.size(chosen), tf.float32)
            return start + size, vector - training.learning_rate * velocity, velocity, total, order, shuffling

        def epoch(number, vector, velocity, total):
            del total  # only the last epoch's is reported
            shuffling = seed + [0, number]
            order = visiting_order(n, shuffling)
            _, vector, velocity, total, *_ = tf.while_loop(
                lambda start, *_: start < n,
                step,
                (0, vector, velocity, 0.0, order, shuffling),
                parallel_iterations=1,
            )
            return number + 1, vector, velocity, total

        _, trained, _, total = tf.while_loop(
            lambda number, *_: number < training.epochs,
            epoch,
            (0, vector, tf.zeros_like(vector), 0.0),
            parallel_iterations=1,
        )
        return trained, tf.math.divide_no_nan(total, tf.cast(n, tf.float32))

    return local_sgd
