"""Work with an autoencoder that is one vector: encode images, and train it by Adam or SGD to reproduce them.

A client does both (FLT Alg. 2 lines 4 and 7); the server trains the encoder that it broadcasts with the same step.
"""

import collections

import tensorflow as tf

from tffcl.client_work.client_work import visiting_order
from tffcl.client_work.evaluation import in_batches
from tffcl.models.autoencoder import FlatAutoencoder
from tffcl.models.graph_function import traced_once
from tffcl.trace_cache import built_once

# Adam's defaults, as in PyTorch.
_FIRST_DECAY, _SECOND_DECAY, _EPSILON = 0.9, 0.999, 1e-8


@built_once
def build_encode(autoencoder: FlatAutoencoder):
    """Builds a tf.function `(vector float32[P], x uint8[n, ...]) -> codes float32[n, latent]`; n may be 0."""

    @traced_once
    def encode(vector, x):
        tensors = autoencoder.unravel(vector)

        def codes(batch):
            return autoencoder.encode(tensors, autoencoder.preprocess(batch))

        return in_batches(codes, x, tf.float32, [autoencoder.latent])

    return encode


def start_steps(vector) -> collections.OrderedDict:
    """Returns the first state of `build_steps`: the parameters, Adam's moments of 0, and the number of steps so far."""
    vector = tf.convert_to_tensor(vector)
    zeros = tf.zeros_like(vector)
    return collections.OrderedDict(vector=vector, first=zeros, second=zeros, steps=0)


def build_steps(autoencoder: FlatAutoencoder, batch_size: int, learning_rate: float, optimizer: str = "adam"):
    """Builds steps on the mean squared error between images and their reconstructions.

    Args:
      autoencoder: What is trained.
      batch_size: Examples a step; the last batch may be smaller.
      learning_rate: Step size.
      optimizer: A name in `OPTIMIZERS`; SGD has no moments and leaves those of the state at 0.

    Returns:
      A tf.function `(state, x uint8[n, ...], order int32[m]) -> (state, loss float32)` that visits the examples `order`
      of x once, batch by batch; `state` as in `start_steps`, `loss` the sum of the examples' errors, each as it was
      before the step on its batch.
    """

    def gradient(vector, features):
        with tf.GradientTape() as tape:
            tape.watch(vector)
            loss = autoencoder.loss(autoencoder.unravel(vector), features)
        return tape.gradient(loss, vector), loss

    def moved_by_adam(vector, slope, first, second, steps):
        first = _FIRST_DECAY * first + (1.0 - _FIRST_DECAY) * slope
        second = _SECOND_DECAY * second + (1.0 - _SECOND_DECAY) * tf.square(slope)
        age = tf.cast(steps, tf.float32)
        root = tf.sqrt(second) / tf.sqrt(1.0 - _SECOND_DECAY**age) + _EPSILON
        return vector - learning_rate / (1.0 - _FIRST_DECAY**age) * first / root, first, second

    def moved_by_sgd(vector, slope, first, second, steps):
        del steps
        return vector - learning_rate * slope, first, second

    moved = moved_by_adam if optimizer == "adam" else moved_by_sgd

    @tf.function(autograph=False)
    def take_steps(state, x, order):
        count = tf.size(order)

        def step(start, vector, first, second, steps, total):
            chosen = order[start : tf.minimum(start + batch_size, count)]
            # By batches, unlike a model's features: as floats, all images could take more memory than a client has.
            slope, loss = gradient(vector, autoencoder.preprocess(tf.gather(x, chosen)))
            steps += 1
            vector, first, second = moved(vector, slope, first, second, steps)
            total += loss * tf.cast(tf.size(chosen), tf.float32)
            return start + batch_size, vector, first, second, steps, total

        _, vector, first, second, steps, total = tf.while_loop(
            lambda start, *_: start < count, step, (0, *state.values(), 0.0), parallel_iterations=1
        )
        return collections.OrderedDict(vector=vector, first=first, second=second, steps=steps), total

    return take_steps


@built_once
def build_fine_tune(
    autoencoder: FlatAutoencoder, epochs: int, batch_size: int, learning_rate: float, optimizer: str = "adam"
):
    """Builds the client's fine-tuning: epochs over its own images in an order drawn from the seed.

    Args:
      autoencoder: What is trained.
      epochs: Passes over the local data (J in FLT).
      batch_size: Examples a step.
      learning_rate: Step size.
      optimizer: A name in `OPTIMIZERS`; Adam's moments start at zero.

    Returns:
      A tf.function `(vector float32[P], x uint8[n, ...], seed int32[2]) -> vector float32[P]`; with n = 0 the vector is
      returned unchanged.
    """
    take_steps = build_steps(autoencoder, batch_size, learning_rate, optimizer)

    @traced_once
    def fine_tune(vector, x, seed):
        def epoch(number, state):
            order = visiting_order(tf.shape(x)[0], seed + [0, number])
            state, _ = take_steps(state, x, order)
            return number + 1, state

        _, state = tf.while_loop(
            lambda number, state: number < epochs, epoch, (0, start_steps(vector)), parallel_iterations=1
        )
        return state["vector"]

    return fine_tune
