"""Multi-layer perceptron with one hidden layer (MLP-200 of FLT, MLP-2048 of StoCFL)."""

import math

import tensorflow as tf

from tffcl.models import flat, layer_weights, layers
from tffcl.validation import Count, Fraction, validated


@flat.architecture
@validated
def build_mlp(
    input_shape,
    num_classes,
    *,
    hidden: Count = 200,
    dropout: Fraction = 0.0,
    normalization=(0.0, 1.0),
    initialization: layer_weights.Initialization = "torch_default",
    seed=0,
) -> flat.FlatModel:
    """Builds input - `hidden` ReLU units - `num_classes`. Arguments as in `flat.build_flat_model` and:

    Args:
      hidden: Number of hidden units.
      dropout: Rate of dropout on the hidden units. FLT's code has 0.5, its paper names none.

    Raises:
      UserError: If `hidden` is not positive or `dropout` not from 0 to below 1.
    """
    inputs = math.prod(input_shape)
    weights = [*layer_weights.dense("hidden", inputs, hidden), *layer_weights.dense("output", hidden, num_classes)]

    def logits(tensors, features, seed):
        x = layers.connect(tf.reshape(features, [-1, inputs]), *tensors[:2])
        # Before ReLU, as in FLT's code, and after it are the same function.
        x = tf.nn.relu(layers.dropout(x, dropout, seed, 0))
        return layers.connect(x, *tensors[2:])

    return flat.build_flat_model(
        "mlp", weights, logits, input_shape=input_shape, num_classes=num_classes,
        normalization=normalization, initialization=initialization, seed=seed,
    )  # fmt: skip
