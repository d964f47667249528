"""The examples of clients, in one form for training, tests and validation."""

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tffcl.clients.large_rows import joined
from tffcl.clients.simulation_context import current
from tffcl.errors import UserError

_NO_ROWS = np.zeros(0, np.int64)


class ClientExamples:
    """The training, test or validation examples of one client.

    Attributes:
      pool: `(x, y)`, arrays of examples, which clients may share.
      rows: `int [n]`, the client's rows of the pool; None for all.
      columns: For examples from frames, the names of their columns, by input ("" if there is only one) and "labels".
    """

    def __init__(self, x, y, rows: np.ndarray | None = None, columns: Mapping[str, tuple[str, ...]] | None = None):
        """Makes the examples of a client, which are read from the arrays when they are needed.

        Args:
          x: `[p, ...]`, or a structure of such arrays; those of several inputs are put in the order of their names.
          y: `[p, ...]`, their labels.
          rows: As `ClientExamples.rows`.
          columns: As `ClientExamples.columns`.
        """
        self.pool, self.rows, self.columns = (in_order(x), y), rows, dict(columns or {})

    def __len__(self) -> int:
        return len(self.pool[1] if self.rows is None else self.rows)

    @property
    def x(self):
        """`[n, ...]`, or a structure of such arrays."""
        return self._chosen(self.pool[0])

    @property
    def y(self):
        """`[n, ...]`, the labels."""
        return self._chosen(self.pool[1])

    @property
    def stacked(self) -> collections.OrderedDict:
        """`<x [n, ...], y [n, ...]>`, which the computations of simulations take."""
        return collections.OrderedDict(x=self.x, y=self.y)

    @property
    def spec(self) -> collections.OrderedDict:
        """`<x, y>` of `tf.TensorSpec`, of one example."""
        first = ClientExamples(*self.pool, _NO_ROWS).stacked
        return tf.nest.map_structure(lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), first)

    @property
    def nbytes(self) -> int:
        """The bytes of `stacked`, which is not read to count them."""
        return len(self) * sum(leaf.nbytes for leaf in tf.nest.flatten(self.pool)) // max(len(self.pool[1]), 1)

    @functools.cached_property
    def dataset(self) -> tf.data.Dataset:
        """A data set of single examples `<x, y>`, always the same object, because making one in each round leaks."""
        return tf.data.Dataset.from_tensor_slices(self.stacked)

    def __getstate__(self) -> dict:
        """Returns what is copied and pickled: all but `dataset`, which cannot be, and is made again when needed."""
        return {name: value for name, value in vars(self).items() if name != "dataset"}

    @property
    def nothing(self) -> "ClientExamples":
        """An empty set of examples of the same kind, made without reading these."""
        return ClientExamples(*self.pool, _NO_ROWS, self.columns)

    def _chosen(self, values):
        return values if self.rows is None else chosen(values, self.rows)


def chosen(values, rows):
    """Returns some of the examples `[p, ...]`, an array or a structure of arrays."""
    if isinstance(values, np.ndarray):  # the faster way, which matters in a round of many small clients
        return values[rows]
    return tf.nest.map_structure(lambda leaf: leaf[rows], values)


def in_order(inputs):
    """Returns several inputs in the order of their names, and anything else unchanged.

    TFF's messages hold inputs by position, so the inputs of a client with another order would be confused.
    """
    return collections.OrderedDict(sorted(inputs.items())) if isinstance(inputs, Mapping) else inputs


def columns_of(x, y=None) -> dict[str, tuple[str, ...]]:
    """Returns `ClientExamples.columns` of examples and labels as a user gives them; frames whose columns are only
    numbered have none."""
    given = {name: list(getattr(each, "columns", [])) for name, each in {**inputs_of(x), "labels": y}.items()}
    return {
        name: tuple(map(str, found)) for name, found in given.items() if found[1:] and found != [*range(len(found))]
    }


def inputs_of(values) -> dict:
    """Returns the values of each input of a model by its name, which is "" if there is only one input."""
    return dict(values) if isinstance(values, Mapping) else {"": values}


class CountedExamples(Mapping[int, ClientExamples]):
    """The examples of clients by ID; whenever those of a client are read, `Simulation.on_reading` is called.

    Attributes:
      held: The mapping that they come from, for the library's own reading, which releases nothing.
    """

    def __init__(self, held: Mapping[int, ClientExamples]):
        self.held = held

    def __getitem__(self, client: int) -> ClientExamples:
        if client not in self.held:
            raise UserError(f"client {client} is not known; there are {len(self.held):,} clients")
        current().on_reading()
        return self.held[client]

    def __contains__(self, client) -> bool:
        return client in self.held

    def __iter__(self) -> Iterator[int]:
        return iter(self.held)

    def __len__(self) -> int:
        return len(self.held)


class CountedField:
    """A field that calls `Simulation.on_reading` whenever it is read, as `CountedExamples` does; None by default."""

    def __set_name__(self, owner, name: str):
        self._name = name

    def __get__(self, population, owner=None):
        if population is None:
            return None  # a dataclass takes this as the default
        current().on_reading()
        return vars(population)[self._name]

    def __set__(self, population, value):
        vars(population)[self._name] = value


def held(examples: Mapping[int, ClientExamples]) -> Mapping[int, ClientExamples]:
    """Returns the mapping that counted examples come from; any other mapping is returned unchanged."""
    return examples.held if isinstance(examples, CountedExamples) else examples


@dataclasses.dataclass(frozen=True, eq=False)
class PooledExamples:
    """The examples of several clients in one pool, where those that clients share are stored once.

    Attributes:
      x: `[p, ...]`, the examples, or a structure of such arrays.
      y: `[p, ...]`, their labels.
      indices: For each client `int [n]`, its places in the pool; clients may share an array.
    """

    x: np.ndarray
    y: np.ndarray
    indices: tuple[np.ndarray, ...]


def pooled(examples: Mapping[int, ClientExamples], client_ids: Iterable[int]) -> PooledExamples:
    """Returns the examples of clients in the pool that all of them share, or else in a new pool, in the clients' order.

    Lazy examples are read client by client; a large pool of these is in a file, see `large_rows.joined`.
    """
    if not isinstance(examples, dict):
        return _pool_of_read(examples, list(client_ids))
    clients = [examples[client] for client in client_ids]
    x, y = clients[0].pool
    if all(each.rows is not None and each.pool[0] is x and each.pool[1] is y for each in clients):
        return PooledExamples(x, y, tuple(each.rows for each in clients))
    distinct = list({id(each): each for each in clients}.values())
    ends = np.cumsum([len(each) for each in distinct])
    together = tf.nest.map_structure(lambda *leaves: np.concatenate(leaves), *(each.stacked for each in distinct))
    indices = dict(zip(map(id, distinct), np.split(np.arange(ends[-1]), ends[:-1]), strict=True))
    return PooledExamples(together["x"], together["y"], tuple(indices[id(each)] for each in clients))


def _pool_of_read(examples: Mapping[int, ClientExamples], client_ids: list[int]) -> PooledExamples:
    ends = np.cumsum([len(examples[client]) for client in client_ids])
    spec = examples[client_ids[0]].spec
    leaves = [
        joined(
            (tf.nest.flatten(examples[client].stacked)[place] for client in client_ids),
            (int(ends[-1]), *leaf.shape),
            leaf.dtype.as_numpy_dtype,
            "examples",
        )
        for place, leaf in enumerate(tf.nest.flatten(spec))
    ]
    together = tf.nest.pack_sequence_as(spec, leaves)
    return PooledExamples(together["x"], together["y"], tuple(np.split(np.arange(ends[-1]), ends[:-1])))


_MEMORY_BYTES = 2**28  # of the most recently used examples, which stay in memory
MANY = 10_000  # clients; if more have lazy examples, these are never all read
_MOST_READ = 64  # clients whose lazy examples are read before a run


class LazyExamples(Mapping[int, ClientExamples]):
    """Maps client IDs to examples that are read when they are needed; the most recently used ones stay in memory."""

    def __init__(self, client_ids: Iterable[int], read: Callable[[int], ClientExamples]):
        """Makes the mapping without reading anything.

        Args:
          client_ids: The clients that have examples.
          read: Maps a client ID to its examples, the same ones each time.
        """
        self._ids, self._read = tuple(map(int, client_ids)), read
        self._known = frozenset(self._ids)
        self._held: collections.OrderedDict[int, ClientExamples] = collections.OrderedDict()
        self._bytes = 0

    def __getitem__(self, client: int) -> ClientExamples:
        if client in self._held:
            self._held.move_to_end(client)
            return self._held[client]
        found = self._held[client] = self._read(client)
        self._bytes += _size(found)
        while self._bytes > _MEMORY_BYTES and len(self._held) > 1:
            self._bytes -= _size(self._held.popitem(last=False)[1])
        return found

    def __contains__(self, client) -> bool:
        return client in self._known

    def __iter__(self) -> Iterator[int]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)


def _size(examples: ClientExamples) -> int:
    return sum(leaf.nbytes for leaf in tf.nest.flatten(examples.pool))


def mapped(
    examples: Mapping[int, ClientExamples], function: Callable[[int, ClientExamples], ClientExamples]
) -> Mapping[int, ClientExamples]:
    """Returns the results of a function of client ID and examples for all clients. Lazy examples stay lazy: the
    function is called when they are read."""
    if isinstance(examples, dict):
        return {client: function(client, each) for client, each in examples.items()}
    return LazyExamples(examples, lambda client: function(client, examples[client]))


def too_many(examples: Mapping[int, ClientExamples]) -> bool:
    """Whether these are lazy examples of so many clients that only those which rounds need are read."""
    return not isinstance(examples, dict) and len(examples) > MANY


def most_of(client_ids: np.ndarray) -> np.ndarray:
    """Returns at most `MANY` of these clients, drawn at random, but always the same ones."""
    if len(client_ids) <= MANY:
        return client_ids
    return np.sort(np.random.default_rng(0).choice(client_ids, MANY, replace=False))


def few_of(client_ids: Sequence[int]) -> list[int]:
    """Returns some clients, evenly spread, whose examples are checked if not all are."""
    return list(client_ids[:: -(-len(client_ids) // _MOST_READ)])
