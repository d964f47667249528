"""Small files of JSON: written whole or not at all, and read with one clear line for a file that is damaged."""

import contextlib
import json
import pathlib
from collections.abc import Mapping

from tffcl.reporting import columns


def write_json(path: pathlib.Path, contents: Mapping, *, sort_keys: bool = False):
    """Writes a file that a kill or a full disk leaves as it was before."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(contents, indent=1, sort_keys=sort_keys) + "\n", encoding="utf-8")
    partial.replace(path)


def read_json(path: pathlib.Path) -> dict:
    """Reads a file of one table.

    Raises:
      UserError: If it is not there, or is damaged.
    """
    try:
        found = json.loads(columns.read_text(path))
    except (ValueError, RecursionError) as error:
        raise columns.damaged(path, error) from error
    if not isinstance(found, dict):
        raise columns.damaged(path, f"it holds a {type(found).__name__} where names and values should be")
    return found


@contextlib.contextmanager
def telling_damage(path: pathlib.Path):
    """Inside the block, contents that are not what they should be are the damage of this file: a UserError that names it."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise columns.damaged(path, f"{type(error).__name__}: {error}") from error
