"""Models whose products and convolutions are computed in bfloat16."""

import dataclasses

import tensorflow as tf

from tffcl.errors import UserError
from tffcl.models.flat import FlatModel


def in_precision(model: FlatModel, precision: str) -> FlatModel:
    """Returns a model as clients compute it in a step of training.

    In bfloat16, which has the range of float32 and 8 of its 24 digits, the kernels, what they are multiplied with and
    what comes of it are rounded, in the forward pass and in its gradients; within a product sums are float32. Weights,
    normalization, outputs, loss and gradients are float32, as they come and go.

    Args:
      model: Of one of tffcl's own networks, unless the precision is float32.
      precision: A name in `choices.PRECISIONS`.

    Raises:
      UserError: If the model is of another origin.
    """
    if precision == "float32":
        return model
    if model.initialization is None:
        raise UserError(
            f"precision is {precision}, which tffcl's own networks can; {model.name} is of another origin: build its "
            'Keras layers with dtype="mixed_bfloat16", and leave precision out',
            key="precision",
        )

    def logits(tensors, features, seed):
        # A product is computed in the type of its kernel, see `layers`; vectors are biases, scales and offsets.
        pairs = zip(tensors, model.weights, strict=True)
        tensors = [tf.cast(each, precision) if len(weight.shape) > 1 else each for each, weight in pairs]
        return model.logits(tensors, features, seed)

    return dataclasses.replace(model, logits=logits, key=model.key and (*model.key, ("precision", precision)))
