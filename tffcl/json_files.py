"""Small files of JSON and TOML: written whole or not at all, and read with one clear line for a file that
is damaged."""

import contextlib
import json
import math
import pathlib
import re
import tomllib
from collections.abc import Mapping

from tffcl import csv_files
from tffcl.errors import UserError
from tffcl.regular_files import write_text

MOST_TOML = 2**22  # bytes; Python's reader takes seconds for so many
_DEEPEST = 100  # names with dots between them
_DOTTED = re.compile(r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*"|'[^'\n]*')[ \t]*+\.[ \t]*+)++""")


def write_json(path: pathlib.Path, contents: Mapping, *, indent: int = 1):
    """Writes a file that a kill or a full disk leaves as it was before."""
    write_text(path, json.dumps(contents, indent=indent) + "\n")


def finite(number: float) -> float | None:
    """Returns a number as JSON has it: None for NaN and infinity."""
    return float(number) if math.isfinite(number) else None


def read_json(path: pathlib.Path) -> dict:
    """Reads a file of one table.

    Raises:
      UserError: If it is not there, or is damaged.
    """
    text = csv_files.read_text(path)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise csv_files.damaged(path, error) from error
    if not isinstance(found, dict):
        raise csv_files.damaged(path, f"it holds a {type(found).__name__} where names and values should be")
    return found


def parse_toml(text: str) -> dict:
    """Reads TOML as `tomllib.loads`, whose time grows with the square of the names in a key.

    Raises:
      ValueError: If it is no TOML, has more than four million letters or a number of thousands of digits.
      RecursionError: If it is nested too deep.
    """
    if len(text) > MOST_TOML:
        raise ValueError(f"it has more than {MOST_TOML:,} characters")
    if any(found[0].count(".") > _DEEPEST for found in _DOTTED.finditer(text)):
        raise RecursionError("it is nested too deep")
    return tomllib.loads(text)


def read_toml(path: pathlib.Path) -> dict:
    """Reads a file of TOML.

    Raises:
      UserError: If it is not there, or is damaged.
    """
    text = csv_files.read_text(path)
    try:
        return parse_toml(text)
    except (ValueError, RecursionError) as error:
        raise csv_files.damaged(path, error) from error


def inside(directory: str) -> pathlib.PurePath:
    """Returns the name of a directory in another as a file says it; ValueError if it leads out of that."""
    found = pathlib.PurePath(directory)
    if found.is_absolute() or ".." in found.parts:
        raise ValueError(f"directory is {str(found)[:100]!r}; it must be inside its own")
    return found


@contextlib.contextmanager
def telling_damage(path: pathlib.Path):
    """Inside the block, contents that are not what they should be are the damage of this file: a UserError that
    names it."""
    try:
        yield
    except UserError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise csv_files.damaged(path, f"{type(error).__name__}: {error}") from error
