"""Local training: epochs of mini-batch SGD with momentum on a model that comes and goes as one vector."""

import dataclasses
from typing import ClassVar

import numpy as np
import tensorflow as tf

from tffcl.client_work.client_work import visiting_order
from tffcl.errors import UserError
from tffcl.models.flat import FlatModel
from tffcl.validation import Count, Fraction, NonNegative, Parameters, Positive, Share, Whole

ROUND = "round"  # the field of a client that says in which round it trains

# Parameters a tensor, on average, above which training goes on with the weights' own tensors: splitting and joining the
# vector in every step then costs more than the operations that a tensor each takes. Measured: LeNet-5 (4,443) takes
# 0.74 ms a step as one vector and 0.96 as tensors, the MLPs with 200 and 2,048 hidden units (39,753, 407,050) 0.32 and
# 0.23, 3.2 and 1.6.
_WORTH_SPLITTING = 20_000


@dataclasses.dataclass(frozen=True)
class LocalTraining(Parameters):
    """Hyper-parameters of a client's local training.

    Attributes:
      epochs: Passes over the local data (E in the papers).
      batch_size: Examples a step; the last batch of an epoch may be smaller. 0 stands for all local data.
      learning_rate: Step size.
      learning_rate_decay: What the step size is multiplied by after every round (0.99 in IFCA's code); 1 leaves it as
        it is.
      momentum: Of SGD; the velocity starts at zero in every round, as in the papers' code.
      weight_decay: L2 coefficient added to the gradient.
      proximal_weight: μ of FedProx, λ of Ditto and StoCFL: the loss has `proximal_weight / 2 * ||w - centre||^2` added.
    """

    instead: ClassVar = {
        "class_weight": "a tf.keras.losses.Loss of your own weighs classes, call(y, outputs) with tf.gather(weights, "
        "y)",
        "optimizer": "clients train by SGD, with momentum; optimizer= of build_fedavg is the server's",
        "callbacks": "tffcl.train(rounds=R, resume=True) with more and more rounds lets you look at each, and stop",
        "schedule": "learning_rate_decay is what the learning rate is multiplied by after every round",
        "lr": "it is called learning_rate",
    }

    epochs: Count = 1
    batch_size: Whole = 10
    learning_rate: Positive = 0.01
    learning_rate_decay: Share = 1.0
    momentum: Fraction = 0.0
    weight_decay: NonNegative = 0.0
    proximal_weight: NonNegative = 0.0

    def fields(self, **others) -> dict:
        """The fields of a client's input (see `ClientWork`) that its training needs, and others: the round, if the rate
        decays."""
        return {**others, **({ROUND: np.int32} if self.learning_rate_decay < 1 else {})}

    def rate_scale(self, client):
        """What the step size is multiplied by in this client's round; None where it never changes."""
        if self.learning_rate_decay == 1:
            return None
        return tf.constant(self.learning_rate_decay, tf.float32) ** tf.cast(client[ROUND] - 1, tf.float32)


def build_local_sgd(model: FlatModel, training: LocalTraining):
    """Builds the client's training as a tf.function.

    Each epoch visits the local examples once in an order drawn from the seed, batch by batch; the velocity follows
    `v <- momentum * v + gradient`, the parameters `w <- w - learning_rate * v`.

    Returns:
      A tf.function `(vector float32[P], x uint8[n, ...], y int32[n], seed int32[2], centre float32[P], correction
      float32[P], rate_scale float32)` to `(vector float32[P], loss float32)`: the trained parameters and the mean
      training loss over the last epoch, without the terms of `weight_decay` and `proximal_weight`. The centre of the
      proximal term is the vector as it came in unless another is given. A correction is added to every gradient. The
      step size is multiplied by the rate scale. With n = 0 the vector comes back as it went in, with loss 0.
    """
    build_step = _build_momentum_step if training.momentum else _build_plain_step
    split, tensors_of, join = _build_parting(model)

    def descent(parts, statistics, features, labels, seed, rate):
        """The step against the gradient of the loss alone, the new statistics, and the loss."""
        with tf.GradientTape() as tape:
            tape.watch(parts)
            loss, statistics = model.training_loss(tensors_of(parts, statistics), features, labels, seed)
            # The learning rate in the loss and not at the gradient saves a pass over the parameters.
            scaled = -rate * loss
        moves = tape.gradient(scaled, parts, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return [tf.convert_to_tensor(move) for move in moves], statistics, loss

    @tf.function(autograph=False)
    def local_sgd(vector, x, y, seed, centre=None, correction=None, rate_scale=None):
        rate = training.learning_rate if rate_scale is None else training.learning_rate * rate_scale
        features = model.preprocess(x)
        n = tf.shape(y)[0]
        size = training.batch_size or tf.maximum(n, 1)
        parts, statistics = split(vector)
        move = build_step(training, rate, parts if centre is None else split(centre)[0])
        shifts = None if correction is None else split(-rate * correction)[0]

        def step(start, parts, statistics, velocity, total, order, shuffling):
            chosen = order[start : tf.minimum(start + size, n)]
            # The order's seed again, at another place of the stream: what dropout draws in this step.
            dropped = tf.random.experimental.stateless_fold_in(shuffling, start + 1)
            batch = tf.gather(features, chosen), tf.gather(y, chosen)
            moves, statistics, loss = descent(parts, statistics, *batch, dropped, rate)
            if shifts is not None:
                moves = [each + shift for each, shift in zip(moves, shifts)]
            parts, velocity = move(parts, velocity, moves)
            total += loss * tf.cast(tf.size(chosen), tf.float32)
            return start + size, parts, statistics, velocity, total, order, shuffling

        def epoch(number, parts, statistics, velocity, total):
            del total  # only the last epoch's is reported
            shuffling = seed + [0, number]
            order = visiting_order(n, shuffling)
            _, parts, statistics, velocity, total, *_ = tf.while_loop(
                lambda start, *_: start < n,
                step,
                (0, parts, statistics, velocity, 0.0, order, shuffling),
                parallel_iterations=1,
            )
            return number + 1, parts, statistics, velocity, total

        velocity = [tf.zeros_like(part) for part in parts] if training.momentum else []
        _, trained, statistics, _, total = tf.while_loop(
            lambda number, *_: number < training.epochs,
            epoch,
            (0, parts, statistics, velocity, 0.0),
            parallel_iterations=1,
        )
        return join(trained, statistics), tf.math.divide_no_nan(total, tf.cast(n, tf.float32))

    return local_sgd


def _build_parting(model: FlatModel):
    """Builds `(vector) -> (parts, statistics)`, what training goes on with, `(parts, statistics) -> tensors` and
    `(parts, statistics) -> vector`.

    The parts are the trained weights' own tensors, or the vector as a whole of a small model without statistics.
    """
    if not model.has_statistics and model.size < _WORTH_SPLITTING * len(model.weights):
        return lambda vector: ([vector], []), lambda parts, _: model.unravel(parts[0]), lambda parts, _: parts[0]

    def split(vector):
        return model.parted(model.unravel(vector))

    return split, model.together, lambda parts, statistics: model.concat(model.together(parts, statistics))


def build_full_gradient(model: FlatModel, training: LocalTraining):
    """Builds the gradient of a client's whole loss, with its weight decay, as a tf.function.

    Returns:
      A tf.function `(vector float32[P], x [n, ...], y int32[n]) -> float32[P]`; zero with n = 0. It goes through the
      examples in batches of `training.batch_size`.
    """

    @tf.function(autograph=False)
    def full_gradient(vector, x, y):
        n = tf.shape(y)[0]
        size = training.batch_size or tf.maximum(n, 1)

        def add(start, total):
            rows = slice(start, tf.minimum(start + size, n))
            with tf.GradientTape() as tape:
                tape.watch(vector)
                loss, _ = model.training_loss(model.unravel(vector), model.preprocess(x[rows]), y[rows], None)
                loss *= tf.cast(tf.shape(y[rows])[0], tf.float32)
            return start + size, total + tape.gradient(loss, vector)

        total = tf.while_loop(lambda start, _: start < n, add, (0, tf.zeros_like(vector)), parallel_iterations=1)[1]
        mean = tf.math.divide_no_nan(total, tf.cast(n, tf.float32))
        return mean + training.weight_decay * model.trained_only(vector) if training.weight_decay else mean

    return full_gradient


def _build_plain_step(training: LocalTraining, rate, centres):
    """Builds `(parts, [], moves) -> (parts, [])` of SGD without momentum: one sum a part, with decay and proximal
    term."""
    pulled, shrunk = training.proximal_weight > 0, training.proximal_weight + training.weight_decay > 0
    pull = rate * training.proximal_weight
    kept = 1.0 - pull - rate * training.weight_decay
    pulls = [pull * centre for centre in centres] if pulled else None

    def step(parts, velocity, moves):
        terms = [moves, [kept * part for part in parts] if shrunk else parts, *([pulls] if pulled else [])]
        return [tf.add_n(alike) for alike in zip(*terms)], velocity

    return step


def _build_momentum_step(training: LocalTraining, rate, centres):
    """Builds `(parts, velocity, moves) -> (parts, velocity)` of SGD with momentum; the velocity is in steps (-ηv)."""

    def step(parts, velocity, moves):
        if training.weight_decay:
            moves = [move - rate * training.weight_decay * part for move, part in zip(moves, parts)]
        if training.proximal_weight:
            moves = [
                move - rate * training.proximal_weight * (part - centre)
                for move, part, centre in zip(moves, parts, centres)
            ]
        velocity = [training.momentum * was + move for was, move in zip(velocity, moves)]
        return [part + by for part, by in zip(parts, velocity)], velocity

    return step


def local_steps(training: LocalTraining, examples) -> tf.Tensor:
    """Returns τ `int32`, how many steps a client with so many examples takes."""
    size = training.batch_size or tf.maximum(examples, 1)
    return training.epochs * -(-examples // size)


def build_step_weight(training: LocalTraining):
    """Builds `(examples int32) -> float32`, ‖a‖₁ of FedNova (Wang et al. 2020, arXiv:2007.07481, section 4).

    A client that starts at w and ends at w - η Σ aₖ gₖ has taken ‖a‖₁ = Σ aₖ steps' worth of gradients: with plain SGD
    the number of steps τ; with momentum ρ, [τ - ρ (1 - ρ^τ) / (1 - ρ)] / (1 - ρ); with a proximal term μ, [1 - (1 -
    ημ)^τ] / (ημ). Both of them together, of which the paper gives no formula: local training is linear in its
    gradients, so it is run on gradients of one, `c <- ρ c + 1 - η μ a`, `a <- a + c`, which gives the two formulas as
    well.

    Args:
      training: Epochs, batch size, momentum and proximal weight.
    """

    if training.proximal_weight and training.learning_rate_decay < 1:
        raise UserError("learning_rate_decay and proximal_weight together: no formula says what a step is worth then")

    @tf.function(autograph=False)
    def step_weight(examples):
        steps = local_steps(training, examples)
        pull = training.learning_rate * training.proximal_weight

        def step(number, moved, velocity):
            velocity = training.momentum * velocity + 1.0 - pull * moved
            return number + 1, moved + velocity, velocity

        return tf.while_loop(lambda number, *_: number < steps, step, (0, 0.0, 0.0), parallel_iterations=1)[1]

    return step_weight
