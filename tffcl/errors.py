"""Errors that are the user's to mend: one line, exit code 2, no traceback."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Something that a user gave is wrong; the message says what, and what is allowed.

    Attributes:
      table: The table of a task file that the error is about, e.g. "algorithms.pacfl"; None if it is about none.
      key: The key that the error is about, as the user wrote it; None if it is about none.
    """

    def __init__(self, message: str, *, table: str | None = None, key: str | None = None):
        super().__init__(message)
        self.table = table
        self.key = key


class Diverged(UserError):
    """Training has left the finite numbers; the same run would do so again, whatever is resumed."""


def unknown(
    kind: str, name: object, allowed: Iterable[object], *, table: str | None = None, key: str | None = None
) -> UserError:
    """Returns the error for a name that is not among the allowed ones, with the nearest of them.

    Args:
      kind: What the name is of, e.g. "task".
      name: What the user gave.
      allowed: The names that exist.
      table: See `UserError`.
      key: See `UserError`.
    """
    names = sorted(str(each) for each in allowed)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return UserError(f"unknown {kind} {name!r}{hint} (allowed: {', '.join(names)})", table=table, key=key)
