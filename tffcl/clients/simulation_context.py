"""The context of a simulation: what its rounds, queries and client states share. Imports no TensorFlow."""

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tffcl.runtime import memory

if TYPE_CHECKING:  # at run time it would import TensorFlow
    from tffcl.clients.client_state import KeptStore


@dataclasses.dataclass(frozen=True)
class Simulation:
    """What the rounds and queries inside a block of `simulating` share.

    Attributes:
      memory: Bytes that the clients that compute at the same time may use; None: see `memory_bytes`.
      client_states: The store of client states, whose directory large matrices use too; None for a temporary one.
      shards: The number of shards for the clients of a round that compute together (see `rounds.shards`); 0: no shards;
        None: for many small clients, as many as pay off.
      ledger: Its `spend(*releases)` is called before clients release something (see `rounds.privacy_releases.Release`)
        and raises UserError if the release is not allowed; its `check_noised(release)` raises it if that is known long
        before the release. With None nothing is counted.
      on_plan: Called with a line that says how a cohort is cut into blocks and shards.
      on_progress: Called with the number of clients that are done and the number of all that compute.
      on_reading: Called when clients' examples are read outside of rounds and queries, which releases them without
        noise.
    """

    memory: int | None = None
    client_states: "KeptStore | None" = None
    shards: int | None = None
    ledger: object = None
    on_plan: Callable[[str], None] = lambda line: None
    on_progress: Callable[[int, int], None] = lambda done, clients: None
    on_reading: Callable[[], None] = lambda: None

    @property
    def memory_bytes(self) -> int:
        """`memory`, or the largest power of two up to half of what is free now, so that other processes rarely change
        the order of sums."""
        return self.memory or 2 ** (memory.free_bytes().bit_length() - 2)

    def release(self, *releases):
        """Counts releases that are about to happen together."""
        if self.ledger is not None:
            self.ledger.spend(*releases)

    def announce(self, release):
        """Refuses a release that a later round needs now, if the privacy budget will never allow it."""
        if self.ledger is not None:
            self.ledger.check_noised(release)


_CURRENT = contextvars.ContextVar("simulation", default=Simulation())


def current() -> Simulation:
    """Returns the context of the block that this is called in."""
    return _CURRENT.get()


@contextlib.contextmanager
def simulating(**fields) -> Iterator[Simulation]:
    """Sets options, such as `memory` and `shards`, for the rounds that are simulated in a `with` block.

    Args:
      **fields: Fields of `Simulation`; the others keep their values from outside the block.
    """
    token = _CURRENT.set(dataclasses.replace(_CURRENT.get(), **fields))
    try:
        yield _CURRENT.get()
    finally:
        _CURRENT.reset(token)


def on_devices():
    """Returns a context in which examples are read as on clients: only their later releases are counted."""
    return simulating(on_reading=lambda: None)
