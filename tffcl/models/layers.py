"""Forward passes of the layers in `layer_weights`; images are `float32 [n, height, width, channels]`."""

import dataclasses
import math

import tensorflow as tf

from tffcl.errors import UserError
from tffcl.models.flat import FlatModel


def flatten(x):
    """Images to vectors `[n, height * width * channels]`."""
    return tf.reshape(x, [-1, math.prod(x.shape[1:])])


def relu(x):
    """The positive part of each entry."""
    return tf.nn.relu(x)


def connect(x, kernel, bias):
    """A fully connected layer on `x [n, inputs]`. Its product is computed in the type of the kernel, as in
    `convolve`."""
    product = _large_product if math.prod(kernel.shape) >= _LARGE else tf.matmul
    return tf.cast(product(tf.cast(x, kernel.dtype), kernel), x.dtype) + bias


# From this number of entries, the gradient of the input is computed with the kernel as the left factor. Measured in ms
# per step with batches of 10, by TensorFlow's gradient and by this: LEAF's CNN (6.4 million) 22.7 and 21.4, StoCFL's
# for FEMNIST (1.2 million) 8.3 and 7.8; LeNet-5 (30,720) 0.88 and 0.93.
_LARGE = 1_000_000


@tf.custom_gradient
def _large_product(x, kernel):
    """The product of a few rows `x` with a large kernel."""

    def gradient(slope):
        of_x = tf.transpose(tf.matmul(kernel, slope, transpose_b=True))
        return of_x, tf.matmul(x, slope, transpose_a=True)

    return tf.matmul(x, kernel), gradient


def convolve(x, kernel, bias=None, *, stride: int = 1, padding: str = "VALID"):
    """A 2-D convolution; with `bias` None it has no bias."""
    _, height, width, channels = x.shape
    y = tf.cast(x, kernel.dtype)
    if stride == 1 and padding == "SAME" and channels >= _MANY and height * width <= _FEW[kernel.dtype]:
        y = _convolve_few(y, kernel)
    else:
        y = tf.nn.conv2d(y, kernel, stride, padding)
    y = y if bias is None else tf.nn.bias_add(y, tf.cast(bias, kernel.dtype))
    return tf.cast(y, x.dtype)


# From this number of channels and up to this number of pixels, a padded convolution is computed as a product. Measured
# in ms for forward pass and both gradients of ten images, by TensorFlow's convolution and by this: 512 to 512 channels
# at 4x4 25.3 and 20.4, in bfloat16 17.0 and 6.0; 256 to 512 at 8x8 27.5 and 30.9, in bfloat16 11.1 and 6.9; 64 to 64
# about the same.
_MANY, _FEW = 128, {tf.float32: 16, tf.bfloat16: 64}


def _convolve_few(x, kernel):
    """A padded convolution of small images, computed as a product of all patches with the kernel; the kernel's gradient
    is a product, too. The kernel keeps its layout, which TensorFlow's convolution changes and changes back."""
    (_, height, width, _), (rows, columns, channels, outputs) = x.shape, kernel.shape

    @tf.custom_gradient
    def product(x, kernel):
        sides = [[(size - 1) // 2, size // 2] for size in (rows, columns)]
        padded = tf.pad(x, [[0, 0], *sides, [0, 0]])
        shifted = [padded[:, i : i + height, j : j + width] for i in range(rows) for j in range(columns)]
        patches = tf.reshape(tf.concat(shifted, 3), [-1, rows * columns * channels])
        y = tf.matmul(patches, tf.reshape(kernel, [-1, outputs]))

        def gradient(slope):
            of_kernel = tf.matmul(patches, tf.reshape(slope, [-1, outputs]), transpose_a=True)
            of_x = tf.nn.conv2d_transpose(slope, kernel, tf.shape(x), 1, "SAME")
            return of_x, tf.reshape(of_kernel, kernel.shape)

        return tf.reshape(y, [-1, height, width, outputs]), gradient

    return product(x, kernel)


def convolve_transposed(x, kernel, bias, *, stride: int):
    """A transposed 2-D convolution that makes images `stride` times as high and wide."""
    _, height, width, _ = x.shape
    shape = [tf.shape(x)[0], height * stride, width * stride, kernel.shape[2]]
    return tf.nn.bias_add(tf.nn.conv2d_transpose(x, kernel, shape, stride, "SAME"), bias)


# From this number of channels, 2x2 pooling is computed by maxima of neighbours. Measured in ms per step, by
# TensorFlow's pooling and by this: StoCFL's CNN 49.9 and 44.2, LEAF's with batches of 50 62.2 and 55.0, ResNet-9 241.8
# and 238.8; but LeNet-5, with 6 and 16 channels, 0.68 and 0.82.
_WIDE = 32


def pool(x, size: int = 2):
    """The maximum of every `size`x`size` patch; rows and columns left over at the end are dropped."""
    _, height, width, channels = x.shape
    if size == 2 and channels >= _WIDE and height % 2 == width % 2 == 0:
        return _halve(x)
    return tf.nn.max_pool2d(x, size, size, "VALID")


def pooled_convolve(x, kernel, bias, *, padding: str = "VALID"):
    """A 2-D convolution, pooling by 2 and ReLU. ReLU after pooling is the same function as before it, on a quarter of
    the values."""
    return relu(pool(convolve(x, kernel, bias, padding=padding)))


def _halve(x):
    """The maximum of every 2x2 patch of images of even height and width.

    Value and gradient are exactly those of `tf.nn.max_pool2d`, whose gradient is slow within loops. The gradient goes
    to the first of equal entries.
    """
    _, height, width, channels = x.shape
    # Neighbouring columns are the halves of one longer row of channels, neighbouring rows those of one longer row of
    # columns.
    left, right = tf.split(tf.reshape(x, [-1, height, width // 2, 2 * channels]), 2, axis=3)
    columns = tf.reshape(tf.maximum(left, right), [-1, height // 2, width * channels])
    upper, lower = tf.split(columns, 2, axis=2)
    return tf.reshape(tf.maximum(upper, lower), [-1, height // 2, width // 2, channels])


_EPSILON = 1e-5  # what PyTorch adds to the variance


def group_norm(x, scale, offset, *, groups: int):
    """Normalizes every image's channels, group by group, to mean 0 and variance 1 (Wu and He 2018).

    Args:
      x: Images.
      scale: `[channels]`, multiplied after the normalization.
      offset: `[channels]`, added after it.
      groups: How many groups of neighbouring channels share mean and variance; a divisor of the channels.
    """
    _, height, width, channels = x.shape

    def of_groups(sums):
        """Each group's mean of `sums [n, channels]` over positions, at its channels: `[n, 1, channels]`."""
        means = tf.reduce_mean(tf.reshape(sums, [-1, groups, channels // groups]), 2, keepdims=True) / (height * width)
        return tf.reshape(tf.repeat(means, channels // groups, axis=2), [-1, 1, channels])

    # All passes over the images are over rows of channels, which is four times as fast as over groups. So is the
    # gradient, for which TensorFlow's own derivation would take twice as long.
    @tf.custom_gradient
    def normalized(x, scale, offset):
        centred = x - of_groups(tf.reduce_sum(x, 1))
        factor = tf.math.rsqrt(of_groups(tf.reduce_sum(tf.square(centred), 1)) + _EPSILON)

        def gradient(slope):
            slopes, products = tf.reduce_sum(slope, 1), tf.reduce_sum(slope * centred, 1)
            along = factor**3 * of_groups(scale * products)
            of_x = slope * (factor * scale) - centred * along - factor * of_groups(scale * slopes)
            return of_x, tf.reduce_sum(factor[:, 0] * products, 0), tf.reduce_sum(slopes, 0)

        return centred * (factor * scale) + offset, gradient

    return tf.reshape(normalized(tf.reshape(x, [-1, height * width, channels]), scale, offset), tf.shape(x))


def dropout(x, rate: float, seed, layer: int):
    """Drops entries of `x` with probability `rate` and scales the others up; at inference `x` is unchanged.

    Args:
      x: Activations.
      rate: The probability that an entry is dropped.
      seed: `int32 [2]` of this step, or None at inference.
      layer: The number of the dropout layer in its model; each layer draws its own mask.
    """
    if seed is None or not rate:
        return x
    return tf.nn.experimental.stateless_dropout(x, rate, seed=tf.random.experimental.stateless_fold_in(seed, layer))


def in_precision(model: FlatModel, precision: str) -> FlatModel:
    """Returns a model as clients compute it in a step of training.

    bfloat16 has the range of float32 and 8 of its 24 binary digits. In it, kernels, their inputs and their products are
    rounded, in the forward pass and in its gradients; sums within a product are float32. Weights, normalization,
    outputs, loss and the gradients that are returned stay float32.

    Args:
      model: One of tffcl's own networks, unless the precision is float32.
      precision: A name in `choices.PRECISIONS`.

    Raises:
      UserError: If the model is of another origin.
    """
    if precision == "float32":
        return model
    if model.initialization is None:
        raise UserError(
            f"precision is {precision}, which tffcl's own networks can; {model.name} is of another origin: build its "
            'Keras layers with dtype="mixed_bfloat16", and leave precision out',
            key="precision",
        )

    def logits(tensors, features, seed):
        # A product is computed in the type of its kernel, see `connect`; vectors are biases, scales and offsets.
        pairs = zip(tensors, model.weights, strict=True)
        tensors = [tf.cast(each, precision) if len(weight.shape) > 1 else each for each, weight in pairs]
        return model.logits(tensors, features, seed)

    return dataclasses.replace(model, logits=logits, key=model.key and (*model.key, ("precision", precision)))
