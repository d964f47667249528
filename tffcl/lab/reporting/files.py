"""Finds the runs of a comparison, and reads them."""

import pathlib
import re

from tffcl.errors import RESUME, UserError
from tffcl.lab.reporting import batch_index
from tffcl.regular_files import opened
from tffcl.runs.run_directory import CONFIG, REPORT, SUMMARY, RunDirectory
from tffcl.runs.run_files import RunFiles, read_run

_MOST_NAMED = 3  # runs in a message
# How what tffcl writes beside the runs of a comparison begins: nobody else's file does.
_BEGINNINGS = {
    REPORT: rb"\s*<!DOCTYPE html>.{,300}default-src 'none'; img-src data:; style-src 'unsafe-inline'; script",
    "table.csv": rb"algorithm(,seeds,|\s*$)",
    "targets.csv": rb"algorithm,(metric,target|accuracy,target_percent),",
}


def check_ours(path: pathlib.Path):
    """Checks that no file would be written over in a directory of runs without an index but what tffcl has made.

    Raises:
      UserError: If there is another one.
    """
    for name, beginning in _BEGINNINGS.items():
        if not (path / name).is_file():
            continue
        with opened(path / name) as file:
            is_ours = re.match(beginning, file.read(1000), re.DOTALL)
        if not is_ours:
            raise UserError(
                f"{path / name} was not made by tffcl, which would write over it; move it, or give another directory"
            )


def find_runs(path: str | pathlib.Path) -> list[RunFiles]:
    """Reads a run, or all finished runs of a comparison (`<algorithm>/seed-<n>/`), in the order that was asked for.

    Raises:
      UserError: If the directory holds no finished run, or a file of a run is missing or damaged.
    """
    path = RunDirectory(path).path
    if not path.is_dir():
        raise UserError(f"{path} is not a directory; give the output directory of a run or a comparison")
    if RunDirectory(path).is_run:
        return [read_run(path)]
    seeds = [(each, re.fullmatch(r"seed-(\d+)", each.name)) for each in path.glob("*/seed-*") if each.is_dir()]
    found = [(each.parent.name, int(match[1]), each) for each, match in seeds if match]
    if not found:
        raise UserError(
            f"{path} holds no run: there is neither config.toml nor <algorithm>/seed-<n>/ in it{runs_below(path)}"
        )
    methods = batch_index.in_order(path, [method for method, _, _ in found])
    found.sort(key=lambda each: (methods.index(each[0]), *each[1:]))
    unfinished = unfinished_runs(path)
    finished = [(method, each) for method, _, each in found if (each / SUMMARY).is_file()]
    if not finished:
        failures = batch_index.find_failures(path)
        if failures and not unfinished:
            raise UserError(f"no run in {path} is finished: {failures[0]}")
        raise UserError(
            f"no run in {path} is finished: summary.json is missing in {unfinished[0]}; {RESUME} goes on with it"
        )
    return [read_run(each, method=method) for method, each in finished]


def runs_below(path: pathlib.Path) -> str:
    """Returns for a message which runs lie further down, "" if none does."""
    for depth in ("seed-*", "*/seed-*", "*/*/seed-*"):
        found = sorted(str(file.parent) for file in path.glob(f"{depth}/{CONFIG}"))
        if found:
            more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
            return f"; further down {'are' if len(found) > 1 else 'is'} {', '.join(found[:_MOST_NAMED])}{more}"
    return ""


def unfinished_runs(path: str | pathlib.Path) -> list[pathlib.Path]:
    """The runs of a comparison that have been started, but have neither a summary nor failed yet."""
    started = sorted(each.parent for each in pathlib.Path(path).glob(f"*/seed-*/{CONFIG}"))
    return [each for each in started if not RunDirectory(each).ended]
