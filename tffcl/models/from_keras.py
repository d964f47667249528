"""Models of another origin as `FlatModel`: any `tff.learning` FunctionalModel, any Keras model that TFF can make one
of."""

import collections
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.errors import UserError
from tffcl.models.graph_function import converted, graph_function
from tffcl.models.layer_weights import Weight
from tffcl.runtime import check_process

if TYPE_CHECKING:  # which makes one of these fields
    from tffcl.models.flat import FlatModel


def from_functional(
    functional: tff.learning.models.FunctionalModel,
    name: str = "functional",
    *,
    weight_names=None,
    probabilities=None,
    from_logits: bool | None = None,
    softmax_last: bool | None = None,
    ignored: tuple[int, ...] | None = None,
) -> dict:
    """Returns the fields of a `FlatModel` of a `tff.learning.models.FunctionalModel`.

    Its trainable weights become the vector; weights that are not trained stay as they are. Its loss is that of
    training.

    Args:
      functional: Takes batches `(x, y)` or `{"x": ..., "y": ...}`, x of any type and shape, y integers, one label or a
        sequence of labels an example; gives an output of floats for each class and label.
      name: For titles.
      weight_names: "layer/weight" of each trainable weight, so that layers can be named; default numbers.
      probabilities: Outputs to probabilities; default softmax, or nothing where the outputs are probabilities already.
      from_logits: Whether the loss takes logits or probabilities; None if that is not known.
      softmax_last: Whether the outputs are those of a softmax; None if only a batch can tell.
      ignored: The classes that the loss leaves out; None: they are found by trying it.

    Raises:
      UserError: If the input is no such batch, the output is not floats for two or more classes, the loss is no mean
        over them, or takes logits where the outputs are probabilities, or the other way round.
    """
    check_process()
    if not isinstance(functional, tff.learning.models.FunctionalModel):
        kind = type(functional).__name__
        raise UserError(f"functional is of {kind}; it must be a tff.learning.models.FunctionalModel")
    spec = _example_spec(functional.input_spec)
    trainable, fixed = functional.initial_weights
    names = weight_names or [f"weight_{number}" for number in range(len(trainable))]
    weights = tuple(Weight(each, np.shape(value), 1, 1) for each, value in zip(names, trainable, strict=True))
    if not weights:
        raise UserError(f"{name} has no trainable weights; is it built?")

    def outputs(tensors, features, seed):
        return functional.predict_on_batch((tuple(tensors), fixed), features, seed is not None)

    loss = converted(functional.loss)

    def losses(predicted, labels):
        def of_one(example):
            output, label = example
            # The mean over a batch of one; of no example at all the loop needs its shape.
            return tf.ensure_shape(loss(output[tf.newaxis], label[tf.newaxis]), [])

        return tf.map_fn(of_one, (predicted, labels), fn_output_signature=tf.float32)

    classes = _check_output(name, functional, spec)
    run = _check_loss(name, functional, loss, spec, classes)
    probabilities = _to_probabilities(
        name, run(*_some_batch(spec))[0].numpy(), probabilities, from_logits, softmax_last
    )
    ignored = _left_out(loss, spec, classes) if ignored is None else ignored
    return {
        "name": name,
        "weights": weights,
        "functional": functional,
        "preprocess": tf.identity,
        "logits": outputs,
        "example_spec": spec,
        "num_classes": classes,
        "loss": loss,
        "losses": losses,
        "probabilities": probabilities,
        "ignored": ignored,
    }


def from_keras(keras_model: tf.keras.Model, loss: tf.keras.losses.Loss, input_spec, name: str | None = None) -> dict:
    """Returns the fields of a `FlatModel` of a Keras model, through `tff.learning.models.functional_model_from_keras`.

    Args:
      keras_model: Built, with an output for each class; without batch normalization, frozen layers or other weights
        that are not trained, which TFF cannot make a function of, and without regularizers, which it would leave out.
        What a dropout layer draws is TensorFlow's matter: with one, two runs of the same seed differ.
      loss: Of integer labels, a mean over the batch, e.g.
        `tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)`.
      input_spec: `(x, y)` or `{"x": ..., "y": ...}` of `tf.TensorSpec` with a leading batch dimension, as in
        `tff.learning`.
      name: For titles; default the Keras model's.

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
            f"loss is of {type(loss).__name__}; it must be a tf.keras.losses.Loss of integer labels, "
            "SparseCategoricalCrossentropy(from_logits=True) or a subclass, whose call(labels, outputs) may weigh "
            "classes"
        )
    if keras_model.losses:
        raise UserError(
            f"the Keras model {name} has regularizers, which TFF leaves out; use LocalTraining(weight_decay=...)"
        )
    _check_layers(name, keras_model)
    _example_spec(input_spec)
    try:
        functional = _keras_in_graphs(keras_model, loss, input_spec)
    except Exception as error:  # TFF's own error for what it cannot convert, and Keras's for inputs that do not fit
        raise UserError(f"TFF cannot make a function of the Keras model {name}: {_one_line(error)}") from None
    names, config = [_weight_name(variable) for variable in keras_model.trainable_variables], loss.get_config()
    ignored = config.get("ignore_class")  # None: none is
    made = from_functional(
        functional,
        name,
        weight_names=names,
        from_logits=config.get("from_logits"),
        softmax_last=_softmax_last(keras_model),
        ignored=(() if ignored is None else (ignored,)) if "ignore_class" in config else None,
    )
    return {**made, "keras": keras_model}


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


def _softmax_last(keras_model) -> bool | None:
    """Whether the last layer is a softmax; False if it is linear, None if its outputs must tell."""
    last = keras_model
    while isinstance(last, tf.keras.Model):
        last = last.outputs[0]._keras_history.layer
    activation = getattr(last, "activation", None)
    if isinstance(last, tf.keras.layers.Softmax) or activation is tf.keras.activations.softmax:
        return True
    return False if activation is tf.keras.activations.linear else None


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


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Raised while a function was traced, the error itself stands below the lines of code that led to it.
    raised = [line.split(": ", 1)[1] for line in lines if re.match(r"\w+(Error|Exception): ", line)]
    return [*raised, *lines, type(error).__name__][0][:200]


def _example_spec(input_spec) -> collections.OrderedDict:
    """One example's spec from a batch's; UserError if that is no `(x, y)`."""
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
    x, y = parts["x"], parts["y"]
    if not y.dtype.is_integer or y.shape.rank > 2:
        raise UserError(
            f"labels are {y.dtype.name} of shape {list(y.shape)}; they must be integers, [None] or [None, L]; numbers "
            "become classes by np.digitize(y, edges)"
        )
    return collections.OrderedDict(x=tf.TensorSpec(x.shape[1:], x.dtype), y=tf.TensorSpec(y.shape[1:], tf.int32))


def _check_output(name: str, functional, spec) -> int:
    """Returns the number of classes; UserError if the model's output is not floats for two or more."""
    kinds = {key: tff.TensorType(each.dtype.as_numpy_dtype, [None, *each.shape]) for key, each in spec.items()}

    def predict(x):
        return functional.predict_on_batch(functional.initial_weights, x, False)

    try:
        output = tff.tensorflow.computation(predict, kinds["x"]).type_signature.result
    except Exception as error:  # whatever the user's own function raises
        raise UserError(f"{name} cannot be computed on its input: {_one_line(error)}") from None
    rank = 2 + len(spec["y"].shape)
    tensor = isinstance(output, tff.TensorType) and np.issubdtype(output.dtype, np.floating)
    if not tensor or len(output.shape) != rank or not output.shape[-1] or output.shape[-1] < 2:
        wanted = "[n, classes]" if rank == 2 else "[n, L, classes]"
        single = tensor and len(output.shape) == rank and output.shape[-1] == 1
        hint = (
            ": Dense(2) and SparseCategoricalCrossentropy instead of one sigmoid; of numbers, classes" if single else ""
        )
        raise UserError(f"{name} gives {output}; it must give floats of shape {wanted} with two or more classes{hint}")
    return int(output.shape[-1])


def _check_loss(name: str, functional, given_loss, spec, classes: int) -> Callable:
    """Returns `(x, y) -> (outputs, loss)` of the initial weights.

    Raises:
      UserError: If the loss is not a number that is the same for one example and for a batch of its copies.
    """
    batch = [tf.TensorSpec([None, *each.shape], each.dtype) for each in spec.values()]

    def answer(x, y):
        outputs = functional.predict_on_batch(functional.initial_weights, x, False)
        return outputs, given_loss(outputs, y)

    copies = 3 if classes != 3 else 4  # not the number of classes: a loss of other labels could take one for the other
    for label in (0, 1):  # one of them may be padding, whose loss is always 0
        try:
            run = graph_function(answer, *batch)
            one, several = (
                run(tf.zeros([n, *spec["x"].shape], spec["x"].dtype), tf.fill([n, *spec["y"].shape], label))[1]
                for n in (1, copies)
            )
        except Exception as error:  # whatever the user's own loss raises
            raise UserError(
                f"the loss of {name} cannot be computed of integer labels: {_one_line(error)}; "
                "SparseCategoricalCrossentropy can, or a Loss of your own"
            ) from None
        if one.shape.rank or not one.dtype.is_floating or not np.isclose(one, several, rtol=1e-3, equal_nan=True):
            given = f"{several.dtype.name}{several.shape.as_list()}" if several.shape.rank else "no mean"
            raise UserError(
                f"the loss of {name} is {given} for a batch; it must be one number, the mean over the batch"
            )
    return run


def _some_batch(spec) -> tuple[tf.Tensor, tf.Tensor]:
    """Four examples that any model takes: numbers at random, or zeros where they may be tokens."""
    shape, dtype = [4, *spec["x"].shape], spec["x"].dtype
    x = np.random.default_rng(0).standard_normal(shape) if dtype.is_floating else np.zeros(shape)
    return tf.constant(x.astype(dtype.as_numpy_dtype)), tf.zeros([4, *spec["y"].shape], tf.int32)


def _to_probabilities(
    name: str, outputs: np.ndarray, given, from_logits: bool | None, softmax_last: bool | None
) -> Callable:
    """Returns what makes probabilities of outputs, as `from_functional` has it; UserError if none come of it."""
    if given:
        given = converted(given)
        if _sum_to_one(given(tf.constant(outputs)).numpy()) is False:
            raise UserError(
                f"what probabilities= gives for {name} are none; they must be from 0 and sum to 1 over the classes"
            )
        return given
    already = _sum_to_one(outputs) if softmax_last is None else softmax_last
    if from_logits and already:
        raise UserError(
            f"{name} gives probabilities, but its loss takes logits (from_logits=True): leave the softmax out, or use "
            "from_logits=False"
        )
    if from_logits is False and already is False:
        raise UserError(
            f"{name} gives numbers that are no probabilities, but its loss takes these (from_logits=False): use "
            f"from_logits=True, "
            'or a last layer with activation="softmax"'
        )
    return tf.identity if already or from_logits is False else tf.nn.softmax


def _sum_to_one(outputs: np.ndarray) -> bool | None:
    """Whether outputs `[..., classes]` are probabilities; None if they are not finite, which tells nothing."""
    if not np.isfinite(outputs).all():
        return None
    return bool((outputs >= 0).all() and np.allclose(outputs.sum(-1), 1, atol=1e-3))


def _left_out(loss, spec, classes: int) -> tuple[int, ...]:
    """The classes of which a loss leaves labels out: it has no gradient for them."""
    shape = [1, *spec["y"].shape]
    some = np.random.default_rng(0).uniform(0.5, 1.5, [*shape, classes])
    some /= some.sum(axis=-1, keepdims=True)  # probabilities, or logits

    def moves(label):
        outputs = tf.constant(some, tf.float32)
        with tf.GradientTape() as tape:
            tape.watch(outputs)
            value = loss(outputs, tf.fill(shape, label))
        gradient = tape.gradient(value, outputs, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return tf.reduce_any(tf.abs(tf.convert_to_tensor(gradient)) > 0)  # not where it is NaN, as of a mean over none

    moved = graph_function(lambda: tf.map_fn(moves, tf.range(classes), fn_output_signature=tf.bool))().numpy()
    return tuple(np.flatnonzero(~moved).tolist()) if moved.any() else ()
