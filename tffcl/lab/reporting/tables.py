"""The comparison table: a row a method, as text, CSV and HTML."""

import csv
import dataclasses
import io
import math
import pathlib
import textwrap
from collections.abc import Mapping, Sequence

from tffcl.csv_files import markdown, text_cell
from tffcl.errors import printable
from tffcl.lab.reporting import comparisons, files
from tffcl.lab.reporting.comparisons import Failure
from tffcl.lab.reporting.number_format import Stat, show_stat
from tffcl.lab.reporting.page.page_table import Cell, PageTable
from tffcl.runs.metrics import METRICS, Metric
from tffcl.runs.run_directory import SUMMARY, RunDirectory
from tffcl.runs.run_files import RunFiles

LEGEND = (
    ("cluster", "The model that the method assigns to a client, before any local training, on the client's own test "
     "set; the mean over clients."),
    ("local", "A client's own model after its last local training, on its own test set; the mean over the clients "
     "that have trained. “trained” is their share of all clients, in percent."),
    ("global", "One model on the union of all test data: where all clients share it, or where a method has a global one beside the others; else "
     "a dash."),
    ("variance, worst 10 %", "Over clients: how unequally well they are served (in percent squared), and how well the "
     "worst served tenth is."),
    ("clusters, ARI", "How many clusters were found, and their agreement with the true groups where these are known "
     "(adjusted Rand index: 1 is perfect, about 0 is chance)."),
    ("NMI", "Normalised mutual information of the clusters and the true groups: 1 is perfect; many small clusters have some by chance."),
    ("those that took part", "The cluster accuracy over the clients that trained in at least one round, which is what the papers test, and "
     "by how much it is above that of the others: a client that never took part has the model that the method gives to unknown clients."),
    ("never trained counted", "Local accuracy over all clients, those that never trained with the untrained model, as the authors of PACFL "
     "and FLIS count."),
    ("down, up, signatures", "Bytes from the server to all clients, from all clients to the server, and what the "
     "signatures took of them, over the whole run."),
    ("±", "Mean and sample standard deviation (ddof = 1) over the seeds; absent with one seed. table.csv has the standard error of the "
     "mean beside it."),
)  # fmt: skip
CAUTION = (
    "The three accuracies answer three questions. Compare methods within a column, never the local accuracy of one "
    "with the global accuracy of another."
)


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of the table.

    Attributes:
      metric: What it has.
      group: What it stands under.
      header: Its title for people.
    """

    metric: Metric
    group: str
    header: str

    @property
    def key(self) -> str:
        """Its name in the CSV file, unit included."""
        return self.metric.name

    def show(self, stat: Stat) -> str:
        """Returns statistics over seeds as text."""
        return show_stat(stat, self.metric.digits)


@dataclasses.dataclass(frozen=True)
class Row:
    """One method.

    Attributes:
      algorithm: Its name.
      seeds: The seeds that it ran with.
      stats: For each `Column.key` the statistics over these seeds.
      failures: The seeds that failed, and why.
    """

    algorithm: str
    seeds: tuple[int, ...]
    stats: Mapping[str, Stat]
    failures: tuple[Failure, ...] = ()

    @property
    def shown_seeds(self) -> str:
        """How many seeds, "2 of 3" where some failed."""
        known = len(self.seeds)
        return f"{known} of {known + len(self.failures)}" if self.failures else str(known)


COLUMNS = tuple(Column(each, each.group, each.header) for each in METRICS if each.group)
_FIRST_GROUPS = ("accuracy %", "variance", "worst 10 %", "clusters", "clients %")
# On the page what a comparison is read for stands first, and fits a screen; the rest is a table of its own.
RESULT_GROUPS = ("accuracy %", "clusters", "agreement", "worst 10 %")
FURTHER_GROUPS = ("variance", "clients %", "those that took part", "never trained counted")
TRAFFIC_GROUPS = ("traffic",)
TIME_GROUPS = ("seconds", "of which")
_LATEX = {"%": r"\%", "_": r"\_", "&": r"\&", "#": r"\#", "$": r"\$", "±": r"$\pm$", "–": "--", "{": r"\{", "}": r"\}"}
_LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "²": r"$^2$"}
# The parts of the time are for the report; in a terminal they would only make the table longer.
TEXT_GROUPS = (*_FIRST_GROUPS, *TRAFFIC_GROUPS, "seconds")


def comparison_rows(runs: Sequence[RunFiles], failures: Sequence[Failure] = ()) -> list[Row]:
    """Returns one row a method, in the order in which the methods first appear; those of which all runs failed come last.

    Accuracies are in percent. Deviations are sample standard deviations (ddof=1) over seeds.
    """
    methods: dict[str, list[RunFiles]] = {run.method: [] for run in runs} | {each.method: [] for each in failures}
    for run in runs:
        methods[run.method].append(run)
    return [
        Row(
            name,
            tuple(run.seed for run in own),
            {each.key: Stat.of(map(each.metric.of_run, own)) for each in COLUMNS},
            tuple(each for each in failures if each.method == name),
        )
        for name, own in methods.items()
    ]


def directory_rows(path: str | pathlib.Path) -> list[Row]:
    """Returns the rows of the run or the comparison in a directory, with those that failed, in the order that was asked for.

    Raises:
      UserError: As `files.find_runs`, but not where all runs failed.
    """
    failures = [] if RunDirectory(path).is_run else comparisons.find_failures(path)
    finished = not failures or any(pathlib.Path(path).glob(f"*/seed-*/{SUMMARY}"))
    rows = comparison_rows(files.find_runs(path) if finished else [], failures)
    order = comparisons.in_order(pathlib.Path(path), [row.algorithm for row in rows]) if failures else []
    return sorted(rows, key=lambda row: order.index(row.algorithm)) if order else rows


def to_text(
    rows: Sequence[Row],
    width: int = 120,
    groups: Sequence[str] = TEXT_GROUPS,
    *,
    columns: Sequence[Column] = COLUMNS,
    first: str = "method",
) -> str:
    """Returns the table for a terminal.

    Groups of columns that do not fit beside each other are put below, with the names of the methods again.

    Args:
      rows: What `comparison_rows` gave.
      width: Columns of the terminal.
      groups: Which groups of columns.
      columns: From which the groups are taken.
      first: Title of the names of the rows.
    """
    names = _align(["", first, *(row.algorithm for row in rows)], left=True)
    seeds = _align(["", "seeds", *(row.shown_seeds for row in rows)])
    name = [f"{method}  {count}" for method, count in zip(names, seeds, strict=True)]
    blocks = [list(name)]
    for group in groups:
        lines = _text_group(rows, group, columns)
        if blocks[-1] != name and len(blocks[-1][0]) + 3 + len(lines[0]) > width:
            blocks.append(list(name))
        blocks[-1] = [f"{old}   {new}" for old, new in zip(blocks[-1], lines, strict=True)]
    text = ["\n".join(line.rstrip() for line in block) for block in blocks]
    failures = [textwrap.fill(str(each), width, subsequent_indent="  ") for row in rows for each in row.failures]
    return "\n\n".join([*text, *(["\n".join(failures)] if failures else [])])


def to_csv(
    rows: Sequence[Row],
    *,
    columns: Sequence[Column] = COLUMNS,
    first: Sequence[str] = ("algorithm",),
    names: Sequence[Sequence[str]] | None = None,
) -> str:
    """Returns the table for programs: for each column its mean, `<column>_std` and the mean's standard error `<column>_stderr`.

    A cell is empty where there is no number.

    The last column, `failed`, says which seeds failed and why.

    Args:
      rows: What `comparison_rows` gave.
      columns: Which columns.
      first: Titles of the columns that say what a row is of.
      names: The cells of each row in these; default the row's algorithm.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    keys = [each.key for each in columns]
    writer.writerow([*first, "seeds", *(name for key in keys for name in (key, f"{key}_std", f"{key}_stderr")), "failed"])
    for row, own in zip(rows, names or [(text_cell(row.algorithm),) for row in rows], strict=True):
        stats = [row.stats[key] for key in keys]
        cells = [_plain(value) for stat in stats for value in (stat.mean, stat.std, stat.stderr)]
        failed = "; ".join(f"seed {each.seed}: {each.reason}" for each in row.failures)
        writer.writerow([*own, len(row.seeds), *cells, failed])
    return text.getvalue()


def to_markdown(
    rows: Sequence[Row],
    groups: Sequence[str] = TEXT_GROUPS,
    *,
    columns: Sequence[Column] = COLUMNS,
    first: str = "method",
) -> str:
    """Returns the table in Markdown, a line for each failed run below it. The arguments are those of `to_text`."""
    heads, lines = _plain_table(rows, groups, columns, first)
    text = markdown([heads, *lines])
    failed = [printable(str(each)).replace("<", "&lt;") for row in rows for each in row.failures]
    return "\n".join([*text, *(f"\n{each}" for each in failed)]) + "\n"


def to_latex(
    rows: Sequence[Row],
    groups: Sequence[str] = TEXT_GROUPS,
    *,
    columns: Sequence[Column] = COLUMNS,
    first: str = "method",
) -> str:
    """Returns the table as a `tabular` of LaTeX with booktabs' rules. The arguments are those of `to_text`."""
    heads, lines = _plain_table(rows, groups, columns, first)
    text = [
        f"\\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
        "\\toprule",
        f"{' & '.join(map(_latex, heads))} \\\\",
        "\\midrule",
    ]
    text += [f"{' & '.join(map(_latex, line))} \\\\" for line in lines]
    text += ["\\bottomrule", "\\end{tabular}"]
    return "\n".join([*text, *(f"% {printable(str(each))}" for row in rows for each in row.failures)]) + "\n"


def _plain_table(
    rows: Sequence[Row], groups: Sequence[str], columns: Sequence[Column], first: str
) -> tuple[list[str], list[list[str]]]:
    """Titles, with those of the groups before them, and the cells of each row."""
    chosen = [each for group in groups for each in columns if each.group == group]
    heads = [first, "seeds", *(f"{each.group}: {each.header}" for each in chosen)]
    return heads, [[row.algorithm, row.shown_seeds, *(each.show(row.stats[each.key]) for each in chosen)] for row in rows]


def _latex(text: str) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in printable(text))


def to_page(
    rows: Sequence[Row],
    groups: Sequence[str] = TEXT_GROUPS,
    *,
    columns: Sequence[Column] = COLUMNS,
    first: str = "method",
) -> PageTable:
    """Returns the table for the page.

    The arguments are those of `to_text`; columns that no row has a number for are left out.
    """
    measured = {group: _measured(rows, group, columns) for group in groups}
    chosen = [each for own in measured.values() for each in own]
    cells = [
        [Cell(row.algorithm), Cell(row.shown_seeds, len(row.seeds)), *(_page_cell(each, row) for each in chosen)]
        for row in rows
    ]
    over = (("", 2), *((group, len(own)) for group, own in measured.items() if own))
    return PageTable((first, "seeds", *(each.header for each in chosen)), cells, groups=over, numbers=True)


def _measured(rows: Sequence[Row], group: str, columns: Sequence[Column]) -> list[Column]:
    """The columns of a group; one beyond the accuracies only where there is a number in it."""
    own = [each for each in columns if each.group == group]
    return own if group == "accuracy %" else [each for each in own if any(row.stats[each.key].count for row in rows)]


def _page_cell(column: Column, row: Row) -> Cell:
    stat = row.stats[column.key]
    return Cell(column.show(stat), stat.mean if stat.count else None)


def _text_group(rows: Sequence[Row], group: str, columns: Sequence[Column]) -> list[str]:
    own = [each for each in columns if each.group == group]
    cells = [_align([each.header, *(each.show(row.stats[each.key]) for row in rows)]) for each in own]
    lines = ["  ".join(line) for line in zip(*cells, strict=True)]
    # A line over the group shows how far it reaches, without any drawing characters that a terminal may lack.
    return _align([f"{group} ".ljust(len(lines[0]), "-"), *lines], left=True)


def _align(cells: Sequence[str], left: bool = False) -> list[str]:
    width = max(map(len, cells))
    return [cell.ljust(width) if left else cell.rjust(width) for cell in cells]


def _plain(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.10g}"
