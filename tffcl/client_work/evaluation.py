"""Local evaluation: what a model that is one vector answers on a client's examples."""

import tensorflow as tf

from tffcl.models.flat import FlatModel

_BATCH = 250  # small enough that a LeNet's activations stay in the cache


def build_predict(model: FlatModel):
    """Builds `(vector float32[P], x uint8[n, ...]) -> int32[n]`, the most likely class of every example.

    With n = 0 the result is empty.
    """

    @tf.function
    def predict(vector, x):
        tensors = model.unravel(vector)
        n = tf.shape(x)[0]
        batches = (n + _BATCH - 1) // _BATCH
        padded = tf.pad(x, [[0, batches * _BATCH - n]] + [[0, 0]] * len(model.input_shape))
        padded = tf.reshape(padded, [batches, _BATCH, *model.input_shape])

        def classify(batch):
            logits = model.logits(tensors, model.preprocess(batch), None)
            return tf.argmax(logits, axis=1, output_type=tf.int32)

        answers = tf.map_fn(classify, padded, fn_output_signature=tf.int32, parallel_iterations=1)
        return tf.reshape(answers, [-1])[:n]

    return predict


def build_count_correct(model: FlatModel):
    """Builds `(vector float32[P], x uint8[n, ...], y int32[n]) -> int32`, how many examples the model classifies right."""
    predict = build_predict(model)

    @tf.function
    def count_correct(vector, x, y):
        return tf.reduce_sum(tf.cast(tf.equal(predict(vector, x), y), tf.int32))

    return count_correct
