"""Local evaluation: what a model that is one vector answers on a client's examples."""

import tensorflow as tf

from tffcl.models.flat import FlatModel

_BATCH = 250  # small enough that a LeNet's activations stay in the cache


def _build_inference(model: FlatModel, finish, dtype, shape=()):
    """Builds `(vector, x uint8[n, ...]) -> dtype[n, *shape]`, `finish` of the logits, batch by batch."""

    @tf.function
    def infer(vector, x):
        tensors = model.unravel(vector)
        n = tf.shape(x)[0]
        batches = (n + _BATCH - 1) // _BATCH
        padded = tf.pad(x, [[0, batches * _BATCH - n]] + [[0, 0]] * len(model.input_shape))
        padded = tf.reshape(padded, [batches, _BATCH, *model.input_shape])

        def answer(batch):
            return finish(model.logits(tensors, model.preprocess(batch), None))

        answers = tf.map_fn(answer, padded, fn_output_signature=dtype, parallel_iterations=1)
        return tf.reshape(answers, [-1, *shape])[:n]

    return infer


def build_predict(model: FlatModel):
    """Builds `(vector float32[P], x uint8[n, ...]) -> int32[n]`, the most likely class of every example.

    With n = 0 the result is empty.
    """
    return _build_inference(model, lambda logits: tf.argmax(logits, axis=1, output_type=tf.int32), tf.int32)


def build_probabilities(model: FlatModel):
    """Builds `(vector float32[P], x uint8[n, ...]) -> float32[n, classes]`, the softmax of the logits."""
    return _build_inference(model, tf.nn.softmax, tf.float32, (model.num_classes,))


def build_count_correct(model: FlatModel):
    """Builds `(vector float32[P], x uint8[n, ...], y int32[n]) -> int32`, how many examples the model classifies right."""
    predict = build_predict(model)

    @tf.function
    def count_correct(vector, x, y):
        return tf.reduce_sum(tf.cast(tf.equal(predict(vector, x), y), tf.int32))

    return count_correct


def build_mean_loss(model: FlatModel):
    """Builds `(vector float32[P], x uint8[n, ...], y int32[n]) -> float32`, the mean cross-entropy.

    With n = 0 the loss is 0; where the model's answers are not finite it is infinite.
    """
    log_probabilities = _build_inference(model, tf.nn.log_softmax, tf.float32, (model.num_classes,))

    @tf.function
    def mean_loss(vector, x, y):
        losses = -tf.gather(log_probabilities(vector, x), y, axis=1, batch_dims=1)
        mean = tf.math.divide_no_nan(tf.reduce_sum(losses), tf.cast(tf.size(y), tf.float32))
        return tf.where(tf.math.is_finite(mean), mean, float("inf"))

    return mean_loss
