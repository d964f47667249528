"""Per-FedAvg (Fallah et al., NeurIPS 2020, arXiv:2002.07948, Alg. 1): a start from which one local step gives a good
model."""

import functools

import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.clustered_mean import keyed_factory
from tffcl.algorithms.clustered_training import ClusteredTraining, build_engine
from tffcl.algorithms.fedavg import one_model
from tffcl.algorithms.training_parameters import PerFedAvgParameters
from tffcl.choices import GRADIENTS
from tffcl.client_work.client_work import rows_of, visiting_order
from tffcl.client_work.local_sgd import LocalTraining, of_shared
from tffcl.client_work.training import build_update_work
from tffcl.errors import UserError
from tffcl.models.flat import FlatModel
from tffcl.models.graph_function import traced_once
from tffcl.models.layers import in_precision
from tffcl.registry import TRAININGS
from tffcl.rounds.composer import WEIGHTINGS, Round, compose
from tffcl.rounds.server import keyed_server
from tffcl.trace_cache import built_once

_AT_A_TIME = 100  # examples whose activations are in memory at a time, for a gradient over all examples


def _build_gradient(model: FlatModel, weight_decay: float):
    """Builds `(vector, features, y, seed) -> (gradient float32[P], loss, statistics)` at a point; the loss excludes the
    weight decay."""

    def gradient(vector, features, y, seed):
        with tf.GradientTape() as tape:
            tape.watch(vector)
            loss, statistics = model.training_loss(model.unravel(vector), features, y, seed)
        slope = tape.gradient(loss, vector, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        slope = slope + model.on_trained(weight_decay * vector, 0.0) if weight_decay else slope
        return slope, loss, statistics

    return gradient


def _build_step(model: FlatModel, gradient, how: PerFedAvgParameters, training: LocalTraining):
    """Builds `(vector, velocity, batches, seeds) -> (vector, velocity, loss)`, one meta-step; a batch is `(features,
    y)`. Statistics are renewed by the forward pass of the second gradient."""
    momentum, beta = training.momentum, training.learning_rate if how.beta is None else how.beta

    def step(vector, velocity, batches, seeds):
        first, *_ = gradient(vector, *batches[0], seeds[0])
        if how.velocity == "shared":
            velocity = first = momentum * velocity + first
        adapted = vector - how.alpha * first
        slope, loss, statistics = gradient(adapted, *batches[1], seeds[1])
        if how.gradient == "hessian_free":
            above, below = (
                gradient(vector + sign * how.delta * slope, *batches[2], seeds[2])[0] for sign in (1.0, -1.0)
            )
            slope -= how.alpha / (2 * how.delta) * (above - below)
        velocity = momentum * velocity + slope
        return model.after_step(vector - beta * velocity, statistics), velocity, loss

    return step


@built_once
def build_meta_sgd(model: FlatModel, training: LocalTraining, how: PerFedAvgParameters):
    """Builds the client's training of a start for adaptation (Fallah et al. 2020, arXiv:2002.07948, Alg. 1).

    With batches B₁, B₂ (and B₃) a step is w⁺ = w - α ∇f(w; B₁), g = ∇f(w⁺; B₂) and w <- w - β g by first
    order, or, Hessian-free, w <- w - β (g - α / (2δ) [∇f(w + δg; B₃) - ∇f(w - δg; B₃)]).

    Each epoch visits the examples in the order of `build_local_sgd`, in batches; two (three) consecutive batches make a
    step, and batches left over wait for the next epoch. A client with fewer batches than a step needs gets smaller
    ones, so that it trains, too; with fewer examples than that, batches repeat.

    Args:
      training: Epochs, batch size, momentum, weight decay (a part of f), and β if `how` has none.
      how: The steps, symbols as there.

    Returns:
      A tf.function as `build_local_sgd` returns it; its loss is the mean of f(w⁺; B₂), without the decay, over the last
      epoch. With n = 0 the vector is returned unchanged, with loss 0.

    Raises:
      UserError: If the training has a proximal term.
    """
    if training.proximal_weight:
        raise UserError(f"proximal_weight is {training.proximal_weight:g}; it must be 0 where meta-steps train")
    if model.own is not None:
        return of_shared(model, build_meta_sgd(model.whole, training, how))
    model, needed = in_precision(model, training.precision), GRADIENTS[how.gradient]
    step = _build_step(model, _build_gradient(model, training.weight_decay), how, training)

    @traced_once
    def meta_sgd(vector, x, y, seed, centre=None):
        del centre  # there is no proximal term
        features, n = model.preprocess(x), tf.shape(y)[0]
        size = tf.maximum(tf.minimum(training.batch_size or n, n // needed), 1)
        batches = (n + size - 1) // size
        steps = tf.where(n > 0, tf.maximum(batches // needed, 1), 0)

        def take(number, vector, velocity, total, seen, order, shuffling):
            chosen, seeds = [], []
            for place in range(needed):
                start = (number * needed + place) % batches * size
                rows = order[start : tf.minimum(start + size, n)]
                chosen.append((rows_of(features, rows), tf.gather(y, rows)))
                seeds.append(tf.random.experimental.stateless_fold_in(shuffling, start + 1))
            vector, velocity, loss = step(vector, velocity, chosen, seeds)
            count = model.objective.size(chosen[1][1])
            return number + 1, vector, velocity, total + count * loss, seen + count, order, shuffling

        def epoch(number, vector, velocity, loss):
            del loss  # only the last epoch's is reported
            shuffling = seed + [0, number]
            state = (0, vector, velocity, 0.0, 0.0, visiting_order(n, shuffling), shuffling)
            _, vector, velocity, total, seen, *_ = tf.while_loop(
                lambda done, *_: done < steps, take, state, parallel_iterations=1
            )
            return number + 1, vector, velocity, tf.math.divide_no_nan(total, seen)

        state = (0, vector, tf.zeros_like(vector), 0.0)
        _, trained, _, loss = tf.while_loop(
            lambda number, *_: number < training.epochs, epoch, state, parallel_iterations=1
        )
        return trained, loss

    return meta_sgd


@built_once
def build_adapt(model: FlatModel, training: LocalTraining, *, rate: float, steps: int):
    """Builds a client's adaptation: steps against the gradient of f over all its training examples.

    Args:
      model: The model to adapt.
      training: Local hyper-parameters; the weight decay is a part of f.
      rate: α.
      steps: The number of steps.

    Returns:
      `(vector float32[P], x [n, ...], y [n, ...], seed int32[2]) -> vector float32[P]`.
    """
    gradient = _build_gradient(model, training.weight_decay)

    @traced_once
    def adapt(vector, x, y, seed):
        features, n, whole = model.preprocess(x), tf.shape(y)[0], model.objective.size(y)

        def add(start, total, at):
            rows = slice(start, tf.minimum(start + _AT_A_TIME, n))
            share = tf.math.divide_no_nan(model.objective.size(y[rows]), whole)
            dropped = tf.random.experimental.stateless_fold_in(seed, start + 1)
            return start + _AT_A_TIME, total + share * gradient(at, rows_of(features, rows), y[rows], dropped)[0], at

        for _ in range(steps):
            state = (0, tf.zeros_like(vector), vector)
            _, slope, _ = tf.while_loop(lambda start, *_: start < n, add, state, parallel_iterations=1)
            vector = model.after_step(vector - rate * slope, model.parted(model.unravel(vector))[1])
        return vector

    return adapt


@built_once
def build_meta_round(model: FlatModel, training: LocalTraining, parameters: PerFedAvgParameters, aggregation) -> Round:
    """Builds a round of clustered training whose clients take meta-steps; types as in `build_clustered_round`."""
    p = parameters
    training.require_sgd("Per-FedAvg", *TRAININGS["per_fedavg"].sgd)
    adapt = build_adapt(model.whole, training, rate=p.alpha, steps=p.adaptation_steps) if p.adaptation_steps else None
    work = build_update_work(model, training, local_sgd=build_meta_sgd(model, training, p), adapt=adapt)
    return compose(
        work, {"update": keyed_factory(aggregation)}, keyed_server(model.size), weighting=WEIGHTINGS[p.weighting]
    )


def build_meta_training(
    model: FlatModel,
    training: LocalTraining,
    parameters: PerFedAvgParameters = PerFedAvgParameters(),
    *,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> ClusteredTraining:
    """Builds Per-FedAvg, the method of one model or the rounds of any grouping; other arguments are as in
    `build_fedavg`.

    The accuracy `local` is that of a client's model after the round's meta-steps and the adaptation that follows them;
    `cluster` and `global` are those of the start without either. With α = 0 and weights by examples it is FedAvg on the
    second batch of each step. The steps of an epoch are pairs of consecutive batches, as in the code of PACFL and FLIS;
    the paper draws every batch anew. β is the learning rate of all methods (Table 13 of PACFL: 0.001).

    Args:
      training: Epochs, batch size, momentum and weight decay of the local training, and β if `parameters` have none.
      parameters: The meta-steps.

    Raises:
      UserError: If `training` has a proximal term.
    """
    return build_engine(model, functools.partial(build_meta_round, model, training, parameters), aggregation)


build_per_fedavg = one_model("per_fedavg", build_meta_training)
