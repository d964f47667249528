"""Reads the files of sweeps and searches, which run one method with several values of settings; makes their tables."""

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence

from tffcl import files
from tffcl.errors import RESUME, UserError
from tffcl.files import inside, telling_damage
from tffcl.lab.reporting import comparison_table
from tffcl.lab.reporting.batch_index import INDEX, check_seed, read_failure, read_index
from tffcl.lab.reporting.comparison_table import LEGEND, Row
from tffcl.lab.reporting.number_format import Stat, show_number, show_value
from tffcl.lab.reporting.table import Column, Table
from tffcl.runs import run_files
from tffcl.runs.metrics import BY_KEY, Metric, on_test, on_validation
from tffcl.runs.run_directory import RunDirectory, State
from tffcl.runs.run_files import RunFiles

_ERRORS = "clustering error"
_OF_SUMMARY = ("cluster_accuracy", "local_accuracy", "global_accuracy", "clusters", "ari")
SWEEP_COLUMNS = (
    *(Column.of(BY_KEY[key]) for key in _OF_SUMMARY),
    Column.of(BY_KEY["clustering_error"], _ERRORS, "mean"),
    Column.of(BY_KEY["clustering_error_over_rounds"], _ERRORS, "deviation"),
)
_GROUPS = ("accuracy %", "clusters", _ERRORS)
_SEEN = {"cluster", "local", "global", "AUC, F1, ...", "clusters, ARI", "±"}
_ERROR_LEGEND = (
    "clustering error",
    "Clients wrongly joined with a client or parted from it (false positives and false negatives), on "
    "average over those of a round: the mean over the rounds, and the sample standard deviation over the rounds.",
)


@dataclasses.dataclass(frozen=True, eq=False)
class Point:
    """One value of each setting.

    Attributes:
      values: One value for each setting.
      runs: One run for each seed that has finished; `RunFiles.method` is the values as text.
      row: The row of these runs in the table; its name is the values as text.
    """

    values: tuple
    runs: Sequence[RunFiles]
    row: Row


@dataclasses.dataclass(frozen=True, eq=False)
class Sweep:
    """A sweep, read from its files.

    Attributes:
      path: The directory of the sweep.
      task: The name of the task.
      algorithm: The name of the method.
      keys: The one or two settings, with their sections.
      labels: The names of the settings in tables and figures.
      points: One point for each combination of values.
    """

    path: pathlib.Path
    task: str
    algorithm: str
    keys: tuple[str, ...]
    labels: tuple[str, ...]
    points: Sequence[Point]

    @property
    def rows(self) -> list[Row]:
        """One row for each point."""
        return [point.row for point in self.points]

    @property
    def runs(self) -> list[RunFiles]:
        return [run for point in self.points for run in point.runs]

    @property
    def title(self) -> str:
        """The names of all settings: "threshold, local epochs"."""
        return ", ".join(self.labels)


def is_sweep(path: str | pathlib.Path) -> bool:
    """Returns whether a directory is that of a sweep."""
    return read_index(path, "sweep") is not None


def read_sweep(path: str | pathlib.Path) -> Sweep:
    """Reads a sweep and its finished runs.

    Raises:
      UserError: If no run has finished or failed, or a file is missing or damaged; the message names the file.
    """
    path = pathlib.Path(path)
    file = path / INDEX
    noted = read_index(path, "sweep")
    keys, labels = tuple(noted["keys"]), tuple(noted["labels"])
    with telling_damage(file):
        points = [_read_point(path, each, noted["seeds"], len(keys)) for each in noted["points"]]
    if len(keys) not in (1, 2) or len(labels) != len(keys) or not points:
        raise files.damaged(file, "it must have one or two keys, a label for each, and points")
    if not any(point.runs or point.row.failures for point in points):
        raise UserError(f"no run in {path} is finished; {RESUME} goes on with the sweep")
    return Sweep(path, noted["task"], noted["algorithm"], keys, labels, points)


def _read_point(path: pathlib.Path, noted: dict, seeds: Sequence[int], settings: int) -> Point:
    values = tuple(noted["values"])
    if len(values) != settings:
        raise files.damaged(path / INDEX, f"a point has {len(values)} values for {settings} keys")
    name = show_value(values)
    # Proximity matrices of many runs could need too much memory, and nothing here uses them.
    places = [path / inside(noted["directory"]) / f"seed-{seed}" for seed in seeds]
    runs = [
        dataclasses.replace(run_files.read_run(place, name), clustering=None)
        for place in places
        if RunDirectory(place).state is State.FINISHED
    ]
    for run in runs:
        check_seed(run)
    failures = [each for each in (read_failure(place, name) for place in places) if each]
    return Point(values, runs, Row.of(name, runs, SWEEP_COLUMNS, failures))


def measured_groups(sweep: Sweep) -> list[str]:
    """Returns the groups of `SWEEP_COLUMNS`, without that of the clustering error if no run has one."""
    known = any(point.row.stats["clustering_error"].count for point in sweep.points)
    return [group for group in _GROUPS if known or group != _ERRORS]


def legend(sweep: Sweep) -> list[tuple[str, str]]:
    """Returns the meaning of the table's columns."""
    shown = [entry for entry in LEGEND if entry[0] in _SEEN]
    return [*shown[:-1], _ERROR_LEGEND, shown[-1]] if _ERRORS in measured_groups(sweep) else shown


def to_table(sweep: Sweep) -> Table:
    """Makes the table, with a row for each point."""
    groups = measured_groups(sweep)
    return comparison_table.to_table(sweep.rows, groups, columns=SWEEP_COLUMNS, first=sweep.title)


def plain_table(sweep: Sweep) -> Table:
    """Makes the table for programs: a column for each setting, then means and `<column>_std` over seeds."""
    names = [point.values for point in sweep.points]
    return comparison_table.plain_table(sweep.rows, columns=SWEEP_COLUMNS, first=sweep.keys, names=names)


def read_search(path: str | pathlib.Path) -> dict | None:
    """Reads the results of a search so far; None if a directory is not that of a search.

    Raises:
      UserError: If the index is damaged.
    """
    found = read_index(path, "search")
    with telling_damage(pathlib.Path(path) / INDEX):  # checks all of it here, because callers rely on it
        if found is not None:
            search_text(found)
    return found


def compared_points(found: Mapping) -> list[tuple[list, int, float]]:
    """Returns for each point of a search, the best first: its values, the rounds after which it was last compared, and
    its metric on validation examples then, in the metric's unit; NaN if it diverged."""
    metric, last = on_validation(found["select"]), {}
    for rung in reversed(found["rungs"]):
        for point in rung["points"]:
            score = math.nan if point["score"] is None else metric.scale * point["score"]
            last.setdefault(show_value(point["values"]), (point["values"], point["rounds"], score))
    return list(last.values())


def picked_tests(found: Mapping) -> dict[str, tuple[Metric, list[float]]]:
    """Returns the test results of a search's picked point. Maps the names of the accuracies, and of the metric by which
    it was picked, to the metric and its values for the fresh seeds, in its unit; NaN for missing values."""
    by_name = {}
    for name, values in found["picked"]["test"].items():
        metric = on_test(on_validation(name)) if name == found["select"] else BY_KEY[f"{name}_accuracy"]
        by_name[name] = metric, [math.nan if value is None else metric.scale * value for value in values]
    return by_name


def search_text(found: Mapping) -> str:
    """Returns a text with the points, the best first, each with its rounds, and with the picked point below them."""
    title = ", ".join(found["labels"])
    metric = on_validation(found["select"])
    heads = [title, "compared after", f"validation {found['select']}{f' {metric.unit}' if metric.unit else ''}"]
    lines = [
        [show_value(values), str(rounds), show_number(Stat.of([score]), metric.digits)]
        for values, rounds, score in compared_points(found)
    ]
    text = [Table.of(heads, lines).to_text()]
    picked = found["picked"]
    if picked is None:
        return "\n".join([*text, "", f"not finished; {RESUME} goes on"])
    seeds = ", ".join(map(str, picked["seeds"]))
    text += ["", f"picked: {title} {show_value(picked['values'])}, on test data over the fresh seeds {seeds}:"]
    for kind, (own, values) in picked_tests(found).items():
        stat = Stat.of(values)
        if stat.count:
            failed = f" ({len(values) - stat.count} diverged)" if kind == "cluster" and stat.count < len(values) else ""
            unit = f" {own.unit}" if own.unit else ""
            text.append(f"  {kind} {show_number(stat, own.digits)}{unit}{failed}")
    return "\n".join(text)
