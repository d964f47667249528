"""Cluster models as one SavedModel that a server or a device loads with TensorFlow alone."""

import pathlib

import numpy as np
import tensorflow as tf

from tffcl.models.flat import FlatModel
from tffcl.models.graph_function import graph_function


def save_models(directory: str | pathlib.Path, model: FlatModel, models: np.ndarray):
    """Writes models of one architecture as a TensorFlow SavedModel.

    Its signature `serving_default` takes `images`, raw examples `[n, ...]` as the model takes them, and `cluster int32`, the
    row of `models`, and gives `probabilities float32[n, classes]` and `labels int32[n]`; for a row that is not there TensorFlow
    raises InvalidArgumentError and says which there are. The loaded object has the parameters as the variable `models`.

    Args:
      directory: Of the SavedModel.
      model: The architecture.
      models: `float32 [K, P]`.
    """
    served = tf.Module()
    served.models = tf.Variable(models, trainable=False, name="models")

    spec = model.example_spec["x"]
    images_spec = tf.TensorSpec([None, *spec.shape], spec.dtype, "images")

    def answer(vector, images):
        outputs = model.logits(model.unravel(vector), model.preprocess(images), None)
        return {"probabilities": model.probabilities(outputs), "labels": tf.argmax(outputs, axis=-1, output_type=tf.int32)}

    run = graph_function(answer, tf.TensorSpec([model.size]), images_spec)

    @tf.function(autograph=False, input_signature=[images_spec, tf.TensorSpec([], tf.int32, "cluster")])
    def predict(images, cluster):
        there = tf.logical_and(cluster >= 0, cluster < len(models))  # -1 would be the last
        told = tf.debugging.Assert(there, [f"cluster must be from 0 to {len(models) - 1}, but is", cluster])
        with tf.control_dependencies([told]):
            return run(served.models[cluster], images)

    served.predict = predict
    tf.saved_model.save(served, str(directory), signatures={"serving_default": predict})
