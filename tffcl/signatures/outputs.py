"""The signature of EMD-CFL: a sample of what a model makes of a client's examples."""

import collections

import numpy as np
import tensorflow as tf

from tffcl.client_work.client_work import rows_of, stack, visiting_order
from tffcl.models.flat import FlatModel
from tffcl.signatures.signature import OWN_SEED, Signature, build_signature, own_seed


def build_outputs(model: FlatModel, vector: np.ndarray | None = None, *, samples: int = 64, seed: int = 0) -> Signature:
    """Builds the signature `V = <points=float32[n,C]>`: the model's C outputs of n examples.

    After EMD-CFL (Zhang, Williams and Toni 2025, arXiv:2506.07769, section 3 and Alg. 1).

    The examples are drawn at random; a client with fewer sends each as often as it takes, so that all clients send
    points of one weight. The outputs stand for the paper's embeddings, as a model need not have a layer of these, and
    they are of one model for all clients: in the paper each pair of clients exchanges its encoders, trained for an
    epoch, agrees on a random projection to 0.9 as many dimensions, which the server does not know, and sends it the
    embeddings of up to 512 of its examples, a tenth of them at most. What clients send here is told apart from their
    examples by the model alone: it has no noise and is not private.

    Args:
      model: Architecture.
      vector: The model that is broadcast, `float32 [P]`; default the initial one.
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

    sent = model.initial if vector is None else vector
    return build_signature(
        "outputs",
        model.example_spec,
        compute,
        context=collections.OrderedDict(model=np.asarray(sent, np.float32), **own_seed(seed)),
        key=None if model.key is None else (model.key, samples),
        model="model",
    )
