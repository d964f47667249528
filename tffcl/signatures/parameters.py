"""The parameters of each signature that a task file can name. Imports nothing heavy."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, ClassVar

import msgspec

from tffcl.choices import ANCHOR_FORMS, CLASSES, PREPROCESSING, SELF
from tffcl.errors import UserError
from tffcl.validation import Count, NonNegative, Parameters, Positive, Share, Whole, one_of

SIGNATURE = "signature"  # the signal by which signatures show whether clients' data have changed


def check_noised(noise_multiplier: float, threshold: float | str | None = None, signal: str | None = None):
    """Raises UserError if noised signatures meet the rule `SELF`, whose halves would be two more releases of every
    client, or the signal `SIGNATURE`; both need signatures without noise."""
    if noise_multiplier and threshold == SELF:
        raise UserError(
            'threshold is "self", which takes halves of every signature, and these have noise: halves would tell more '
            'of the clients than is accounted for; set threshold to a number or to "gap", or set num_clusters',
            key="threshold",
        )
    if noise_multiplier and signal == SIGNATURE:
        raise UserError(
            'regroup_on has signal = "signature", and signatures have noise: two of a client differ by it, whether or '
            'not its data have changed; take signal = "loss", or regroup_every',
            key="regroup_on",
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Noised(Parameters):
    """The parameters of signatures that can be private.

    Attributes:
      noise_multiplier: z of the Gaussian noise that makes a client's signature private; 0: none, and no clip.
      clip: With noise, the largest norm of what the noise is added to: an example, a centre or a whole signature.
    """

    noise_multiplier: NonNegative = 0.0
    clip: Positive = 1.0

    @property
    def noise(self) -> dict[str, float]:
        """The arguments of a builder for this noise."""
        return {"noise_multiplier": self.noise_multiplier, "clip": self.clip}


@dataclasses.dataclass(frozen=True)
class SubspaceParameters(Parameters):
    """How PACFL's signature is computed.

    Attributes:
      num_vectors: p, singular vectors that a client sends (paper: 3 to 5); with `energy` at most this many.
      per_class: Whether to send p vectors for each of the client's classes (the authors' code) instead of p over all
        its data (paper).
      max_classes: With `per_class`, the largest number of classes of a client; default all.
      preprocess: The pixels that the vectors describe: "raw" (the authors' code), "normalized" as the model takes them
        (their code for MIX-4), "centred", less the mean of the client's examples, or "grey", raw pixels whose colours
        are turned to grey first.
      samples: How many of a client's examples a signature uses, chosen at random; default all.
      energy: A client sends only as many vectors as hold this share of its data's energy, the sum of squares; 1: all p.
    """

    only_with: ClassVar = {"max_classes": ("per_class", True)}

    num_vectors: Count = 3
    per_class: bool = False
    max_classes: Count | None = None
    preprocess: one_of(PREPROCESSING) = "raw"
    samples: Count | None = None
    energy: Share = 1.0


@dataclasses.dataclass(frozen=True)
class SubspaceSignatureParameters(_Noised, SubspaceParameters):
    """PACFL's signature."""


@dataclasses.dataclass(frozen=True)
class InferenceParameters(Parameters):
    """FLIS's signature.

    Attributes:
      soft: Whether clients answer with probabilities instead of their most likely class.
    """

    soft: bool = False


@dataclasses.dataclass(frozen=True)
class PCACentresParameters(Parameters):
    """How the signature of PCA+kM+HC is computed.

    Attributes:
      num_components: The number of PCA's components, and so of the numbers of a centre (authors: 128).
      num_centres: k, k-means centres that a client sends (authors: 5).
    """

    num_components: Count = 128
    num_centres: Count = 5


@dataclasses.dataclass(frozen=True)
class PCACentresSignatureParameters(_Noised, PCACentresParameters):
    """The signature of PCA+kM+HC."""


@dataclasses.dataclass(frozen=True)
class EmbeddingSignatureParameters(_Noised):
    """FLT's signature.

    Attributes:
      encoder: What the server pre-trains the autoencoder on: a name from `tffcl list encoders`, a data set, or a file
        of a pre-trained one.
      encoder_epochs: Passes of the pre-training over its data.
      encoder_examples: How many of its images to use; default all.
      num_centres: k-means centres of the codes that a client sends; "classes": as many as it has classes.
      fine_tune_epochs: Epochs in which each client first fine-tunes the encoder on its own images.
    """

    encoder: str = "fashion_mnist"
    encoder_epochs: Count = 25
    encoder_examples: Count | None = None
    num_centres: Count | one_of((CLASSES,)) = 5
    fine_tune_epochs: Whole = 0


@dataclasses.dataclass(frozen=True)
class AnchorGradientSignatureParameters(_Noised):
    """StoCFL's signature.

    Attributes:
      form: What a client sends of its data: its "gradient" at the anchor, or its "displacement" from it after local
        training.
      projection: Dimensions that each client projects it to; 0, or the model's number of parameters, is no projection.
    """

    form: one_of(ANCHOR_FORMS) = "gradient"
    projection: Whole = 4096


@dataclasses.dataclass(frozen=True)
class PartialWeightsParameters(Parameters):
    """FedClust's signature.

    Attributes:
      warm_up_epochs: The number of epochs of local training before the weights are sent; the other hyper-parameters
        are those of training.
      layers: Names of the layers whose weights are sent; default the last one (the paper).
    """

    warm_up_epochs: Count = 5
    layers: Sequence[str] | None = None


@dataclasses.dataclass(frozen=True)
class CentresParameters(_Noised):
    """k-FED's signature.

    Attributes:
      num_centres: k', the number of k-means centres of its examples that a client sends.
    """

    num_centres: Count = 1


@dataclasses.dataclass(frozen=True)
class OutputsParameters(Parameters):
    """EMD-CFL's signature.

    Attributes:
      samples: n, the number of examples whose outputs a client sends (paper: up to 512, at most a tenth of its own).
        The server's work grows as n³ for each pair of clients.
    """

    samples: Annotated[int, msgspec.Meta(ge=1, le=512)] = 64


@dataclasses.dataclass(frozen=True)
class LabelHistogramParameters(Parameters):
    """The signature of the shares of a client's labels.

    Attributes:
      noise_multiplier: z: every share gets Gaussian noise of this standard deviation. A client's shares have norm 1 at
        most, so this is the noise multiplier of leaving the client out. 0 is no noise.
    """

    noise_multiplier: NonNegative = 0.0
