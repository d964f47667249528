"""What every method is given and what it gives back."""

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.errors import UserError


@dataclasses.dataclass(frozen=True, eq=False)
class Population:
    """The clients that there are.

    Attributes:
      client_ids: `int32 [N]`, ascending.
      sizes: `int32 [N]`, training examples of each.
      examples: Client ID to its training examples, a `tf.data.Dataset` of single `<x, y>`. Give the same object for the
        same client every time: building data sets anew in every round leaks memory.
      test_examples: The same for its test examples.
      versions: `int32 [N]`, how often each client's data have changed; default never.
    """

    client_ids: np.ndarray
    sizes: np.ndarray
    examples: Callable[[int], tf.data.Dataset]
    test_examples: Callable[[int], tf.data.Dataset]
    versions: np.ndarray | None = None

    def __post_init__(self):
        if self.versions is None:
            object.__setattr__(self, "versions", np.zeros(len(self.client_ids), np.int32))
        if not len(self.client_ids):
            raise UserError("the population has no clients; at least 1 is needed")
        if np.any(np.diff(self.client_ids) <= 0) or len(self.sizes) != len(self.client_ids):
            raise UserError("client IDs must be ascending and distinct, with one size each")
        if np.any(np.asarray(self.sizes) < 1):
            empty = self.client_ids[np.flatnonzero(np.asarray(self.sizes) < 1)[0]]
            raise UserError(f"client {empty} has no training examples; every client needs at least 1")

    def index(self, client_ids) -> np.ndarray:
        """Rows of the given clients.

        Raises:
          UserError: If one is not of this population.
        """
        return index_of(self.client_ids, client_ids)


def index_of(known: np.ndarray, client_ids) -> np.ndarray:
    """Positions of `client_ids` in the ascending `known`; UserError if one is missing."""
    wanted = np.atleast_1d(np.asarray(client_ids))
    rows = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    if not np.array_equal(known[rows], wanted):
        missing = wanted[known[rows] != wanted][0]
        raise UserError(f"client {missing} is not known; there are {len(known)} clients, {known[0]} to {known[-1]}")
    return rows


_EMPTY: dict[str, tf.data.Dataset] = {}


def none_of(examples: tf.data.Dataset) -> tf.data.Dataset:
    """An empty data set of the same type.

    One object per type, since data sets made anew in every round leak; and not `examples.take(0)`, which carries all the
    examples to the runtime in its graph.
    """
    spec = examples.element_spec
    if str(spec) not in _EMPTY:
        nothing = tf.nest.map_structure(lambda leaf: np.zeros([0, *leaf.shape], leaf.dtype.as_numpy_dtype), spec)
        _EMPTY[str(spec)] = tf.data.Dataset.from_tensor_slices(nothing)
    return _EMPTY[str(spec)]


def population_of(
    examples: Mapping[int, tf.data.Dataset], test_examples: Mapping[int, tf.data.Dataset] | None = None
) -> Population:
    """Makes a population from data sets by client ID.

    Args:
      examples: Training examples `<x, y>` of each client; their cardinality must be known.
      test_examples: Test examples; none for a client that is not named.
    """
    ids = sorted(examples)
    nothing = none_of(next(iter(examples.values()))) if examples else None
    sizes = [int(examples[client].cardinality()) for client in ids]
    tests = test_examples or {}
    return Population(
        np.array(ids, np.int32), np.array(sizes, np.int32), examples.__getitem__, lambda client: tests.get(client, nothing)
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Cohort:
    """The clients of one round.

    Attributes:
      population: They are of it.
      client_ids: `int32 [m]`, distinct.
      seed: `(run seed, round)`; decides each client's shuffling.
      local_test: `bool [m]` or None: whose model is tested right after its local training (the `local` accuracy).
    """

    population: Population
    client_ids: np.ndarray
    seed: tuple[int, int]
    local_test: np.ndarray | None = None

    def client_seed(self, client_id: int) -> np.ndarray:
        """`int32 [2]`, decided by run seed, round and client."""
        words = np.random.SeedSequence([*self.seed, int(client_id)]).generate_state(2)
        return (words >> 1).astype(np.int32)


@dataclasses.dataclass(frozen=True, eq=False)
class State:
    """Everything that a method knows between rounds; all of it is in the checkpoint.

    Attributes:
      client_ids: `int32 [N]`, ascending, all clients that the server knows.
      assignment: `int32 [N]`, the cluster of each.
      models: `float32 [K, P]`, one row a model.
      aggregator: State of the aggregation process (a structure of arrays; empty for plain means).
      extra: What the method itself keeps, arrays by name.
    """

    client_ids: np.ndarray
    assignment: np.ndarray
    models: np.ndarray
    aggregator: object
    extra: Mapping[str, np.ndarray]

    def clusters(self, client_ids) -> np.ndarray:
        """Cluster IDs `int32 [n]` of the given clients."""
        return self.assignment[index_of(self.client_ids, client_ids)]

    def as_structure(self) -> collections.OrderedDict:
        """The state as nested containers of arrays, as checkpoints take it."""
        return collections.OrderedDict(
            client_ids=self.client_ids,
            assignment=self.assignment,
            models=self.models,
            aggregator=self.aggregator,
            extra=collections.OrderedDict(sorted(self.extra.items())),
        )

    @classmethod
    def from_structure(cls, structure) -> "State":
        """The inverse of `as_structure`."""
        return cls(**{**structure, "extra": dict(structure["extra"])})


@dataclasses.dataclass(frozen=True)
class Transfer:
    """What one client receives and sends when it takes part.

    Attributes:
      down: TFF type of what the server sends to it, or None.
      up: TFF type of what it sends, or None.
    """

    down: tff.Type | None
    up: tff.Type | None

    @property
    def down_bytes(self) -> int:
        return type_bytes(self.down)

    @property
    def up_bytes(self) -> int:
        return type_bytes(self.up)


def type_bytes(transferred: tff.Type | None) -> int:
    """Bytes of a value of a TFF type with fully defined shapes; strings and sequences have no size of their own.

    Raises:
      ValueError: If a shape is not fully defined.
    """
    if transferred is None:
        return 0
    total = 0

    def add(leaf):
        nonlocal total
        if not tff.types.is_shape_fully_defined(leaf.shape):
            raise ValueError(f"{leaf} has no fixed size")
        total += tff.types.num_elements_in_shape(leaf.shape) * np.dtype(leaf.dtype).itemsize

    tff.types.structure_from_tensor_type_tree(add, transferred)
    return total


@dataclasses.dataclass(frozen=True, eq=False)
class RoundMetrics:
    """What a round tells, per client of the cohort; row i of every array is `client_ids[i]`.

    Attributes:
      client_ids: `int32 [m]`.
      clusters: `int32 [m]`, whose model the client trained.
      examples: `int32 [m]`, training examples.
      losses: `float32 [m]`, mean training loss over the client's last epoch.
      test_correct: `int32 [m]`, test examples that the client's own model got right after its training.
      test_examples: `int32 [m]`, test examples tried; 0 where there was no local test.
      down_bytes: Bytes that the server sent in this round, all clients.
      up_bytes: Bytes that it received.
      signature_bytes: Part of the two: what clients exchanged in this round before they trained.
      relatedness: `float32 [m, m]` for methods that relate the clients of a cohort, row i the mix of client i; else None.
      scalars: What else the method tells of the round, numbers by name; the same names in every round.
      changed: `bool [m]`, who told that its data have changed; None for methods that do not ask.
    """

    client_ids: np.ndarray
    clusters: np.ndarray
    examples: np.ndarray
    losses: np.ndarray
    test_correct: np.ndarray
    test_examples: np.ndarray
    down_bytes: int
    up_bytes: int
    relatedness: np.ndarray | None = None
    scalars: Mapping[str, float] = dataclasses.field(default_factory=dict)
    changed: np.ndarray | None = None
    signature_bytes: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Algorithm:
    """A method as functions over its state.

    Attributes:
      name: As on the command line.
      initialize: `(Population) -> State`; methods that cluster before training do it here.
      next: `(State, Cohort) -> (State, RoundMetrics)`, one round. A failing round leaves the given state usable.
      assign: `(State, client_ids) -> (models float32 [K, P], keys int32 [n])`: the model that each client uses now, as
        rows of `models`, before any local training.
      admit: `(State, Population of newcomers) -> State`: clients that did not take part join.
      computations: `() -> {name: tff.Computation}`, what runs on devices and aggregators.
      transfers: What one client receives and sends, by computation name.
      extra_keys: Names in `State.extra`.
      clustering: What the numbers in `State.extra` mean (`unit`, `measure`, `linkage`; `tree_unit` where the merges have
        another than the proximity), for reports.
      choose: `(State, Population) -> State` for methods whose clients choose their model: every client of the population
        chooses anew among the present ones, which sets its assignment. Changes no model and no later round. None for
        methods whose server decides.
      global_model: `(State) -> float32 [P]` for methods that train a global model beside those of `assign`; else None.
      summed: `(number of clusters) -> tff.Computation`, a training round with the same models whose only aggregation is a
        sum, see `summed_training.build_summed_round`; None for methods whose server needs each client's upload.
    """

    name: str
    initialize: Callable[[Population], State]
    next: Callable[[State, Cohort], tuple[State, RoundMetrics]]
    assign: Callable[[State, Sequence[int]], tuple[np.ndarray, np.ndarray]]
    admit: Callable[[State, Population], State]
    computations: Callable[[], Mapping[str, tff.Computation]]
    transfers: Mapping[str, Transfer]
    extra_keys: tuple[str, ...] = ()
    clustering: Mapping[str, str] = dataclasses.field(default_factory=dict)
    choose: Callable[[State, Population], State] | None = None
    global_model: Callable[[State], np.ndarray] | None = None
    summed: Callable[[int], tff.Computation] | None = None


def check_newcomers(state: State, newcomers: Population):
    """Raises UserError if a newcomer is already known."""
    both = np.intersect1d(state.client_ids, newcomers.client_ids)
    if both.size:
        raise UserError(f"client {both[0]} is no newcomer: it has an assignment already")


def joined_order(state: State, newcomers: Population) -> np.ndarray:
    """Places `int [N + B]` that put rows of the old clients, then of the newcomers, into ascending order of ID."""
    return np.argsort(np.concatenate([state.client_ids, newcomers.client_ids]))


def extended(state: State, newcomers: Population, assignment) -> dict[str, np.ndarray]:
    """Old and new clients in ascending order of ID, with their clusters.

    Args:
      state: Before.
      newcomers: Their IDs.
      assignment: `int32 [B]`, the newcomers' clusters.

    Returns:
      `client_ids` and `assignment` of the next state.
    """
    ids = np.concatenate([state.client_ids, newcomers.client_ids]).astype(np.int32)
    order = joined_order(state, newcomers)
    keys = np.concatenate([state.assignment, assignment]).astype(np.int32)
    return {"client_ids": ids[order], "assignment": keys[order]}
