"""Rounds whose server sees each client's update: what FedSEM and CFL share."""

from collections.abc import Iterator

import numpy as np

from tffcl.aggregators.collect import CollectFactory
from tffcl.algorithms.clustered_training import round_computations
from tffcl.algorithms.method import ClusteredState, Exports, Method
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.client_work.training import build_difference_work
from tffcl.clients.cohort import Cohort
from tffcl.models.flat import FlatModel
from tffcl.rounds.composer import Round, Server, compose
from tffcl.rounds.server import models_type, own_row
from tffcl.rounds.simulation import RoundResult, run_round
from tffcl.trace_cache import built_once

BYTES_AT_A_TIME = 2**29  # of clients' updates that are compared at a time


@built_once
def build_collected_round(model: FlatModel, training: LocalTraining) -> Round:
    """Builds a round in which every client trains row `key` of `models float32[?,P]`.

    All differences come to the server, beside the reports; the models come back unchanged: the coordinator decides.
    """
    server = Server({"models": models_type(model.size)}, own_row)
    return compose(build_difference_work(model, training), {"difference": CollectFactory()}, server)


class CollectedTraining(Method):
    """A method on a `ClusteredState` whose server sees each client's update, so that it can decide by them.

    Attributes:
      round: From `build_collected_round`.
      parameters: The method's own.
    """

    def __init__(self, model: FlatModel, training: LocalTraining, parameters):
        self.model, self.round, self.parameters = model, build_collected_round(model, training), parameters

    def updates(
        self, models: np.ndarray, keys: np.ndarray, cohort: Cohort, composed: Round | None = None, optimizers=None
    ) -> tuple[np.ndarray, RoundResult]:
        """Lets every client of the cohort train its row of the models; returns the differences `float32 [m, P]` and the
        rest.

        Args:
          models: `float32 [K, P]`.
          keys: `int [m]`, each client's row.
          cohort: The clients.
          composed: Another round of `build_collected_round` than the method's own.
          optimizers: Those of the state, see `ClusteredState`; the result has them after the round.
        """
        keys = np.asarray(keys, np.int32)
        result = run_round(composed or self.round, cohort, {"models": models}, optimizers=optimizers, key=keys)
        return result.collected["difference"], result

    def updates_in_parts(
        self, model: np.ndarray, cohort: Cohort, composed: Round | None = None
    ) -> Iterator[tuple[slice, np.ndarray]]:
        """Lets all clients of a cohort train one model `[P]`, as many at a time as memory holds the updates of.

        Args:
          model: `float32 [P]`.
          cohort: The clients.
          composed: Another round of `build_collected_round` than the method's own.

        Yields:
          `(part of the cohort, its updates float32 [n, P])`.
        """
        for part, few in cohort.parts(max(1, BYTES_AT_A_TIME // model.nbytes)):
            updates, _ = self.updates(model[np.newaxis], np.zeros(len(few.client_ids), np.int32), few, composed)
            yield part, updates

    def models_for(self, state: ClusteredState, client_ids):
        return state.models, state.clusters(client_ids)

    def exports(self) -> Exports:
        note = (
            "the models come back as they are: the coordinator sees each client's difference beside its report, and "
            f"clusters and moves the models by them (Python, tffcl.algorithms.{self.name})"
        )
        first = {"models": self.model.initial[np.newaxis]}
        return Exports(
            lambda: round_computations(self.round, first),
            server_values=lambda state: {"models": state.models},
            when={"training": note},
        )
