"""The signature `label_histogram`: the shares of a client's labels."""

import tensorflow as tf

from tffcl.client_work.client_work import stack
from tffcl.models.flat import FlatModel
from tffcl.signatures.signature import Signature, build_signature, noised, own_noise
from tffcl.validation import NonNegative


def build_label_histogram(
    model: FlatModel, *, noise_multiplier: NonNegative = 0.0, noise_seed: int | None = None
) -> Signature:
    """Builds the signature `V = float32[C]`: the share of each class among a client's labels.

    Labels that the loss ignores, such as padding, do not count.

    Args:
      model: Decides the examples' type and C.
      noise_multiplier: z: every share gets Gaussian noise of this standard deviation. A client's shares have norm 1 at
        most, so this is the noise multiplier of leaving the client out. 0 is no noise.
      noise_seed: See `build_signature`.
    """

    classes = model.objective.classes_for("the signature label_histogram")

    @tf.function(autograph=False)
    def histogram(context, examples):
        labels = stack(examples)["y"]
        labels = tf.boolean_mask(labels, model.objective.counted(labels))
        counts = tf.math.bincount(labels, minlength=classes, maxlength=classes, dtype=tf.float32)
        counts = tf.ensure_shape(counts, [classes])
        shares = tf.math.divide_no_nan(counts, tf.reduce_sum(counts))
        return noised(shares, noise_multiplier, own_noise(context)) if noise_multiplier else shares

    key = classes, model.objective.ignored, noise_multiplier
    private = {"noise_multiplier": noise_multiplier, "noise_seed": noise_seed}
    return build_signature("label_histogram", model.example_spec, histogram, key=key, **private)
