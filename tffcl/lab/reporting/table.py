"""A table that can be converted to text, CSV, Markdown, LaTeX, HTML and pandas, and is shown on the page."""

import dataclasses
import functools
import html
import itertools
import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tabulate

from tffcl.errors import printable
from tffcl.files import csv_text, text_cell
from tffcl.lab.reporting.number_format import MISSING, Stat, show_stat, show_value
from tffcl.runs.metrics import Metric

if TYPE_CHECKING:
    import pandas as pd

FORMATS = ("csv", "md", "latex", "png", "svg", "pdf")  # formats of tables and figures
WIDTH = 120  # of a terminal, in columns
_LATEX = {"±": r"$\pm$", "–": "--", "²": "$^2$"}  # in addition to what tabulate escapes
# A row of Markdown has no alignment spaces, so that a longer number changes only one line of a file.
_MARKDOWN = tabulate.TableFormat(
    lineabove=None, linebelowheader=lambda widths, _: f"|---|{'---:|' * (len(widths) - 1)}", linebetweenrows=None,
    linebelow=None, headerrow=tabulate.DataRow("|", "|", "|"), datarow=tabulate.DataRow("|", "|", "|"), padding=1,
    with_header_hide=None,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Cell:
    """A cell that is more than a text or a number.

    Attributes:
      text: The text of the cell.
      value: The value by which the page sorts the column; default the text, as a number if it is one. NaN and None come
        last.
      bars: Shares from 0 to 1, each with a text, which the page draws as bars above the cell's text.
      picture: The address of a picture, which the page shows above the text.
      picture_width: The width of the picture in pixels, if there is room.
      words: Whether the text has several words; it is then aligned left and broken into lines.
    """

    text: str
    value: float | str | None = ""
    bars: Sequence[tuple[float, str]] = ()
    picture: str = ""
    picture_width: int = 0
    words: bool = False

    @property
    def sorted_by(self) -> str | None:
        """The value by which the page's script sorts; None if this is the text."""
        if self.value == "" or self.value == self.text:
            return None
        missing = self.value is None or isinstance(self.value, float) and math.isnan(self.value)
        return "" if missing else str(self.value)


@dataclasses.dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
      header: The title of the column.
      group: The title above the column and its neighbours; "" for none.
      digits: How statistics over seeds are shown, see `Metric.digits`; None if the cells are no statistics.
      key: The name in CSV; default the title.
      metric: The metric of the statistics, if the table of metrics has it.
    """

    header: str
    group: str = ""
    digits: int | str | None = None
    key: str = ""
    metric: Metric | None = None

    @classmethod
    def of(cls, metric: Metric, group: str = "", header: str = "") -> "Column":
        """Makes a column of a metric; its titles are those in the table of a comparison if no others are given."""
        return cls(header or metric.header, group or metric.group, metric.digits, metric.name, metric)

    @property
    def name(self) -> str:
        """The name in CSV."""
        return self.key or self.header

    def cell(self, value: object) -> Cell:
        """Returns a value as a cell."""
        if isinstance(value, Cell):
            return value
        if isinstance(value, Stat):
            return Cell(show_stat(value, self.digits), value.mean if value.count else None)
        return Cell(str(value))


@dataclasses.dataclass(frozen=True)
class Table:
    """A table; if it has no rows, only its notes are shown.

    Attributes:
      columns: The columns from the left; the first has the names of the rows.
      rows: A value for each column: a `Cell`, a `Stat`, a text or a number.
      notes: Lines below the table.
      numbers: Whether the cells after the first column are numbers, which the page aligns right.
      stacked: Whether each row is a separate block on a narrow page.
      spread: The parts of statistics that follow the mean in tables for programs, e.g. "std" and "count" (the number of
        seeds) as `<column>_std` and `<column>_count`.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[object]]
    notes: Sequence[str] = ()
    numbers: bool = True
    stacked: bool = False
    spread: Sequence[str] = ("std",)

    @classmethod
    def of(cls, heads: Sequence[str], rows: Sequence[Sequence[object]], **others) -> "Table":
        """Makes a table from the titles of columns without groups."""
        return cls([Column(head) for head in heads], rows, **others)

    @property
    def heads(self) -> list[str]:
        """The titles of the columns."""
        return [each.header for each in self.columns]

    @functools.cached_property
    def cells(self) -> list[list[Cell]]:
        """The rows as cells."""
        return [[column.cell(value) for column, value in zip(self.columns, row, strict=True)] for row in self.rows]

    @property
    def groups(self) -> list[tuple[str, int]]:
        """The titles above columns, each with its number of columns, from the left; empty without groups."""
        found = [(name, len(list(own))) for name, own in itertools.groupby(self.columns, lambda each: each.group)]
        return found if any(name for name, _ in found) else []

    def without_empty(self) -> "Table":
        """Returns the table without columns that have no value in any row."""
        columns = range(len(self.columns))
        stays = [not self.rows or any(row[place].text != MISSING for row in self.cells) for place in columns]
        rows = [list(itertools.compress(row, stays)) for row in self.rows]
        return dataclasses.replace(self, columns=list(itertools.compress(self.columns, stays)), rows=rows)

    def to_text(self, width: int = WIDTH, left: int = 1) -> str:
        """Returns the table for a terminal.

        Groups that do not fit in the width follow below, after a copy of the first columns without group.

        Args:
          width: The number of the terminal's columns.
          left: How many columns, from the first, are aligned left; the others are aligned right.
        """
        texts, place, parts = self._texts(), 0, []
        for name, count in self.groups or [("", len(self.columns))]:
            own = [line[place : place + count] for line in texts]
            sides = ["left" if at < left else "right" for at in range(place, place + count)]
            lines = tabulate.tabulate(own, tablefmt="plain", colalign=sides, disable_numparse=True).split("\n")
            broad = max(map(len, lines))
            # A line over a group shows its extent, without drawing characters that a terminal may lack.
            over = f"{name} ".ljust(broad, "-") if name else ""
            broad = max(broad, len(over))
            parts.append([line.ljust(broad) for line in (*([over] if self.groups else []), *lines)])
            place += count
        names, *others = parts
        blocks = [list(names)]
        for lines in others:
            if blocks[-1] != names and len(blocks[-1][0]) + 3 + len(lines[0]) > width:
                blocks.append(list(names))
            blocks[-1] = [f"{old}   {new}" for old, new in zip(blocks[-1], lines, strict=True)]
        text = ["\n".join(line.rstrip() for line in block) for block in blocks if self.rows]
        notes = [textwrap.fill(each, width, subsequent_indent="  ") for each in self.notes]
        return "\n\n".join([*text, *(["\n".join(notes)] if notes else [])])

    def to_markdown(self) -> str:
        """Returns the table in Markdown, with numbers aligned right; `|` and `<` in texts are escaped."""
        marks = str.maketrans({"|": "\\|", "<": "&lt;"})
        heads, *rows = [[cell.translate(marks) for cell in line] for line in self._texts(grouped=True)]
        text = [tabulate.tabulate(rows, heads, _MARKDOWN, stralign=None, disable_numparse=True)] if rows else []
        notes = [f"\n{printable(each).replace('<', '&lt;')}" for each in self.notes]
        return "\n".join([*text, *notes]) + "\n"

    def to_latex(self) -> str:
        """Returns the table as a `tabular` of LaTeX with booktabs' rules; notes are comments."""
        text = self._tabulated("latex_booktabs").translate(str.maketrans(_LATEX))
        return "\n".join([text, *(f"% {printable(each)}" for each in self.notes)]) + "\n"

    def to_csv(self) -> str:
        """Returns the table for programs: plain numbers, empty if missing; texts are safe from spreadsheet formulas."""
        heads, *lines = self._values()
        return csv_text([heads, *(map(_csv_cell, line) for line in lines)], end="\n")

    def to_frame(self) -> "pd.DataFrame":
        """Returns the table for pandas, with the columns of `to_csv`."""
        import pandas as pd  # imported here, because the command line does not need it

        heads, *lines = self._values()
        return pd.DataFrame(lines, columns=heads)

    def to_html(self) -> str:
        """Returns the table for a notebook, with its notes below it."""
        return "".join([self._tabulated("html"), *(f"<p>{html.escape(printable(each))}</p>" for each in self.notes)])

    def _tabulated(self, form: str) -> str:
        """The table in a format of tabulate, with numbers aligned right."""
        heads, *rows = self._texts(grouped=True)
        sides = ["left"] + ["right"] * (len(heads) - 1) if rows else None
        return tabulate.tabulate(rows, heads, form, colalign=sides, disable_numparse=True)

    def _values(self) -> list[list]:
        """The names of the columns, and the plain values of each row; statistics give their mean and `spread`."""
        more = [() if each.digits is None else self.spread for each in self.columns]
        heads = [[each.name, *(f"{each.name}_{name}" for name in own)] for each, own in zip(self.columns, more)]
        lines = [
            [
                [each.mean, *(getattr(each, name) for name in own)] if own else [each]
                for each, own in zip(row, more, strict=True)
            ]
            for row in self.rows
        ]
        return [list(itertools.chain(*line)) for line in [heads, *lines]]

    def _texts(self, grouped: bool = False) -> list[list[str]]:
        """The titles, after those of their groups if `grouped`, and the texts of each row."""
        heads = [f"{each.group}: {each.header}" if grouped and each.group else each.header for each in self.columns]
        lines = [heads, *([cell.text for cell in row] for row in self.cells)]
        return [[printable(text) for text in line] for line in lines]


def _csv_cell(value: object) -> str:
    if value is None or isinstance(value, float) and math.isnan(value):
        return ""
    return text_cell(value) if isinstance(value, str) else show_value(value)


def percent(fraction: float) -> Cell:
    """Makes a cell from a fraction, in percent with two decimals."""
    return Cell(MISSING, None) if math.isnan(fraction) else Cell(f"{100 * fraction:.2f}")
