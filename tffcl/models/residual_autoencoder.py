"""The layers of FLT's autoencoder for colour images; `autoencoder.build_residual_autoencoder` puts them together."""

import tensorflow as tf

from tffcl.models import layer_weights, layers

WIDE = 128  # channels at the residual layers, half of them one convolution nearer to the image
INNER = 32  # channels inside a residual layer
NARROW = 8  # channels next to the code


def _residual_stack(name: str) -> list[layer_weights.Weight]:
    """The kernels of two residual layers, which have no biases."""
    shapes = {"a": (3, WIDE, INNER), "b": (1, INNER, WIDE)}
    return [layer_weights.conv(f"{name}{layer}{part}", *shape)[0] for layer in (1, 2) for part, shape in shapes.items()]


def _apply_residual_stack(x, kernels):
    for inward, outward in (kernels[:2], kernels[2:]):
        inner = tf.nn.relu(layers.convolve(tf.nn.relu(x), inward, padding="SAME"))
        x = x + layers.convolve(inner, outward)
    return tf.nn.relu(x)


def _normalized_conv(name: str, size: int, inputs: int, outputs: int) -> list[layer_weights.Weight]:
    return [*layer_weights.conv(name, size, inputs, outputs), *layer_weights.group_norm(name, outputs)]


def _normalize(x, scale, offset):
    # At least four channels a group: alone in its group, a channel loses its mean, and the eight channels before the
    # code have little else to say.
    return layers.group_norm(x, scale, offset, groups=min(32, x.shape[-1] // 4))


def encoder_weights(channels: int, flattened: int, latent: int) -> list[layer_weights.Weight]:
    """The weights that `encode` takes, for images of `channels` and `flattened` values before the code."""
    return [
        *_normalized_conv("encoder_conv1", 4, channels, WIDE // 2),
        *_normalized_conv("encoder_conv2", 4, WIDE // 2, WIDE),
        *_normalized_conv("encoder_conv3", 3, WIDE, WIDE),
        *_residual_stack("encoder_residual"),
        *_normalized_conv("encoder_conv4", 1, WIDE, WIDE // 2),
        *_normalized_conv("encoder_conv5", 1, WIDE // 2, NARROW),
        *layer_weights.dense("encoder_output", flattened, latent),
    ]


def encode(tensors, images):
    """Codes `[n, latent]` of images from -1 to 1."""

    def block(x, weights, stride=1):
        kernel, bias, scale, offset = weights
        return _normalize(tf.nn.relu(layers.convolve(x, kernel, bias, stride=stride, padding="SAME")), scale, offset)

    x = block(block(images, tensors[:4], stride=2), tensors[4:8], stride=2)
    # No ReLU before the normalization: the residual layers begin with one.
    x = _normalize(layers.convolve(x, *tensors[8:10], padding="SAME"), *tensors[10:12])
    x = _apply_residual_stack(x, tensors[12:16])
    x = block(block(x, tensors[16:20]), tensors[20:24])
    return layers.connect(layers.flatten(x), *tensors[24:])


def decoder_weights(channels: int, flattened: int, latent: int) -> list[layer_weights.Weight]:
    """The weights that `decode` takes; arguments as in `encoder_weights`."""
    return [
        *layer_weights.dense("decoder_input", latent, flattened),
        *layer_weights.transposed_conv("decoder_conv1", 1, NARROW, WIDE // 2),
        *layer_weights.transposed_conv("decoder_conv2", 1, WIDE // 2, WIDE),
        *_residual_stack("decoder_residual"),
        *layer_weights.conv("decoder_conv3", 3, WIDE, WIDE),
        *layer_weights.transposed_conv("decoder_conv4", 4, WIDE, WIDE // 2),
        *layer_weights.transposed_conv("decoder_conv5", 4, WIDE // 2, channels),
    ]


def decode(tensors, codes, height: int, width: int):
    """Images from 0 to 1, `[n, 4 * height, 4 * width, channels]`, of codes `[n, latent]`."""
    x = tf.reshape(layers.connect(codes, *tensors[:2]), [-1, height, width, NARROW])
    x = tf.nn.relu(layers.convolve_transposed(x, *tensors[2:4], stride=1))
    x = tf.nn.relu(layers.convolve_transposed(x, *tensors[4:6], stride=1))
    x = _apply_residual_stack(x, tensors[6:10])
    x = tf.nn.relu(layers.convolve(x, *tensors[10:12], padding="SAME"))
    x = tf.nn.relu(layers.convolve_transposed(x, *tensors[12:14], stride=2))
    return tf.sigmoid(layers.convolve_transposed(x, *tensors[14:], stride=2))
