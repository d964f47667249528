"""Server halves that several methods share: which model a client receives, and what its update moves."""

import collections
import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.clustered_mean import pad_rows
from tffcl.aggregators.collect import plain_containers, stacked
from tffcl.models.graph_function import converted
from tffcl.rounds.composer import Server


def models_type(size: int, rows: int | None = None) -> tff.TensorType:
    """Returns the type of models in rows: `float32[?,P]`, or `float32[K,P]`."""
    return tff.TensorType(np.float32, [rows, size])


def row_of(values, number) -> tf.Tensor:
    """A row of values; TensorFlow refuses one that does not exist, also -1, which a slice would take for the last
    row."""
    return tf.gather(values, number)


def own_row(values, client) -> collections.OrderedDict:
    """Returns what a client receives: the model of its key."""
    return collections.OrderedDict(model=row_of(values["models"], client["key"]))


def all_values(values, client) -> collections.OrderedDict:
    """Returns what a client receives: everything that the server broadcasts."""
    del client
    return tf.nest.map_structure(tf.identity, values)


def move_rows(state, results, measurements):
    """Moves every model by the mean update of its clients; a model without clients stays (PACFL Alg. 1 line 24)."""
    del measurements
    return {**state, "models": state["models"] + pad_rows(results["update"], tf.shape(state["models"])[0])}


@dataclasses.dataclass(frozen=True)
class Replacing:
    """A server step that takes the result of an upload as the next models, unchanged. It computes nothing, so outside
    of a federated computation it also takes NumPy arrays, and copies none of them.

    Attributes:
      upload: The upload's name.
    """

    upload: str

    def __call__(self, state, results, measurements):
        del measurements
        return {**state, "models": results[self.upload]}


def keyed_server(
    size: int,
    rows: int | None = None,
    *,
    optimizer: tff.learning.optimizers.Optimizer | None = None,
    on_trained: Callable = lambda changed, otherwise: changed,
) -> Server:
    """Builds the server of clustered training: clients receive the model of their key, and their updates move it.

    Args:
      size: P.
      rows: K; None where it may change between rounds.
      optimizer: Steps each model against its mean update, as in `tff.learning`; default adds the update. Its state is
        the private value `optimizer`, rows by model. The model of a cluster without clients in a round does not step.
      on_trained: `FlatModel.on_trained`; the mean update is added to statistics, which the optimizer does not step.
    """
    values = {"models": models_type(size, rows)}
    if optimizer is None:
        return Server(values, own_row, move_rows)
    private = {"optimizer": optimizer_state_type(optimizer, size, rows)}
    return Server(values, own_row, functools.partial(_step_rows, optimizer, on_trained), private=private)


def _specs(size: int) -> tf.TensorSpec:
    return tf.TensorSpec([size], tf.float32)


def optimizer_state_type(optimizer: tff.learning.optimizers.Optimizer, size: int, rows: int | None) -> tff.Type:
    """Returns the type of an optimizer's state for each model: its own with a leading dimension."""

    @tff.tensorflow.computation
    def initialize():
        return optimizer.initialize(_specs(size))

    return tff.to_type(stacked(initialize.type_signature.result, rows))


def initial_optimizer_state(optimizer: tff.learning.optimizers.Optimizer, size: int, rows: int):
    """Returns an optimizer's first state for each of several models: NumPy arrays with a row for each model."""
    # They become tensors first, so that a hyperparameter that is a Python number is float32, as in the computations.
    one = tf.nest.map_structure(tf.convert_to_tensor, plain_containers(optimizer.initialize(_specs(size))))
    return tf.nest.map_structure(lambda leaf: np.repeat(leaf.numpy()[np.newaxis], rows, axis=0), one)


def _step_rows(optimizer, on_trained, state, results, measurements):
    del measurements
    models = state["models"]
    updates, advance = pad_rows(results["update"], tf.shape(models)[0]), converted(optimizer.next)

    def step(row):
        own, model, update = row
        own_next, stepped = advance(own, model, -update)
        moved = own_next, on_trained(stepped, model + update)
        took_part = tf.reduce_any(tf.not_equal(update, 0))

        def kept(new, old):  # some optimizers turn whole numbers into floats
            return tf.where(took_part, tf.cast(new, old.dtype), old)

        return tf.nest.map_structure(kept, moved, (own, model))

    held = state["optimizer"], models
    kinds = tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), held)
    optimized, models = tf.map_fn(step, (*held, updates), fn_output_signature=kinds)
    return {**state, "models": models, "optimizer": optimized}
