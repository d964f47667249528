"""The signature `label_histogram`: the shares of a client's labels."""

import tensorflow as tf

from tffcl.client_work.examples import stack
from tffcl.models.flat import FlatModel
from tffcl.signatures.signature import Signature, build_signature


def build_label_histogram(model: FlatModel) -> Signature:
    """Builds the signature `V = float32[C]`: which share of a client's labels is which class.

    Args:
      model: Decides the examples' type and C.
    """

    @tf.function(autograph=False)
    def histogram(context, examples):
        del context
        labels = tf.reshape(stack(examples)["y"], [-1])
        classes = model.num_classes
        counts = tf.math.bincount(labels, minlength=classes, maxlength=classes, dtype=tf.float32)
        counts = tf.ensure_shape(counts, [classes])
        return tf.math.divide_no_nan(counts, tf.reduce_sum(counts))

    return build_signature("label_histogram", model.example_spec, histogram)
