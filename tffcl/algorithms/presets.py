"""Methods that only choose parts: a signature, a metric and a cut in the one-shot composition.

Before training every client sends its signature, the server clusters clients hierarchically (k-FED: by k-means), and
every cluster trains its own model; all cluster models start from the same initial one. Newcomers are placed as in
PACFL's Alg. 2 and 3.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
import tensorflow_federated as tff

from tffcl.algorithms.composed import build_grouping, group_composed
from tffcl.algorithms.grouping_in_time import build_one_shot
from tffcl.algorithms.method import Method, method_builder
from tffcl.algorithms.one_shot import OneShotClustering
from tffcl.algorithms.parameters import (
    ComposedParameters,
    EMDCFLParameters,
    FedClustParameters,
    FLHCParameters,
    FLISHCParameters,
    KFedParameters,
    PACFLParameters,
    PCAKMHCParameters,
)
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clustering.vector_distances import check_threshold
from tffcl.models.flat import FlatModel
from tffcl.signatures.parameters import AnchorGradientSignatureParameters
from tffcl.signatures.predictions import num_answers

_ROUNDING = 1e-6  # a pair at exactly β merges, although its float32 dissimilarity may be just above 1 - β


def group_pacfl(
    model: FlatModel, training: LocalTraining, how: PACFLParameters, *, noise_seed=None
) -> OneShotClustering:
    """Builds PACFL's grouping (Alg. 1 lines 3 to 11): data subspaces, principal angles, hierarchical clustering."""
    return build_grouping("subspace", model, how, how, training=training, noise_seed=noise_seed)


@method_builder
def build_pacfl(
    model: FlatModel,
    training: LocalTraining,
    parameters: PACFLParameters = PACFLParameters(),
    *,
    noise_seed: int | None = None,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> Method:
    """Builds PACFL: principal angles between client data subspaces (Vahidian et al., AAAI 2023, arXiv:2209.10526).

    Before training every client sends the first singular vectors of its data; the server measures the principal angles
    between all pairs (Eq. 2 or 3), clusters them hierarchically, and every cluster trains its own model (Alg. 1). All
    clients are clustered before the first round, or as they join, see `PACFLParameters.when`. All cluster models start
    from the same initial model (Alg. 1 line 12). Other arguments are as in `build_fedavg`.

    Args:
      parameters: How clients are grouped.
      noise_seed: Seed of the noise of private signatures, to repeat simulations; None draws new noise.

    Returns:
      The method, see `one_shot.OneShot`. The signatures of its state are `basis float32 [N, d, q]` and `mask bool [N,
      q]`; the proximity is in degrees.
    """
    grouping = group_pacfl(model, training, parameters, noise_seed=noise_seed)
    return build_one_shot("pacfl", model, training, grouping, when=parameters, aggregation=aggregation)


def group_flis_hc(
    model: FlatModel, training: LocalTraining, how: FLISHCParameters, *, server_images, seed: int = 0
) -> OneShotClustering:
    """Builds FLIS's grouping (Alg. 3 lines 4 to 6); arguments as in `build_flis_hc`.

    Raises:
      UserError: If there are no images, they do not fit the model, or no similarity can reach β.
    """
    found = build_grouping("inference", model, how, how, training=training, server_images=server_images, seed=seed)
    found = dataclasses.replace(found, setting={"threshold": lambda threshold: 1 - threshold})
    if not isinstance(how.threshold, float):
        return found
    classes = model.num_classes if how.soft else None
    check_threshold(how.threshold, how.metric, num_answers(model, server_images), classes)
    return dataclasses.replace(found, threshold=1 - how.threshold + _ROUNDING)


@method_builder
def build_flis_hc(
    model: FlatModel,
    training: LocalTraining,
    parameters: FLISHCParameters = FLISHCParameters(),
    *,
    server_images: np.ndarray | Mapping[str, np.ndarray] | None,
    seed: int = 0,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> Method:
    """Builds FLIS (HC): hierarchical clustering by inference similarity after a warm-up (Morafah et al.,
    arXiv:2208.09754, Alg. 3).

    Before the first round every client trains the initial model on its own data and answers the server's images;
    clients whose models answer alike are clustered hierarchically, once, and every cluster trains its own model from
    the initial one. That is Alg. 3. The authors' released code does not cluster hierarchically: it relates clients by a
    fixed threshold, and each averages the last models of its relatives. Newcomers do the warm-up too and join the
    cluster whose members' models answer like theirs, see `newcomers.assign_newcomers`. Other arguments are as in
    `build_fedavg`.

    Args:
      training: Local hyper-parameters, also for the warm-up.
      parameters: How clients are grouped.
      server_images: The images on which models are compared, `uint8 [n, ...]` (paper: 2,500); by input for a model of
        several inputs.
      seed: Seed of the warm-up; it decides in which order clients visit their examples.

    Returns:
      The method, see `one_shot.OneShot`. The signatures of its state are the answers, `value`: `int32 [N, n]` or
      `float32 [N, n, C]`; the proximity is the dissimilarity, 1 - similarity.
    """
    grouping = group_flis_hc(model, training, parameters, server_images=server_images, seed=seed)
    return build_one_shot("flis_hc", model, training, grouping, when=parameters, aggregation=aggregation)


def group_pca_km_hc(
    model: FlatModel, training: LocalTraining, how: PCAKMHCParameters, *, seed: int = 0, noise_seed: int | None = None
) -> OneShotClustering:
    """Builds the grouping: PCA and k-means on the clients, matched distances, hierarchical clustering."""
    return build_grouping("pca_centres", model, how, how, training=training, seed=seed, noise_seed=noise_seed)


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
    """Builds PCA+kM+HC, the clustering baseline of FLT (section IV-C, after Dennis et al. 2021), without encoder and
    manifold.

    Every client projects its images on its own principal components and sends the k-means centres of the projections;
    the server measures the distances between clients' centres and clusters hierarchically, once. Each client has its
    own components, as in the authors' code, so centres of different clients have no common basis, which is a weakness
    of the baseline.

    FLT's code relates clients nearer than 1.2 and clusters the rows of that matrix of 0 and 1 by Ward's method, as FLT
    itself does with its map. Here the distances are clustered by Ward's method (section IV-A3), because a threshold in
    the projections' own unit suits one data set only. Other arguments are as in `build_fedavg`.

    Args:
      parameters: How clients are grouped.
      seed: Seed of the clients' k-means.
      noise_seed: Seed of the noise of private signatures, to repeat simulations; None draws new noise.

    Returns:
      The method, see `one_shot.OneShot`. The signatures of its state are `centres float32 [N, k, c]` and `mask bool [N,
      k]`.
    """
    grouping = group_pca_km_hc(model, training, parameters, seed=seed, noise_seed=noise_seed)
    return build_one_shot("pca_km_hc", model, training, grouping, when=parameters, aggregation=aggregation)


def group_fedclust(
    model: FlatModel, training: LocalTraining, how: FedClustParameters, *, seed: int = 0
) -> OneShotClustering:
    """Builds the grouping: partial weights, their distances, hierarchical clustering."""
    found = build_grouping("partial_weights", model, how, how, training=training, seed=seed)
    return dataclasses.replace(found, unit="distance of weights" if how.metric == "euclidean" else "1 - cosine")


@method_builder
def build_fedclust(
    model: FlatModel,
    training: LocalTraining,
    parameters: FedClustParameters = FedClustParameters(),
    *,
    seed: int = 0,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> Method:
    """Builds FedClust: clusters by the weights of the last layer after a local warm-up (Islam et al. 2024,
    arXiv:2407.07124).

    Before the first round every client trains the common initial model for some epochs and sends the weights of its
    last layer; the server clusters clients hierarchically by the Euclidean distance of these, once, and every cluster
    trains its own model. The signature, the Euclidean distance, hierarchical clustering with a threshold, and newcomers
    that are placed by their own warm-up (here as in PACFL's Alg. 2 and 3) are from the paper. The linkage and the rule
    that decides without a threshold are ours. Other arguments are as in `build_fedavg`.

    Args:
      parameters: How clients are grouped.
      seed: Seed of the warm-up; it decides in which order clients visit their examples.
    """
    clustering = group_fedclust(model, training, parameters, seed=seed)
    return build_one_shot("fedclust", model, training, clustering, when=parameters, aggregation=aggregation)


def group_flhc(model: FlatModel, training: LocalTraining, how: FLHCParameters, *, seed: int = 0) -> OneShotClustering:
    """Builds the grouping: the clients' updates, their distances, hierarchical clustering."""
    updates = AnchorGradientSignatureParameters(form="displacement", projection=0)
    return build_grouping("anchor_gradient", model, updates, how, training=training, seed=seed)


@method_builder
def build_flhc(
    model: FlatModel,
    training: LocalTraining,
    parameters: FLHCParameters = FLHCParameters(),
    *,
    seed: int = 0,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> Method:
    """Builds FL+HC: clusters by the clients' updates after some rounds of FedAvg (Briggs, Fan and Andras, IJCNN 2020,
    arXiv:2004.11791).

    All clients train the model of the first rounds once more and send their updates; the server clusters these
    hierarchically, once, and every cluster trains its own model from that one. This is from the paper, which sets a
    threshold by hand. The rule that decides without a threshold, the default linkage, and placing newcomers by their
    own updates as in PACFL's Alg. 2 and 3 are ours. Other arguments are as in `build_fedavg`.

    Args:
      training: Local hyper-parameters, also for the updates.
      parameters: When and how clients are grouped.
      seed: Decides in which order clients visit their examples for the updates.

    Returns:
      The method, see `one_shot.OneShot`. The signatures of its state are `value float32 [N, P]`, the clients' updates
      with the opposite sign.
    """
    grouping = group_flhc(model, training, parameters, seed=seed)
    return build_one_shot("flhc", model, training, grouping, when=parameters, aggregation=aggregation)


def group_kfed(
    model: FlatModel, training: LocalTraining, how: KFedParameters, *, seed: int = 0, noise_seed: int | None = None
) -> OneShotClustering:
    """Builds the grouping: centres of the clients' examples, and k-means on all of them."""
    parts = ComposedParameters(
        signature={"name": "centres", "num_centres": how.num_centres, **how.noise},
        metric="matching",
        grouping="kmeans",
        num_clusters=how.num_clusters,
    )
    return group_composed(model, training, parts, seed=seed, noise_seed=noise_seed)


@method_builder
def build_kfed(
    model: FlatModel,
    training: LocalTraining,
    parameters: KFedParameters = KFedParameters(),
    *,
    seed: int = 0,
    noise_seed: int | None = None,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> Method:
    """Builds k-FED: k-means on the k-means centres of the clients' data, in one exchange (Dennis, Li and Smith, ICML
    2021, arXiv:2103.00697).

    Before training every client runs Lloyd's method on its own examples and sends its centres (Alg. 1). The server
    starts Lloyd's method at the centres of one client and at the farthest others, one after another, and groups all
    centres (Alg. 2), until nothing changes, as in the authors' code. Both are from the paper, which thus clusters the
    examples of all clients. As the paper does for personalised learning, a client is in the cluster of most of its
    centres and trains the model of that cluster. The choice among equals, and placing newcomers by their own centres,
    are ours. See `signatures.centres` for the start on the clients. Other arguments are as in `build_fedavg`.

    Args:
      parameters: How clients are grouped.
      seed: Seed of the clients' k-means.
      noise_seed: Seed of the noise of private signatures, to repeat simulations; None draws new noise.

    Returns:
      The method, see `one_shot.OneShot`. The signatures of its state are `centres float32 [N, k', d]` and `mask bool
      [N, k']`; the proximity, which the grouping does not use, is the matched distance of centres.
    """
    grouping = group_kfed(model, training, parameters, seed=seed, noise_seed=noise_seed)
    return build_one_shot("kfed", model, training, grouping, when=parameters, aggregation=aggregation)


def group_emd_cfl(
    model: FlatModel, training: LocalTraining, how: EMDCFLParameters, *, seed: int = 0
) -> OneShotClustering:
    """Builds the grouping: samples of outputs, their 1-Wasserstein distances, hierarchical clustering."""
    parts = ComposedParameters(
        signature={"name": "outputs", "samples": how.samples},
        linkage=how.linkage,
        threshold=how.threshold,
        num_clusters=how.num_clusters,
    )
    return group_composed(model, training, parts, seed=seed)


@method_builder
def build_emd_cfl(
    model: FlatModel,
    training: LocalTraining,
    parameters: EMDCFLParameters = EMDCFLParameters(),
    *,
    seed: int = 0,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> Method:
    """Builds EMD-CFL: clusters by the earth mover's distance between clients' data, in a model's outputs (Zhang,
    Williams and Toni 2025, arXiv:2506.07769).

    After a warm-up every client sends the model's outputs of some of its examples; the server computes the earth
    mover's distance of each pair of clients, exactly, and groups the clients, once. From the paper are the distance,
    the warm-up, and that distances are compared with that of a client's data from themselves (Alg. 1: τ, between its
    training and validation examples; two clients are alike where both distances less τ are below ε). Here this is the
    rule `threshold = "self"`, which compares halves of each client's examples. The differences:

    - In the paper each pair of clients sends embeddings under each other's encoders, of at most 512 of their examples
      and at most a tenth of them, after a random projection that the server does not know. Here all clients send
      outputs under one model, that of the warm-up, without the exchange of C² encoders; see `signatures.predictions`.
      The server sees the outputs as they are.
    - In the paper clients with the same neighbours are a cluster; here a tree is cut, which always gives disjoint
      clusters.
    - The cost of moving a point is its Euclidean distance here and 1 minus the cosine in the authors' code, so their
      tolerance of 0.1 cannot be used as a `threshold` here.

    Other arguments are as in `build_fedavg`.

    Args:
      parameters: How clients are grouped.
      seed: Decides which examples are drawn.

    Returns:
      The method, see `one_shot.OneShot`. The signatures of its state are `points float32 [N, n, C]`; the proximity is
      in units of the outputs.
    """
    grouping = group_emd_cfl(model, training, parameters, seed=seed)
    return build_one_shot("emd_cfl", model, training, grouping, when=parameters, aggregation=aggregation)
