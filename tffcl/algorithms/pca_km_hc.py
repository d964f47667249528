"""PCA+kM+HC: the clustering baseline of FLT (section IV-C, after Dennis et al. 2021): no encoder and no manifold.

Every client projects its images on its own principal components and sends the k-means centres of the projections; the
server measures the distances between clients' centres and clusters hierarchically, once.

FLT's code relates clients nearer than 1.2 and clusters the rows of that matrix of 0 and 1 by Ward's method, as FLT itself does
with its map. Here the distances are clustered by Ward's method (section IV-A3): in the projections' own unit one threshold
holds for one data set only.
"""

import dataclasses
from typing import ClassVar

import tensorflow_federated as tff

from tffcl.algorithms.method import Method, method_builder
from tffcl.algorithms.one_shot import CUTS, Cut, OneShotClustering, build_one_shot, check_cut, grouped_as
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clustering import hierarchical, taskonomy
from tffcl.clustering.vector_distances import centre_distances
from tffcl.models.flat import FlatModel
from tffcl.signatures.pca_centres import build_pca_centres
from tffcl.validation import Count, NonNegative, Parameters, Positive, one_of


@dataclasses.dataclass(frozen=True)
class PCAKMHCParameters(Parameters):
    """How PCA+kM+HC groups clients.

    Attributes:
      num_components: Of the projection (authors: 128).
      num_centres: k (authors: 5).
      metric: A name in `taskonomy.DISTANCES` (authors: "matching").
      linkage: A name in `hierarchical.WITH_WARD` (paper: "ward").
      threshold: Merges up to this distance are made; or a name in `one_shot.RULES`.
      num_clusters: The number of clusters instead. With neither, the threshold is "self".
      signature_noise_multiplier: z of the Gaussian noise that makes a client's centres private, see
        `private_noise.noised_centres`; 0 is none, and no clip.
      signature_clip: The largest norm of a centre with it.
    """

    renamed: ClassVar = {"distance": "metric"}
    alternatives: ClassVar = CUTS

    num_components: Count = 128
    num_centres: Count = 5
    metric: one_of(taskonomy.DISTANCES) = "matching"
    linkage: one_of(hierarchical.WITH_WARD) = "ward"
    threshold: Cut | None = None
    num_clusters: Count | None = None
    signature_noise_multiplier: NonNegative = 0.0
    signature_clip: Positive = 1.0

    def check(self):
        check_cut(self)


def build_clustering(
    model: FlatModel, training: LocalTraining, how: PCAKMHCParameters, *, seed: int = 0, noise_seed: int | None = None
) -> OneShotClustering:
    """Builds the grouping: PCA and k-means on the clients, matched distances, hierarchical clustering.

    Args:
      model: Decides the examples' type.
      training: Not used: nothing is trained for the signature.
      how: Projection, metric and cut.
      seed: Of the clients' k-means.
      noise_seed: See `signatures.signature.build_signature`.
    """
    del training
    signature = build_pca_centres(
        model.example_spec, num_components=how.num_components, num_centres=how.num_centres, seed=seed,
        noise_multiplier=how.signature_noise_multiplier, clip=how.signature_clip, noise_seed=noise_seed,
    )  # fmt: skip
    return grouped_as(how, signature, centre_distances, "distance of centres")


@method_builder
def build_pca_km_hc(
    model: FlatModel,
    training: LocalTraining,
    parameters: PCAKMHCParameters = PCAKMHCParameters(),
    *,
    seed: int = 0,
    noise_seed: int | None = None,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> Method:
    """Builds PCA+kM+HC.

    Each client's components are its own, as in the authors' code, so centres of different clients have no common basis:
    that is a weakness of the baseline.

    Args:
      model: What is trained.
      training: Local hyper-parameters.
      parameters: How clients are grouped.
      seed: Of the clients' k-means.
      noise_seed: Of private signatures, for simulations that are to be repeated; None draws anew.
      aggregation: Of the updates inside each cluster, e.g. `tff.aggregators.MeanFactory()`, or over keyed updates; see
        `aggregators.clustered_mean.keyed_factory`.

    Returns:
      The method, see `one_shot.OneShot`. The signatures of its state are `centres float32 [N, k, c]` and `mask bool [N, k]`.
    """
    grouping = build_clustering(model, training, parameters, seed=seed, noise_seed=noise_seed)
    return build_one_shot("pca_km_hc", model, training, grouping, aggregation=aggregation)
