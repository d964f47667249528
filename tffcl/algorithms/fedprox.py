"""FedProx (Li et al., MLSys 2020, arXiv:1812.06127, Alg. 2): FedAvg whose local training is held near the global model."""

import dataclasses

import tensorflow_federated as tff

from tffcl.algorithms.clustered_training import ClusteredTraining, build_clustered_training
from tffcl.algorithms.fedavg import OneModel
from tffcl.algorithms.method import Method, method_builder
from tffcl.algorithms.training_parameters import FedProxParameters
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.models.flat import FlatModel


def build_proximal_training(
    model: FlatModel,
    training: LocalTraining,
    parameters: FedProxParameters = FedProxParameters(),
    *,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> ClusteredTraining:
    """Builds the engine whose clients are held near the model that they received; arguments as in `build_fedprox`."""
    proximal = dataclasses.replace(training, proximal_weight=parameters.proximal_weight)
    return build_clustered_training(model, proximal, aggregation=aggregation)


@method_builder
def build_fedprox(
    model: FlatModel,
    training: LocalTraining,
    parameters: FedProxParameters = FedProxParameters(),
    *,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> Method:
    """Builds FedProx; with μ = 0 it is FedAvg.

    Not `tff.learning.algorithms.build_weighted_fed_prox`, whose term has the wrong sign in TFF 0.87: it adds μ (w_t - w) to
    the gradient, which drives clients away from the global model. But for the sign the two are the same (tested so). The
    authors sample clients by size and average them unweighted; this samples uniformly and weighs by examples.

    Args:
      model: What is trained.
      training: Local hyper-parameters.
      parameters: μ.
      aggregation: Of the updates inside each cluster, e.g. `tff.aggregators.MeanFactory()`, or over keyed updates; see
        `aggregators.clustered_mean.keyed_factory`.
    """
    return OneModel("fedprox", build_proximal_training(model, training, parameters, aggregation=aggregation))
