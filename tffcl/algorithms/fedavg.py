"""Methods in which all clients train one model: FedAvg, FedProx, and a builder of such a method for any training."""

import dataclasses
import functools
from collections.abc import Callable
from typing import ParamSpec

import numpy as np
import tensorflow_federated as tff

from tffcl.algorithms.clustered_training import ClusteredTraining, EngineMethod, build_clustered_training
from tffcl.algorithms.method import ClusteredState, Exports, Method, method_builder
from tffcl.algorithms.training_parameters import FedProxParameters
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clients.newcomers import check_newcomers, extended
from tffcl.clients.population import Population
from tffcl.models.flat import FlatModel


class OneModel(EngineMethod):
    """A method whose clients all train one model."""

    def initialize(self, population: Population) -> ClusteredState:
        return ClusteredState(**self.engine.start(population, np.zeros(len(population), np.int32)))

    def admit(self, state: ClusteredState, newcomers: Population) -> ClusteredState:
        check_newcomers(state, newcomers)
        return dataclasses.replace(state, **extended(state, newcomers, np.zeros(len(newcomers), np.int32)))

    def exports(self) -> Exports:
        return dataclasses.replace(super().exports(), members_needed=lambda: self.engine.round_for(1).members_needed)


Given = ParamSpec("Given")


def one_model(
    name: str, build: Callable[Given, ClusteredTraining], kind: type[OneModel] = OneModel
) -> Callable[Given, Method]:
    """Returns a builder of the method whose clients all train one model, by the engine that `build` builds."""

    @functools.wraps(build)
    def built(*args: Given.args, **kwargs: Given.kwargs) -> Method:
        return kind(name, build(*args, **kwargs))

    built.__name__ = built.__qualname__ = f"build_{name}"
    return method_builder(built)


@method_builder
def build_fedavg(
    model: FlatModel,
    training: LocalTraining,
    *,
    aggregation: tff.aggregators.AggregationFactory | None = None,
    optimizer: tff.learning.optimizers.Optimizer | None = None,
) -> Method:
    """Builds federated averaging (McMahan et al. 2017, arXiv:1602.05629, Alg. 1): the engine with one cluster.

    Args:
      model: The model to train.
      training: Local hyper-parameters.
      aggregation: Aggregates the updates inside each cluster, e.g. `tff.aggregators.MeanFactory()`, or a factory over
        keyed updates; see `aggregators.clustered_mean.keyed_factory`.
      optimizer: Optional optimizer of the server, as in `tff.learning`, except that it sees a model as one vector;
        default adds the mean update.

    Returns:
      The method; its state has one model and every client in cluster 0.
    """
    return OneModel("fedavg", build_clustered_training(model, training, aggregation=aggregation, optimizer=optimizer))


def build_proximal_training(
    model: FlatModel,
    training: LocalTraining,
    parameters: FedProxParameters = FedProxParameters(),
    *,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> ClusteredTraining:
    """Builds FedProx (Li et al., MLSys 2020, arXiv:1812.06127, Alg. 2), the method of one model or the rounds of any
    grouping.

    It is FedAvg with a local training that is held near the global model; with μ = 0 it is FedAvg itself. It differs
    from `tff.learning.algorithms.build_weighted_fed_prox`, whose term has the wrong sign in TFF 0.87: it adds μ (w_t -
    w) to the gradient, which drives clients away from the global model. Except for the sign the two are the same (a
    test compares them). The authors sample clients by size and average them unweighted; this samples uniformly and
    weighs by examples.

    Args:
      parameters: μ; other arguments are as in `build_fedavg`.
    """
    proximal = training.with_proximal_weight(parameters.proximal_weight)
    return build_clustered_training(model, proximal, aggregation=aggregation)


build_fedprox = one_model("fedprox", build_proximal_training)
