"""The optimizers of local training, those of `tff.learning.optimizers`: how they are built, their first states, and
their learning rate by round."""

import tensorflow as tf
import tensorflow_federated as tff

from tffcl.client_work.local_training import LearningRateDecay, LocalTraining
from tffcl.errors import UserError

_RATE = tff.learning.optimizers.LEARNING_RATE_KEY
_schedules = tf.keras.optimizers.schedules


def rate_factor(decay: LearningRateDecay, number) -> tf.Tensor:
    """Returns what a learning rate is multiplied by, `float32`.

    Args:
      decay: How it changes.
      number: `int32`, of the round, from 1.
    """
    step = tf.cast(tf.maximum(number - 1 - max(decay.warm_up - 1, 0), 0), tf.float32)
    factor = _schedules.ExponentialDecay(1.0, decay.every, decay.factor, staircase=True)(step)
    if decay.cosine:
        factor *= _schedules.CosineDecay(1.0, decay.cosine, alpha=decay.least)(step)
    if decay.warm_up > 1:
        factor *= tf.minimum(tf.cast(number, tf.float32) / decay.warm_up, 1.0)
    return factor


class ScheduledOptimizer(tff.learning.optimizers.Optimizer):
    """A server's optimizer whose learning rate changes with its steps, of which every model has one in each round that
    it is trained in: a cluster that is founded later begins its schedule then.

    Attributes:
      optimizer: Of `tff.learning.optimizers`, with a learning rate.
      decay: What that is multiplied by.
    """

    def __init__(self, optimizer: tff.learning.optimizers.Optimizer, decay: LearningRateDecay):
        """Makes it; UserError if the optimizer has no learning rate that could change."""
        self.optimizer, self.decay, rate = optimizer, decay, base_rate(optimizer)
        self._scheduled = tff.learning.optimizers.schedule_learning_rate(
            optimizer, lambda done: rate * rate_factor(decay, tf.cast(done, tf.int32) + 1)
        )

    def initialize(self, specs):
        """As TFF's optimizers."""
        return self._scheduled.initialize(specs)

    def next(self, state, weights, gradients):
        """As TFF's optimizers."""
        return self._scheduled.next(state, weights, gradients)


def base_rate(optimizer: tff.learning.optimizers.Optimizer) -> float:
    """Returns the learning rate that an optimizer has; UserError if it has none."""
    state = optimizer.initialize(tf.TensorSpec([1], tf.float32))
    rate = optimizer.get_hparams(state).get(_RATE)
    if rate is None:
        kind = type(optimizer).__name__
        raise UserError(f"{kind} has no hyperparameter {_RATE}, which learning_rate_decay could change")
    return float(rate)


def build_optimizer(training: LocalTraining) -> tff.learning.optimizers.Optimizer:
    """Builds the optimizer of a local training; weight decay is a part of AdamW's alone.

    RMSprop adds ε to the root, where Keras' adds it below the root.
    """
    if not isinstance(training.optimizer, str):
        return training.optimizer
    given = {name: getattr(training, name) for name in ("beta_1", "beta_2", "epsilon")}
    given = {name: value for name, value in given.items() if value is not None}
    if training.optimizer == "adamw":
        given["weight_decay"] = training.weight_decay
    if training.optimizer == "rmsprop" and "beta_2" in given:
        given["decay"] = given.pop("beta_2")
    if training.optimizer == "sgd":
        given["momentum"] = training.momentum or None
    build = {"sgd": "build_sgdm"}.get(training.optimizer, f"build_{training.optimizer}")
    return getattr(tff.learning.optimizers, build)(training.learning_rate, **given)


def first_state(training: LocalTraining, parts):
    """Returns the state of a local training's optimizer before its first step on tensors `parts`, as tensors."""
    state = build_optimizer(training).initialize([tf.TensorSpec(part.shape, part.dtype) for part in parts])
    return tf.nest.map_structure(tf.convert_to_tensor, state)


def with_rate(optimizer: tff.learning.optimizers.Optimizer, state, factor):
    """Returns a state with the learning rate of a round, the optimizer's own times a factor."""
    rate = base_rate(optimizer) * factor
    return optimizer.set_hparams(state, {**optimizer.get_hparams(state), _RATE: rate})
