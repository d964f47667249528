"""Reads and writes `batch.json`, the index of several runs in one directory; also finds the runs and their failures."""

import dataclasses
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import NotRequired, TypedDict

import msgspec

from tffcl.display import listed
from tffcl.errors import RESUME, UserError
from tffcl.files import damaged, entries, opened, read_json, telling_damage, write_json
from tffcl.runs.run_directory import CONFIG, FAILED, REPORT, SUMMARY, RunDirectory, State
from tffcl.runs.run_files import RunFiles, RunNumbers, read_run

INDEX = "batch.json"
TABLE, TARGETS, SWEEP_TABLE, STUDY_TABLE = "table.csv", "targets.csv", "sweep.csv", "table.md"


class _Point(TypedDict):
    values: list
    directory: str


class _Scored(TypedDict):
    values: list
    rounds: int
    score: float | None


class _Rung(TypedDict):
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
    """The contents of a comparison's index."""

    algorithms: list[str]
    targets: list[str]


class Sweep(TypedDict):
    """The contents of a sweep's index."""

    task: str
    algorithm: str
    keys: list[str]
    labels: list[str]
    seeds: list[int]
    points: list[_Point]


class Search(Sweep):
    """The contents of a search's index: those of a sweep's, and these."""

    select: str
    rungs: list[_Rung]
    picked: dict | None


class Study(TypedDict):
    """The contents of a study's index."""

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
# Files that are written beside the index.
BESIDE: Mapping[str, Sequence[str]] = {
    "comparison": (REPORT, TABLE, TARGETS), "sweep": (REPORT, SWEEP_TABLE), "search": (), "study": (TABLE, STUDY_TABLE),
}  # fmt: skip


def write_index(path: pathlib.Path, kind: str, contents: Mapping):
    """Writes the index of the runs in a directory.

    Args:
      path: The directory; it is made if it does not exist.
      kind: A name in `KINDS`.
      contents: The contents of the index, of the type in `KINDS`.
    """
    path.mkdir(parents=True, exist_ok=True)
    write_json(path / INDEX, {"kind": kind, **contents}, indent=None)  # a league's index has thousands of trials


def read_index(path: str | pathlib.Path, kind: str) -> dict | None:
    """Reads the index of the runs in a directory; None if there is none, or that of another kind of batch.

    Raises:
      UserError: If the file is damaged, or does not have the contents in `KINDS`.
    """
    file = pathlib.Path(path) / INDEX
    if not file.exists():
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
      method: The name of the method in tables.
      seed: The seed of the run.
      reason: Why it failed, in one line.
      diverged: Whether its loss or models became infinite or NaN; a run can also fail for other reasons, such as
        missing data.
    """

    method: str
    seed: int
    reason: str
    diverged: bool

    def __str__(self) -> str:
        return f"{self.method} seed {self.seed} failed: {self.reason}"


def read_order(path: str | pathlib.Path) -> list[str]:
    """Reads the methods of a comparison in the requested order; an empty list if there is no index.

    Raises:
      UserError: If the index is damaged.
    """
    found = read_index(path, "comparison")
    return found["algorithms"] if found else []


def in_order(path: pathlib.Path, methods: Sequence[str]) -> list[str]:
    """Sorts methods in the comparison's requested order; methods that it does not name come last."""
    order = read_order(path)
    return sorted(set(methods), key=lambda each: (order.index(each) if each in order else len(order), each))


def read_failure(path: pathlib.Path, method: str) -> Failure | None:
    """Reads why the run of `method` in a directory failed; None if it has not failed, or has finished since.

    Raises:
      UserError: If the file is damaged.
    """
    if RunDirectory(path).state is not State.DIVERGED:
        return None
    file = path / FAILED
    noted = read_json(file)
    with telling_damage(file):
        return Failure(method, int(noted["seed"]), " ".join(str(noted["reason"]).split()), "task" in noted)


def places_in(path: str | pathlib.Path) -> list[tuple[str, int, pathlib.Path]]:
    """Returns method, seed and directory of each run of a comparison (`<algorithm>/seed-<n>/`), by method and seed.

    Raises:
      UserError: If the index is damaged, or a directory cannot be read: `path`, that of a method in the index, or,
        without an index, any directory in `path`.
    """
    asked, there = read_order(path), entries(pathlib.Path(path))
    # Other directories, e.g. a disk's lost+found, are not known to have runs.
    inside = (entries(each) if each.name in asked else each.glob("seed-*") for each in there)
    named = [(each, re.fullmatch(r"seed-(\d+)", each.name)) for method in inside for each in method]
    found = sorted((each.parent.name, int(seed[1]), each) for each, seed in named if seed and each.is_dir())
    for each in there if found and not asked else ():
        if each.name != "lost+found":
            entries(each)  # it may be a method's directory
    return found


def find_failures(path: str | pathlib.Path) -> list[Failure]:
    """Reads the runs of a comparison that failed, by method and seed."""
    found = (read_failure(place, method) for method, _, place in places_in(path))
    return [each for each in found if each]


# The first bytes of the files that tffcl writes beside the runs of a comparison; no foreign file begins like this.
PAGE = rb"\s*<!DOCTYPE html>.{,300}default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_BEGINNINGS = {REPORT: PAGE + rb"; script", TABLE: rb"algorithm(,seeds,|\s*$)", TARGETS: rb"algorithm,metric,target,"}


def check_ours(path: pathlib.Path):
    """Checks, for a directory of runs without an index, that only files which tffcl has made would be overwritten.

    Raises:
      UserError: If a foreign file would be overwritten.
    """
    for name, beginning in _BEGINNINGS.items():
        check_begins(path / name, beginning)


def check_begins(path: pathlib.Path, beginning: bytes):
    """Raises UserError if a file exists that does not begin like the file by which tffcl would replace it."""
    if not path.is_file():
        return
    with opened(path) as file:
        is_ours = re.match(beginning, file.read(1000), re.DOTALL)
    if not is_ours:
        raise UserError(f"{path} was not made by tffcl, which would write over it; move it, or give another directory")


def find_runs(path: str | pathlib.Path) -> list[RunFiles]:
    """Reads a run, or all finished runs of a comparison (`<algorithm>/seed-<n>/`), in the requested order.

    Raises:
      UserError: If the directory holds no finished run, or a file of a run is missing or damaged.
    """
    path = RunDirectory(path).path
    if not path.is_dir():
        raise UserError(f"{path} is not a directory; give the output directory of a run or a comparison")
    if RunDirectory(path).is_run:
        return [read_run(path)]
    found = places_in(path)
    if not found:
        raise UserError(
            f"{path} holds no run: there is neither config.toml nor <algorithm>/seed-<n>/ in it{runs_below(path)}"
        )
    methods = in_order(path, [method for method, _, _ in found])
    found.sort(key=lambda each: methods.index(each[0]))
    unfinished = unfinished_runs(path)
    finished = [(method, each) for method, _, each in found if (each / SUMMARY).exists()]
    if not finished:
        failures = find_failures(path)
        if failures and not unfinished:
            raise UserError(f"no run in {path} is finished: {failures[0]}")
        raise UserError(
            f"no run in {path} is finished: summary.json is missing in {unfinished[0]}; {RESUME} goes on with it"
        )
    runs = [read_run(each, method=method) for method, each in finished]
    for run in runs:
        check_seed(run)
    return runs


def finished_runs(path: str | pathlib.Path) -> list[RunFiles]:
    """Does what `find_runs` does, but returns an empty list if all runs of a comparison failed."""
    some = RunDirectory(path).is_run or any(pathlib.Path(path).glob(f"*/seed-*/{SUMMARY}"))
    return find_runs(path) if some or not find_failures(path) else []


def check_seed(run: RunFiles | RunNumbers):
    """Raises UserError if a directory `seed-<n>` holds a run with another seed: a copied run would count twice."""
    seed = run.summary["seed"]
    if run.path.name != f"seed-{seed}":
        raise UserError(f"{run.path} holds a run with seed {seed}; rename it, or move it out of {run.path.parent}")


def runs_below(path: pathlib.Path) -> str:
    """Returns text for a message about runs in deeper directories; "" if there are none."""
    for depth in ("seed-*", "*/seed-*", "*/*/seed-*"):
        found = sorted(str(file.parent) for file in path.glob(f"{depth}/{CONFIG}"))
        if found:
            return f"; further down {'are' if len(found) > 1 else 'is'} {listed(found, 3)}"
    return ""


def unfinished_runs(path: str | pathlib.Path) -> list[pathlib.Path]:
    """The runs of a comparison that have been started, but have neither finished nor failed yet."""
    started = [place for _, _, place in places_in(path) if (place / CONFIG).exists()]
    return [each for each in started if not RunDirectory(each).ended]
