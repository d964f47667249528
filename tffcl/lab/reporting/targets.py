"""Rounds and bytes to a target accuracy: a table beside that of a comparison."""

import dataclasses
import math
import pathlib
from collections.abc import Sequence

import numpy as np

from tffcl.errors import UserError
from tffcl.lab.reporting.batch_index import read_index
from tffcl.lab.reporting.number_format import MISSING, Stat, show_bytes, show_number
from tffcl.lab.reporting.table import Column, Table
from tffcl.runs.metrics import BY_MEASURE, ROUND, Metric, find, of_panel
from tffcl.runs.run_files import RunFiles, RunNumbers

NONE_ASKED = (
    "No target was asked for; this is the greatest multiple of 5 % that half of the methods reach. “tffcl compare "
    "--target local=75” asks for others."
)
ACCURACIES = tuple(each.measure for each in of_panel("accuracy"))
HEADS = ("method", "target", "rounds", "bytes", "Mb a client", "rounds, never trained counted", "seeds")
LEGEND = (
    "The first evaluated round in which the mean accuracy over clients is at least the target, and the true bytes "
    "down and up to then, signatures included. “Mb a client” is how the authors of PACFL and FLIS count: the traffic "
    "of the rounds in megabits, divided by all clients. Local accuracy is of the clients that have trained; the last "
    "number of rounds counts those that never have with their untrained model, as these authors do."
)


@dataclasses.dataclass(frozen=True)
class Target:
    """An accuracy to be reached.

    Attributes:
      accuracy: One of `ACCURACIES`.
      percent: What it must be at least.
    """

    accuracy: str
    percent: float

    def __str__(self) -> str:
        return f"{self.accuracy}={self.percent:g}"


@dataclasses.dataclass(frozen=True)
class Reached:
    """What a method needed to one target.

    Attributes:
      method: Its name.
      target: The target.
      rounds: Over the seeds that reached it; so are the others.
      total_bytes: Down and up.
      megabits: As the authors count.
      rounds_of_all: For local accuracy, where those who never trained count with the untrained model.
      seeds: How many ran.
    """

    method: str
    target: Target
    rounds: Stat
    total_bytes: Stat
    megabits: Stat
    rounds_of_all: Stat
    seeds: int


def parse_target(text: str) -> Target:
    """Turns "local=75" into a target.

    Raises:
      UserError: If it is of another form, another accuracy, or not from 0 to 100; or at most 1, as a share would be.
    """
    target = _written(text)
    if target.percent <= 1:
        meant = f"{target.accuracy}={100 * target.percent:g}"
        raise UserError(f"--target {text!r} is {target.percent:g} %, and it must be above 1; did you mean {meant}?")
    return target


def _written(text: str) -> Target:
    """A target as an earlier command has written it."""
    accuracy, _, percent = (part.strip() for part in text.partition("="))
    try:
        value = float(percent)
    except ValueError:
        value = math.nan
    if accuracy not in ACCURACIES or not 0 < value <= 100:
        raise UserError(
            f"--target {text!r} is not ACCURACY=PERCENT, e.g. local=75; accuracies are cluster, local and global"
        )
    return Target(accuracy, value)


def read_targets(path: str | pathlib.Path) -> list[Target]:
    """Reads the targets that a comparison was asked for.

    Raises:
      UserError: If the file is damaged.
    """
    found = read_index(path, "comparison")
    return [_written(each) for each in found["targets"]] if found else []


def reached(runs: Sequence[RunFiles], targets: Sequence[Target]) -> list[Reached]:
    """Returns a row for each target and method, in the order of the runs."""
    methods: dict[str, list[RunFiles]] = {}
    for run in runs:
        methods.setdefault(run.method, []).append(run)
    rows = []
    for target in targets:
        for method, own in methods.items():
            found = np.array([_needed(run, target) for run in own], float)
            stats = [Stat.of(column.tolist()) for column in found.T]
            rows.append(Reached(method, target, *stats, seeds=len(own)))
    return rows


def suggested(runs: Sequence[RunFiles]) -> list[Target]:
    """Returns a target where the user has asked for none: the greatest multiple of 5 % that half of the methods reach
    in cluster accuracy."""
    best: dict[str, float] = {}
    for run in runs:
        values = 100 * run.rounds["cluster_accuracy"]
        if np.any(~np.isnan(values)):
            best[run.method] = max(best.get(run.method, 0.0), float(np.nanmax(values)))
    percent = 5 * math.floor(float(np.median(list(best.values()))) / 5) if best else 0
    return [Target("cluster", percent)] if percent else []


def _needed(run: RunFiles, target: Target) -> tuple[float, float, float, float]:
    """Rounds, bytes, megabits a client, rounds with those who never trained; NaN where the target is not reached."""
    number, in_rounds, beside = needed(run, BY_MEASURE[target.accuracy], target.percent)
    everyone = needed(run, find("local_accuracy_all"), target.percent)[0] if target.accuracy == "local" else math.nan
    return number, in_rounds + beside, 8e-6 * in_rounds / len(run.clients), everyone


def needed(run: RunFiles | RunNumbers, metric: Metric, target: float) -> tuple[float, float, float]:
    """Returns the first evaluated round that reaches a target, the bytes of the rounds up to it, and those beside.

    All are NaN where no round reaches it.
    """
    row = metric.first_reached(run.rounds, target)
    if row is None:
        return math.nan, math.nan, math.nan
    exchanged = run.rounds["down_bytes"] + run.rounds["up_bytes"]
    # What is exchanged before and between the rounds stands in the summary alone.
    beside = run.number("traffic", "down_bytes") + run.number("traffic", "up_bytes") - exchanged.sum()
    return float(run.rounds[ROUND][row]), exchanged[: row + 1].sum(), beside


def cells(row: Reached) -> list[str]:
    """A line under `HEADS`."""
    missed = row.seeds - row.rounds.count
    rounds = show_number(row.rounds, 0 if row.rounds.count == 1 else 1) if row.rounds.count else "not reached"
    seeds = f"{row.rounds.count} of {row.seeds}" if missed else str(row.seeds)
    every = show_number(row.rounds_of_all, 0 if row.rounds_of_all.count == 1 else 1)
    if row.target.accuracy == "local" and not row.rounds_of_all.count:
        every = "not reached"
    target = f"{row.target.accuracy} {row.target.percent:g} %"
    megabits = show_number(row.megabits, 2) if row.megabits.count else MISSING
    return [row.method, target, rounds, show_bytes(row.total_bytes), megabits, every, seeds]


def to_table(rows: Sequence[Reached]) -> Table:
    """Makes the table for people."""
    return Table.of(HEADS, list(map(cells, rows)))


def to_csv(rows: Sequence[Reached]) -> str:
    """Returns the table for programs; a cell is empty where the target is not reached."""
    heads = [Column(name) for name in ("algorithm", "accuracy", "target_percent", "seeds", "seeds_reached")]
    heads += [Column(name, digits=2) for name in ("rounds", "bytes", "megabits_a_client", "rounds_of_all")]
    lines = [
        [each.method, each.target.accuracy, each.target.percent, each.seeds, each.rounds.count, each.rounds,
         each.total_bytes, each.megabits, each.rounds_of_all]
        for each in rows
    ]  # fmt: skip
    return Table(heads, lines).to_csv()
