"""What a run has written as arrays: the matrix that clients were grouped by, a map of them, images of their data."""

import dataclasses
import math
import pathlib
from collections.abc import Callable, Mapping

import numpy as np

from tffcl import csv_files
from tffcl.display import Shown
from tffcl.errors import printable
from tffcl.regular_files import opened


@dataclasses.dataclass(frozen=True, eq=False)
class Clustering(Shown):
    """`clustering.npz`: what the server grouped the clients by.

    Attributes:
      client_ids: str[N].
      proximity: float[N, N].
      unit: Of `proximity` and `threshold`, e.g. "degrees".
      merges: SciPy linkage matrix, float[N-1, 4]; None for a grouping without a tree.
      threshold: Where the tree is cut; None for a grouping without one.
      labels: int[N], the cluster of each client.
      suggestion: A sentence: why this threshold.
      measure: Name of the proximity measure.
      linkage: Name of the linkage.
      tree_unit: Of the merges and the threshold.
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
        """Who was compared by what."""
        return {"clients": len(self.client_ids), "measure": self.measure, "clusters": len(np.unique(self.labels))}


@dataclasses.dataclass(frozen=True, eq=False)
class Representations(Shown):
    """`representations.npz`: the map of what clients sent of their data.

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
    """`write_results.npz`: some training images of each cluster.

    Attributes:
      images: uint8 [m, h, w, c] with c = 1 or 3.
      labels: int [m].
      clusters: int [m], whose clients hold them.
    """

    images: np.ndarray
    labels: np.ndarray
    clusters: np.ndarray

    def facts(self):
        """How many images there are, of how many clusters."""
        return {"images": len(self.images), "clusters": len(np.unique(self.clusters))}


def read_arrays(path: pathlib.Path, make: Callable):
    """Reads an archive of arrays, and makes of them what `make` says; None if there is no such file.

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
        raise csv_files.damaged(path, f"there is no {error}") from error
    except Exception as error:  # NumPy's and zipfile's errors for damaged files are of a dozen types
        raise csv_files.damaged(path, error) from error


def representations_of(arrays: Mapping[str, np.ndarray]) -> Representations:
    """Makes Representations of the arrays of `representations.npz`."""
    places, points = arrays["places"], arrays["points"]
    if points.shape != (len(places), 2):
        raise ValueError(f"points is {points.shape}, for {len(places)} clients it must be {(len(places), 2)}")
    return Representations(places.astype(int), points.astype(float))


def samples_of(arrays: Mapping[str, np.ndarray]) -> Samples:
    """Makes Samples of the arrays of `write_results.npz`."""
    images, labels, clusters = (arrays[name] for name in ("images", "labels", "clusters"))
    if images.ndim != 4 or images.dtype != np.uint8 or images.shape[3] not in (1, 3):
        raise ValueError(f"images is {images.dtype} {images.shape}; it must be uint8 [m, h, w, 1 or 3]")
    if not len(images) == len(labels) == len(clusters):
        raise ValueError(f"there are {len(images)} images, {len(labels)} labels and {len(clusters)} clusters")
    return Samples(images, labels.astype(int), clusters.astype(int))


def _check_merges(merges: np.ndarray, count: int):
    """Raises ValueError if merges are no tree of so many clients: SciPy's functions would read outside of their memory."""
    sizes, left = [1] * count, set(range(count))
    for first, second, height, size in merges.tolist():
        pair = {first, second}
        if len(pair) < 2 or not pair <= left or not math.isfinite(height) or size != sizes[int(first)] + sizes[int(second)]:
            raise ValueError("merges is no tree of the clients")
        left -= pair
        left.add(len(sizes))
        sizes.append(int(size))


def _text(array: np.ndarray) -> str:
    return printable(str(array))


def clustering_of(arrays: Mapping[str, np.ndarray]) -> Clustering:
    """Makes Clustering of the arrays of `clustering.npz`."""
    client_ids = arrays["client_ids"].astype(str)
    count = len(client_ids)
    merges = arrays.get("merges")
    # A threshold graph groups without a tree; such a method writes an empty linkage matrix, or none.
    if merges is not None and merges.size == 0 and count > 1:
        merges = None
    shapes = {"proximity": (count, count), "labels": (count,)} | ({} if merges is None else {"merges": (count - 1, 4)})
    sizes = arrays["points"].shape[1:2] if "points" in arrays else ()  # how many centres a client may have
    shapes |= {name: shape for name, shape in (("relatedness", (count, count)), ("mask", (count, *sizes))) if name in arrays}
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            raise ValueError(f"{name} is {arrays[name].shape}, for {count} clients it must be {shape}")
    if merges is not None:
        _check_merges(merges, count)
    threshold = float(arrays["threshold"]) if "threshold" in arrays else math.nan
    return Clustering(
        client_ids=client_ids,
        proximity=arrays["proximity"].astype(np.float64),
        unit=_text(arrays["unit"]),
        merges=None if merges is None else merges.astype(np.float64),
        threshold=threshold if math.isfinite(threshold) else None,
        labels=arrays["labels"].astype(np.int64),
        suggestion=_text(arrays["suggestion"]),
        measure=_text(arrays["measure"]),
        linkage=_text(arrays["linkage"]),
        tree_unit=_text(arrays.get("tree_unit", arrays["unit"])),
        **{name: arrays[name] for name in ("relatedness", "points", "mask") if name in arrays},
    )
