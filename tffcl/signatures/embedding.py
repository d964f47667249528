"""FLT's signature: the k-means centres of an encoder's codes of a client's images (FLT Alg. 2 lines 1 to 10)."""

import collections
import dataclasses

import numpy as np
import tensorflow as tf

from tffcl.choices import CLASSES, OPTIMIZERS
from tffcl.client_work.autoencoding import build_encode, build_fine_tune
from tffcl.client_work.client_work import stack
from tffcl.client_work.kmeans import build_kmeans
from tffcl.clients.client_examples import inputs_of
from tffcl.errors import UserError
from tffcl.models.autoencoder import FlatAutoencoder
from tffcl.models.objectives import Objective
from tffcl.signatures.signature import OWN_SEED, Signature, build_signature, noised_centres, own_noise, own_seed
from tffcl.validation import Count, NonNegative, Parameters, Positive, Whole, one_of, validated

FINE_TUNE_RATES = {"sgd": 0.01, "adam": 1e-3}  # η: FLT's for all SGD, and that of the authors' code
_KMEANS_STREAM = 1  # folded into the seed, so that k-means draws other numbers than the first epoch


@dataclasses.dataclass(frozen=True)
class CentreNoise(Parameters):
    """The noise that makes the centres of a client private, see `signature.noised_centres`.

    Attributes:
      noise_multiplier: z; 0 is neither noise nor clipping.
      clip: The largest norm of a centre.
      seed: If clients keep their encoders, a seed of the noise, to repeat simulations; None draws new noise.
    """

    noise_multiplier: NonNegative = 0.0
    clip: Positive = 1.0
    seed: int | None = None


@dataclasses.dataclass(frozen=True)
class FineTuning(Parameters):
    """How a client trains the autoencoder on its own images before it encodes them (FLT Alg. 2 lines 3 to 5).

    Attributes:
      epochs: Passes over its images (J in FLT's section IV); 0 is the normal mode, which leaves the encoder unchanged.
      optimizer: A name in `OPTIMIZERS`.
      learning_rate: Step size; default `FINE_TUNE_RATES` of the optimizer.
      batch_size: Examples in a step.
    """

    epochs: Whole = 0
    optimizer: one_of(OPTIMIZERS) = "sgd"
    learning_rate: Positive | None = None
    batch_size: Count = 10

    @property
    def rate(self) -> float:
        """The step size."""
        return FINE_TUNE_RATES[self.optimizer] if self.learning_rate is None else self.learning_rate


@dataclasses.dataclass(frozen=True)
class Centres(Parameters):
    """The number of k-means centres that a client makes of its codes.

    Attributes:
      most: k, the number of centres that are sent.
      by_class: Whether a client makes only as many centres as it has classes, at most k; it masks the others.
    """

    most: Count = 5
    by_class: bool = False

    @classmethod
    def named(cls, num_centres: int | str, objective: Objective) -> "Centres":
        """Makes it from a number for all clients, or from `CLASSES`: as many centres as a client has classes.

        Raises:
          UserError: If labels are not classes, or some labels do not count.
        """
        if num_centres != CLASSES:
            return cls(num_centres)
        return cls(objective.classes_for("num_centres = 'classes'", all_count=True), True)

    def of(self, labels: tf.Tensor) -> tf.Tensor:
        """Returns how many centres a client with these `labels [n]` makes, `int32 []`."""
        return tf.size(tf.unique(labels)[0]) if self.by_class else tf.constant(self.most)


def build_embed(
    autoencoder: FlatAutoencoder, centres: Centres, fine_tuning: FineTuning, noise: CentreNoise = CentreNoise()
):
    """Builds a client's computation on its images with an encoder (FLT Alg. 2 lines 3 to 9).

    Returns:
      A tf.function `(vector float32[P], <x=uint8[n,...],y=[n]>, seed int32[2], noise_seed int32[2] | None) -> (found,
      vector float32[P])`: `centres float32[k, e]` and `mask bool[k]` of the codes, and the encoder after fine-tuning.
      If x has several inputs, it uses the images that the encoder takes.
      Both seeds are the client's own; without the second the noise is drawn anew.
    """
    kmeans, encode = build_kmeans(centres.most), build_encode(autoencoder)
    fine_tune = build_fine_tune(
        autoencoder, fine_tuning.epochs, fine_tuning.batch_size, fine_tuning.rate, fine_tuning.optimizer
    )

    @tf.function(autograph=False)
    def embed(vector, examples, seed, noise_seed):
        (images,) = _taken(autoencoder, examples["x"], from_axis=1)
        tuned = fine_tune(vector, images, seed) if fine_tuning.epochs else tf.identity(vector)
        finite = tf.reduce_all(tf.math.is_finite(tuned))
        # an encoder that diverged has no centres, even if some codes are finite
        codes = tf.where(finite, encode(tuned, images), np.nan)
        own_seed = tf.random.experimental.stateless_fold_in(seed, _KMEANS_STREAM)
        found = kmeans(codes, own_seed, centres.of(examples["y"]))
        means = tf.ensure_shape(found["centres"], [centres.most, autoencoder.latent])
        return noised_centres(means, found["mask"], noise.noise_multiplier, noise.clip, noise_seed), tuned

    return embed


def _taken(autoencoder: FlatAutoencoder, x, from_axis: int = 0) -> list:
    """Takes the encoder's images from an array or several inputs, or their spec from the specs of one example's inputs.

    The shape of an example begins with the axis `from_axis`.
    """
    shape = autoencoder.input_shape
    leaves = tf.nest.flatten(x)
    return [each for each in leaves if tuple(each.shape[from_axis:]) == shape and each.dtype == tf.uint8]


def check_encoder(autoencoder: FlatAutoencoder, vector, example_spec) -> np.ndarray:
    """Returns the autoencoder's parameters `float32 [P]`, after a check that it takes the clients' images.

    Raises:
      UserError: If the vector is another model's or not finite, or the images have another shape or type, or are not
        one of several inputs.
    """
    vector = np.asarray(vector, np.float32)
    if vector.shape != (autoencoder.size,):
        has = f"{autoencoder.name} has {autoencoder.size} parameters"
        raise UserError(f"the encoder's vector is of shape {list(vector.shape)}; {has}")
    if not np.isfinite(vector).all():
        raise UserError("the encoder's vector has NaN or infinite entries; train it anew, with a smaller learning rate")
    takes = f"the encoder takes uint8 images of {'x'.join(map(str, autoencoder.input_shape))}, "
    inputs = inputs_of(example_spec["x"])
    given = ", ".join(
        f"{name and f'{name}: '}{spec.dtype.name} of {'x'.join(map(str, spec.shape))}" for name, spec in inputs.items()
    )
    found = len(_taken(autoencoder, example_spec["x"]))
    if not found:
        raise UserError(f"{takes}the clients' are {given}; train one on such images")
    if found > 1:
        raise UserError(f"{takes}of which each example has {found} ({given}); it must be one")
    return vector


def check_classes(example_spec, noise: CentreNoise):
    """Raises UserError if clients have no number of classes, or if noise must hide this number."""
    labels = example_spec["y"]
    if labels.shape.rank != 0 or not labels.dtype.is_integer:
        raise UserError(
            "centres by the number of classes need one class label an example; give num_centres as a number"
        )
    if noise.noise_multiplier:
        raise UserError(
            "how many classes a client has is its own: with noise on its signature give num_centres as a number"
        )


@validated
def build_embedding(
    autoencoder: FlatAutoencoder,
    vector,
    example_spec,
    *,
    num_centres: Count = 5,
    by_class: bool = False,
    fine_tune_epochs: Whole = 0,
    optimizer: one_of(OPTIMIZERS) = "sgd",
    learning_rate: Positive | None = None,
    batch_size: Count = 10,
    seed: int = 0,
    noise_multiplier: NonNegative = 0.0,
    clip: Positive = 1.0,
    noise_seed: int | None = None,
) -> Signature:
    """Builds the signature `V = <centres=float32[k,e],mask=bool[k]>`: the centres of the codes of a client's images.

    In the fine-tune mode each client first trains the autoencoder on its own images by SGD, as the paper says; the
    authors' code trains one autoencoder for all by Adam, centrally, on the whole training set. In this mode the server
    must send the decoder too, which is the other half of the traffic.

    Args:
      vector: The autoencoder's pre-trained parameters, `float32 [P]`.
      example_spec: `tf.TensorSpec` structure of one example; `x` is a raw image, or one of its inputs is.
      num_centres: k.
      by_class: Whether a client makes only as many centres as it has classes, at most k.
      fine_tune_epochs: J in FLT's section IV, epochs on the mean squared error; 0 leaves the encoder as it is.
      optimizer: The optimizer of fine-tuning, a name in `OPTIMIZERS`.
      learning_rate: The step size of fine-tuning; default `FINE_TUNE_RATES` of the optimizer.
      batch_size: Examples in a step of fine-tuning.
      seed: Decides, together with a client's ID, the order of examples in fine-tuning, and where k-means starts.
      noise_multiplier: z of the noise on the centres, see `signature.noised_centres`; 0 is neither noise nor clipping.
      clip: The largest norm of a centre, with noise.
      noise_seed: See `build_signature`.

    Returns:
      The signature; its context is `<encoder=float32[Q],own_seed=int32[2]>` with Q the encoder's parameters only, or
      all P with fine-tuning. A client with fewer different images than k masks the other centres; a client whose
      fine-tuning diverged masks all.

    Raises:
      UserError: If the encoder cannot take the images, the vector is another model's, a number is impossible, or
        centres by class are to be private, or examples have no class for them.
    """
    vector = check_encoder(autoencoder, vector, example_spec)
    fine_tuning = FineTuning(fine_tune_epochs, optimizer, learning_rate, batch_size)
    noise = CentreNoise(noise_multiplier, clip)
    centres = Centres(num_centres, by_class)
    if by_class:
        check_classes(example_spec, noise)
    embed_examples = build_embed(autoencoder, centres, fine_tuning, noise)
    sent = vector if fine_tune_epochs else vector[: autoencoder.layer_slices()["decoder_input"].start]

    @tf.function(autograph=False)
    def embed(context, examples):
        weights = tf.pad(context["encoder"], [[0, autoencoder.size - sent.size]])  # encoding needs no decoder
        return embed_examples(weights, stack(examples), context[OWN_SEED], own_noise(context))[0]

    context = collections.OrderedDict(encoder=sent, **own_seed(seed))
    traced = autoencoder.key, centres, fine_tuning, noise
    key = None if autoencoder.key is None else traced
    return build_signature(
        "embedding", example_spec, embed, context=context, key=key,
        noise_multiplier=noise_multiplier, noise_seed=noise_seed, least_examples=1 if by_class else num_centres,
    )  # fmt: skip
