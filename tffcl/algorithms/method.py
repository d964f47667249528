"""The contract of a method: what a run, the reports and the export know of it, and nothing else."""

import abc
import contextlib
import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, get_args

import numpy as np
import tensorflow_federated as tff

from tffcl.aggregators.contract import traits
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clients.arrays import index_of
from tffcl.clients.client_state import KeptStates
from tffcl.clients.cohort import Cohort
from tffcl.clients.population import Population
from tffcl.display import Shown, counted, listed
from tffcl.errors import UserError
from tffcl.models.flat import FlatModel
from tffcl.models.from_keras import check_start
from tffcl.models.layer_parts import require_shared
from tffcl.models.model_rows import ModelRows, assigned
from tffcl.rounds.traffic import RoundMetrics, Traffic
from tffcl.validation import Parameters, check_kind


@dataclasses.dataclass(frozen=True, eq=False)
class MetricView:
    """How far clients are apart, and the tree of their merges.

    Attributes:
      proximity: `float [N, N]`, zero on the diagonal.
      unit: Of the proximity, for reports.
      name: Of the metric, for reports.
      merges: SciPy linkage matrix `float64 [N-1, 4]`; None for a grouping without a tree.
      threshold: Where the tree is cut; None for a grouping without a threshold.
      linkage: Name of the linkage; "" without a tree.
      tree_unit: Of merges and threshold, where they have another than the proximity.
      notes: What was found of the clusters, where the grouping says it itself.
    """

    proximity: np.ndarray
    unit: str
    name: str
    merges: np.ndarray | None = None
    threshold: float | None = None
    linkage: str = ""
    tree_unit: str | None = None
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class CentreMap:
    """A map of the centres that clients sent.

    Attributes:
      points: `float [N, k, u]`.
      mask: `bool [N, k]`, which centres there are.
    """

    points: np.ndarray
    mask: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Moves:
    """Who moved to another cluster when clusters were formed anew, and who told that its data had changed.

    Attributes:
      moved_in: `int [N]`, the round in which the client last changed its cluster; 0: never.
      flagged_in: `int [N]`, the round in which it last raised its flag of change; 0: never. None where nobody is asked.
    """

    moved_in: np.ndarray
    flagged_in: np.ndarray | None


@dataclasses.dataclass(frozen=True, eq=False)
class Views(Shown):
    """What reports show of a method's state. Row i of every array is `client_ids[i]`; all but the first two are
    optional.

    Attributes:
      client_ids: `int32 [N]`, ascending, all clients that the server knows of.
      clusters: `int32 [N]`, the cluster of each; where clients use mixtures of models that which weighs most.
      known: `bool [N]`, whose signature (or first model) the server has, for methods that meet clients during training,
        or who was asked where clients choose; None: everyone.
      mixture: `float32 [N, K]`, the weights of the K models that each client uses; None where each uses one.
      global_model: `float32 [P]`, a model for everyone beside those of `models_for`.
      metric: How far clients are apart.
      relatedness: `float [N, N]` of 0 and 1, who is related to whom.
      representations: `float [M, d]`, a vector for each known client, to be drawn as a map.
      centre_map: The map of clients' centres.
      moves: Who moved when.
      splits: Rows of the tree of splits, each `(round, cluster that was split, cluster that was founded)`.
      notes: What a reader of the results should know of how they came about.
      nowhere: `() -> int [n]`, IDs of clients whose data have no direction, so that nothing tells their group; see
        `nowhere_note`.
    """

    client_ids: np.ndarray
    clusters: np.ndarray
    known: np.ndarray | None = None
    mixture: np.ndarray | None = None
    global_model: np.ndarray | None = None
    metric: MetricView | None = None
    relatedness: np.ndarray | None = None
    representations: np.ndarray | None = None
    centre_map: CentreMap | None = None
    moves: Moves | None = None
    splits: np.ndarray | None = None
    notes: tuple[str, ...] = ()
    nowhere: Callable[[], np.ndarray] | None = None

    def facts(self):
        """How many clients are in how many clusters, and what else there is."""
        names = [field.name for field in dataclasses.fields(self)][2:]
        there = [name.replace("_", " ") for name in names if getattr(self, name) is not None and name != "notes"]
        return {"clients": len(self.client_ids), "clusters": self.found, "also": ", ".join(there) or "nothing"}

    def of(self, client_ids: np.ndarray) -> "Views":
        """Returns the views of these clients only, ascending: of who is there. A tree of merges is of all, and left
        out."""
        if np.array_equal(self.client_ids, client_ids):
            return self
        rows = index_of(self.client_ids, client_ids)

        metric, moves, nowhere, both = self.metric, self.moves, self.nowhere, np.ix_(rows, rows)
        if metric is not None:
            apart = np.asarray(metric.proximity)[both]
            metric = dataclasses.replace(metric, proximity=apart, merges=None, threshold=None)
        sent = np.isin(np.flatnonzero(self.known_or_all), rows)
        return dataclasses.replace(
            self,
            client_ids=client_ids,
            clusters=np.asarray(self.clusters)[rows],
            known=None if self.known is None else np.asarray(self.known)[rows],
            metric=metric,
            relatedness=None if self.relatedness is None else np.asarray(self.relatedness)[both],
            representations=None if self.representations is None else np.asarray(self.representations)[sent],
            centre_map=self.centre_map and CentreMap(self.centre_map.points[rows], self.centre_map.mask[rows]),
            moves=moves and Moves(moves.moved_in[rows], None if moves.flagged_in is None else moves.flagged_in[rows]),
            mixture=None if self.mixture is None else np.asarray(self.mixture)[rows],
            nowhere=nowhere and (lambda: np.intersect1d(nowhere(), client_ids)),
        )

    @property
    def known_or_all(self) -> np.ndarray:
        """`bool [N]`: `known`, or everyone."""
        return np.ones(len(self.client_ids), bool) if self.known is None else np.asarray(self.known, bool)

    @property
    def found(self) -> int:
        """How many clusters the known clients are in."""
        return len(np.unique(self.clusters[self.known_or_all]))


def nowhere_note(names: Sequence) -> str:
    """Says of clients without any direction in their data who they are, and how they are placed."""
    how = "they count as 90 degrees from all others and 0 from each other"
    return f"clients whose data are all zero: {listed(names)}; {how}"


@dataclasses.dataclass(frozen=True, eq=False)
class Exports:
    """What an engineer can deploy of a method.

    Attributes:
      build: `() -> {name: tff.Computation}`, what runs on devices and aggregators; "training" is the round,
        "initialize" makes its first state, "signature" collects signatures.
      server_values: `(state) -> {name: value}`, what of the value that "training" starts from a state decides, with all
        its models; None where the server has none.
      summed: `(number of clusters) -> tff.Computation`, a round with the same models whose only aggregation is a sum,
        see `rounds.sum_only_form`; None where the server needs each client's upload.
      clustering: What the numbers of the grouping mean, by name, for the manifest; `when` says when the coordinator
        clusters, where that is not once, when all signatures are there.
      build_for: `(server values of a state) -> {name: tff.Computation}`, where the numbers of clusters and clients
        decide the computations or their first values; else None.
      members_needed: `() -> int`; a cluster of which fewer clients are in a round waits, see
        `aggregators.contract.FactoryTraits`.
      when: For the manifest, what a deployment must know of a computation beside its name: of "training", how rounds
        begin or what the coordinator does between them; of "signature", when clients sign, where that is not once and
        before their first round; of one with another name than those above, when it runs and what comes of it.
      sign: `(population)` that asks clients of a simulation for the signatures that "signature" collects, where
        newcomers sign in another way, or for what not every round asks them; None: `Method.admit` asks for them.
      rehearsal: `(state) -> state`, the one that a rehearsal of an export begins its round from, for a method whose
        rounds may change the number of models before they train.
    """

    build: Callable[[], Mapping[str, tff.Computation]]
    server_values: Callable[[object], Mapping] | None = None
    summed: Callable[[int], tff.Computation] | None = None
    clustering: Mapping[str, str] = dataclasses.field(default_factory=dict)
    build_for: Callable[[Mapping], Mapping[str, tff.Computation]] | None = None
    members_needed: Callable[[], int] = lambda: 1
    when: Mapping[str, str] = dataclasses.field(default_factory=dict)
    sign: Callable[[Population], object] | None = None
    rehearsal: Callable[[Any], Any] = lambda state: state

    def computations(self, state) -> dict[str, tff.Computation]:
        """Returns what runs on devices and aggregators, of a deployment with the clients and clusters of a state."""
        if self.build_for and self.server_values:
            return dict(self.build_for(self.server_values(state)))
        return dict(self.build())


class _Made:
    """Knows what its class was called with, `made_of`, by name, defaults included: a run of a user's own method is
    resumed with the same numbers, texts, arrays, parameters, optimizers and aggregations in it."""

    made_of: Mapping[str, object] = types.MappingProxyType({})

    def __new__(cls, *given, **named):
        made = super().__new__(cls)
        with contextlib.suppress(TypeError):  # which __init__ tells
            bound = inspect.signature(cls.__init__).bind(made, *given, **named)
            bound.apply_defaults()
            object.__setattr__(made, "made_of", dict([*bound.arguments.items()][1:]))  # also of a frozen dataclass
        return made


class Method(_Made, abc.ABC):
    """A method of federated learning: who trains which model, round by round.

    A method of one's own derives from this class, and has `name`, `model`, `state_class`, `initialize`, `next` and
    `models_for`; all else has a default. Two groups of clients, by their IDs, each with a model of its own:

        class Halves(Method):
            name, state_class = "halves", ClusteredState

            def __init__(self, model, training):
                self.model, self.engine = model, build_clustered_training(model, training)

            def initialize(self, population):
                return ClusteredState(**self.engine.start(population, population.client_ids % 2))

            def next(self, state, cohort):
                return self.engine.next(state, cohort)

            def models_for(self, state, client_ids):
                return state.models, state.clusters(client_ids)

    Its state is a frozen dataclass of arrays, all of it in the checkpoint.

    Attributes:
      name: For titles and files.
      model: What is trained.
      state_class: The dataclass of its state.
      clients_choose: Whether clients choose their model themselves, so that `choose` must be asked before clusters mean
        anything.
      joining: Bytes that one client exchanges once: when training begins, when it joins, or for methods that meet
        clients during training (`Views.known`) when the server first meets it; see `joined_traffic` for others.
      kept_bytes: What the coordinator of a simulation keeps for each client that has taken part.
      trained_models: How many models a client trains in a round, of each of which it may keep an optimizer's state.
      pair_bytes: What the server holds for each pair of clients.
      pairs_of: Of how many clients at most; None: of all.
      training: The local training that its builder was given; None where none of ours has built it.
      parameters: The parameters that its builder was given; None where it has none.
      options: What else its builder was given, by name, defaults included: seeds, an aggregation. A run is resumed with
        the same.
    """

    name: str
    model: FlatModel
    state_class: type
    clients_choose: bool = False
    joining: Traffic = Traffic()
    kept_bytes: int = 0
    trained_models: int = 1
    pair_bytes: int = 0
    pairs_of: int | None = None
    training: LocalTraining | None = None
    parameters: Parameters | None = None
    options: Mapping[str, object] = types.MappingProxyType({})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}, {self.model!r})"

    @abc.abstractmethod
    def initialize(self, population: Population):
        """Returns the first state; methods that cluster before training do it here."""

    @abc.abstractmethod
    def next(self, state, cohort: Cohort) -> tuple[object, RoundMetrics]:
        """Runs one round; returns the next state, a new one, and the round's metrics. A failing round leaves the given
        state usable. Nobody is in the cohort of a round that `hides_empty_rounds` lets run all the same."""

    @abc.abstractmethod
    def models_for(self, state, client_ids: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Returns `(models float32 [K, P], rows int [n])`: which model each client uses now, before any local
        training; or `(models float32 [K, P], weights float32 [n, K])` where a client uses a mixture of them, whose
        weights sum to one: the weighted mean of their probabilities, or of the numbers that they give."""

    def own_states(self, state) -> KeptStates | None:
        """Returns what clients keep of training the models of `models_for`, see `ClusteredState.optimizers`; None
        before the first round."""
        return getattr(state, "optimizers", None)

    def used_models(self, state, client_ids: Sequence[int]) -> tuple[Any, np.ndarray]:
        """Returns what `models_for` does with what each client keeps of its model (`FlatModel.own`): models of
        `FlatModel.whole`; who has not trained yet has the first values."""
        models, given = self.models_for(state, client_ids)
        own = self.model.own
        if own is None:
            return models, given
        if np.ndim(given) == 2:
            require_shared(self.model, f"{self.name} gives clients mixtures of models")
        states: Any = self.own_states(state)
        rows = assigned(given).rows
        has = np.zeros(len(rows), bool) if states is None else states.has(client_ids)
        used = np.stack([rows, np.where(has, client_ids, -1)], axis=1)
        used, place = np.unique(used, axis=0, return_inverse=True)

        def joined(number: int) -> np.ndarray:
            row, client = used[number]
            return own.parts.joined(own.initial if client < 0 else own_part(states.value(client)), models[row])[0]

        return ModelRows(len(used), own.whole.size, joined), place.reshape(-1)

    def admit(self, state, newcomers: Population):
        """Returns the state after clients that did not take part joined; a method that does not say how takes none.

        Raises:
          UserError: If one of them is known already, or the method takes no newcomers.
        """
        del state, newcomers
        raise UserError(f"{self.name} takes no newcomers: {type(self).__name__} has no admit(state, newcomers)")

    def views(self, state) -> Views:
        """Returns what reports show of a state; here clients with one model, or in whose mixture one weighs most, are a
        cluster, and the state has `client_ids`."""
        used = assigned(self.models_for(state, state.client_ids)[1])
        return Views(state.client_ids, used.rows, mixture=used.weights)

    def exports(self) -> Exports:
        """Returns what can be deployed; UserError for a method that does not say what that is."""
        raise UserError(f"{self.name} cannot be exported: {type(self).__name__} has no exports()")

    def joined_traffic(self, before, after) -> Traffic:
        """Returns what clients exchanged when a state came about without a round; here `joining` by those that the
        server has met.

        Args:
          before: The state that `admit` was given; None for `initialize`.
          after: What it returned.
        """
        then, now = (0 if each is None else int(self.views(each).known_or_all.sum()) for each in (before, after))
        return self.joining * (now - then)

    def hides_empty_rounds(self, state) -> bool:
        """Whether a round that nobody was drawn for must run all the same, since the noise of private rounds hides who
        takes part."""
        del state
        return False

    def choose(self, state, population: Population):
        """Lets every client of the population choose its model anew; changes no model and no later round."""
        del population
        return state

    def without_choices(self, state):
        """Returns the state without what `choose` and rounds have noted of the clients' choices, which changes no later
        round."""
        return state

    def models_held(self, state, client_ids: np.ndarray) -> int:
        """Returns how many models the server holds at least for these clients, so that what cannot fit is refused."""
        del state, client_ids
        return 1

    def check_clients(self, clients: int):
        """Raises UserError if clusters cannot be formed of so many clients, all that a run will have."""

    def place(self, state, population: Population):
        """Returns the state with clients that the server has not met placed without training, for an evaluation.

        Methods that cannot, and those that know all clients from the beginning, leave everybody where they are.
        """
        del population
        return state


def in_first_rounds(rounds: int, what: str) -> str:
    """Says of a run that it ended in first rounds which are not yet the method's own, e.g. a warm-up."""
    return f"for {counted(rounds, 'round')} {what}, and this run ended in that time"


def ended_within(rounds: int, what: str) -> UserError:
    """Returns the error for the export of such a run."""
    return UserError(f"{in_first_rounds(rounds, what)}; export one that trained longer")


Build = TypeVar("Build", bound=Callable)


def method_builder(build: Build) -> Build:
    """Decorates a builder of methods, `(model, training, [parameters,] *, ...) -> Method`: the method keeps what it was
    built from.

    `training`, `parameters` and `options` of the method are what was given, defaults included. The model and the
    parameters are checked to be of the classes that the builder declares.
    """
    signature = inspect.signature(build)

    @functools.wraps(build)
    def built(*args, **kwargs):
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            names = ", ".join(signature.parameters)
            raise UserError(f"{build.__name__}({names}): {error}{_own_key(signature, kwargs)}") from None
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            check_declared(name, value, signature.parameters[name].annotation)
        _check_statistics(bound.arguments["model"], bound.arguments.get("aggregation"))
        method, given = build(*args, **kwargs), dict(bound.arguments)
        del given["model"]
        method.training, method.parameters, method.options = given.pop("training"), given.pop("parameters", None), given
        return method

    return built  # type: ignore[return-value]


def _own_key(signature: inspect.Signature, given: Mapping) -> str:
    """Says where a setting belongs that was given to the builder itself."""
    declared = signature.parameters.get("parameters")
    for kind in get_args(declared.annotation) or (declared.annotation,) if declared else ():
        known = [each.name for each in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
        for name in filter(known.__contains__, given):
            return f"; it is one of the parameters: {getattr(kind, '__name__', kind)}({name}=...)"
    return ""


def own_part(kept) -> np.ndarray:
    """Returns a client's own part of its model `float32 [L]`, of what it keeps of its training; of two models that it
    trains that of the one called "model"."""
    return (kept["model"] if isinstance(kept, Mapping) else kept)[0]


def _check_statistics(model: FlatModel, aggregation):
    """Raises UserError for an aggregation that goes by the length of updates in which clients share statistics: these
    are in the unit of the data, and would decide it."""
    if aggregation is not None and model.has_statistics and traits(aggregation).by_length:
        raise UserError(
            f"the aggregation clips or compares updates by their length, and {model.name} has statistics in the unit "
            'of the data among its weights, which would decide it; take FlatModel.from_keras(..., statistics="reset"), '
            '"local" or "fedbn"'
        )


def check_declared(name: str, value: Any, kind: object):
    """Raises UserError if a model is no FlatModel that a run can start from, or parameters are not of the class
    `kind`."""
    if kind is FlatModel:
        check_kind(name, value, FlatModel, "a tffcl.FlatModel, as FlatModel.from_keras makes one")
        check_start(value)
    elif isinstance(kind, type) and issubclass(kind, Parameters):
        check_kind(name, value, kind, f"a {kind.__name__}(...)")


@dataclasses.dataclass(frozen=True, eq=False)
class ClusteredState(Shown):
    """What most methods know between rounds; methods with more derive from it.

    Attributes:
      client_ids: `int32 [N]`, ascending, all clients that the server knows.
      assignment: `int32 [N]`, the cluster of each.
      models: `float32 [K, P]`, one row a model.
      aggregators: States of the aggregation processes, by upload name.
      server: What else the server has for each model (the state of its optimizer), by name, rows by model.
      kept: What clients keep between rounds; None where they keep nothing.
      optimizers: What they keep of their training, see `LocalTraining.optimizer_state` and `FlatModel.own`; None where
        they keep nothing of it, or have not trained yet. Of a method that trains in several rounds, by the name of
        each.
    """

    client_ids: np.ndarray
    assignment: np.ndarray
    models: np.ndarray
    aggregators: object
    server: Mapping[str, object] = dataclasses.field(default_factory=dict)
    kept: KeptStates | None = None
    optimizers: KeptStates | Mapping[str, KeptStates] | None = None

    def facts(self):
        """How many clients share how many models of which size."""
        models, size = self.models.shape
        return {"clients": len(self.client_ids), "models": models, "of parameters": f"{size:,}"}

    def clusters(self, client_ids) -> np.ndarray:
        """Returns the cluster IDs `int32 [n]` of the given clients."""
        return self.assignment[self.index(client_ids)]

    def index(self, client_ids) -> np.ndarray:
        """Returns the rows of the given clients; UserError if one is not known."""
        return index_of(self.client_ids, client_ids)
