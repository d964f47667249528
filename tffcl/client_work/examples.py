"""From a client's example store to tensors."""

import collections

import tensorflow as tf
import tensorflow_federated as tff

# Examples that are put together at a time. Not larger than any client could be: TensorFlow makes one operation of a `map` and
# the `batch` behind it, and that one reserves memory for a whole batch, also for what does not come.
_AT_A_TIME = 1024


def sequence_type(example_spec) -> tff.SequenceType:
    """Returns the TFF type of a client's examples: a sequence of single examples."""
    return tff.SequenceType(tff.types.tensorflow_to_type(example_spec))


def stacked_type(sequence: tff.SequenceType) -> tff.StructType:
    """Returns the TFF type of the same examples stacked: tensors `[?, ...]`, as simulations have them."""
    fields = tff.structure.iter_elements(sequence.element)
    return tff.to_type(
        collections.OrderedDict((name, tff.TensorType(kind.dtype, [None, *kind.shape])) for name, kind in fields)
    )


def stack(examples):
    """Stacks a sequence of single examples into one structure of tensors `[n, ...]`.

    Args:
      examples: A finite data set of unbatched examples, may be empty; or tensors that are stacked already, which come back as
        they are.

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
    """Returns raw examples as float32: pixels (uint8) divided by 255, other numbers as they are."""
    return tf.cast(x, tf.float32) / 255.0 if x.dtype == tf.uint8 else tf.cast(x, tf.float32)
