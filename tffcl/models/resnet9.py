"""ResNet-9 with group normalization, PACFL's model for CIFAR-100 (PACFL Table 11)."""

import tensorflow as tf

from tffcl.models import flat, image_shapes, layer_weights, layers
from tffcl.validation import validated

_GROUPS = 32  # of every normalization (Table 11)


def _block(name: str, inputs: int, outputs: int) -> list[layer_weights.Weight]:
    return [*layer_weights.conv(name, 3, inputs, outputs), *layer_weights.group_norm(name, outputs)]


@flat.architecture
@validated
def build_resnet9(
    input_shape, num_classes, *, normalization=(0.0, 1.0), initialization: layer_weights.Initialization = "torch_default", seed=0
) -> flat.FlatModel:
    """Builds eight padded 3x3 convolutions with GroupNorm and ReLU, two of them in each residual, and a dense layer.

    64 - 128, pool 2 - residual of 128, 128 - 256, pool 2 - 512, pool 2 - residual of 512, 512 - pool 4 - `num_classes`,
    where a residual is block(x) + x. 6,621,540 parameters on 32x32x3 with 100 classes. Table 11 names no padding, and
    its last sum is of blocks 4 and 5, whose shapes differ; as in the authors' code the convolutions are padded and the
    sum is of blocks 5 and 6. Arguments as in `flat.build_flat_model`.

    Raises:
      UserError: If the image is smaller than 32x32, where nothing is left after the last pooling.
    """
    height, width, channels = image_shapes.check_image("resnet9", input_shape, least=32)
    weights = [
        *_block("block1", channels, 64),
        *_block("block2", 64, 128),
        *_block("block3a", 128, 128),
        *_block("block3b", 128, 128),
        *_block("block4", 128, 256),
        *_block("block5", 256, 512),
        *_block("block6a", 512, 512),
        *_block("block6b", 512, 512),
        *layer_weights.dense("output", height // 32 * (width // 32) * 512, num_classes),
    ]

    def logits(tensors, features, seed):
        del seed  # no dropout
        blocks = [tensors[first : first + 4] for first in range(0, 32, 4)]

        def apply(x, block, pooled=False):
            kernel, bias, scale, offset = block
            x = layers.convolve(x, kernel, bias, padding="SAME")
            x = layers.group_norm(x, scale, offset, groups=_GROUPS)
            # ReLU after pooling is the same function as before it, on a quarter of the values.
            return tf.nn.relu(layers.pool(x) if pooled else x)

        x = apply(apply(features, blocks[0]), blocks[1], pooled=True)
        x = x + apply(apply(x, blocks[2]), blocks[3])
        x = apply(apply(x, blocks[4], pooled=True), blocks[5], pooled=True)
        x = x + apply(apply(x, blocks[6]), blocks[7])
        return layers.connect(layers.flatten(layers.pool(x, 4)), *tensors[32:])

    return flat.build_flat_model(
        "resnet9", weights, logits, input_shape=input_shape, num_classes=num_classes,
        normalization=normalization, initialization=initialization, seed=seed,
    )  # fmt: skip
