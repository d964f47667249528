"""How tffcl reads and writes files: only regular ones, CSV as NumPy columns, and small ones of JSON and TOML.

Nothing is written through a link, and no pipe or device is read. A file is written whole or not at all, and one that
cannot be read gives an error of one clear line.
"""

import contextlib
import csv
import dataclasses
import hashlib
import io
import json
import math
import os
import pathlib
import re
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO

import numpy as np

from tffcl.errors import UserError

MOST_TEXT = 2**28  # bytes of a text; the table of two million clients has as many


def opened(path: str | pathlib.Path, most: int | None = None) -> BinaryIO:
    """Opens a file to read its bytes.

    Args:
      path: The file, or a link to it.
      most: How many bytes it may have; default any number.

    Raises:
      UserError: If it is a directory, a pipe, a socket or a device, or has more bytes.
      OSError: If it is not there, or may not be read.
    """
    # Anything else is not opened, since that could wait for ever, or change a device.
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise UserError(f"{path} is not a file")
    file = open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    found = os.fstat(file.fileno())
    regular = stat.S_ISREG(found.st_mode)  # it may be another one by now
    if regular and (most is None or found.st_size <= most):
        return file
    file.close()
    raise UserError(
        f"{path} has {found.st_size:,} bytes; at most {most:,} are allowed" if regular else f"{path} is not a file"
    )


def read_text(path: str | pathlib.Path, most: int = MOST_TEXT, newline: str | None = None) -> str:
    """Returns the text of a file in UTF-8; `newline` as in `open`.

    Raises:
      UserError, OSError: As `opened`.
      UnicodeDecodeError: If it is not text.
    """
    with io.TextIOWrapper(opened(path, most), encoding="utf-8", newline=newline) as file:
        return file.read()


def read_bytes(path: str | pathlib.Path) -> bytes:
    """Returns the contents of a file; errors as in `opened`."""
    with opened(path, MOST_TEXT) as file:
        return file.read()


def digest_of_file(path: str | pathlib.Path) -> str:
    """Returns the SHA-256 of a file's contents in hexadecimal; errors as in `opened`."""
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_no_link(path: pathlib.Path):
    """Raises UserError if there is a link where something is to be written.

    It could lead anywhere: anyone who may write into a directory could choose which of the user's files is overwritten.
    """
    if path.is_symlink():
        raise UserError(f"{path} is a link, and nothing is written through one: remove it, or give another directory")


def check_replaceable(path: pathlib.Path):
    """Raises UserError if something other than a regular file is where one is to be written."""
    check_no_link(path)
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is not a file: move it, or give another directory")


def nearest_existing(path: pathlib.Path) -> pathlib.Path:
    """Returns the path, or the closest one above it that is there."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def entries(directory: pathlib.Path) -> list[pathlib.Path]:
    """Returns what is in a directory, in the order of the names; nothing if there is no directory.

    Raises:
      UserError: If it cannot be read; `glob` would find nothing in it.
    """
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise damaged(directory, error) from error


def make_directory(path: pathlib.Path):
    """Makes a directory inside another, if it is not there; raises UserError if it is a link."""
    check_no_link(path)
    path.mkdir(exist_ok=True)


@contextlib.contextmanager
def replacing(path: pathlib.Path, *, private: bool = False, durable: bool = False) -> Iterator[BinaryIO]:
    """Opens a file for writing that replaces `path` when the block has ended: whole, or not at all.

    Args:
      path: The path of the file.
      private: Whether only its owner may read it, whatever the umask says, as for examples and values of clients.
      durable: Whether it is on the disk when the block has ended, even if the machine then loses its power.

    Raises:
      UserError: As `check_replaceable`.
      OSError: If it cannot be written; what was there stays.
    """
    check_replaceable(path)
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)  # left by a killed process, or a link; its target is not removed
    new = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600 if private else 0o666)
    try:
        with open(new, "wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    if durable:
        with contextlib.suppress(OSError):  # some file systems do not sync a directory
            place = os.open(path.parent, os.O_RDONLY)
            os.fsync(place)
            os.close(place)


def write_bytes(path: pathlib.Path, contents: bytes, *, private: bool = False):
    """Writes a file as `replacing` does."""
    with replacing(path, private=private) as file:
        file.write(contents)


def write_text(path: pathlib.Path, text: str, *, private: bool = False):
    """Writes a text in UTF-8 as `replacing` does."""
    write_bytes(path, text.encode(), private=private)


# The beginning of a cell that a spreadsheet would compute, or that this module has marked.
_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")


def damaged(path: pathlib.Path, why: object) -> UserError:
    """Returns the error for a file that is there but cannot be used; always one line."""
    if isinstance(why, OSError) and why.strerror:  # the system's, such as a permission: the contents may be whole
        return UserError(f"{path} cannot be read: {why.strerror}")
    return UserError(f"{path} is damaged: {' '.join(str(why).split())}")


def text_of_file(path: pathlib.Path, newline: str | None = None) -> str:
    """Returns the text of a file; `newline` as in `open`.

    Raises:
      UserError: If there is no such file, it is not text, or it is larger than a file of a run can be.
    """
    try:
        return read_text(path, newline=newline)
    except FileNotFoundError as error:
        raise UserError(f"{path} is missing; did the run finish?") from error
    except UnicodeDecodeError as error:
        raise damaged(path, "it is not UTF-8 text") from error
    except OSError as error:
        raise damaged(path, error) from error


def csv_text(rows: Iterable[Iterable], end: str = "\r\n") -> str:
    """Returns rows of cells, the names of the columns first, as the text of a CSV file whose lines end with `end`."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=end).writerows(rows)
    return text.getvalue()


def nine_digits(value: float) -> str:
    """Returns a number as in the CSV files of runs: most numbers come from float32, which has no more digits."""
    return f"{value:.9g}"


def text_cell(text: object) -> str:
    """Returns a text as a cell of a CSV file that no spreadsheet computes: with an apostrophe before =, +, -, @,
    tab and the ends of lines, and before apostrophes in front of these."""
    return f"'{text}" if _FORMULA.match(str(text)) else str(text)


def cell_text(cell: str) -> str:
    """The inverse of `text_cell`."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


_LARGEST = 2.0**63  # which int64 does not reach


def whole_numbers(values: np.ndarray, name: str) -> np.ndarray:
    """Returns an array of a file as int64, with fractions cut off; raises ValueError, with its name, if this fails."""
    wrong = values[~(np.abs(values) < _LARGEST)] if values.dtype.kind == "f" else ()
    if len(wrong):
        raise ValueError(f"{name} holds {wrong[0]:g}, which is no whole number")
    return values.astype(np.int64)


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
        wrong = np.flatnonzero(~np.isnan(values) & ~((values == np.round(values)) & (np.abs(values) < _LARGEST)))
        if wrong.size:
            raise self._wrong(name, wrong[0] + 2, self._cells(name)[wrong[0]], "a whole number")
        return np.where(np.isnan(values), empty, values).astype(np.int64)

    def numbers(self, name: str) -> np.ndarray:
        """Returns a column of numbers: whole ones if each cell is written as one, else floats with NaN for an empty
        cell."""
        whole = all(re.fullmatch(r"-?\d+", cell) for cell in self._cells(name))
        return self.integers(name, empty=0) if whole else self.floats(name)

    def numbered(self, name: str, empty: int | None = None) -> np.ndarray:
        """Returns the columns of numbers NAME_0, NAME_1, ..., `[n, columns]`: whole ones with `empty` for empty cells,
        or, without `empty`, floats with NaN."""
        count = sum(re.fullmatch(rf"{name}_\d+", each) is not None for each in self.names)
        missing = [f"{name}_{each}" for each in range(count) if f"{name}_{each}" not in self.names]
        if missing:
            raise damaged(self.path, f"there is no column {missing[0]}")
        names = [f"{name}_{each}" for each in range(count)]
        columns = [self.floats(each) if empty is None else self.integers(each, empty) for each in names]
        return np.stack(columns, axis=1) if columns else np.zeros([len(self.rows), 0], float if empty is None else int)

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
        rows = [row for row in csv.reader(io.StringIO(text_of_file(path, newline=""), newline="")) if row]
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


MOST_TOML = 2**22  # bytes; Python's reader takes seconds for so many
_DEEPEST = 100  # names with dots between them
_DOTTED = re.compile(r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*"|'[^'\n]*')[ \t]*+\.[ \t]*+)++""")


def write_json(path: pathlib.Path, contents: Mapping, *, indent: int | None = 1):
    """Writes a file, which a kill or a full disk leaves as it was. Without indent it is one line without spaces."""
    write_text(path, json.dumps(contents, indent=indent, separators=None if indent else (",", ":")) + "\n")


def _short(number: float) -> str:
    """Returns a fraction for files that are kept by the hundred."""
    return f"{number:.5g}"


def write_small_json(path: pathlib.Path, contents: Mapping):
    """As `write_json`, for files that are kept by the hundred: in one line, and fractions with five digits."""
    rounded = json.loads(json.dumps(contents), parse_float=lambda digits: float(_short(float(digits))))
    write_json(path, rounded, indent=None)


def write_small_numbers(path: pathlib.Path, table: Table):
    """Writes a table of numbers that is kept by the hundred: fractions with five digits, whole numbers with all.

    Raises:
      UserError: If a cell is not a number.
    """
    pairs = [zip(table.texts(name), table.floats(name), strict=True) for name in table.names]
    columns = [[cell if re.fullmatch(r"-?\d*", cell) else _short(number) for cell, number in pair] for pair in pairs]
    write_text(path, csv_text([table.names, *zip(*columns, strict=True)]))


def finite(number: float) -> float | None:
    """Returns a number as JSON has it: None for NaN and infinity."""
    return float(number) if math.isfinite(number) else None


def read_json(path: pathlib.Path) -> dict:
    """Reads a file with one JSON object.

    Raises:
      UserError: If it is not there, or is damaged.
    """
    text = text_of_file(path)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise damaged(path, error) from error
    if not isinstance(found, dict):
        raise damaged(path, f"it holds a {type(found).__name__} where names and values should be")
    return found


def parse_toml(text: str) -> dict:
    """Reads TOML as `tomllib.loads`, but refuses deep keys: its time grows with the square of the names in a key.

    Raises:
      ValueError: If it is not TOML, or has more than four million characters or a number of thousands of digits.
      RecursionError: If it is nested too deep.
    """
    if len(text) > MOST_TOML:
        raise ValueError(f"it has more than {MOST_TOML:,} characters")
    if any(found[0].count(".") > _DEEPEST for found in _DOTTED.finditer(text)):
        raise RecursionError("it is nested too deep")
    return tomllib.loads(text)


def read_toml(path: pathlib.Path) -> dict:
    """Reads a file of TOML.

    Raises:
      UserError: If it is not there, or is damaged.
    """
    text = text_of_file(path)
    try:
        return parse_toml(text)
    except (ValueError, RecursionError) as error:
        raise damaged(path, error) from error


def inside(directory: str) -> pathlib.PurePath:
    """Returns the path of a directory inside another, as a file names it; raises ValueError if it leads out of it."""
    found = pathlib.PurePath(directory)
    if found.is_absolute() or ".." in found.parts:
        raise ValueError(f"directory is {str(found)[:100]!r}; it must be inside its own")
    return found


@contextlib.contextmanager
def telling_damage(path: pathlib.Path):
    """Turns errors from wrong contents, inside the block, into a UserError that names this file as damaged."""
    try:
        yield
    except UserError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise damaged(path, f"{type(error).__name__}: {error}") from error
