"""The Gaussian mechanism of signatures that clients make private themselves, before they send them."""

import collections

import tensorflow as tf


def noised(value: tf.Tensor, noise_multiplier: float, seed: tf.Tensor | None) -> tf.Tensor:
    """Adds Gaussian noise of standard deviation z to every coordinate of a value of L2 norm 1 at most.

    Leaving the client out stands for a value of zero, which is 1 away at most: z is the noise multiplier of the release.

    Args:
      value: `float [...]`.
      noise_multiplier: z.
      seed: `int32 [2]`, of the client, in simulations that are to be repeated: the noise then follows from it and the value,
        and hides nothing from who knows it. None draws anew.
    """
    if seed is None:
        return value + noise_multiplier * tf.random.normal(tf.shape(value), dtype=value.dtype)
    weights = tf.range(1, tf.size(value) + 1)
    told = tf.reduce_sum(tf.reshape(tf.cast(value, tf.float32), [-1]) * tf.sin(tf.cast(weights, tf.float32)))
    # Of the value, too: the same client noises other data by other numbers, or their difference would be seen as it is.
    seed = tf.random.experimental.stateless_fold_in(seed, tf.bitcast(told, tf.int32))
    return value + noise_multiplier * tf.random.stateless_normal(tf.shape(value), seed, dtype=value.dtype)


def clipped(value: tf.Tensor, bound: float) -> tf.Tensor:
    """Scales a vector to an L2 norm of `bound` at most, in units of it: the result has norm 1 at most."""
    return value / tf.maximum(tf.norm(value), tf.cast(bound, value.dtype))


def noised_centres(centres: tf.Tensor, mask: tf.Tensor, noise_multiplier: float, clip: float, seed: tf.Tensor | None):
    """Makes the centres of a client private: each is scaled to a norm of `clip` at most, and all of them together get noise.

    The k centres, divided by clip √k, have norm 1 at most; a centre that is not there counts as zero, and is sent as the noise
    that it gets, since how many different examples a client has is no less its own.

    Args:
      centres: `float32 [k, e]`.
      mask: `bool [k]`, which there are.
      noise_multiplier: z; a coordinate of a centre gets noise of the standard deviation z · clip · √k.
      clip: The largest norm of a centre.
      seed: See `noised`.

    Returns:
      `<centres=float32[k,e],mask=bool[k]>` in the unit of the given ones, all of them there.
    """
    count = centres.shape[0]
    bound = tf.cast(clip, centres.dtype)
    norms = tf.norm(centres, axis=1, keepdims=True)
    kept = tf.where(mask[:, tf.newaxis], centres / tf.maximum(norms, bound), tf.zeros_like(centres))
    told = noised(kept / count**0.5, noise_multiplier, seed) * count**0.5 * bound
    return collections.OrderedDict(centres=told, mask=tf.ones_like(mask))
