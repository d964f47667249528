"""Per-FedAvg (Fallah et al., NeurIPS 2020, arXiv:2002.07948, Alg. 1): a start from which one local step makes a good
model."""

import functools

import tensorflow_federated as tff

from tffcl.aggregators.clustered_mean import keyed_factory
from tffcl.algorithms.clustered_training import ClusteredTraining, build_engine
from tffcl.algorithms.fedavg import one_model
from tffcl.algorithms.training_parameters import PerFedAvgParameters
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.client_work.meta_sgd import MetaSteps, build_adapt, build_meta_sgd
from tffcl.client_work.training import build_update_work
from tffcl.models.flat import FlatModel
from tffcl.registry import TRAININGS
from tffcl.rounds.composer import WEIGHTINGS, Round, compose
from tffcl.rounds.server import keyed_server
from tffcl.trace_cache import built_once


@built_once
def build_meta_round(model: FlatModel, training: LocalTraining, parameters: PerFedAvgParameters, aggregation) -> Round:
    """Builds a round of clustered training whose clients take meta-steps; types as in `build_clustered_round`."""
    p = parameters
    training.require_sgd("Per-FedAvg", *TRAININGS["per_fedavg"].sgd)
    beta = training.learning_rate if p.beta is None else p.beta
    steps = MetaSteps(p.alpha, beta, p.delta, p.gradient, p.velocity)
    adapt = build_adapt(model.whole, training, rate=p.alpha, steps=p.adaptation_steps) if p.adaptation_steps else None
    work = build_update_work(model, training, local_sgd=build_meta_sgd(model, training, steps), adapt=adapt)
    return compose(
        work, {"update": keyed_factory(aggregation)}, keyed_server(model.size), weighting=WEIGHTINGS[p.weighting]
    )


def build_meta_training(
    model: FlatModel,
    training: LocalTraining,
    parameters: PerFedAvgParameters = PerFedAvgParameters(),
    *,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> ClusteredTraining:
    """Builds Per-FedAvg, the method of one model or the rounds of any grouping; other arguments are as of
    `build_fedavg`.

    The accuracy `local` is of a client's model after the round's meta-steps and the adaptation that follows them,
    `cluster` and `global` of the start without any. With α = 0 and weights by examples it is FedAvg on the second batch
    of each step. The steps of an epoch are as in the code of PACFL and FLIS, pairs of batches that follow each other;
    the paper draws every batch anew. β is the learning rate that all methods have (Table 13 of PACFL: 0.001).

    Args:
      training: Epochs, batch size, momentum and weight decay of the local training, and β where `parameters` have none.
      parameters: The steps.

    Raises:
      UserError: If `training` has a proximal term.
    """
    return build_engine(model, functools.partial(build_meta_round, model, training, parameters), aggregation)


build_per_fedavg = one_model("per_fedavg", build_meta_training)
