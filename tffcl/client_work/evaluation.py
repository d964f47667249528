"""Local evaluation: the answers on a client's examples of a model that is one vector."""

import tensorflow as tf

from tffcl.client_work.client_work import LOCAL_TEST
from tffcl.errors import UserError, unknown
from tffcl.models.flat import FlatModel
from tffcl.models.graph_function import traced_once
from tffcl.trace_cache import built_once

FEW = _BATCH = 250  # small enough that a LeNet's activations stay in the cache


def _build_inference(model: FlatModel, finish, dtype, shape, few=False):
    """Builds `(vector, x [n, ...]) -> dtype[n, *shape]`, `finish` of the model's outputs, batch by batch.

    Examples that fit in one batch are not padded, or 30 examples of a small client would cost as much as 250. With
    `few` all examples are known to fit.
    """

    def of_batch(tensors, batch):
        return finish(model.logits(tensors, model.preprocess(batch), None))

    def whole(tensors, x):
        return in_batches(lambda batch: of_batch(tensors, batch), x, dtype, shape)

    @traced_once
    def infer(vector, x):
        tensors, first = model.unravel(vector), tf.nest.flatten(x)[0]
        if few:
            return of_batch(tensors, x)
        known, n = first.shape[0], tf.shape(first)[0]
        if known is not None:
            # TensorFlow's graph optimizer aborts the process if it finds a loop that never runs.
            return of_batch(tensors, x) if 0 < known <= _BATCH else whole(tensors, x)
        small = tf.logical_and(n > 0, n <= _BATCH)
        return tf.cond(small, lambda: of_batch(tensors, x), lambda: whole(tensors, x))

    return infer


def in_batches(function, x, dtype, shape):
    """Returns the results `dtype [n, *shape]` of a function for examples `x [n, ...]`, or a structure of them. It is
    called batch by batch, with the last one padded; n may be 0."""
    n = tf.shape(tf.nest.flatten(x)[0])[0]
    batches = (n + _BATCH - 1) // _BATCH

    def in_rows(leaf):
        padded = tf.pad(leaf, [[0, batches * _BATCH - n]] + [[0, 0]] * (leaf.shape.rank - 1))
        return tf.reshape(padded, [batches, _BATCH, *leaf.shape[1:]])

    def one(batch):
        # Recurrent layers lose the shape, which the loop needs if there is no batch.
        return tf.ensure_shape(function(batch), [_BATCH, *shape])

    answers = tf.map_fn(one, tf.nest.map_structure(in_rows, x), fn_output_signature=dtype, parallel_iterations=1)
    return tf.reshape(answers, [-1, *shape])[:n]


@built_once
def build_predict(model: FlatModel, *, few: bool = False):
    """Builds `(vector float32[P], x [n, ...]) -> labels`, the model's answer for every example, as
    `Objective.predictions` has it: the most likely class `int32[n]`, `[n, L]` for sequences, or numbers.

    Args:
      few: Whether there are always 1 to `FEW` examples; otherwise n is any number, and with n = 0 the result is empty.
    """
    return _build_inference(model, model.objective.predictions, model.objective.label.dtype, model.label_shape, few)


@built_once
def build_outputs(model: FlatModel, *, few: bool = False):
    """Builds `(vector float32[P], x [n, ...]) -> float32[n, ...]`, the model's unchanged outputs, see
    `Objective.outputs`; `few` as in `build_predict`."""
    return _build_inference(model, tf.identity, tf.float32, model.objective.outputs, few)


def build_mixed_outputs(model: FlatModel):
    """Builds `(models float32[K, P], weights float32[K], x [n, ...]) -> float32[n, ...]`, the outputs of a mixture of
    models, see `Objective.mixed`; K is at least 1."""
    infer = build_outputs(model)

    @tf.function(autograph=False)
    def mixed(models, weights, x):
        of_each = tf.map_fn(lambda vector: infer(vector, x), models, parallel_iterations=1)
        return model.objective.mixed(tf.ensure_shape(of_each, [None, None, *model.objective.outputs]), weights)

    return mixed


@built_once
def build_probabilities(model: FlatModel):
    """Builds `(vector float32[P], x [n, ...]) -> float32[n, classes]`, the probabilities, `[n, L, classes]` for
    sequences, `[n, L]` for several labels; raises UserError if labels are numbers."""
    objective = model.objective
    if objective.probabilities is None:
        raise UserError(f"{model.name} gives numbers, and no probabilities")
    shape = model.label_shape if objective.num_classes is None else (*model.label_shape, objective.num_classes)
    return _build_inference(model, objective.probabilities, tf.float32, shape)


def build_count_correct(model: FlatModel):
    """Builds `(vector float32[P], x [n, ...], y [n, ...]) -> <int32, int32>`: how many labels are right, and how many
    count; none if labels are numbers."""
    predict = build_predict(model)

    @tf.function(autograph=False)
    def count_correct(vector, x, y):
        return _count(model, predict(vector, x) if model.objective.has_accuracy else None, y)

    return count_correct


def _count(model: FlatModel, predictions, y):
    """How many of the labels that count are right, and how many count, `<int32, int32>`."""
    if not model.objective.has_accuracy:
        return tf.constant(0), tf.constant(0)
    right = tf.equal(predictions, y)
    if not model.objective.ignored:
        return tf.reduce_sum(tf.cast(right, tf.int32)), tf.size(y)
    counts = model.objective.counted(y)
    return tuple(tf.reduce_sum(tf.cast(each, tf.int32)) for each in (tf.logical_and(right, counts), counts))


def build_local_test(model: FlatModel, infer=None):
    """Builds the test of a client's own model: `(vector float32[P], x [n, ...], y [n, ...])` to the fields
    `client_work.LOCAL_TEST` of a report.

    If the model has metrics that need outputs, these are added as a serialized tensor `float32 [n, ...]`, since reports
    of clients with tests of different sizes are collected as rows.

    Args:
      infer: `(vector, x) -> outputs float32 [n, ...]`, for a client whose own model is not just the vector.
    """
    if not model.metrics_of_outputs and infer is None:
        count_correct = build_count_correct(model)

        @tf.function(autograph=False)
        def test(vector, x, y):
            return dict(zip(LOCAL_TEST, count_correct(vector, x, y)))

        return test
    infer = infer or build_outputs(model)

    @tf.function(autograph=False)
    def test_with_outputs(vector, x, y):
        outputs = infer(vector, x)
        numbers = _count(model, model.objective.predictions(outputs), y)
        whole = (tf.io.serialize_tensor(outputs),) if model.metrics_of_outputs else ()
        return dict(zip(LOCAL_TEST, (*numbers, *whole)))

    return test_with_outputs


def build_losses(model: FlatModel, *, few: bool = False):
    """Builds `(vector float32[P], x [n, ...], y [n, ...]) -> float32[n]`, the loss of each example, 0 for one without a
    label that counts; `few` as in `build_predict`."""
    outputs = build_outputs(model, few=few)

    @tf.function(autograph=False)
    def losses(vector, x, y):
        return model.objective.losses(outputs(vector, x), y)

    return losses


def build_mean_loss(model: FlatModel):
    """Builds `(vector float32[P], x [n, ...], y [n, ...]) -> float32`, the mean loss of the examples that have a label
    that counts.

    Without such examples the loss is 0; if the model's answers are not finite, it is infinite.
    """
    losses = build_losses(model)

    @tf.function(autograph=False)
    def mean_loss(vector, x, y):
        mean = tf.math.divide_no_nan(tf.reduce_sum(losses(vector, x, y)), model.objective.examples(y))
        return tf.where(tf.math.is_finite(mean), mean, float("inf"))

    return mean_loss


CRITERIA = ("loss", "accuracy")


def build_score(model: FlatModel, criterion: str):
    """Builds `(vector float32[P], x [n, ...], y [n, ...]) -> float32`, a model's score by a criterion of `CRITERIA`:
    the mean loss, or the share of wrong answers. The lowest score is the best.

    Raises:
      UserError: If the criterion is unknown, or the model's answers are not right or wrong, as "accuracy" needs.
    """
    if criterion not in CRITERIA:
        raise unknown("criterion", criterion, CRITERIA)
    if criterion == "accuracy" and not model.objective.has_accuracy:
        raise UserError(
            f"models cannot be chosen by accuracy, as choose_by 'test_accuracy' does: {model.name} gives numbers, "
            "which are not right or wrong"
        )
    mean_loss, count_correct = build_mean_loss(model), build_count_correct(model)

    def score(vector, x, y):
        if criterion == "loss":
            return mean_loss(vector, x, y)
        right, counted = count_correct(vector, x, y)
        return 1.0 - tf.math.divide_no_nan(tf.cast(right, tf.float32), tf.cast(counted, tf.float32))

    return score


@built_once
def build_choose(model: FlatModel, criterion: str = "loss"):
    """Builds the choice among models (IFCA Alg. 1 line 5; FLIS Alg. 1 line 9).

    Args:
      criterion: "loss" (the lowest mean loss) or "accuracy" (the highest, as in the FLIS and PACFL authors' code).

    Returns:
      A function `(models float32[K, P], x [n, ...], y [n, ...]) -> <choice=int32, scores=float32[K]>`: the row of the
      best model, the first of equal ones, and every model's score (the loss, or the share of wrong answers), of which
      the lowest is the best. A single model is not tried; its score is 0.

    Raises:
      UserError: If the criterion is unknown.
    """
    score = build_score(model, criterion)

    @traced_once
    def among(models, x, y):
        def every():
            return tf.map_fn(lambda vector: score(vector, x, y), models, parallel_iterations=1)

        scores = tf.cond(tf.shape(models)[0] > 1, every, lambda: tf.zeros(tf.shape(models)[:1]))
        return tf.argmin(scores, output_type=tf.int32), scores

    def choose(models, x, y):
        # If the type says that there is one model, no loop may be left: TensorFlow's graph optimizer aborts the process
        # if it finds a loop that never runs. The trace for any number of models does not show this to it.
        if models.shape[0] == 1:
            return tf.constant(0), tf.zeros([1])
        return among(models, x, y)

    return choose
