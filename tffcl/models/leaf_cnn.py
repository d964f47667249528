"""The convolutional network of LEAF (Caldas et al. 2018) for FEMNIST, in FLT's scenarios 3 and 4."""

import tensorflow as tf

from tffcl.models import flat, image_shapes, layer_weights, layers
from tffcl.validation import validated

_UNITS = 2048


@flat.architecture
@validated
def build_leaf_cnn(
    input_shape, num_classes, *, normalization=(0.0, 1.0), initialization: layer_weights.Initialization = "torch_default", seed=0
) -> flat.FlatModel:
    """Builds conv 5x5 to 32, pool 2, conv 5x5 to 64, pool 2, dense 2048, `num_classes`; ReLU between.

    The convolutions are padded, so the image keeps its size. 6,603,710 parameters on 28x28x1 with FEMNIST's 62 classes,
    6,572,975 with the 47 of FLT's scenario 4. FLT's code leaves the initial values to PyTorch, hence the default here;
    LEAF's own are `initialization="glorot"`. Arguments as in `flat.build_flat_model`.

    Raises:
      UserError: If the image is smaller than 4x4, where nothing is left after the second pooling.
    """
    height, width, channels = image_shapes.check_image("leaf_cnn", input_shape, least=4)
    weights = [
        *layer_weights.conv("conv1", 5, channels, 32),
        *layer_weights.conv("conv2", 5, 32, 64),
        *layer_weights.dense("dense", height // 4 * (width // 4) * 64, _UNITS),
        *layer_weights.dense("output", _UNITS, num_classes),
    ]

    def convolve(x, kernel, bias):
        # ReLU after pooling is the same function as before it, on a quarter of the values.
        return tf.nn.relu(layers.pool(layers.convolve(x, kernel, bias, padding="SAME")))

    def logits(tensors, features, seed):
        del seed  # no dropout
        x = layers.flatten(convolve(convolve(features, *tensors[:2]), *tensors[2:4]))
        return layers.connect(tf.nn.relu(layers.connect(x, *tensors[4:6])), *tensors[6:])

    return flat.build_flat_model(
        "leaf_cnn", weights, logits, input_shape=input_shape, num_classes=num_classes,
        normalization=normalization, initialization=initialization, seed=seed,
    )  # fmt: skip
