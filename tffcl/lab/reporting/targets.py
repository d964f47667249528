"""The rounds and bytes that methods need to reach a target, e.g. an accuracy: a further table of a comparison."""

import dataclasses
import math
import pathlib
from collections.abc import Sequence

import numpy as np

from tffcl.errors import UserError, argument, unknown
from tffcl.lab.reporting.batch_index import read_index
from tffcl.lab.reporting.number_format import MISSING, Stat, show_bytes, show_count, show_number, show_reached
from tffcl.lab.reporting.table import Cell, Column, Table
from tffcl.runs.metrics import ACCURACIES, BY_MEASURE, OF_ROUNDS, ROUND, UP, Metric, find, of_column
from tffcl.runs.run_files import RunFiles, RunNumbers, by_method

NONE_GIVEN = (
    "No target was asked for; this is the greatest multiple of 5 % that half of the methods reach. “tffcl compare "
    "--target local=75” asks for others."
)
_COSTS = ("bytes", "seconds", "epsilon")  # costs grow from the first round on, and are no targets
HEADS = ("method", "target", "rounds", "bytes", "Mb a client", "rounds, never trained counted", "seeds")
LEGEND = (
    "The first evaluated round in which the mean over clients is at least the target (at most, where less is better), "
    "and the true bytes down and up to then, signatures included. “Mb a client” is how the authors of PACFL and FLIS "
    "count: the traffic of the rounds in megabits, divided by all clients. Local accuracy is of the clients that have "
    "trained; the last number of rounds counts those that never have with their untrained model, as these authors do."
)


@dataclasses.dataclass(frozen=True)
class Target:
    """A value that a metric is to reach.

    Attributes:
      name: "cluster", "local" or "global" for an accuracy; otherwise a column of rounds.csv, e.g. "cluster_auc".
      value: The least value, or the greatest if less is better, in the metric's unit: percent for accuracies.
    """

    name: str
    value: float

    @property
    def metric(self) -> Metric:
        """The metric of the target; UserError if it has no better and worse values."""
        found = BY_MEASURE[self.name] if self.name in ACCURACIES else of_column(self.name)
        if found is None or not found.better or found.digits in _COSTS:
            names = [*ACCURACIES, *(name for name, each in OF_ROUNDS.items() if each.better), "cluster_auc"]
            raise unknown(f"metric of {argument('target')}", self.name, names)
        return found

    def __str__(self) -> str:
        return f"{self.name}={self.value:g}"


@dataclasses.dataclass(frozen=True)
class Reached:
    """What a method needed to reach one target.

    Attributes:
      method: The name of the method.
      target: The target.
      rounds: The rounds; this and the other numbers are over the seeds that reached the target.
      total_bytes: The bytes, down and up.
      megabits: The megabits per client, as the papers' authors count them.
      rounds_of_all: For local accuracy, the rounds if clients that never trained count with the untrained model.
      seeds: How many seeds ran.
      measured: Whether any seed has a value of the metric.
    """

    method: str
    target: Target
    rounds: Stat
    total_bytes: Stat
    megabits: Stat
    rounds_of_all: Stat
    seeds: int
    measured: bool = True


def parse_target(text: str) -> Target:
    """Turns "local=75" or "cluster_auc=0.9" into a target.

    Raises:
      UserError: If `text` has another form, a metric without better and worse values, or a value that the metric cannot
        have; or if a percentage is at most 1, as if it were a share.
    """
    target = _written(text)
    if target.metric.unit == "%" and target.metric.better == UP and target.value <= 1:
        meant = f"{target.name}={100 * target.value:g}"
        low = f"is {target.value:g} %, and it must be above 1"
        raise UserError(f"{argument('target')} {text!r} {low}; did you mean {meant}?")
    return target


def _written(text: str) -> Target:
    """Parses a target as in the index of a comparison, where small percentages are allowed."""
    name, _, given = (part.strip() for part in text.partition("="))
    try:
        target = Target(name, float(given))
    except ValueError:
        target = Target(name, math.nan)
    if not math.isfinite(target.value):
        raise UserError(f"{argument('target')} {text!r} is not METRIC=VALUE, e.g. local=75 or cluster_auc=0.9")
    metric = target.metric
    low, high = (end if end is not None else math.copysign(math.inf, side) for end, side in zip(metric.limits, (-1, 1)))
    if not low <= target.value <= high or metric.unit == "%" and not target.value:
        ends = f"from {low:g} to {high:g}{metric.unit and f' {metric.unit}'}"
        raise UserError(f"{argument('target')} {text!r}: {name} is {ends}")
    return target


def read_targets(path: str | pathlib.Path) -> list[Target]:
    """Reads the targets of a comparison.

    Raises:
      UserError: If the file is damaged.
    """
    found = read_index(path, "comparison")
    return [_written(each) for each in found["targets"]] if found else []


def reached(runs: Sequence[RunFiles], targets: Sequence[Target]) -> list[Reached]:
    """Returns a row for each target and method, in the order of the runs."""
    methods = by_method(runs)
    rows = []
    for target in targets:
        for method, own in methods.items():
            found = np.array([_needed(run, target) for run in own], float)
            stats = [Stat.of(column.tolist()) for column in found.T]
            measured = any(np.isfinite(run.rounds.get(target.metric.column, np.nan)).any() for run in own)
            rows.append(Reached(method, target, *stats, seeds=len(own), measured=measured))
    return rows


def suggested(runs: Sequence[RunFiles]) -> list[Target]:
    """Returns a target for users who gave none: the greatest multiple of 5 % in cluster accuracy that half of the
    methods reach."""
    best: dict[str, float] = {}
    for run in runs:
        values = 100 * run.rounds["cluster_accuracy"]
        if np.any(~np.isnan(values)):
            best[run.method] = max(best.get(run.method, 0.0), float(np.nanmax(values)))
    half = float(np.quantile(list(best.values()), 0.5, method="higher")) if best else 0.0
    percent = 5 * math.floor((half + 1e-9) / 5)
    return [Target("cluster", percent)] if percent else []


def _needed(run: RunFiles, target: Target) -> tuple[float, float, float, float]:
    """Rounds, bytes, megabits per client, rounds if clients that never trained count; NaN if the target is not met."""
    number, in_rounds, beside = needed(run, target.metric, target.value)
    everyone = needed(run, find("local_accuracy_all"), target.value)[0] if target.name == "local" else math.nan
    return number, in_rounds + beside, 8e-6 * in_rounds / len(run.clients), everyone


def needed(run: RunFiles | RunNumbers, metric: Metric, target: float) -> tuple[float, float, float]:
    """Returns the first evaluated round that reaches a target, the bytes of the rounds up to it, and the bytes sent
    before the rounds. All are NaN if no round reaches the target.
    """
    row = metric.first_reached(run.rounds, target)
    if row is None:
        return math.nan, math.nan, math.nan
    exchanged, beside = run.exchanged()
    return float(run.rounds[ROUND][row]), exchanged[: row + 1].sum(), beside


def cells(row: Reached) -> list[str]:
    """A line of the table under `HEADS`."""
    count, of_all = row.rounds.count, row.rounds_of_all.count
    rounds = show_count(row.rounds) if count else "not reached" if row.measured else "not measured"
    seeds = f"{count} of {row.seeds}" if count < row.seeds else str(row.seeds)
    missed = row.seeds - of_all if row.target.name == "local" and row.measured else 0
    every = show_reached(show_count(row.rounds_of_all), of_all, missed)
    unit = row.target.metric.unit
    target = f"{row.target.name} {row.target.value:g}{unit and f' {unit}'}"
    megabits = show_number(row.megabits, 2) if row.megabits.count else MISSING
    return [row.method, target, rounds, show_bytes(row.total_bytes), megabits, every, seeds]


def to_table(rows: Sequence[Reached]) -> Table:
    """Makes the table for people."""
    lines = []
    for row in rows:
        numbers = [row.rounds, row.total_bytes, row.megabits, row.rounds_of_all]
        method, target, *texts, seeds = cells(row)
        sorted_by = [Cell(text, stat.mean if stat.count else None) for text, stat in zip(texts, numbers, strict=True)]
        lines.append([method, target, *sorted_by, seeds])
    return Table.of(HEADS, lines)


def to_csv(rows: Sequence[Reached]) -> str:
    """Returns the table for programs; a cell is empty if the target is not reached."""
    heads = [Column(name) for name in ("algorithm", "metric", "target", "seeds", "seeds_reached")]
    heads += [Column(name, digits=2) for name in ("rounds", "bytes", "megabits_a_client", "rounds_of_all")]
    lines = [
        [each.method, each.target.name, each.target.value, each.seeds, each.rounds.count, each.rounds,
         each.total_bytes, each.megabits, each.rounds_of_all]
        for each in rows
    ]  # fmt: skip
    return Table(heads, lines).to_csv()
