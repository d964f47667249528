"""The signature `inference`: what a client's updated model answers on images that the server has (FLIS, section
II-B)."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.client_work.client_work import stack
from tffcl.client_work.evaluation import build_predict, build_probabilities
from tffcl.client_work.local_sgd import LocalTraining, build_local_sgd
from tffcl.clients.client_examples import inputs_of
from tffcl.clients.example_types import as_taken
from tffcl.errors import UserError, no_server_data
from tffcl.models.flat import FlatModel
from tffcl.signatures.signature import OWN_SEED, Signature, build_signature, own_seed


def check_images(model: FlatModel, images):
    """Returns the server's images `uint8 [n, ...]`, or arrays by input of a model of several, as the model takes them.

    Raises:
      UserError: If there are none, shape or inputs are others, the type does not hold them, or one is not finite.
    """
    if images is None:
        raise no_server_data()
    images = as_taken(images, model.example_spec["x"], "the server's images")
    if not num_images(images):
        raise UserError("the server's images are none; there must be 1 or more")
    return images


def num_images(images) -> int:
    """Returns how many images, or examples of several inputs, the server has."""
    return len(next(iter(inputs_of(images).values())))


def build_answer(model: FlatModel, *, soft: bool = False):
    """Builds what a model answers on the server's images.

    Args:
      soft: Probabilities instead of the most likely class.

    Returns:
      A tf.function `(vector float32[P], images uint8[n, ...])` to `int32[n]`, one-hot answers as class numbers, or
      `float32[n, C]`.
    """
    return build_probabilities(model) if soft else build_predict(model)


def answers_type(model: FlatModel, num_images: int, *, soft: bool = False) -> tff.TensorType:
    """The TFF type of one client's answers: `int32[n]`, or `float32[n,C]` if soft; UserError if they are no classes."""
    classes = model.objective.classes_for("what compares models by their answers")
    shape = [num_images, *model.label_shape]
    return tff.TensorType(np.float32, [*shape, classes]) if soft else tff.TensorType(np.int32, shape)


def build_inference(
    model: FlatModel, training: LocalTraining, images, *, soft: bool = False, seed: int = 0
) -> Signature:
    """Builds the signature: train the broadcast model on the local data, answer the server's images (FLIS Alg. 3 line
    4, Alg. 2 line 2).

    The client answers itself: the server broadcasts its images without labels once, and sees answers, no model.

    Args:
      model: What is trained, from its initial weights.
      training: The local training before answering.
      images: The server's, as `check_images` gives them.
      soft: Probabilities instead of the most likely class.
      seed: Decides, with its ID, in which order a client visits its examples.

    Returns:
      The signature; its context is `<model=float32[P],images=uint8[n,...],own_seed=int32[2]>`, its value as in
      `answers_type`.

    Raises:
      UserError: If the images are not what the model takes.
    """
    images = check_images(model, images)
    local_sgd, answer = build_local_sgd(model, training), build_answer(model.whole, soft=soft)
    value_type = answers_type(model, num_images(images), soft=soft)
    context = collections.OrderedDict(model=model.initial, images=images, **own_seed(seed))

    @tf.function(autograph=False)
    def train_and_answer(context, examples):
        local = stack(examples)
        trained, _, *kept = local_sgd(context["model"], local["x"], local["y"], context[OWN_SEED])
        return tf.ensure_shape(answer(model.with_own(trained, kept), context["images"]), value_type.shape)

    key = None if model.key is None else (model.key, training, soft)
    return build_signature(
        "inference", model.example_spec, train_and_answer, context=context, key=key,
        model="model",
    )  # fmt: skip


def related(answers, beta, form: str, num_classes: int):
    """Relates clients by their answers, on the aggregator: Γ of FLIS Alg. 2 line 4.

    The same similarity as `clustering.inference_similarity.inference_similarity`, in TensorFlow. A client is always
    related to itself.

    Args:
      answers: `int32 [m, n]` or `float32 [m, n, C]`.
      beta: Pairs with a similarity from it on are related; a number or a float64 tensor.
      form: A name in `choices.SIMILARITIES`.
      num_classes: C.

    Returns:
      `float32 [m, m]` of 0 and 1.
    """
    soft = answers if answers.dtype.is_floating else tf.one_hot(answers, num_classes)
    flat = tf.reshape(soft, [tf.shape(soft)[0], -1])
    norms = tf.norm(flat, axis=1)
    if form == "frobenius":
        products = tf.sqrt(tf.matmul(flat**2, flat**2, transpose_b=True))
    else:
        products = tf.matmul(flat, flat, transpose_b=True)
    similarity = products / (norms[:, tf.newaxis] * norms[tf.newaxis, :])
    # Rounding of a share must not part equal answers.
    least = tf.cast(tf.convert_to_tensor(beta, tf.float64) - 1e-6, tf.float32)
    near = tf.cast(similarity >= least, tf.float32)
    return tf.linalg.set_diag(near, tf.ones(tf.shape(near)[:1]))
