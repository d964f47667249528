"""Layers by themselves."""

import numpy as np
import pytest
import tensorflow as tf

from tests.models import images
from tffcl.models import layer_weights, layers

SEED = np.array([3, 4], np.int32)


@pytest.mark.parametrize("rate", [0.25, 0.5])
def test_dropout_drops_its_share_and_scales_the_rest(rate):
    dropped = layers.dropout(tf.fill([200, 100], 3.0), rate, SEED, 0).numpy()
    kept = dropped != 0
    np.testing.assert_allclose(dropped[kept], 3 / (1 - rate), rtol=1e-6)
    assert kept.mean() == pytest.approx(1 - rate, abs=0.02)
    assert dropped.mean() == pytest.approx(3, abs=0.1)


def test_every_dropout_layer_has_its_own_mask():
    first, again, other = (layers.dropout(tf.ones([500]), 0.5, SEED, layer).numpy() for layer in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert 0.3 < (first != other).mean() < 0.7


@pytest.mark.parametrize("groups", [1, 3, 12])
def test_group_norm_is_the_keras_layer(groups):
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((4, 5, 6, 12)) * 3 + 7).astype(np.float32)
    scale, offset = rng.standard_normal((2, 12)).astype(np.float32)
    keras = tf.keras.layers.GroupNormalization(groups, epsilon=1e-5)
    keras.build(x.shape)
    keras.set_weights([scale, offset])
    given, upstream = [tf.constant(each) for each in (x, scale, offset)], rng.standard_normal(x.shape)
    results = []
    for norm in (lambda *values: layers.group_norm(*values, groups=groups), lambda x, *_: keras(x)):
        with tf.GradientTape() as tape:
            tape.watch(given)
            normal = norm(*given)
        sources = given if not results else [given[0], *keras.trainable_weights]
        slopes = tape.gradient(normal, sources, output_gradients=tf.constant(upstream, tf.float32))
        results.append([normal, *slopes])
    for ours, kerass in zip(*results, strict=True):
        np.testing.assert_allclose(ours, kerass, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("size", [(3, 3), (2, 5)])
def test_a_convolution_of_small_images_is_tensorflows(size):
    rng = np.random.default_rng(4)
    given = [tf.constant(rng.standard_normal(shape), tf.float32) for shape in ((3, 4, 3, 128), (*size, 128, 6))]
    upstream, results = tf.constant(rng.standard_normal((3, 4, 3, 6)), tf.float32), []
    for convolve in (lambda *of: layers.convolve(*of, padding="SAME"), lambda *of: tf.nn.conv2d(*of, 1, "SAME")):
        with tf.GradientTape() as tape:
            tape.watch(given)
            found = convolve(*given)
        results.append([found, *tape.gradient(found, given, output_gradients=upstream)])
    for ours, tensorflows in zip(*results, strict=True):
        np.testing.assert_allclose(ours, tensorflows, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [0, 3])
def test_a_product_with_a_large_kernel_is_tensorflows(rows):
    rng = np.random.default_rng(0)
    x, slope = (tf.constant(rng.standard_normal([rows, columns]), tf.float32) for columns in (1000, 1024))
    kernel = tf.constant(rng.standard_normal([1000, 1024]), tf.float32)
    bias = tf.zeros([1024])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, kernel])
        ours, theirs = layers.connect(x, kernel, bias), tf.matmul(x, kernel)
    np.testing.assert_array_equal(ours, theirs)
    found, expected = (tape.gradient(y, [x, kernel], slope) for y in (ours, theirs))
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(found[1], expected[1])


def test_group_norm_sees_one_image_at_a_time():
    batch = images.noise(3, (4, 4, 8)).astype(np.float32)
    normal = layers.group_norm(batch, tf.ones(8), tf.zeros(8), groups=2)
    np.testing.assert_allclose(normal[1:2], layers.group_norm(batch[1:2], tf.ones(8), tf.zeros(8), groups=2), atol=1e-5)
    halves = normal.numpy().reshape(3, 16, 2, 4)
    np.testing.assert_allclose(halves.mean(axis=(1, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(halves.std(axis=(1, 3)), 1, atol=1e-4)


@pytest.mark.parametrize("shape", [(3, 8, 12, 32), (2, 6, 4, 33), (2, 7, 5, 32), (2, 6, 6, 5), (0, 4, 4, 32)])
def test_pooling_has_tensorflows_gradient_to_the_last_bit_also_where_entries_are_equal(shape):
    # Five values: most patches have two maxima or more.
    x = tf.constant(np.random.default_rng(2).integers(-2, 3, shape), tf.float32)
    results = []
    for pool in (layers.pool, lambda images: tf.nn.max_pool2d(images, 2, 2, "VALID")):
        with tf.GradientTape() as tape:
            tape.watch(x)
            pooled = pool(x)
        upstream = np.random.default_rng(3).standard_normal(pooled.shape).astype(np.float32)
        results.append([pooled, tape.gradient(pooled, x, output_gradients=tf.constant(upstream))])
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[0][1], results[1][1])


@pytest.mark.parametrize("make, sizes", [(layer_weights.conv, (8, 50)), (layer_weights.transposed_conv, (50, 8))])
def test_weights_of_convolutions_begin_as_in_pytorch(make, sizes):
    """Its fan in of a transposed convolution counts the outputs."""
    for initialization, bound in (("torch_default", 1 / np.sqrt(9 * 8)), ("glorot", np.sqrt(6 / (9 * 8 + 9 * 50)))):
        kernel, bias = layer_weights.initialize(make("block", 3, *sizes), initialization, 1)
        assert kernel.shape == (3, 3, 8, 50) and bias.shape == sizes[1:]
        assert 0.98 * bound < np.abs(kernel).max() <= bound and np.abs(bias).max() <= bound


@pytest.mark.parametrize("initialization", layer_weights.INITIALIZATIONS)
def test_group_norm_begins_with_scale_1_and_offset_0(initialization):
    kernel, _, scale, offset = layer_weights.initialize(
        [*layer_weights.conv("block", 3, 2, 5), *layer_weights.group_norm("block", 5)], initialization, 1
    )
    assert np.ptp(kernel) > 0
    np.testing.assert_array_equal([scale, offset], np.repeat([[1], [0]], 5, axis=1))
    assert scale.dtype == offset.dtype == np.float32
