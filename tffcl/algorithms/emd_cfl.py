"""EMD-CFL: clients grouped once by how far their data must be moved to be those of another, in what a model makes of
them (Zhang, Williams and Toni 2025, arXiv:2506.07769)."""

import tensorflow_federated as tff

from tffcl.algorithms.composed import group_composed
from tffcl.algorithms.grouping_in_time import build_one_shot
from tffcl.algorithms.method import Method, method_builder
from tffcl.algorithms.one_shot import OneShotClustering
from tffcl.algorithms.parameters import ComposedParameters, EMDCFLParameters
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.models.flat import FlatModel


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
    """Builds EMD-CFL, with FedAvg inside the clusters.

    After a warm-up every client sends what the model makes of some of its examples; the server computes the earth
    mover's distance of each pair of clients, exactly, and groups them, once. From the paper are the distance, that the
    model is trained for a while first, and that a distance counts beside that of a client's data from themselves (Alg.
    1: τ, between its training and validation examples; two clients are alike where both distances less τ are below ε).
    Here that is the rule `threshold = "self"`, which compares halves of each client's examples. Otherwise:

    - In the paper clients send each pair's embeddings under each other's encoders, of up to 512 of their examples and a
      tenth of them at most, after a random projection that the server does not know. Here all send outputs under one
      model, that of the warm-up, without the exchange of C² encoders; see `signatures.outputs`. Nothing hides them.
    - Clients with the same neighbours are a cluster there; here it is a tree, which gives disjoint clusters always.

    Other arguments are as of `build_fedavg`.

    Args:
      parameters: How clients are grouped.
      seed: Decides which examples are drawn.

    Returns:
      The method, see `one_shot.OneShot`. The signatures of its state are `points float32 [N, n, C]`; the proximity is
      in units of the outputs.
    """
    grouping = group_emd_cfl(model, training, parameters, seed=seed)
    return build_one_shot("emd_cfl", model, training, grouping, when=parameters, aggregation=aggregation)
