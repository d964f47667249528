"""TOML of a user, read to values that every part of a run can hold: no dates, no endless numbers, no endless nesting."""

import tomllib
from collections.abc import Mapping

from tffcl.errors import UserError
from tffcl.json_files import MOST_TOML, parse_toml

_DEEPEST = 20  # tables and lists within each other
_LARGEST = 2**31 - 1  # of whole numbers: clients, rounds, units and labels are 32-bit where they are used


def read_toml(text: str, where: str) -> dict:
    """Reads TOML text.

    Args:
      text: What the user wrote.
      where: Its place, for messages.

    Raises:
      UserError: If it is no TOML, or has a date, a whole number beyond 32 bits, or more than 20 levels.
      tomllib.TOMLDecodeError: If it is no TOML; what that means depends on the place.
    """
    if len(text) > MOST_TOML:
        raise UserError(f"{where} has {len(text):,} characters; at most {MOST_TOML:,} are allowed")
    try:
        contents = parse_toml(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise UserError(
            f"{where} is nested too deep; at most {_DEEPEST} tables and lists within each other are allowed"
        ) from None
    except ValueError:  # Python reads no whole numbers of more than 4,300 digits
        raise UserError(f"{where} has a whole number of thousands of digits; at most {_LARGEST} is allowed") from None
    check_plain(contents, where)
    return contents


def check_plain(contents: Mapping, where: str):
    """Raises UserError for values that `read_toml` refuses, with their key."""
    left = [(contents, (), 0)]
    while left:
        value, path, depth = left.pop()
        key = ".".join(path)[:100]
        if depth > _DEEPEST:
            raise UserError(f"{where}: {key[:40]}... is nested too deep; at most {_DEEPEST} tables and lists are allowed")
        if isinstance(value, Mapping):
            left += [(each, (*path, name), depth + 1) for name, each in value.items()]
        elif isinstance(value, (list, tuple)):
            left += [(each, path, depth + 1) for each in value]
        elif isinstance(value, int) and abs(value) > _LARGEST:
            raise UserError(f"{where}: {key} is a whole number beyond {_LARGEST}, the largest that is allowed")
        elif type(value).__module__ == "datetime":
            raise UserError(f"{where}: {key} is the date or time {value}; texts are written in quotes")
