"""What a client does with a mixture of models: which share of an example is of which model, and the training of all."""

import collections

import numpy as np
import tensorflow as tf

from tffcl.client_work.client_work import OPTIMIZER, stack
from tffcl.client_work.evaluation import build_local_test, build_losses, build_mixed_outputs
from tffcl.client_work.local_sgd import build_local_sgd, own_options
from tffcl.client_work.local_training import LocalTraining
from tffcl.errors import UserError
from tffcl.models.flat import FlatModel
from tffcl.models.graph_function import graph_function
from tffcl.models.layer_parts import require_shared
from tffcl.models.objectives import CLASSES, LEAST
from tffcl.trace_cache import built_once

_LEAST_COUNT = 1e-8  # lower bound of the examples of a label, as in the FedRC authors' code


def check_likelihood(model: FlatModel, whose: str):
    """Raises UserError if a model's loss of an example is not a negative log-likelihood, as `whose` E-step needs, or
    its outputs cannot be mixed."""
    model.objective.mixed(tf.zeros([1, 1, *model.objective.outputs]), tf.ones([1]))
    if not _is_likelihood(model):
        raise UserError(
            f"{whose} takes the loss of an example for its negative log-likelihood, which that of {model.name} is not: "
            "cross-entropies without class weights are, and losses that look at the difference to a number alone"
        )


@built_once
def _is_likelihood(model: FlatModel) -> bool:
    """Whether losses are minus the logarithms of probabilities, or their mean if a label has several parts. For
    numbers: whether losses stay the same if outputs and labels are shifted together."""
    objective, rng = model.objective, np.random.default_rng(0)
    outputs = rng.uniform(0.1, 0.9, [4, *objective.outputs]).astype(np.float32)
    if objective.name == CLASSES:
        outputs /= outputs.sum(axis=-1, keepdims=True)  # logits, or probabilities
    specs = (
        tf.TensorSpec([None, *objective.outputs]),
        tf.TensorSpec([None, *objective.label.shape], objective.label.dtype),
    )
    losses = graph_function(objective.losses, *specs)
    if objective.probabilities is None:
        labels = rng.normal(size=[4, *objective.label.shape]).astype(np.float32)
        pairs = [(losses(outputs + 1, labels + 1), losses(outputs, labels))]
    else:
        found, pairs = graph_function(objective.probabilities, specs[0])(outputs).numpy(), []
        for value in sorted({*range(objective.num_classes or 2)} - {*objective.ignored}):
            own = found[..., value] if objective.num_classes else found if value else 1 - found
            labels = np.full([4, *objective.label.shape], value, np.int32)
            pairs.append((losses(outputs, labels), -np.log(own).reshape(4, -1).mean(axis=1)))
    return all(np.allclose(*pair, rtol=1e-3, atol=1e-4) for pair in pairs)


def model_names(num_models: int) -> list[str]:
    """Returns the names of the models that a client trains in a round."""
    return [f"model_{number}" for number in range(num_models)]


def build_all_losses(model: FlatModel):
    """Builds `(models float32[K, P], x [n, ...], y [n, ...]) -> float32[K, n]`, the loss of each example under each of
    the models."""
    require_shared(model, "a client compares its losses under all models of a mixture")
    losses = build_losses(model)

    @tf.function(autograph=False)
    def all_losses(models, x, y):
        of_each = tf.map_fn(lambda vector: losses(vector, x, y), models, parallel_iterations=1)
        return tf.ensure_shape(of_each, [models.shape[0], None])

    return all_losses


@tf.function(autograph=False)
def responsibilities(losses, mixture, counts, prior=None):
    """The E-step: how much of each example is of which model, and the mixture that follows (the M-step of π).

    Args:
      losses: `float32 [K, n]`, negative log-likelihoods.
      mixture: `float32 [K]`, π.
      counts: `float32 [n]`, how many labels of each example count; an example needs at least one.
      prior: `float32 [K, n]`, a further logarithm of probabilities, which is added; None for none.

    Returns:
      `float32 [K, n]`, which sum to one for each example, or to zero if no label of it counts; and their means over the
      other examples, `float32 [K]`, or without such examples the given mixture.
    """
    logits = tf.math.log(tf.maximum(mixture, LEAST))[:, tf.newaxis] - losses
    shares = tf.sign(counts) * tf.nn.softmax(logits if prior is None else logits + prior, axis=0)
    all_of, each = tf.reduce_sum(shares), tf.reduce_sum(shares, 1)
    return shares, tf.where(all_of > 0, tf.math.divide_no_nan(each, all_of), mixture)


def label_prior(labels, y, counted):
    """Minus the logarithm of the share of each example's label in all that a model is responsible for (FedRC's C).

    Args:
      labels: `float32 [K, C]`, how many examples of each label each model is responsible for; zero before it is known.
      y: `int32 [n, ...]`.
      counted: `bool [n, ...]`, which labels count.

    Returns:
      `float32 [K, n]`; for sequences the mean over their labels that count.
    """
    counts = tf.maximum(labels, _LEAST_COUNT)
    logarithms = -tf.math.log(counts / tf.reduce_sum(counts, axis=1, keepdims=True))
    of_each = tf.gather(logarithms, tf.where(counted, y, 0), axis=1)
    weights, axes = tf.cast(counted, tf.float32), list(range(1, y.shape.rank))
    of_labels = tf.reduce_sum(weights * of_each, axis=[1 + axis for axis in axes])
    return tf.math.divide_no_nan(of_labels, tf.reduce_sum(weights, axis=axes))


def label_counts(shares, y, counted, classes: int):
    """Returns how many examples of each label each model is responsible for, `float32 [K, C]`.

    Args:
      shares: `float32 [K, n]`, see `responsibilities`.
      y: `int32 [n, ...]`; in a sequence each label that counts is a part of the example.
      counted: `bool [n, ...]`, which labels count.
      classes: C.
    """
    weights, axes = tf.cast(counted, tf.float32), list(range(1, y.shape.rank))
    of_labels = tf.reduce_sum(weights[..., tf.newaxis] * tf.one_hot(y, classes), axis=axes)
    return shares @ tf.math.divide_no_nan(of_labels, tf.reduce_sum(weights, axis=axes)[:, tf.newaxis])


def nearest_shares(losses, least: float, counts):
    """Returns the share of the examples that have their lowest loss under each model, `float32 [K]`; shares below
    `least` are raised to it before all are scaled to sum to one. Losses are `float32 [K, n]`; `counts float32 [n]` says
    how many labels of each example count; an example needs at least one."""
    there = tf.sign(counts)
    nearest = there[:, tf.newaxis] * tf.one_hot(tf.argmin(losses, axis=0), losses.shape[0])
    shares = tf.math.divide_no_nan(tf.reduce_sum(nearest, 0), tf.reduce_sum(there))
    shares = tf.maximum(shares, least)
    all_of = tf.reduce_sum(shares)  # 0 without examples; then all models get equal shares
    return tf.where(all_of > 0, tf.math.divide_no_nan(shares, all_of), tf.ones_like(shares) / losses.shape[0])


def mean_model(models, weights):
    """Returns the mean `float32 [P]` of models `float32 [K, P]` by weights `float32 [K]` that sum to one."""
    return tf.reduce_sum(weights[:, tf.newaxis] * models, axis=0)


def fitted_mixture(losses, steps: int, counts, prior=None):
    """Returns the mixture `float32 [K]` of a client's examples after so many steps of EM on the mixture alone, from
    equal weights; arguments as in `responsibilities`."""
    models = losses.shape[0]
    mixture = tf.fill([models], 1.0 / models)
    for _ in range(steps):
        mixture = responsibilities(losses, mixture, counts, prior)[1]
    return mixture


def build_train_mixture(model: FlatModel, training: LocalTraining, num_models: int, *, weighted: bool = True):
    """Builds the training of all models of a mixture, each on all examples of the client, which are weighted if
    `weighted`.

    Returns:
      `(models float32[K, P], weights float32[K, n], mixture float32[K], client) -> (trained float32[K, P], report)`;
      the report is that of `build_train_and_report`: the loss is the sum of the models' weighted mean losses
      (without weights, their mean by the mixture), and the local test is of the mixture of the trained models. A single
      model is trained without weights.
    """
    require_shared(model, "a client trains all models of a mixture")
    names, alone = model_names(num_models), num_models == 1
    local_sgd, mixed = build_local_sgd(model, training), build_mixed_outputs(model)
    local_test = build_local_test(model, None if alone else lambda own, x: mixed(*own, x))

    def train(models, weights, mixture, client):
        local = stack(client["examples"])
        trained, losses, states = [], [], collections.OrderedDict()
        for row, name in enumerate(names):
            own = {**client, OPTIMIZER: client[OPTIMIZER][name]} if OPTIMIZER in client else client
            more = own_options(training, own)
            if weighted and not alone:
                more["example_weights"] = weights[row]
            vector, loss, *kept = local_sgd(models[row], local["x"], local["y"], client["seed"], **more)
            trained.append(vector)
            losses.append(loss)
            states.update((name, state) for state in kept)
        report = collections.OrderedDict(
            examples=tf.shape(local["y"])[0],
            loss=tf.reduce_sum(losses if weighted or alone else tf.math.multiply_no_nan(losses, mixture)),
            finite=tf.reduce_all([tf.reduce_all(tf.math.is_finite(vector)) for vector in trained]),
        )
        trained = tf.stack(trained)
        if "test_examples" in client:
            test = stack(client["test_examples"])
            report.update(local_test(trained[0] if alone else (trained, mixture), test["x"], test["y"]))
        if states:
            report[OPTIMIZER] = states
        return trained, report

    return train
