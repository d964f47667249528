"""StoCFL's convolutional network for FEMNIST (section 3.2, Table 3)."""

import tensorflow as tf

from tffcl.models import flat, image_shapes, layer_weights, layers
from tffcl.validation import Fraction, validated

_UNITS = 128


@flat.architecture
@validated
def build_stocfl_femnist_cnn(
    input_shape,
    num_classes,
    *,
    conv_dropout: Fraction = 0.25,
    dense_dropout: Fraction = 0.5,
    normalization=(0.0, 1.0),
    initialization: layer_weights.Initialization = "glorot",
    seed=0,
) -> flat.FlatModel:
    """Builds conv 3x3 to 32, conv 3x3 to 64, pool 2, dropout, dense 128, dropout, `num_classes`; ReLU between.

    1,206,590 parameters on 28x28x1 with 62 classes, those of the EMNIST model in Reddi et al. 2021 (Adaptive Federated
    Optimization). StoCFL's paper has one dropout of 0.5 "between the convolutional layer and the fully connected layer"
    (`conv_dropout=0.5, dense_dropout=0.0`); the authors' code, like Reddi et al., has 0.25 there and 0.5 between the
    dense layers, which are the defaults. The paper's Xavier initialization is "glorot" here, with zero biases; the
    authors' code leaves the biases as PyTorch draws them. Arguments as in `flat.build_flat_model` and:

    Args:
      conv_dropout: Rate of the dropout between the convolutions and the dense layers.
      dense_dropout: Rate of the dropout between the dense layers.

    Raises:
      UserError: If the image is smaller than 6x6, where nothing is left after the pooling, or a rate is not from 0 to
        below 1.
    """
    height, width, channels = image_shapes.check_image("stocfl_femnist_cnn", input_shape, least=6)
    weights = [
        *layer_weights.conv("conv1", 3, channels, 32),
        *layer_weights.conv("conv2", 3, 32, 64),
        *layer_weights.dense("dense", (height - 4) // 2 * ((width - 4) // 2) * 64, _UNITS),
        *layer_weights.dense("output", _UNITS, num_classes),
    ]

    def logits(tensors, features, seed):
        x = tf.nn.relu(layers.convolve(features, *tensors[:2]))
        x = tf.nn.relu(layers.pool(layers.convolve(x, *tensors[2:4])))
        x = layers.dropout(layers.flatten(x), conv_dropout, seed, 0)
        x = tf.nn.relu(layers.connect(x, *tensors[4:6]))
        return layers.connect(layers.dropout(x, dense_dropout, seed, 1), *tensors[6:])

    return flat.build_flat_model(
        "stocfl_femnist_cnn", weights, logits, input_shape=input_shape, num_classes=num_classes,
        normalization=normalization, initialization=initialization, seed=seed,
    )  # fmt: skip
