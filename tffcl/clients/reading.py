"""Who reads the clients' training examples, and whether through a round: what else a method reads no ledger of privacy has counted."""

import contextlib
import contextvars
import functools
from collections.abc import Callable

_NOTICE: contextvars.ContextVar[Callable[[], None] | None] = contextvars.ContextVar("notice", default=None)


@contextlib.contextmanager
def noticed(notice: Callable[[], None]):
    """Calls `notice` at the first time that the block reads a client's examples outside of `through_a_round`."""
    token = _NOTICE.set(notice)
    try:
        yield
    finally:
        _NOTICE.reset(token)


@contextlib.contextmanager
def through_a_round():
    """A block whose reading is that of devices: what they tell of it is accounted where they tell it."""
    token = _NOTICE.set(None)
    try:
        yield
    finally:
        _NOTICE.reset(token)


class Noted:
    """A client's examples by its ID, as of `Population`; who reads them is noticed."""

    def __init__(self, read: Callable[[int], object]):
        self._read = read._read if isinstance(read, Noted) else read
        functools.update_wrapper(self, self._read, updated=())

    def __call__(self, client: int):
        notice = _NOTICE.get()
        if notice is not None:
            _NOTICE.set(None)  # once is enough
            notice()
        return self._read(client)
