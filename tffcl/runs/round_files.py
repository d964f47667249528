"""What a run writes after each of its rounds: a row of rounds.csv, and TensorBoard's numbers."""

import asyncio
import concurrent.futures
import csv
import io
import logging
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.display import ranges
from tffcl.errors import RESUME, UserError, tell
from tffcl.files import Table, check_replaceable, csv_text, make_directory, nine_digits, read_bytes, write_text
from tffcl.runs.callbacks import Callback
from tffcl.runs.cluster_history import NO_CLUSTER, largest_clusters
from tffcl.runs.metrics import COLUMNS
from tffcl.runs.run import Run
from tffcl.runs.run_directory import ROUNDS, TENSORBOARD

# In a notebook TensorFlow would report every model that it writes, in the middle of the progress bar.
logging.getLogger("tensorflow").addFilter(lambda record: "Assets written to" not in record.getMessage())


class RoundsTable(Callback):
    """Appends a row for each round to rounds.csv; a resumed run first drops the rows after its checkpoint.

    A run that is stopped in a round without an evaluation is evaluated afterwards, which completes the last row.
    """

    def begin(self, run: Run):
        """Opens the table; rows that it lacks of rounds that are done are reported on standard error and left empty.

        Raises:
          UserError: If it is damaged.
          OSError: If it cannot be written.
        """
        self._file = run.directory / ROUNDS
        check_replaceable(self._file)
        self._names = _keep_rows(self._file, run.round_number)

    def after_round(self, run: Run):
        """Writes the row; a cell is empty if nothing was measured."""
        row = self._row(run)
        with open(self._file, "a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self._names).writerow(row)

    def after_late_evaluation(self, run: Run, found: Mapping):
        """Completes the last row, if it is this round's."""
        row, rows = self._row(run), self._rows()
        last = dict(zip(self._names, rows.pop())) if rows else {}
        if last.get("round") == str(run.round_number):
            _write_rows(self._file, self._names, [*rows, [old or row.get(name, "") for name, old in last.items()]])

    def _row(self, run: Run) -> dict:
        """The cells of a round; the table gets the columns that it lacks."""
        row = {"round": run.round_number, **dict(sorted(run.metrics.items()))}
        if new := [name for name in row if name not in self._names]:
            before = self._rows()
            self._names = [*self._names, *new]
            _write_rows(self._file, self._names, [[*each, *("" for _ in new)] for each in before])
        return {key: "" if value is None else _cell(np.asarray(value).item()) for key, value in row.items()}

    def _rows(self) -> list[list[str]]:
        return list(csv.reader(io.StringIO(read_bytes(self._file).decode(), newline="")))[1:]


def _cell(value):
    return nine_digits(value) if isinstance(value, float) else value


class TensorBoard(Callback):
    """Writes the numbers of each round for TensorBoard, and those of each of the largest clusters at an evaluation."""

    def begin(self, run: Run):
        """Opens the directory; OSError if it cannot be written."""
        self._place = run.directory / TENSORBOARD
        make_directory(self._place)
        try:
            self._manager = tff.program.TensorBoardReleaseManager(self._place)
        except tf.errors.OpError as error:
            raise _as_os_error(error, self._place) from None

    def after_round(self, run: Run):
        """Writes the numbers that were measured; OSError if they cannot be written."""
        self._release({**run.metrics, **_by_cluster(run)}, run.round_number)

    def after_late_evaluation(self, run: Run, found: Mapping):
        """Writes what the evaluation has measured."""
        self._release({**found, **_by_cluster(run)}, run.round_number)

    def _release(self, numbers: Mapping, round_number: int):
        numbers = {key: value for key, value in numbers.items() if value is not None}
        try:
            # This needs a thread of its own, because in a notebook an event loop runs in this one.
            with concurrent.futures.ThreadPoolExecutor(1) as executor:
                executor.submit(asyncio.run, self._manager.release(numbers, round_number)).result()
        except tf.errors.OpError as error:
            raise _as_os_error(error, self._place) from None


def _by_cluster(run: Run) -> dict[str, dict[str, float]]:
    """The numbers of each of the largest clusters at an evaluation: how many clients it has, their mean accuracy, and
    further metrics on their test examples together. Nothing if every client is a cluster of its own."""
    clusters = np.asarray(run.views.clusters)
    numbers, sizes = np.unique(clusters[clusters != NO_CLUSTER], return_counts=True)
    if run.evaluation is None or len(numbers) == len(clusters):
        return {}
    largest = largest_clusters(clusters)
    accuracies = {each: run.evaluation["cluster"][clusters == each] for each in largest}
    found = {
        "clients": dict(zip(numbers, sizes, strict=True)),
        "accuracy": {each: own[np.isfinite(own)].mean() for each, own in accuracies.items() if np.isfinite(own).any()},
        **{name: metric["clusters"] for name, metric in run.evaluation["metrics"].items()},
    }
    return {
        f"{name}_of_cluster": {str(each): own[each] for each in largest if np.isfinite(own.get(each, np.nan))}
        for name, own in found.items()
    }


def _as_os_error(error: tf.errors.OpError, place: pathlib.Path) -> OSError:
    """Turns TensorFlow's errors about files into Python's, with the reason that the operating system gave."""
    reason = error.message.splitlines()[0].rpartition("; ")[2]
    return OSError(None, reason, str(place))


def _keep_rows(file: pathlib.Path, done: int) -> list[str]:
    """Keeps one row for each round that is done, without rows that were half written when a process ended. A round
    whose row is lost gets a row of empty cells.

    Returns:
      The names of its columns.
    """
    without_rows = ["round", *(COLUMNS if done else ())]
    if not file.exists():
        if done:
            tell(f"{file} was missing; its rounds 1 to {done} are lost")
        return _write_rows(file, without_rows, [_lost(number, without_rows) for number in range(1, done + 1)])
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
    table = Table(file, names, list(kept.values()))
    for name in names:  # a cell that is no number is refused now, and not when the report is made
        table.floats(name)
    missing = [number for number in range(1, done + 1) if number not in kept]
    if missing:
        tell(f"{file} has no rows of rounds {ranges(missing, ' to ')}; they are lost")
    names = names if kept else without_rows
    return _write_rows(file, names, [kept.get(number) or _lost(number, names) for number in range(1, done + 1)])


def _lost(number: int, names: Sequence[str]) -> list[str]:
    """The row of a round whose numbers are lost."""
    return [str(number) if name == "round" else "" for name in names]


def _write_rows(file: pathlib.Path, names: list[str], rows: Iterable[Sequence]) -> list[str]:
    """Writes the whole file; returns the names."""
    write_text(file, csv_text([names, *rows]))
    return names


def _damaged(file: pathlib.Path, reason: str) -> UserError:
    return UserError(
        f"{file} is damaged: {' '.join(reason.split())}; without it, {RESUME} goes on, but its rounds are lost"
    )
