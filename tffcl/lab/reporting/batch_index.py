"""`batch.json`, the index of several runs in one directory, and which of these runs failed."""

import dataclasses
import pathlib
import re
from collections.abc import Mapping, Sequence

from tffcl.csv_files import damaged
from tffcl.json_files import read_json, telling_damage, write_json
from tffcl.runs.run_directory import FAILED, RunDirectory, State

INDEX = "batch.json"
_OF_POINTS = ("task", "algorithm", "keys", "labels", "seeds", "points")
# What the index of each kind of batch has, beside its kind.
KINDS: Mapping[str, Sequence[str]] = {
    "comparison": ("algorithms", "targets"),
    "sweep": _OF_POINTS,
    "search": (*_OF_POINTS, "select", "rungs", "picked"),
    "study": ("study", "cells", "seeds", "tuned"),
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
      UserError: If the file is damaged.
    """
    file = pathlib.Path(path) / INDEX
    if not file.is_file():
        return None
    found = read_json(file)
    with telling_damage(file):
        missing = [key for key in ("kind", *KINDS.get(found.get("kind"), ())) if key not in found]
    if missing or found["kind"] not in KINDS:
        raise damaged(file, f"there is no {missing[0]!r}" if missing else f"its kind is {str(found['kind'])[:100]!r}")
    return found if found["kind"] == kind else None


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
    with telling_damage(pathlib.Path(path) / INDEX):
        return [str(each) for each in found["algorithms"]] if found else []


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
