"""The clients that there are: who they are, and what each of them holds."""

import collections
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tffcl.clients import sources
from tffcl.clients.client_examples import PooledTests, empty_like, none_of, read_once, read_whole
from tffcl.clients.simulation_context import current
from tffcl.display import Shown, sizes_of
from tffcl.errors import UserError, unknown

_MOST_NAMED = 20  # clients that a message lists


class _Noticed:
    """A client's examples by its ID; reading them is noticed by the simulation."""

    def __init__(self, read: Callable[[int], Any]):
        self._read = read._read if isinstance(read, _Noticed) else read

    def __call__(self, client: int):
        current().on_reading()
        return self._read(client)


@dataclasses.dataclass(frozen=True, eq=False)
class Population(Shown):
    """The clients that there are. Row i of every array is `client_ids[i]`.

    Attributes:
      client_ids: `int32 [N]`, ascending.
      sizes: `int32 [N]`, training examples of each.
      examples: Client ID to its training examples, a `tf.data.Dataset` of single `<x, y>`. It must return the same object for
        the same client every time: building data sets anew in every round leaks memory.
      test_examples: The same for its test examples.
      versions: `int32 [N]`, how often each client's training data have changed; default never, and in `later` of `train` as often as
        they are others than before.
      tests: All test examples as arrays; by default they are read from `test_examples` when they are first needed.
      label_counts: `int64 [N, C]`, training examples of each label; None where that is not known.
      groups: `int32 [N]`, the true group of each client, to hold found clusters against; None where there are none.
      note: What a reader of results should know of the data; else "".
      names: What each client is called in files and messages, where that is not its ID.
      largest_labels: `int32 [N]`, the largest label that each client holds, test examples included; None where not known.
      arrays: Client ID to its training examples as arrays `(x [n, ...], y [n])`; by default they are read from `examples`.
      test_arrays: The same for its test examples.
      validation: Examples of each client that are neither trained nor tested on, to choose hyper-parameters by; None without.
      signed_as: Of malicious clients in simulations: whose examples a client signs instead of its own, IDs by ID.
    """

    client_ids: np.ndarray
    sizes: np.ndarray
    examples: Callable[[int], tf.data.Dataset]
    test_examples: Callable[[int], tf.data.Dataset]
    versions: np.ndarray | None = None
    tests: PooledTests | None = None
    label_counts: np.ndarray | None = None
    groups: np.ndarray | None = None
    note: str = ""
    names: np.ndarray | None = None
    largest_labels: np.ndarray | None = None
    arrays: Callable[[int], tuple[np.ndarray, np.ndarray]] | None = None
    test_arrays: Callable[[int], tuple[np.ndarray, np.ndarray]] | None = None
    validation: PooledTests | None = None
    signed_as: Mapping[int, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        object.__setattr__(self, "examples", _Noticed(self.examples))
        if self.arrays is not None:
            object.__setattr__(self, "arrays", _Noticed(self.arrays))
        if self.versions is None:
            object.__setattr__(self, "versions", np.zeros(len(self.client_ids), np.int32))
        if not len(self.client_ids):
            raise UserError("the population has no clients; at least 1 is needed")
        if np.any(np.diff(self.client_ids) <= 0) or len(self.sizes) != len(self.client_ids):
            raise UserError("client IDs must be ascending and distinct, with one size each")
        if np.any(np.asarray(self.sizes) < 1):
            empty = self.client_ids[np.flatnonzero(np.asarray(self.sizes) < 1)[0]]
            empty = empty if self.names is None else self.names[np.flatnonzero(np.asarray(self.sizes) < 1)[0]]
            raise UserError(f"client {empty} has no training examples; every client needs at least 1")

    def __len__(self) -> int:
        return len(self.client_ids)

    def facts(self):
        """Who there is and how much they hold."""
        groups = {} if self.groups is None else {"true groups": len(np.unique(self.groups))}
        total = f"{int(np.sum(self.sizes)):,}"
        return {"clients": len(self), "training examples": total, "each": sizes_of(self.sizes), **groups}

    def __repr__(self) -> str:
        groups = "" if self.groups is None else f", {len(np.unique(self.groups))} true groups"
        return f"Population({len(self)} clients, {int(np.sum(self.sizes)):,} training examples{groups})"

    def index(self, client_ids) -> np.ndarray:
        """Returns the rows of the given clients, by ID or by name.

        Raises:
          UserError: If one is not of this population.
        """
        if self.names is None or not any(isinstance(each, str) for each in np.atleast_1d(client_ids).tolist()):
            return index_of(self.client_ids, client_ids)
        rows = {name: row for row, name in enumerate(self.names.tolist())}
        try:
            return np.array([rows[name] for name in np.atleast_1d(client_ids).tolist()])
        except KeyError as error:
            if len(self) > _MOST_NAMED:
                said = f"there are {len(self)} clients, {self.names[0]} to {self.names[-1]}"
                raise UserError(f"client {error.args[0]} is not known; {said}") from None
            raise unknown("client", error.args[0], rows) from None

    def id_of(self, client) -> int:
        """Returns the ID of a client that a user names, as it is called in files: by its name where there are names, else by its ID.

        Raises:
          UserError: If it is not of this population, or is named in the other way: a number where there are names would be a
            row.
        """
        if isinstance(client, str) == (self.names is None):
            called = "whole numbers" if self.names is None else "text"
            raise UserError(f"client {client!r} is not known; client IDs are {called}, e.g. {self.shown_ids.tolist()[0]!r}")
        return int(self.client_ids[self.index([client])[0]])

    def name_of(self, client_id: int) -> str:
        """Returns what a client is called in files and messages."""
        return str(client_id) if self.names is None else str(self.names[self.index([client_id])[0]])

    @property
    def shown_ids(self) -> np.ndarray:
        """What the clients are called: their names, or their IDs."""
        return self.client_ids if self.names is None else self.names

    def stacked(self, client_id: int) -> collections.OrderedDict:
        """Returns all training examples of a client, `<x [n, ...], y [n]>`."""
        if self.arrays is None:
            return read_once(self.examples(client_id))
        return collections.OrderedDict(zip("xy", self.arrays(client_id), strict=True))

    def stacked_tests(self, client_id: int, *, nothing: bool = False) -> collections.OrderedDict:
        """Returns all test examples of a client, `<x [n, ...], y [n]>`, or arrays of the same kind with none of them."""
        if nothing and self.tests is not None:  # reading a client's test set to leave it out would cost more than its training
            return collections.OrderedDict(x=self.tests.x[:0], y=self.tests.y[:0])
        if self.test_arrays is None:
            examples = self.test_examples(client_id)
            return none_of(str(examples.element_spec), examples.element_spec) if nothing else read_once(examples)
        found = collections.OrderedDict(zip("xy", self.test_arrays(client_id), strict=True))
        return collections.OrderedDict((name, value[:0]) for name, value in found.items()) if nothing else found

    def stacked_validation(self, client_id: int) -> collections.OrderedDict:
        """Returns all validation examples of a client, `<x [n, ...], y [n]>`; UserError if it has none."""
        pool = self.validation
        rows = () if pool is None else pool.indices[self.index([client_id])[0]]
        if pool is None or not len(rows):
            raise UserError(
                f"client {self.name_of(client_id)} has no validation examples; dataset.validation = 0.1 holds out a tenth of those that "
                "clients train on"
            )
        return collections.OrderedDict(x=pool.x[rows], y=pool.y[rows])

    @classmethod
    def from_arrays(
        cls,
        examples: Mapping[str | int, tuple],
        test: Mapping[str | int, tuple] | None = None,
        *,
        known: "Population | None" = None,
    ) -> "Population":
        """Makes a population of arrays.

        Args:
          examples: Client ID, text or a whole number from 0, to its training examples `(x [n, ...], y)`: x any numbers, y whole
            numbers, `[n]` or sequences `[n, L]`. All clients alike but for n.
          test: The same for test examples; none for a client that is not named.
          known: All clients so far, where those of `examples` join them or are all of a later round; they keep their numbers.

        Raises:
          UserError: If there are no clients, a client has no examples, or arrays do not fit each other.
        """
        return cls(**sources.from_arrays(examples, test, known=known))

    @classmethod
    def from_client_data(cls, train, test=None, *, known: "Population | None" = None) -> "Population":
        """Makes a population of `tff.simulation.datasets.ClientData`.

        Args:
          train: Training examples by client, unbatched `(x, y)` or `{"x": ..., "y": ...}`; `train.preprocess(...)` puts others
            in this form.
          test: Test examples by client; None for none.
          known: As of `from_arrays`.

        Raises:
          UserError: As `from_arrays`, or if examples are of another form.
        """
        return cls(**sources.from_client_data(train, test, known=known))

    def restricted(self, client_ids) -> "Population":
        """Returns the population of these clients only, ascending; UserError if one is not of this population."""
        rows = np.sort(self.index(client_ids))
        by_row = ("client_ids", "sizes", "versions", "label_counts", "groups", "names", "largest_labels")
        fields: dict[str, Any] = {name: None if getattr(self, name) is None else getattr(self, name)[rows] for name in by_row}
        for name in ("tests", "validation"):
            pool = getattr(self, name)
            if pool is not None:
                fields[name] = dataclasses.replace(pool, indices=tuple(pool.indices[row] for row in rows))
        return dataclasses.replace(self, **fields)

    @functools.cached_property
    def pooled_tests(self) -> PooledTests:
        """`tests`, or the clients' test examples read one client after the other."""
        if self.tests is not None:
            return self.tests
        parts = [read_whole(self.test_examples(int(client))) for client in self.client_ids]
        ends = np.cumsum([len(part["y"]) for part in parts])
        x, y = (np.concatenate([part[name] for part in parts]) for name in ("x", "y"))
        return PooledTests(x, y, tuple(np.split(np.arange(len(y)), ends[:-1])))


def index_of(known: np.ndarray, client_ids) -> np.ndarray:
    """Returns the positions of `client_ids` in the ascending `known`; UserError if one is missing."""
    wanted = np.atleast_1d(np.asarray(client_ids))
    rows = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    if not np.array_equal(known[rows], wanted):
        missing = wanted[known[rows] != wanted][0]
        raise UserError(f"client {missing} is not known; there are {len(known)} clients, {known[0]} to {known[-1]}")
    return rows


def population_of(
    examples: Mapping[int, tf.data.Dataset], test_examples: Mapping[int, tf.data.Dataset] | None = None
) -> Population:
    """Makes a population from data sets by client ID.

    Args:
      examples: Training examples `<x, y>` of each client; their cardinality must be known.
      test_examples: Test examples; none for a client that is not named.
    """
    ids = sorted(examples)
    nothing = empty_like(next(iter(examples.values()))) if examples else None
    sizes = [int(examples[client].cardinality()) for client in ids]
    for client, size in zip(ids, sizes, strict=True):
        if size < 0:
            told = "never end" if size == tf.data.INFINITE_CARDINALITY else "are of unknown number"
            raise UserError(
                f"the examples of client {client} {told}; data_set.apply(tf.data.experimental.assert_cardinality(n)) says it"
            )
    tests = test_examples or {}
    return Population(
        np.array(ids, np.int32), np.array(sizes, np.int32), examples.__getitem__, lambda client: tests.get(client, nothing)
    )
