"""FLT's convolutional autoencoders, whose encoders turn a client's images into short codes (FLT, section III)."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tffcl.errors import UserError
from tffcl.models import classifiers, flat, layer_weights, layers
from tffcl.validation import Count, validated

WIDE = 128  # channels at the residual layers; half as many one convolution nearer to the image
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
    # At least four channels in a group: a channel alone in its group would lose its mean, which is most of what the
    # eight channels before the code hold.
    return layers.group_norm(x, scale, offset, groups=min(32, x.shape[-1] // 4))


def _residual_encoder_weights(channels: int, flattened: int, latent: int) -> list[layer_weights.Weight]:
    """The weights that `_encode_residual` takes, for images of `channels` and `flattened` values before the code."""
    return [
        *_normalized_conv("encoder_conv1", 4, channels, WIDE // 2),
        *_normalized_conv("encoder_conv2", 4, WIDE // 2, WIDE),
        *_normalized_conv("encoder_conv3", 3, WIDE, WIDE),
        *_residual_stack("encoder_residual"),
        *_normalized_conv("encoder_conv4", 1, WIDE, WIDE // 2),
        *_normalized_conv("encoder_conv5", 1, WIDE // 2, NARROW),
        *layer_weights.dense("encoder_output", flattened, latent),
    ]


def _encode_residual(tensors, images):
    """Returns the codes `[n, latent]` of images with values from -1 to 1."""

    def block(x, weights, stride=1):
        kernel, bias, scale, offset = weights
        return _normalize(tf.nn.relu(layers.convolve(x, kernel, bias, stride=stride, padding="SAME")), scale, offset)

    x = block(block(images, tensors[:4], stride=2), tensors[4:8], stride=2)
    # No ReLU before the normalization: the residual layers begin with one.
    x = _normalize(layers.convolve(x, *tensors[8:10], padding="SAME"), *tensors[10:12])
    x = _apply_residual_stack(x, tensors[12:16])
    x = block(block(x, tensors[16:20]), tensors[20:24])
    return layers.connect(layers.flatten(x), *tensors[24:])


def _residual_decoder_weights(channels: int, flattened: int, latent: int) -> list[layer_weights.Weight]:
    """The weights that `_decode_residual` takes; arguments as in `_residual_encoder_weights`."""
    return [
        *layer_weights.dense("decoder_input", latent, flattened),
        *layer_weights.transposed_conv("decoder_conv1", 1, NARROW, WIDE // 2),
        *layer_weights.transposed_conv("decoder_conv2", 1, WIDE // 2, WIDE),
        *_residual_stack("decoder_residual"),
        *layer_weights.conv("decoder_conv3", 3, WIDE, WIDE),
        *layer_weights.transposed_conv("decoder_conv4", 4, WIDE, WIDE // 2),
        *layer_weights.transposed_conv("decoder_conv5", 4, WIDE // 2, channels),
    ]


def _decode_residual(tensors, codes, height: int, width: int):
    """Returns images with values from 0 to 1, `[n, 4 * height, 4 * width, channels]`, from codes `[n, latent]`."""
    x = tf.reshape(layers.connect(codes, *tensors[:2]), [-1, height, width, NARROW])
    x = tf.nn.relu(layers.convolve_transposed(x, *tensors[2:4], stride=1))
    x = tf.nn.relu(layers.convolve_transposed(x, *tensors[4:6], stride=1))
    x = _apply_residual_stack(x, tensors[6:10])
    x = tf.nn.relu(layers.convolve(x, *tensors[10:12], padding="SAME"))
    x = tf.nn.relu(layers.convolve_transposed(x, *tensors[12:14], stride=2))
    return tf.sigmoid(layers.convolve_transposed(x, *tensors[14:], stride=2))


@dataclasses.dataclass(frozen=True, eq=False)
class FlatAutoencoder(flat.FlatWeights):
    """An autoencoder whose parameters are one float32 vector `[P]`.

    The number n of images must be at least 1: without images, TensorFlow's convolutions give the wrong shape.

    Attributes:
      preprocess: Maps raw images `uint8 [n, ...]` to features `float32 [n, ...]`, the same images from 0 to 1.
      encode: Maps `(tensors, features)` to codes `float32 [n, latent]`.
      decode: Maps `(tensors, codes)` to images `float32 [n, ...]` from 0 to 1.
      input_shape: The shape of one raw image.
      latent: The size of a code.
      initial: The initial parameters as a vector `float32 [P]`.
      key: Equal for autoencoders of one architecture, see `FlatModel.key`.
    """

    preprocess: Callable
    encode: Callable
    decode: Callable
    input_shape: tuple[int, ...]
    latent: int
    initial: np.ndarray
    key: tuple | None = None

    def loss(self, tensors, features):
        """Returns the mean squared error between `features [n, ...]` and their reconstructions."""
        decoded = self.decode(tensors, self.encode(tensors, features))
        return tf.reduce_mean(tf.math.squared_difference(decoded, features))


def _build(
    name: str, weights: Sequence[layer_weights.Weight], encode, decode, *, input_shape, latent, seed
) -> FlatAutoencoder:
    weights = tuple(weights)
    return FlatAutoencoder(
        name=name,
        weights=weights,
        preprocess=flat.build_preprocess((0.0, 1.0)),
        encode=encode,
        decode=decode,
        input_shape=tuple(int(size) for size in input_shape),
        latent=latent,
        initial=flat.FlatWeights(name, weights).ravel(layer_weights.initialize(weights, "torch_default", seed)),
    )


def _check_image(name: str, input_shape) -> tuple[int, int, int]:
    """Returns height and width after halving twice, and the channels."""
    height, width, channels = classifiers.check_image(name, input_shape)
    if height % 4 or width % 4:
        raise UserError(f"{name} halves images twice: height and width must be multiples of 4, not {height}x{width}")
    return height // 4, width // 4, channels


@layer_weights.architecture
@validated
def build_conv_autoencoder(input_shape, *, latent: Count = 128, seed=0) -> FlatAutoencoder:
    """Builds FLT's autoencoder for grey images: two convolutions and a dense layer each way.

    Encoder: conv 3x3 to 16, ReLU, pool 2, conv 3x3 to 4, ReLU, pool 2, dense `latent`. Decoder: dense, transposed conv
    2x2 to 16, ReLU, transposed conv 2x2 to the image, sigmoid. 51,577 parameters on 28x28x1 with codes of 128.

    Args:
      input_shape: The shape of one raw uint8 image; height and width are multiples of 4.
      latent: The size of a code (e in the paper).
      seed: The seed of the initial weights.

    Raises:
      UserError: If the image or `latent` does not fit.
    """
    height, width, channels = _check_image("conv_autoencoder", input_shape)
    flattened = height * width * 4
    weights = [
        *layer_weights.conv("encoder_conv1", 3, channels, 16),
        *layer_weights.conv("encoder_conv2", 3, 16, 4),
        *layer_weights.dense("encoder_output", flattened, latent),
        *layer_weights.dense("decoder_input", latent, flattened),
        *layer_weights.transposed_conv("decoder_conv1", 2, 4, 16),
        *layer_weights.transposed_conv("decoder_conv2", 2, 16, channels),
    ]

    def encode(tensors, features):
        x = features
        for kernel, bias in (tensors[:2], tensors[2:4]):
            x = tf.nn.relu(layers.pool(layers.convolve(x, kernel, bias, padding="SAME")))
        return layers.connect(layers.flatten(x), *tensors[4:6])

    def decode(tensors, codes):
        x = tf.reshape(layers.connect(codes, *tensors[6:8]), [-1, height, width, 4])
        x = tf.nn.relu(layers.convolve_transposed(x, *tensors[8:10], stride=2))
        return tf.sigmoid(layers.convolve_transposed(x, *tensors[10:], stride=2))

    return _build("conv_autoencoder", weights, encode, decode, input_shape=input_shape, latent=latent, seed=seed)


@layer_weights.architecture
@validated
def build_residual_autoencoder(input_shape, *, latent: Count = 128, seed=0) -> FlatAutoencoder:
    """Builds FLT's autoencoder for colour images: strided convolutions and two residual layers each way.

    Encoder: conv 4x4 stride 2 to 64, conv 4x4 stride 2 to 128, conv 3x3 to 128, two residual layers of 32, conv 1x1 to
    64, conv 1x1 to 8, dense `latent`; a normalization after every convolution but the residual ones. Decoder: the
    reverse, without normalization. 877,723 parameters on 32x32x3 with codes of 128. Differences from the authors' code:

    * Group instead of batch normalization, with as many parameters. The moving averages of batch normalization have no
      place in the vector; and with the batch's own statistics, which the authors' code uses even to encode, the code of
      an image would depend on the images encoded beside it.
    * A sigmoid on the decoded image, so that it is from 0 to 1; the authors' is unbounded and compared with images
      from -1 to 1. The encoder's input is from -1 to 1 in both.

    Arguments and errors as in `build_conv_autoencoder`.
    """
    height, width, channels = _check_image("residual_autoencoder", input_shape)
    flattened = height * width * NARROW
    encoder = _residual_encoder_weights(channels, flattened, latent)
    decoder = _residual_decoder_weights(channels, flattened, latent)

    def encode(tensors, features):
        return _encode_residual(tensors[: len(encoder)], 2.0 * features - 1.0)

    def decode(tensors, codes):
        return _decode_residual(tensors[len(encoder) :], codes, height, width)

    weights = [*encoder, *decoder]
    return _build("residual_autoencoder", weights, encode, decode, input_shape=input_shape, latent=latent, seed=seed)


@validated
def build_autoencoder(input_shape, *, latent: Count = 128, seed=0) -> FlatAutoencoder:
    """Builds the autoencoder that FLT uses for images of this shape: convolutional for grey, residual for colour.

    Arguments and errors as in `build_conv_autoencoder`.
    """
    grey = len(input_shape) == 3 and input_shape[2] == 1
    build = build_conv_autoencoder if grey else build_residual_autoencoder
    return build(input_shape, latent=latent, seed=seed)
