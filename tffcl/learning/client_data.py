"""Clients' data sets as users of `tff.learning` have them, batched or not, and as this library's rounds take them."""

import collections
from collections.abc import Mapping

import tensorflow as tf

from tffcl.errors import UserError
from tffcl.models.flat import FlatModel


def check_element_spec(model: FlatModel, element_spec=None):
    """Returns the `element_spec` of the clients' data sets, after a check that the model can take them.

    Args:
      model: What is trained on them.
      element_spec: `(x, y)` or `{"x": ..., "y": ...}` of `tf.TensorSpec`, of single examples or of batches; default the batches
        that the processes of `tff.learning` take for the same model (`model.functional.input_spec`).

    Raises:
      UserError: If these are no examples for the model.
    """
    if element_spec is None:
        return model.functional.input_spec
    x, y = _pair(element_spec)
    for key, given in (("x", x), ("y", y)):
        wanted = model.example_spec[key]
        same = given.dtype == wanted.dtype if key == "x" else given.dtype.is_integer
        shapes = [tuple(wanted.shape), (None, *wanted.shape)]
        if not same or not any(given.shape.rank == len(each) and given.shape.is_compatible_with(each) for each in shapes):
            raise UserError(
                f"{key} of element_spec is {given.dtype.name}{given.shape}; the model takes {wanted.dtype.name}{wanted.shape}, or "
                "batches of them"
            )
    if _is_batch(model, x) != (y.shape.rank > len(model.label_shape)):
        raise UserError(f"of element_spec, x {x.shape} and y {y.shape}, one is a batch and the other is not")
    return element_spec


def as_examples(model: FlatModel, data: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a client's data set as single examples `<x, y=int32>`, in the order in which they come.

    Args:
      data: Has an element spec that `check_element_spec` lets through.
    """

    def named(*element):
        x, y = _pair(element[0] if len(element) == 1 else element)
        return collections.OrderedDict(x=x, y=tf.cast(y, tf.int32))

    batched = _is_batch(model, _pair(data.element_spec)[0])
    # Not by `unbatch`, an operation that device runtimes lack.
    return data.map(named).flat_map(tf.data.Dataset.from_tensor_slices) if batched else data.map(named)


def own_seed(seed, examples: tf.data.Dataset):
    """Draws a client's seed from the round's: clients of `tff.learning` have no ID, but they have other examples.

    Args:
      seed: `int32[2]`.
      examples: Single examples `<x, y>`, of which the number, the labels and the bits of x in their order count.

    Returns:
      `int32[2]`.
    """

    def add(total, example):
        return 31 * (31 * total + tf.reduce_sum(example["y"])) + _told_of(example["x"])

    return tf.random.experimental.stateless_fold_in(seed, examples.reduce(tf.constant(7), add))


def _told_of(x):
    """An int32 that examples with other numbers, or with the same ones at other places, have another of."""
    bits = tf.reshape(tf.bitcast(tf.cast(x, tf.float32), tf.int32), [-1])
    return tf.reduce_sum(bits * (2 * tf.range(tf.size(bits)) + 1))


def _is_batch(model: FlatModel, x: tf.TensorSpec) -> bool:
    return x.shape.rank > len(model.input_shape)


def _pair(element) -> tuple:
    if isinstance(element, Mapping) and set(element) == {"x", "y"}:
        return element["x"], element["y"]
    if isinstance(element, (tuple, list)) and len(element) == 2:
        return tuple(element)
    raise UserError(f'elements of the data sets are {element}; they must be (x, y) or {{"x": ..., "y": ...}}')
