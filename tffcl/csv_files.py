"""CSV files as NumPy columns, with one clear line for a file that cannot be read."""

import csv
import dataclasses
import io
import pathlib
import re
from collections.abc import Iterable, Sequence

import numpy as np

from tffcl import regular_files
from tffcl.errors import UserError

# How a cell begins that a spreadsheet would compute, or this module has marked.
_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")


def damaged(path: pathlib.Path, why: object) -> UserError:
    """Returns the error for a file that is there but cannot be used; always one line."""
    return UserError(f"{path} is damaged: {' '.join(str(why).split())}")


def read_text(path: pathlib.Path, newline: str | None = None) -> str:
    """Returns the text of a file; `newline` as of `open`.

    Raises:
      UserError: If there is no such file, it is not text, or larger than a run's can be.
    """
    try:
        return regular_files.read_text(path, newline=newline)
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing; did the run finish?") from error
    except UnicodeDecodeError as error:
        raise damaged(path, "it is not UTF-8 text") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def csv_text(rows: Iterable[Iterable]) -> str:
    """Returns rows of cells, the names of the columns first, as the text of a CSV file."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue()


def text_cell(text: object) -> str:
    """Returns a text as a cell of a CSV file that no spreadsheet computes: with an apostrophe before =, +, -,
    @ and tab."""
    return f"'{text}" if _FORMULA.match(str(text)) else str(text)


def cell_text(cell: str) -> str:
    """The inverse of `text_cell`."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


@dataclasses.dataclass(frozen=True)
class Table:
    """A CSV file.

    Attributes:
      path: Where it is, for messages.
      names: Its header.
      rows: Its other lines.
    """

    path: pathlib.Path
    names: Sequence[str]
    rows: Sequence[Sequence[str]]

    def texts(self, name: str) -> np.ndarray:
        """Returns a column of texts, as they were before `text_cell`."""
        return np.array([cell_text(cell) for cell in self._cells(name)], dtype=str)

    def floats(self, name: str) -> np.ndarray:
        """Returns a column of numbers; NaN for an empty cell."""
        return np.array([self._float(name, line, cell) for line, cell in enumerate(self._cells(name), 2)], float)

    def integers(self, name: str, empty: int) -> np.ndarray:
        """Returns a column of whole numbers, with `empty` for an empty cell."""
        values = self.floats(name)
        wrong = np.flatnonzero(np.isinf(values) | (~np.isnan(values) & (values != np.round(values))))
        if wrong.size:
            raise self._wrong(name, wrong[0] + 2, self._cells(name)[wrong[0]], "a whole number")
        return np.where(np.isnan(values), empty, values).astype(np.int64)

    def numbers(self, name: str) -> np.ndarray:
        """Returns a column of numbers: whole ones if each cell is written as one, else floats with NaN for an empty
        cell."""
        whole = all(re.fullmatch(r"-?\d+", cell) for cell in self._cells(name))
        return self.integers(name, empty=0) if whole else self.floats(name)

    def numbered(self, name: str, empty: float = np.nan) -> np.ndarray:
        """Returns the columns of numbers NAME_0, NAME_1, ..., `float [n, columns]`, with `empty` for empty cells."""
        count = sum(re.fullmatch(rf"{name}_\d+", each) is not None for each in self.names)
        missing = [f"{name}_{each}" for each in range(count) if f"{name}_{each}" not in self.names]
        if missing:
            raise damaged(self.path, f"there is no column {missing[0]}")
        columns = [self.floats(f"{name}_{each}") for each in range(count)]
        found = np.stack(columns, axis=1) if columns else np.zeros([len(self.rows), 0])
        return np.where(np.isnan(found), empty, found)

    def _cells(self, name: str) -> list[str]:
        place = self.names.index(name)
        return [row[place] for row in self.rows]

    def _float(self, name: str, line: int, cell: str) -> float:
        try:
            return float(cell.strip() or "nan")
        except ValueError as error:
            raise self._wrong(name, line, cell, "a number") from error

    def _wrong(self, name: str, line: int, cell: str, wanted: str) -> UserError:
        return damaged(self.path, f"line {line}: {name} is {cell!r}, not {wanted}")


def read_table(path: pathlib.Path, required: Sequence[str]) -> Table:
    """Reads a CSV file with a header.

    Args:
      required: Names of columns that must be there; others may be.

    Raises:
      UserError: If the file is missing, lacks a column, or a line has too few or too many cells.
    """
    try:
        rows = [row for row in csv.reader(io.StringIO(read_text(path, newline=""), newline="")) if row]
    except csv.Error as error:
        raise damaged(path, error) from error
    if not rows:
        raise damaged(path, "it is empty")
    names, *rows = rows
    for name in required:
        if name not in names:
            raise damaged(path, f"there is no column {name}")
    for line, row in enumerate(rows, 2):
        if len(row) != len(names):
            raise damaged(path, f"line {line} has {len(row)} cells, the header {len(names)}")
    return Table(path, tuple(names), rows)
