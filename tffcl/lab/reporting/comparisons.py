"""What a comparison says beside its runs: the order that was asked for, and which runs failed."""

import dataclasses
import pathlib
import re
from collections.abc import Sequence

from tffcl.json_files import read_json, read_toml, telling_damage
from tffcl.runs.run_directory import FAILED, RunDirectory, State

COMPARISON = "comparison.toml"


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


def read_order(path: pathlib.Path) -> list[str]:
    """Reads the methods of a comparison in the order that was asked for; none where that was not written.

    Raises:
      UserError: If the file is damaged.
    """
    file = path / COMPARISON
    if not file.is_file():
        return []
    found = read_toml(file)
    with telling_damage(file):
        return [str(each) for each in found["algorithms"]]


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
    places = [each for each in pathlib.Path(path).glob(f"*/seed-*/{FAILED}") if re.fullmatch(r"seed-\d+", each.parent.name)]
    found = (read_failure(each.parent, each.parent.parent.name) for each in places)
    return sorted((each for each in found if each), key=lambda each: (each.method, each.seed))
