"""Functions that are traced in a graph of their own, and outlive what they were made of."""

import gc

import numpy as np
import tensorflow as tf

from tffcl.client_work.evaluation import build_predict
from tffcl.models.graph_function import graph_function


def test_it_runs_when_the_function_that_it_was_made_of_has_gone(model):
    """TensorFlow forgets a function with its Python object, though graphs that were imported still name it."""
    predict = build_predict(model)
    images = np.random.default_rng(0).integers(0, 255, [30, 8, 8, 1]).astype(np.uint8)
    wanted = predict(model.initial, images).numpy()
    traced = graph_function(predict, tf.TensorSpec([model.size]), tf.TensorSpec([None, 8, 8, 1], tf.uint8))
    del predict
    gc.collect()
    for count in (30, 3, 0):
        np.testing.assert_array_equal(traced(tf.constant(model.initial), tf.constant(images[:count])), wanted[:count])
