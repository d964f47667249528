"""The base of methods whose clients use mixtures of K models: FedEM, FedSoft, FedRC."""

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow_federated as tff

from tffcl.algorithms.choosing_method import has_too_few, notes_of_models
from tffcl.algorithms.clustered_training import round_computations
from tffcl.algorithms.method import ClusteredState, Exports, Method, Views
from tffcl.client_work.client_work import sequence_type, stack, stacked_type
from tffcl.clients.client_state import KeptStates, bytes_of
from tffcl.clients.cohort import Cohort
from tffcl.clients.newcomers import check_newcomers, extended
from tffcl.clients.population import Population
from tffcl.display import counted
from tffcl.models.flat import FlatModel
from tffcl.rounds import privacy_releases
from tffcl.rounds.client_queries import ask_all, build_asking
from tffcl.rounds.composer import Round
from tffcl.rounds.simulation import run_round
from tffcl.rounds.sum_only_form import summed_form
from tffcl.rounds.traffic import RoundMetrics
from tffcl.runtime import memory


@dataclasses.dataclass(frozen=True, eq=False)
class SoftState(ClusteredState):
    """Adds the mixtures to `ClusteredState`, whose assignment is the model that weighs most.

    A client's own mixture stays with the client (`kept`). These are the mixtures of the last round or evaluation, as
    far as a simulation knows them; no round uses them.

    Attributes:
      mixture: `float32 [N, K]`, which sum to one.
    """

    mixture: np.ndarray | None = None


class SoftMethod(Method):
    """A method whose clients receive K models and use mixtures of them; each keeps its own mixture.

    Clients that have not taken part, newcomers, and all clients at an evaluation find their mixture of the current
    models.
    """

    state_class = SoftState
    clients_choose = True

    def __init__(
        self, name: str, model: FlatModel, composed: Round, find: tff.Computation, first: Mapping, kept, mixture_of=None
    ):
        """Makes the method.

        Args:
          name: Its name.
          model: The model to train.
          composed: Its round, whose server has `models float32[K, P]`.
          find: From `build_finding`.
          first: The server's first values by name.
          kept: What a client keeps before its first round.
          mixture_of: Maps what a client keeps to its mixture `float32 [K]`; default: it keeps just the mixture.
        """
        self.name, self.model, self._round, self._find = name, model, composed, find
        self._first, self._kept, self._mixture_of = first, kept, mixture_of or (lambda value: value)
        self._count = len(first["models"])

    @property
    def kept_bytes(self) -> int:
        return bytes_of(self._kept)

    def initialize(self, population: Population) -> SoftState:
        size = self._first["models"].nbytes
        memory.check_room(size, f"{counted(self._count, 'model')} of {self.model.size:,} parameters")
        everyone, values = len(population), dict(self._first)
        return SoftState(
            population.client_ids, np.zeros(everyone, np.int32), values.pop("models"), self._round.initial_aggregators,
            server=values, kept=KeptStates(self._kept), mixture=self._equal(everyone),
        )  # fmt: skip

    def _equal(self, clients: int) -> np.ndarray:
        return np.full([clients, self._count], 1 / self._count, np.float32)

    def next(self, state: SoftState, cohort: Cohort):
        if has_too_few(self._round, cohort, self.hides_empty_rounds(state)):
            return state, RoundMetrics.of_nobody()
        kept = {"kept": state.kept, "optimizers": state.optimizers}
        result = run_round(self._round, cohort, self.values(state), state.aggregators, **kept)
        values = dict(result.values)
        mixtures = [self._mixture_of(value) for value in result.kept.of(cohort.client_ids)]
        changes = {"models": values.pop("models"), "server": values, "aggregators": result.aggregators}
        changes |= {"kept": result.kept, "optimizers": result.optimizers}
        after = self._with_mixtures(state, cohort.client_ids, np.reshape(mixtures, [-1, self._count]))
        return dataclasses.replace(after, **changes), result.metrics(cohort, after.clusters(cohort.client_ids))

    @staticmethod
    def values(state: SoftState) -> dict:
        """Returns the server's values by name."""
        return {"models": state.models, **state.server}

    @staticmethod
    def _with_mixtures(state: SoftState, client_ids, mixtures: np.ndarray) -> SoftState:
        where, mixture, assignment = state.index(client_ids), state.mixture.copy(), state.assignment.copy()
        mixture[where], assignment[where] = mixtures, mixtures.argmax(axis=1)
        return dataclasses.replace(state, mixture=mixture, assignment=assignment)

    def _found(self, state: SoftState, population: Population) -> np.ndarray:
        """The clients' mixtures `float32 [n, K]` of the current models."""
        if self._count == 1:
            return self._equal(len(population))
        return ask_all(self._find, self.values(state), population)

    def choose(self, state: SoftState, population: Population) -> SoftState:
        return self._with_mixtures(state, population.client_ids, self._found(state, population))

    def without_choices(self, state: SoftState) -> SoftState:
        return dataclasses.replace(
            state, mixture=self._equal(len(state.client_ids)), assignment=np.zeros_like(state.assignment)
        )

    def models_for(self, state: SoftState, client_ids):
        return state.models, state.mixture[state.index(client_ids)]

    def admit(self, state: SoftState, newcomers: Population) -> SoftState:
        """Newcomers find their mixtures of the current models; nothing is trained."""
        check_newcomers(state, newcomers)
        found = self._found(state, newcomers)
        return dataclasses.replace(state, **extended(state, newcomers, found.argmax(axis=1), mixture=found))

    def views(self, state: SoftState) -> Views:
        notes = notes_of_models(self.model, np.nonzero(state.mixture)[1], self._count)
        mixture = state.mixture if self._count > 1 else None
        return Views(state.client_ids, state.assignment, mixture=mixture, notes=notes)

    def hides_empty_rounds(self, state: SoftState) -> bool:
        return privacy_releases.all_noised(self._round.uploads)

    def exports(self) -> Exports:
        return Exports(
            lambda: round_computations(self._round, self._first),
            server_values=self.values,
            summed=summed_form(self._round),
            members_needed=lambda: self._round.members_needed,
        )


def build_finding(model: FlatModel, values_type: Mapping, find: Callable) -> tff.Computation:
    """Builds a function that asks clients of a simulation for their mixtures of the models.

    Args:
      values_type: The TFF type of each value that the server broadcasts, by name.
      find: `(values, x, y) -> float32[K]` in TensorFlow.
    """

    def find_own(values, examples):
        local = stack(examples)
        return find(values, local["x"], local["y"])

    return build_asking(tff.to_type(dict(values_type)), stacked_type(sequence_type(model.example_spec)), find_own)
