"""FLT's signature: the k-means centres of what an encoder makes of a client's images (FLT Alg. 2 lines 1 to 10)."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.client_work.autoencoding import build_encode, build_fine_tune
from tffcl.client_work.examples import stack
from tffcl.client_work.kmeans import build_kmeans
from tffcl.errors import UserError
from tffcl.models.autoencoder import FlatAutoencoder
from tffcl.signatures.signature import Signature, build_signature
from tffcl.validation import Count, Positive, Whole, validated

_KMEANS_STREAM = 1  # folded into the seed, so that k-means does not draw the numbers of the first epoch again


def check_encoder(autoencoder: FlatAutoencoder, vector, example_spec) -> np.ndarray:
    """Returns the autoencoder's parameters `float32 [P]` if they are such, and it takes the clients' images.

    Raises:
      UserError: If the vector is another model's or not finite, or the images are of another shape or type.
    """
    vector = np.asarray(vector, np.float32)
    if vector.shape != (autoencoder.size,):
        has = f"{autoencoder.name} has {autoencoder.size} parameters"
        raise UserError(f"the encoder's vector is of shape {list(vector.shape)}; {has}")
    if not np.isfinite(vector).all():
        raise UserError("the encoder's vector has NaN or infinite entries; train it anew, with a smaller learning rate")
    images = example_spec["x"]
    if tuple(images.shape) != autoencoder.input_shape or images.dtype != tf.uint8:
        takes, given = ("x".join(map(str, shape)) for shape in (autoencoder.input_shape, images.shape))
        given = f"{images.dtype.name} of {given}"
        raise UserError(f"the encoder takes uint8 images of {takes}, the clients' are {given}; train one on such images")
    return vector


@validated
def build_embedding(
    autoencoder: FlatAutoencoder,
    vector,
    example_spec,
    *,
    num_centres: Count = 5,
    fine_tune_epochs: Whole = 0,
    learning_rate: Positive = 1e-3,
    batch_size: Count = 10,
    seed: int = 0,
) -> Signature:
    """Builds the signature `V = <centres=float32[k,e],mask=bool[k]>`: the centres of the codes of a client's images.

    In the fine-tune mode each client first trains the autoencoder on its own images, as the paper says; the authors'
    code trains one for all, centrally, on the whole training set. Then the server must send the decoder too, which is
    the other half of the traffic.

    Args:
      autoencoder: The architecture.
      vector: Its pre-trained parameters, `float32 [P]`.
      example_spec: `tf.TensorSpec` structure of one example; `x` is a raw image.
      num_centres: k.
      fine_tune_epochs: J in FLT's section IV, epochs of Adam on the mean squared error; 0 leaves the encoder as it is.
      learning_rate: Of Adam.
      batch_size: Examples a step of fine-tuning.
      seed: Decides the order of examples in fine-tuning, and where k-means starts.

    Returns:
      The signature; its context is `<encoder=float32[Q],seed=int32[2]>` with Q the encoder's parameters only, or all P
      with fine-tuning. A client with fewer different images than k masks the other centres; one whose fine-tuning
      diverged masks all.

    Raises:
      UserError: If the images are not what the encoder takes, the vector is not its, or a number is impossible.
    """
    vector = check_encoder(autoencoder, vector, example_spec)
    kmeans, encode = build_kmeans(num_centres), build_encode(autoencoder)
    fine_tune = build_fine_tune(autoencoder, fine_tune_epochs, batch_size, learning_rate)
    sent = vector if fine_tune_epochs else vector[: autoencoder.layer_slices()["decoder_input"].start]

    @tf.function(autograph=False)
    def embed(context, examples):
        images, seed = stack(examples)["x"], context["seed"]
        weights = tf.pad(context["encoder"], [[0, autoencoder.size - sent.size]])  # to encode needs no decoder
        if fine_tune_epochs:
            weights = fine_tune(weights, images, seed)
        found = kmeans(encode(weights, images), tf.random.experimental.stateless_fold_in(seed, _KMEANS_STREAM))
        centres = tf.ensure_shape(found["centres"], [found["mask"].shape[0], autoencoder.latent])
        return collections.OrderedDict(centres=centres, mask=found["mask"])

    context_type = collections.OrderedDict(encoder=tff.TensorType(np.float32, sent.shape), seed=tff.TensorType(np.int32, [2]))
    context = collections.OrderedDict(encoder=sent, seed=np.array([seed % 2**31, 0], np.int32))
    traced = autoencoder.key, num_centres, fine_tune_epochs, learning_rate, batch_size
    key = None if autoencoder.key is None else traced
    return build_signature("embedding", example_spec, embed, context_type=tff.to_type(context_type), context=context, key=key)
