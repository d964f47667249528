"""When the clients of a one-shot method are grouped, where that is not before training: as they take part (PACFL Alg. 1
lines 7 to 20).

The cohort of the first round is clustered, and whoever takes part for the first time later is placed among those who
are known, as newcomers are (Alg. 2 and 3).
"""

import dataclasses

import numpy as np

from tffcl.algorithms.method import Exports, Method, Views
from tffcl.algorithms.one_shot import OneShot, OneShotState
from tffcl.choices import GAP, SELF
from tffcl.clients.cohort import Cohort
from tffcl.clients.population import Population, check_newcomers, index_of
from tffcl.clustering import self_distance
from tffcl.errors import UserError
from tffcl.rounds.traffic import RoundMetrics

_FEWEST = {GAP: 3, SELF: self_distance.FEWEST}  # clients among which a rule can find clusters


@dataclasses.dataclass(frozen=True, eq=False)
class ArrivingState:
    """All clients, and the state of the method for those who have taken part.

    Attributes:
      client_ids: `int32 [N]`, ascending.
      met: Of the clients that are known; None before the first round.
    """

    client_ids: np.ndarray
    met: OneShotState | None = None


class OneShotArrivals(Method):
    """A method that clusters by signatures, and asks a client for its own when it first takes part.

    A client that has not taken part is in a cluster of its own and has the initial model; so has a cluster that
    newcomers found. Where Poisson sampling draws fewer clients than the first clusters need, nobody is asked for
    anything: the next round is the first.
    """

    state_class = ArrivingState

    def __init__(self, one_shot: OneShot):
        self.name, self.model, self.joining, self._inner = one_shot.name, one_shot.model, one_shot.joining, one_shot

    def initialize(self, population: Population) -> ArrivingState:
        return ArrivingState(population.client_ids)

    def next(self, state: ArrivingState, cohort: Cohort):
        if state.met is None and cohort.rate is not None and self._too_few(len(cohort.client_ids)):
            return state, RoundMetrics.of_nobody()
        state, fresh = self._met(state, cohort.population, cohort.client_ids)
        # Who sends a signature in this round takes part in it, and the server sees that.
        met, metrics = self._inner.next(state.met, dataclasses.replace(cohort, seen=fresh > 0))
        return dataclasses.replace(state, met=met), metrics.with_signatures(self.joining * fresh)

    def _met(self, state: ArrivingState, population: Population, client_ids) -> tuple[ArrivingState, int]:
        """The state in which the server knows these clients, and how many of them are new to it."""
        fresh = np.sort(client_ids) if state.met is None else np.setdiff1d(client_ids, state.met.client_ids)
        if not len(fresh):
            return state, 0
        how = self._inner.clustering
        if state.met is None and how.num_clusters is None and self._too_few(len(fresh)):
            raise UserError(
                f"when is 'as_they_join' and the first round has {len(fresh)} clients, among which nothing tells "
                f"clusters apart; it needs {_FEWEST[how.threshold]} clients or more, a number as threshold, or "
                f"num_clusters"
            )
        arrivals = population.restricted(fresh)
        met = self._inner.initialize(arrivals) if state.met is None else self._inner.admit(state.met, arrivals)
        return dataclasses.replace(state, met=met), len(fresh)

    def _too_few(self, clients: int) -> bool:
        """Whether so many clients are fewer than the first clusters can be formed of."""
        how = self._inner.clustering
        return clients < _FEWEST.get(how.threshold, how.num_clusters or 1)

    def hides_empty_rounds(self, state: ArrivingState) -> bool:
        return state.met is not None and self._inner.hides_empty_rounds(state.met)

    def models_for(self, state: ArrivingState, client_ids):
        initial, known = self._inner.engine.initial[np.newaxis], self._known(state, client_ids)
        if state.met is None:
            return initial, np.zeros(len(known), np.int32)
        models, own = self._inner.models_for(state.met, np.asarray(client_ids)[known])
        rows = np.full(len(known), len(models), np.int32)
        rows[known] = own
        return np.concatenate([models, initial]), rows

    def _known(self, state: ArrivingState, client_ids) -> np.ndarray:
        index_of(state.client_ids, client_ids)  # refuses who is not known at all
        return np.isin(client_ids, [] if state.met is None else state.met.client_ids)

    def admit(self, state: ArrivingState, newcomers: Population) -> ArrivingState:
        """Newcomers send their signatures at once; before the first clusters they are as all others."""
        check_newcomers(state, newcomers)
        together = np.sort(np.concatenate([state.client_ids, newcomers.client_ids])).astype(np.int32)
        state = dataclasses.replace(state, client_ids=together)
        return state if state.met is None else self._met(state, newcomers, newcomers.client_ids)[0]

    def views(self, state: ArrivingState) -> Views:
        known = self._known(state, state.client_ids)
        clusters, shown = np.arange(len(known), dtype=np.int32), {}
        if state.met is not None:
            inner = self._inner.views(state.met)
            clusters += inner.clusters.max() + 1
            clusters[known] = inner.clusters
            metric = inner.metric if known.all() else None
            shown = {"metric": metric, "notes": inner.notes, "nowhere": inner.nowhere}
        return Views(state.client_ids, clusters, known, **shown)

    def exports(self) -> Exports:
        inner = self._inner.exports()

        def values(state: ArrivingState) -> dict:
            if state.met is None:
                raise UserError(
                    "nobody has taken part in this run, so that it has no clusters; export one that trained longer"
                )
            return inner.server_values(state.met)

        return dataclasses.replace(inner, server_values=values)
