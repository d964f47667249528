"""FedAvg (McMahan et al. 2017, arXiv:1602.05629, Alg. 1): everyone trains one model; the engine with one cluster."""

import dataclasses

import numpy as np
import tensorflow_federated as tff

from tffcl.algorithms.clustered_training import EngineMethod, build_clustered_training
from tffcl.algorithms.method import ClusteredState, Method, method_builder
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


@method_builder
def build_fedavg(
    model: FlatModel,
    training: LocalTraining,
    *,
    aggregation: tff.aggregators.AggregationFactory | None = None,
    optimizer: tff.learning.optimizers.Optimizer | None = None,
) -> Method:
    """Builds federated averaging.

    Args:
      model: What is trained.
      training: Local hyper-parameters.
      aggregation: Of the updates inside each cluster, e.g. `tff.aggregators.MeanFactory()`, or over keyed updates; see
        `aggregators.clustered_mean.keyed_factory`.
      optimizer: Optional optimizer of the server, as in `tff.learning`; default adds the mean update.

    Returns:
      The method; its state has one model and every client in cluster 0.
    """
    return OneModel("fedavg", build_clustered_training(model, training, aggregation=aggregation, optimizer=optimizer))
