"""Training in which every client gets its own mix of the cohort's models (FLT Alg. 3, case I)."""

import collections
import dataclasses
from collections.abc import Callable

import numpy as np

from tffcl.aggregators.relatedness_mean import RelatednessMeanFactory
from tffcl.algorithms.clustered_training import round_computations
from tffcl.algorithms.method import Exports
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.client_work.training import build_model_work
from tffcl.clients.cohort import Cohort
from tffcl.clients.large_rows import let_go
from tffcl.clustering.relatedness_graph import only_used, with_stored
from tffcl.errors import UserError
from tffcl.models.flat import FlatModel
from tffcl.rounds.composer import WEIGHTINGS, Round, Server, compose
from tffcl.rounds.server import Replacing, models_type, row_of
from tffcl.rounds.simulation import run_round
from tffcl.rounds.traffic import RoundMetrics
from tffcl.trace_cache import built_once


@built_once
def build_related_round(
    model: FlatModel, training: LocalTraining, *, flags: bool = False, weighting: str = "examples"
) -> Round:
    """Builds one round of training with a relatedness matrix.

    The server has different models `float32[?,P]`; the aggregator's state is the relatedness `float32[?,?]` of this
    round, a row for each requested mix and a column for each client of the cohort. The fields of a client are `row`,
    the row of its model, and `key`, its column. The mixes replace the models.

    Args:
      flags: Whether clients report that their data have changed (`changed=int32` in their input and their report).
      weighting: A name in `WEIGHTINGS`.
    """

    def receive(values, client):
        return collections.OrderedDict(model=row_of(values["models"], client["row"]))

    work = build_model_work(model, training, flags=flags)
    server = Server({"models": models_type(model.size)}, receive, Replacing("trained"), by_row={"models": "row"})
    return compose(work, {"trained": RelatednessMeanFactory()}, server, weighting=WEIGHTINGS[weighting])


@dataclasses.dataclass(frozen=True, eq=False)
class RelatedTraining:
    """Rounds on a state with `relatedness [N, N]` and `rows int32 [N]`, each client's row of the models.

    Clients with the same model share a row, so that no model is stored twice, and none without a client.

    Attributes:
      initial: `float32 [P]`, the model from which all clients start.
      round: The round, from `build_related_round`.
      mixes: A name in `MIXES`. With "stored" the server adds the other models in Python; the round and its export stay
        the same.
      flags: `(state, Cohort) -> int32 [m]`, the clients' flags of change, for a round that takes them; else None.
      weighting: A name in `WEIGHTINGS`, that of the round.
    """

    initial: np.ndarray
    round: Round
    mixes: str
    flags: Callable | None = None
    weighting: str = "examples"

    def start(self, population, assignment: np.ndarray) -> dict:
        """Returns the fields of a state before the first round: one model for all."""
        return {
            "client_ids": population.client_ids,
            "assignment": assignment,
            "models": self.initial[np.newaxis],
            "aggregators": {},
            "rows": np.zeros(len(assignment), np.int32),
        }

    def next(self, state, cohort: Cohort) -> tuple[object, RoundMetrics]:
        """Runs one round; see `Method.next`."""
        where = state.index(cohort.client_ids)
        everything = np.asarray(state.relatedness, np.float32)
        relatedness = everything[:, where]
        counted = everything if self.mixes == "stored" else relatedness
        mixed = where if self.mixes == "cohort" else np.flatnonzero(counted.sum(axis=1) > 0)
        _, first, mix_of = np.unique(counted[mixed], axis=0, return_index=True, return_inverse=True)
        used, rows = np.unique(state.rows[where], return_inverse=True)
        fields = {"row": rows.astype(np.int32), "key": np.arange(len(where), dtype=np.int32)}
        if self.flags:
            fields["changed"] = self.flags(state, cohort)
        matrices = {"trained": relatedness[mixed[first]]}
        sent = {"models": state.models[used]}
        let_go(state.models)
        result = run_round(self.round, cohort, sent, matrices, optimizers=state.optimizers, **fields)
        mixes = result.values["models"]
        if self.mixes == "stored":
            weights = np.ones(len(state.client_ids), np.float32)
            if self.weighting == "examples":
                if not np.isin(state.client_ids, cohort.population.client_ids).all():
                    raise UserError(
                        'mixes = "stored" weights the models of all clients by their examples, and one of them has '
                        'left; take mixes = "everyone", or weighting = "uniform"'
                    )
                weights = cohort.population.sizes_of(state.client_ids)
            mixes = with_stored(mixes, everything[mixed[first]] * weights, where, state.models, state.rows)
        everyone = state.rows.copy()
        everyone[mixed] = len(state.models) + mix_of
        models, everyone = only_used(state.models, mixes, everyone)
        metrics = result.metrics(cohort, state.assignment[where], relatedness=relatedness[where])
        return dataclasses.replace(state, models=models, rows=everyone, optimizers=result.optimizers), metrics

    @staticmethod
    def models_for(state, client_ids) -> tuple[np.ndarray, np.ndarray]:
        """See `Method.models_for`."""
        return state.models, state.rows[state.index(client_ids)]

    def exports(self, *, build: Callable, **more) -> Exports:
        """Returns what can be deployed; arguments as in `ClusteredTraining.exports`."""
        first = {"models": self.initial[np.newaxis]}
        return Exports(
            lambda: {**build(), **round_computations(self.round, first)},
            server_values=lambda state: {"models": state.models},
            **more,
            when={"training": _NOTE},
        )


# What a deployment must know about a round.
_NOTE = (
    "before a round the coordinator puts into `aggregators` who of its clients are related, rows and columns by their "
    "`key` (Python, tffcl.clustering); the round gives a mix of the models for each row, zeros where none of them has "
    "a weight (training was not finite): who would get these keeps its model"
)


def build_related_training(
    model: FlatModel, training: LocalTraining, mixes: str = "cohort", flags=None, weighting: str = "examples"
) -> RelatedTraining:
    """Builds the rounds of FLT's case I; `mixes` is a name in `MIXES`, flags and weighting as in `RelatedTraining`."""
    composed = build_related_round(model, training, flags=flags is not None, weighting=weighting)
    return RelatedTraining(model.initial, composed, mixes, flags, weighting)
