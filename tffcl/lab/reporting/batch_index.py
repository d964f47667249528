"""`batch.json`, the index of several runs in one directory, and which of these runs failed."""

import dataclasses
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import NotRequired, TypedDict

import msgspec

from tffcl.csv_files import damaged
from tffcl.json_files import read_json, telling_damage, write_json
from tffcl.runs.run_directory import FAILED, RunDirectory, State

INDEX = "batch.json"


class _Point(TypedDict):
    values: list
    directory: str


class _Scored(TypedDict):
    values: list
    score: float | None


class _Rung(TypedDict):
    rounds: int
    points: list[_Scored]


class _Cell(TypedDict):
    column: str
    row: str
    task: str
    method: str
    measure: str
    accuracy: str
    target: float | None
    since: NotRequired[int]
    megabits_a_round: float | None
    published: tuple[float | None, float | None]
    missing: str
    directory: str | None
    paper_rounds: int | None
    set: dict
    changed: NotRequired[list[str]]
    tuned: NotRequired[dict]


class _Trial(TypedDict):
    values: dict
    validation: float | None
    diverged: NotRequired[bool]


class _Choice(TypedDict):
    mark: str
    points: list[_Trial]


class Comparison(TypedDict):
    """What the index of a comparison has."""

    algorithms: list[str]
    targets: list[str]


class Sweep(TypedDict):
    """What the index of a sweep has."""

    task: str
    algorithm: str
    keys: list[str]
    labels: list[str]
    seeds: list[int]
    points: list[_Point]


class Search(Sweep):
    """What the index of a search has beside that of a sweep."""

    select: str
    rungs: list[_Rung]
    picked: dict | None


class Study(TypedDict):
    """What the index of a study has."""

    study: str
    title: str
    paper: str
    table: str
    page: int
    note: str
    published_is: str
    layout: NotRequired[str]
    about: NotRequired[dict[str, str]]
    rounds: float
    seeds: list[int]
    cells: list[_Cell]
    tuned: dict[str, _Choice]


KINDS: Mapping[str, type] = {"comparison": Comparison, "sweep": Sweep, "search": Search, "study": Study}


def write_index(path: pathlib.Path, kind: str, contents: Mapping):
    """Writes what the runs in a directory are.

    Args:
      path: The directory; it is made where it is not there.
      kind: A name in `KINDS`.
      contents: What is noted of them, as `KINDS` says.
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
    if not isinstance(found.get("kind"), str) or found["kind"] not in KINDS:
        raise damaged(file, f"its kind is {repr(found.get('kind'))[:100]}")
    try:
        msgspec.convert(found, KINDS[found["kind"]])
    except msgspec.ValidationError as error:
        raise damaged(file, error) from None
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
    return found["algorithms"] if found else []


def in_order(path: pathlib.Path, methods: Sequence[str]) -> list[str]:
    """Sorts methods as the comparison was asked for, those that it does not name behind them."""
    order = read_order(path)
    return sorted(set(methods), key=lambda each: (order.index(each) if each in order else len(order), each))


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
