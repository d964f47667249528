"""Signatures of models' outputs: those of a client's updated model on the server's images (`inference`, FLIS, section
II-B), and those of a common model on the client's examples: a sample of them (EMD-CFL), or their moments over all
examples and class by class (FLUX's descriptors)."""

import collections
import math

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.client_work import evaluation
from tffcl.client_work.client_work import rows_of, stack, visiting_order
from tffcl.client_work.evaluation import build_predict, build_probabilities
from tffcl.client_work.local_sgd import LocalTraining, build_local_sgd
from tffcl.clients.client_examples import inputs_of
from tffcl.clients.example_types import as_taken
from tffcl.errors import UserError, no_server_data
from tffcl.models.flat import FlatModel
from tffcl.signatures.signature import OWN_SEED, Signature, build_signature, own_seed


def check_images(model: FlatModel, images):
    """Returns the server's images `uint8 [n, ...]` as the model takes them, or arrays by input for several inputs.

    Raises:
      UserError: If there are no images, shape or inputs differ, the type cannot hold them, or one is not finite.
    """
    if images is None:
        raise no_server_data("FLIS")
    images = as_taken(images, model.example_spec["x"], "the server's images")
    if not num_images(images):
        raise UserError("the server's images are none; there must be 1 or more")
    return images


def num_images(images) -> int:
    """Returns how many images, or examples of several inputs, the server has."""
    return len(next(iter(inputs_of(images).values())))


def num_answers(model: FlatModel, images) -> int:
    """Returns how many answers a model gives on the server's images, with one for each label of a sequence."""
    return num_images(images) * math.prod(model.label_shape)


def build_answer(model: FlatModel, *, soft: bool = False):
    """Builds a function that gives a model's answers on the server's images.

    Args:
      soft: Whether answers are probabilities instead of the most likely class.

    Returns:
      A tf.function `(vector float32[P], images uint8[n, ...])` to `int32[n]`, one-hot answers as class numbers, or
      `float32[n, C]`.
    """
    return build_probabilities(model) if soft else build_predict(model)


def answers_type(model: FlatModel, num_images: int, *, soft: bool) -> tff.TensorType:
    """The TFF type of a client's answers: `int32[n]`, or `float32[n,C]` if soft; UserError if they are not classes."""
    classes = model.objective.classes_for("what compares models by their answers")
    shape = [num_images, *model.label_shape]
    return tff.TensorType(np.float32, [*shape, classes]) if soft else tff.TensorType(np.int32, shape)


def build_inference(
    model: FlatModel, training: LocalTraining, images, *, soft: bool = False, seed: int = 0
) -> Signature:
    """Builds the signature for which a client trains the broadcast model on its data and answers the server's images
    (FLIS Alg. 3 line 4, Alg. 2 line 2).

    The client computes the answers: the server broadcasts its images once, without labels, and sees no model.

    Args:
      model: The model to train, from its initial weights.
      training: The local training before answering.
      images: The server's images, as `check_images` gives them.
      soft: Whether answers are probabilities instead of the most likely class.
      seed: Decides, together with a client's ID, the order in which the client visits its examples.

    Returns:
      The signature; its context is `<model=float32[P],images=uint8[n,...],own_seed=int32[2]>`, its value as in
      `answers_type`.

    Raises:
      UserError: If the model cannot take the images.
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
    return build_signature("inference", model.example_spec, train_and_answer, context=context, key=key, model="model")


def related(answers, beta, form: str, num_classes: int):
    """Relates clients by their answers, on the aggregator: Γ of FLIS Alg. 2 line 4.

    The same similarity as `clustering.vector_distances.inference_similarity`, in TensorFlow. A client is always
    related to itself.

    Args:
      answers: `int32 [m, n]` or `float32 [m, n, C]`.
      beta: Pairs with at least this similarity are related; a number or a float64 tensor.
      form: A name in `choices.SIMILARITIES`.
      num_classes: C.

    Returns:
      `float32 [m, m]` of 0 and 1.
    """
    if answers.dtype.is_floating:
        answers = tf.where(tf.math.is_nan(answers), 0.0, answers)
        flat = tf.reshape(answers, [tf.shape(answers)[0], -1])
        norms = tf.norm(flat, axis=1)
    else:  # the norm as if all answers were classes: an answer that is none is like no other
        flat = tf.reshape(tf.one_hot(answers, num_classes), [tf.shape(answers)[0], -1])
        norms = tf.fill(tf.shape(flat)[:1], tf.sqrt(tf.cast(tf.shape(flat)[1], tf.float32) / num_classes))
    squares = flat if form == "agreement" else flat**2
    products = tf.matmul(squares, squares, transpose_b=True)
    if form == "frobenius":
        products = tf.sqrt(products)
    similarity = tf.math.divide_no_nan(products, norms[:, tf.newaxis] * norms[tf.newaxis, :])
    # Rounding of a share must not separate equal answers.
    least = tf.cast(tf.convert_to_tensor(beta, tf.float64) - 1e-6, tf.float32)
    near = tf.cast(similarity >= least, tf.float32)
    return tf.linalg.set_diag(near, tf.ones(tf.shape(near)[:1]))


def build_outputs(model: FlatModel, *, samples: int = 64, seed: int = 0) -> Signature:
    """Builds the signature `V = <points=float32[n,C]>`: the model's C outputs of n examples.

    After EMD-CFL (Zhang, Williams and Toni 2025, arXiv:2506.07769, section 3 and Alg. 1).

    The examples are drawn at random; a client with fewer than n sends each as often as needed, so that all clients send
    points of equal weight. The outputs replace the paper's embeddings, as a model need not have a layer for these, and
    come from one model for all clients. In the paper each pair of clients exchanges encoders, which are trained for an
    epoch, and agrees on a random projection to 0.9 as many dimensions, which the server does not know. Each client then
    sends the server the embeddings of at most 512 of its examples and at most a tenth of them. Here clients send the
    model's outputs without noise, which is not private.

    Args:
      samples: n.
      seed: Decides which examples are drawn.

    Returns:
      The signature; its context is `<model=float32[P],own_seed=int32[2]>`.
    """
    width = int(np.prod(model.objective.outputs))

    @tf.function(autograph=False)
    def compute(context, examples):
        data = stack(examples)
        count = tf.shape(data["y"])[0]
        order = visiting_order(count, context[OWN_SEED])
        x = rows_of(data["x"], tf.gather(order, tf.range(samples) % tf.maximum(count, 1)))
        outputs = model.logits(model.unravel(context["model"]), model.preprocess(x), None)
        return collections.OrderedDict(points=tf.ensure_shape(tf.reshape(outputs, [-1, width]), [samples, width]))

    return build_signature(
        "outputs", model.example_spec, compute, model="model", key=None if model.key is None else (model.key, samples),
        context=collections.OrderedDict(model=model.initial, **own_seed(seed)),
    )  # fmt: skip


_OF_A_MISSING_CLASS = -1.0


def build_descriptors(model: FlatModel, *, by_class: bool = True) -> Signature:
    """Builds the signature `V = <marginal=float32[2,C],conditional=float32[C,2,C]>` (FLUX, Fenoglio et al. 2025,
    arXiv:2511.22305).

    Mean and standard deviation of the model's C outputs over all of a client's examples describe P(X), and need no
    labels; those over the examples of each class describe P(X|Y) and P(Y|X). For a class with fewer than two examples
    all are -1, as in the authors' code. The paper takes a latent layer of the model instead of its outputs.

    Args:
      model: Architecture; its examples have one label each.
      by_class: Whether to send `conditional`; without it nothing that a client sends depends on its labels.

    Returns:
      The signature; its context is the model that is broadcast, `float32[P]`, the initial one.

    Raises:
      UserError: If examples have sequences of labels, or, with `by_class`, labels that are not classes.
    """
    objective = model.objective
    if model.label_shape and objective.num_classes is not None:
        raise UserError(
            f"descriptors are of examples with one label each, and those of this model have {model.label_shape[0]}"
        )
    classes = objective.classes_for("the signature descriptors by class") if by_class else 0
    width, infer = int(np.prod(objective.outputs)), evaluation.build_outputs(model)

    def moments(outputs, weights):
        """`[k, 2, C]` of the outputs `[n, C]` under weights `[k, n]`; zero if all weights are zero."""
        total = tf.reduce_sum(weights, -1, keepdims=True)
        mean = tf.math.divide_no_nan(tf.matmul(weights, outputs), total)
        apart = tf.square(outputs[tf.newaxis] - mean[:, tf.newaxis])
        variance = tf.math.divide_no_nan(tf.reduce_sum(weights[..., tf.newaxis] * apart, 1), total)
        return tf.stack([mean, tf.sqrt(variance)], 1)

    @tf.function(autograph=False)
    def describe(vector, examples):
        data = stack(examples)
        outputs, labels = tf.reshape(infer(vector, data["x"]), [-1, width]), data["y"]
        everyone = moments(outputs, tf.ones([1, tf.shape(labels)[0]]))[0]
        described = collections.OrderedDict(marginal=tf.ensure_shape(everyone, [2, width]))
        if by_class:
            members = tf.one_hot(labels, classes, axis=0) * tf.cast(objective.counted(labels), tf.float32)
            there = tf.reduce_sum(members, -1)[:, tf.newaxis, tf.newaxis] > 1
            each = tf.where(there, moments(outputs, members), _OF_A_MISSING_CLASS)
            described["conditional"] = tf.ensure_shape(each, [classes, 2, width])
        return described

    return build_signature(
        "descriptors" if by_class else "marginal_descriptors", model.example_spec, describe,
        context=model.initial, key=model.key, model="",
    )  # fmt: skip
