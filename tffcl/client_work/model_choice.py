"""A client that chooses: which of several models is the best on its own examples."""

import tensorflow as tf

from tffcl.client_work.evaluation import build_count_correct, build_mean_loss
from tffcl.errors import unknown
from tffcl.models.flat import FlatModel

CRITERIA = ("loss", "accuracy")


def build_choose(model: FlatModel, criterion: str = "loss"):
    """Builds the choice among models (IFCA Alg. 1 line 5; FLIS Alg. 1 line 9).

    Args:
      model: Their architecture.
      criterion: "loss" (the least mean cross-entropy) or "accuracy" (the largest, as the FLIS and PACFL authors' code).

    Returns:
      A tf.function `(models float32[K, P], x uint8[n, ...], y int32[n]) -> <choice=int32, scores=float32[K]>`: the row of
      the best model, the first of equal ones, and every model's score, of which the least is the best (loss, or share of
      wrong answers). One model is not tried: its score is 0.

    Raises:
      UserError: If the criterion is unknown.
    """
    if criterion not in CRITERIA:
        raise unknown("criterion", criterion, CRITERIA)
    mean_loss, count_correct = build_mean_loss(model), build_count_correct(model)

    def score(vector, x, y):
        if criterion == "loss":
            return mean_loss(vector, x, y)
        right, counted = count_correct(vector, x, y)
        return 1.0 - tf.math.divide_no_nan(tf.cast(right, tf.float32), tf.cast(counted, tf.float32))

    @tf.function(autograph=False)
    def choose(models, x, y):
        def every():
            return tf.map_fn(lambda vector: score(vector, x, y), models, parallel_iterations=1)

        # Where the type says that there is one model nothing may be left to fold: TensorFlow's optimizer aborts the process
        # over a loop that it finds out to be dead.
        if models.shape[0] == 1:
            return tf.constant(0), tf.zeros([1])
        scores = tf.cond(tf.shape(models)[0] > 1, every, lambda: tf.zeros(tf.shape(models)[:1]))
        return tf.argmin(scores, output_type=tf.int32), scores

    return choose
