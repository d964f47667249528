"""FedClust's signature: some layers' weights after a short local training from the common initial model."""

import collections
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tffcl.client_work.client_work import stack
from tffcl.client_work.local_sgd import LocalTraining, build_local_sgd
from tffcl.errors import UserError, unknown
from tffcl.models.flat import FlatModel
from tffcl.signatures.signature import OWN_SEED, Signature, build_signature, own_seed


def layer_places(model: FlatModel, layers: Sequence[str] | None) -> list[slice]:
    """Returns the places of some layers in the vector of a model.

    Args:
      layers: Their names; None: the last layer that has weights.

    Raises:
      UserError: For an unknown name.
    """
    slices = model.layer_slices()
    for name in layers or ():
        if name not in slices:
            raise unknown(f"layer of {model.name}", name, slices, key="layers")
    return [slices[name] for name in layers] if layers else [list(slices.values())[-1]]


def build_partial_weights(
    model: FlatModel, *, training: LocalTraining, layers: Sequence[str] | None = None, seed: int = 0
) -> Signature:
    """Builds the signature `V = float32[d]`: the weights of some layers after local training, without statistics.

    A classifier's last layer learns which labels a client has, and which pictures they belong to (FedClust, Islam et
    al. 2024, arXiv:2407.07124, which takes the last layer's weights; a client sends nothing else).

    Args:
      model: Architecture and initial vector, which is broadcast.
      training: The local training.
      layers: Names of the layers that are sent; None: the last one.
      seed: Decides, together with a client's ID, the order in which the client visits its examples.

    Returns:
      The signature; its context is `<model=float32[P],own_seed=int32[2]>`.

    Raises:
      UserError: For an unknown layer.
    """
    places, local_sgd = layer_places(model, layers), build_local_sgd(model, training)
    entries = np.concatenate([np.arange(place.start, place.stop) for place in places])
    entries = entries[model.is_trained[entries]]
    if not len(entries):
        raise UserError(f"layers {', '.join(layers or ['last'])} of {model.name} have no trained weights", key="layers")

    @tf.function(autograph=False)
    def compute(context, examples):
        data = stack(examples)
        trained, *_ = local_sgd(context["model"], data["x"], data["y"], context[OWN_SEED])
        return tf.ensure_shape(tf.gather(trained, entries), [len(entries)])

    context = collections.OrderedDict(model=model.initial, **own_seed(seed))
    key = None if model.key is None else (model.key, training, tuple((place.start, place.stop) for place in places))
    return build_signature("partial_weights", model.example_spec, compute, context=context, key=key, model="model")
