"""LeNet-5 as PACFL and FLIS use it (PACFL Table 10): two valid 5x5 convolutions and three dense layers."""

import tensorflow as tf

from tffcl.errors import UserError
from tffcl.models import flat


def build_lenet5(input_shape, num_classes, *, normalization=(0.0, 1.0), initialization="torch_default", seed=0) -> flat.FlatModel:
    """Builds LeNet-5: conv 5x5 to 6, pool 2, conv 5x5 to 16, pool 2, dense 120, 84, `num_classes`; ReLU between.

    44,426 parameters on 28x28x1 and 62,006 on 32x32x3 with 10 classes. Arguments as in `flat.build_flat_model`.

    Raises:
      UserError: If the image is smaller than 16x16, where nothing is left after the second pooling.
    """
    height, width, channels = input_shape
    if min(height, width) < 16:
        raise UserError(f"lenet5 needs images of at least 16x16, not {height}x{width}; mlp takes any size")
    flattened = ((height - 4) // 2 - 4) // 2 * (((width - 4) // 2 - 4) // 2) * 16
    weights = [
        *flat.conv("conv1", 5, channels, 6),
        *flat.conv("conv2", 5, 6, 16),
        *flat.dense("dense1", flattened, 120),
        *flat.dense("dense2", 120, 84),
        *flat.dense("output", 84, num_classes),
    ]

    def convolve(x, kernel, bias):
        # ReLU after pooling is the same function as before it, on a quarter of the values.
        x = tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "VALID"), bias)
        return tf.nn.relu(tf.nn.max_pool2d(x, 2, 2, "VALID"))

    def logits(tensors, features, seed):
        del seed  # no dropout
        kernel1, bias1, kernel2, bias2, *dense = tensors
        x = convolve(convolve(features, kernel1, bias1), kernel2, bias2)
        x = tf.reshape(x, [-1, flattened])
        x = tf.nn.relu(tf.matmul(x, dense[0]) + dense[1])
        x = tf.nn.relu(tf.matmul(x, dense[2]) + dense[3])
        return tf.matmul(x, dense[4]) + dense[5]

    return flat.build_flat_model(
        "lenet5", weights, logits, input_shape=input_shape, num_classes=num_classes,
        normalization=normalization, initialization=initialization, seed=seed,
    )  # fmt: skip
