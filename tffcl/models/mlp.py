"""Multi-layer perceptron with one hidden layer (MLP-200 of FLT, MLP-2048 of StoCFL)."""

import math

import tensorflow as tf

from tffcl.errors import UserError
from tffcl.models import flat


def build_mlp(input_shape, num_classes, *, hidden=200, normalization=(0.0, 1.0), initialization="torch_default", seed=0) -> flat.FlatModel:
    """Builds input - `hidden` ReLU units - `num_classes`. Arguments as in `flat.build_flat_model`.

    Raises:
      UserError: If `hidden` is not positive.
    """
    if int(hidden) != hidden or hidden < 1:
        raise UserError(f"hidden is {hidden}; it must be a whole number from 1")
    inputs = math.prod(input_shape)
    weights = [*flat.dense("hidden", inputs, int(hidden)), *flat.dense("output", int(hidden), num_classes)]

    def logits(tensors, features, seed):
        del seed  # no dropout
        x = tf.reshape(features, [-1, inputs])
        x = tf.nn.relu(tf.matmul(x, tensors[0]) + tensors[1])
        return tf.matmul(x, tensors[2]) + tensors[3]

    return flat.build_flat_model(
        "mlp", weights, logits, input_shape=input_shape, num_classes=num_classes,
        normalization=normalization, initialization=initialization, seed=seed,
    )  # fmt: skip
