"""Functions that are traced in a graph of their own, and outlive what they were made of."""

import gc

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.client_work.evaluation import build_predict
from tffcl.models.graph_function import graph_function, traced_once


@pytest.mark.slow
def test_it_runs_when_the_function_that_it_was_made_of_has_gone(model):
    """TensorFlow forgets a function with its Python object, though graphs that were imported still name it."""
    predict = build_predict(model)
    images = np.random.default_rng(0).integers(0, 255, [30, 8, 8, 1]).astype(np.uint8)
    wanted = predict(model.initial, images).numpy()
    traced = graph_function(predict, tf.TensorSpec([model.size]), tf.TensorSpec([None, 8, 8, 1], tf.uint8))
    del predict
    build_predict.forget()
    gc.collect()
    for count in (30, 3, 0):
        np.testing.assert_array_equal(traced(tf.constant(model.initial), tf.constant(images[:count])), wanted[:count])


def test_one_trace_serves_all_computations(tff_worker):
    traced = []

    @traced_once
    def weighed(x, weight=None, *, times: int = 2):
        traced.append((weight is None, times))
        start = x if weight is None else weight * x
        return tf.while_loop(lambda done, _: done < times, lambda done, x: (done + 1, x + x), (0, start))

    def computation(**how):
        @tff.tensorflow.computation(tff.TensorType(np.float32, [None]))
        def compute(x):
            return weighed(x, **how)[1]

        return compute

    for how, factor in (({}, 4), ({"weight": np.float32(3)}, 12), ({"times": 3}, 8)) * 2:
        np.testing.assert_array_equal(computation(**how)([1.0, 2.0]), [factor, 2 * factor])
    assert traced == [(True, 2), (False, 2), (True, 3)]
    np.testing.assert_array_equal(weighed(tf.constant([1.0, 2.0]))[1], [4, 8])


def test_a_trace_of_any_number_of_rows_is_not_that_of_a_known_one():
    """What is known of a shape decides what is traced: nothing may be left of a loop over rows that are not there."""
    counted = traced_once(lambda x: tf.constant(-1 if x.shape[0] is None else x.shape[0]))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        rows = [tf.compat.v1.placeholder(tf.float32, [count]) for count in (None, 1, 0, None)]
        assert session.run([counted(x) for x in rows], {x: np.ones(x.shape[0] or 0) for x in rows}) == [-1, 1, 0, -1]
