"""A method's state as named arrays and a description of how they are nested, and back.

Arrays are named by their place, `state.assignment` or `state.signatures.basis`, so that a file of them can be read by
NumPy alone.
"""

import collections
import dataclasses
import json
import types
import typing
from collections.abc import Mapping

import numpy as np

from tffcl.clients.client_state import KeptStates

STRUCTURE = "structure"


def pack(values: Mapping, *, with_kept: bool = True) -> tuple[dict[str, np.ndarray], list[tuple[int, int]]]:
    """Turns named values into arrays.

    Args:
      values: Dataclasses, mappings, lists and tuples of arrays, numbers, text and None, by name.
      with_kept: Whether what clients keep is named; without, they have kept nothing.

    Returns:
      The arrays by name, with the description under `STRUCTURE`; and `(client, version)` of every kept value.

    Raises:
      TypeError: If a value is something else.
    """
    arrays, named = {}, []
    described = {name: _packed(value, name, arrays, named, with_kept) for name, value in values.items()}
    return {STRUCTURE: np.array(json.dumps(described)), **arrays}, named


def _packed(value, place: str, arrays: dict, named: list, with_kept: bool):
    def inner(name, each):
        return _packed(each, f"{place}.{name}", arrays, named, with_kept)

    if value is None or isinstance(value, str | bool):
        return {"plain": value}
    if isinstance(value, KeptStates):
        nobody = np.zeros(0, np.int32), np.zeros(0, np.int64)
        clients, versions = value.saved() if with_kept else nobody
        named += zip(clients.tolist(), versions.tolist(), strict=True)
        parts = {"clients": clients, "versions": versions, "initial": value.initial}
        return {"kept": [inner(name, each) for name, each in parts.items()]}
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return {"fields": {name: inner(name, getattr(value, name)) for name in names}}
    if isinstance(value, Mapping):
        return {"mapping": [[name, inner(name, each)] for name, each in value.items()]}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [inner(number, each) for number, each in enumerate(value)]}
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise TypeError(f"a state must be of arrays, numbers and text; {place} is a {type(value).__name__}")
    arrays[place] = array
    return {"array": place}


def unpack(arrays: Mapping[str, np.ndarray], kinds: Mapping[str, type]) -> dict:
    """The inverse of `pack`.

    Args:
      arrays: What `pack` gave, or the open file of it.
      kinds: The dataclasses that values are of, by name.

    Raises:
      ValueError: If a dataclass has other fields than were packed.
      KeyError: If an array is missing.
    """
    described = json.loads(str(arrays[STRUCTURE]))
    return {name: _unpacked(value, arrays, kinds.get(name)) for name, value in described.items()}


def _unpacked(described: Mapping, arrays: Mapping, kind):
    """A value; dataclasses in it are those that the fields of `kind` are declared with."""
    ((form, content),) = described.items()
    if form == "plain":
        return content
    if form == "kept":
        return KeptStates.loaded(*(_unpacked(each, arrays, None) for each in content))
    if form == "fields":
        return _dataclass(content, arrays, kind)
    if form == "mapping":
        return collections.OrderedDict((name, _unpacked(each, arrays, None)) for name, each in content)
    if form in ("list", "tuple"):
        items = [_unpacked(each, arrays, None) for each in content]
        return items if form == "list" else tuple(items)
    array = arrays[content]
    return array if array.ndim else array[()]


def _dataclass(content: Mapping, arrays: Mapping, kind):
    kinds = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    found = next((each for each in kinds if dataclasses.is_dataclass(each)), None)
    fields = [] if found is None else dataclasses.fields(found)
    wanted = [field.name for field in fields]
    if sorted(wanted) != sorted(content):
        expected = ", ".join(sorted(wanted)) or "no such values"
        raise ValueError(f"it holds {', '.join(sorted(content))}; {expected} are expected")
    hints = typing.get_type_hints(found)
    return found(**{name: _unpacked(each, arrays, hints[name]) for name, each in content.items()})
