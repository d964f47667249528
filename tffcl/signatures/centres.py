"""Signatures that are k-means centres: of a client's examples themselves, by which all clients can be compared (k-FED),
or of their principal components, the baseline of FLT (PCA+kM+HC, FLT section IV-C)."""

import collections
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tffcl.client_work.client_work import as_features, feature_rows, num_features, stack
from tffcl.client_work.kmeans import build_kmeans
from tffcl.models.flat import one_array
from tffcl.models.graph_function import traced_once
from tffcl.signatures.signature import Signature, build_signature, noised_centres, own_noise, own_seed
from tffcl.signatures.subspace import left_singular_vectors
from tffcl.validation import Count, NonNegative, Positive, validated


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

    Clients run Lloyd's method on their examples as vectors: uint8 images are divided by 255, other numbers unchanged.
    The paper starts it on a projection of a client's data on its first singular vectors (Awasthi and Sheffet 2012);
    here it starts as in the other signatures of centres.

    Args:
      example_spec: `tf.TensorSpec` structure of one example; its `x` is one array.
      num_centres: k.
      seed: Decides where k-means starts.
      noise_multiplier: z of the noise on the centres, see `signature.noised_centres`; 0 is neither noise nor clipping.
      clip: The largest norm of a centre, with noise.
      noise_seed: See `build_signature`.

    Returns:
      The signature; its context is `<seed=int32[2]>`.
    """
    features = one_array(example_spec, "signature centres").shape.num_elements()

    def rows(x):
        return tf.reshape(as_features(x), [-1, features])

    return _build("centres", example_spec, rows, features, num_centres, seed, noise_multiplier, clip, noise_seed)


@traced_once
def principal_components(rows, count: int):
    """Projects rows on their own first principal components.

    The components' signs are fixed as in `left_singular_vectors`, so that the entry of largest magnitude is positive.

    Args:
      rows: `float32 [n, d]`; n may be 0.
      count: c, at most d.

    Returns:
      `float32 [n, c]`; columns beyond the rank of the centred rows are zero.
    """
    centred = rows - tf.reduce_mean(rows, axis=0)
    basis, _ = left_singular_vectors(tf.transpose(centred), count)
    return tf.matmul(centred, basis)


@validated
def build_pca_centres(
    example_spec,
    *,
    num_components: Count = 128,
    num_centres: Count = 5,
    preprocess=None,
    seed: int = 0,
    noise_multiplier: NonNegative = 0.0,
    clip: Positive = 1.0,
    noise_seed: int | None = None,
) -> Signature:
    """Builds the signature `V = <centres=float32[k,c],mask=bool[k]>`: centres of a client's images after its own PCA.

    Each client projects on its own basis, as in the authors' code, though the server then compares centres of different
    clients as if the bases were one.

    Args:
      example_spec: `tf.TensorSpec` structure of one example; `x` is a raw image, or several inputs, all of whose
        numbers are features.
      num_components: c, at most the number of values of an image. A client with fewer examples has zeros for the rest.
      num_centres: k.
      preprocess: Turns raw images into features; default raw pixels divided by 255, other numbers as they are, as in
        the authors' code.
      seed: Decides where k-means starts.
      noise_multiplier: z of the noise on the centres, see `signature.noised_centres`; 0 is neither noise nor clipping.
      clip: The largest norm of a centre, with noise.
      noise_seed: See `build_signature`.

    Returns:
      The signature; its context is `<seed=int32[2]>`.

    Raises:
      UserError: If one of the numbers is not a whole number from 1.
    """
    count = min(num_components, num_features(example_spec))
    whole = preprocess or (lambda x: tf.nest.map_structure(as_features, x))

    def rows(x):
        return principal_components(feature_rows(example_spec, whole(x)), count)

    return _build(
        "pca_centres", example_spec, rows, count, num_centres, seed, noise_multiplier, clip, noise_seed,
        reusable=preprocess is None,
    )  # fmt: skip


def _build(
    name: str, example_spec, rows: Callable, width: int, num_centres: int, seed: int, noise_multiplier: float,
    clip: float, noise_seed: int | None, *, reusable: bool = True,
):  # fmt: skip
    """Builds the signature of centres of `rows(x)`, `float32 [n, width]`. It is `reusable` if rows depend only on the
    types and the width; then another signature with the same numbers is not traced again."""
    kmeans = build_kmeans(num_centres)

    @tf.function(autograph=False)
    def compute(context, examples):
        points = rows(stack(examples)["x"])
        found = kmeans(points, context["seed"])
        centres = found["centres"]
        if not noise_multiplier:  # k-means leaves out what is not finite, and nobody would see it; noise hides it
            centres = tf.where(tf.reduce_all(tf.math.is_finite(points)), centres, np.nan)
        centres = tf.ensure_shape(centres, [found["mask"].shape[0], width])
        return noised_centres(centres, found["mask"], noise_multiplier, clip, own_noise(context))

    return build_signature(
        name, example_spec, compute, context=collections.OrderedDict(own_seed(seed, "seed")),
        key=(width, num_centres, noise_multiplier, clip) if reusable else None, noise_multiplier=noise_multiplier,
        noise_seed=noise_seed, least_examples=num_centres,
    )  # fmt: skip
