"""Errors that the user can mend: one line, exit code 2, no traceback."""

import difflib
import re
import sys
from collections.abc import Iterable

_MOST_LISTED, _LONGEST_LIST = 12, 160  # names that a message lists, and their characters; of more, only the nearest
_LONGEST = 100  # characters of a user's value in a message
_LONGEST_MESSAGE = 1000  # characters; what is left out is in the middle of what a user gave


class Option:
    """A text that users write one way on the command line and in files, and another way in Python. As a string, it is
    the text for this process.

    Attributes:
      on_command_line: Whether this process runs a command, as `lab.cli.main` sets it.
    """

    on_command_line = False

    def __init__(self, command: str, python: str):
        self._command, self._python = command, python

    def __str__(self):
        return self._command if self.on_command_line else self._python


def argument(name: str) -> Option:
    """Returns a text for an option of commands, e.g. "fresh-seeds", and for the argument of functions of that name."""
    return Option(f"--{name}", name.replace("-", "_"))


RESUME = Option("--resume", "resume=True")
OVERWRITE = Option("--overwrite", "overwrite=True")
OVERRIDES = Option("on the command line", "in overrides")
VALIDATION = Option("dataset.validation = 0.1", "clients.with_validation(0.1)")

# Characters that control a terminal, break a line, are invisible, or change the order of letters.
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)


def printable(text: str, keep: str = "") -> str:
    """Returns a text as terminals and pages can show it: control characters, except those in `keep`, are escaped."""
    return _UNSEEN.sub(lambda found: found[0] if found[0] in keep else found[0].encode("unicode_escape").decode(), text)


def short_path(path: object) -> str:
    """Returns a path for a message; a long one is shortened."""
    text = str(path)
    return text if len(text) <= 150 else f"{text[:70]}...{text[-70:]}"


def tell(text: str):
    """Writes a text to standard error in one line."""
    print(f"tffcl: {printable(text)}", file=sys.stderr)


class UserError(ValueError):
    """Something that a user gave is wrong; the message says what, and what is allowed.

    Attributes:
      table: The table of a task file that the error is about, e.g. "algorithms.pacfl"; None if it is about none.
      key: The key that the error is about, as the user wrote it; None if it is about none.
      exit_code: The exit code of the command line.
    """

    exit_code = 2

    def __init__(self, message: str, *, table: str | None = None, key: str | None = None):
        text = printable(str(message))
        super().__init__(text if len(text) <= _LONGEST_MESSAGE else f"{text[:700]} ... {text[-250:]}")
        self.table = table
        self.key = key


class Diverged(UserError):
    """Training has given numbers that are not finite; the same run would do so again, from wherever it is resumed."""


def no_server_data(method: str) -> UserError:
    """Returns the error for a method that compares models on images which the server does not have."""
    held_out = "dataset.server_examples, how many are held out before the partition (2500 in the paper)"
    given = Option(held_out, "server_images=")
    return UserError(f"{method}: the server has no data to compare models on; give {given}")


def unknown(
    kind: str,
    name: object,
    allowed: Iterable[object],
    *,
    besides: str = "",
    listed: str = "",
    table: str | None = None,
    key: str | None = None,
) -> UserError:
    """Returns the error for a name that is not among the allowed ones, with the nearest of them.

    Args:
      kind: What the name stands for, e.g. "task".
      name: What the user gave.
      allowed: The names that exist.
      besides: What is allowed besides names, in words, e.g. "a number from 0".
      listed: The name of the kind in `tffcl list`, if it is there.
      table: See `UserError`.
      key: See `UserError`.
    """
    names = sorted(str(each) for each in allowed)
    wanted = str(name)[:_LONGEST]
    hint = did_you_mean(wanted, names)
    shown_names = [repr(each) if any(", " in other for other in names) else each for each in names]
    allowed = f"allowed: {', '.join(shown_names)}"
    if len(names) > _MOST_LISTED or len(allowed) > _LONGEST_LIST:
        nearest = _nearest(wanted, names, 5, cutoff=0)
        others = f"; `tffcl list {listed}` has all" if listed else ""
        allowed = f"the nearest of {len(names)}: {', '.join(nearest)}{others}"
    shown = repr(name) if len(str(name)) <= _LONGEST else f"{wanted!r}..."
    besides = besides and f"; or {besides}"
    return UserError(f"unknown {kind} {shown}{hint} ({allowed}{besides})", table=table, key=key)


def did_you_mean(wanted: str, names: Iterable[str]) -> str:
    """Returns "; did you mean 'name'?" for a name that is not among others; "" if none is similar."""
    near = _nearest(wanted, names, 1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def _nearest(wanted: str, names: Iterable[str], count: int, *, cutoff: float) -> list[str]:
    """Returns the names that are most similar to the wanted one, best first; case and blanks around it do not count."""
    folded: dict[str, list[str]] = {}
    for name in names:
        folded.setdefault(name.casefold(), []).append(name)
    found = difflib.get_close_matches(wanted.strip().casefold(), folded, n=count, cutoff=cutoff)
    return [name for each in found for name in folded[each]][:count]


def one_line(error: Exception) -> str:
    """Returns the message of another library's error in one line; for an error in a Keras layer, with the layer."""
    layer = re.search(r"Exception encountered when calling (layer \S+ \(type \w+\))\.?", str(error))
    lines = [line.strip() for line in str(error)[layer.end() if layer else 0 :].splitlines() if line.strip()]
    # If a function was being traced, the error itself comes after the lines of code that led to it.
    raised = [line.split(":", 1)[1].strip() or line for line in lines if re.match(r"\w+(Error|Exception):", line)]
    return (f"{layer[1]}: " if layer else "") + [*raised, *lines, type(error).__name__][0][:200]
