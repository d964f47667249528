"""The contract of a method: all that a run, the reports and the export know about it."""

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
    """The distances between clients, and the tree of their merges.

    Attributes:
      proximity: `float [N, N]`, zero on the diagonal.
      unit: The unit of the proximity, for reports.
      name: The name of the metric, for reports.
      merges: SciPy linkage matrix `float64 [N-1, 4]`; None for a grouping without a tree.
      threshold: Where the tree is cut; None for a grouping without a threshold.
      linkage: Name of the linkage; "" without a tree.
      tree_unit: The unit of merges and threshold, where it is not that of the proximity.
      notes: What a grouping reports of its clusters, where it does so itself.
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
      mask: `bool [N, k]`, True for the centres that exist.
    """

    points: np.ndarray
    mask: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Moves:
    """The clients that moved when clusters were formed anew, and those that reported a change of their data.

    Attributes:
      moved_in: `int [N]`, the round in which the client last changed its cluster; 0: never.
      flagged_in: `int [N]`, the round in which it last reported a change; 0: never. None where clients are not asked.
    """

    moved_in: np.ndarray
    flagged_in: np.ndarray | None


@dataclasses.dataclass(frozen=True, eq=False)
class Views(Shown):
    """What reports show of a method's state. Row i of every array is `client_ids[i]`; all but the first two are
    optional.

    Attributes:
      client_ids: `int32 [N]`, ascending, all clients that the server knows of.
      clusters: `int32 [N]`, the cluster of each client; with mixtures of models the one that weighs most.
      known: `bool [N]`, the clients whose signature (or first model) the server has, for methods that meet clients
        during training, or the clients that were asked, where clients choose; None: all.
      mixture: `float32 [N, K]`, the weights of the K models that each client uses; None where each uses one model.
      global_model: `float32 [P]`, a model for all clients besides those of `models_for`.
      metric: The distances between clients.
      relatedness: `float [N, N]` of 0 and 1, which clients are related.
      representations: `float [M, d]`, a vector for each known client, to draw as a map.
      centre_map: The map of clients' centres.
      moves: Which clients moved, and when.
      splits: Rows of the tree of splits, each `(round, cluster that was split, cluster that was founded)`.
      notes: What a reader of the results should know of how they came about.
      nowhere: `() -> int [n]`, IDs of clients whose data have no direction and so do not tell their group; see
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
        """The numbers of clients and clusters, and the names of the other fields that are set."""
        names = [field.name for field in dataclasses.fields(self)][2:]
        there = [name.replace("_", " ") for name in names if getattr(self, name) is not None and name != "notes"]
        return {"clients": len(self.client_ids), "clusters": self.found, "also": ", ".join(there) or "nothing"}

    def of(self, client_ids: np.ndarray) -> "Views":
        """Returns the views of these clients only, ascending, without the tree of merges, which is of all clients."""
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
        """`bool [N]`: `known`, or True for all."""
        return np.ones(len(self.client_ids), bool) if self.known is None else np.asarray(self.known, bool)

    @property
    def found(self) -> int:
        """How many clusters the known clients are in."""
        return len(np.unique(self.clusters[self.known_or_all]))


def nowhere_note(names: Sequence) -> str:
    """Names the clients whose data have no direction, and says how they are placed."""
    how = "they count as 90 degrees from all others and 0 from each other"
    return f"clients whose data are all zero: {listed(names)}; {how}"


@dataclasses.dataclass(frozen=True, eq=False)
class Exports:
    """The parts of a method that can be deployed.

    Attributes:
      build: `() -> {name: tff.Computation}`, what runs on devices and aggregators; "training" is the round,
        "initialize" makes its first state, "signature" collects signatures.
      server_values: `(state) -> {name: value}`, the entries that a state sets in the value that "training" starts from,
        with all its models; None where the server has none.
      summed: `(number of clusters) -> tff.Computation`, a round with the same models whose only aggregation is a sum,
        see `rounds.sum_only_form`; None where the server needs each client's upload.
      clustering: The meaning of the grouping's numbers, by name, for the manifest; `when` says when the coordinator
        clusters, unless it clusters once, when it has all signatures.
      build_for: `(server values of a state) -> {name: tff.Computation}`, where the computations or their first values
        depend on the numbers of clusters and clients; else None.
      members_needed: `() -> int`; a cluster with fewer clients in a round than this waits, see
        `aggregators.contract.FactoryTraits`.
      when: For the manifest, what a deployment must know of a computation besides its name. For "training": how rounds
        begin, or what the coordinator does between them. For "signature": when clients sign, unless they sign once,
        before their first round. For a computation of another name: when it runs and what its result is for.
      sign: `(population)`, which asks clients of a simulation for the signatures that "signature" collects, where
        newcomers sign in another way, or for what not every round asks; None: `Method.admit` asks for them.
      rehearsal: `(state) -> state`, the state from which a rehearsal of an export begins its round, for a method whose
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
        """Returns what runs on devices and aggregators in a deployment with the clients and clusters of a state."""
        if self.build_for and self.server_values:
            return dict(self.build_for(self.server_values(state)))
        return dict(self.build())


class _Made:
    """Keeps the arguments of its class in `made_of`, by name, with defaults: a run of a user's own method can only be
    resumed with the same numbers, texts, arrays, parameters, optimizers and aggregations in it."""

    made_of: Mapping[str, object] = types.MappingProxyType({})

    def __new__(cls, *given, **named):
        made = super().__new__(cls)
        with contextlib.suppress(TypeError):  # __init__ reports it
            bound = inspect.signature(cls.__init__).bind(made, *given, **named)
            bound.apply_defaults()
            object.__setattr__(made, "made_of", dict([*bound.arguments.items()][1:]))  # also of a frozen dataclass
        return made


class Method(_Made, abc.ABC):
    """A method of federated learning: which client trains which model, round by round.

    A method of your own derives from this class and defines `name`, `model`, `state_class`, `initialize`, `next` and
    `models_for`; everything else has a default. For example, two groups of clients, by their IDs, with a model each:

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

    Its state is a frozen dataclass of arrays, and all of it is in the checkpoint.

    Attributes:
      name: The name in titles and files.
      model: The model that is trained.
      state_class: The dataclass of its state.
      clients_choose: Whether clients choose their model themselves, so that `choose` must be called before clusters
        mean anything.
      joining: Bytes that one client exchanges once: when training begins, when it joins, or, for methods that meet
        clients during training (`Views.known`), when the server first meets it; see `joined_traffic` for others.
      kept_bytes: Bytes that the coordinator of a simulation keeps for each client that has taken part.
      trained_models: How many models a client trains in a round. It may keep an optimizer's state for each.
      pair_bytes: Bytes that the server holds for each pair of clients.
      pairs_of: The largest number of clients of which it holds pairs; None: all.
      training: The local training that its builder was given; None for a method that no builder of tffcl has built.
      parameters: The parameters that its builder was given; None where it has none.
      options: The other arguments of its builder, by name, defaults included, such as seeds or an aggregation. A run
        can only be resumed with the same.
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
        """Returns the first state; methods that cluster before training do so here."""

    @abc.abstractmethod
    def next(self, state, cohort: Cohort) -> tuple[object, RoundMetrics]:
        """Runs one round; returns the next state, a new object, and the round's metrics. A failing round leaves the
        given state usable. The cohort is empty in a round that runs only because of `hides_empty_rounds`."""

    @abc.abstractmethod
    def models_for(self, state, client_ids: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Returns `(models float32 [K, P], rows int [n])`, the model that each client uses now, before any local
        training. Where clients use mixtures, returns `(models float32 [K, P], weights float32 [n, K])`: a client uses
        the weighted mean of the models' probabilities or predicted numbers, with weights that sum to one."""

    def own_states(self, state) -> KeptStates | None:
        """Returns what clients keep from training the models of `models_for`, see `ClusteredState.optimizers`; None
        before the first round."""
        return getattr(state, "optimizers", None)

    def used_models(self, state, client_ids: Sequence[int]) -> tuple[Any, np.ndarray]:
        """Returns the same as `models_for`, but whole models (`FlatModel.whole`), with the part that each client keeps
        (`FlatModel.own`); a client that has not trained yet has the initial values of this part."""
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
        """Returns the state after new clients have joined; by default a method takes no newcomers.

        Raises:
          UserError: If a client is known already, or the method takes no newcomers.
        """
        del state, newcomers
        raise UserError(f"{self.name} takes no newcomers: {type(self).__name__} has no admit(state, newcomers)")

    def views(self, state) -> Views:
        """Returns what reports show of a state. By default the clients with the same model, or the same largest weight
        in their mixtures, are a cluster, and the state has `client_ids`."""
        used = assigned(self.models_for(state, state.client_ids)[1])
        return Views(state.client_ids, used.rows, mixture=used.weights)

    def exports(self) -> Exports:
        """Returns what can be deployed; UserError for a method that does not define it."""
        raise UserError(f"{self.name} cannot be exported: {type(self).__name__} has no exports()")

    def joined_traffic(self, before, after) -> Traffic:
        """Returns what clients exchanged for a state that was made without a round; by default `joining` for each
        client that the server has met.

        Args:
          before: The state that `admit` was given; None for `initialize`.
          after: The state that it returned.
        """
        then, now = (0 if each is None else int(self.views(each).known_or_all.sum()) for each in (before, after))
        return self.joining * (now - then)

    def hides_empty_rounds(self, state) -> bool:
        """Whether a round for which no client was drawn must run all the same, because the noise of private rounds
        hides who takes part."""
        del state
        return False

    def choose(self, state, population: Population):
        """Lets every client of the population choose its model again; changes no model and no later round."""
        del population
        return state

    def without_choices(self, state):
        """Returns the state without the clients' choices that `choose` and rounds have noted; this changes no later
        round."""
        return state

    def models_held(self, state, client_ids: np.ndarray) -> int:
        """Returns the least number of models that the server holds for these clients, to refuse what cannot fit."""
        del state, client_ids
        return 1

    def check_clients(self, clients: int):
        """Raises UserError if clusters cannot be formed from this number of clients, all that a run will have."""

    def place(self, state, population: Population):
        """Returns the state in which clients that the server has not met are placed without training, to evaluate them.

        Methods that cannot do so, and those that know all clients from the beginning, leave the state unchanged.
        """
        del population
        return state


def in_first_rounds(rounds: int, what: str) -> str:
    """Says that a run ended in first rounds that are not yet the method's own, e.g. in a warm-up."""
    return f"for {counted(rounds, 'round')} {what}, and this run ended in that time"


def ended_within(rounds: int, what: str) -> UserError:
    """Returns the error for the export of such a run."""
    return UserError(f"{in_first_rounds(rounds, what)}; export one that trained longer")


Build = TypeVar("Build", bound=Callable)


def method_builder(build: Build) -> Build:
    """Decorates a builder of methods, `(model, training, [parameters,] *, ...) -> Method`, so that the method keeps
    the arguments it was built from.

    They are its `training`, `parameters` and `options`, defaults included. The model and the parameters are checked
    to be of the classes that the builder declares.
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
    """Says where a setting belongs that was wrongly passed to the builder."""
    declared = signature.parameters.get("parameters")
    for kind in get_args(declared.annotation) or (declared.annotation,) if declared else ():
        known = [each.name for each in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
        for name in filter(known.__contains__, given):
            return f"; it is one of the parameters: {getattr(kind, '__name__', kind)}({name}=...)"
    return ""


def own_part(kept) -> np.ndarray:
    """Returns a client's own part of its model `float32 [L]` from what it keeps of its training; if it trains two
    models, the part of the one called "model"."""
    return (kept["model"] if isinstance(kept, Mapping) else kept)[0]


def _check_statistics(model: FlatModel, aggregation):
    """Raises UserError for an aggregation that uses the length of updates, if clients share statistics: these have the
    unit of the data and would dominate the length."""
    if aggregation is not None and model.has_statistics and traits(aggregation).by_length:
        raise UserError(
            f"the aggregation clips or compares updates by their length, and {model.name} has statistics in the unit "
            'of the data among its weights, which would decide it; take FlatModel.from_keras(..., statistics="reset"), '
            '"local" or "fedbn"'
        )


def check_declared(name: str, value: Any, kind: object):
    """Raises UserError if a model is not a FlatModel that a run can start from, or if parameters are not of the class
    `kind`."""
    if kind is FlatModel:
        check_kind(name, value, FlatModel, "a tffcl.FlatModel, as FlatModel.from_keras makes one")
        check_start(value)
    elif isinstance(kind, type) and issubclass(kind, Parameters):
        check_kind(name, value, kind, f"a {kind.__name__}(...)")


@dataclasses.dataclass(frozen=True, eq=False)
class ClusteredState(Shown):
    """The state of most methods between rounds; methods with more state derive from it.

    Attributes:
      client_ids: `int32 [N]`, ascending, all clients that the server knows.
      assignment: `int32 [N]`, the cluster of each client.
      models: `float32 [K, P]`, a row for each model.
      aggregators: States of the aggregation processes, by upload name.
      server: What else the server has for each model (the state of its optimizer), by name, rows by model.
      kept: What clients keep between rounds; None where they keep nothing.
      optimizers: What clients keep from training, see `LocalTraining.optimizer_state` and `FlatModel.own`; None where
        they keep nothing of it, or have not trained yet. For a method that trains in several kinds of rounds, by the
        name of each.
    """

    client_ids: np.ndarray
    assignment: np.ndarray
    models: np.ndarray
    aggregators: object
    server: Mapping[str, object] = dataclasses.field(default_factory=dict)
    kept: KeptStates | None = None
    optimizers: KeptStates | Mapping[str, KeptStates] | None = None

    def facts(self):
        """The numbers of clients and models, and the models' size."""
        models, size = self.models.shape
        return {"clients": len(self.client_ids), "models": models, "of parameters": f"{size:,}"}

    def clusters(self, client_ids) -> np.ndarray:
        """Returns the cluster IDs `int32 [n]` of the given clients."""
        return self.assignment[self.index(client_ids)]

    def index(self, client_ids) -> np.ndarray:
        """Returns the rows of the given clients; UserError if one is not known."""
        return index_of(self.client_ids, client_ids)
