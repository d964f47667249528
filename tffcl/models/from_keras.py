"""Models of another origin as `FlatModel`: any `tff.learning` FunctionalModel, any Keras model that TFF can make one
of."""

import collections
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.errors import UserError
from tffcl.models.layer_weights import Weight
from tffcl.models.objectives import LossFacts, find_objective, objective_of_loss, one_line
from tffcl.runtime import check_process

if TYPE_CHECKING:  # which makes one of these fields
    from tffcl.models.flat import FlatModel


def from_functional(
    functional: tff.learning.models.FunctionalModel,
    name: str = "functional",
    *,
    weight_names=None,
    facts: LossFacts = LossFacts(),
) -> dict:
    """Returns the fields of a `FlatModel` of a `tff.learning.models.FunctionalModel`.

    Its trainable weights become the vector; weights that are not trained stay as they are. Its loss is that of
    training.

    Args:
      functional: Takes batches `(x, y)` or `{"x": ..., "y": ...}`, x of any type and shape, y as an objective has it.
      name: For titles.
      weight_names: "layer/weight" of each trainable weight, so that layers can be named; default numbers.
      facts: What is known of the loss and the outputs.

    Raises:
      UserError: If the input is no such batch, or `find_objective` refuses outputs or loss.
    """
    check_process()
    if not isinstance(functional, tff.learning.models.FunctionalModel):
        kind = type(functional).__name__
        raise UserError(f"functional is of {kind}; it must be a tff.learning.models.FunctionalModel")
    x, label = _example_specs(functional.input_spec)
    trainable, fixed = functional.initial_weights
    names = weight_names or [f"weight_{number}" for number in range(len(trainable))]
    weights = tuple(Weight(each, np.shape(value), 1, 1) for each, value in zip(names, trainable, strict=True))
    if not weights:
        raise UserError(f"{name} has no trainable weights; is it built?")

    def outputs(tensors, features, seed):
        return functional.predict_on_batch((tuple(tensors), fixed), features, seed is not None)

    objective = find_objective(name, functional, x, label, facts)
    return {
        "name": name,
        "weights": weights,
        "functional": functional,
        "preprocess": tf.identity,
        "logits": outputs,
        "example_spec": collections.OrderedDict(x=x, y=objective.label),
        "objective": objective,
    }


def from_keras(
    keras_model: tf.keras.Model,
    loss: tf.keras.losses.Loss,
    input_spec,
    name: str | None = None,
    *,
    objective: str | None = None,
    class_weight: Mapping[int, float] | None = None,
) -> dict:
    """Returns the fields of a `FlatModel` of a Keras model, through `tff.learning.models.functional_model_from_keras`.

    Args:
      keras_model: Built, with one output; without batch normalization, frozen layers or other weights
        that are not trained, which TFF cannot make a function of, and without regularizers, which it would leave out.
        What a dropout layer draws is TensorFlow's matter: with one, two runs of the same seed differ.
      loss: A mean over the batch.
      input_spec: `(x, y)` or `{"x": ..., "y": ...}` of `tf.TensorSpec`, of a batch as in
        `tff.learning`, or of an example as `Population.example_spec` is.
      name: For titles; default the Keras model's.
      objective: A name in `OBJECTIVES`; default what loss and labels tell.
      class_weight: Class to the weight of its labels in the loss.

    Raises:
      UserError: If the model is not built, TFF cannot make a function of it, or `from_functional` refuses it.
    """
    check_process()
    if not isinstance(keras_model, tf.keras.Model):
        raise UserError(f"keras_model is of {type(keras_model).__name__}; it must be a tf.keras.Model")
    name = name or keras_model.name
    if not keras_model.built or not keras_model.trainable_variables:
        raise UserError(
            f"the Keras model {name} has no weights yet; give its first layer an input shape, or call build(...)"
        )
    if not isinstance(loss, tf.keras.losses.Loss):
        raise UserError(
            f"loss is of {type(loss).__name__}; it must be a tf.keras.losses.Loss, "
            "SparseCategoricalCrossentropy(from_logits=True), BinaryCrossentropy(), MeanSquaredError() or a subclass "
            "of your own with call(labels, outputs)"
        )
    if keras_model.losses:
        raise UserError(
            f"the Keras model {name} has regularizers, which TFF leaves out; use LocalTraining(weight_decay=...)"
        )
    _check_layers(name, keras_model)
    input_spec = batched(input_spec)
    _, label = _example_specs(input_spec)
    try:
        functional = _keras_in_graphs(keras_model, loss, input_spec)
    except Exception as error:  # TFF's own error for what it cannot convert, and Keras's for inputs that do not fit
        raise UserError(f"TFF cannot make a function of the Keras model {name}: {one_line(error)}") from None
    names, config = [_weight_name(variable) for variable in keras_model.trainable_variables], loss.get_config()
    ignored = config.get("ignore_class")  # None: none is
    kind = objective or objective_of_loss(loss, label)
    facts = LossFacts(
        objective=kind,
        from_logits=config.get("from_logits"),
        activation=_last_activation(keras_model),
        ignored=(() if ignored is None else (ignored,)) if "ignore_class" in config else None,
        one_hot=isinstance(loss, tf.keras.losses.CategoricalCrossentropy),
        class_weight=class_weight,
        keras=True,
    )
    return {**from_functional(functional, name, weight_names=names, facts=facts), "keras": keras_model}


def check_start(model: "FlatModel"):
    """Raises UserError if the Keras model that it was made of has got other weights since: which ones are meant is not
    clear."""
    if model.keras is None:
        return
    now, made = model.keras.trainable_variables, model.functional.initial_weights[0]
    if not all(np.array_equal(variable.numpy(), value) for variable, value in zip(now, made, strict=True)):
        raise UserError(
            f"the Keras model {model.keras.name} has got other weights since FlatModel.from_keras was called; call it "
            "again to start from these, or give it a Keras model that stays as it is"
        )


def keras_with(model: "FlatModel", vector: np.ndarray) -> tf.keras.Model:
    """Returns a copy of the Keras model that a `FlatModel` was made of, with the weights of a vector `float32 [P]`.

    Raises:
      UserError: If it was made of no Keras model.
    """
    if model.keras is None:
        raise UserError(
            f"{model.name} was not made by FlatModel.from_keras; model_of gives its weights, predict its answers"
        )
    copy = tf.keras.models.clone_model(model.keras)  # which TFF has done, too
    for variable, tensor in zip(copy.trainable_variables, model.unravel(tf.constant(vector)), strict=True):
        variable.assign(tensor)
    return copy


def _check_layers(name: str, keras_model):
    """Raises UserError, with the way out, for a Keras model that TFF cannot make a function of."""
    outside = "or compute the features outside, x = base.predict(x), and train a model of the layers that follow"
    layers = [each for each in keras_model.submodules if isinstance(each, tf.keras.layers.Layer)]
    normalized = [each.name for each in layers if isinstance(each, tf.keras.layers.BatchNormalization)]
    if normalized:
        raise UserError(
            f"the Keras model {name} has batch normalization ({normalized[0]}), which TFF cannot make a function of; "
            f"use GroupNormalization or LayerNormalization, {outside}"
        )
    if keras_model.non_trainable_variables:
        fixed = _weight_name(keras_model.non_trainable_variables[0])
        raise UserError(
            f"the Keras model {name} has weights that are not trained, e.g. {fixed}; TFF needs all to be trainable: "
            f"set trainable = True, {outside}"
        )
    if not getattr(keras_model, "_is_graph_network", False):  # Sequential models and those of inputs and outputs are
        raise UserError(
            f"the Keras model {name} is of a class of its own, {type(keras_model).__name__}, which TFF cannot make a "
            "function of; build it as tf.keras.Sequential or tf.keras.Model(inputs, outputs)"
        )


def _last_activation(keras_model) -> str | None:
    """The name of the last layer's activation, where it has one."""
    last = keras_model
    while isinstance(last, tf.keras.Model):
        last = last.outputs[0]._keras_history.layer
    activation = getattr(last, "activation", None)
    return "softmax" if isinstance(last, tf.keras.layers.Softmax) else getattr(activation, "__name__", None)


def _keras_in_graphs(keras_model, loss, input_spec) -> tff.learning.models.FunctionalModel:
    """TFF's functional model of a Keras model, which stays usable beside it.

    Keras makes the classes of layers serve graphs when a layer is made in a graph, as TFF does whenever it predicts;
    the user's own model would then refuse to be called. Making an object of each class in eager mode turns them back.
    """
    kinds = {type(each) for each in (keras_model, *keras_model.submodules)}

    def turn_back():
        with tf.__internal__.eager_context.eager_mode():
            for kind in kinds:
                kind.__new__(kind)

    try:
        inner = tff.learning.models.functional_model_from_keras(keras_model, loss, input_spec)
    finally:
        turn_back()

    @tf.function(autograph=False)
    def predict_on_batch(model_weights, x, training):
        try:
            return inner.predict_on_batch(model_weights, x, training)
        finally:
            turn_back()

    return tff.learning.models.FunctionalModel(
        initial_weights=inner.initial_weights,
        predict_on_batch_fn=predict_on_batch,
        loss_fn=inner.loss,
        input_spec=input_spec,
    )


def _weight_name(variable: tf.Variable) -> str:
    # "sequential/dense/kernel:0" is the weight "dense/kernel"
    return "/".join(variable.name.split(":")[0].split("/")[-2:])


def batched(input_spec):
    """Returns the spec of a batch of the examples of a spec without a batch dimension, as `Population.example_spec` is
    one; others as they are."""
    leaves = tf.nest.flatten(input_spec)
    if not all(isinstance(leaf, tf.TensorSpec) and leaf.shape.is_fully_defined() for leaf in leaves):
        return input_spec
    return tf.nest.map_structure(lambda leaf: tf.TensorSpec([None, *leaf.shape], leaf.dtype), input_spec)


def _example_specs(input_spec) -> tuple[tf.TensorSpec, tf.TensorSpec]:
    """The specs of one example's features and label from a batch's; UserError if that is no `(x, y)`."""
    whole = isinstance(input_spec, (Mapping, tuple, list)) and len(input_spec) == 2
    parts = dict(input_spec if isinstance(input_spec, Mapping) else zip("xy", input_spec)) if whole else {}
    if set(parts) != {"x", "y"} or not all(isinstance(each, tf.TensorSpec) for each in parts.values()):
        raise UserError(
            f"input_spec is {input_spec}; it must be two tf.TensorSpec, (x, y), each with a leading batch dimension"
        )
    for key, spec in parts.items():
        inner = spec.shape[1:] if spec.shape.rank else None
        if inner is None or not inner.is_fully_defined():
            raise UserError(f"input_spec of {key} is {spec}; only its leading batch dimension may be unknown")
    if not (parts["y"].dtype.is_integer or parts["y"].dtype.is_floating):
        raise UserError(f"labels are {parts['y'].dtype.name}; they must be integers, or floats where they are numbers")
    return tuple(tf.TensorSpec(spec.shape[1:], spec.dtype) for spec in (parts["x"], parts["y"]))
