"""Makes a `FlatModel` from any `tff.learning` FunctionalModel, or any Keras model."""

import collections
import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.clients.client_examples import in_order
from tffcl.display import listed
from tffcl.errors import UserError, unknown
from tffcl.models.keras_function import GLOBAL, OWN, STATISTICS, KerasFunction, keras_function
from tffcl.models.layer_weights import Weight
from tffcl.models.objectives import (
    RECONSTRUCTION,
    LossFacts,
    find_objective,
    objective_of_loss,
    of_batch,
    takes_one_hot,
)
from tffcl.runtime import check_process

if TYPE_CHECKING:  # it imports this module
    from tffcl.models.flat import FlatModel


def from_functional(
    functional: tff.learning.models.FunctionalModel,
    name: str = "functional",
    *,
    weight_names=None,
    facts: LossFacts = LossFacts(),
) -> dict:
    """Returns the fields of a `FlatModel` of a `tff.learning.models.FunctionalModel`.

    Its trainable weights become the vector; weights that are not trained stay unchanged. Its loss is the loss in
    training.

    Args:
      functional: Takes batches `(x, y)` or `{"x": ..., "y": ...}`, x of any type and shape, y as an objective has it.
      name: The name in titles.
      weight_names: "layer/weight" of each trainable weight, so that layers can be named; default numbers.
      facts: What is known of the loss and the outputs.

    Raises:
      UserError: If the input is not such a batch, or `find_objective` refuses outputs or loss.
    """
    check_process()
    if not isinstance(functional, tff.learning.models.FunctionalModel):
        kind = type(functional).__name__
        raise UserError(f"functional is of {kind}; it must be a tff.learning.models.FunctionalModel")
    if not isinstance(name, str):
        raise UserError(f"name is of {type(name).__name__}; it must be a text; the loss is the functional model's own")
    x, label = _example_specs(functional.input_spec, facts.objective)
    trainable, fixed = functional.initial_weights
    names = weight_names or [f"weight_{number}" for number in range(len(trainable))]
    weights = tuple(Weight(each, np.shape(value), 1, 1) for each, value in zip(names, trainable, strict=True))
    if not weights:
        raise UserError(f"{name} has no trainable weights; is it built?")
    layers = [layer for layer, _ in itertools.groupby(each.name.split("/")[0] for each in weights)]
    for layer, count in collections.Counter(layers).items():
        if count > 1:
            raise UserError(f"weight_names name the layer {layer} in {count} places; its weights must stand together")

    kinds = [np.asarray(value).dtype for value in trainable]
    if whole := [each.name for each, kind in zip(weights, kinds, strict=True) if kind.kind in "iub"]:
        raise UserError(
            f"{name}: the trainable weights {listed(whole)} are whole numbers, which have no gradient; give them as "
            "floats, or among the weights that are not trained"
        )

    def outputs(tensors, features, seed):
        # The vector is float32, whatever type the model computes in.
        given = tuple(tf.cast(each, kind) for each, kind in zip(tensors, kinds, strict=True))
        return tf.cast(functional.predict_on_batch((given, fixed), features, seed is not None), tf.float32)

    objective = find_objective(name, functional, x, label, facts)
    return {
        "name": name,
        "weights": weights,
        "functional": functional,
        "preprocess": as_it_is,
        "logits": outputs,
        "example_spec": collections.OrderedDict(x=x, y=objective.label),
        "objective": objective,
    }


def as_it_is(x):
    """The preprocessing of models that take a batch of examples, or one of each input, unchanged."""
    return tf.nest.map_structure(tf.identity, x)


def from_keras(
    keras_model: tf.keras.Model | Callable[[], tf.keras.Model],
    loss: tf.keras.losses.Loss,
    input_spec,
    name: str | None = None,
    *,
    objective: str | None = None,
    class_weight: Mapping[int, float] | None = None,
    statistics: str = GLOBAL,
) -> tuple[dict, dict | None]:
    """Returns the fields of a `FlatModel` of a Keras model and, if clients keep a part of it, those of the whole model;
    arguments and errors are as in `FlatModel.from_keras`."""
    check_process()
    if statistics not in STATISTICS:
        raise unknown("statistics", statistics, STATISTICS)
    input_spec = batched(input_spec)
    x, label = _example_specs(input_spec, objective)
    if objective == RECONSTRUCTION:  # even if clients have other labels
        y = of_batch(label)
        is_named = isinstance(input_spec, Mapping)
        input_spec = collections.OrderedDict(input_spec, y=y) if is_named else (input_spec[0], y)
    keras_model, rebuild = _model_and_rebuild(keras_model, x)
    _check_trainable(keras_model)
    name = name or keras_model.name
    if not isinstance(loss, tf.keras.losses.Loss):
        raise UserError(
            f"loss is of {type(loss).__name__}; it must be a tf.keras.losses.Loss, "
            "SparseCategoricalCrossentropy(from_logits=True), BinaryCrossentropy(), MeanSquaredError() or a subclass "
            "of your own with call(labels, outputs)"
        )
    function = keras_function(name, keras_model, rebuild, batched(x))
    config = loss.get_config()
    ignored = config.get("ignore_class")  # None: no class is
    facts = LossFacts(
        objective=objective or objective_of_loss(loss, label),
        from_logits=config.get("from_logits", False if isinstance(loss, tf.keras.losses.KLDivergence) else None),
        activation=_last_activation(keras_model),
        ignored=(() if ignored is None else (ignored,)) if "ignore_class" in config else None,
        one_hot=takes_one_hot(loss, label),
        class_weight=class_weight,
        keras=True,
        weighs=type(loss).__module__.split(".")[0] == "keras",
    )

    def fields_of(function: KerasFunction) -> dict:
        functional = _functional(function, loss, input_spec)
        made = from_functional(functional, name, weight_names=function.names, facts=facts)
        kinds = zip(made["weights"], function.kinds, strict=True)
        weights = tuple(dataclasses.replace(weight, kind=kind) for weight, kind in kinds)
        return {
            **made,
            "weights": weights,
            "logits": lambda tensors, features, seed: function.forward(tensors, features, seed)[0],
            "keras": function,
        }

    made = fields_of(function.sharing(statistics))
    if function.masks_outputs and not made["objective"].ignored:
        raise UserError(
            f"the outputs of the Keras model {name} carry a mask, as of Embedding(mask_zero=True) or Masking, by which "
            "Keras leaves padding out of the loss, and nothing would here: labels say what is padding, in a class of "
            "its own, SparseCategoricalCrossentropy(from_logits=True, ignore_class=...), or make no mask"
        )
    return made, fields_of(function) if statistics in OWN else None


def check_start(model: "FlatModel"):
    """Raises UserError if the Keras model that it was made from has got other weights since: it is not clear which ones
    are meant."""
    if model.keras is None:
        return
    now, made = model.keras.model.weights, model.keras.values
    if not all(np.array_equal(variable.numpy(), value) for variable, value in zip(now, made, strict=True)):
        raise UserError(
            f"the Keras model {model.keras.model.name} has got other weights since FlatModel.from_keras was called; "
            "call it again to start from these, or give it a Keras model that stays as it is"
        )


def keras_with(model: "FlatModel", vector: np.ndarray) -> tf.keras.Model:
    """Returns a copy of the Keras model that a `FlatModel` was made from, with the weights of a vector `float32 [P]`.

    Raises:
      UserError: If it was not made from a Keras model.
    """
    if model.keras is None:
        raise UserError(
            f"{model.name} was not made by FlatModel.from_keras; model_of gives its weights, predict its answers"
        )
    return model.keras.with_weights([tensor.numpy() for tensor in model.unravel(tf.constant(vector))])


def keras_mixture(model: "FlatModel", vectors: np.ndarray, weights: np.ndarray) -> tf.keras.Model:
    """Returns a Keras model of the mixture of several vectors `float32 [k, P]`, whose weights `float32 [k]` sum to one.
    Its outputs are the weighted mean of their probabilities, or of the numbers that they predict.

    Raises:
      UserError: If the model was not made from a Keras model, or a user's own function makes its probabilities.
    """
    layers, activation = tf.keras.layers, model.objective.activation
    of_outputs = {tf.nn.softmax: "softmax", tf.sigmoid: "sigmoid", tf.identity: "linear", None: "linear"}
    if activation not in of_outputs:
        raise UserError(f"{model.name} has probabilities= of its own, which no Keras model of a mixture takes over")
    members = [keras_with(model, vector) for vector in vectors]
    spec = model.example_spec["x"]
    inputs = tf.nest.map_structure(lambda leaf: layers.Input(tuple(leaf.shape), dtype=leaf.dtype), spec)
    answers, exact = [], {"dtype": "float32"}  # as in predict, even if a global policy rounds new layers to bfloat16
    for number, (member, weight) in enumerate(zip(members, weights.tolist(), strict=True)):
        member._name = f"model_{number}"
        outputs = layers.Activation(of_outputs[activation], **exact)(member(inputs))
        answers.append(layers.Rescaling(weight, name=f"weight_{number}", **exact)(outputs))
    mixture = layers.Add(name="mixture", **exact)(answers)
    return tf.keras.Model(inputs, mixture, name=f"mixture_of_{model.keras.model.name}")


def _model_and_rebuild(given, x) -> tuple[tf.keras.Model, Callable[[], tf.keras.Model]]:
    """Returns a Keras model and a function that builds it with other weights; raises UserError if there is no model.

    Args:
      given: The model, or a function that builds it.
      x: Spec of one example's features.
    """
    if isinstance(given, tf.keras.Model):
        if not given.built or not given.weights:
            raise UserError(
                f"the Keras model {given.name} has no weights yet; give its first layer an input shape, or call "
                "build(...)"
            )
        return given, lambda: _called(tf.keras.models.clone_model(given), x)

    def build():
        made = given()
        if not isinstance(made, tf.keras.Model):
            raise UserError(f"the function in the place of a Keras model gives {type(made).__name__}, no Keras model")
        return _called(made, x)

    if not callable(given) or isinstance(given, tf.keras.losses.Loss):
        raise UserError(
            f"keras_model is of {type(given).__name__}; it must be a tf.keras.Model, or a function that builds one"
        )
    return build(), build


def _check_trainable(keras_model: tf.keras.Model):
    """Raises UserError for a model that has several outputs, a fixed batch size, states between batches, layers in
    float16, or its own training step."""
    if len(keras_model.outputs or [0]) > 1:
        raise UserError(
            f"the Keras model {keras_model.name} has {len(keras_model.outputs)} outputs; it must give one tensor: "
            "tf.keras.Model(model.inputs, model.outputs[0]) is a model of the first"
        )
    # A Sequential model whose first layer names no shape has the input shape of the first batch it was called on.
    given = keras_model.inputs if getattr(keras_model, "_has_explicit_input_shape", True) else []
    sizes = [each.shape[0] for each in given or [] if each.shape.rank and each.shape[0] is not None]
    if sizes or getattr(keras_model, "stateful", False):
        takes = f"takes batches of {sizes[0]} alone" if sizes else "keeps states from batch to batch"
        raise UserError(
            f"the Keras model {keras_model.name} {takes}; clients' batches are of any size, and independent: leave "
            "batch_input_shape, batch_size= of Input and stateful=True out"
        )
    if type(keras_model).train_step is not tf.keras.Model.train_step:
        raise UserError(
            f"the Keras model {keras_model.name} has a train_step of its own, which clients do not run: what is lost "
            "belongs into the loss, add_loss or a regularizer, and the step is that of LocalTraining"
        )
    half = [layer.name for layer in keras_model._flatten_layers() if layer.compute_dtype == "float16"]
    if half:
        raise UserError(
            f"{half[-1]} of the Keras model {keras_model.name} computes in float16, in which small gradients are 0: "
            'Keras\'s fit scales the loss against it, which clients do not; dtype="mixed_bfloat16" needs no scale'
        )


def _called(keras_model: tf.keras.Model, x) -> tf.keras.Model:
    """Returns a Keras model that has its weights, which a user's own layers may make only when they are called."""
    if not keras_model.built or not keras_model.weights:
        keras_model(tf.nest.map_structure(lambda spec: tf.zeros([1, *spec.shape], spec.dtype), x))
    return keras_model


def _functional(function: KerasFunction, loss, input_spec) -> tff.learning.models.FunctionalModel:
    @tf.function(autograph=False)
    def predict_on_batch(model_weights, x, training):
        seed = tf.random.uniform([2], maxval=2**31 - 1, dtype=tf.int32) if training else None
        return function.forward(model_weights[0], x, seed)[0]

    return tff.learning.models.FunctionalModel(
        initial_weights=(function.initial, ()),
        predict_on_batch_fn=predict_on_batch,
        loss_fn=lambda output, label, sample_weight=None: loss(label, output, sample_weight),
        input_spec=input_spec,
    )


def _last_activation(keras_model) -> str | None:
    """Returns the name of the last layer's activation; None if it has none."""
    last = keras_model
    while isinstance(last, tf.keras.Model) and last.outputs:  # a user's subclass of Model has none
        last = last.outputs[0]._keras_history.layer
    activation = getattr(last, "activation", None)
    return "softmax" if isinstance(last, tf.keras.layers.Softmax) else getattr(activation, "__name__", None)


def batched(input_spec):
    """Returns the spec of a batch for a spec of one example, such as `Population.example_spec`; specs that have a batch
    dimension are unchanged."""
    leaves = tf.nest.flatten(input_spec)
    if not all(isinstance(leaf, tf.TensorSpec) and leaf.shape.is_fully_defined() for leaf in leaves):
        return input_spec
    return tf.nest.map_structure(of_batch, input_spec)


def _example_specs(input_spec, objective: str | None) -> tuple[Any, tf.TensorSpec]:
    """Returns the specs of one example's features and label from those of a batch; for a reconstruction, the label is
    the features themselves. Raises UserError if the batch is not `(x, y)`."""
    whole = isinstance(input_spec, (Mapping, tuple, list)) and len(input_spec) == 2
    parts = dict(input_spec if isinstance(input_spec, Mapping) else zip("xy", input_spec)) if whole else {}
    leaves = tf.nest.flatten(parts)
    if set(parts) != {"x", "y"} or not all(isinstance(each, tf.TensorSpec) for each in leaves):
        raise UserError(
            f"input_spec is {input_spec}; it must be two tf.TensorSpec, (x, y), each with a leading batch dimension"
        )
    inputs = parts["x"].values() if isinstance(parts["x"], Mapping) else [parts["x"]]
    if not all(isinstance(each, tf.TensorSpec) for each in inputs):
        raise UserError(
            f"input_spec of x is {parts['x']}; several inputs are given by their names, as clients hold them: "
            '{"image": tf.TensorSpec(...), "age": tf.TensorSpec(...)}'
        )
    for key, spec in [*(("x", leaf) for leaf in tf.nest.flatten(parts["x"])), ("y", parts["y"])]:
        inner = spec.shape[1:] if spec.shape.rank else None
        if inner is None or not inner.is_fully_defined():
            raise UserError(f"input_spec of {key} is {spec}; only its leading batch dimension may be unknown")
        if key == "x" and not (spec.dtype.is_floating or spec.dtype.is_integer or spec.dtype.is_bool):
            raise UserError(f"examples are {spec.dtype.name}; they must be numbers, those of texts tokens")
    if objective == RECONSTRUCTION:
        if not isinstance(parts["x"], tf.TensorSpec):
            raise UserError(f"objective is {objective}, which needs an input that is one array; these are several")
        parts["y"] = tf.TensorSpec(parts["x"].shape, tf.float32)
    if parts["y"].dtype == tf.bool:  # which become 0 and 1 when clients are made
        parts["y"] = tf.TensorSpec(parts["y"].shape, tf.int32)
    if not (parts["y"].dtype.is_integer or parts["y"].dtype.is_floating):
        raise UserError(f"labels are {parts['y'].dtype.name}; they must be integers, or floats where they are numbers")
    both = in_order(parts["x"]), parts["y"]
    return tf.nest.map_structure(lambda spec: tf.TensorSpec(spec.shape[1:], spec.dtype), both)
