"""The engine of every method with hard clusters: clients train their cluster's model, with one mean per cluster. Here
are also the rounds of FedSEM and CFL, whose server sees each client's update."""

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.clustered_mean import keyed_factory
from tffcl.aggregators.collect import CollectFactory
from tffcl.aggregators.contract import traits
from tffcl.aggregators.per_cluster import rearranged_rows, rearranged_state
from tffcl.algorithms.method import ClusteredState, Exports, Method, Views
from tffcl.client_work.local_sgd import LocalTraining, check_optimizer
from tffcl.client_work.training import build_difference_work, build_trajectory_work, build_update_work
from tffcl.clients.client_state import KeptStates, bytes_of
from tffcl.clients.cohort import Cohort
from tffcl.clients.population import Population
from tffcl.clustering.reclustering import mean_of_members
from tffcl.display import counted
from tffcl.errors import UserError
from tffcl.models.flat import FlatModel
from tffcl.rounds.composer import WEIGHTINGS, Round, Server, compose
from tffcl.rounds.privacy_releases import all_noised
from tffcl.rounds.server import initial_optimizer_state, keyed_server, models_type, own_row
from tffcl.rounds.simulation import RoundResult, run_round
from tffcl.rounds.sum_only_form import summed_form
from tffcl.rounds.traffic import RoundMetrics
from tffcl.runtime import memory
from tffcl.trace_cache import built_once
from tffcl.validation import check_value, one_of, tell_once


@built_once
def build_clustered_round(
    model: FlatModel,
    training: LocalTraining,
    *,
    aggregation: tff.aggregators.WeightedAggregationFactory | None = None,
    optimizer: tff.learning.optimizers.Optimizer | None = None,
    flags: bool = False,
    weighting: str = "examples",
    trajectories: bool = False,
) -> Round:
    """Builds one round of clustered training (PACFL Alg. 1 lines 17 to 25).

    A client receives row `key` of the server's `models float32[?,P]`, and its upload moves this row: `models[k]`
    becomes `models[k]` plus the weighted mean of the differences of the clients with key k. A deployed client receives
    its own row only; in simulation every client computation gathers its own, and traffic is counted for one row.

    Args:
      optimizer: The optimizer of the server, see `keyed_server`.
      flags: Whether clients report that their data have changed (`changed=int32` in their input and their report).
      weighting: The weights of clients in the mean, a name in `WEIGHTINGS`.
      trajectories: Whether clients also upload their mean loss in each epoch, `losses=float32[E]`, which is collected.
    """
    work = build_trajectory_work(model, training) if trajectories else build_update_work(model, training, flags=flags)
    uploads = {"update": keyed_factory(aggregation), **({"losses": CollectFactory()} if trajectories else {})}
    server = keyed_server(model.size, optimizer=optimizer, on_trained=model.on_trained)
    return compose(work, uploads, server, weighting=WEIGHTINGS[weighting])


@dataclasses.dataclass(frozen=True, eq=False)
class ClusteredTraining:
    """Rounds on a `ClusteredState` whose `assignment` says which row of `models` a client trains.

    Attributes:
      model: The model to train; every cluster starts from its initial weights.
      round: The composed round; its server has `models`, and all its other values have a row for each model. None if an
        aggregation runs once per cluster, so that the round depends on the number of clusters.
      compact: Whether only the rows that the cohort trains are sent to the runtime; False with aggregations that have a
        fixed number of clusters.
      rows: `(count) -> {name: rows}`, the server's other values for `count` new models.
      kept: What a client keeps before its first round; None if clients keep nothing.
      flags: `(state, Cohort) -> int32 [m]`, the clients' flags of change, for a round that takes them; else None.
      round_of: `(number of clusters) -> Round`, if there is no `round`.
      counts_members: Whether the server of the round has `members float32[?]`, how many clients each cluster has.
      draw: `(count) -> float32 [count, P]`, the models from which clusters start, if these are not all the initial one;
        exports begin with these, and not with models that a method changes after `start`.
      trained_models: How many models a client trains in a round.
      training: The local training of the clients, if it is known.
    """

    trained_models: ClassVar[int] = 1

    model: FlatModel
    round: Round | None
    compact: bool = True
    rows: Callable[[int], Mapping] = lambda count: {}
    kept: object = None
    flags: Callable[[ClusteredState, Cohort], np.ndarray] | None = None
    round_of: Callable[[int], Round] | None = None
    counts_members: bool = False
    draw: Callable[[int], np.ndarray] | None = None
    training: LocalTraining | None = None

    def round_for(self, clusters: int) -> Round:
        """Returns the round for this number of clusters."""
        return self.round or self.round_of(clusters)

    @functools.cached_property
    def initial(self) -> np.ndarray:
        """`float32 [P]`, the model that every cluster starts from."""
        return self.model.initial

    def start(self, population: Population, assignment: np.ndarray, clusters: int = 0) -> dict:
        """Returns the fields of a `ClusteredState` before the first round, all models at their start.

        Args:
          population: The clients.
          assignment: `int [N]`, the cluster of each, from 0.
          clusters: The lowest number of clusters; by default those that have clients.

        Raises:
          UserError: If the assignment is anything else, the models do not fit into memory, or the aggregation is for
            another number of clusters.
        """
        assignment, clients = np.asarray(assignment), len(population)
        if assignment.shape != (clients,) or not np.issubdtype(assignment.dtype, np.integer):
            there = f"the assignment is {assignment.dtype} {list(assignment.shape)}"
            raise UserError(f"{there}; it must be whole numbers [{clients}], a cluster for each client")
        _check_clusters(assignment)
        count = max(int(assignment.max()) + 1, clusters)
        self._check_room(count)
        return {
            "client_ids": population.client_ids,
            "assignment": assignment,
            "models": self.first_models(count),
            "aggregators": self.round_for(count).initial_aggregators,
            "server": self.rows(count),
            "kept": None if self.kept is None else KeptStates(self.kept),
        }

    def _check_room(self, count: int):
        """Raises UserError if so many models do not fit into memory, or the aggregation is for another number."""
        for factory in self.round.uploads.values() if self.round else ():
            keyed_factory(factory, count)  # otherwise clients of a cluster that the factory lacks would count nowhere
        memory.check_room(count * self.initial.nbytes, f"{counted(count, 'model')} × {self.initial.size:,} parameters")

    def grown(self, state: ClusteredState, count: int) -> dict:
        """Returns the fields `models`, `server` and `aggregators` with new clusters added, at their start.

        Raises:
          UserError: If their models do not fit into memory.
        """
        return self.rearranged(state, np.append(np.arange(len(state.models)), np.full(count, -1)))

    def rearranged(self, state: ClusteredState, rows: np.ndarray) -> dict:
        """Returns the fields `models`, `server` and `aggregators` after clusters are rearranged.

        Args:
          state: The state with the old clusters.
          rows: `int [K]`, the old row of each cluster, -1 for a new cluster, which is at its start.

        Raises:
          UserError: If the models do not fit into memory.
        """
        self._check_room(len(rows))
        start, aggregators = np.repeat(self.initial[np.newaxis], len(rows), axis=0), state.aggregators
        if self.round is None:
            fresh = self.round_for(len(rows)).initial_aggregators
            aggregators = collections.OrderedDict(
                (name, rearranged_state(aggregators[name], new, rows)) for name, new in fresh.items()
            )

        def of_rows(old, new):
            return rearranged_rows(old, new, rows)

        server = tf.nest.map_structure(of_rows, state.server, self.rows(len(rows)))
        return {"models": of_rows(state.models, start), "server": server, "aggregators": aggregators}

    def formed_anew(self, state: ClusteredState, labels: np.ndarray, origins: np.ndarray) -> dict:
        """Returns the same fields after clusters are formed anew.

        Args:
          state: The state with the old clusters.
          labels: `int [N]`, the new clusters, from 0.
          origins: `int [K]`, as `rows` of `rearranged`, but a new cluster starts from the mean of its members' models.
        """
        carried, own = self.rearranged(state, origins), mean_of_members(state.models, state.assignment, labels)
        carried["models"][origins < 0] = own[origins < 0]
        return carried

    def whole_model(self, state: ClusteredState, row: int) -> np.ndarray:
        """Returns the model `float32 [P]` that a member of a cluster starts from before it has trained."""
        return state.models[row]

    def started_from(self, state: ClusteredState, rows: np.ndarray, model: np.ndarray) -> dict:
        """Returns the fields `models` and `server` in which the clusters in some rows start from a model `[P]`."""
        return {"models": _with_rows(state.models, rows, model), "server": state.server}

    def next(self, state: ClusteredState, cohort: Cohort) -> tuple[ClusteredState, RoundMetrics]:
        """Runs one round; see `Method.next`."""
        return self.run(state, cohort)[:2]

    def run(self, state: ClusteredState, cohort: Cohort) -> tuple[ClusteredState, RoundMetrics, RoundResult | None]:
        """Runs one round; returns the next state, the round's metrics, and its whole result, or None if no client was
        asked. Clients of a cluster that waits (`FactoryTraits.members_needed`) are not asked, and not in the metrics.
        """
        composed = self.round_for(len(state.models))
        cohort = of_large_clusters(composed, state, cohort)
        clusters = state.clusters(cohort.client_ids)
        _check_clusters(clusters, len(state.models))
        if not len(clusters) and not all_noised(composed.uploads):
            return state, RoundMetrics.of_nobody(), None
        rows, keys = (
            np.unique(clusters, return_inverse=True) if self.compact else (np.arange(len(state.models)), clusters)
        )
        everything = self.broadcast(state)
        fields = {"key": keys.astype(np.int32)}
        if self.flags:
            fields["changed"] = self.flags(state, cohort)
        if state.kept is not None:
            fields |= {"kept": state.kept, "brought": self.brought_by(state, cohort.client_ids)}
        sent = tf.nest.map_structure(lambda leaf: leaf[rows], everything)
        result = run_round(composed, cohort, sent, state.aggregators, optimizers=state.optimizers, **fields)
        moved = tf.nest.map_structure(lambda old, new: _with_rows(old, rows, new), everything, dict(result.values))
        moved.pop("members", None)
        changes = {
            "models": moved.pop("models"),
            "server": {**state.server, **moved},
            "aggregators": result.aggregators,
            "optimizers": result.optimizers,
        }
        if state.kept is not None:
            changes["kept"] = result.kept
        return dataclasses.replace(state, **changes), result.metrics(cohort, clusters), result

    def broadcast(self, state: ClusteredState) -> dict:
        """Returns the server's values of a round by name, broadcast and private ones, with a row for each model."""
        values = {"models": state.models, **state.server}
        if self.counts_members:
            values["members"] = np.bincount(state.assignment, minlength=len(state.models)).astype(np.float32)
        return values

    def brought_by(self, state: ClusteredState, client_ids) -> Sequence:
        """Returns the part of what each client keeps that it brings to a round."""
        return state.kept.of(client_ids)

    def exports(self, **more) -> Exports:
        """Returns what can be deployed; `more` are further fields of `Exports`, and `build` adds computations.

        The first values are those that a run starts from, with the clusters and clients of the given values, or with
        one client.
        """
        build, alone = more.pop("build", dict), {"models": self.initial[np.newaxis], "members": np.ones(1, np.float32)}

        def build_for(values: Mapping = alone):
            clusters = len(values["models"])
            first = {"models": self.first_models(clusters), **self.rows(clusters)}
            if self.counts_members:
                first["members"] = values["members"]
            return {**build(), **round_computations(self.round_for(clusters), first)}

        summed = summed_form(self.round) if self.round else None
        return Exports(
            build_for, server_values=self.broadcast, summed=summed, build_for=build_for,
            members_needed=lambda: self.round_for(2).members_needed, **more,  # refuses what several clusters cannot do
        )  # fmt: skip

    def first_models(self, count: int) -> np.ndarray:
        """Returns the models `float32 [count, P]` from which `count` clusters start: the initial one, or drawn ones."""
        return np.repeat(self.initial[np.newaxis], count, axis=0) if self.draw is None else self.draw(count)

    def own_states(self, state: ClusteredState) -> KeptStates | None:
        """See `Method.own_states`."""
        return state.optimizers

    def models_for(self, state: ClusteredState, client_ids) -> tuple[np.ndarray, np.ndarray]:
        """See `Method.models_for`; an engine whose clients have more than their row of `models` overrides this."""
        return state.models, state.clusters(client_ids)


class EngineMethod(Method):
    """A method whose rounds are those of an engine, from `build_clustered_training` or `build_engine`. A subclass only
    writes `initialize`, by `engine.start(population, assignment)`, and `admit`."""

    state_class = ClusteredState

    def __init__(self, name: str, engine: ClusteredTraining):
        self.name, self.engine, self.model = name, engine, engine.model

    @property
    def kept_bytes(self) -> int:
        return 0 if self.engine.kept is None else bytes_of(self.engine.kept)

    @property
    def trained_models(self) -> int:
        return self.engine.trained_models

    def next(self, state: ClusteredState, cohort: Cohort):
        return self.engine.next(state, cohort)

    def models_for(self, state: ClusteredState, client_ids):
        return self.engine.models_for(state, client_ids)

    def own_states(self, state: ClusteredState) -> KeptStates | None:
        return self.engine.own_states(state)

    def hides_empty_rounds(self, state: ClusteredState) -> bool:
        return all_noised(self.engine.round_for(len(state.models)).uploads)

    def views(self, state: ClusteredState) -> Views:
        return Views(state.client_ids, state.assignment)

    def exports(self) -> Exports:
        return self.engine.exports()


def round_computations(
    composed: Round, first: Mapping, aggregators: Mapping | None = None
) -> dict[str, tff.Computation]:
    """Returns a round's computations for export: its first state (see `Round.build_initialize`), the round, and what
    clients keep.

    If secure sums or noise hide the uploads, the server does not receive the clients' reports, either.
    """
    composed = composed.as_promised
    found = {"initialize": composed.build_initialize(first, aggregators), "training": composed.deployed}
    if composed.deployed_with_kept is not None:
        found["training_with_kept"] = composed.deployed_with_kept
    return found


def of_large_clusters(composed: Round, state: ClusteredState, cohort: Cohort) -> Cohort:
    """The clients of a cohort whose cluster has as many clients in it as the uploads of the round need."""
    needed = composed.members_needed
    _, place, members = np.unique(state.clusters(cohort.client_ids), return_inverse=True, return_counts=True)
    trains = members[place] >= needed
    if trains.all():
        return cohort
    tell_once(
        f"a cluster with fewer than {needed} clients in a round (min_cluster_size) waits, and these are not asked: a "
        "sum would not hide what they upload"
    )
    return cohort.chosen(np.flatnonzero(trains))


def _check_clusters(clusters: np.ndarray, count: int | None = None):
    """Raises UserError if a cluster is below 0, which would mean the last one, or not below `count`."""
    wrong = clusters[(clusters < 0) | (count is not None and clusters >= count)]
    if wrong.size:
        known = "" if count is None else f" to {count - 1}"
        raise UserError(f"the assignment has the cluster {wrong[0]}; clusters are numbered from 0{known}")


def _with_rows(old, rows, new):
    changed = np.array(old)
    changed[rows] = new
    return changed


def build_engine(
    model: FlatModel, build_round: Callable[..., Round], aggregation=None, rows=None, *, kind=ClusteredTraining, **more
) -> ClusteredTraining:
    """Builds an engine from rounds of your own, for any aggregation, whatever it must know before it can be created.

    Args:
      build_round: `(aggregation) -> Round`, whose keyed uploads go through `keyed_factory(aggregation)`.
      rows: As in `ClusteredTraining`.
      kind: `ClusteredTraining`, or a class that derives from it.
      **more: Further fields of that class.

    Raises:
      UserError: If `aggregation` is not an aggregation factory.
    """
    factory = keyed_factory(aggregation)
    more["rows"] = rows or (lambda count: {})
    if not traits(factory).waits_for_clusters:
        return kind(model, build_round(aggregation), aggregation is None, **more)
    if traits(factory).hides_uploads:
        build_round(factory.with_clusters(1))  # refuses now what it cannot hide

    @functools.lru_cache(maxsize=2)
    def round_of(clusters: int) -> Round:
        return build_round(factory.with_clusters(clusters))

    return kind(model, None, False, round_of=round_of, **more)


def build_clustered_training(
    model: FlatModel,
    training: LocalTraining,
    *,
    aggregation=None,
    optimizer=None,
    flags=None,
    weighting="examples",
    trajectories=False,
) -> ClusteredTraining:
    """Builds rounds in which each client trains the model of its cluster, and each cluster's model moves by the mean of
    its members' updates (PACFL Alg. 1 lines 17 to 25).

    Args:
      model: The model to train; every cluster starts from its initial weights.
      training: Local hyper-parameters.
      aggregation: Aggregates the updates inside each cluster, see `tffcl.aggregation`; None for their mean.
      optimizer: `tff.learning.optimizers.Optimizer` of the server, see `keyed_server`; None adds the mean.
      flags: `(state, Cohort) -> int32 [m]`, whether the data of each client have changed, which it then reports; None:
        clients do not report.
      weighting: The weights of clients in the mean: "examples" or "uniform".
      trajectories: Whether clients also upload their mean loss in each epoch.
    """

    check_optimizer("optimizer", optimizer)
    check_value("weighting", weighting, one_of(WEIGHTINGS))

    def build_round(aggregation) -> Round:
        options = {"optimizer": optimizer, "weighting": weighting, "trajectories": trajectories}
        return build_clustered_round(model, training, aggregation=aggregation, flags=flags is not None, **options)

    def rows(count: int):
        return {"optimizer": initial_optimizer_state(optimizer, model.size, count)} if optimizer else {}

    return build_engine(model, build_round, aggregation, rows, flags=flags, training=training)


def draw_models(model: FlatModel, count: int, seed: int, initialization: str | None = None) -> np.ndarray:
    """Draws models `float32 [K, P]` that differ, by `FlatModel.draw`; a single one is the initial model, unless it must
    be drawn in another way."""
    if count == 1 and initialization is None:
        return model.initial[np.newaxis]
    seeds = np.random.SeedSequence(seed).generate_state(count)
    return np.stack([model.draw(int(each), initialization) for each in seeds])


BYTES_AT_A_TIME = 2**29  # bytes of clients' updates that are compared at a time


@built_once
def build_collected_round(model: FlatModel, training: LocalTraining) -> Round:
    """Builds a round in which every client trains row `key` of `models float32[?,P]`.

    The server receives all differences and the reports, and returns the models unchanged; the coordinator changes them.
    """
    server = Server({"models": models_type(model.size)}, own_row)
    return compose(build_difference_work(model, training), {"difference": CollectFactory()}, server)


class CollectedTraining(Method):
    """A method on a `ClusteredState` whose server sees each client's update and decides by the updates.

    Attributes:
      round: The round, from `build_collected_round`.
      parameters: The method's own parameters.
    """

    def __init__(self, model: FlatModel, training: LocalTraining, parameters):
        self.model, self.training, self.parameters = model, training, parameters
        self.round = build_collected_round(model, training)

    def updates(
        self, models: np.ndarray, keys: np.ndarray, cohort: Cohort, optimizers=None
    ) -> tuple[np.ndarray, RoundResult]:
        """Lets every client of the cohort train its row of the models; returns the differences `float32 [m, P]` and the
        result.

        Args:
          models: `float32 [K, P]`.
          keys: `int [m]`, each client's row.
          cohort: The clients.
          optimizers: The optimizers of the state, see `ClusteredState`; the result has them after the round.
        """
        key = np.asarray(keys, np.int32)
        result = run_round(self.round, cohort, {"models": models}, optimizers=optimizers, key=key)
        return result.collected["difference"], result

    def updates_in_parts(self, model: np.ndarray, cohort: Cohort) -> Iterator[tuple[slice, np.ndarray]]:
        """Lets all clients of a cohort train one model `[P]`, as many at a time as memory has room for updates.

        Args:
          model: `float32 [P]`.
          cohort: The clients.

        Yields:
          `(part of the cohort, its updates float32 [n, P])`.
        """
        for part, few in cohort.parts(max(1, BYTES_AT_A_TIME // model.nbytes)):
            updates, _ = self.updates(model[np.newaxis], np.zeros(len(few.client_ids), np.int32), few)
            yield part, updates

    def models_for(self, state: ClusteredState, client_ids):
        return state.models, state.clusters(client_ids)

    def exports(self) -> Exports:
        note = (
            "the models come back as they are: the coordinator sees each client's difference beside its report, and "
            f"clusters and moves the models by them (Python, tffcl.algorithms.{self.name})"
        )
        return Exports(
            lambda: round_computations(self.round, {"models": self.model.initial[np.newaxis]}),
            server_values=lambda state: {"models": state.models},
            when={"training": note},
        )
