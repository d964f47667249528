"""StoCFL's signature: the direction in which a client's data pull a fixed anchor model (StoCFL section 2.1)."""

import collections

import tensorflow as tf

from tffcl.choices import ANCHOR_FORMS
from tffcl.client_work.client_work import rows_of, stack
from tffcl.client_work.local_sgd import LocalTraining, build_local_sgd
from tffcl.errors import UserError, unknown
from tffcl.models.flat import FlatModel
from tffcl.models.graph_function import traced_once
from tffcl.signatures.signature import OWN_SEED, Signature, build_signature, clipped, noised, own_noise, own_seed
from tffcl.trace_cache import built_once

_BATCH = 100  # examples at a time, to bound the activations
_SKETCH_STREAM = 2  # folded into the seed, so that the projection draws other numbers than the shuffling


@built_once
def build_gradient(model: FlatModel):
    """Builds `(vector float32[P], x [n, ...], y [n, ...]) -> float32[P]`, the gradient of the mean loss.

    The mean is over all n examples, or over the labels that count if the loss leaves some out. It is computed in parts
    of 100 examples, without dropout. With n = 0 it is zero.
    """

    @traced_once
    def gradient(vector, x, y):
        n = tf.shape(y)[0]

        def add(start, total):
            part = slice(start, tf.minimum(start + _BATCH, n))
            labels = y[part]
            with tf.GradientTape() as tape:
                tape.watch(vector)
                loss, _ = model.training_loss(model.unravel(vector), model.preprocess(rows_of(x, part)), labels, None)
            return start + _BATCH, total + tape.gradient(loss, vector) * model.objective.size(labels)

        nothing = (0, tf.zeros_like(vector))
        _, total = tf.while_loop(lambda start, _: start < n, add, nothing, parallel_iterations=1)
        return tf.math.divide_no_nan(total, model.objective.size(y))

    return gradient


@traced_once
def sketch(vector, dimensions: int, seed):
    """Projects a vector at random so that inner products are kept in the mean: a count sketch.

    Each entry is added, with a random sign, to one random place of the result (Charikar et al. 2002; Weinberger et al.
    2009, arXiv:0902.2206; the sparsest Johnson-Lindenstrauss projection). It takes O(P) time and memory; a dense
    projection matrix would have P * d entries: 26 GB for 1.6 million parameters and d = 4,096. The cosine of two
    sketches estimates that of the vectors with a standard error of about (1 - cos^2) / sqrt(d). Measured on 1,770 pairs
    of gradients of an MLP-2048 (1.6 million parameters) on Rotated MNIST with d = 4,096: 0.014, at most 0.055.

    Args:
      vector: `float32 [P]`.
      dimensions: d.
      seed: `int32 [2]`; the same one gives the same projection on every device.

    Returns:
      `float32 [d]`.
    """
    # One draw decides place and sign: even numbers mean plus, odd ones minus. The generator is named, because a device
    # that chose its own would draw other numbers.
    halves = 2 * dimensions
    drawn = tf.random.stateless_uniform(tf.shape(vector), seed, minval=0, maxval=halves, dtype=tf.int32, alg="philox")
    plus, minus = tf.unstack(tf.reshape(tf.math.unsorted_segment_sum(vector, drawn, halves), [dimensions, 2]), axis=1)
    return plus - minus


def signature_size(model: FlatModel, projection: int) -> int:
    """Returns how many numbers a client sends: `projection`, or all P if `projection` is 0 or at least P.

    Raises:
      UserError: If `projection` is negative.
    """
    if projection < 0:
        raise UserError(f"projection is {projection}; it must be a number of dimensions from 1, or 0 for none")
    return projection if 0 < projection < model.size else model.size


def build_anchor_gradient(
    model: FlatModel,
    *,
    form: str = "gradient",
    local: LocalTraining = LocalTraining(epochs=10, batch_size=0),
    projection: int = 4096,
    seed: int = 0,
    noise_multiplier: float = 0.0,
    clip: float = 1.0,
    noise_seed: int | None = None,
) -> Signature:
    """Builds the signature `V = float32[d]`; clients with similar data have vectors of similar direction.

    The anchor is the model's initial vector, and never changes. Both forms point the same way: after one step of plain
    SGD on all data the displacement is the gradient times the learning rate.

    Args:
      model: Architecture and anchor.
      form: A name in `ANCHOR_FORMS`.
      local: With "displacement", the local SGD from the anchor (authors: 10 epochs of full batches on Rotated MNIST, 20
        epochs of batches of 50 on CIFAR-10, at the rate of training).
      projection: Dimensions to which each client projects its vector, see `sketch`; 0, or the model's number of
        parameters, is no projection.
      seed: Decides the projection, and with "displacement", together with a client's ID, the order of its examples.
      noise_multiplier: z: the vector, after projection, is scaled to a norm of at most `clip`, and in units of `clip`
        gets Gaussian noise of this standard deviation in every dimension. With fewer dimensions more of the direction
        is left. 0 is neither noise nor clipping.
      clip: The largest norm of the vector, see `noise_multiplier`.
      noise_seed: See `build_signature`.

    Returns:
      The signature; its context is `<anchor=float32[P],seed=int32[2]>`, with "displacement" also `own_seed=int32[2]`.

    Raises:
      UserError: If the form is unknown or the projection negative.
    """
    if form not in ANCHOR_FORMS:
        raise unknown("form of signature", form, ANCHOR_FORMS)
    size = signature_size(model, projection)
    gradient, local_sgd = build_gradient(model), build_local_sgd(model, local)

    @tf.function(autograph=False)
    def compute(context, examples):
        anchor, seed, data = context["anchor"], context["seed"], stack(examples)
        if form == "gradient":
            direction = gradient(anchor, data["x"], data["y"])
        else:
            trained, *_ = local_sgd(anchor, data["x"], data["y"], context[OWN_SEED])
            direction = model.on_trained(anchor - trained, 0.0)
        if size < model.size:
            direction = sketch(direction, size, tf.random.experimental.stateless_fold_in(seed, _SKETCH_STREAM))
        if noise_multiplier:
            direction = noised(clipped(direction, clip), noise_multiplier, own_noise(context))
        return tf.ensure_shape(direction, [size])

    context = collections.OrderedDict(anchor=model.initial, **own_seed(seed, "seed"))
    if form == "displacement":
        context.update(own_seed(seed))
    key = None if model.key is None else (model.key, form, local, size, noise_multiplier, clip)
    return build_signature(
        "anchor_gradient", model.example_spec, compute, context=context,
        key=key, noise_multiplier=noise_multiplier, noise_seed=noise_seed, model="anchor",
    )  # fmt: skip
