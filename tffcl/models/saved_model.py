"""Cluster models as one SavedModel that a server or a device loads with TensorFlow alone."""

import pathlib

import numpy as np
import tensorflow as tf

from tffcl.models.flat import FlatModel


def save_models(directory: str | pathlib.Path, model: FlatModel, models: np.ndarray):
    """Writes models of one architecture as a TensorFlow SavedModel.

    Its signature `serving_default` takes `images uint8[n, ...]` (raw, the model normalises them) and `cluster int32`, the
    row of `models`, and gives `probabilities float32[n, classes]` and `labels int32[n]`. The loaded object has the
    parameters as the variable `models`.

    Args:
      directory: Of the SavedModel.
      model: The architecture.
      models: `float32 [K, P]`.
    """
    served = tf.Module()
    served.models = tf.Variable(models, trainable=False, name="models")

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, *model.input_shape], tf.uint8, "images"),
            tf.TensorSpec([], tf.int32, "cluster"),
        ]
    )
    def predict(images, cluster):
        logits = model.logits(model.unravel(served.models[cluster]), model.preprocess(images), None)
        return {"probabilities": tf.nn.softmax(logits), "labels": tf.argmax(logits, axis=1, output_type=tf.int32)}

    served.predict = predict
    tf.saved_model.save(served, str(directory), signatures={"serving_default": predict})
