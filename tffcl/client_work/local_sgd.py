"""Local training: epochs of mini-batch steps, by the optimizers of `tff.learning.optimizers`, on a model that is
received and returned as one vector."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.client_work.client_work import OPTIMIZER, rows_of, visiting_order
from tffcl.client_work.local_training import OF_CLIENTS, LearningRateDecay, LocalTraining
from tffcl.clients.cohort import Cohort
from tffcl.errors import UserError
from tffcl.models.flat import FlatModel
from tffcl.models.graph_function import converted, traced_once
from tffcl.models.layers import in_precision
from tffcl.trace_cache import built_once
from tffcl.validation import check_kind

_RATE = tff.learning.optimizers.LEARNING_RATE_KEY
_schedules = tf.keras.optimizers.schedules


def rate_factor(decay: LearningRateDecay, number) -> tf.Tensor:
    """Returns the factor of a learning rate in a round, `float32`.

    Args:
      decay: How the rate changes.
      number: `int32`, the number of the round, from 1.
    """
    step = tf.cast(tf.maximum(number - 1 - max(decay.warm_up - 1, 0), 0), tf.float32)
    factor = _schedules.ExponentialDecay(1.0, decay.every, decay.factor, staircase=True)(step)
    if decay.cosine:
        factor *= _schedules.CosineDecay(1.0, decay.cosine, alpha=decay.least)(step)
    if decay.warm_up > 1:
        factor *= tf.minimum(tf.cast(number, tf.float32) / decay.warm_up, 1.0)
    return factor


class ScheduledOptimizer(tff.learning.optimizers.Optimizer):
    """A server's optimizer whose learning rate changes with its steps. Every model takes a step in each round in which
    it is trained, so a cluster that is founded later begins its schedule then.

    Attributes:
      optimizer: An optimizer of `tff.learning.optimizers`, with a learning rate.
      decay: The schedule that multiplies the learning rate.
    """

    def __init__(self, optimizer: tff.learning.optimizers.Optimizer, decay: LearningRateDecay):
        """Makes it; UserError if the optimizer has no learning rate that could change."""
        check_optimizer("optimizer", optimizer)
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


def check_optimizer(name: str, optimizer):
    """Raises UserError if the argument with this name is neither None nor an optimizer of `tff.learning.optimizers`."""
    kinds = tff.learning.optimizers.Optimizer, type(None)
    check_kind(name, optimizer, kinds, "one of tff.learning.optimizers, e.g. tff.learning.optimizers.build_adam(0.01)")


def base_rate(optimizer: tff.learning.optimizers.Optimizer) -> float:
    """Returns the learning rate of an optimizer; raises UserError if it has none."""
    state = optimizer.initialize(tf.TensorSpec([1], tf.float32))
    rate = optimizer.get_hparams(state).get(_RATE)
    if rate is None:
        kind = type(optimizer).__name__
        raise UserError(f"{kind} has no hyperparameter {_RATE}, which learning_rate_decay could change")
    return float(rate)


def build_optimizer(training: LocalTraining) -> tff.learning.optimizers.Optimizer:
    """Builds the optimizer of a local training; only AdamW's includes the weight decay.

    RMSprop adds ε to the root; Keras' adds it under the root.
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
    """Returns a state with the learning rate of a round: the optimizer's own rate times a factor."""
    rate = base_rate(optimizer) * factor
    return optimizer.set_hparams(state, {**optimizer.get_hparams(state), _RATE: rate})


ROUND = "round"  # the client's field with the number of the round in which it trains

# If tensors have more parameters than this on average, training uses the weights' own tensors: splitting and joining
# the vector in every step then costs more than operations for each tensor. Measured: LeNet-5 (4,443) takes 0.74 ms a
# step as one vector and 0.96 as tensors, the MLPs with 200 and 2,048 hidden units (39,753, 407,050) 0.32 and 0.23, 3.2
# and 1.6.
_WORTH_SPLITTING = 20_000


def client_fields(training: LocalTraining) -> dict:
    """Returns the fields of a client's input (see `ClientWork`) that its training needs: the round, if its learning
    rate changes, and the settings that single clients have of their own."""
    own = {key for settings in (training.clients or {}).values() for key in settings}
    return dict.fromkeys([*([] if training.decay.is_constant else [ROUND]), *sorted(own)], np.int32)


def fields_of(training: LocalTraining, cohort: Cohort) -> dict[str, np.ndarray]:
    """Returns the values of `client_fields`, and always the round, for the clients of a simulated round."""
    own = {str(name): settings for name, settings in (training.clients or {}).items()}
    settings = [own.get(cohort.population.name_of(client), {}) if own else {} for client in cohort.client_ids]
    given = {name: [each.get(name, getattr(training, name)) for each in settings] for name in OF_CLIENTS}
    given[ROUND] = [cohort.seed[1]] * len(settings)
    return {name: np.array(given[name], np.int32) for name in (ROUND, *client_fields(training))}


def own_steps(training: LocalTraining, client) -> dict:
    """Returns those of a client's own epochs and batch size that its input has, by name."""
    return {name: client[name] for name in OF_CLIENTS if name in client_fields(training)}


def own_options(training: LocalTraining, client) -> dict:
    """Returns the arguments of `build_local_sgd`'s function that are decided by a client's input."""
    options = own_steps(training, client)
    if not training.decay.is_constant:
        options["rate_scale"] = rate_factor(training.decay, client[ROUND])
    if OPTIMIZER in client:
        options["state"] = client[OPTIMIZER]
    return options


def kept_state(model: FlatModel, training: LocalTraining) -> list[np.ndarray] | None:
    """Returns the state of a client's training before its first round, a list of arrays: its own part of the model, if
    there is one, and the state of its optimizer, if it is kept. None if the client keeps neither."""
    own = [] if model.own is None else [model.own.initial]
    if not training.keeps_state:
        return own or None
    with tf.init_scope():
        parts, _ = _build_parting(model.whole, training)[0](tf.zeros([model.whole.size]))
        return [*own, *(np.asarray(leaf) for leaf in tf.nest.flatten(first_state(training, parts)))]


def of_shared(model: FlatModel, local_sgd):
    """Turns a training of `model.whole`, from `build_local_sgd`, into a training of the part that is shared.

    A client goes on from its own part, the first array of the state that is passed in and returned (see `kept_state`).
    No correction touches this part, and its centre in a proximal term is its value at the start.
    """
    own = model.own
    if own is None:
        return local_sgd

    def of_part(vector, x, y, seed, centre=None, *, correction=None, state=None, **more):
        mine, *state = [own.initial] if state is None else tf.nest.flatten(state)
        centre = None if centre is None else own.parts.join(mine, centre)
        if correction is not None:
            more["correction"] = own.parts.join(tf.zeros_like(mine), correction)
        if state:
            more["state"] = state
        trained, loss, *kept = local_sgd(own.parts.join(mine, vector), x, y, seed, centre, **more)
        mine, shared = own.parts.split(trained)
        return shared, loss, [mine, *tf.nest.flatten(kept)]

    return of_part


def _build_descent(model: FlatModel, training: LocalTraining, tensors_of):
    """Builds `(parts, statistics, batch, seed, scale) -> (moves, statistics, loss)`: the scaled, clipped gradient of
    the loss alone, and the statistics and loss of the forward pass. A batch is `(features, labels, weights or
    None)`."""

    def descent(parts, statistics, batch, seed, scale):
        features, labels, weights = batch
        with tf.GradientTape() as tape:
            tape.watch(parts)
            loss, statistics = model.training_loss(tensors_of(parts, statistics), features, labels, seed, weights)
            # Scaling the loss by the learning rate, and not the gradient, saves a pass over the parameters.
            scaled = scale * loss
        moves = tape.gradient(scaled, parts, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        moves = [tf.convert_to_tensor(move) for move in moves]
        if training.clip_norm is not None:
            # With a rate of 0 all moves are 0: the bound 1e-30 leaves them so, and a bound of 0 would make NaN.
            moves, _ = tf.clip_by_global_norm(moves, tf.maximum(training.clip_norm * abs(scale), 1e-30))
        return moves, statistics, loss

    return descent


@built_once
def build_local_sgd(model: FlatModel, training: LocalTraining, *, by_epoch: bool = False):
    """Builds the client's training as a tf.function.

    Each epoch visits the local examples once in an order drawn from the seed, batch by batch. With SGD the velocity
    follows `v <- momentum * v + gradient`, the parameters `w <- w - learning_rate * v`; other optimizers are those of
    `tff.learning.optimizers`.

    Args:
      by_epoch: Whether the loss is `float32[E]`, the mean over each epoch, where E is the largest number of epochs of a
        client; a client with fewer epochs repeats the loss of its last one.

    Returns:
      A tf.function `(vector float32[P], x [n, ...], y [n, ...], seed int32[2], centre float32[P], correction
      float32[P], rate_scale float32, epochs int32, batch_size int32, state, example_weights float32[n])` to `(vector
      float32[P], loss float32[, state])`: the trained parameters and the mean training loss over the last epoch,
      without the terms of `weight_decay` and `proximal_weight`. The centre of the proximal term is the incoming vector
      unless another is given. A correction is added to every gradient. The step size is multiplied by the rate scale.
      Epochs and batch size are those of the training unless others are given. A training that keeps its state takes and
      returns it in the form of `kept_state`; the default is a fresh state. The loss of each example is multiplied by
      its weight, if there are weights. With n = 0 the vector is returned unchanged, with loss 0. If clients keep a part
      of the model, P counts the shared part, see `of_shared`, and a state is returned.
    """
    if model.own is not None:
        return of_shared(model, build_local_sgd(model.whole, training, by_epoch=by_epoch))
    model = in_precision(model, training.precision)
    most = max(training.epochs, *(own.get("epochs", 0) for own in (training.clients or {}).values()), 1)
    split, tensors_of, join = _build_parting(model, training)
    descent = _build_descent(model, training, tensors_of)
    build_step = _build_momentum_step if training.momentum else _build_plain_step
    if not training.is_sgd:
        build_step = _build_optimizer_step

    @traced_once
    def local_sgd(
        vector, x, y, seed, centre=None, correction=None, rate_scale=None, epochs=None, batch_size=None, state=None,
        example_weights=None,
    ):  # fmt: skip
        features = model.preprocess(x)
        n = tf.shape(y)[0]
        size = batch_size_of(training, n, batch_size)
        parts, statistics = split(vector)
        centres = parts if centre is None else split(centre)[0]
        scale, first, move = build_step(training, parts, centres, rate_scale, state)
        # It is subtracted, not added: TensorFlow fuses several additions into one sum, whose order changes by chance.
        shifts = None if correction is None else split(-scale * correction)[0]

        def step(start, parts, statistics, state, total, order, shuffling):
            chosen = order[start : tf.minimum(start + size, n)]
            # Dropout in this step draws by the seed of the order, folded with another number.
            dropped = tf.random.experimental.stateless_fold_in(shuffling, start + 1)
            weights = None if example_weights is None else tf.gather(example_weights, chosen)
            batch = rows_of(features, chosen), tf.gather(y, chosen), weights
            moves, statistics, loss = descent(parts, statistics, batch, dropped, scale)
            if shifts is not None:
                moves = [each - shift for each, shift in zip(moves, shifts)]
            parts, state = move(parts, state, moves)
            parts = model.constrained(parts)
            total += loss * model.objective.size(batch[1])
            return start + size, parts, statistics, state, total, order, shuffling

        def epoch(number, parts, statistics, state, total):
            before = total  # without `by_epoch` only the last epoch's is reported
            shuffling = seed + [0, number]
            order = visiting_order(n, shuffling)
            _, parts, statistics, state, total, *_ = tf.while_loop(
                lambda start, *_: start < n,
                step,
                (0, parts, statistics, state, 0.0, order, shuffling),
                parallel_iterations=1,
            )
            total = tf.where(tf.range(most) >= number, total, before) if by_epoch else total
            return number + 1, parts, statistics, state, total

        _, trained, statistics, last, total = tf.while_loop(
            lambda number, *_: number < (training.epochs if epochs is None else epochs),
            epoch,
            (0, parts, statistics, first, tf.zeros([most]) if by_epoch else 0.0),
            parallel_iterations=1,
        )
        kept = (tf.nest.flatten(last),) if training.keeps_state else ()
        return join(trained, statistics), tf.math.divide_no_nan(total, model.objective.size(y)), *kept

    return local_sgd


def _build_parting(model: FlatModel, training: LocalTraining):
    """Builds `(vector) -> (parts, statistics)`, which training works on, `(parts, statistics) -> tensors` and `(parts,
    statistics) -> vector`.

    The parts are the trained weights' own tensors, or the whole vector for a small model without statistics and
    constraints. A user's own optimizer always gets the tensors, because it may use their shapes.
    """
    small = model.size < _WORTH_SPLITTING * len(model.weights) and isinstance(training.optimizer, str)
    if small and not (model.has_statistics or model.has_constraints):
        return lambda vector: ([vector], []), lambda parts, _: model.unravel(parts[0]), lambda parts, _: parts[0]

    def split(vector):
        return model.parted(model.unravel(vector))

    return split, model.together, lambda parts, statistics: model.concat(model.together(parts, statistics))


def build_full_gradient(model: FlatModel, training: LocalTraining):
    """Builds the gradient of a client's whole loss, with its weight decay, as a tf.function.

    Returns:
      A tf.function `(vector float32[P], x [n, ...], y [n, ...], state) -> float32[P]`; zero with n = 0. It goes through
      the examples in batches of `training.batch_size`. The state, as in `kept_state`, contains the client's own part of
      the model.
    """
    if model.own is not None:
        of_whole, parts = build_full_gradient(model.whole, training), model.own.parts
        return lambda vector, x, y, state: parts.split(of_whole(model.with_own(vector, state), x, y))[1]
    model = in_precision(model, training.precision)

    @tf.function(autograph=False)
    def full_gradient(vector, x, y, state=None):
        del state
        n = tf.shape(y)[0]
        size = batch_size_of(training, n)

        def add(start, total):
            rows = slice(start, tf.minimum(start + size, n))
            with tf.GradientTape() as tape:
                tape.watch(vector)
                loss, _ = model.training_loss(model.unravel(vector), model.preprocess(rows_of(x, rows)), y[rows], None)
                loss *= model.objective.size(y[rows])
            return start + size, total + tape.gradient(loss, vector)

        total = tf.while_loop(lambda start, _: start < n, add, (0, tf.zeros_like(vector)), parallel_iterations=1)[1]
        mean = tf.math.divide_no_nan(total, model.objective.size(y))
        return mean + model.on_trained(training.weight_decay * vector, 0.0) if training.weight_decay else mean

    return full_gradient


def _rate(training: LocalTraining, rate_scale):
    return training.learning_rate if rate_scale is None else training.learning_rate * rate_scale


def _build_plain_step(training: LocalTraining, parts, centres, rate_scale, state):
    """Builds SGD without momentum: one sum for each part, with weight decay and proximal term.

    Returns:
      `(scale, state, step)`, like the other builders of steps: the factor of the loss, the state before the first step,
      and `(parts, state, moves) -> (parts, state)`.
    """
    rate = _rate(training, rate_scale)
    pulled, shrunk = training.proximal_weight > 0, training.proximal_weight + training.weight_decay > 0
    pull = rate * training.proximal_weight
    kept = 1.0 - pull - rate * training.weight_decay
    pushes = [-pull * centre for centre in centres] if pulled else None

    def step(parts, state, moves):
        held = [kept * part for part in parts] if shrunk else parts
        moved = [part + move for part, move in zip(held, moves)]
        # It is a difference, because TensorFlow fuses three terms into one sum, whose order changes from run to run.
        return [part - push for part, push in zip(moved, pushes)] if pulled else moved, state

    return -rate, [], step


def _with_terms(training: LocalTraining, scale, parts, centres, moves, weight_decay: float):
    """Adds the scaled gradients of weight decay and proximal term."""
    if weight_decay:
        moves = [move + scale * weight_decay * part for move, part in zip(moves, parts)]
    if training.proximal_weight:
        pull = scale * training.proximal_weight
        moves = [move + pull * (part - centre) for move, part, centre in zip(moves, parts, centres)]
    return moves


def _build_momentum_step(training: LocalTraining, parts, centres, rate_scale, state):
    """Builds SGD with momentum; the velocity is kept as a step (-ηv)."""
    rate = _rate(training, rate_scale)

    def step(parts, velocity, moves):
        moves = _with_terms(training, -rate, parts, centres, moves, training.weight_decay)
        velocity = [training.momentum * was + move for was, move in zip(velocity, moves)]
        return [part + by for part, by in zip(parts, velocity)], velocity

    return -rate, [tf.zeros_like(part) for part in parts], step


def _build_optimizer_step(training: LocalTraining, parts, centres, rate_scale, state):
    """Builds the steps of an optimizer of `tff.learning.optimizers`; AdamW includes the weight decay."""
    optimizer, first = build_optimizer(training), first_state(training, parts)
    advance = optimizer.next if isinstance(training.optimizer, str) else converted(optimizer.next)
    weight_decay = 0.0 if training.optimizer == "adamw" else training.weight_decay
    if state is not None:
        first = tf.nest.pack_sequence_as(first, tf.nest.flatten(state))
    if not training.decay.is_constant:
        first = with_rate(optimizer, first, 1.0 if rate_scale is None else rate_scale)

    def step(parts, state, gradients):
        gradients = _with_terms(training, 1.0, parts, centres, gradients, weight_decay)
        moved, parts = advance(state, parts, gradients)
        # Some optimizers turn whole numbers into floats.
        return list(parts), tf.nest.map_structure(lambda new, old: tf.cast(new, old.dtype), moved, state)

    return 1.0, first, step


def batch_size_of(training: LocalTraining, examples, own=None):
    """Returns the number of examples in a step of a client with so many; `own` is its own batch size, if it has one."""
    if own is None:
        return training.batch_size or tf.maximum(examples, 1)
    return tf.where(own > 0, own, tf.maximum(examples, 1))


def local_steps(training: LocalTraining, examples, epochs=None, batch_size=None) -> tf.Tensor:
    """Returns τ `int32`, the number of steps of a client with this many examples, which may have its own epochs and
    batch size."""
    size = batch_size_of(training, examples, batch_size)
    return (training.epochs if epochs is None else epochs) * -(-examples // size)


def build_step_weight(training: LocalTraining):
    """Builds `(examples int32, epochs, batch_size) -> float32`, ‖a‖₁ of FedNova (Wang et al. 2020, arXiv:2007.07481,
    section 4).

    A client that starts at w and ends at w - η Σ aₖ gₖ has taken ‖a‖₁ = Σ aₖ effective steps: with plain SGD the number
    of steps τ; with momentum ρ, [τ - ρ (1 - ρ^τ) / (1 - ρ)] / (1 - ρ); with a proximal term μ, [1 - (1 - ημ)^τ] / (ημ).
    The paper gives no formula for both of them together. Local training is linear in its gradients, so here it is run
    on gradients of one, `c <- ρ c + 1 - η μ a`, `a <- a + c`, which gives the two formulas as well.

    Args:
      training: Epochs, batch size, momentum and proximal weight; epochs and batch size may be a client's own.
    """

    if training.proximal_weight and not training.decay.is_constant:
        raise UserError("learning_rate_decay and proximal_weight together: no formula says what a step is worth then")

    @tf.function(autograph=False)
    def step_weight(examples, epochs=None, batch_size=None):
        steps = local_steps(training, examples, epochs, batch_size)
        pull = training.learning_rate * training.proximal_weight

        def step(number, moved, velocity):
            velocity = training.momentum * velocity + 1.0 - pull * moved
            return number + 1, moved + velocity, velocity

        return tf.while_loop(lambda number, *_: number < steps, step, (0, 0.0, 0.0), parallel_iterations=1)[1]

    return step_weight
