"""A method composed of a signature, a metric, a grouping and a local training, also in combinations without a paper.

Clients send the signature before the first round, the server groups them by the metric, and every cluster trains its
own model. PACFL and the other methods of `presets` are such combinations.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.algorithms.grouping_in_time import in_time
from tffcl.algorithms.method import Method, method_builder
from tffcl.algorithms.one_shot import THRESHOLD, OneShot, OneShotClustering
from tffcl.algorithms.parameters import METRICS, ComposedParameters
from tffcl.algorithms.soft_grouping import SoftGrouping
from tffcl.algorithms.training_parameters import training_of
from tffcl.choices import DENSITY, SOFT, TREE, VECTOR_METRICS
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clustering.groupings import GROUPINGS
from tffcl.clustering.vector_distances import (
    answer_dissimilarities,
    centre_distances,
    centre_points,
    room_remark,
    sample_distances,
    scale_remark,
    subspace_angles,
    vector_distances,
    vector_points,
)
from tffcl.errors import UserError
from tffcl.models.flat import FlatModel
from tffcl.models.from_keras import as_it_is
from tffcl.references import is_reference, named
from tffcl.registry import Row, find, given, made_by, parameters_of
from tffcl.signatures.anchor_gradient import build_anchor_gradient
from tffcl.signatures.centres import build_centres, build_pca_centres
from tffcl.signatures.embedding import Centres, build_embedding
from tffcl.signatures.partial_weights import build_partial_weights
from tffcl.signatures.predictions import build_inference, build_outputs
from tffcl.signatures.signature import Signature
from tffcl.signatures.subspace import build_subspace
from tffcl.validation import Parameters, check_options, wrong


@dataclasses.dataclass(frozen=True)
class SignatureKind:
    """A signature that has metrics of its own, or whose builder takes more than its keys. Other signatures do not need
    this: their row in the registry names their builder, whose keyword-only parameters are the keys.

    Attributes:
      build: `(model, [parameters,] *, values of the run) -> Signature`.
      distances: `(metric, first, second or None) -> [N, M]` for the metrics that are made for it.
      unit: The unit of these metrics.
      points: `(metric, first, second or None) -> [N, ...]`, the points for groupings of points; None: there are none.
      build_device: As `build`, but only with operations that device runtimes have; this is exported.
      remark: `(model, parameters) -> OneShotClustering.remark`.
    """

    build: Callable[..., Signature]
    distances: Callable = vector_distances
    unit: str = "distance"
    points: Callable | None = None
    build_device: Callable[..., Signature] | None = None
    remark: Callable[..., Callable[[Mapping, np.ndarray], str]] | None = None


def _subspace(model: FlatModel, how, *, method: str = "gram", noise_seed: int | None = None) -> Signature:
    if how.preprocess == "normalized" and model.preprocess is as_it_is:
        rule = (
            f'{model.name} takes examples as they are; it must be "raw" or "centred", or standardise the examples first'
        )
        raise wrong("preprocess", "normalized", rule)
    classes = model.objective.classes_for("per_class", all_count=True) if how.per_class else None
    return build_subspace(
        model.example_spec, how.num_vectors, per_class=how.per_class, num_classes=classes,
        max_classes=how.max_classes, preprocess=model.preprocess if how.preprocess == "normalized" else how.preprocess,
        samples=how.samples, energy=how.energy, method=method, **how.noise, noise_seed=noise_seed,
    )  # fmt: skip


def _subspace_remark(model: FlatModel, how) -> Callable[[Mapping, np.ndarray], str]:
    kinds = [leaf.dtype for leaf in tf.nest.flatten(model.example_spec["x"])]
    whole = [kind.name for kind in kinds if kind.is_integer and kind != tf.uint8]
    if whole:
        tokens = (
            f"the examples are {', '.join(whole)}; angles mean nothing where these are numbers of tokens: take "
            "another signature, e.g. label_histogram for next characters"
        )
        return lambda signatures, angles: tokens
    room = functools.partial(room_remark, per_class=how.per_class)
    if how.preprocess != "raw":
        return room
    return lambda signatures, angles: room(signatures, angles) or scale_remark(signatures, angles)


def _inference(model: FlatModel, how, *, training: LocalTraining, server_images, seed: int) -> Signature:
    return build_inference(model, training, server_images, soft=how.soft, seed=seed)


def _pca_centres(model: FlatModel, how, *, seed: int, noise_seed: int | None = None) -> Signature:
    shape = {"num_components": how.num_components, "num_centres": how.num_centres}
    return build_pca_centres(model.example_spec, **shape, seed=seed, **how.noise, noise_seed=noise_seed)


def _centres(model: FlatModel, how, *, seed: int, noise_seed: int | None = None) -> Signature:
    return build_centres(model.example_spec, num_centres=how.num_centres, seed=seed, **how.noise, noise_seed=noise_seed)


def _outputs(model: FlatModel, how, *, seed: int) -> Signature:
    return build_outputs(model, samples=how.samples, seed=seed)


def _embedding(model: FlatModel, how, *, find_encoder, seed: int, noise_seed: int | None = None) -> Signature:
    if not callable(find_encoder):
        raise UserError(
            "the signature embedding needs an encoder of images; give find_encoder=, a function (name, epochs=, "
            "examples=) -> (autoencoder, vector): functools.partial(tffcl.lab.tasks.encoders.find_encoder, "
            "input_shape=(28, 28, 1)) finds or trains one"
        )
    autoencoder, vector = find_encoder(how.encoder, epochs=how.encoder_epochs, examples=how.encoder_examples)
    centres = Centres.named(how.num_centres, model.objective)
    return build_embedding(
        autoencoder, vector, model.example_spec, num_centres=centres.most, by_class=centres.by_class,
        fine_tune_epochs=how.fine_tune_epochs, seed=seed, **how.noise, noise_seed=noise_seed,
    )  # fmt: skip


def _anchor_gradient(
    model: FlatModel, how, *, training: LocalTraining, seed: int, noise_seed: int | None = None
) -> Signature:
    options = {"form": how.form, "local": training, "projection": how.projection, "seed": seed}
    return build_anchor_gradient(model, **options, **how.noise, noise_seed=noise_seed)


def _partial_weights(model: FlatModel, how, *, training: LocalTraining, seed: int) -> Signature:
    warm_up = dataclasses.replace(training, epochs=how.warm_up_epochs)
    return build_partial_weights(model, training=warm_up, layers=how.layers, seed=seed)


SIGNATURES = {
    "subspace": SignatureKind(
        _subspace,
        subspace_angles,
        "degrees",
        build_device=functools.partial(_subspace, method="power"),
        remark=_subspace_remark,
    ),
    "inference": SignatureKind(_inference, answer_dissimilarities, "dissimilarity"),
    "pca_centres": SignatureKind(_pca_centres, centre_distances, "distance of centres", centre_points),
    "embedding": SignatureKind(_embedding, centre_distances, "distance of centres", centre_points),
    "centres": SignatureKind(_centres, centre_distances, "distance of centres", centre_points),
    "outputs": SignatureKind(_outputs, sample_distances, "distance of outputs"),
    "anchor_gradient": SignatureKind(_anchor_gradient, unit="1 - cosine"),
    "partial_weights": SignatureKind(_partial_weights),
}


def build_grouping(name: str, model: FlatModel, how: Parameters | None, cut, **values) -> OneShotClustering:
    """Builds the grouping by a signature of `SIGNATURES`.

    Args:
      name: The name of the signature.
      how: The signature's parameters; None if it has none.
      cut: Metric, grouping, linkage, threshold and number of clusters, as in `ComposedParameters`; `CutParameters`,
        which have no grouping, mean the tree.
      **values: Values of the run, including `training`; the signature takes those that it needs.
    """
    kind, own = SIGNATURES[name], () if how is None else (how,)
    signature = kind.build(model, *own, **_taken(kind.build, values))
    more = {
        "device_signature": kind.build_device(model, *own) if kind.build_device else None,
        "remark": kind.remark(model, *own) if kind.remark else None,
    }
    return _grouped(signature, kind, METRICS.get(name, {}), cut, values.get("seed"), **more)


def _taken(build: Callable, values: Mapping) -> dict:
    """The values of a run that a signature's builder takes; None for one that the run does not have."""
    return {each: values.get(each) for each in given("signatures") if each in inspect.signature(build).parameters}


def _grouped(
    signature: Signature, kind: SignatureKind, own: Mapping[str, str], cut, seed: int | None, **more
) -> OneShotClustering:
    metric, grouping = cut.metric or next(iter({**own, **VECTOR_METRICS})), getattr(cut, "grouping", TREE)
    distances, unit, points = (kind.distances, kind.unit, kind.points) if metric in own else (None, metric, None)
    if metric in VECTOR_METRICS:
        directions = {"directions": cut.num_clusters}
        distances, points = (functools.partial(each, **directions) for each in (vector_distances, vector_points))
    return OneShotClustering(
        signature, functools.partial(distances, metric), unit=unit, metric=metric,
        linkage="single" if grouping == DENSITY else cut.linkage, threshold=cut.cut, num_clusters=cut.num_clusters,
        setting=THRESHOLD, grouping=GROUPINGS.get(grouping), points=points and functools.partial(points, metric),
        seed=seed or 0, **more,
    )  # fmt: skip


def group_composed(
    model: FlatModel, training: LocalTraining, parameters: ComposedParameters = ComposedParameters(), **values
) -> OneShotClustering:
    """Builds the grouping; arguments as in `build_composed`."""
    name, own = named("signature", parameters.signature)
    values = {"training": training, **values}
    if name in SIGNATURES:
        how = parameters_of(find("signatures", name).parameter_class(), own, f"signature {name}")
        return build_grouping(name, model, how, parameters, **values)
    row = Row("", name, foreign="signature") if is_reference(name) else find("signatures", name)
    build = row.builder()
    own = vars(parameters_of(row.parameter_class(), own, f"signature {name}")) if row.parameters else own
    own = check_options(f"signature {name}", build, own, given=given("signatures"))
    signature = made_by("signatures", name, build, None, model, **own, **_taken(build, values))
    if not isinstance(signature, Signature):
        raise UserError(
            f"signature {name} gave {type(signature).__name__}; it must give a tffcl Signature, see build_signature"
        )
    return _grouped(signature, SignatureKind(build), {}, parameters, values.get("seed"))


@method_builder
def build_composed(
    model: FlatModel,
    training: LocalTraining,
    parameters: ComposedParameters = ComposedParameters(),
    *,
    seed: int = 0,
    server_images: np.ndarray | Mapping[str, np.ndarray] | None = None,
    find_encoder: Callable | None = None,
    noise_seed: int | None = None,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> Method:
    """Builds a method of a signature, a metric, a grouping and a local training; other arguments as in `build_fedavg`.

    Args:
      parameters: The parts of the method.
      seed: Seed of the signature and the grouping.
      server_images: For the signature "inference", the images on which models are compared.
      find_encoder: For the signature "embedding", `(name, epochs=, examples=) -> (autoencoder, vector)`.
      noise_seed: Seed of the noise of private signatures, to repeat simulations; None draws new noise.
    """
    values = {"seed": seed, "server_images": server_images, "find_encoder": find_encoder, "noise_seed": noise_seed}
    clustering = group_composed(model, training, parameters, **values)
    if parameters.grouping == SOFT:
        return SoftGrouping("composed", model, training, clustering, parameters.temperature, aggregation)
    row, own = training_of(parameters.training)
    engine = row.builder()(model, training, *own, aggregation=aggregation)
    return in_time(OneShot("composed", engine, clustering), parameters)
