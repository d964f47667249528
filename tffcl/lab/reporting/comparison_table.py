"""The table of a comparison, with a row for each method, and what readers should know about its numbers."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

from tffcl.lab.reporting import batch_index
from tffcl.lab.reporting.batch_index import Failure
from tffcl.lab.reporting.number_format import Stat, show_of_seeds, show_value
from tffcl.lab.reporting.table import Cell, Column, Table
from tffcl.runs.metrics import METRICS, rows_of
from tffcl.runs.run_directory import RunDirectory
from tffcl.runs.run_files import RunFiles, by_method

LEGEND = (
    (
        "cluster",
        "The model that the method assigns to a client, before any local training, on the client's own test "
        "set; the mean over clients.",
    ),
    (
        "local",
        "A client's own model after its last local training, on its own test set; the mean over the clients "
        "that have trained. “trained” is their share of all clients, in percent.",
    ),
    (
        "global",
        "One model on the union of all test data: where all clients share it, or where a method has a global one "
        "beside the others; else a dash.",
    ),
    (
        "AUC, F1, ...",
        "Further metrics, of the same models on the same examples, each computed on a client's whole test set; the "
        "mean over the clients for whom it is defined, a dash where it is for none.",
    ),
    (
        "variance, worst 10 %",
        "Over clients: how unequally well they are served (in percent squared), and how well the "
        "worst served tenth is.",
    ),
    (
        "clusters, ARI",
        "How many clusters were found, and their agreement with the true groups where these are known "
        "(adjusted Rand index: 1 is perfect, about 0 is chance).",
    ),
    (
        "NMI",
        "Normalised mutual information of the clusters and the true groups: 1 is perfect; many small clusters have "
        "some by chance.",
    ),
    (
        "WAS",
        "Wasserstein-adjusted score: how much more alike the members of a cluster are than clients of different ones "
        "in how evenly their labels are spread, whichever labels these are; from -1 to 1, a silhouette.",
    ),
    (
        "those that took part",
        "The cluster accuracy over the clients that trained in at least one round, which is what the papers test, "
        "and by how much it is above that of the others: a client that never took part has the model that the method "
        "gives to unknown clients.",
    ),
    (
        "never trained counted",
        "Local accuracy over all clients, those that never trained with the untrained model, as the "
        "authors of PACFL and FLIS count.",
    ),
    (
        "down, up, signatures",
        "Bytes from the server to all clients, from all clients to the server, and what the "
        "signatures took of them, over the whole run.",
    ),
    (
        "±",
        "Mean and sample standard deviation (ddof = 1) over the seeds; absent with one seed; “(2 of 3)” where one "
        "seed of three has no such number. table.csv has the standard error of the mean beside it.",
    ),
)
CAUTION = (
    "“cluster”, “local” and “global” answer three questions. Compare methods within a column, never the local "
    "value of one with the global value of another."
)


@dataclasses.dataclass(frozen=True)
class Row:
    """One method.

    Attributes:
      algorithm: The name of the method.
      seeds: The seeds with finished runs.
      stats: Maps the name of each column to the statistics over these seeds.
      failures: The seeds that failed, and why.
      further: The columns of the runs' metrics beside accuracies.
    """

    algorithm: str
    seeds: tuple[int, ...]
    stats: Mapping[str, Stat]
    failures: tuple[Failure, ...] = ()
    further: tuple[Column, ...] = ()

    @classmethod
    def of(cls, name: str, runs: Sequence[RunFiles], columns: Sequence[Column], failures: Sequence[Failure] = ()):
        """Makes a row from the runs of a method."""
        further = further_columns(runs)
        stats = {each.name: Stat.of(map(each.metric.of_run, runs)) for each in (*columns, *further)}
        return cls(name, tuple(run.seed for run in runs), stats, tuple(failures), further)

    def stat(self, column: Column) -> Stat:
        """Returns the statistics of a column; empty statistics if the runs do not have it."""
        return self.stats.get(column.name, Stat.of(()))

    def cell(self, column: Column) -> Cell:
        """Returns the cell of a column."""
        stat = self.stat(column)
        shown = column.cell(stat)
        return dataclasses.replace(shown, text=show_of_seeds(shown.text, stat.count, len(self.seeds)))

    @property
    def shown_seeds(self) -> str:
        """The number of seeds; "2 of 3" if some failed."""
        known = len(self.seeds)
        return f"{known} of {known + len(self.failures)}" if self.failures else str(known)


def further_columns(runs: Sequence[RunFiles]) -> tuple[Column, ...]:
    """Returns the columns of the runs' metrics beside accuracies."""
    found = [run.summary.get("metrics") for run in runs]
    names = dict.fromkeys(name for each in found if isinstance(each, Mapping) for name in each)
    return tuple(Column.of(each) for name in names if name != "accuracy" for each in rows_of(name) if each.group)


def _with_further(columns: Sequence[Column], rows: Sequence[Row]) -> list[Column]:
    """The columns, with those of all rows' further metrics after the accuracies."""
    further = list(dict.fromkeys(column for row in rows for column in row.further))
    end = 1 + max((place for place, each in enumerate(columns) if each.group == _ACCURACIES), default=-1)
    return [*columns[:end], *further, *columns[end:]] if end else list(columns)


_ACCURACIES = "accuracy %"
COLUMNS = tuple(Column.of(each) for each in METRICS if each.group)
_FIRST_GROUPS = (_ACCURACIES, "variance", "worst 10 %", "clusters", "clients %")
# On the page, the most important columns come first, and fit a screen; the others are in further tables.
RESULT_GROUPS = (_ACCURACIES, "clusters", "agreement", "worst 10 %")
FURTHER_GROUPS = ("variance", "clients %", "those that took part", "never trained counted")
TRAFFIC_GROUPS = ("traffic",)
TIME_GROUPS = ("seconds", "of which")
# The parts of the time are only in the report, because they would make the table in a terminal longer.
TEXT_GROUPS = (*_FIRST_GROUPS, *TRAFFIC_GROUPS, "seconds")


def comparison_rows(
    runs: Sequence[RunFiles], failures: Sequence[Failure] = (), columns: Sequence[Column] = COLUMNS
) -> list[Row]:
    """Returns one row for each method, in the order of their first runs; methods without finished runs come last.

    Accuracies are in percent. Deviations are sample standard deviations (ddof=1) over seeds.
    """
    methods, failed = by_method(runs), {}
    for each in failures:
        failed.setdefault(each.method, []).append(each)
    names = dict.fromkeys([*methods, *failed])
    return [Row.of(name, methods.get(name, []), columns, tuple(failed.get(name, ()))) for name in names]


def directory_rows(path: str | pathlib.Path, runs: Sequence[RunFiles]) -> list[Row]:
    """Returns the rows of the run or the comparison in a directory, in the requested order. `runs` are the finished
    runs; failed runs are added."""
    failures = [] if RunDirectory(path).is_run else batch_index.find_failures(path)
    rows = comparison_rows(runs, failures)
    order = batch_index.in_order(pathlib.Path(path), [row.algorithm for row in rows]) if failures else []
    return sorted(rows, key=lambda row: order.index(row.algorithm)) if order else rows


def to_table(
    rows: Sequence[Row],
    groups: Sequence[str] = TEXT_GROUPS,
    *,
    columns: Sequence[Column] = COLUMNS,
    first: str = "method",
) -> Table:
    """Makes the table for people.

    Args:
      rows: The rows, from `comparison_rows`.
      groups: The groups of columns.
      columns: The columns from which the groups are taken.
      first: The title of the first column, which has the names of the rows.
    """
    chosen = [each for group in groups for each in columns if each.group == group]
    chosen = _with_further(chosen, rows)
    cells = [
        [row.algorithm, Cell(row.shown_seeds, len(row.seeds)), *(row.cell(each) for each in chosen)] for row in rows
    ]
    failures = [str(each) for row in rows for each in row.failures]
    return Table([Column(first), Column("seeds"), *chosen], cells, failures)


def plain_table(
    rows: Sequence[Row],
    *,
    columns: Sequence[Column] = COLUMNS,
    first: Sequence[str] = ("algorithm",),
    names: Sequence[Sequence[object]] | None = None,
) -> Table:
    """Makes the table for programs, with standard deviations and errors. The last column, `failed`, names the seeds
    that failed, and the reasons.

    Args:
      rows: The rows, from `comparison_rows`.
      columns: The columns.
      first: The titles of the first columns, which identify a row.
      names: The cells of each row in these columns; default the row's algorithm.
    """
    lines, columns = [], _with_further(columns, rows)
    for row, own in zip(rows, names or [(row.algorithm,) for row in rows], strict=True):
        failed = "; ".join(f"seed {each.seed}: {each.reason}" for each in row.failures)
        lines.append([*own, len(row.seeds), *(row.stat(each) for each in columns), failed])
    return Table(
        [*map(Column, first), Column("seeds"), *columns, Column("failed")], lines, spread=("std", "stderr", "count")
    )


def page_table(rows: Sequence[Row], groups: Sequence[str], **others) -> Table:
    """Makes the table for the page: `to_table` without empty columns."""
    return to_table(rows, groups, **others).without_empty()


def notes_of(runs: Sequence[RunFiles]) -> list[str]:
    """The notes of the runs, each with its methods and seeds if not all runs have it; and the cost of all private runs
    together."""
    notes: dict[str, list[RunFiles]] = {}
    for run in runs:
        for note in run.summary.get("notes", []):
            notes.setdefault(note, []).append(run)
    own_notes = [note if len(own) == len(runs) else f"{_whose(own, runs)}: {note}" for note, own in notes.items()]
    return own_notes + _notes_of_versions(runs) + cost_together(runs)


def _notes_of_versions(runs: Sequence[RunFiles]) -> list[str]:
    """Notes for methods whose runs were made with different software, or different versions of the user's own code."""
    notes = []
    for method, own in by_method(runs).items():
        differing = [name for name, values in versions_of(own) if " / " in values]
        if differing:
            notes.append(f"{method} ran with different versions of {', '.join(differing)}")
    return notes


def _whose(noting: Sequence[RunFiles], runs: Sequence[RunFiles]) -> str:
    """The methods that have a note, with their seeds if not all runs of the method have it."""
    found, every = [], by_method(runs)
    for method, own in by_method(noting).items():
        seeds = "" if len(own) == len(every[method]) else f", seed {', '.join(str(run.seed) for run in own)}"
        found.append(f"{method}{seeds}")
    return "; ".join(found) if any("," in each for each in found) else ", ".join(found)


def cost_together(runs: Sequence[RunFiles]) -> list[str]:
    """The cost of several private runs to a client of all of them, by basic composition; nothing for fewer than two."""
    private = [spent for run in runs if isinstance(spent := run.summary.get("privacy"), Mapping)]
    if len(private) < 2:
        return []
    note = f"each run's epsilon is its own: a client of all {len(private)} private runs is told of by each of them"
    costs = [[each.get(name) for name in ("epsilon", "delta")] for each in private]
    if not all(isinstance(number, float | int) for cost in costs for number in cost):  # a run is not private
        return [note]
    if len({str(each.get("neighbours")) for each in private}) > 1:
        return [note]
    epsilon, delta = map(sum, zip(*costs))
    together = f"which cost together epsilon {epsilon:.4g} at delta {delta:.3g} at most"
    return [f"{note}, {together}, each with noise of its own; runs of one seed, as here, may share theirs"]


# These are shown at the head of a report.
_SHOWN_ELSEWHERE = {"task", "algorithm", "seed", "description", "source"}
_VERSIONS = "versions"


def flatten(config: Mapping, prefix: str = "") -> dict[str, str]:
    """Flattens nested tables to entries like "train.epochs": "5"."""
    flat = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = show_value(value)
    return flat


def shared_settings(runs: Sequence[RunFiles]) -> list[tuple[str, str]]:
    """Returns the settings that are equal in all runs."""
    flats = [_settings(run) for run in runs]
    return [(name, value) for name, value in flats[0].items() if all(flat.get(name) == value for flat in flats)]


def differing_settings(runs: Sequence[RunFiles]) -> tuple[list[str], list[list[str]]]:
    """Returns the settings in which runs differ: the methods, and rows of a name and its value for each method.

    If the seeds of a method differ, all their values are given.
    """
    flats = [(run.method, _settings(run)) for run in runs]
    methods = list(dict.fromkeys(method for method, _ in flats))
    alike = {name for name, _ in shared_settings(runs)}
    names = dict.fromkeys(name for _, flat in flats for name in flat if name not in alike)
    rows = []
    for name in names:
        values = {
            method: dict.fromkeys(flat.get(name, "") for own, flat in flats if own == method) for method in methods
        }
        rows.append([name, *(" / ".join(value for value in values[method] if value) for method in methods)])
    return methods, rows


def versions_of(runs: Sequence[RunFiles]) -> list[tuple[str, str]]:
    """Returns the software versions that the runs have noted."""
    noted: dict[str, dict[str, None]] = {}
    for run in runs:
        table = run.config.get(_VERSIONS)
        for name, value in flatten(table).items() if isinstance(table, Mapping) else ():
            noted.setdefault(name, {})[value] = None
    return [(name, " / ".join(values)) for name, values in noted.items()]


def _settings(run: RunFiles) -> dict[str, str]:
    return flatten({name: value for name, value in run.config.items() if name not in _SHOWN_ELSEWHERE | {_VERSIONS}})
