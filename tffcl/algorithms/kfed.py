"""k-FED: clients grouped by k-means on the k-means centres of their data, in one exchange (Dennis, Li and Smith, ICML
2021, arXiv:2103.00697)."""

import tensorflow_federated as tff

from tffcl.algorithms.composed import group_composed
from tffcl.algorithms.grouping_in_time import build_one_shot
from tffcl.algorithms.method import Method, method_builder
from tffcl.algorithms.one_shot import OneShotClustering
from tffcl.algorithms.parameters import ComposedParameters, KFedParameters
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.models.flat import FlatModel


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
    """Builds k-FED, with FedAvg inside the clusters.

    Before training every client runs Lloyd's method on its own examples and sends its centres (Alg. 1); the server
    starts Lloyd's method at those of one client and at the farthest others, one after another, and groups all centres
    (Alg. 2). Both are from the paper, which clusters the examples of all clients so. That a client as a whole is in the
    cluster of most of its centres, and trains the model of that cluster, is the paper's use for personalised learning;
    which cluster it is among equals, and newcomers, who are placed by their own centres, are ours. See
    `signatures.centres` for the start on the clients. Other arguments are as of `build_fedavg`.

    Args:
      parameters: How clients are grouped.
      seed: Of the clients' k-means.
      noise_seed: Of private signatures, for simulations that are to be repeated; None draws anew.

    Returns:
      The method, see `one_shot.OneShot`. The signatures of its state are `centres float32 [N, k', d]` and `mask bool
      [N, k']`; the proximity, which groups nobody, is the matched distance of centres.
    """
    grouping = group_kfed(model, training, parameters, seed=seed, noise_seed=noise_seed)
    return build_one_shot("kfed", model, training, grouping, when=parameters, aggregation=aggregation)
