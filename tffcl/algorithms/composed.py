"""A method composed of a signature, a metric, a linkage and a local training, also where no paper has it.

Clients send the signature before the first round, the server clusters them hierarchically by the metric, and every cluster
trains its own model: PACFL, FLIS (HC) and PCA+kM+HC are points of this space.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import numpy as np
import tensorflow_federated as tff

from tffcl.algorithms.method import Method, method_builder
from tffcl.algorithms.one_shot import CUTS, THRESHOLD, Cut, OneShot, OneShotClustering, check_cut, cut_of
from tffcl.algorithms.pacfl import PACFLParameters, build_data_signature, build_subspace_remark
from tffcl.algorithms.trainings import build_training, training_of
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clustering import hierarchical, inference_similarity, proximity, taskonomy
from tffcl.clustering.vector_distances import (
    VECTOR_METRICS,
    answer_dissimilarities,
    centre_distances,
    subspace_angles,
    vector_distances,
)
from tffcl.errors import UserError, unknown
from tffcl.models.flat import FlatModel
from tffcl.references import is_reference, load_reference, named
from tffcl.registry import find, given, made_by, registered
from tffcl.signatures.anchor_gradient import build_anchor_gradient
from tffcl.signatures.descriptors import build_descriptors
from tffcl.signatures.embedding import CLASSES, Centres, build_embedding
from tffcl.signatures.label_histogram import build_label_histogram
from tffcl.signatures.partial_weights import build_partial_weights
from tffcl.signatures.pca_centres import build_pca_centres
from tffcl.signatures.predictions import build_inference, check_images
from tffcl.signatures.signature import Signature
from tffcl.signatures.subspace import PREPROCESSING
from tffcl.validation import Count, NonNegative, Parameters, Positive, Share, check_options, one_of


@dataclasses.dataclass(frozen=True)
class ComposedParameters(Parameters):
    """What a composed method is made of.

    Attributes:
      signature: A name in `SIGNATURES`, one that a package has registered, a builder "module:function" `(model, *, ...) ->
        Signature`, or a table of one of them with its parameters: {name = "subspace", num_vectors = 5}.
      metric: How far two clients are apart: one of the signature's own, "euclidean" or "cosine"; default the signature's first.
      linkage: A name in `hierarchical.WITH_WARD`.
      threshold: Merges up to this distance are made; or a name in `one_shot.RULES`.
      num_clusters: The number of clusters instead. With neither, the threshold is "self".
      training: A name in `TRAININGS`, or a table of one with its parameters: {name = "proximal", proximal_weight = 0.1}.
    """

    alternatives: ClassVar = CUTS

    signature: str | dict = "subspace"
    metric: str | None = None
    linkage: one_of(hierarchical.WITH_WARD) = "average"
    threshold: Cut | None = None
    num_clusters: Count | None = None
    training: str | dict = "sgd"

    def check(self):
        check_cut(self)
        name, _ = named("signature", self.signature)
        if not is_reference(name):
            find("signatures", name, key="signature")
        metrics = {**(SIGNATURES[name].metrics if name in SIGNATURES else {}), **VECTOR_METRICS}
        if self.metric is not None and self.metric not in metrics:
            raise unknown(f"metric of signature {name}", self.metric, metrics, key="metric")
        training_of(self.training)


@dataclasses.dataclass(frozen=True)
class SignatureKind:
    """A signature that can be named.

    Attributes:
      build: `(model, *, own parameters, what the run gives) -> Signature`.
      metrics: Names of the metrics made for it; the first is the default.
      distances: `(metric, first, second or None) -> [N, M]` for these.
      unit: Of these.
      build_device: As `build`, the same by operations that device runtimes have, where they lack some: what is exported.
    """

    build: Callable[..., Signature]
    metrics: Mapping[str, str] = dataclasses.field(default_factory=dict)
    distances: Callable = vector_distances
    unit: str = "distance"
    build_device: Callable[..., Signature] | None = None


def _subspace(
    model: FlatModel, *, num_vectors: Count = 3, per_class: bool = False, max_classes: Count | None = None,
    preprocess: one_of(PREPROCESSING) = "raw", samples: Count | None = None, energy: Share = 1.0,
    noise_multiplier: NonNegative = 0.0, clip: Positive = 1.0, noise_seed: int | None = None,
):  # fmt: skip
    """PACFL's signature.

    Args:
      num_vectors: p, singular vectors that a client sends; with `energy` at most so many.
      per_class: p vectors for each of the client's classes instead of p over all its data.
      max_classes: With `per_class`, room for so many classes a client; default all.
      preprocess: What the vectors are of: "raw" pixels, "normalized" ones as the model takes them, or "centred", less the mean
        of the client's examples.
      samples: A signature is of only so many of a client's examples, at random; default all.
      energy: A client sends only as many as hold this share of its data's energy, the sum of squares; 1: all p.
      noise_multiplier: z of the Gaussian noise that makes a client's signature private; 0: none, and no clip.
      clip: The largest norm of an example, with noise.
    """
    how = {"num_vectors": num_vectors, "per_class": per_class, "max_classes": max_classes}
    how |= {"preprocess": preprocess, "samples": samples, "energy": energy}
    private = {"noise_multiplier": noise_multiplier, "clip": clip, "noise_seed": noise_seed}
    return build_data_signature(model, PACFLParameters(**how), **private)


def _device_subspace(model: FlatModel, *, noise_multiplier: float = 0.0, clip: float = 1.0, **how):
    private = {"noise_multiplier": noise_multiplier, "clip": clip}
    return build_data_signature(model, PACFLParameters(**how), "power", **private)


def _inference(model: FlatModel, *, training, server_images, seed, soft: bool = False):
    """FLIS's signature.

    Args:
      soft: Whether clients answer with probabilities instead of their most likely class.
    """
    return build_inference(model, training, check_images(model, server_images), soft=soft, seed=seed)


def _pca_centres(
    model: FlatModel, *, seed, num_components: Count = 128, num_centres: Count = 5,
    noise_multiplier: NonNegative = 0.0, clip: Positive = 1.0, noise_seed: int | None = None,
):  # fmt: skip
    """The signature of PCA+kM+HC.

    Args:
      num_components: Of PCA; a centre has so many numbers.
      num_centres: k-means centres that a client sends.
      noise_multiplier: z of the Gaussian noise that makes a client's signature private; 0: none, and no clip.
      clip: The largest norm of a centre, with noise.
    """
    how = {"num_components": num_components, "num_centres": num_centres, "seed": seed}
    return build_pca_centres(model.example_spec, **how, noise_multiplier=noise_multiplier, clip=clip, noise_seed=noise_seed)


def _embedding(
    model: FlatModel, *, find_encoder, seed, encoder: str = "fashion_mnist", encoder_epochs: Count = 25,
    encoder_examples: Count | None = None, num_centres: Count | one_of((CLASSES,)) = 5, fine_tune_epochs: int = 0,
    noise_multiplier: NonNegative = 0.0, clip: Positive = 1.0, noise_seed: int | None = None,
):  # fmt: skip
    """FLT's signature.

    Args:
      encoder: What the server pre-trains the autoencoder on: a name of `tffcl list encoders`, a data set, or a file of a
        pre-trained one.
      encoder_epochs: Passes of the pre-training over its data.
      encoder_examples: Only so many of its images; default all.
      num_centres: k-means centres of the codes that a client sends; "classes": as many as it has classes.
      fine_tune_epochs: Epochs in which each client fine-tunes the encoder on its own images first.
      noise_multiplier: z of the Gaussian noise that makes a client's signature private; 0: none, and no clip.
      clip: The largest norm of a centre, with noise.
    """
    autoencoder, vector = find_encoder(encoder, epochs=encoder_epochs, examples=encoder_examples)
    centres = Centres.named(num_centres, model.num_classes)
    options = {"num_centres": centres.most, "by_class": centres.by_class, "fine_tune_epochs": fine_tune_epochs, "seed": seed}
    options |= {"noise_multiplier": noise_multiplier, "clip": clip, "noise_seed": noise_seed}
    return build_embedding(autoencoder, vector, model.example_spec, **options)


def _anchor_gradient(
    model: FlatModel, *, training, seed, form: str = "gradient", projection: int = 4096,
    noise_multiplier: NonNegative = 0.0, clip: Positive = 1.0, noise_seed: int | None = None,
):  # fmt: skip
    """StoCFL's signature.

    Args:
      form: What a client sends of its data: its "gradient" at the anchor, or its "displacement" from it after local training.
      projection: Dimensions that each client projects it to; 0, or as many as the model has parameters, is none.
      noise_multiplier: z of the Gaussian noise that makes a client's signature private; 0: none, and no clip.
      clip: The largest norm of a signature, with noise.
    """
    private = {"noise_multiplier": noise_multiplier, "clip": clip, "noise_seed": noise_seed}
    return build_anchor_gradient(model, form=form, local=training, projection=projection, seed=seed, **private)


def _descriptors(model: FlatModel):
    return build_descriptors(model)


def _partial_weights(
    model: FlatModel, *, training: LocalTraining, seed, warm_up_epochs: Count = 5, layers: Sequence[str] | None = None
):
    """FedClust's signature.

    Args:
      warm_up_epochs: Local epochs after which weights are compared.
      layers: Names of the layers that are; default the last.
    """
    warm_up = dataclasses.replace(training, epochs=warm_up_epochs)
    return build_partial_weights(model, training=warm_up, layers=layers, seed=seed)


SIGNATURES = {
    "subspace": SignatureKind(_subspace, proximity.METRICS, subspace_angles, "degrees", _device_subspace),
    "inference": SignatureKind(_inference, inference_similarity.FORMS, answer_dissimilarities, "dissimilarity"),
    "pca_centres": SignatureKind(_pca_centres, taskonomy.DISTANCES, centre_distances, "distance of centres"),
    "embedding": SignatureKind(_embedding, taskonomy.DISTANCES, centre_distances, "distance of centres"),
    "anchor_gradient": SignatureKind(_anchor_gradient, {"cosine": VECTOR_METRICS["cosine"]}, unit="1 - cosine"),
    "partial_weights": SignatureKind(_partial_weights),
    "descriptors": SignatureKind(_descriptors),
    "label_histogram": SignatureKind(build_label_histogram),
}


def build_clustering(
    model: FlatModel, training: LocalTraining, parameters: ComposedParameters = ComposedParameters(), **values
) -> OneShotClustering:
    """Builds the grouping; arguments as in `build_composed`."""
    name, own = named("signature", parameters.signature)
    kind = SIGNATURES.get(name) or SignatureKind(load_reference(registered("signatures").get(name, name), where="signature"))
    own = check_options(f"signature {name}", kind.build, own, given=given("signatures"))
    taken = [each for each in given("signatures") if each in inspect.signature(kind.build).parameters]
    needed = {each: {"training": training, **values}.get(each) for each in taken}
    signature = made_by("signatures", name, kind.build, None, model, **own, **needed)
    if not isinstance(signature, Signature):
        raise UserError(
            f"signature {name} gave {type(signature).__name__}; it must give a tffcl Signature, see build_signature"
        )
    metric = parameters.metric or next(iter({**kind.metrics, **VECTOR_METRICS}))
    distances, unit = (kind.distances, kind.unit) if metric in kind.metrics else (vector_distances, metric)
    return OneShotClustering(
        signature, lambda first, second: distances(metric, first, second), unit=unit, metric=metric,
        linkage=parameters.linkage, threshold=cut_of(parameters), num_clusters=parameters.num_clusters, setting=THRESHOLD,
        device_signature=kind.build_device(model, **own) if kind.build_device else None,
        remark=build_subspace_remark(model, own.get("preprocess", "raw")) if name == "subspace" else None,
    )  # fmt: skip


@method_builder
def build_composed(
    model: FlatModel,
    training: LocalTraining,
    parameters: ComposedParameters = ComposedParameters(),
    *,
    seed: int = 0,
    server_images: np.ndarray | None = None,
    find_encoder: Callable | None = None,
    noise_seed: int | None = None,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> Method:
    """Builds a method of a signature, a metric, a linkage and a local training.

    Args:
      model: What is trained.
      training: Local hyper-parameters.
      parameters: What it is made of.
      seed: Of the signature.
      server_images: For the signature "inference": what models are compared on.
      find_encoder: For "embedding": `(name, epochs=, examples=) -> (autoencoder, vector)`.
      noise_seed: Of private signatures, for simulations that are to be repeated; None draws anew.
      aggregation: Of the updates inside each cluster, or over keyed updates; see `aggregators.clustered_mean.keyed_factory`.
    """
    values = {"seed": seed, "server_images": server_images, "find_encoder": find_encoder, "noise_seed": noise_seed}
    clustering = build_clustering(model, training, parameters, **values)
    engine = build_training(parameters.training, model, training, aggregation=aggregation)
    return OneShot("composed", engine, clustering)
