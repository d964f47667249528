"""LeNet-5 as PACFL and FLIS use it (PACFL Table 10): two valid 5x5 convolutions and three dense layers."""

from collections.abc import Sequence

import tensorflow as tf

from tffcl.models import flat, image_shapes, layer_weights, layers
from tffcl.validation import validated


def build_lenet(
    name: str, input_shape, num_classes, *, hidden: Sequence[int], normalization, initialization, seed
) -> flat.FlatModel:
    """Builds conv 5x5 to 6, pool 2, conv 5x5 to 16, pool 2 and dense layers; ReLU between.

    Arguments as in `flat.build_flat_model` and:

    Args:
      hidden: Units of the dense layers before the last.

    Raises:
      UserError: If the image is smaller than 16x16, where nothing is left after the second pooling.
    """
    height, width, channels = image_shapes.check_image(name, input_shape, least=16)
    sizes = [((height - 4) // 2 - 4) // 2 * (((width - 4) // 2 - 4) // 2) * 16, *hidden, num_classes]
    names = [*(f"dense{number}" for number in range(1, len(hidden) + 1)), "output"]
    weights = [*layer_weights.conv("conv1", 5, channels, 6), *layer_weights.conv("conv2", 5, 6, 16)]
    for layer, inputs, outputs in zip(names, sizes, sizes[1:]):
        weights += layer_weights.dense(layer, inputs, outputs)

    def convolve(x, kernel, bias):
        # ReLU after pooling is the same function as before it, on a quarter of the values.
        return tf.nn.relu(layers.pool(layers.convolve(x, kernel, bias)))

    def logits(tensors, features, seed):
        del seed  # no dropout
        x = layers.flatten(convolve(convolve(features, *tensors[:2]), *tensors[2:4]))
        for kernel, bias in zip(tensors[4:-2:2], tensors[5:-2:2]):
            x = tf.nn.relu(layers.connect(x, kernel, bias))
        return layers.connect(x, *tensors[-2:])

    return flat.build_flat_model(
        name, weights, logits, input_shape=input_shape, num_classes=num_classes,
        normalization=normalization, initialization=initialization, seed=seed,
    )  # fmt: skip


@flat.architecture
@validated
def build_lenet5(
    input_shape, num_classes, *, normalization=(0.0, 1.0), initialization: layer_weights.Initialization = "torch_default", seed=0
) -> flat.FlatModel:
    """Builds LeNet-5: conv 5x5 to 6, pool 2, conv 5x5 to 16, pool 2, dense 120, 84, `num_classes`; ReLU between.

    44,426 parameters on 28x28x1 and 62,006 on 32x32x3 with 10 classes. Arguments as in `flat.build_flat_model`.

    Raises:
      UserError: If the image is smaller than 16x16.
    """
    return build_lenet(
        "lenet5", input_shape, num_classes, hidden=(120, 84),
        normalization=normalization, initialization=initialization, seed=seed,
    )  # fmt: skip
