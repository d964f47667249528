"""rounds.csv and TensorBoard of a run, a row a round, through `tff.program`."""

import asyncio
import collections
import concurrent.futures
import csv
import io
import logging
import pathlib
import re

import tensorflow as tf
import tensorflow_federated as tff

from tffcl.errors import RESUME, UserError, tell
from tffcl.regular_files import check_replaceable, make_directory, read_bytes, write_bytes

# In a notebook TensorFlow would tell of every model that it writes, in the middle of the progress bar.
logging.getLogger("tensorflow").addFilter(lambda record: "Assets written to" not in record.getMessage())


def _wait(coroutine):
    """Runs a coroutine to its end, also where an event loop runs already (a notebook)."""
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        return executor.submit(asyncio.run, coroutine).result()


class Metrics:
    """A row a round in rounds.csv and in TensorBoard; a resumed run first drops the rows after its checkpoint."""

    def __init__(self, out: pathlib.Path, done: int = 0):
        """Opens the files of a run.

        Args:
          out: The directory of the run.
          done: The rounds that are done; rows that they lack are told on standard error.

        Raises:
          UserError: If rounds.csv is damaged.
          OSError: If a file cannot be written.
        """
        file = out / "rounds.csv"
        check_replaceable(file)
        make_directory(out / "tensorboard")
        _keep_rows(file, done)
        try:
            self._csv = tff.program.CSVFileReleaseManager(file, save_mode=tff.program.CSVSaveMode.APPEND, key_fieldname="round")
            self._tensorboard = tff.program.TensorBoardReleaseManager(out / "tensorboard")
        except tf.errors.OpError as error:
            raise _as_os_error(error, out) from None
        self._out = out

    def release(self, round_number: int, row: dict):
        """Writes a round's row; None stands for "not taken in this round"; OSError where it cannot be written."""

        async def write():
            written = collections.OrderedDict((key, "" if value is None else value) for key, value in row.items())
            await self._csv.release(written, round_number)
            await self._tensorboard.release({key: value for key, value in row.items() if value is not None}, round_number)

        try:
            _wait(write())
        except tf.errors.OpError as error:
            raise _as_os_error(error, self._out) from None


def _as_os_error(error: tf.errors.OpError, out: pathlib.Path) -> OSError:
    """TensorFlow's errors about files as Python's, with the reason that the operating system gave."""
    reason = error.message.splitlines()[0].rpartition("; ")[2]
    return OSError(None, reason, str(out))


def _keep_rows(file: pathlib.Path, done: int):
    """Keeps the rows of the rounds that are done, each once; a row that was half written when a process ended is not one."""
    if not file.exists():
        if done:
            tell(f"{file} was missing; its rounds 1 to {done} are lost")
        return
    try:
        text = read_bytes(file).decode("utf-8")
        names, *rows = list(csv.reader(io.StringIO(text, newline=""), strict=True)) or [[]]
    except (UnicodeDecodeError, csv.Error) as error:
        raise _damaged(file, str(error)) from None
    if "round" not in names or len(set(names)) < len(names):
        raise _damaged(file, "its first line does not name columns, one of them round")
    place, kept = names.index("round"), {}
    for row in rows:
        number = row[place] if len(row) == len(names) else ""
        if re.fullmatch(r"[0-9]{1,9}", number) and 1 <= int(number) <= done:
            kept.setdefault(int(number), row)
    missing = [number for number in range(1, done + 1) if number not in kept]
    if missing:
        tell(f"{file} has no rows of rounds {_ranges(missing)}; they are lost")
    written = io.StringIO(newline="")
    csv.writer(written).writerows([names, *(kept[number] for number in sorted(kept))] if kept else [["round"]])
    if written.getvalue() != text:
        write_bytes(file, written.getvalue().encode())


def _damaged(file: pathlib.Path, reason: str) -> UserError:
    return UserError(f"{file} is damaged: {' '.join(reason.split())}; without it, {RESUME} goes on, but its rounds are lost")


def _ranges(numbers: list[int]) -> str:
    """Ascending numbers in words: "1 to 3, 5"."""
    runs = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][-1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in runs)
