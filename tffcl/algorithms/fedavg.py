"""FedAvg (McMahan et al. 2017, arXiv:1602.05629, Alg. 1): everyone trains one model; the engine with one cluster."""

import dataclasses

import numpy as np

from tffcl.algorithms.clustered_training import build_clustered_training, build_summed_training, build_training_process
from tffcl.algorithms.contracts import Algorithm, Population, State, check_newcomers, extended
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.models.flat import FlatModel


def build_fedavg(model: FlatModel, training: LocalTraining, *, aggregation=None) -> Algorithm:
    """Builds federated averaging.

    Args:
      model: What is trained.
      training: Local hyper-parameters.
      aggregation: Optional `tff.aggregators.WeightedAggregationFactory` over keyed updates, see `ClusteredMeanFactory`.

    Returns:
      The method; its state has one model and every client in cluster 0.
    """
    engine = build_clustered_training(model, training, aggregation=aggregation)

    def initialize(population: Population) -> State:
        assignment = np.zeros(len(population.client_ids), np.int32)
        models = model.initial[np.newaxis]
        return State(population.client_ids, assignment, models, engine.initial_aggregator_state(), {})

    def admit(state: State, newcomers: Population) -> State:
        check_newcomers(state, newcomers)
        return dataclasses.replace(state, **extended(state, newcomers, np.zeros(len(newcomers.client_ids), np.int32)))

    def computations():
        process = build_training_process(model, training, aggregation=aggregation)
        return {"initialize": process.initialize, "training": process.next}

    return Algorithm(
        "fedavg",
        initialize,
        engine.next,
        engine.assign,
        admit,
        computations,
        {"training": engine.transfer},
        summed=build_summed_training(model, training, aggregation),
    )
