"""What a client does in a round, as one value: the half of a method that runs on devices."""

import collections
import dataclasses
from collections.abc import Callable, Mapping
from typing import NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.collect import stacked
from tffcl.clients.cohort import Cohort

# The fields of the local test in a report, in simulations only; outputs only if metrics need them.
LOCAL_TEST = ("test_correct", "test_examples", "test_outputs")
KEPT, OPTIMIZER = "kept", "optimizer"  # what a client keeps after a round: the method's part, the optimizer's


class ClientResult(NamedTuple):
    """The results of a client's computation, as TensorFlow values.

    Attributes:
      uploads: What goes to the server's aggregators, by name.
      report: What the client reports of the round: at least `examples=int32`, the number of training examples;
        `loss=float32`; and `finite=bool`, whether all that it trained is finite. If the client brings test examples,
        the fields `LOCAL_TEST` are added, and no others. The optimizer state that a client keeps is in it as
        `OPTIMIZER`, and does not leave the client.
      kept: What the client keeps for its next round; None where it keeps nothing.
    """

    uploads: Mapping[str, object]
    report: Mapping[str, object]
    kept: object = None


@dataclasses.dataclass(frozen=True, eq=False)
class ClientWork:
    """A client's part of a round.

    Attributes:
      example_spec: `tf.TensorSpec` structure of a single example.
      compute: `(received, client) -> ClientResult` in TensorFlow. `received` has by name what the server sends to this
        client. `client` has `examples` (a data set of single examples when deployed, and the same as stacked tensors in
        simulation; `client_work.stack` makes tensors of either), `client_id`, `seed int32 [2]`, `test_examples` if the
        client is to test its own model, the `fields`, and what it `keeps`.
      fields: The TFF types, by name, of what else a client knows of itself or receives from the coordinator.
      kept: TFF type of what a client keeps between rounds; None for nothing.
      optimizer: The optimizer state of a client before its first round, a structure of arrays; None where it keeps no
        such state.
      values: `(Cohort) -> {name: values}`, the fields that a simulation sets by itself, for each client of a round.
    """

    example_spec: Mapping
    compute: Callable[[Mapping, Mapping], ClientResult]
    fields: Mapping[str, object] = dataclasses.field(default_factory=dict)
    kept: tff.Type | None = None
    optimizer: object = None
    values: Callable[[Cohort], Mapping] = lambda cohort: {}

    @property
    def keeps(self) -> dict[str, tff.Type]:
        """What a client keeps between rounds, by its name in the client's input."""
        found = {} if self.kept is None else {KEPT: self.kept}
        if self.optimizer is not None:
            found[OPTIMIZER] = arrays_type(self.optimizer)
        return found


def arrays_type(values) -> tff.Type:
    """Returns the TFF type of a structure of arrays."""
    return tff.to_type(tf.nest.map_structure(lambda leaf: tff.TensorType(leaf.dtype.type, leaf.shape), values))


def keyed(key, value) -> collections.OrderedDict:
    """Returns an upload for an aggregation by key: `<key=int32, value=T>`."""
    return collections.OrderedDict(key=key, value=value)


# How many examples are batched at a time. It is small because TensorFlow fuses a `map` and the `batch` after it into
# one operation, which reserves memory for a whole batch even if fewer examples come.
_AT_A_TIME = 1024


def sequence_type(example_spec) -> tff.SequenceType:
    """Returns the TFF type of a client's examples: a sequence of single examples."""
    return tff.SequenceType(tff.types.tensorflow_to_type(example_spec))


def stacked_type(sequence: tff.SequenceType) -> tff.StructType:
    """Returns the TFF type of a client's examples stacked: tensors `[?, ...]`, as simulations have them."""
    return tff.to_type(stacked(sequence.element))


def rows_of(x, rows):
    """Returns some of the examples `x [n, ...]`, or of each of several inputs.

    Args:
      x: A tensor, or a structure of tensors.
      rows: A slice, or `int32 [m]`.
    """
    return tf.nest.map_structure(lambda leaf: leaf[rows] if isinstance(rows, slice) else tf.gather(leaf, rows), x)


def stack(examples):
    """Stacks a sequence of single examples into one structure of tensors `[n, ...]`.

    Args:
      examples: A finite data set of unbatched examples, which may be empty; or tensors that are stacked already, which
        are returned as they are.

    Returns:
      The same structure with a leading dimension n (0 if there are none).
    """
    if not isinstance(examples, tf.data.Dataset):
        return examples

    def nothing(spec):
        return tf.zeros([0, *spec.shape], spec.dtype)

    empty = tf.nest.map_structure(nothing, examples.element_spec)

    def append(rows, batch):
        return tf.nest.map_structure(lambda first, more: tf.concat([first, more], 0), rows, batch)

    return examples.batch(_AT_A_TIME).reduce(empty, append)


def as_features(x):
    """Returns raw examples as float32: pixels (uint8) are divided by 255, other numbers are unchanged."""
    return tf.cast(x, tf.float32) / 255.0 if x.dtype == tf.uint8 else tf.cast(x, tf.float32)


def feature_rows(example_spec, x):
    """Returns features as rows; those of several inputs are side by side in the order of their names.

    Args:
      example_spec: The spec of one example.
      x: Features `[n, ...]` of any number type, or a structure of them.

    Returns:
      `[n, d]`, in the array's own type if there is one array, else `float32`.
    """
    sizes = [leaf.shape.num_elements() for leaf in tf.nest.flatten(example_spec["x"])]
    rows = [tf.reshape(leaf, [-1, size]) for leaf, size in zip(tf.nest.flatten(x), sizes, strict=True)]
    return rows[0] if len(rows) == 1 else tf.concat([tf.cast(each, tf.float32) for each in rows], 1)


def num_features(example_spec) -> int:
    """Returns d, the number of an example's features over all its inputs."""
    return sum(leaf.shape.num_elements() for leaf in tf.nest.flatten(example_spec["x"]))


def visiting_order(count, seed):
    """Draws a permutation of the numbers below `count`.

    It sorts random numbers, because device runtimes lack TensorFlow's own shuffle.

    Args:
      count: `int32`, n.
      seed: `int32 [2]`.

    Returns:
      `int32 [n]`, decided by the seed.
    """
    drawn = tf.random.stateless_uniform([count], seed, minval=None, maxval=None, dtype=tf.int32)
    return tf.argsort(drawn, stable=True)
