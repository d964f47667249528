"""Forward passes of the layers that `flat` names weights for; images are `float32 [n, height, width, channels]`."""

import math

import tensorflow as tf


def flatten(x):
    """Images to vectors `[n, height * width * channels]`."""
    return tf.reshape(x, [-1, math.prod(x.shape[1:])])


def relu(x):
    """The positive part of each entry."""
    return tf.nn.relu(x)


def connect(x, kernel, bias):
    """A fully connected layer on `x [n, inputs]`."""
    return tf.matmul(x, kernel) + bias


def convolve(x, kernel, bias=None, *, stride: int = 1, padding: str = "VALID"):
    """A 2-D convolution; `bias` None stands for none."""
    x = tf.nn.conv2d(x, kernel, stride, padding)
    return x if bias is None else tf.nn.bias_add(x, bias)


def convolve_transposed(x, kernel, bias, *, stride: int):
    """A transposed 2-D convolution that makes images `stride` times as high and wide."""
    _, height, width, _ = x.shape
    shape = [tf.shape(x)[0], height * stride, width * stride, kernel.shape[2]]
    return tf.nn.bias_add(tf.nn.conv2d_transpose(x, kernel, shape, stride, "SAME"), bias)


# Channels from which 2x2 pooling is made of maxima of neighbours. Measured, ms a step, with TensorFlow's pooling and
# so: StoCFL's CNN 49.9 and 44.2, LEAF's with batches of 50 62.2 and 55.0, ResNet-9 241.8 and 238.8; but LeNet-5, with 6
# and 16 channels, 0.68 and 0.82.
_WIDE = 32


def pool(x, size: int = 2):
    """The maximum of every `size`x`size` patch; rows and columns left over at the end are dropped."""
    _, height, width, channels = x.shape
    if size == 2 and channels >= _WIDE and height % 2 == width % 2 == 0:
        return _halve(x)
    return tf.nn.max_pool2d(x, size, size, "VALID")


def pooled_convolve(x, kernel, bias, *, padding: str = "VALID"):
    """A 2-D convolution, pooling by 2 and ReLU, which after pooling is what it is before, on a quarter of the
    values."""
    return relu(pool(convolve(x, kernel, bias, padding=padding)))


def _halve(x):
    """The maximum of every 2x2 patch of images of even height and width.

    Value and gradient, which goes to the first of equal entries, are those of `tf.nn.max_pool2d` to the last bit, whose
    gradient is slow within loops.
    """
    _, height, width, channels = x.shape
    # Neighbouring columns are the halves of one longer row of channels, neighbouring rows those of one longer row of
    # columns.
    left, right = tf.split(tf.reshape(x, [-1, height, width // 2, 2 * channels]), 2, axis=3)
    columns = tf.reshape(tf.maximum(left, right), [-1, height // 2, width * channels])
    upper, lower = tf.split(columns, 2, axis=2)
    return tf.reshape(tf.maximum(upper, lower), [-1, height // 2, width // 2, channels])


def group_norm(x, scale, offset, *, groups: int, epsilon: float = 1e-5):
    """Normalizes every image's channels, group by group, to mean 0 and variance 1 (Wu and He 2018).

    Args:
      x: Images.
      scale: `[channels]`, multiplied after the normalization.
      offset: `[channels]`, added after it.
      groups: How many groups of neighbouring channels share mean and variance; a divisor of the channels.
      epsilon: Added to the variance; PyTorch's value.
    """
    _, height, width, channels = x.shape
    size = channels // groups
    x = tf.reshape(x, [-1, height * width, groups, size])
    mean, variance = tf.nn.moments(x, [1, 3], keepdims=True)
    # One multiply and one add per entry: ((x - mean) / std) * scale + offset.
    factor = tf.math.rsqrt(variance + epsilon) * tf.reshape(scale, [groups, size])
    x = x * factor + (tf.reshape(offset, [groups, size]) - mean * factor)
    return tf.reshape(x, [-1, height, width, channels])


def dropout(x, rate: float, seed, layer: int):
    """Drops entries of `x` with probability `rate` and scales the others up; nothing at inference.

    Args:
      x: Activations.
      rate: Probability of an entry to be dropped.
      seed: `int32 [2]` of this step, or None at inference.
      layer: Number of the dropout layer in its model: each draws its own mask.
    """
    if seed is None or not rate:
        return x
    return tf.nn.experimental.stateless_dropout(x, rate, seed=tf.random.experimental.stateless_fold_in(seed, layer))
