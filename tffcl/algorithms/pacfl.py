"""PACFL: principal angles between client data subspaces (Vahidian et al., AAAI 2023, arXiv:2209.10526).

Before training every client sends the first singular vectors of its data; the server measures the principal angles
between all pairs (Eq. 2 or 3), clusters them hierarchically, and every cluster trains its own model (Alg. 1).
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.algorithms.method import Method, method_builder
from tffcl.algorithms.one_shot import CUTS, Cut, OneShotClustering, build_one_shot, check_cut, grouped_as
from tffcl.algorithms.one_shot_arrivals import ARRIVALS, OneShotArrivals
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clustering import hierarchical, proximity
from tffcl.clustering.vector_distances import scale_remark, subspace_angles
from tffcl.models.flat import FlatModel
from tffcl.signatures.signature import Signature
from tffcl.signatures.subspace import PREPROCESSING, build_subspace
from tffcl.validation import Count, NonNegative, Parameters, Positive, Share, one_of, wrong


@dataclasses.dataclass(frozen=True)
class PACFLParameters(Parameters):
    """How PACFL groups clients.

    Attributes:
      num_vectors: p, singular vectors a client sends (paper: 3 to 5); with `energy` at most so many.
      energy: A client sends only as many as hold this share of its data's energy, the sum of squares; 1: all p.
      samples: A signature is of only so many of a client's examples, at random; default all.
      preprocess: What the vectors are of: "raw" pixels (the authors' code), "normalized" ones as the model takes them (their
        code for MIX-4), or "centred", less the mean of the client's examples.
      per_class: p vectors for each of the client's classes (the authors' code) instead of p over all its data (paper).
      max_classes: With `per_class`, room for so many classes a client; default all.
      metric: A name in `proximity.METRICS`: "smallest_angle" (Eq. 2), "trace" (Eq. 3), "angle_sum", "smallest_entry".
      linkage: A name in `hierarchical.LINKAGES`; "weighted" is what the authors' code calls average.
      threshold: β in degrees; merges up to it are made; or a name in `one_shot.RULES`.
      num_clusters: The number of clusters instead. With neither, the threshold is "self".
      when: "before_training": all clients are clustered before the first round (the authors' code, and the paper's "one-shot");
        "as_they_join": those of the first round are, with their threshold or number of clusters, and others are placed when
        they first take part (Alg. 1 lines 7 to 16).
      signature_noise_multiplier: z of the Gaussian noise that makes a client's vectors private, see `build_subspace`; 0 is
        none, and no clip.
      signature_clip: The largest norm of an example with it.
    """

    renamed: ClassVar = {"measure": "metric"}
    alternatives: ClassVar = CUTS

    num_vectors: Count = 3
    energy: Share = 1.0
    samples: Count | None = None
    preprocess: one_of(PREPROCESSING) = "raw"
    per_class: bool = False
    max_classes: Count | None = None
    metric: one_of(proximity.METRICS) = "smallest_angle"
    linkage: one_of(hierarchical.LINKAGES) = "average"
    threshold: Cut | None = None
    num_clusters: Count | None = None
    when: one_of(ARRIVALS) = "before_training"
    signature_noise_multiplier: NonNegative = 0.0
    signature_clip: Positive = 1.0

    def check(self):
        check_cut(self)
        if self.signature_noise_multiplier and (self.per_class or self.energy < 1):
            raise wrong(
                "signature_noise_multiplier",
                self.signature_noise_multiplier,
                "it is for a fixed number of vectors of all data; with per_class or energy it must be 0",
            )


def build_data_signature(model: FlatModel, clustering: PACFLParameters, method: str = "gram", **private) -> Signature:
    """Builds the signature that PACFL's clients send: the subspace of their data, as `clustering` says.

    Args:
      model: Decides the examples' type.
      clustering: How many vectors, of what.
      method: A name in `subspace.METHODS`.
      **private: Noise, clip and seed of a private signature, see `build_subspace`.
    """
    if clustering.preprocess == "normalized" and model.preprocess is tf.identity:
        rule = f'{model.name} takes examples as they are; it must be "raw" or "centred", or standardise the examples first'
        raise wrong("preprocess", "normalized", rule)
    return build_subspace(
        model.example_spec,
        clustering.num_vectors,
        per_class=clustering.per_class,
        num_classes=model.num_classes,
        max_classes=clustering.max_classes,
        preprocess=model.preprocess if clustering.preprocess == "normalized" else clustering.preprocess,
        samples=clustering.samples,
        energy=clustering.energy,
        method=method,
        **private,
    )


def build_clustering(
    model: FlatModel, training: LocalTraining, how: PACFLParameters, *, noise_seed: int | None = None
) -> OneShotClustering:
    """Builds PACFL's grouping (Alg. 1 lines 3 to 11): data subspaces, principal angles, hierarchical clustering.

    Args:
      model: Decides the examples' type.
      training: Not used: nothing is trained for the signature.
      how: Metric and cut.
      noise_seed: See `signatures.signature.build_signature`; what is exported draws anew.
    """
    del training
    private: dict[str, Any] = {"noise_multiplier": how.signature_noise_multiplier, "clip": how.signature_clip}
    on_device = build_data_signature(model, how, "power", **private)
    signature = build_data_signature(model, how, **private, noise_seed=noise_seed)
    remark = build_subspace_remark(model, how.preprocess)
    return grouped_as(how, signature, subspace_angles, "degrees", device_signature=on_device, remark=remark)


def build_subspace_remark(model: FlatModel, preprocess: str) -> Callable[[Mapping, np.ndarray], str]:
    """Builds what `OneShotClustering.remark` is for subspaces of the model's examples."""
    kind = model.example_spec["x"].dtype
    if kind.is_integer and kind != tf.uint8:
        tokens = f"the examples are {kind.name}; angles mean nothing where these are numbers of tokens: take another signature"
        return lambda signatures, angles: tokens
    return scale_remark if preprocess == "raw" else lambda signatures, angles: ""


@method_builder
def build_pacfl(
    model: FlatModel,
    training: LocalTraining,
    parameters: PACFLParameters = PACFLParameters(),
    *,
    noise_seed: int | None = None,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> Method:
    """Builds PACFL.

    All clients are clustered before the first round, or as they join, see `PACFLParameters.when`. All cluster models start from
    the same initial model (Alg. 1 line 12).

    Args:
      model: What is trained.
      training: Local hyper-parameters.
      parameters: How clients are grouped.
      noise_seed: Of private signatures, for simulations that are to be repeated; None draws anew.
      aggregation: Of the updates inside each cluster, e.g. `tff.aggregators.MeanFactory()`, or over keyed updates; see
        `aggregators.clustered_mean.keyed_factory`.

    Returns:
      The method, see `one_shot.OneShot`. The signatures of its state are `basis float32 [N, d, q]` and `mask bool [N, q]`;
      the proximity is in degrees.
    """
    grouping = build_clustering(model, training, parameters, noise_seed=noise_seed)
    found = build_one_shot("pacfl", model, training, grouping, aggregation=aggregation)
    return OneShotArrivals(found) if parameters.when == "as_they_join" else found
