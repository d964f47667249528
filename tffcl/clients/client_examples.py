"""Examples of clients as data sets and as arrays, and the test examples of all clients in one pool."""

import collections
import dataclasses
import weakref

import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True, eq=False)
class PooledTests:
    """The test examples of all clients, each different one once.

    Attributes:
      x: `[n, ...]`, the examples.
      y: `int32 [n]`, their labels.
      indices: For each client of the population its places in the pool; clients may share an array.
    """

    x: np.ndarray
    y: np.ndarray
    indices: tuple[np.ndarray, ...]


_READ: "weakref.WeakKeyDictionary[tf.data.Dataset, collections.OrderedDict]" = weakref.WeakKeyDictionary()


def read_once(examples: tf.data.Dataset) -> collections.OrderedDict:
    """The examples of a data set as arrays, read once: reading one anew in every round costs more than training on few examples."""
    if examples not in _READ:
        found = read_whole(examples)
        _READ[examples] = collections.OrderedDict((name, found[name]) for name in "xy")
    return _READ[examples]


def read_whole(examples: tf.data.Dataset):
    """Returns all examples of a data set, also none, as one structure of arrays `[n, ...]`."""
    nothing = tf.nest.map_structure(lambda leaf: tf.zeros([0, *leaf.shape], leaf.dtype), examples.element_spec)
    # Not by an iterator: to make one takes five times as long as to read the few examples of a client so.
    first = examples.batch(2**30).concatenate(tf.data.Dataset.from_tensors(nothing)).take(1).get_single_element()
    return tf.nest.map_structure(np.asarray, first)


def none_of(kind: str, spec) -> collections.OrderedDict:
    """Arrays of no example of a kind."""
    if kind not in _NOTHING:
        _NOTHING[kind] = collections.OrderedDict(
            (name, np.zeros([0, *spec[name].shape], spec[name].dtype.as_numpy_dtype)) for name in "xy"
        )
    return _NOTHING[kind]


_NOTHING: dict[str, collections.OrderedDict] = {}
_EMPTY: dict[str, tf.data.Dataset] = {}


def empty_like(examples: tf.data.Dataset) -> tf.data.Dataset:
    """Returns an empty data set of the same type.

    There is one object for each type, since data sets made anew in every round leak; and it is not `client_work.take(0)`, which
    carries all the examples to the runtime in its graph.
    """
    spec = examples.element_spec
    if str(spec) not in _EMPTY:
        nothing = tf.nest.map_structure(lambda leaf: np.zeros([0, *leaf.shape], leaf.dtype.as_numpy_dtype), spec)
        _EMPTY[str(spec)] = tf.data.Dataset.from_tensor_slices(nothing)
    return _EMPTY[str(spec)]


def as_examples(x: np.ndarray, y: np.ndarray) -> tf.data.Dataset:
    """Returns the data set of single examples `<x, y>` of two arrays."""
    return tf.data.Dataset.from_tensor_slices(collections.OrderedDict(x=x, y=y))
