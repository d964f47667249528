"""SOLO: every client trains alone on its own data; nothing is sent. PACFL's limit of N clusters."""

import dataclasses

import numpy as np

from tffcl.algorithms.method import ClusteredState, Exports, Method, Views, method_builder
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.client_work.training import build_own_work
from tffcl.clients.client_state import KeptStates
from tffcl.clients.cohort import Cohort
from tffcl.clients.newcomers import check_newcomers, extended
from tffcl.clients.population import Population
from tffcl.models.flat import FlatModel
from tffcl.models.model_rows import rows_with_own
from tffcl.rounds.composer import Round, Server, compose
from tffcl.rounds.simulation import run_round
from tffcl.trace_cache import built_once


@built_once
def build_own_round(model: FlatModel, training: LocalTraining) -> Round:
    """Builds a round in which every client trains the model that it keeps, and sends nothing."""
    return compose(build_own_work(model, training), {}, Server())


class Solo(Method):
    """SOLO, see `build_solo`; a client's cluster is itself.

    Row 0 of the state's models is the model of clients that have not trained yet.
    """

    name, state_class = "solo", ClusteredState

    def __init__(self, model: FlatModel, training: LocalTraining):
        self.model, self._initial, self._round = model, model.initial, build_own_round(model, training)
        self.kept_bytes = self._initial.nbytes

    def initialize(self, population: Population) -> ClusteredState:
        alone = np.arange(len(population), dtype=np.int32)
        return ClusteredState(
            population.client_ids, alone, self._initial[np.newaxis], (), kept=KeptStates(self._initial)
        )

    def next(self, state: ClusteredState, cohort: Cohort):
        result = run_round(self._round, cohort, kept=state.kept, optimizers=state.optimizers)
        state = dataclasses.replace(state, kept=result.kept, optimizers=result.optimizers)
        return state, result.metrics(cohort, state.clusters(cohort.client_ids))

    def exports(self) -> Exports:
        return Exports(lambda: {"training_with_kept": self._round.deployed_with_kept})

    def models_for(self, state: ClusteredState, client_ids):
        """Row 0 for all clients without a model of their own, and a row for each of the others."""
        state.index(client_ids)  # refuses unknown clients
        own = state.kept.has(client_ids)
        rows = np.where(own, np.cumsum(own), 0).astype(np.int32)
        kept = state.kept.of(np.asarray(client_ids)[own])
        return rows_with_own(state.models[:1], kept), rows

    def admit(self, state: ClusteredState, newcomers: Population) -> ClusteredState:
        """Newcomers have no model of their own until they train."""
        check_newcomers(state, newcomers)
        fresh = state.assignment.max() + 1 + np.arange(len(newcomers))
        return dataclasses.replace(state, **extended(state, newcomers, fresh))

    def views(self, state: ClusteredState) -> Views:
        return Views(state.client_ids, state.assignment)


@method_builder
def build_solo(model: FlatModel, training: LocalTraining) -> Method:
    """Builds SOLO: every client trains alone, and nothing is sent.

    The clients sampled in a round go on from their own last model, which they keep, so that SOLO trains for as many
    local epochs as the other methods.
    """
    return Solo(model, training)
