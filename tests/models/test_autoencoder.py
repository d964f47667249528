"""FLT's autoencoders: sizes, both halves against Keras, training."""

import numpy as np
import pytest
import tensorflow as tf

from tests.models import images, keras_models
from tffcl.errors import UserError
from tffcl.models import autoencoder as autoencoders

GREY, COLOUR = (28, 28, 1), (32, 32, 3)


SHAPES = [pytest.param(GREY, id="grey"), pytest.param(COLOUR, id="colour")]


@pytest.fixture(scope="module", params=SHAPES)
def autoencoder(request):
    return autoencoders.build_autoencoder(request.param, seed=1)


def test_parameter_counts():
    encoder = 9 * 16 + 16 + 9 * 16 * 4 + 4 + 196 * 128 + 128
    decoder = 128 * 196 + 196 + 4 * 4 * 16 + 16 + 4 * 16 + 1
    grey = autoencoders.build_autoencoder(GREY)
    assert (grey.name, grey.size) == ("conv_autoencoder", encoder + decoder) == ("conv_autoencoder", 51_577)

    stack = 2 * (9 * 128 * 32 + 32 * 128)
    encoder = 16 * 3 * 64 + 64 + 16 * 64 * 128 + 128 + 9 * 128 * 128 + 128 + stack
    encoder += 128 * 64 + 64 + 64 * 8 + 8 + 2 * (64 + 128 + 128 + 64 + 8) + 512 * 128 + 128
    decoder = 128 * 512 + 512 + 8 * 64 + 64 + 64 * 128 + 128 + stack
    decoder += 9 * 128 * 128 + 128 + 16 * 128 * 64 + 64 + 16 * 64 * 3 + 3
    colour = autoencoders.build_autoencoder(COLOUR)
    assert (colour.name, colour.size) == ("residual_autoencoder", encoder + decoder)
    assert colour.initial.size == encoder + decoder == 877_723
    layers = colour.layer_slices()
    assert layers["encoder_output"].stop == layers["decoder_input"].start == encoder


@pytest.mark.slow
def test_both_halves_are_the_keras_model_with_the_same_weights(autoencoder):
    build = keras_models.conv_autoencoder if autoencoder.input_shape == GREY else keras_models.residual_autoencoder
    vector = autoencoder.initial + 0.02 * np.random.default_rng(2).standard_normal(autoencoder.size).astype(np.float32)
    keras = keras_models.same_weights(build(), autoencoder, vector)
    tensors, batch = autoencoder.unravel(tf.constant(vector)), images.noise(3, autoencoder.input_shape)
    features = autoencoder.preprocess(batch)
    np.testing.assert_allclose(features, batch / 255, atol=1e-6)
    codes = autoencoder.encode(tensors, features)
    assert codes.shape == (3, 128)
    np.testing.assert_allclose(codes, keras.layers[0](features), rtol=1e-3, atol=1e-4)
    decoded = autoencoder.decode(tensors, codes)
    assert decoded.shape == batch.shape
    np.testing.assert_allclose(decoded, keras.layers[1](codes), rtol=1e-3, atol=1e-4)
    expected = np.mean((decoded.numpy() - batch / 255) ** 2)
    assert float(autoencoder.loss(tensors, features)) == pytest.approx(expected, rel=1e-5)


def test_decoded_images_are_from_0_to_1(autoencoder):
    codes = 100 * np.random.default_rng(3).standard_normal((5, 128)).astype(np.float32)
    decoded = autoencoder.decode(autoencoder.unravel(tf.constant(autoencoder.initial)), codes).numpy()
    assert decoded.min() >= 0 and decoded.max() <= 1 and np.ptp(decoded) > 0.1


def test_an_image_has_its_code_whatever_is_encoded_beside_it(autoencoder):
    tensors = autoencoder.unravel(tf.constant(autoencoder.initial))
    features = autoencoder.preprocess(images.noise(4, autoencoder.input_shape))
    together = autoencoder.encode(tensors, features)
    np.testing.assert_allclose(autoencoder.encode(tensors, features[2:3]), together[2:3], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("autoencoder", [SHAPES[0], pytest.param(COLOUR, id="colour")], indirect=True)
def test_thirty_steps_of_adam_reduce_the_error(digits, autoencoder):
    count = 16 if autoencoder.input_shape == GREY else 4
    features = autoencoder.preprocess(images.resized(digits[0][:count], autoencoder.input_shape))
    vector, adam = tf.Variable(autoencoder.initial), tf.keras.optimizers.Adam(1e-3)

    @tf.function(input_signature=[tf.TensorSpec((None, *autoencoder.input_shape))])
    def step(features):
        with tf.GradientTape() as tape:
            loss = autoencoder.loss(autoencoder.unravel(vector), features)
        adam.apply_gradients([(tape.gradient(loss, vector), vector)])
        return loss

    losses = [float(step(features)) for _ in range(30)]
    assert losses[-1] < 0.8 * losses[0]


def test_other_sizes_and_the_seed(digits):
    small = autoencoders.build_autoencoder((8, 8, 1), latent=5, seed=1)
    tensors = small.unravel(tf.constant(small.initial))
    codes = small.encode(tensors, small.preprocess(digits[0][:6]))
    assert codes.shape == (6, 5) and small.decode(tensors, codes).shape == (6, 8, 8, 1)
    np.testing.assert_array_equal(small.ravel([tensor.numpy() for tensor in tensors]), small.initial)
    again, other = (autoencoders.build_autoencoder((8, 8, 1), latent=5, seed=seed).initial for seed in (1, 2))
    np.testing.assert_array_equal(small.initial, again)
    assert np.abs(small.initial - other).max() > 0


@pytest.mark.parametrize(
    "shape, options, message",
    [
        ((30, 28, 1), {}, "conv_autoencoder halves images twice: .* multiples of 4, not 30x28"),
        ((2, 2, 3), {}, "residual_autoencoder halves images twice: .* not 2x2"),
        ((28, 28), {}, "height x width x channels, not 28x28"),
        ((28, 28, 1), {"latent": 0}, "latent is 0; it must be a whole number from 1"),
    ],
)
def test_bad_input(shape, options, message):
    with pytest.raises(UserError, match=message) as caught:
        autoencoders.build_autoencoder(shape, **options)
    assert "\n" not in str(caught.value)
