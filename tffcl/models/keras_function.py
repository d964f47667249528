"""A Keras model as a pure function of its weights, with batch normalization, frozen layers, dropout, regularizers,
constraints, and a user's own layers.

The Keras model is built a second time with places instead of its variables. A place holds a tensor, and an
assignment puts another tensor there. So one trace of the call is a function without variables: from the values of all
weights to the outputs, the penalties of regularizers, and the values of the weights that the call has assigned.
"""

import collections
import contextlib
import dataclasses
import itertools
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tffcl.errors import UserError, one_line
from tffcl.models.graph_function import converted, drawing_nodes
from tffcl.models.layer_weights import STATISTIC, TRAINED
from tffcl.models.trials import some_batch

GLOBAL, OWN, RESET = "global", ("local", "fedbn"), "reset"  # how a model's statistics are treated
STATISTICS = (GLOBAL, *OWN, RESET)


@dataclasses.dataclass(frozen=True, eq=False)
class KerasFunction:
    """The function that a Keras model computes.

    Attributes:
      model: The Keras model.
      rebuild: Builds the same model with other weights.
      values: The initial values of all its weights.
      places: The places in `model.weights` of the weights that travel, where those of a layer are together; all other
        weights are constants.
      names: Their names, "layer/weight"; no two layers have the same name.
      kinds: Their kinds, `TRAINED` or `STATISTIC`.
      forward: `(tensors, x, seed) -> (outputs, penalty, statistics)`. It takes the values of the weights that travel, a
        batch, and `int32 [2]`, or None for inference. It returns the model's outputs, the sum of its own losses, such
        as its regularizers', and the new statistics, in order. It is differentiable in the trained weights alone.
      constraints: The constraint that Keras applies to each trained weight after a step, or None, in order.
      masks_outputs: Whether the outputs carry a mask, by which `fit` leaves padding out of loss and metrics.
    """

    model: tf.keras.Model
    rebuild: Callable[[], tf.keras.Model]
    values: tuple[np.ndarray, ...]
    places: tuple[int, ...]
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    forward: Callable
    constraints: tuple[Callable | None, ...]
    masks_outputs: bool

    @property
    def initial(self) -> tuple[np.ndarray, ...]:
        """The initial values of the weights that travel, `float32`."""
        return tuple(self.values[place].astype(np.float32) for place in self.places)

    def sharing(self, statistics: str) -> "KerasFunction":
        """Returns the function of the weights that travel under a treatment of statistics, a name in `STATISTICS`: all;
        all but statistics; or, with "fedbn", all but the weights of layers with statistics. The other weights have
        their first values.

        Raises:
          UserError: If there are no statistics that clients could keep, or nothing that they could share.
        """
        layer_of = [name.rpartition("/")[0] for name in self.names]
        renewed = [kind == STATISTIC for kind in self.kinds]
        beside = set(itertools.compress(layer_of, renewed)) if statistics == "fedbn" else set()
        travels = [statistics == GLOBAL or not (renews or layer in beside) for renews, layer in zip(renewed, layer_of)]
        if statistics in OWN and not any(renewed):
            raise UserError(f"statistics is {statistics!r}; the Keras model {self.model.name} has none that it renews")
        if not any(travels):
            raise UserError(
                f"statistics is {statistics!r}; {self.model.name} has no trained weights but in layers with statistics"
            )
        if all(travels):
            return self

        def forward(tensors, x, seed):
            left = iter(tensors)
            whole = [next(left) if goes else first for goes, first in zip(travels, self.initial)]
            outputs, penalty, _ = self.forward(whole, x, seed)
            return outputs, penalty, []

        trained = itertools.compress(travels, (not each for each in renewed))
        return dataclasses.replace(
            self, places=tuple(itertools.compress(self.places, travels)),
            names=tuple(itertools.compress(self.names, travels)),
            kinds=tuple(itertools.compress(self.kinds, travels)), forward=forward,
            constraints=tuple(itertools.compress(self.constraints, trained)),
        )  # fmt: skip

    def with_weights(self, tensors) -> tf.keras.Model:
        """Returns a new Keras model with other values of the weights that travel."""
        values = list(self.values)
        for place, tensor in zip(self.places, tensors, strict=True):
            values[place] = tensor
        with _eagerly():
            made = self.rebuild()
            _freeze_like(made, self.model)
            variances = _variances(made)
            made.set_weights(
                [
                    np.maximum(value, 0) if id(weight) in variances else value
                    for weight, value in zip(made.weights, values, strict=True)
                ]
            )
            _finalize(made)
        return made


class _Place(tf.Variable, tf.__internal__.types.Tensor):
    """Stands for a variable in Keras' layers: it holds a tensor, and an assignment puts another one there."""

    constraint = None

    def __init__(self, value: np.ndarray, name: str | None, trainable: bool):
        self._held, self._shape, self._dtype = value, tf.TensorShape(value.shape), tf.as_dtype(value.dtype)
        self._name, self._trainable, self.is_assigned = f"{name or 'Variable'}:0", trainable, False
        self._first = value

    def reset(self):
        self.put(self._first)

    def put(self, tensor):
        self._held, self.is_assigned = tensor, False

    def value(self):
        return tf.convert_to_tensor(self._held)

    read_value = value

    def assign(self, value, use_locking=False, name=None, read_value=True):
        del use_locking, name, read_value
        self._held, self.is_assigned = tf.reshape(tf.cast(value, self._dtype), self._shape), True
        return self

    def assign_add(self, delta, use_locking=False, name=None, read_value=True):
        return self.assign(self.value() + tf.cast(delta, self._dtype))

    def assign_sub(self, delta, use_locking=False, name=None, read_value=True):
        return self.assign(self.value() - tf.cast(delta, self._dtype))

    def get_shape(self):
        return self._shape

    shape = property(get_shape)
    dtype = property(lambda self: self._dtype)
    name = property(lambda self: self._name)
    trainable = property(lambda self: self._trainable)

    def _as_graph_element(self):
        return self.value()  # used by tf.control_dependencies

    graph = property(lambda self: tf.compat.v1.get_default_graph())

    def __repr__(self) -> str:
        return f"<place of {self._name}>"


tf.register_tensor_conversion_function(_Place, lambda place, dtype=None, name=None, as_ref=False: place.value())


@contextlib.contextmanager
def _eagerly():
    """Makes Keras build its current layers and not those of TensorFlow 1, which it would build inside a graph."""
    with tf.__internal__.eager_context.eager_mode():
        yield


def keras_function(
    name: str, keras_model: tf.keras.Model, rebuild: Callable[[], tf.keras.Model], x_spec
) -> KerasFunction:
    """Traces a Keras model.

    Args:
      name: The model's name, for messages.
      keras_model: The model. Its weights are the initial ones, and its layers say which of them are trained.
      rebuild: Builds the same model with other weights.
      x_spec: `tf.TensorSpec` of a batch, or a structure of them.

    Raises:
      UserError: If it cannot be built again with the same weights, outputs and losses, or called on such a batch; if it
        has no trained weights, draws random numbers that no seed decides, reads variables that are not weights, or sets
        a trained weight.
    """
    weights, trained = keras_model.weights, {id(each) for each in keras_model.trainable_weights}
    if not trained:
        raise UserError(f"the Keras model {name} has no trainable weights: all its layers are frozen")
    is_trained = [id(each) in trained for each in weights]
    specs = [tf.TensorSpec(each.shape, each.dtype) for each in weights], x_spec
    with _eagerly():
        copy, others = _with_places(name, rebuild, keras_model)
        # With AutoGraph, which layers of a user's own may need.
        masks: list = []
        trace = tf.function(_build_trace(copy, is_trained, others, masks))
        try:
            training = trace.get_concrete_function(*specs, tf.TensorSpec([2], tf.int32))
            changed = [place.is_assigned for place in copy.weights]
            inference = trace.get_concrete_function(*specs, None)
            answers_alike = not any(place.is_assigned for place in copy.weights)
        except Exception as error:  # whatever Keras and layers of the user's own raise
            raise UserError(f"the Keras model {name} cannot be computed on its input: {one_line(error)}") from None
        values = tuple(each.numpy() for each in weights)
    for number in np.flatnonzero(np.logical_and(changed, is_trained)):
        raise UserError(
            f"the Keras model {name} sets its trained weight {weights[number].name.split(':')[0]} when it is called, "
            "which no step of training then does: a constraint, kernel_constraint=..., sets it after each step"
        )
    layers = {layer.name for layer in copy._flatten_layers()}
    training, inference = (_with_constants(name, each, layers) for each in (training, inference))
    if answers_alike:
        _check_rebuilt(name, keras_model, x_spec, lambda x: inference([*map(tf.constant, values)], x, None))
    names = _weight_names(keras_model)
    layer_of = [each.rpartition("/")[0] for each in names]
    travels = (number for number in range(len(weights)) if is_trained[number] or changed[number])
    # A layer that contains others has their trained weights before their statistics.
    places = tuple(sorted(travels, key=lambda number: (layer_of.index(layer_of[number]), number)))
    statistics = [number for number in places if not is_trained[number]]

    def forward(tensors, x, seed):
        given = dict(zip(places, tensors, strict=True))
        everything = [
            tf.cast(given[number], value.dtype) if number in given else tf.constant(value)
            for number, value in enumerate(values)
        ]
        outputs, penalty, renewed = (inference if seed is None else training)(everything, x, seed)
        renewed = dict(zip(np.flatnonzero(changed), renewed, strict=True)) if seed is not None else {}
        renewed = [tf.cast(renewed.get(each, everything[each]), tf.float32) for each in statistics]
        return tf.cast(outputs, tf.float32), penalty, renewed

    kinds = tuple(TRAINED if is_trained[number] else STATISTIC for number in places)
    constraints = (weights[number].constraint for number in places if is_trained[number])
    constraints = tuple(each and converted(each) for each in constraints)
    names = tuple(names[number] for number in places)
    return KerasFunction(keras_model, rebuild, values, places, names, kinds, forward, constraints, bool(masks))


def _weight_names(keras_model: tf.keras.Model) -> list[str]:
    """Returns the name "layer/weight" of each of a model's weights, by the layer that holds it. Layers with the same
    name, as in a base and a head, are named with the path to them: "base.dense"."""
    owners = {}

    def visit(layer, path):
        for each in (*layer._trainable_weights, *layer._non_trainable_weights):
            owners.setdefault(id(each), (id(layer), path))
        for inner in layer._flatten_layers(recursive=False, include_self=False):
            visit(inner, (*path, inner.name.replace("/", ".")))

    visit(keras_model, ())
    of_weights = [owners.get(id(each), (0, ())) for each in keras_model.weights]
    known, names = collections.Counter(path[-1:] for _, path in dict(of_weights).items()), {}
    for layer, path in of_weights:
        name = base = ".".join(path if known[path[-1:]] > 1 else path[-1:]) or keras_model.name
        numbers = itertools.count(2)
        while layer not in names and name in names.values():
            name = f"{base}_{next(numbers)}"
        names.setdefault(layer, name)
    pairs = zip(keras_model.weights, of_weights, strict=True)
    return [f"{names[layer]}/{weight.name.split(':')[0].split('/')[-1]}" for weight, (layer, _) in pairs]


def _variances(keras_model: tf.keras.Model) -> set[int]:
    """Returns the `id` of each weight that is a moving variance. Noise in private means, and means that diverge, can
    make variances negative: they then count as 0."""
    return {id(getattr(each, "moving_variance", None)) for each in keras_model._flatten_layers()}


def _with_constants(name: str, function, layers) -> Callable:
    """Turns tensors that a traced function reads, such as a layer's table of positions, into constants of the graphs
    that call it.

    Args:
      name: The name of the Keras model, for messages.
      function: A concrete function.
      layers: The names of the model's layers.

    Raises:
      UserError: If it reads variables or tables, or draws random numbers that no seed decides.
    """
    for node in drawing_nodes(function.graph.as_graph_def()):
        within = ", ".join([node.op, *[each for each in node.name.split("/") if each in layers][-1:]])
        raise UserError(
            f"the Keras model {name} draws random numbers ({within}) that do not follow from the run's seed: those "
            "of tf.keras.layers.Dropout and GaussianNoise do, also in a layer of your own"
        )
    if any(each.dtype in (tf.resource, tf.variant) for each in function.captured_inputs):
        raise UserError(
            f"the Keras model {name} looks at variables that are no weights of its layers, a tf.random.Generator or a "
            "table: add_weight makes weights, tf.keras.layers.Dropout and GaussianNoise follow from the run's seed, "
            "and layers that look words up, as TextVectorization, belong before the model: layer(texts).numpy()"
        )
    constants = [each.numpy() for each in function.captured_inputs]

    def run(*given):
        function.set_external_captures([tf.constant(each) for each in constants])
        return function(*given)

    return run


def _with_places(name: str, rebuild, keras_model) -> tuple[tf.keras.Model, list[_Place]]:
    """Returns the rebuilt model with places for variables, and the places that are not weights, such as those of
    metrics; raises UserError if it is not the same model."""
    made = []

    def placed(create, **given):
        if given.get("name") == "StateVar":  # of a tf.random.Generator, which is not used (see `_draw_by`)
            return create(**given)
        initial = given["initial_value"]
        with tf.init_scope():  # for a layer that makes its weights in its call
            value = tf.convert_to_tensor(initial() if callable(initial) else initial, given.get("dtype"))
        made.append(_Place(value.numpy(), given.get("name"), given.get("trainable") is not False))
        return made[-1]

    with tf.variable_creator_scope(placed):
        try:
            copy = rebuild()
        except Exception as error:  # e.g. of a class or a layer without get_config
            raise UserError(
                f"the Keras model {name} cannot be built again ({one_line(error)}): give from_keras, in the place of "
                "the model, a function that builds it"
            ) from None
    is_same = len([*copy._flatten_layers()]) == len([*keras_model._flatten_layers()])
    if is_same:
        _freeze_like(copy, keras_model)
    if not is_same or [each.shape for each in copy.weights] != [each.shape for each in keras_model.weights]:
        raise UserError(
            f"the Keras model {name} has other weights when it is built again, as of layers that make them when they "
            "are called: give from_keras, in the place of the model, a function that builds it and calls it once"
        )
    weights = {id(each) for each in copy.weights}
    return copy, [place for place in made if id(place) not in weights]


def _check_rebuilt(name: str, keras_model: tf.keras.Model, x_spec, rebuilt: Callable):
    """Raises UserError if the rebuilt model, a function from a batch to outputs and penalty, gives other results for a
    made-up batch than the model itself."""
    one = tf.nest.map_structure(lambda spec: tf.TensorSpec(spec.shape[1:], spec.dtype), x_spec)
    x, _ = some_batch(one, tf.TensorSpec([], tf.int32))
    with _eagerly():
        try:
            given = keras_model(x, training=False)
            added = float(sum(tf.cast(each, tf.float32) for each in keras_model.losses))
        except Exception:  # a user's own layer may refuse made-up numbers
            return
        outputs, penalty, _ = rebuilt(x)
    half = any(each.compute_dtype == "bfloat16" for each in keras_model._flatten_layers())
    cure = "give from_keras, in the place of the model, a function that builds it, each time the same"
    if not _alike(outputs, given, half):
        raise UserError(
            f"the Keras model {name} gives other outputs when it is built again, as of a subclass of Sequential with a "
            f"call of its own, or a layer whose get_config leaves out how it was made: {cure}"
        )
    if not _alike(penalty, added, half):
        raise UserError(
            f"the Keras model {name} adds other losses when it is built again, {float(penalty):.3g} where it adds "
            f"{added:.3g}, as of add_loss with a function, or a regularizer that was set later: {cure}, with its losses"
        )


def _alike(one, other, half: bool) -> bool:
    """Whether outputs are the same up to rounding, which is coarse if layers compute in `half` precision."""
    pairs = zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True)
    for first, second in ([tf.cast(each, tf.float32).numpy() for each in pair] for pair in pairs):
        most = (0.1 if half else 1e-3) * np.nanmax(np.abs(second), initial=1e-3)
        if not np.allclose(first, second, rtol=0, atol=most, equal_nan=True):
            return False
    return True


def _freeze_like(copy, keras_model):
    """Freezes the layers of a rebuilt model that are frozen in the model, so that the weights of both have the same
    order: Keras lists trained weights first."""
    for layer, like in zip(copy._flatten_layers(), keras_model._flatten_layers(), strict=True):
        layer.trainable = like.trainable


def _build_trace(copy: tf.keras.Model, is_trained, others: list[_Place], masks: list):
    """Builds `(values of all weights, x, seed or None) -> (outputs, penalty, values of weights that it assigned)`. If
    the outputs carry a mask, it is added to `masks`."""
    variances = _variances(copy)
    generators = [each._random_generator for each in copy._flatten_layers() if hasattr(each, "_random_generator")]

    def trace(values, x, seed):
        for place in others:
            place.reset()
        for place, value, moves in zip(copy.weights, values, is_trained, strict=True):
            value = tf.maximum(value, 0.0) if id(place) in variances else value
            place.put(value if moves else tf.stop_gradient(value))
        _finalize(copy)
        for number, generator in enumerate(generators):
            _draw_by(generator, None if seed is None else tf.random.experimental.stateless_fold_in(seed, number))
        outputs = copy(tf.nest.map_structure(tf.stop_gradient, x), training=seed is not None)
        masks.extend(each for each in [getattr(outputs, "_keras_mask", None)] if each is not None)
        losses = [tf.cast(each, tf.float32) for each in copy.losses]
        penalty = tf.reduce_sum(losses) if losses else tf.constant(0.0)
        return outputs, penalty, [place.value() for place in copy.weights if place.is_assigned]

    return trace


def _finalize(keras_model):
    """Updates what layers derive from their weights and keep, as Normalization does."""
    for layer in keras_model._flatten_layers():
        if hasattr(layer, "finalize_state"):
            layer.finalize_state()


def _draw_by(generator, seed):
    """Makes a layer's random numbers follow from a seed; without a seed, at inference, it must not draw any."""
    drawn = itertools.count()

    def make_seed():
        if seed is None:
            raise ValueError("it draws random numbers at inference too; leave training=True out of its call")
        return tf.random.experimental.stateless_fold_in(seed, next(drawn))

    generator._rng_type, generator._built = generator.RNG_STATELESS, True
    generator.make_seed_for_stateless_op = make_seed
