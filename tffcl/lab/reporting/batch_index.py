"""`batch.json`, the index of several runs in one directory, and which of these runs failed."""

import dataclasses
import pathlib
import re
from collections.abc import Mapping, Sequence
from types import NoneType

from tffcl.csv_files import damaged
from tffcl.json_files import read_json, telling_damage, write_json
from tffcl.runs.run_directory import FAILED, RunDirectory, State

INDEX = "batch.json"
_NUMBER, _NUMBER_OR_NONE = (int, float), (int, float, NoneType)
_OF_POINTS = {
    "task": str,
    "algorithm": str,
    "keys": [str],
    "labels": [str],
    "seeds": [int],
    "points": [{"values": list, "directory": str}],
}
_CELL = {
    "column": str,
    "row": str,
    "task": str,
    "method": str,
    "measure": str,
    "accuracy": str,
    "target": _NUMBER_OR_NONE,
    "megabits_a_round": _NUMBER_OR_NONE,
    "published": [_NUMBER_OR_NONE],
    "missing": str,
    "directory": (str, NoneType),
    "paper_rounds": (int, NoneType),
    "set": dict,
    "changed?": [str],
    "tuned?": dict,
}
# What the index of each kind of batch has beside its kind, and of what types: [str] is a list of texts, {str: dict} a
# table of any names; a key that ends in ? need not be there.
KINDS: Mapping[str, Mapping] = {
    "comparison": {"algorithms": [str], "targets": [str]},
    "sweep": _OF_POINTS,
    "search": {
        **_OF_POINTS,
        "select": str,
        "rungs": [{"rounds": int, "points": [{"values": list, "score": _NUMBER_OR_NONE}]}],
        "picked": (dict, NoneType),
    },
    "study": {
        "study": str,
        "title": str,
        "paper": str,
        "table": str,
        "page": int,
        "note": str,
        "published_is": str,
        "layout?": str,
        "about?": {str: str},
        "rounds": _NUMBER,
        "seeds": [int],
        "cells": [_CELL],
        "tuned": {str: {"mark": str, "points": [{"values": dict, "validation": _NUMBER_OR_NONE}]}},
    },
}


def write_index(path: pathlib.Path, kind: str, contents: Mapping):
    """Writes what the runs in a directory are.

    Args:
      path: The directory; it is made where it is not there.
      kind: A name in `KINDS`.
      contents: What is noted of them, with the keys of `KINDS` at least.
    """
    path.mkdir(parents=True, exist_ok=True)
    write_json(path / INDEX, {"kind": kind, **contents})


def read_index(path: str | pathlib.Path, kind: str) -> dict | None:
    """Reads what the runs in a directory are; None if there is no index, or that of another kind of batch.

    Raises:
      UserError: If the file is damaged, or has not what `KINDS` says.
    """
    file = pathlib.Path(path) / INDEX
    if not file.is_file():
        return None
    found = read_json(file)
    _check(file, found, {"kind": str})
    if found["kind"] not in KINDS:
        raise damaged(file, f"its kind is {found['kind'][:100]!r}")
    _check(file, found, KINDS[found["kind"]])
    return found if found["kind"] == kind else None


def _check(file: pathlib.Path, value: object, kind, name: str = "what it holds"):
    """Raises UserError if a value is not as one in `KINDS` says."""
    if not isinstance(value, type(kind) if isinstance(kind, (list, dict)) else kind):
        raise damaged(file, f"{name} is {repr(value)[:100]}")
    if isinstance(kind, list):
        for each in value:
            _check(file, each, kind[0], f"one of {name}")
    elif isinstance(kind, dict):
        own = {each: kind[str] for each in value} if str in kind else kind
        for key, each in own.items():
            if (found := key.removesuffix("?")) in value:
                _check(file, value[found], each, found)
            elif found == key:
                raise damaged(file, f"there is no {key!r}")


@dataclasses.dataclass(frozen=True)
class Failure:
    """A run that ended without a summary.

    Attributes:
      method: What tables call it.
      seed: Of the run.
      reason: Why, in a line.
    """

    method: str
    seed: int
    reason: str

    def __str__(self) -> str:
        return f"{self.method} seed {self.seed} failed: {self.reason}"


def read_order(path: str | pathlib.Path) -> list[str]:
    """Reads the methods of a comparison in the order that was asked for; none where that was not written.

    Raises:
      UserError: If the index is damaged.
    """
    found = read_index(path, "comparison")
    return found["algorithms"] if found else []


def in_order(path: pathlib.Path, methods: Sequence[str]) -> list[str]:
    """Sorts methods as the comparison was asked for, those that it does not name behind them."""
    asked = read_order(path)
    return sorted(set(methods), key=lambda each: (asked.index(each) if each in asked else len(asked), each))


def read_failure(path: pathlib.Path, method: str | None = None) -> Failure | None:
    """Reads why the run in a directory failed; None if it has not, or has finished since.

    Raises:
      UserError: If the file is damaged.
    """
    if RunDirectory(path).state is not State.DIVERGED:
        return None
    file = path / FAILED
    noted = read_json(file)
    with telling_damage(file):
        return Failure(method or str(noted["algorithm"]), int(noted["seed"]), " ".join(str(noted["reason"]).split()))


def find_failures(path: str | pathlib.Path) -> list[Failure]:
    """Reads the runs of a comparison (`<algorithm>/seed-<n>/`) that failed, by method and seed."""
    places = [
        each for each in pathlib.Path(path).glob(f"*/seed-*/{FAILED}") if re.fullmatch(r"seed-\d+", each.parent.name)
    ]
    found = (read_failure(each.parent, each.parent.parent.name) for each in places)
    return sorted((each for each in found if each), key=lambda each: (each.method, each.seed))
