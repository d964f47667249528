"""From models that are rows of a matrix to `tff.learning.models.ModelWeights`, and back."""

import tensorflow as tf
import tensorflow_federated as tff

from tffcl.models.flat import FlatModel

ModelWeights = tff.learning.models.ModelWeights


def to_weights(model: FlatModel, vector) -> ModelWeights:
    """Returns a model `float32[P]` as TFF's weights; those that are not trained are the model's own."""
    fixed = model.functional.initial_weights[1]
    return ModelWeights(tuple(model.unravel(vector)), tuple(tf.convert_to_tensor(each) for each in fixed))


def to_vector(weights: ModelWeights) -> tf.Tensor:
    """Returns the trained ones of TFF's weights as a vector `float32[P]`."""
    return tf.concat([tf.reshape(each, [-1]) for each in weights.trainable], 0)


def weights_type(model: FlatModel, num_clusters: int) -> tff.Type:
    """Returns W, the type of so many models: a tuple of `ModelWeights`."""

    @tff.tensorflow.computation
    def initial():
        return (to_weights(model, tf.constant(model.initial)),) * num_clusters

    return initial.type_signature.result
