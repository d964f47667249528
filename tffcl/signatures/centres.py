"""The signature of k-FED: k-means centres of a client's examples as they are, which all clients can be compared by."""

import collections

import tensorflow as tf

from tffcl.client_work.client_work import as_features, stack
from tffcl.client_work.kmeans import build_kmeans
from tffcl.models.flat import one_array
from tffcl.signatures.signature import Signature, build_signature, noised_centres, own_noise, own_seed


def build_centres(
    example_spec,
    *,
    num_centres: int = 1,
    seed: int = 0,
    noise_multiplier: float = 0.0,
    clip: float = 1.0,
    noise_seed: int | None = None,
) -> Signature:
    """Builds the signature `V = <centres=float32[k,d],mask=bool[k]>` (k-FED, Dennis, Li and Smith, ICML 2021, Alg. 1).

    Clients run Lloyd's method on their examples as vectors: uint8 images divided by 255, other numbers as they are. The
    paper starts it on a projection of a client's data on its first singular vectors (Awasthi and Sheffet 2012), here it
    starts as the other signatures of centres do.

    Args:
      example_spec: `tf.TensorSpec` structure of one example; its `x` is one array.
      num_centres: k.
      seed: Decides where k-means starts.
      noise_multiplier: z of the noise on the centres, see `signature.noised_centres`; 0 is none, and no clip.
      clip: See there.
      noise_seed: See `build_signature`.

    Returns:
      The signature; its context is `<seed=int32[2]>`.
    """
    features = one_array(example_spec, "signature centres").shape.num_elements()
    kmeans = build_kmeans(num_centres)

    @tf.function(autograph=False)
    def compute(context, examples):
        x = tf.reshape(as_features(stack(examples)["x"]), [-1, features])
        found = kmeans(x, context["seed"])
        centres = tf.ensure_shape(found["centres"], [found["mask"].shape[0], features])
        return noised_centres(centres, found["mask"], noise_multiplier, clip, own_noise(context))

    return build_signature(
        "centres", example_spec, compute,
        context=collections.OrderedDict(own_seed(seed, "seed")), key=(num_centres, noise_multiplier, clip),
        noise_multiplier=noise_multiplier, noise_seed=noise_seed, least_examples=num_centres,
    )  # fmt: skip
