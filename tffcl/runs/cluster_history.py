"""The clusters of clients over the rounds of a run, as far as they change. Imports no TensorFlow.

`history/<round>.npy` is `[2, n]`, clients and their clusters after this round, of those whose cluster is another than
before: all that there are in the first file, few of many clients later. Who has left is in none, `NO_CLUSTER`. Where
clients choose at evaluations there are files of these rounds only.
"""

import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tffcl import files
from tffcl.errors import OVERWRITE, UserError
from tffcl.files import entries, make_directory, opened, replacing
from tffcl.runs.callbacks import Callback
from tffcl.runs.run_directory import HISTORY

if TYPE_CHECKING:  # which imports TensorFlow
    from tffcl.runs.run import Run

NO_CLUSTER = -1
MOST_CLUSTERS = 24  # that tables and pictures of a run show


def largest_clusters(clusters: np.ndarray) -> np.ndarray:
    """Returns the clusters that tables and pictures show: those with most clients, most first.

    Args:
      clusters: `int [N]`, of each client.
    """
    numbers, sizes = np.unique(clusters[clusters != NO_CLUSTER], return_counts=True)
    return numbers[np.argsort(-sizes, kind="stable")][:MOST_CLUSTERS]


class ClusterHistory(Callback):
    """Writes who is in another cluster than after the round before."""

    def begin(self, run: "Run"):
        """Reads what there is, and drops files of rounds that an interrupted run did not save.

        Raises:
          UserError: If a file of an earlier round is damaged.
        """
        self._directory = run.directory / HISTORY
        self._clients, self._clusters = np.zeros(0, np.asarray(run.population.shown_ids).dtype), np.zeros(0, int)
        make_directory(self._directory)
        for path in _files(self._directory):
            if int(path.stem) > run.round_number:
                path.unlink()
            else:
                saved = _read(path, f"; {OVERWRITE} starts anew")
                self._clients, self._clusters = _after(self._clients, self._clusters, *saved)

    def after_round(self, run: "Run"):
        """Saves who moved, joined or left; of clients with names all is text."""
        if run.chooses_at_evaluations and run.evaluation is None:
            return
        clients, clusters = np.asarray(run.population.shown_ids), np.asarray(run.views.clusters)
        gone = clients[:0] if np.array_equal(self._clients, clients) else np.setdiff1d(self._clients, clients)
        clients, clusters = np.append(clients, gone), np.append(clusters, np.full(len(gone), NO_CLUSTER))
        moved = clusters != _of(self._clients, self._clusters, clients)
        if not moved.any():
            return
        moves = np.stack([clients[moved], clusters[moved]])
        with replacing(self._directory / f"{run.round_number:06}.npy") as file:
            np.save(file, moves if moves.dtype.kind == "U" else moves.astype(np.int32))
        self._clients, self._clusters = clients, clusters

    def after_late_evaluation(self, run: "Run", found: Mapping):
        """Saves what clients chose then."""
        self.after_round(run)


class History(Mapping[int, np.ndarray]):
    """Round to the clusters `int [N]` after it, of the rounds that changed some; made when it is asked for."""

    def __init__(self, changes: Mapping[int, tuple[np.ndarray, np.ndarray]], clients: int):
        """Makes the history.

        Args:
          changes: Round, ascending, to the rows of clients that are in another cluster than before, and these.
          clients: N.
        """
        self._changes, self._clients = changes, clients

    def __getitem__(self, round_number: int) -> np.ndarray:
        if round_number not in self._changes:
            raise KeyError(round_number)
        found = np.full(self._clients, NO_CLUSTER)
        for number, (rows, clusters) in self._changes.items():
            if number <= round_number:
                found[rows] = clusters
        return found

    def __iter__(self) -> Iterator[int]:
        return iter(self._changes)

    def __len__(self) -> int:
        return len(self._changes)


def read_history(directory: pathlib.Path, client_ids: Sequence[str], last: int) -> History:
    """Reads the clusters of the clients that there are at the end of a run, up to its `last` round; UserError if a file
    is damaged."""
    changes, place = {}, {client: row for row, client in enumerate(client_ids)}
    for path in (each for each in _files(directory) if int(each.stem) <= last):
        then, clusters = _read(path)
        rows = [place.get(client, -1) for client in then.astype(str).tolist()]  # who has left is not among them
        there = np.array(rows, int) >= 0
        changes[int(path.stem)] = np.array(rows, int)[there], clusters[there]
    return History(changes, len(client_ids))


def _files(directory: pathlib.Path) -> list[pathlib.Path]:
    return [path for path in entries(directory) if re.fullmatch(r"\d{6,}\.npy", path.name)]


def _read(path: pathlib.Path, cure: str = "") -> tuple[np.ndarray, np.ndarray]:
    """Clients `[n]` and their clusters `int [n]`."""
    try:
        with opened(path) as file:
            clients, clusters = np.load(file, allow_pickle=False)
        if clients.ndim != 1:
            raise ValueError("it does not hold clients and their clusters")
        return clients, files.whole_numbers(clusters, "the clusters")
    except Exception as error:  # NumPy's, zipfile's and the tokenizer's errors for damaged files are of a dozen types
        raise UserError(f"{files.damaged(path, error)}{cure}") from error


def _of(clients: np.ndarray, clusters: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The clusters of some clients `[n]`, `NO_CLUSTER` for those that are not among `clients`."""
    if np.array_equal(clients, wanted) or not len(clients):
        return clusters if len(clients) else np.full(len(wanted), NO_CLUSTER)
    order = np.argsort(clients, kind="stable")
    places = order[np.minimum(np.searchsorted(clients, wanted, sorter=order), len(clients) - 1)]
    return np.where(clients[places] == wanted, clusters[places], NO_CLUSTER)


def _after(clients: np.ndarray, clusters: np.ndarray, moved: np.ndarray, into: np.ndarray):
    """Clients and their clusters when some have moved into others, or joined."""
    together = np.union1d(clients, moved)
    now = _of(clients, clusters, together)
    now[np.searchsorted(together, moved)] = into
    return together, now
