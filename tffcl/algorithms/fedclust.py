"""FedClust: clusters by the weights of the last layer after a local warm-up (Islam et al. 2024, arXiv:2407.07124).

Before the first round every client trains the common initial model for some epochs and sends the weights of its last layer; the
server clusters clients hierarchically by the Euclidean distance of these, once, and every cluster trains its own model.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import tensorflow_federated as tff

from tffcl.algorithms.method import Method, method_builder
from tffcl.algorithms.one_shot import CUTS, Cut, OneShotClustering, build_one_shot, check_cut, grouped_as
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clustering import hierarchical
from tffcl.clustering.vector_distances import VECTOR_METRICS, vector_distances
from tffcl.models.flat import FlatModel
from tffcl.signatures.partial_weights import build_partial_weights
from tffcl.validation import Count, Parameters, one_of


@dataclasses.dataclass(frozen=True)
class FedClustParameters(Parameters):
    """How FedClust groups clients.

    Attributes:
      warm_up_epochs: Epochs of local training before the weights are sent; the other hyper-parameters are those of training.
      layers: Names of the layers whose weights are sent; default the last one (the paper).
      metric: A name in `vector_distances.VECTOR_METRICS` (the paper: Euclidean).
      linkage: A name in `hierarchical.LINKAGES`.
      threshold: Merges up to this distance are made, in the unit of weights, so that it depends on model and warm-up; or a name in
        `one_shot.RULES`.
      num_clusters: The number of clusters instead. With neither, the threshold is "self".
    """

    alternatives: ClassVar = CUTS

    warm_up_epochs: Count = 5
    layers: Sequence[str] | None = None
    metric: one_of(VECTOR_METRICS) = "euclidean"
    linkage: one_of(hierarchical.LINKAGES) = "average"
    threshold: Cut | None = None
    num_clusters: Count | None = None

    def check(self):
        check_cut(self)


def build_clustering(model: FlatModel, training: LocalTraining, how: FedClustParameters, *, seed: int = 0) -> OneShotClustering:
    """Builds the grouping: partial weights, their distances, hierarchical clustering.

    Args:
      model: What is trained in the warm-up.
      training: Local hyper-parameters of the warm-up.
      how: Warm-up, layers, metric and cut.
      seed: Decides in which order clients visit their examples in the warm-up.
    """
    warm_up = dataclasses.replace(training, epochs=how.warm_up_epochs)
    signature = build_partial_weights(model, training=warm_up, layers=how.layers, seed=seed)
    unit = "distance of weights" if how.metric == "euclidean" else "1 - cosine"
    return grouped_as(how, signature, vector_distances, unit)


@method_builder
def build_fedclust(
    model: FlatModel,
    training: LocalTraining,
    parameters: FedClustParameters = FedClustParameters(),
    *,
    seed: int = 0,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> Method:
    """Builds FedClust.

    From the paper are the signature, the Euclidean distance, hierarchical clustering with a threshold and newcomers that are
    placed by their own warm-up (here as PACFL's Alg. 2 and 3 do); the linkage and the rule that decides without a threshold are
    ours.

    Args:
      model: What is trained.
      training: Local hyper-parameters.
      parameters: How clients are grouped.
      seed: Of the warm-up.
      aggregation: Of the updates inside each cluster, or over keyed updates; see
        `aggregators.clustered_mean.keyed_factory`.
    """
    clustering = build_clustering(model, training, parameters, seed=seed)
    return build_one_shot("fedclust", model, training, clustering, aggregation=aggregation)
