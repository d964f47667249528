"""The files of a run, read into NumPy columns."""

import dataclasses
import math
import pathlib
import re
from collections.abc import Mapping

import numpy as np

from tffcl import csv_files
from tffcl.display import Shown, percent
from tffcl.errors import RESUME, UserError, printable
from tffcl.json_files import read_json, read_toml
from tffcl.lab.reporting import comparisons
from tffcl.lab.reporting.run_arrays import (  # fmt: skip
    Clustering,
    Representations,
    Samples,
    clustering_of,
    read_arrays,
    representations_of,
    samples_of,
)
from tffcl.regular_files import opened
from tffcl.runs.run_marker import check_results, check_summary

ROUND_COLUMNS = (
    "round", "seconds", "train_loss", "clusters", "ari", "cluster_accuracy", "local_accuracy", "local_share",
    "global_accuracy", "down_bytes", "up_bytes",
)  # fmt: skip
# What only some methods measure.
OPTIONAL_ROUND_COLUMNS = (
    "clustering_error", "change_flags", "formed_anew", "known_clusters", "objective", "cluster_accuracy_participants",
    "local_accuracy_all", "validation_cluster_accuracy", "validation_global_accuracy",
    "epsilon",
)  # fmt: skip
CLIENT_COLUMNS = (
    "client_id", "true_cluster", "cluster", "examples", "test_examples", "rounds_trained", "cluster_accuracy",
    "local_accuracy",
)  # fmt: skip
_MOST_NAMED = 3  # runs in a message
_LARGEST = 2**63  # of numbers in a summary: bytes are the largest
SPLIT_COLUMNS = ("round", "cluster", "founded")
NO_CLUSTER = -1


@dataclasses.dataclass(frozen=True, eq=False)
class Clients(Shown):
    """`clients.csv`, a column an array; N clients, C classes.

    Attributes:
      client_id: str[N].
      true_cluster: str[N], "" where it is not known.
      cluster: int[N], `NO_CLUSTER` where the method has put the client into none.
      examples: int[N], training examples.
      test_examples: int[N].
      rounds_trained: int[N].
      cluster_accuracy: float[N], a fraction; NaN where it was not measured.
      local_accuracy: float[N], a fraction; NaN for a client that never trained.
      label_counts: int[N, C], training examples of each class; C is 0 where they are not known.
    """

    client_id: np.ndarray
    true_cluster: np.ndarray
    cluster: np.ndarray
    examples: np.ndarray
    test_examples: np.ndarray
    rounds_trained: np.ndarray
    cluster_accuracy: np.ndarray
    local_accuracy: np.ndarray
    label_counts: np.ndarray

    def __len__(self) -> int:
        return len(self.client_id)

    def facts(self):
        """How many there are, and how many of them have trained."""
        return {"clients": len(self), "have trained": int(np.count_nonzero(self.rounds_trained))}


@dataclasses.dataclass(frozen=True, eq=False)
class RunFiles(Shown):
    """What a run has written.

    Attributes:
      path: Its directory.
      method: What tables and figures call it: the algorithm, in a comparison the name of its directory (there
        may be variants of one algorithm).
      config: `resolve.toml`.
      summary: `summary.json`.
      rounds: `rounds.csv`, float[R] for each of `ROUND_COLUMNS`, and for those of `OPTIONAL_ROUND_COLUMNS` that are
        there; NaN where a cell is empty.
      clients: `clients.csv`.
      clustering: `clustering.npz`; None for methods without a proximity matrix.
      representations: `representations.npz`; None for methods without.
      history: `history/*.npy`, int[N] by round: the clusters of the rows of `clients.csv`, where they changed;
        `NO_CLUSTER` for those who were not there yet.
      splits: `splits.csv`, int[S, 3]: in which round which cluster was split, and the cluster that this founded; None for
        methods that split none.
      samples: `write_results.npz`; None where examples are no images.
    """

    path: pathlib.Path
    method: str
    config: Mapping
    summary: Mapping
    rounds: Mapping[str, np.ndarray]
    clients: Clients
    clustering: Clustering | None
    representations: Representations | None = None
    history: Mapping[int, np.ndarray] = dataclasses.field(default_factory=dict)
    splits: np.ndarray | None = None
    samples: Samples | None = None

    def facts(self):
        """Which run it is, and its mean accuracy."""
        accuracy = {"cluster": percent(self.number("accuracy", "cluster", "mean"))}
        rounds = {"rounds": self.summary.get("rounds")}
        return {"task": self.task, "method": self.method, "seed": self.seed, **rounds, **accuracy, "path": self.path}

    @property
    def task(self) -> str:
        return str(self.summary["task"])

    @property
    def algorithm(self) -> str:
        return str(self.summary["algorithm"])

    @property
    def seed(self) -> int:
        return self.summary["seed"]

    def number(self, *keys: str) -> float:
        """Returns a number of the summary, e.g. `number("accuracy", "cluster", "mean")`; NaN for null.

        Raises:
          UserError: If there is something else than a number.
        """
        value = self.summary
        for key in keys:
            if value is None:
                break
            if not isinstance(value, Mapping):
                raise self._damaged(keys, value)
            value = value.get(key)
        if value is None:
            return math.nan
        most = 1 if keys[0] == "accuracy" else _LARGEST
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= most:
            raise self._damaged(keys, value)
        return float(value)

    def _damaged(self, keys, value) -> UserError:
        what = "a fraction" if keys[0] == "accuracy" else "a number"
        return UserError(f"{self.path / 'summary.json'} is damaged: {'.'.join(keys)} is {value!r:.100}, not {what}")


def is_run(path: str | pathlib.Path) -> bool:
    """Says whether a directory is a run's own (and not that of a comparison)."""
    return (pathlib.Path(path) / "config.toml").is_file() or (pathlib.Path(path) / "summary.json").is_file()


def find_runs(path: str | pathlib.Path) -> list[RunFiles]:
    """Reads a run, or all finished runs of a comparison (`<algorithm>/seed-<n>/`), in the order that was asked for.

    Raises:
      UserError: If the directory holds no finished run, or a file of a run is missing or damaged.
    """
    path = pathlib.Path(path)
    if not path.is_dir():
        raise UserError(f"{path} is not a directory; give the output directory of a run or a comparison")
    if is_run(path):
        return [read_run(path)]
    seeds = [(each, re.fullmatch(r"seed-(\d+)", each.name)) for each in path.glob("*/seed-*") if each.is_dir()]
    found = [(each.parent.name, int(match[1]), each) for each, match in seeds if match]
    if not found:
        raise UserError(f"{path} holds no run: there is neither config.toml nor <algorithm>/seed-<n>/ in it{runs_below(path)}")
    methods = comparisons.in_order(path, [method for method, _, _ in found])
    found.sort(key=lambda each: (methods.index(each[0]), *each[1:]))
    unfinished = unfinished_runs(path)
    finished = [(method, each) for method, _, each in found if (each / "summary.json").is_file()]
    if not finished:
        failures = comparisons.find_failures(path)
        if failures and not unfinished:
            raise UserError(f"no run in {path} is finished: {failures[0]}")
        raise UserError(f"no run in {path} is finished: summary.json is missing in {unfinished[0]}; {RESUME} goes on with it")
    return [read_run(each, method=method) for method, each in finished]


def runs_below(path: pathlib.Path) -> str:
    """Returns for a message which runs lie further down, "" if none does."""
    for depth in ("seed-*", "*/seed-*", "*/*/seed-*"):
        found = sorted(str(file.parent) for file in path.glob(f"{depth}/config.toml"))
        if found:
            more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
            return f"; further down {'are' if len(found) > 1 else 'is'} {', '.join(found[:_MOST_NAMED])}{more}"
    return ""


def unfinished_runs(path: str | pathlib.Path) -> list[pathlib.Path]:
    """The runs of a comparison that have been started, but have neither a summary nor failed yet."""
    started = sorted(each.parent for each in pathlib.Path(path).glob("*/seed-*/config.toml"))
    return [each for each in started if not any((each / name).is_file() for name in ("summary.json", comparisons.FAILED))]


def read_run(path: str | pathlib.Path, method: str | None = None) -> RunFiles:
    """Reads the directory of one run.

    Args:
      path: The directory.
      method: What to call the run; the algorithm's name if not given.

    Raises:
      UserError: If a file is missing or damaged; the message names it.
    """
    path = pathlib.Path(path)
    config = _read_config(path / "config.toml")
    summary = _read_summary(path / "summary.json")
    check_results(path)
    rounds, clients = _read_rounds(path / "rounds.csv"), _read_clients(path / "clients.csv")
    return RunFiles(
        path=path,
        method=printable(method or summary["algorithm"]),
        config=config,
        summary=summary,
        rounds=rounds,
        clients=clients,
        clustering=read_arrays(path / "clustering.npz", clustering_of),
        representations=read_arrays(path / "representations.npz", representations_of),
        history=_read_history(path / "history", clients.client_id),
        splits=_read_splits(path / "splits.csv") if (path / "splits.csv").exists() else None,
        samples=read_arrays(path / "samples.npz", samples_of),
    )


def _read_splits(path: pathlib.Path) -> np.ndarray:
    table = csv_files.read_table(path, SPLIT_COLUMNS)
    splits = (
        np.stack([table.integers(name, empty=NO_CLUSTER) for name in SPLIT_COLUMNS], axis=1)
        if table.rows
        else np.zeros([0, 3], int)
    )
    known = {0, *splits[:, 2].tolist()}
    if not set(splits[:, 1].tolist()) <= known or len(known) != len(splits) + 1:
        raise csv_files.damaged(path, "a cluster is split that was never founded, or founded twice")
    return splits


def _read_history(directory: pathlib.Path, client_ids: np.ndarray) -> dict[int, np.ndarray]:
    history, place = {}, {client: row for row, client in enumerate(client_ids.tolist())}
    for path in sorted(directory.glob("*.npy")):
        try:
            with opened(path) as file:
                then, clusters = np.load(file, allow_pickle=False)
            rows, round_number = [place[str(client)] for client in then.tolist()], int(path.stem)
            found = clusters.astype(int)
        except KeyError as error:
            raise csv_files.damaged(path, f"client {error} is not in clients.csv") from error
        except Exception as error:  # NumPy's errors for damaged headers are of a dozen types
            raise csv_files.damaged(path, error) from error
        history[round_number] = np.full(len(client_ids), NO_CLUSTER)
        history[round_number][rows] = found
    return history


def _read_config(path: pathlib.Path) -> dict:
    found = read_toml(path)
    if not found:
        raise csv_files.damaged(path, "it is empty")
    return found


def _read_summary(path: pathlib.Path) -> dict:
    summary = read_json(path)
    for key, kind in (("task", str), ("algorithm", str), ("seed", int), ("rounds", int)):
        if not isinstance(summary.get(key, 0 if key == "rounds" else None), kind):  # very old runs have noted no rounds
            raise csv_files.damaged(path, f"{key} is {summary.get(key)!r:.100}")
    check_summary(path.parent)
    notes = summary.get("notes", [])
    if not (isinstance(notes, list) and all(isinstance(each, str) for each in notes)):
        raise csv_files.damaged(path, f"notes is {notes!r:.100}, not a list of texts")
    accuracy = summary.get("accuracy")  # null where none was measured
    kinds = () if accuracy is None else ("cluster", "local", "global")
    missing = [kind for kind in kinds if not isinstance(accuracy, dict) or kind not in accuracy]
    if missing:
        raise csv_files.damaged(path, f"there is no accuracy.{missing[0]}")
    return summary


def _read_rounds(path: pathlib.Path) -> dict[str, np.ndarray]:
    table = csv_files.read_table(path, ROUND_COLUMNS)
    if np.any(table.integers("round", empty=0) < 1):
        raise csv_files.damaged(path, "a row is of no round")
    optional = [name for name in OPTIONAL_ROUND_COLUMNS if name in table.names]
    return {name: table.floats(name) for name in (*ROUND_COLUMNS, *optional)}


def _read_clients(path: pathlib.Path) -> Clients:
    table = csv_files.read_table(path, CLIENT_COLUMNS)
    if not table.rows:
        raise csv_files.damaged(path, "it has no clients")
    labels = sum(re.fullmatch(r"label_\d+", name) is not None for name in table.names)
    missing = [f"label_{each}" for each in range(labels) if f"label_{each}" not in table.names]
    if missing:
        raise csv_files.damaged(path, f"there is no column {missing[0]}")
    counts = [table.integers(f"label_{each}", empty=0) for each in range(labels)]
    return Clients(
        client_id=table.texts("client_id"),
        true_cluster=table.texts("true_cluster"),
        cluster=table.integers("cluster", empty=NO_CLUSTER),
        examples=table.integers("examples", empty=0),
        test_examples=table.integers("test_examples", empty=0),
        rounds_trained=table.integers("rounds_trained", empty=0),
        cluster_accuracy=table.floats("cluster_accuracy"),
        local_accuracy=table.floats("local_accuracy"),
        label_counts=np.stack(counts, axis=1) if counts else np.zeros([len(table.rows), 0], int),
    )
