"""What a model is trained for: what a label is, the loss, and what outputs mean."""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.errors import UserError, one_line, unknown
from tffcl.models.graph_function import converted, drawing_nodes, graph_function
from tffcl.models.metrics import OF_NUMBERS
from tffcl.models.trials import some_batch, some_weights

CLASSES, BINARY, LABELS, NUMBERS, RECONSTRUCTION = "classes", "binary", "labels", "numbers", "reconstruction"
# Maps the name of an objective to what its labels are.
OBJECTIVES = {
    CLASSES: "one of several classes, or a sequence of them",
    BINARY: "0 or 1, of which the model gives one number",
    LABELS: "several, each 0 or 1",
    NUMBERS: "one number or several",
    RECONSTRUCTION: "none: the model gives its input again",
}

# The Keras losses that decide the objective; for all others, the shapes of outputs and labels do.
_losses = tf.keras.losses
_OF_ONE_HOT = _losses.CategoricalCrossentropy, _losses.CategoricalFocalCrossentropy, _losses.CategoricalHinge
_OF_ROWS = _losses.KLDivergence, _losses.CosineSimilarity  # for a class, they take its one-hot row
_OF_ZEROS_AND_ONES = _losses.BinaryCrossentropy, _losses.BinaryFocalCrossentropy, _losses.Hinge, _losses.SquaredHinge
_OF_NUMBERS = (
    _losses.MeanSquaredError, _losses.MeanAbsoluteError, _losses.MeanAbsolutePercentageError,
    _losses.MeanSquaredLogarithmicError, _losses.Huber, _losses.LogCosh, _losses.Poisson,
)  # fmt: skip


def _logarithm(probabilities):
    return tf.math.log(tf.maximum(probabilities, LEAST))


NO_LABEL = -1  # the answer for outputs that are not finite, which is never right
LEAST = 1e-30  # lower probabilities count as this in logarithms
# The inverse functions: from probabilities to outputs.
_OUTPUTS_OF = {
    tf.identity: tf.identity,
    tf.nn.softmax: _logarithm,
    tf.sigmoid: lambda probabilities: _logarithm(probabilities) - _logarithm(1.0 - probabilities),
}


@dataclasses.dataclass(frozen=True, eq=False)
class Objective:
    """What a label is, and what a model's outputs say about it.

    Attributes:
      name: A name in `OBJECTIVES`.
      label: The spec of one example's label: int32, or float32 for numbers; `[]`, or a shape.
      outputs: The shape of one example's outputs: `(classes,)`, or `(L, classes)` for sequences; for other objectives
        the shape of the label, with a last axis of 1 if the model has one.
      loss: `(outputs, labels) -> float32`, the mean loss of a batch; 0 if none of its labels counts.
      losses: `(outputs, labels) -> float32 [n]`, the loss of each example; 0 if none of its labels counts.
      probabilities: Maps outputs to probabilities: `[n, classes]`, also for binary labels, whose second class is 1;
        `[n, L]` for several labels. None for numbers.
      activation: Maps outputs to probabilities in the outputs' own shape. None for numbers.
      weigh: `(outputs, labels, weights [n]) -> float32`, see `weighted_loss`, if there is a faster way than by
        `losses`; else None.
      num_classes: The number of classes of a label, 2 for binary ones; None if a label is not a class.
      ignored: Classes whose labels the loss leaves out, such as padding; they do not count in metrics either.
    """

    name: str
    label: tf.TensorSpec
    outputs: tuple[int, ...]
    loss: Callable
    losses: Callable
    probabilities: Callable | None = None
    activation: Callable | None = None
    num_classes: int | None = None
    ignored: tuple[int, ...] = ()
    weigh: Callable | None = None

    @property
    def label_kind(self) -> str:
        """The kind of labels that metrics are for: "classes", "labels" or "numbers"."""
        return {BINARY: CLASSES, RECONSTRUCTION: NUMBERS}.get(self.name, self.name)

    @property
    def usual_metrics(self) -> tuple[str, ...]:
        """The names of the metrics if a user asks for none."""
        return ("accuracy",) if self.has_accuracy else OF_NUMBERS

    @property
    def has_accuracy(self) -> bool:
        """Whether an answer is right or wrong."""
        return self.label.dtype.is_integer

    def predictions(self, outputs):
        """Returns a model's answers, of the labels' type and shape: the most likely label, or the number itself.

        A label is `NO_LABEL` if outputs are not finite, except minus infinity for a class that is ruled out.
        """
        if self.name == CLASSES:
            known = tf.math.is_finite(tf.reduce_max(outputs, axis=-1))
            known &= ~tf.reduce_any(tf.math.is_nan(outputs), axis=-1)
            return tf.where(known, tf.argmax(outputs, axis=-1, output_type=tf.int32), NO_LABEL)
        if self.name in (BINARY, LABELS):
            ones = self.probabilities(outputs)
            ones = ones[..., 1] if self.name == BINARY else ones
            return tf.where(tf.math.is_nan(ones), NO_LABEL, tf.cast(ones > 0.5, tf.int32))
        return tf.reshape(outputs, [-1, *self.label.shape])

    def mixed(self, outputs, weights):
        """Returns the outputs of a mixture of models, whose probabilities are the weighted mean of the models'; for
        numbers, the weighted mean of the models' outputs.

        Args:
          outputs: `float32 [K, n, ...]`, the outputs of each model.
          weights: `float32 [K]`, which sum to one.

        Raises:
          UserError: If a user's own function turns outputs into probabilities, since its inverse is not known.
        """
        if self.activation is not None and self.activation not in _OUTPUTS_OF:
            raise UserError(
                "a mixture of models needs outputs that are logits or probabilities, and probabilities= gives another "
                "meaning to those of this model"
            )
        weights = tf.reshape(weights, [-1] + [1] * (outputs.shape.rank - 1))
        if self.activation is None:
            return tf.reduce_sum(weights * outputs, axis=0)
        return _OUTPUTS_OF[self.activation](tf.reduce_sum(weights * self.activation(outputs), axis=0))

    def counted(self, labels):
        """Returns which labels `[n, ...]` count, `bool` of their shape: all but those that the loss leaves out."""
        return _counted(labels, self.ignored)

    def counts(self, labels):
        """Returns how many labels of each example count, `float32 [n]`."""
        counted = tf.cast(self.counted(labels), tf.float32)
        return tf.reduce_sum(counted, axis=list(range(1, counted.shape.rank)))

    def examples(self, labels):
        """Returns the number of examples with a label that counts, `float32`, over which a mean of examples' losses
        is taken."""
        return tf.reduce_sum(tf.sign(self.counts(labels)))

    def size(self, labels):
        """Returns the weight of a batch's mean loss in a mean over several batches, `float32`: its number of examples,
        or, if the loss leaves labels out, its number of labels that count."""
        return tf.reduce_sum(self.counts(labels)) if self.ignored else tf.cast(tf.shape(labels)[0], tf.float32)

    def weighted_loss(self, outputs, labels, weights):
        """Returns the mean loss of a batch in which the loss of each example is multiplied by its weight, `float32`;
        weights are `float32 [n]`. It is a mean over the labels that count, as `loss` is, and not over the examples."""
        if self.weigh is not None:
            return self.weigh(outputs, labels, weights)
        if self.ignored:
            counts = self.counts(labels)
            weights *= tf.math.divide_no_nan(counts, tf.reduce_mean(counts))
        return tf.reduce_mean(weights * self.losses(outputs, labels))

    def classes_for(self, part: str, *, all_count: bool = False) -> int:
        """Returns the number of classes.

        Args:
          part: What needs classes, for the message.
          all_count: Whether all classes must count, so that the loss leaves none out.

        Raises:
          UserError: If labels are not classes, or some do not count although all must.
        """
        if self.num_classes is None:
            raise UserError(f"{part} needs labels that are classes; a label of this model is {OBJECTIVES[self.name]}")
        if all_count and self.ignored:
            raise UserError(f"{part} would count what the loss leaves out, class {self.ignored[0]}, as a class")
        return self.num_classes


@dataclasses.dataclass(frozen=True)
class LossFacts:
    """What is known of a loss and the outputs that it takes, besides what a batch can show.

    Attributes:
      objective: A name in `OBJECTIVES`; None if it must be found from shapes and types.
      probabilities: The user's function from outputs to probabilities; None if it must be found.
      from_logits: Whether the loss takes logits or probabilities; None if that is not known.
      activation: The activation of the last layer: "softmax", "sigmoid" or "linear"; None if only a batch can show it.
      ignored: The classes that the loss leaves out; None if they must be found by trying the loss.
      one_hot: Whether the loss takes one-hot rows instead of classes.
      class_weight: Maps a class to the weight of its labels in the loss; 1 for classes that are not in it.
      keras: Whether the loss is a Keras loss, which takes labels of the shape and type of the outputs.
      weighs: Whether it is a loss of Keras' own, which multiplies the loss of each example by its sample weight.
    """

    objective: str | None = None
    probabilities: Callable | None = None
    from_logits: bool | None = None
    activation: str | None = None
    ignored: tuple[int, ...] | None = None
    one_hot: bool = False
    class_weight: Mapping[int, float] | None = None
    keras: bool = False
    weighs: bool = False


def takes_one_hot(loss: tf.keras.losses.Loss, label: tf.TensorSpec) -> bool:
    """Returns whether a Keras loss takes one-hot rows instead of classes; `label` is the spec of an example's label."""
    return isinstance(loss, _OF_ONE_HOT) or (label.dtype.is_integer and isinstance(loss, _OF_ROWS))


def objective_of_loss(loss: tf.keras.losses.Loss, label: tf.TensorSpec) -> str | None:
    """Returns the objective of a Keras loss, or None if it is unknown; `label` is the spec of an example's label."""
    if isinstance(loss, _losses.SparseCategoricalCrossentropy) or takes_one_hot(loss, label):
        return CLASSES
    if isinstance(loss, _OF_NUMBERS):
        return NUMBERS
    if isinstance(loss, _OF_ZEROS_AND_ONES):
        return BINARY if tuple(label.shape) in ((), (1,)) else LABELS
    return None


def find_objective(name: str, functional, x, label: tf.TensorSpec, facts: LossFacts) -> Objective:
    """Finds the objective of a model by its labels, outputs and loss.

    Args:
      name: The model's name, for messages.
      functional: A `tff.learning.models.FunctionalModel`.
      x: The spec of one example's features, or a structure of specs.
      label: The spec of one example's label, as the loss takes it.
      facts: What is already known.

    Raises:
      UserError: If outputs and labels do not fit each other, or the loss is not a mean over a batch, or it takes logits
        but the outputs are probabilities, or the other way round.
    """
    if facts.objective is not None and facts.objective not in OBJECTIVES:
        raise unknown("objective", facts.objective, OBJECTIVES)
    outputs = _output_shape(name, functional, x)
    kind, shape = _kind(name, outputs, label, facts)
    dtype = tf.float32 if kind in (NUMBERS, RECONSTRUCTION) else tf.int32
    classes = outputs[-1] if kind == CLASSES else 2 if kind == BINARY else None
    taken = _as_loss_takes(label, outputs, facts, classes)
    weights = _class_weights(name, facts.class_weight, classes)
    given_loss = converted(functional.loss)

    def of_any(predicted, labels, each=1.0, weights=weights):
        if facts.keras and not outputs:  # a vector, which Keras would take for the outputs of one example
            predicted = predicted[:, tf.newaxis]
        if weights is not None:
            # Labels that are left out may be outside the classes.
            each *= tf.gather(weights, tf.clip_by_value(labels, 0, classes - 1))
        weighted = {"sample_weight": each} if tf.is_tensor(each) else {}
        return given_loss(predicted, taken(labels), **weighted)

    spec = tf.TensorSpec(shape, dtype)
    run = _check_loss(name, functional, of_any, x, spec, classes, facts.keras)
    probabilities, activation, ignored = None, None, ()
    if dtype.is_integer:
        batch, starts = some_batch(x, spec), some_weights(functional.initial_weights[0])
        some = np.concatenate([run(each, *batch)[0].numpy() for each in starts])
        activation = _to_probabilities(name, some, kind, facts)
        probabilities = _in_form(activation, kind, shape)
    if kind == CLASSES:  # a class of weight 0 is not left out
        unweighted = functools.partial(of_any, weights=None)
        ignored = _left_out(unweighted, spec, classes) if facts.ignored is None else facts.ignored
    loss, losses = _of_those_that_count(of_any, ignored, classes)
    weigh = of_any if facts.weighs and not shape and not ignored else None
    return Objective(kind, spec, outputs, loss, losses, probabilities, activation, classes, ignored, weigh)


def _of_those_that_count(of_any: Callable, ignored: tuple[int, ...], classes: int | None) -> tuple[Callable, Callable]:
    """Returns `Objective.loss` and `Objective.losses` from a loss `of_any` labels, which leaves out those `ignored`."""

    def loss(predicted, labels):
        if not ignored:
            return of_any(predicted, labels)
        # A mean over no label is NaN. So another label is put there, and its loss is not used.
        there = tf.reduce_any(_counted(labels, ignored))
        other = next(each for each in range(classes) if each not in ignored)
        return tf.where(there, of_any(predicted, tf.where(there, labels, other)), 0.0)

    def losses(predicted, labels):
        def of_one(example):
            output, label = example
            # The mean over a batch of one; the loop needs its shape if there are no examples.
            return tf.ensure_shape(loss(output[tf.newaxis], label[tf.newaxis]), [])

        return tf.map_fn(of_one, (predicted, labels), fn_output_signature=tf.float32)

    return loss, losses


def _output_shape(name: str, functional, x) -> tuple[int, ...]:
    """Returns the shape of one example's outputs; raises UserError if the model fails, or does not give floats."""
    kind = tff.types.tensorflow_to_type(tf.nest.map_structure(of_batch, x))

    def predict(features):
        return functional.predict_on_batch(functional.initial_weights, features, False)

    try:
        output = tff.tensorflow.computation(predict, kind).type_signature.result
    except Exception as error:  # whatever the user's own function raises
        raise UserError(f"{name} cannot be computed on its input: {one_line(error)}") from None
    tensor = isinstance(output, tff.TensorType) and tf.as_dtype(output.dtype).is_floating
    if not tensor or not output.shape or None in output.shape[1:]:
        heads = "; tf.keras.Model(model.inputs, model.outputs[0]) is a model of the first of several"
        rule = "it must give one tensor of floats, of known shape but for the batch"
        raise UserError(f"{name} gives {output}; {rule}{heads if isinstance(output, tff.StructType) else ''}")
    return tuple(output.shape[1:])


def _kind(name: str, outputs: tuple, label: tf.TensorSpec, facts: LossFacts) -> tuple[str, tuple[int, ...]]:
    """Returns the name of the objective and the shape of a label; raises UserError if outputs and labels do not fit."""
    shape = tuple(label.shape)
    like_outputs = outputs in (shape, (*shape, 1))
    if shape == (1,) and len(outputs) == 1:  # a column [n, 1] is one label per example
        shape, like_outputs = (), outputs == (1,)
    kind = facts.objective
    if kind is None and label.dtype.is_integer:
        kind = CLASSES if not like_outputs else BINARY if shape == () else LABELS
    elif kind is None:
        kind = NUMBERS
    if facts.one_hot and shape == outputs:
        shape = shape[:-1]
    given = f"{name} gives floats of shape {_batch(outputs)} for labels of {label.dtype.name}{_batch(label.shape)}"
    if kind == CLASSES:
        if len(outputs) != len(shape) + 1 or outputs[-1] < 2:
            wanted = "[n, classes]" if shape == () else "[n, L, classes]"
            cure = "; of one-hot rows y.argmax(axis=1) makes labels" if shape == outputs else ""
            cure = "; of one output BinaryCrossentropy is the loss" if outputs[-1:] == (1,) else cure
            raise UserError(f"{given}; it must give floats of shape {wanted} with two or more classes{cure}")
    elif not like_outputs:
        raise UserError(
            f"{given}; where a label is {OBJECTIVES[kind]}, there must be one output for each number of a label"
        )
    return kind, shape


def _batch(shape) -> str:
    return f"[n{''.join(f', {size}' for size in shape)}]"


def _as_loss_takes(label: tf.TensorSpec, outputs: tuple, facts: LossFacts, classes: int | None) -> Callable:
    """Returns a function that turns labels into those that the loss takes: in the type and shape that the model was
    made for, or in its outputs' for a Keras loss, which would broadcast a row over a column."""
    if facts.one_hot:
        return lambda labels: tf.one_hot(labels, classes)
    if facts.keras and outputs[-1:] != (classes,):
        return lambda labels: tf.reshape(tf.cast(labels, tf.float32), [-1, *(outputs or (1,))])
    if label.dtype == tf.int32 and not label.shape.rank == 1:
        return lambda labels: labels
    return lambda labels: tf.reshape(tf.cast(labels, label.dtype), [-1, *label.shape])


def _class_weights(name: str, given: Mapping | None, classes: int | None) -> tf.Tensor | None:
    """Returns the weight of each class; raises UserError if the given values are not such weights."""
    if given is None:
        return None
    if classes is None:
        raise UserError(f"class_weight is for labels that are classes; those of {name} are none")
    weights = np.ones(classes, np.float32)
    if not isinstance(given, Mapping):
        raise UserError(f"class_weight is {given!r:.100}; it must map classes to their weights, {{0: 1.0, 1: 5.0}}")
    for label, weight in given.items():
        whole = isinstance(label, (int, np.integer)) and not isinstance(label, bool)
        if not whole or not 0 <= label < classes:
            raise UserError(f"class_weight has the class {label!r}; {name} knows the classes 0 to {classes - 1}")
        if isinstance(weight, bool) or not isinstance(weight, (int, float, np.number)) or not 0 <= weight < np.inf:
            raise UserError(f"class_weight of class {label} is {weight!r:.50}; it must be a number from 0")
        weights[label] = weight
    if not weights.any():
        raise UserError("class_weight gives every class 0, so that nothing is learned")
    return weights


def _check_loss(name: str, functional, loss, x, label: tf.TensorSpec, classes: int | None, keras: bool) -> Callable:
    """Returns `(trained weights, x, y) -> (outputs, loss)`.

    Raises:
      UserError: If the loss is not one number that is the same for an example and for a batch of its copies; or if it,
        or a model that is not of Keras, draws random numbers that no seed decides.
    """
    trained, fixed = functional.initial_weights
    start = [tf.constant(each) for each in trained]
    specs = [tf.TensorSpec(each.shape, each.dtype) for each in start], *tf.nest.map_structure(of_batch, (x, label))

    def answer(tensors, features, labels, training=False):
        outputs = tf.cast(functional.predict_on_batch((tuple(tensors), fixed), features, training), tf.float32)
        return outputs, loss(outputs, labels)

    def of_copies(run, n, value):
        features = tf.nest.map_structure(lambda leaf: tf.zeros([n, *leaf.shape], leaf.dtype), x)
        return run(start, features, tf.fill([n, *label.shape], tf.constant(value, label.dtype)))[1]

    copies = 3 if classes != 3 else 4  # not the number of classes: a loss of other labels could take one for the other
    try:
        run = graph_function(answer, *specs)
        # The seeds of a Keras model's layers are not in its functional model.
        training = run if keras else graph_function(functools.partial(answer, training=True), *specs)
        # One of the two labels may be padding, whose loss is always 0.
        found = [[of_copies(run, n, value) for n in (1, copies)] for value in (0, 1)]
    except Exception as error:  # whatever the user's own loss raises
        kind, good = ("integer labels", "SparseCategoricalCrossentropy") if classes else ("numbers", "MeanSquaredError")
        raise UserError(
            f"the loss of {name} cannot be computed of {kind}: {one_line(error)}; {good} can, or a Loss of your own"
        ) from None
    for node in drawing_nodes(training.kept_alive.as_graph_def()):
        raise UserError(
            f"{'the loss of ' * keras}{name} draws random numbers ({node.op}) that do not follow from the run's seed: "
            "those of tf.keras.layers.Dropout and GaussianNoise do, in a model by FlatModel.from_keras"
        )
    for one, several in found:
        if one.shape.rank or not one.dtype.is_floating or not np.isclose(one, several, rtol=1e-3, equal_nan=True):
            given = f"{several.dtype.name}{several.shape.as_list()}" if several.shape.rank else "no mean"
            raise UserError(
                f"the loss of {name} is {given} for a batch; it must be one number, the mean over the batch"
            )
    return run


def of_batch(spec: tf.TensorSpec) -> tf.TensorSpec:
    """Returns the spec of a batch for the spec of one example."""
    return tf.TensorSpec([None, *spec.shape], spec.dtype)


def _to_probabilities(name: str, outputs: np.ndarray, kind: str, facts: LossFacts) -> Callable:
    """Returns a function from outputs to probabilities of the same shape; raises UserError if it gives others."""
    if facts.probabilities:
        given = converted(facts.probabilities)
        if _are_probabilities(given(tf.constant(outputs)).numpy(), kind) is False:
            raise UserError(
                f"what probabilities= gives for {name} are none; they must be from 0 and sum to 1 over the classes"
            )
        return given
    if kind == BINARY and (outputs == 1).all():  # as a softmax of one output does
        raise UserError(f'{name} gives 1 for every example; one output needs activation="sigmoid"')
    last = "softmax" if kind == CLASSES else "sigmoid"
    already = facts.activation == last if facts.activation in (last, "linear") else _are_probabilities(outputs, kind)
    if facts.from_logits and already:
        raise UserError(
            f"{name} gives probabilities, but its loss takes logits (from_logits=True): leave the {last} out, or use "
            "from_logits=False"
        )
    if facts.from_logits is False and already is False:
        raise UserError(
            f"{name} gives numbers that are no probabilities, but its loss takes these (from_logits=False): use "
            f'from_logits=True, or a last layer with activation="{last}"'
        )
    if already or facts.from_logits is False:
        return tf.identity
    return tf.nn.softmax if kind == CLASSES else tf.sigmoid


def _in_form(activation: Callable, kind: str, label_shape: tuple) -> Callable:
    """Returns a function from outputs to probabilities in the form that `Objective.probabilities` has."""
    if kind == CLASSES:
        return activation

    def of_ones(outputs):
        ones = tf.reshape(activation(outputs), [-1, *label_shape])
        return tf.stack([1 - ones, ones], axis=-1) if kind == BINARY else ones

    return of_ones


def _are_probabilities(outputs: np.ndarray, kind: str) -> bool | None:
    """Whether outputs `[n, ...]` are probabilities; None if they are not finite, so that this is unknown."""
    if not np.isfinite(outputs).all():
        return None
    if kind != CLASSES:
        return bool((outputs >= 0).all() and (outputs <= 1).all())
    return bool((outputs >= 0).all() and np.allclose(outputs.sum(-1), 1, atol=1e-3))


def _left_out(loss, label: tf.TensorSpec, classes: int) -> tuple[int, ...]:
    """Returns the classes whose labels a loss leaves out: its gradient is zero for them."""
    shape = [1, *label.shape]
    some = np.random.default_rng(0).uniform(0.5, 1.5, [*shape, classes])
    some /= some.sum(axis=-1, keepdims=True)  # probabilities, or logits

    def moves(label):
        outputs = tf.constant(some, tf.float32)
        with tf.GradientTape() as tape:
            tape.watch(outputs)
            value = loss(outputs, tf.fill(shape, label))
        gradient = tape.gradient(value, outputs, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return tf.reduce_any(tf.abs(tf.convert_to_tensor(gradient)) > 0)  # False for NaN, as in a mean over no label

    moved = graph_function(lambda: tf.map_fn(moves, tf.range(classes), fn_output_signature=tf.bool))().numpy()
    return tuple(np.flatnonzero(~moved).tolist()) if moved.any() else ()


def _counted(labels, ignored: tuple[int, ...]):
    """Which labels count, see `Objective.counted`."""
    if not ignored:
        return tf.ones_like(labels, tf.bool)
    labels = tf.convert_to_tensor(labels)
    return tf.reduce_all(tf.not_equal(labels[..., tf.newaxis], tf.constant(ignored, labels.dtype)), axis=-1)
