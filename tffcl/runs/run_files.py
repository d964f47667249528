"""The files of a run, read into NumPy columns and arrays."""

import dataclasses
import functools
import math
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping

import numpy as np
from scipy.spatial.distance import squareform

from tffcl.display import Shown, percent
from tffcl.errors import UserError, printable
from tffcl.files import Table, damaged, opened, read_table, read_toml, whole_numbers
from tffcl.registry import GIVEN, ORACLE
from tffcl.runs import metrics
from tffcl.runs import run_directory as files
from tffcl.runs.cluster_history import NO_CLUSTER, read_history

CLIENT_COLUMNS = (
    "client_id", "true_cluster", "cluster", "examples", "test_examples", "rounds_trained", "cluster_accuracy",
    "local_accuracy",
)  # fmt: skip
_ENDLESS = "number", "epsilon"  # `digits` of metrics that may be infinite, such as losses
_ROUNDING = 1e-6  # by how much a number may be beyond the limits of its metric
_LARGEST = 2**63  # the largest number in a summary; bytes come closest to it


@dataclasses.dataclass(frozen=True, eq=False)
class Clients(Shown):
    """`clients.csv`, each column as an array; N clients, C classes.

    Attributes:
      client_id: str[N].
      true_cluster: str[N], "" if it is not known.
      cluster: int[N], `NO_CLUSTER` for a client that the method has put into none.
      examples: int[N], training examples.
      test_examples: int[N].
      rounds_trained: int[N].
      cluster_accuracy: float[N], a fraction; NaN if it was not measured.
      local_accuracy: float[N], a fraction; NaN for a client that never trained.
      label_counts: int[N, C], training examples of each class; C is 0 if they are not known.
      mixture: float[N, K], the weights of the K models whose mixture each client uses; K is 0 if each uses one model.
      test_set: int[N], equal for clients with the same test examples; the clients' rows if the file does not say.
      further: float[N] by column, e.g. `cluster_auc`, for metrics beside the accuracy; NaN where one is undefined.
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
    mixture: np.ndarray
    test_set: np.ndarray
    further: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.client_id)

    @property
    def true_groups(self) -> np.ndarray | None:
        """`true_cluster`; None if no client's is known."""
        return self.true_cluster if np.any(self.true_cluster != "") else None

    def facts(self):
        """How many clients there are, and how many of them have trained."""
        return {"clients": len(self), "have trained": int(np.count_nonzero(self.rounds_trained))}


@dataclasses.dataclass(frozen=True, eq=False)
class Clustering(Shown):
    """`clustering.npz`: what the server grouped the clients by.

    Attributes:
      client_ids: str[N].
      proximity: float[N, N].
      unit: Of `proximity` and `threshold`, e.g. "degrees".
      merges: SciPy linkage matrix, float[N-1, 4]; None for a grouping without a tree.
      threshold: The distance at which the tree is cut; None for a grouping without one.
      labels: int[N], the cluster of each client.
      suggestion: A sentence that says why this threshold.
      measure: Name of the proximity measure.
      linkage: Name of the linkage.
      tree_unit: The unit of the merges and the threshold.
      relatedness: float[N, N] of 0 and 1; None for methods without.
      points: float[N, k, u], the map of the clients' centres; None for methods without.
      mask: bool[N, k], which centres exist; None for methods without.
    """

    client_ids: np.ndarray
    proximity: np.ndarray
    unit: str
    merges: np.ndarray | None
    threshold: float | None
    labels: np.ndarray
    suggestion: str
    measure: str
    linkage: str
    tree_unit: str = ""
    relatedness: np.ndarray | None = None
    points: np.ndarray | None = None
    mask: np.ndarray | None = None

    def facts(self):
        """How many clients were compared, and by which measure."""
        return {"clients": len(self.client_ids), "measure": self.measure, "clusters": len(np.unique(self.labels))}


@dataclasses.dataclass(frozen=True, eq=False)
class Representations(Shown):
    """`representations.npz`: a map of what the clients sent about their data.

    Attributes:
      places: int[M], their rows in `clients.csv`.
      points: float[M, 2].
    """

    places: np.ndarray
    points: np.ndarray

    def facts(self):
        """How many clients are on the map."""
        return {"clients": len(self.places)}


@dataclasses.dataclass(frozen=True, eq=False)
class Samples(Shown):
    """`samples.npz`: some training images of each cluster.

    Attributes:
      images: uint8 [m, h, w, c] with c = 1 or 3.
      labels: int [m].
      clusters: int [m], the cluster of the client that holds each.
    """

    images: np.ndarray
    labels: np.ndarray
    clusters: np.ndarray

    def facts(self):
        """How many images there are, of how many clusters."""
        return {"images": len(self.images), "clusters": len(np.unique(self.clusters))}


class _Numbers:
    """Base of objects with the `summary` of a run, the columns of its `rounds.csv`, and the `path` of these files."""

    def number(self, *keys: str) -> float:
        """Returns a number of the summary, e.g. `number("accuracy", "cluster", "mean")`; NaN for null.

        Raises:
          UserError: If it is not a number.
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
        most = 1 if keys[0] == "accuracy" else sys.float_info.max if "metrics" in keys else _LARGEST
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= most:
            raise self._damaged(keys, value)
        return float(value)

    @property
    def has_given_groups(self) -> bool:
        """Whether the groups were given and not found, according to the notes."""
        return not {GIVEN, ORACLE}.isdisjoint(self.summary.get("notes", []))

    def exchanged(self) -> tuple[np.ndarray, float]:
        """Returns the bytes, down and up together, of each round, and those before the rounds, which are only in the
        summary."""
        of_rounds = self.rounds["down_bytes"] + self.rounds["up_bytes"]
        whole = self.number("traffic", "down_bytes") + self.number("traffic", "up_bytes")
        return of_rounds, whole - of_rounds.sum()

    def _damaged(self, keys, value) -> UserError:
        what = "a fraction" if keys[0] == "accuracy" else "a number"
        return UserError(f"{self.path / files.SUMMARY} is damaged: {'.'.join(keys)} is {value!r:.100}, not {what}")


@dataclasses.dataclass(frozen=True, eq=False)
class RunFiles(_Numbers, Shown):
    """What a run has written.

    Attributes:
      path: Its directory.
      method: Its name in tables and figures: the algorithm, or in a comparison, which may have variants of one
        algorithm, the name of its directory.
      config: `config.toml`.
      summary: `summary.json`.
      rounds: `rounds.csv`, float[R] for each of its columns that the table of metrics knows; NaN where a cell is empty.
      clients: `clients.csv`.
      clustering: `clustering.npz`; None for methods without a proximity matrix.
      representations: `representations.npz`; None for methods without.
      history: `history/*.npy`, int[N] by round: the clusters of the rows of `clients.csv` after the rounds that changed
        some; `NO_CLUSTER` for clients that were not there yet.
      splits: `splits.csv`, int[S, 3]: the round, the cluster that was split, and the cluster that this founded; None
        for methods that split none.
      samples: `samples.npz`; None if examples are not images.
      confusion: `confusion.npz`, by cluster int[C, C]: how many of its clients' test examples of a label (row) were
        answered with a label (column), the clusters with most clients first; None if labels are not classes.
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
    confusion: Mapping[int, np.ndarray] | None = None

    def facts(self):
        """Identifies the run, with its mean accuracy."""
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

    @property
    def label_names(self) -> list[str]:
        """The name, or else the number, of each class whose examples `clients` counts."""
        names, count = self.summary.get("label_names"), self.clients.label_counts.shape[1]
        return list(map(str, names if isinstance(names, list) and len(names) == count else range(count)))


class RunNumbers(_Numbers):
    """The two small files of a finished run from which all its tables are made; each is read on first use.

    Attributes:
      path: The directory of the run.
    """

    def __init__(self, path: pathlib.Path):
        self.path = path

    @functools.cached_property
    def summary(self) -> dict:
        """`summary.json`."""
        return _read_summary(files.RunDirectory(self.path))

    @functools.cached_property
    def rounds(self) -> Mapping[str, np.ndarray]:
        """The columns of `rounds.csv` that the table of metrics knows."""
        return _known_rounds(files.RunDirectory(self.path).rounds(), self.summary)


def by_method(runs: Iterable[RunFiles]) -> dict[str, list[RunFiles]]:
    """Returns the runs of each method, in the order in which methods first appear."""
    methods: dict[str, list[RunFiles]] = {}
    for run in runs:
        methods.setdefault(run.method, []).append(run)
    return methods


def read_run(path: str | pathlib.Path, method: str | None = None) -> RunFiles:
    """Reads the directory of one run.

    Args:
      path: The directory.
      method: The name of the run; the algorithm's name if not given.

    Raises:
      UserError: If a file is missing or damaged; the message names it.
    """
    directory = files.RunDirectory(path)
    config, summary = _read_config(directory / files.CONFIG), _read_summary(directory)
    rounds = _known_rounds(directory.rounds(*metrics.COLUMNS), summary)
    clients = _read_clients(directory / files.CLIENTS)
    if len(np.unique(clients.client_id)) < len(clients):
        raise damaged(directory / files.CLIENTS, "a client stands twice in it")
    run = RunFiles(
        path=directory.path, method=printable(method or summary["algorithm"]), config=config, summary=summary,
        rounds=rounds, clients=clients, clustering=read_arrays(directory / files.CLUSTERING, clustering_of),
        representations=read_arrays(directory / files.REPRESENTATIONS, representations_of),
        history=read_history(directory / files.HISTORY, clients.client_id.tolist(), summary["rounds"]),
        splits=_read_splits(directory / files.SPLITS) if (directory / files.SPLITS).exists() else None,
        samples=read_arrays(directory / files.SAMPLES, samples_of),
        confusion=read_arrays(directory / files.CONFUSION, confusion_of),
    )  # fmt: skip
    _check_of_one_run(run)
    return run


def _check_of_one_run(run: RunFiles):
    """Raises UserError if the tables and the summary are of different runs, or rows of clients are lost."""
    told = run.number("accuracy", "cluster", "mean")
    last = run.rounds["cluster_accuracy"][run.rounds[metrics.ROUND] == run.summary["rounds"]]
    for name, values in ((files.CLIENTS, run.clients.cluster_accuracy), (files.ROUNDS, last)):
        known = values[np.isfinite(values)]
        if known.size and abs(known.mean() - told) > _ROUNDING:
            raise damaged(run.path / name, f"its cluster_accuracy is not that of {files.SUMMARY}")


def _read_splits(path: pathlib.Path) -> np.ndarray:
    table = read_table(path, files.SPLIT_COLUMNS)
    splits = np.stack([table.integers(name, empty=NO_CLUSTER) for name in files.SPLIT_COLUMNS], axis=1)
    known = {0, *splits[:, 2].tolist()}
    if not set(splits[:, 1].tolist()) <= known or len(known) != len(splits) + 1:
        raise damaged(path, "a cluster is split that was never founded, or founded twice")
    return splits


def _read_config(path: pathlib.Path) -> dict:
    found = read_toml(path)
    if not found:
        raise damaged(path, "it is empty")
    return found


def _read_summary(directory: files.RunDirectory) -> dict:
    summary, path = directory.summary(), directory / files.SUMMARY
    if summary is None:
        raise UserError(f"{path} is missing; did the run finish?")
    notes = summary.get("notes", [])
    if not (isinstance(notes, list) and all(isinstance(each, str) for each in notes)):
        raise damaged(path, f"notes is {notes!r:.100}, not a list of texts")
    accuracy = summary.get("accuracy")  # null if none was measured
    kinds = () if accuracy is None else metrics.ACCURACIES
    missing = [kind for kind in kinds if not isinstance(accuracy, dict) or kind not in accuracy]
    if missing:
        raise damaged(path, f"there is no accuracy.{missing[0]}")
    clusters = summary.get("clusters")
    if not isinstance(clusters, dict) or clusters.get("count") is None:
        raise damaged(path, "there is no clusters.count")
    return summary


def _known_rounds(table: Table, summary: Mapping) -> dict[str, np.ndarray]:
    """Returns the columns of a `rounds.csv` that the table of metrics knows.

    It may have more rounds than the result: those of a longer run that was killed before it saved any of them. They are
    left out, because the result, whose traffic is in the summary, does not include them.

    Raises:
      UserError: If a number is impossible for its metric, or if not each round up to the result's last one is there
        once.
    """
    known = {name: found for name in table.names if (found := metrics.of_column(name))}
    columns = {name: table.floats(name) for name in table.names if name in (metrics.ROUND, *known)}
    for name, metric in known.items():
        least, most = (
            end if limit is None else limit for limit, end in zip(metric.limits, (-math.inf, math.inf), strict=True)
        )
        values = columns.get(name, np.zeros(0))
        outside = (metric.scale * values < least - _ROUNDING) | (metric.scale * values > most + _ROUNDING)
        wrong = values[outside | (np.isinf(values) & (metric.digits not in _ENDLESS))]
        if wrong.size:
            raise damaged(table.path, f"{name} is {wrong[0]:g}")
    numbers = columns[metrics.ROUND]
    every = np.arange(1, 1 + len(numbers))
    if numbers.size and (len(numbers) < summary["rounds"] or not np.array_equal(numbers, every)):
        raise damaged(table.path, f"its rounds are not those of {files.SUMMARY}")
    return {name: values[: summary["rounds"]] for name, values in columns.items()}


def _read_clients(path: pathlib.Path) -> Clients:
    table = read_table(path, CLIENT_COLUMNS)
    if not table.rows:
        raise damaged(path, "it has no clients")
    return Clients(
        client_id=table.texts("client_id"), true_cluster=table.texts("true_cluster"),
        cluster=table.integers("cluster", empty=NO_CLUSTER), examples=table.integers("examples", empty=0),
        test_examples=table.integers("test_examples", empty=0),
        rounds_trained=table.integers("rounds_trained", empty=0), cluster_accuracy=table.floats("cluster_accuracy"),
        local_accuracy=table.floats("local_accuracy"), label_counts=table.numbered("label", empty=0),
        mixture=table.numbered("weight"),
        test_set=table.integers("test_set", empty=0) if "test_set" in table.names else np.arange(len(table.rows)),
        further={name: table.floats(name) for name in table.names if metrics.is_further(name)},
    )  # fmt: skip


def read_arrays(path: pathlib.Path, make: Callable):
    """Reads an archive of arrays and returns what `make` makes of them; None if there is no such file.

    Raises:
      UserError: If it is damaged.
    """
    if not path.exists():
        return None
    try:
        with opened(path) as file, np.load(file, allow_pickle=False) as archive:
            arrays = dict(archive)
        return make(arrays)
    except KeyError as error:
        raise damaged(path, f"there is no {error}") from error
    except Exception as error:  # for damaged files NumPy and zipfile raise a dozen types
        raise damaged(path, error) from error


def representations_of(arrays: Mapping[str, np.ndarray]) -> Representations:
    """Makes Representations from the arrays of `representations.npz`."""
    places, points = arrays["places"], arrays["points"]
    if points.shape != (len(places), 2):
        raise ValueError(f"points is {points.shape}, for {len(places)} clients it must be {(len(places), 2)}")
    return Representations(whole_numbers(places, "places"), points.astype(float))


def samples_of(arrays: Mapping[str, np.ndarray]) -> Samples:
    """Makes Samples from the arrays of `samples.npz`."""
    images, labels, clusters = (arrays[name] for name in ("images", "labels", "clusters"))
    if images.ndim != 4 or images.dtype != np.uint8 or images.shape[3] not in (1, 3):
        raise ValueError(f"images is {images.dtype} {images.shape}; it must be uint8 [m, h, w, 1 or 3]")
    if not len(images) == len(labels) == len(clusters):
        raise ValueError(f"there are {len(images)} images, {len(labels)} labels and {len(clusters)} clusters")
    return Samples(images, whole_numbers(labels, "labels"), whole_numbers(clusters, "clusters"))


def confusion_of(arrays: Mapping[str, np.ndarray]) -> dict[int, np.ndarray]:
    """Makes confusion matrices by cluster from the arrays of `confusion.npz`."""
    clusters, counts = arrays["clusters"], arrays["counts"]
    square = counts.ndim == 3 and counts.shape[1] == counts.shape[2] and counts.dtype.kind == "i"
    if not square or clusters.shape != counts.shape[:1] or counts.min(initial=0) < 0:
        raise ValueError(f"counts is {counts.dtype} {counts.shape} of {len(clusters)} clusters")
    return dict(zip(whole_numbers(clusters, "clusters").tolist(), counts))


def _check_merges(merges: np.ndarray, count: int):
    """Raises ValueError if merges are not a tree of so many clients: SciPy's functions would read outside their
    memory."""
    sizes, left = [1] * count, set(range(count))
    for first, second, height, size in merges.tolist():
        pair = {first, second}
        there = len(pair) == 2 and pair <= left and math.isfinite(height)
        if not there or size != sizes[int(first)] + sizes[int(second)]:
            raise ValueError("merges is no tree of the clients")
        left -= pair
        left.add(len(sizes))
        sizes.append(int(size))


def _text(array: np.ndarray) -> str:
    return printable(str(array))


def clustering_of(arrays: Mapping[str, np.ndarray]) -> Clustering:
    """Makes Clustering from the arrays of `clustering.npz`."""
    client_ids, proximity = arrays["client_ids"].astype(str), arrays["proximity"]
    count = len(client_ids)
    if proximity.shape == (count * (count - 1) // 2,):
        proximity = squareform(proximity)
    merges = arrays.get("merges")
    # A threshold graph needs no tree; a method that uses one writes an empty linkage matrix, or none.
    if merges is not None and merges.size == 0 and count > 1:
        merges = None
    shapes = {"proximity": (count, count), "labels": (count,)} | ({} if merges is None else {"merges": (count - 1, 4)})
    sizes = arrays["points"].shape[1:2] if "points" in arrays else ()  # the most centres of a client
    shapes |= {
        name: shape for name, shape in (("relatedness", (count, count)), ("mask", (count, *sizes))) if name in arrays
    }
    for name, shape in shapes.items():
        found = (proximity if name == "proximity" else arrays[name]).shape
        if found != shape:
            raise ValueError(f"{name} is {found}, for {count} clients it must be {shape}")
    if merges is not None:
        _check_merges(merges, count)
    threshold = float(arrays["threshold"]) if "threshold" in arrays else math.nan
    return Clustering(
        client_ids=client_ids, proximity=proximity.astype(np.float64), unit=_text(arrays["unit"]),
        merges=None if merges is None else merges.astype(np.float64),
        threshold=threshold if math.isfinite(threshold) else None, labels=whole_numbers(arrays["labels"], "labels"),
        suggestion=_text(arrays["suggestion"]), measure=_text(arrays["measure"]), linkage=_text(arrays["linkage"]),
        tree_unit=_text(arrays.get("tree_unit", arrays["unit"])),
        **{name: arrays[name] for name in ("relatedness", "points", "mask") if name in arrays},
    )  # fmt: skip
