"""The papers' networks. The keyword-only parameters of their builders are the keys of [model]. They are read without
TensorFlow, which is imported only when a model is built.

Each builder returns a `flat.FlatModel` of classes, or of one number if `num_classes` is None. Arguments of all builders
are as in `flat.build_flat_model`; a builder's docstring describes only its own.
"""

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import msgspec

from tffcl.errors import UserError
from tffcl.models import layer_weights
from tffcl.models.layer_weights import Initialization, architecture
from tffcl.validation import Count, Fraction, validated

_GROUPS = 32  # of every normalization of ResNet-9 (Table 11)
_LENET_HIDDEN = (120, 84)
_LEAF_UNITS, _FEMNIST_UNITS = 2048, 128
_Layers = Annotated[Literal[2, 3], msgspec.Meta(description="2 (StoCFL's paper) or 3 (the authors' code)")]


def _classifier(name: str, weights: Sequence[layer_weights.Weight], logits: Callable, **given):
    """Builds a model of `logits(layers, tensors, features, seed)`, `layers` being the module of that name."""
    from tffcl.models import flat, layers

    return flat.build_flat_model(name, weights, lambda *values: logits(layers, *values), **given)


@architecture
@validated
def build_mlp(
    input_shape,
    num_classes,
    *,
    hidden: Count = 200,
    dropout: Fraction = 0.0,
    normalization=(0.0, 1.0),
    initialization: Initialization = "torch_default",
    seed=0,
):
    """Builds input - `hidden` ReLU units - `num_classes` (MLP-200 of FLT, MLP-2048 of StoCFL).

    Args:
      hidden: Number of hidden units.
      dropout: Rate of dropout on the hidden units. FLT's code has 0.5, its paper names none.

    Raises:
      UserError: If `hidden` is not positive or `dropout` not from 0 to below 1.
    """
    inputs = math.prod(input_shape)
    weights = [
        *layer_weights.dense("hidden", inputs, hidden),
        *layer_weights.dense("output", hidden, layer_weights.outputs_of(num_classes)),
    ]

    def logits(layers, tensors, features, seed):
        x = layers.connect(layers.flatten(features), *tensors[:2])
        # Dropout before ReLU, as in FLT's code, gives the same function as after it.
        x = layers.relu(layers.dropout(x, dropout, seed, 0))
        return layers.connect(x, *tensors[2:])

    given = {"normalization": normalization, "initialization": initialization, "seed": seed}
    return _classifier("mlp", weights, logits, input_shape=input_shape, num_classes=num_classes, **given)


def _build_lenet(name: str, input_shape, num_classes, *, hidden: Sequence[int], **given):
    """Builds conv 5x5 to 6, pool 2, conv 5x5 to 16, pool 2 and dense layers of `hidden` units; ReLU between.

    Raises:
      UserError: If the image is smaller than 16x16, where nothing is left after the second pooling.
    """
    height, width, channels = check_image(name, input_shape, least=16)
    sizes = [((height - 4) // 2 - 4) // 2 * (((width - 4) // 2 - 4) // 2) * 16, *hidden]
    sizes.append(layer_weights.outputs_of(num_classes))
    names = [*(f"dense{number}" for number in range(1, len(hidden) + 1)), "output"]
    weights = [*layer_weights.conv("conv1", 5, channels, 6), *layer_weights.conv("conv2", 5, 6, 16)]
    for layer, inputs, outputs in zip(names, sizes, sizes[1:]):
        weights += layer_weights.dense(layer, inputs, outputs)

    def logits(layers, tensors, features, seed):
        del seed  # no dropout
        x = layers.pooled_convolve(layers.pooled_convolve(features, *tensors[:2]), *tensors[2:4])
        x = layers.flatten(x)
        for kernel, bias in zip(tensors[4:-2:2], tensors[5:-2:2]):
            x = layers.relu(layers.connect(x, kernel, bias))
        return layers.connect(x, *tensors[-2:])

    return _classifier(name, weights, logits, input_shape=input_shape, num_classes=num_classes, **given)


@architecture
@validated
def build_lenet5(
    input_shape, num_classes, *, normalization=(0.0, 1.0), initialization: Initialization = "torch_default", seed=0
):
    """Builds LeNet-5 as PACFL and FLIS use it (PACFL Table 10).

    That is conv 5x5 to 6, pool 2, conv 5x5 to 16, pool 2, dense 120, 84, `num_classes`; ReLU between: 44,426 parameters
    on 28x28x1 and 62,006 on 32x32x3 with 10 classes.

    Raises:
      UserError: If the image is smaller than 16x16.
    """
    given = {"normalization": normalization, "initialization": initialization, "seed": seed}
    return _build_lenet("lenet5", input_shape, num_classes, hidden=_LENET_HIDDEN, **given)


@architecture
@validated
def build_stocfl_cifar_cnn(
    input_shape,
    num_classes,
    *,
    dense_layers: _Layers = 2,
    normalization=(0.0, 1.0),
    initialization: Initialization = "torch_default",
    seed=0,
):
    """Builds StoCFL's network for CIFAR-10 (section 3.1): conv 5x5 to 6, pool 2, conv 5x5 to 16, pool 2, dense 120,
    `num_classes`; ReLU between.

    The paper has "two convolutional layers followed by two fully connected layers" and gives no widths; the authors'
    code has three dense layers, which is LeNet-5. Two layers are therefore LeNet-5 without its layer of 84 units:
    52,202 parameters on 32x32x3 with 10 classes, 62,006 with three.

    Args:
      dense_layers: 2 as in the paper, 3 as in the authors' code.

    Raises:
      UserError: If the image is smaller than 16x16 or `dense_layers` is neither 2 nor 3.
    """
    hidden = _LENET_HIDDEN[: dense_layers - 1]
    given = {"normalization": normalization, "initialization": initialization, "seed": seed}
    return _build_lenet("stocfl_cifar_cnn", input_shape, num_classes, hidden=hidden, **given)


@architecture
@validated
def build_resnet9(
    input_shape, num_classes, *, normalization=(0.0, 1.0), initialization: Initialization = "torch_default", seed=0
):
    """Builds ResNet-9 with group normalization, PACFL's model for CIFAR-100 (PACFL Table 11).

    That is eight padded 3x3 convolutions with GroupNorm and ReLU, two of them in each residual, and a dense layer:
    64 - 128, pool 2 - residual of 128, 128 - 256, pool 2 - 512, pool 2 - residual of 512, 512 - pool 4 - `num_classes`,
    where a residual is block(x) + x. 6,621,540 parameters on 32x32x3 with 100 classes. Table 11 names no padding, and
    its last sum is of blocks 4 and 5, whose shapes differ; as in the authors' code the convolutions are padded and the
    sum is of blocks 5 and 6.

    Raises:
      UserError: If the image is smaller than 32x32, where nothing is left after the last pooling.
    """
    height, width, channels = check_image("resnet9", input_shape, least=32)
    names = ("block1", "block2", "block3a", "block3b", "block4", "block5", "block6a", "block6b")
    sizes = (channels, 64, 128, 128, 128, 256, 512, 512, 512)
    weights = []
    for name, inputs, outputs in zip(names, sizes, sizes[1:]):
        weights += [*layer_weights.conv(name, 3, inputs, outputs), *layer_weights.group_norm(name, outputs)]
    weights += layer_weights.dense("output", height // 32 * (width // 32) * 512, layer_weights.outputs_of(num_classes))

    def logits(layers, tensors, features, seed):
        del seed  # no dropout
        blocks = [tensors[first : first + 4] for first in range(0, 32, 4)]

        def apply(x, block, pooled=False):
            kernel, bias, scale, offset = block
            x = layers.convolve(x, kernel, bias, padding="SAME")
            x = layers.group_norm(x, scale, offset, groups=_GROUPS)
            # ReLU after pooling is the same function as before it, on a quarter of the values.
            return layers.relu(layers.pool(x) if pooled else x)

        x = apply(apply(features, blocks[0]), blocks[1], pooled=True)
        x = x + apply(apply(x, blocks[2]), blocks[3])
        x = apply(apply(x, blocks[4], pooled=True), blocks[5], pooled=True)
        x = x + apply(apply(x, blocks[6]), blocks[7])
        return layers.connect(layers.flatten(layers.pool(x, 4)), *tensors[32:])

    given = {"normalization": normalization, "initialization": initialization, "seed": seed}
    return _classifier("resnet9", weights, logits, input_shape=input_shape, num_classes=num_classes, **given)


@architecture
@validated
def build_leaf_cnn(
    input_shape, num_classes, *, normalization=(0.0, 1.0), initialization: Initialization = "torch_default", seed=0
):
    """Builds the network of LEAF (Caldas et al. 2018) for FEMNIST, in FLT's scenarios 3 and 4.

    That is conv 5x5 to 32, pool 2, conv 5x5 to 64, pool 2, dense 2048, `num_classes`; ReLU between. The convolutions
    are padded, so the image keeps its size. 6,603,710 parameters on 28x28x1 with FEMNIST's 62 classes, 6,572,975 with
    the 47 of FLT's scenario 4. FLT's code leaves the initial values to PyTorch, hence the default here; LEAF's own are
    `initialization="glorot"`.

    Raises:
      UserError: If the image is smaller than 4x4, where nothing is left after the second pooling.
    """
    height, width, channels = check_image("leaf_cnn", input_shape, least=4)
    weights = [
        *layer_weights.conv("conv1", 5, channels, 32),
        *layer_weights.conv("conv2", 5, 32, 64),
        *layer_weights.dense("dense", height // 4 * (width // 4) * 64, _LEAF_UNITS),
        *layer_weights.dense("output", _LEAF_UNITS, layer_weights.outputs_of(num_classes)),
    ]

    def logits(layers, tensors, features, seed):
        del seed  # no dropout
        x = layers.pooled_convolve(features, *tensors[:2], padding="SAME")
        x = layers.flatten(layers.pooled_convolve(x, *tensors[2:4], padding="SAME"))
        return layers.connect(layers.relu(layers.connect(x, *tensors[4:6])), *tensors[6:])

    given = {"normalization": normalization, "initialization": initialization, "seed": seed}
    return _classifier("leaf_cnn", weights, logits, input_shape=input_shape, num_classes=num_classes, **given)


@architecture
@validated
def build_stocfl_femnist_cnn(
    input_shape,
    num_classes,
    *,
    conv_dropout: Fraction = 0.25,
    dense_dropout: Fraction = 0.5,
    normalization=(0.0, 1.0),
    initialization: Initialization = "glorot",
    seed=0,
):
    """Builds StoCFL's network for FEMNIST (section 3.2, Table 3): conv 3x3 to 32, conv 3x3 to 64, pool 2, dropout,
    dense 128, dropout, `num_classes`; ReLU between.

    1,206,590 parameters on 28x28x1 with 62 classes, those of the EMNIST model in Reddi et al. 2021 (Adaptive Federated
    Optimization). StoCFL's paper has one dropout of 0.5 "between the convolutional layer and the fully connected layer"
    (`conv_dropout=0.5, dense_dropout=0.0`); the authors' code, like Reddi et al., has 0.25 there and 0.5 between the
    dense layers, which are the defaults. The paper's Xavier initialization is "glorot" here, with zero biases; the
    authors' code leaves the biases as PyTorch draws them.

    Args:
      conv_dropout: Rate of the dropout between the convolutions and the dense layers.
      dense_dropout: Rate of the dropout between the dense layers.

    Raises:
      UserError: If the image is smaller than 6x6, where nothing is left after the pooling, or a rate is not from 0 to
        below 1.
    """
    height, width, channels = check_image("stocfl_femnist_cnn", input_shape, least=6)
    weights = [
        *layer_weights.conv("conv1", 3, channels, 32),
        *layer_weights.conv("conv2", 3, 32, 64),
        *layer_weights.dense("dense", (height - 4) // 2 * ((width - 4) // 2) * 64, _FEMNIST_UNITS),
        *layer_weights.dense("output", _FEMNIST_UNITS, layer_weights.outputs_of(num_classes)),
    ]

    def logits(layers, tensors, features, seed):
        x = layers.relu(layers.convolve(features, *tensors[:2]))
        x = layers.pooled_convolve(x, *tensors[2:4])
        x = layers.dropout(layers.flatten(x), conv_dropout, seed, 0)
        x = layers.relu(layers.connect(x, *tensors[4:6]))
        return layers.connect(layers.dropout(x, dense_dropout, seed, 1), *tensors[6:])

    given = {"normalization": normalization, "initialization": initialization, "seed": seed}
    return _classifier("stocfl_femnist_cnn", weights, logits, input_shape=input_shape, num_classes=num_classes, **given)


def check_image(name: str, input_shape, *, least: int = 1) -> tuple[int, int, int]:
    """Splits an image's shape into its parts.

    Args:
      name: The model's name, for the message.
      input_shape: The shape of one raw example.
      least: The smallest height and width that the model can take.

    Returns:
      Height, width and channels.

    Raises:
      UserError: If this is not an image's shape, or the image is too small.
    """
    if len(input_shape) != 3 or min(input_shape) < 1:
        shape = "x".join(map(str, input_shape))
        raise UserError(f"{name} needs images of height x width x channels, not {shape}")
    height, width, channels = input_shape
    if min(height, width) < least:
        raise UserError(f"{name} needs images of at least {least}x{least}, not {height}x{width}; mlp takes any size")
    return height, width, channels


_UNROLLED = 32  # up to this length, unrolling takes 2/3 of a loop's time; beyond, tracing costs more than this saves


@architecture
@validated
def build_char_lstm(
    input_shape, num_classes, *, embedding: Count = 8, units: Count = 64, layers: Count = 1, normalization=None, seed=0
):
    """Builds an embedding, LSTM layers and a dense layer that predicts the next character at each position.

    LEAF's network for Shakespeare (Caldas et al. 2018) has `units=256, layers=2` and predicts at the last position
    alone. Recurrent kernels are orthogonal, forget biases are 1, and other kernels are Glorot's, as in Keras.

    Args:
      input_shape: `(L,)`: an example is a sequence of L whole numbers below `num_classes`.
      num_classes: The number of characters.
      embedding: The width of the embedding.
      units: The number of units in each LSTM layer.
      layers: The number of LSTM layers.
      normalization: Always None, since characters are not images.
      seed: The seed of the initial weights.

    Raises:
      UserError: If examples are images or not sequences, or labels are not classes.
    """
    if normalization is not None or len(input_shape) != 1 or num_classes is None:
        raise UserError(
            "char_lstm needs sequences of characters, int32 [n, L], whose labels are the next ones, as in dataset texts"
        )
    import tensorflow as tf

    from tffcl.models.flat import FlatModel

    draw, parts = tf.keras.initializers, tf.keras.layers
    embedded = draw.RandomUniform(-0.05, 0.05, seed=seed)
    stack = [parts.Embedding(num_classes, embedding, input_length=input_shape[0], embeddings_initializer=embedded)]
    for number in range(1, layers + 1):
        drawn = {
            "kernel_initializer": draw.GlorotUniform(seed + 2 * number),
            "recurrent_initializer": draw.Orthogonal(seed=seed + 2 * number + 1),
        }
        unrolled = input_shape[0] <= _UNROLLED
        stack.append(parts.LSTM(units, return_sequences=True, unroll=unrolled, name=f"lstm{number}", **drawn))
    stack.append(parts.Dense(num_classes, kernel_initializer=draw.GlorotUniform(seed + 1), name="output"))
    spec = (tf.TensorSpec([None, *input_shape], tf.int32), tf.TensorSpec([None, *input_shape], tf.int32))
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return FlatModel.from_keras(tf.keras.Sequential(stack), loss, spec, "char_lstm")
