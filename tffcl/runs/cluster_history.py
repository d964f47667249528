"""How the clusters of clients change over the rounds of a run. Imports no TensorFlow.

`history/<round>.npy` is `[2, n]`, for the clients whose cluster has changed in this round: their IDs and their new
clusters. The first file has all clients, later ones usually few. A client that has left has `NO_CLUSTER`. If clients
choose at evaluations, only these rounds have files.
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
    """Writes which clients are in another cluster than after the round before."""

    def begin(self, run: "Run"):
        """Reads the files of earlier rounds, and removes those of rounds that an interrupted run did not save.

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
        """Saves who moved, joined or left; if clients have names, the whole array is text."""
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
        """Saves what clients chose at this evaluation."""
        self.after_round(run)


class History(Mapping[int, np.ndarray]):
    """Maps each round that changed clusters to the clusters `int [N]` after it, which are computed on access."""

    def __init__(self, changes: Mapping[int, tuple[np.ndarray, np.ndarray]], clients: int):
        """Makes the history.

        Args:
          changes: Maps each round, ascending, to the rows of the clients whose cluster changed, and their new clusters.
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
        rows = [place.get(client, -1) for client in then.astype(str).tolist()]  # -1: has left by the end
        there = np.array(rows, int) >= 0
        changes[int(path.stem)] = np.array(rows, int)[there], clusters[there]
    return History(changes, len(client_ids))


def _files(directory: pathlib.Path) -> list[pathlib.Path]:
    return [path for path in entries(directory) if re.fullmatch(r"\d{6,}\.npy", path.name)]


def _read(path: pathlib.Path, cure: str = "") -> tuple[np.ndarray, np.ndarray]:
    """Reads clients `[n]` and their clusters `int [n]`."""
    try:
        with opened(path) as file:
            clients, clusters = np.load(file, allow_pickle=False)
        if clients.ndim != 1:
            raise ValueError("it does not hold clients and their clusters")
        return clients, files.whole_numbers(clusters, "the clusters")
    except Exception as error:  # for damaged files NumPy, zipfile and the tokenizer raise a dozen types
        raise UserError(f"{files.damaged(path, error)}{cure}") from error


def _of(clients: np.ndarray, clusters: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The clusters of the `wanted` clients `[n]`; `NO_CLUSTER` for those that are not among `clients`."""
    if np.array_equal(clients, wanted) or not len(clients):
        return clusters if len(clients) else np.full(len(wanted), NO_CLUSTER)
    order = np.argsort(clients, kind="stable")
    places = order[np.minimum(np.searchsorted(clients, wanted, sorter=order), len(clients) - 1)]
    return np.where(clients[places] == wanted, clusters[places], NO_CLUSTER)


def _after(clients: np.ndarray, clusters: np.ndarray, moved: np.ndarray, into: np.ndarray):
    """Clients and their clusters after some have moved or joined."""
    together = np.union1d(clients, moved)
    now = _of(clients, clusters, together)
    now[np.searchsorted(together, moved)] = into
    return together, now
