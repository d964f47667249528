"""FedNova: updates are averaged per step's worth of training (Wang et al., NeurIPS 2020, arXiv:2007.07481)."""

import functools

import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.clustered_mean import ClusteredMeanFactory, aggregated_beside, keyed_factory, pad_rows
from tffcl.algorithms.clustered_training import ClusteredTraining, build_engine
from tffcl.algorithms.fedavg import one_model
from tffcl.algorithms.training_parameters import FedNovaParameters
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.client_work.training import build_normalized_work
from tffcl.models.flat import FlatModel
from tffcl.registry import TRAININGS
from tffcl.rounds.composer import Round, Server, compose
from tffcl.rounds.server import models_type, own_row
from tffcl.trace_cache import built_once

_MOST_STEPS = 1e4  # the most steps of a client in secure sums, in the unit of `build_normalized_work`


def move_by_steps(model: FlatModel, state, results, measurements):
    """Moves every model by its clients' mean effective steps times the mean of their moves in one step (Eq. 7)."""
    del measurements
    moves = model.on_trained(results["steps"] * results["update"], results["update"])
    return {**state, "models": state["models"] + pad_rows(moves, tf.shape(state["models"])[0])}


@built_once
def build_normalized_round(
    model: FlatModel,
    training: LocalTraining,
    effective_steps: str = "norm",
    *,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> Round:
    """Builds one round of FedNova in each cluster: the sums are over the cohort's members, weighted by examples.

    Args:
      effective_steps: A name in `EFFECTIVE_STEPS`.
      aggregation: Aggregates the directions, see `keyed_factory`. The numbers of steps take the aggregation beside it
        (`aggregated_beside`): secure sums, a robust rule or equal weights if the directions have them, else the mean
        weighted by examples.
    """
    training.require_sgd("FedNova", *TRAININGS["fednova"].sgd)
    steps = aggregated_beside(aggregation, ClusteredMeanFactory(), _MOST_STEPS)
    uploads = {"update": keyed_factory(aggregation), "steps": steps}
    server = Server({"models": models_type(model.size)}, own_row, functools.partial(move_by_steps, model))
    return compose(
        build_normalized_work(model, training, steps_counted=effective_steps == "local_steps"), uploads, server
    )


def build_normalized_training(
    model: FlatModel,
    training: LocalTraining,
    parameters: FedNovaParameters = FedNovaParameters(),
    *,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> ClusteredTraining:
    """Builds FedNova, the method of one model or the rounds of any grouping; other arguments are as in `build_fedavg`.

    The model moves by τ_eff = Σ pᵢ ‖aᵢ‖₁ times Σ pᵢ (wᵢ - w) / ‖aᵢ‖₁ (Eq. 7 with τ_eff of section 4), where pᵢ is the
    share of a client's examples among the cohort's; `effective_steps` can select another τ_eff. If all clients take the
    same number of steps, it is FedAvg.

    Args:
      training: Local hyper-parameters; ‖a‖₁ accounts for momentum and the proximal term as in the paper.
      parameters: μ and τ_eff.
    """
    proximal = training.with_proximal_weight(parameters.proximal_weight)

    def build_round(factory) -> Round:
        return build_normalized_round(model, proximal, parameters.effective_steps, aggregation=factory)

    return build_engine(model, build_round, aggregation)


build_fednova = one_model("fednova", build_normalized_training)
