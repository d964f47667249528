"""Ditto (Li et al., ICML 2021, arXiv:2012.04221, Alg. 1): a personal model for every client, held near the global one."""

import collections
import dataclasses

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.algorithms.clustered_training import build_clustered_training
from tffcl.algorithms.method import ClusteredState, Exports, Method, Views
from tffcl.algorithms.solo import Personal
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.client_work.training import build_own_work
from tffcl.clients.cohort import Cohort
from tffcl.clients.kept import KeptStates
from tffcl.clients.population import Population
from tffcl.kept_builds import built_once
from tffcl.models.flat import FlatModel
from tffcl.rounds.composer import Round, Server, compose
from tffcl.rounds.simulation import run_round
from tffcl.validation import NonNegative, Parameters


@dataclasses.dataclass(frozen=True)
class DittoParameters(Parameters):
    """How personal models are trained.

    Attributes:
      proximal_weight: λ; a personal model minimises the client's loss plus λ/2 times the squared distance to the global
        model as it was broadcast in the round (Eq. Obj).
    """

    proximal_weight: NonNegative = 0.05


@built_once
def build_personal_round(model: FlatModel, training: LocalTraining) -> Round:
    """Builds a round in which every client trains the model that it keeps towards the server's `global_model float32[P]`."""

    def receive(values, client):
        del client
        return collections.OrderedDict(global_model=tf.identity(values["global_model"]))

    values = {"global_model": tff.TensorType(np.float32, [model.size])}
    return compose(build_own_work(model, training, towards="global_model"), {}, Server(values, receive))


class Ditto(Personal):
    """Ditto, see `build_ditto`."""

    name = "ditto"

    def __init__(self, model: FlatModel, training: LocalTraining, parameters: DittoParameters, aggregation):
        self.model, self._initial = model, model.initial
        self._engine = build_clustered_training(model, training, aggregation=aggregation)
        proximal = dataclasses.replace(training, proximal_weight=parameters.proximal_weight)
        self._personal = build_personal_round(model, proximal)

    def initialize(self, population: Population) -> ClusteredState:
        start = self._engine.start(population, np.zeros(len(population), np.int32))
        alone = np.arange(len(population), dtype=np.int32)
        return ClusteredState(**{**start, "assignment": alone, "kept": KeptStates(self._initial)})

    def next(self, state: ClusteredState, cohort: Cohort):
        """One round: the personal models first, towards the global model as it was, then the global one by FedAvg."""
        values, kept = {"global_model": state.models[0]}, state.kept.of(cohort.client_ids)
        result = run_round(self._personal, cohort, values, kept=kept)
        everyone = dataclasses.replace(state, assignment=np.zeros_like(state.assignment), kept=None)
        averaged, sent = self._engine.next(everyone, dataclasses.replace(cohort, local_test=None))
        metrics = result.metrics(cohort, state.clusters(cohort.client_ids))
        kept = state.kept.updated(cohort.client_ids, result.kept)
        state = dataclasses.replace(averaged, assignment=state.assignment, kept=kept)
        return state, dataclasses.replace(metrics, traffic=sent.traffic)

    def views(self, state: ClusteredState) -> Views:
        return Views(state.client_ids, state.assignment, global_model=state.models[0])

    def exports(self) -> Exports:
        return self._engine.exports(build=lambda: {"personal_training": self._personal.deployed_with_kept})


def build_ditto(
    model: FlatModel,
    training: LocalTraining,
    parameters: DittoParameters = DittoParameters(),
    *,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> Method:
    """Builds Ditto.

    The global model is trained by FedAvg (the paper's default solver). Each client of a cohort also trains its personal
    model, on the same batches in the same order, from its last state, at first the initial model; it stays on the device.
    A client that has not trained yet has no personal model and is assigned the global one.

    Args:
      model: What is trained.
      training: Local hyper-parameters, of both models.
      parameters: λ.
      aggregation: Of the global model, see `aggregators.clustered_mean.keyed_factory`.

    Returns:
      The method. The only row of the state's models is the global model.
    """
    return Ditto(model, training, parameters, aggregation)
