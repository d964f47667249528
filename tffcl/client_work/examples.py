"""From a client's example store to tensors."""

import tensorflow as tf

# Larger than any client: `batch` reserves no memory for what does not come.
_EVERYTHING = 2**30


def stack(examples: tf.data.Dataset):
    """Stacks a sequence of single examples into one structure of tensors `[n, ...]`.

    Args:
      examples: A finite data set of unbatched examples; may be empty.

    Returns:
      The same structure with a leading dimension n (0 if there are none).
    """

    def nothing(spec):
        return tf.zeros([0, *spec.shape], spec.dtype)

    empty = tf.nest.map_structure(nothing, examples.element_spec)
    return examples.batch(_EVERYTHING).reduce(empty, lambda _, batch: batch)
