"""The order in which clients are drawn: by cluster, with similar clients of a cluster near each other."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
from scipy.cluster import hierarchy


@dataclasses.dataclass(frozen=True)
class Block:
    """Neighbours with the same name in a drawing: from `start` to before `stop`."""

    name: object
    start: int
    stop: int

    @property
    def middle(self) -> float:
        """The middle of the block, if item i is drawn at place i."""
        return (self.start + self.stop - 1) / 2

    @property
    def size(self) -> int:
        return self.stop - self.start


def ranks(names: Sequence) -> np.ndarray:
    """Returns, for each name, its group's place among the groups.

    Numbers are ordered as numbers, even if they are text; a missing name ("", or a negative number that is not text)
    comes last.
    """
    distinct, inverse = np.unique(np.asarray(names), return_inverse=True)
    place = np.empty(len(distinct), int)
    place[sorted(range(len(distinct)), key=lambda index: _natural(distinct[index]))] = np.arange(len(distinct))
    return place[inverse]


def by_group(names: Sequence, *then: np.ndarray) -> np.ndarray:
    """Returns the order of items by group, within a group by `then`, and otherwise in the given order."""
    return np.lexsort((*reversed(then), ranks(names)))


def by_cluster(labels: np.ndarray, merges: np.ndarray | None = None) -> np.ndarray:
    """Returns the order of clients by cluster, and within a cluster by their order in the tree, if there is one."""
    if merges is None or not len(merges):
        return by_group(labels)
    place = np.empty(len(labels), int)
    place[hierarchy.leaves_list(np.asarray(merges, float))] = np.arange(len(labels))
    return by_group(labels, place)


def node_clusters(merges: np.ndarray, labels: Sequence[int]) -> list[int]:
    """Returns the cluster of each node of a tree, as its place among the clusters; -1 if it joins several clusters."""
    clusters = ranks(labels).tolist()
    for left, right in merges[:, :2].astype(int):
        clusters.append(clusters[left] if clusters[left] == clusters[right] else -1)
    return clusters


def blocks(ordered: Sequence) -> list[Block]:
    """Returns the stretches of equal names in a sequence."""
    ordered = np.asarray(ordered)
    if not len(ordered):
        return []
    edges = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(ordered)]
    return [Block(ordered[start].item(), start, stop) for start, stop in itertools.pairwise(edges)]


def cluster_name(label: object) -> str:
    """Returns the name of a cluster or group in drawings."""
    return "none" if _natural(label)[0] else str(label)


def _natural(name) -> tuple[bool, float, str]:
    text = str(name)
    try:
        number = float(text)
    except ValueError:
        return (text == "", np.inf, text)
    if np.isnan(number):  # "nan" is text, too
        return (False, np.inf, text)
    return (number < 0 and not isinstance(name, str), number, text)
