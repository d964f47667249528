"""Examples that are read when they are needed: of populations that do not fit into memory."""

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tffcl.clients.client_examples import ClientExamples

_MEMORY_BYTES = 2**28  # of examples that stay in memory, those that were needed last
MANY = 10_000  # clients; of more that are read when they are needed nobody reads all
_MOST_READ = 64  # clients whose examples are read before a run where they are not in memory


class LazyExamples(Mapping[int, ClientExamples]):
    """Client ID to its examples, which are read whenever they are needed; the last ones that were stay in memory."""

    def __init__(self, client_ids: Iterable[int], read: Callable[[int], ClientExamples]):
        """Makes the mapping without reading anything.

        Args:
          client_ids: Whose examples there are.
          read: Client ID to its examples, the same ones each time.
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
    """Returns what a function of client ID and examples makes of those of each client: now, or where they are read when
    they are needed, then."""
    if isinstance(examples, dict):
        return {client: function(client, each) for client, each in examples.items()}
    return LazyExamples(examples, lambda client: function(client, examples[client]))


def too_many(examples: Mapping[int, ClientExamples]) -> bool:
    """Whether these are too many to be read when no round needs them."""
    return not isinstance(examples, dict) and len(examples) > MANY


def most_of(client_ids: np.ndarray) -> np.ndarray:
    """Returns at most `MANY` of these clients, drawn at random, always the same."""
    if len(client_ids) <= MANY:
        return client_ids
    return np.sort(np.random.default_rng(0).choice(client_ids, MANY, replace=False))


def few_of(client_ids: Sequence[int]) -> list[int]:
    """Returns some clients, evenly spread, whose examples are looked at where not all are."""
    return list(client_ids[:: -(-len(client_ids) // _MOST_READ)])
