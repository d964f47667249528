"""How far the clients of a round, or those that sign, have come: told to whoever watches."""

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Watch:
    """Who wants to know how a round gets on.

    Attributes:
      chose: Called with a line that says how a cohort is cut.
      moved: Called with the clients that are done, and all that were asked.
    """

    chose: Callable[[str], None] = lambda line: None
    moved: Callable[[int, int], None] = lambda done, clients: None


_WATCH: contextvars.ContextVar[Watch] = contextvars.ContextVar("watch", default=Watch())


@contextlib.contextmanager
def watched(watch: Watch):
    """Tells `watch` of what is computed inside the block a few clients at a time."""
    token = _WATCH.set(watch)
    try:
        yield
    finally:
        _WATCH.reset(token)


def watch() -> Watch:
    """Who watches now; by default somebody who is told nothing."""
    return _WATCH.get()
