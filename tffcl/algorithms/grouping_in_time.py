"""When one-shot methods group clients: before training, as clients join, or after some rounds; and again later.

As clients join (PACFL Alg. 1 lines 7 to 20), the cohort of the first round is clustered, and a client that takes part
for the first time later is placed among the known clients, as newcomers are (Alg. 2 and 3). After some rounds of
FedAvg, as in FL+HC (Briggs et al., IJCNN 2020, arXiv:2004.11791) and FLUX, every cluster starts from FedAvg's model,
and signatures that depend on a model use it.

Clients are grouped again every T rounds, or when enough of them report that their data have changed. Signatures always
use the model of the first time, so that those of different times can be compared, and clients with unchanged data are
grouped as before. A new cluster goes on with the model of the old cluster that most of its members were in (the
matching with the most members in all); without such a cluster it starts from the mean of its members' models. This is
ours; FLT's Alg. 3, which asks for flags of change too, leaves it open.
"""

import dataclasses

import numpy as np
import tensorflow_federated as tff

from tffcl.algorithms.clustered_training import build_clustered_training
from tffcl.algorithms.method import (
    ClusteredState,
    Exports,
    Method,
    Moves,
    Views,
    ended_within,
    in_first_rounds,
    method_builder,
)
from tffcl.algorithms.one_shot import MOST_COMPARED, OneShot, OneShotClustering, OneShotState, Signed
from tffcl.algorithms.parameters import AS_THEY_JOIN, BEFORE, LOSS, WhenParameters
from tffcl.choices import DECOMPOSED, GAP, KNEE, SELF
from tffcl.client_work.client_work import sequence_type, stack, stacked_type
from tffcl.client_work.evaluation import build_mean_loss
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clients.arrays import index_of
from tffcl.clients.client_state import KeptStates
from tffcl.clients.cohort import Cohort
from tffcl.clients.newcomers import check_newcomers, extended, joined_order
from tffcl.clients.population import Population
from tffcl.clients.simulation_context import current
from tffcl.clustering import self_distance
from tffcl.clustering.reclustering import ChangeFlags, Triggers, renumbered
from tffcl.display import counted
from tffcl.errors import UserError
from tffcl.models.flat import FlatModel
from tffcl.models.layer_parts import require_shared
from tffcl.rounds import privacy_releases
from tffcl.rounds.client_queries import ask_all, build_asking
from tffcl.rounds.traffic import RoundMetrics, Traffic
from tffcl.signatures.parameters import check_noised
from tffcl.trace_cache import built_once

_FEWEST = {GAP: 3, KNEE: 3, SELF: self_distance.FEWEST}  # the fewest clients among which a rule can find clusters
_ALONE = "one model is trained (when)"  # in the first rounds, if `when` is their number
_FLAG = Traffic(up=4)  # an int32 that says whether a client's data have changed


@dataclasses.dataclass(frozen=True, eq=False)
class GroupedState:
    """All clients, and the state of the method for those that the server has grouped.

    Attributes:
      client_ids: `int32 [N]`, ascending.
      met: The state of the clients that are grouped; None before that.
      warm: The state of all clients in the rounds of FedAvg before they are grouped; else None.
      flags: Which clients reported a change of their data and which moved, rows as in `met`; None if clients are not
        grouped again.
      start: `float32 [P]`, FedAvg's model, which clients have until they are grouped, and from which clusters start
        that newcomers found later; None: the initial model.
      losses: `float32 [n]`, each client's lowest reported loss since it was grouped, NaN for none; rows as in `met`.
    """

    client_ids: np.ndarray
    met: OneShotState | None = None
    warm: ClusteredState | None = None
    flags: ChangeFlags | None = None
    losses: np.ndarray | None = None
    start: np.ndarray | None = None


def _release_of_losses(population: Population) -> privacy_releases.Release:
    what, cure = "the losses by which clients see that their data have changed", "regroup_every needs none of them"
    return privacy_releases.of_all(what, population, cure=cure)


class GroupedInTime(Method):
    """A one-shot method whose clients are grouped at another time than before training, or more than once.

    If clients are grouped as they join, a client that has not taken part yet is in a cluster of its own and has the
    initial model; so does a cluster that newcomers found. After rounds of FedAvg both have FedAvg's model instead.
    If Poisson sampling draws fewer clients than the first clusters need, no client is asked, and the next round is the
    first.

    A client that has left is grouped with the others by the signature that it sent before, but does not count for the
    signal to group again.
    """

    state_class = GroupedState

    def __init__(self, one_shot: OneShot, how: WhenParameters):
        """Makes the method.

        Args:
          one_shot: The method that would group clients before training.
          how: When its clients are grouped instead, and when again.

        Raises:
          UserError: If noised signatures would have to show changes, or clients would describe their data with a model
            of which each keeps a part.
        """
        self.name, self.model, self.joining, self._inner = one_shot.name, one_shot.model, one_shot.joining, one_shot
        self.kept_bytes, self.pair_bytes, self._how = one_shot.kept_bytes, one_shot.pair_bytes, how
        self.trained_models = one_shot.trained_models
        if how.when == AS_THEY_JOIN and not how.regroup_every and not how.regroup_on:
            self.pairs_of = MOST_COMPARED
        self._signal = how.regroup_on
        self._triggers = Triggers(period=how.regroup_every, share=self._signal and self._signal.share)
        check_noised(one_shot.clustering.signature.noise_multiplier, signal=self._signal and self._signal.signal)
        how.check_engine(one_shot.engine.counts_members)
        if isinstance(how.when, int) and one_shot.clustering.signature.model is not None:
            require_shared(self.model, f"after {counted(how.when, 'round')} clients describe their data with one model")

    def check_clients(self, clients: int):
        self._inner.check_clients(clients)

    def initialize(self, population: Population) -> GroupedState:
        state = GroupedState(population.client_ids)
        if self._signal and self._signal.signal == LOSS:
            current().announce(_release_of_losses(population))
        if self._how.when == BEFORE:
            return self._first(state, self._inner.initialize(population), population, 0)
        if self._how.when == AS_THEY_JOIN:
            return state
        noise, nobody = self._inner.clustering.signature.noise_multiplier, np.zeros(len(population), np.int32)
        current().announce(privacy_releases.of_all("the signatures", population, noise, once=True))
        return dataclasses.replace(state, warm=ClusteredState(**self._inner.engine.start(population, nobody)))

    def _first(self, state: GroupedState, met: OneShotState, population: Population, round_number: int) -> GroupedState:
        """The state after the first clusters have been formed, after round `round_number`."""
        state = dataclasses.replace(state, met=met, warm=None)
        if not self._triggers:
            return state
        flags = ChangeFlags.none(population.versions[population.index(met.client_ids)], round_number)
        return dataclasses.replace(state, flags=flags, losses=np.full(len(met.client_ids), np.nan, np.float32))

    def next(self, state: GroupedState, cohort: Cohort):
        number, scalars = cohort.seed[1], {"change_flags": 0, "formed_anew": 0} if self._triggers else {}
        if state.warm is not None and number <= self._how.when:
            warm, metrics = self._inner.engine.next(state.warm, cohort)
            return dataclasses.replace(state, warm=warm), dataclasses.replace(metrics, scalars=scalars)
        exchanged = Traffic()
        if state.warm is not None:
            state = self._warmed_up(state, cohort.population, number - 1)
            exchanged += self.joining * len(state.met.client_ids)
        if state.met is None and cohort.rate is not None and self._too_few(len(cohort.client_ids)):
            return state, RoundMetrics.of_nobody()
        state, fresh = self._met(state, cohort.population, cohort.client_ids, number - 1)
        exchanged += self.joining * fresh
        if self._triggers:
            state, flagging = self._flagged(state, cohort)
            there = np.intersect1d(state.met.client_ids, cohort.population.client_ids)
            standing = int(state.flags.raised[state.met.index(there)].sum())
            due = self._triggers.due(standing, number - 1, int(state.flags.formed_in), len(there))
            due = due and not self._too_few(len(there))  # otherwise it stays due
            scalars = {"change_flags": standing, "formed_anew": int(due)}
            state, signed = self._formed_anew(state, cohort.population, number - 1) if due else (state, 0)
            exchanged += _FLAG * flagging + self.joining * signed
        # Clients that send a signature in this round take part in it, and the server sees that.
        met, metrics = self._inner.next(state.met, dataclasses.replace(cohort, seen=fresh > 0))
        metrics = dataclasses.replace(metrics, scalars={**metrics.scalars, **scalars})
        return dataclasses.replace(state, met=met), metrics.with_signatures(exchanged)

    def _warmed_up(self, state: GroupedState, population: Population, round_number: int) -> GroupedState:
        """The state after all present clients have been grouped after the rounds of FedAvg. A client that has left
        joins when it takes part again."""
        warm, how = state.warm, self._inner.clustering
        there = population.restricted(np.intersect1d(warm.client_ids, population.client_ids))
        state = dataclasses.replace(state, start=self._inner.engine.whole_model(warm, 0))
        labels, formed = self._inner.formed(there, model=None if how.signature.model is None else state.start)
        together = dataclasses.replace(warm, assignment=np.zeros(len(labels), np.int32))
        first = np.where(np.arange(labels.max() + 1) == 0, 0, -1)
        carried = self._inner.engine.formed_anew(together, labels, first)
        members = {"client_ids": there.client_ids, "assignment": labels}
        return self._first(state, OneShotState(**{**vars(warm), **members, **carried, **formed}), there, round_number)

    def _flagged(self, state: GroupedState, cohort: Cohort) -> tuple[GroupedState, int]:
        """The state after the clients of a cohort have checked whether their data have changed, and the number of
        clients asked; it is 0 in the round before which all have signed."""
        just_formed = cohort.seed[1] - 1 <= state.flags.formed_in
        if not self._signal or just_formed or not len(cohort.client_ids):
            return state, 0
        met, ids = state.met, np.sort(cohort.client_ids)
        where, population, bound = met.index(ids), cohort.population.restricted(ids), self._signal.bound
        if self._signal.signal == LOSS:
            current, losses = self._losses(met, population), state.losses.copy()
            changed = current > losses[where] + bound
            losses[where] = np.fmin(losses[where], current)
            state = dataclasses.replace(state, losses=losses)
        else:
            now, how = self._inner.sign(population, cohort.seed[1], met.signed_with).whole, self._inner.clustering
            if how.metric == DECOMPOSED:  # the directions are those of all clients
                apart = how.distances(met.signatures, now)[where]
            else:
                apart = how.distances({name: rows[where] for name, rows in met.signatures.items()}, now)
            changed = np.diagonal(apart) > bound
        flags = state.flags.with_changed(where[changed], cohort.seed[1])
        return dataclasses.replace(state, flags=flags), len(ids)

    def _losses(self, met: OneShotState, population: Population) -> np.ndarray:
        """Each client's loss `float32 [m]` under its model before it trains."""
        models, rows = self._inner.used_models(met, population.client_ids)
        losses = np.empty(len(rows), np.float32)
        current().release(_release_of_losses(population))  # counts once, for any number of models
        for row in np.unique(rows):
            members = population.restricted(population.client_ids[rows == row])
            losses[rows == row] = ask_all(_build_losses(self.model.whole), models[row], members)
        return losses

    def _formed_anew(self, state: GroupedState, population: Population, round_number: int) -> tuple[GroupedState, int]:
        """The state after all present clients have signed again, and their number; `round_number` rounds have been
        trained."""
        met, inner = state.met, self._inner
        there, gone = (select(met.client_ids, population.client_ids) for select in (np.intersect1d, np.setdiff1d))
        labels, formed = inner.formed(population.restricted(there), round_number, met.signed_with)
        if len(gone):
            where = met.index(gone)
            kept = Signed({name: rows[where] for name, rows in met.signatures.items()})
            kept = kept if met.examples is None else dataclasses.replace(kept, examples=met.examples[where])
            known = dataclasses.replace(met, client_ids=there, assignment=labels, **formed)
            absent = dataclasses.replace(met, client_ids=gone)
            theirs, placed = inner.placed(known, absent, kept)
            labels, formed = extended(known, absent, theirs)["assignment"], {**formed, **placed}
        labels, moved, origins = renumbered(labels, met.assignment)
        carried = inner.engine.formed_anew(met, labels, origins)
        versions = state.flags.signed_version.copy()
        versions[met.index(there)] = population.versions[population.index(there)]
        state = dataclasses.replace(
            state,
            met=dataclasses.replace(met, assignment=labels, **formed, **carried),
            flags=state.flags.formed_anew(moved, versions, round_number),
            losses=np.full_like(state.losses, np.nan),
        )
        return state, len(there)

    def _met(
        self, state: GroupedState, population: Population, client_ids, round_number: int = 0
    ) -> tuple[GroupedState, int]:
        """The state in which the server knows these clients, and how many of them are new to it."""
        fresh = np.sort(client_ids) if state.met is None else np.setdiff1d(client_ids, state.met.client_ids)
        if not len(fresh):
            return state, 0
        how = self._inner.clustering
        if state.met is None and how.num_clusters is None and self._too_few(len(fresh)):
            raise UserError(
                f"when is 'as_they_join' and the first round has {counted(len(fresh), 'client')}, among which "
                f"nothing tells clusters apart; it needs {_FEWEST[how.threshold]} clients or more, a number as "
                f"threshold, or num_clusters"
            )
        arrivals = population.restricted(fresh)
        if state.met is None:
            return self._first(state, self._inner.initialize(arrivals), arrivals, round_number), len(fresh)
        # Grouping all clients again needs the signatures of all.
        met = self._inner.admit(state.met, arrivals, whole=bool(self._triggers))
        if state.start is not None:
            founded = np.arange(len(state.met.models), len(met.models))
            met = dataclasses.replace(met, **self._inner.engine.started_from(met, founded, state.start))
        joined = dataclasses.replace(state, met=met)
        if state.flags is None:
            return joined, len(fresh)
        order, unknown = joined_order(state.met, arrivals), np.full(len(fresh), np.nan, np.float32)
        flags = state.flags.with_arrivals(arrivals.versions, order, raised=0)
        losses = np.concatenate([state.losses, unknown])[order]
        return dataclasses.replace(joined, flags=flags, losses=losses), len(fresh)

    def _too_few(self, clients: int) -> bool:
        """Whether so many clients are too few to form the first clusters."""
        how = self._inner.clustering
        return clients < _FEWEST.get(how.threshold, how.num_clusters or 1)

    def _inside(self, state: GroupedState) -> ClusteredState | None:
        """The state that the rounds train; None before the first round if clients are grouped as they join."""
        return state.met if state.warm is None else state.warm

    def hides_empty_rounds(self, state: GroupedState) -> bool:
        inside = self._inside(state)
        return inside is not None and self._inner.hides_empty_rounds(inside)

    def own_states(self, state: GroupedState) -> KeptStates | None:
        inside = self._inside(state)
        return None if inside is None else self._inner.own_states(inside)

    def models_for(self, state: GroupedState, client_ids):
        inside, known = self._inside(state), self._known(state, client_ids)
        initial = (self.model.initial if state.start is None else state.start)[np.newaxis]
        if inside is None:
            return initial, np.zeros(len(known), np.int32)
        models, own = self._inner.models_for(inside, np.asarray(client_ids)[known])
        if known.all():
            return models, own
        rows = np.full(len(known), len(models), np.int32)
        rows[known] = own
        return np.concatenate([models, initial]), rows

    def _known(self, state: GroupedState, client_ids) -> np.ndarray:
        index_of(state.client_ids, client_ids)  # refuses unknown clients
        inside = self._inside(state)
        return np.isin(client_ids, [] if inside is None else inside.client_ids)

    def admit(self, state: GroupedState, newcomers: Population) -> GroupedState:
        """Newcomers send their signatures at once; before the first clusters they are like all other clients."""
        check_newcomers(state, newcomers)
        together = np.sort(np.concatenate([state.client_ids, newcomers.client_ids])).astype(np.int32)
        state = dataclasses.replace(state, client_ids=together)
        if state.warm is not None:
            members = extended(state.warm, newcomers, np.zeros(len(newcomers), np.int32))
            return dataclasses.replace(state, warm=dataclasses.replace(state.warm, **members))
        return state if state.met is None else self._met(state, newcomers, newcomers.client_ids)[0]

    def joined_traffic(self, before: GroupedState | None, after: GroupedState) -> Traffic:
        """Before clients are grouped, none signs; the round that groups them counts what they send."""
        return Traffic() if after.met is None else super().joined_traffic(before, after)

    def views(self, state: GroupedState) -> Views:
        if state.warm is not None:
            return Views(state.client_ids, state.warm.assignment, notes=(in_first_rounds(self._how.when, _ALONE),))
        known = self._known(state, state.client_ids)
        clusters, shown = np.arange(len(known), dtype=np.int32), {}
        if state.met is not None:
            inner = self._inner.views(state.met)
            clusters += inner.clusters.max() + 1
            clusters[known] = inner.clusters
            metric = inner.metric if known.all() else None
            shown = {"metric": metric, "notes": inner.notes, "nowhere": inner.nowhere}
        moves = None
        if state.flags is not None:
            rows = np.zeros((2, len(known)), np.int32)
            moved = state.flags.moved_in  # after this round; clients move in the next one, before it trains
            rows[:, known] = moved + (moved > 0), state.flags.flagged_in
            moves = Moves(rows[0], rows[1] if self._signal else None)
        return Views(state.client_ids, clusters, known, moves=moves, **shown)

    def exports(self) -> Exports:
        inner, how = self._inner.exports(), self._how

        def values(state: GroupedState) -> dict:
            if state.warm is not None:
                raise ended_within(how.when, _ALONE)
            if state.met is None:
                raise UserError(
                    "nobody has taken part in this run, so that it has no clusters; export one that trained longer"
                )
            return inner.server_values(state.met)

        def still(state: GroupedState) -> GroupedState:  # its next round meets nobody, and no flag is raised
            if state.met is None:
                return state
            flags = state.flags and dataclasses.replace(state.flags, raised=np.zeros_like(state.flags.raised))
            return dataclasses.replace(state, client_ids=state.met.client_ids, flags=flags)

        when = {**inner.when, **self._told_when(inner)}
        return dataclasses.replace(inner, server_values=values, when=when, rehearsal=still)

    def _told_when(self, inner: Exports) -> dict[str, str]:
        """When clients sign, and what the coordinator does between rounds, for the manifest of an export."""
        signs, steps = "once for every client, before its first round of training", []
        if isinstance(self._how.when, int):
            # Clusters start from that model, even if the method would start them otherwise: the engine's text holds.
            inner = self._inner.engine.exports()
            rounds = counted(self._how.when, "round")
            steps = [f"a run begins with {rounds} of one model, row 0, which every cluster then starts from"]
            signs = f"once for every client: after {rounds} of one model, newcomers when they join later"
        if self._how.when == AS_THEY_JOIN:
            signs += "; `met.client_ids` of clustering/state.npz have, all others are in no cluster yet"
        if self._triggers:
            signs += "; again where the clients are grouped again"
            steps.append(
                "where the clients are grouped again, the coordinator runs `signature` with all of them, groups them, "
                "and puts the models in the order of the new clusters; one that goes on from none starts from the mean "
                "of its members' models (Python, tffcl.clustering.reclustering)"
            )
        steps = [*filter(None, [inner.when.get("training")]), *steps]
        return {"signature": signs, **({"training": "; ".join(steps)} if steps else {})}


@built_once
def _build_losses(model: FlatModel) -> tff.Computation:
    """Builds the computation that collects every client's loss `float32` under a model `float32[P]`."""
    mean_loss = build_mean_loss(model)

    def loss(vector, examples):
        tried = stack(examples)
        return mean_loss(vector, tried["x"], tried["y"])

    examples_type = stacked_type(sequence_type(model.example_spec))
    return build_asking(tff.TensorType(np.float32, [model.size]), examples_type, loss)


@method_builder
def build_one_shot(
    name: str,
    model: FlatModel,
    training: LocalTraining,
    clustering: OneShotClustering,
    *,
    when: WhenParameters = WhenParameters(),
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> Method:
    """Builds a method that groups clients by signatures of their data.

    Args:
      name: The name of the method.
      clustering: How clients are grouped.
      when: When they are grouped, and when again; default once, before the first round.
    """
    engine = build_clustered_training(model, training, aggregation=aggregation)
    return in_time(OneShot(name, engine, clustering), when)


def in_time(one_shot: OneShot, when: WhenParameters) -> Method:
    """Returns a one-shot method whose clients are grouped at the time that the parameters say."""
    return one_shot if when.only_before else GroupedInTime(one_shot, when)
