"""FLUX's descriptors: moments of what a model says of a client's examples, over all of them and class by class."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.client_work.examples import stack
from tffcl.errors import UserError
from tffcl.models.flat import FlatModel
from tffcl.signatures.signature import Signature, build_signature

_BATCH = 256  # bounds the activations


def build_descriptors(model: FlatModel, vector: np.ndarray | None = None) -> Signature:
    """Builds the signature `V = <marginal=float32[2C],conditional=float32[C,2C]>` (FLUX, Fenoglio et al. 2025, arXiv:2511.22305).

    Mean and standard deviation of the model's C outputs over all of a client's examples describe P(X), and need no labels;
    those over the examples of each class describe P(X|Y) and P(Y|X); a class that the client lacks is zero. The paper takes a
    latent layer of the model instead of its outputs.

    Args:
      model: Architecture; its examples have one label each.
      vector: The model that is broadcast, `float32 [P]`; default the initial one.

    Returns:
      The signature; its context is the model `float32[P]`.

    Raises:
      UserError: If examples have sequences of labels.
    """
    if model.label_shape:
        raise UserError(f"descriptors are of examples with one label each; those of {model.name} have {model.label_shape[0]}")
    classes = model.num_classes

    def outputs_of(vector, x):
        """In batches, as the features of a large client may not fit."""
        n, tensors = tf.shape(x)[0], model.unravel(vector)

        def add(start, found):
            part = model.logits(tensors, model.preprocess(x[start : start + _BATCH]), None)
            return start + _BATCH, tf.concat([found, tf.ensure_shape(part, [None, classes])], 0)

        shapes = (tf.TensorShape([]), tf.TensorShape([None, classes]))
        start = (0, tf.zeros([0, classes]))
        return tf.while_loop(lambda start, _: start < n, add, start, shape_invariants=shapes, parallel_iterations=1)[1]

    def moments(outputs, weights):
        """`[..., 2C]` of the outputs `[n, C]` under weights `[..., n]`; zero where all weights are."""
        total = tf.reduce_sum(weights, -1, keepdims=True)
        mean = tf.math.divide_no_nan(tf.matmul(weights, outputs), total)
        apart = tf.square(outputs[tf.newaxis] - mean[:, tf.newaxis])
        variance = tf.math.divide_no_nan(tf.reduce_sum(weights[..., tf.newaxis] * apart, 1), total)
        return tf.concat([mean, tf.sqrt(variance)], -1)

    @tf.function(autograph=False)
    def describe(vector, examples):
        data = stack(examples)
        outputs, labels = outputs_of(vector, data["x"]), data["y"]
        everything = moments(outputs, tf.ones([1, tf.shape(labels)[0]]))[0]
        by_class = moments(outputs, tf.one_hot(labels, classes, axis=0))
        described = {"marginal": (everything, [2 * classes]), "conditional": (by_class, [classes, 2 * classes])}
        return collections.OrderedDict((name, tf.ensure_shape(value, shape)) for name, (value, shape) in described.items())

    context = model.initial if vector is None else vector
    return build_signature(
        "descriptors", model.example_spec, describe, context_type=tff.TensorType(np.float32, [model.size]), context=context,
        key=model.key,
    )  # fmt: skip
