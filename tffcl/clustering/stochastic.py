"""Stochastic clustering: clusters grow as clients become known, a cohort at a time.

Source: StoCFL (arXiv:2303.00897), Alg. 1 lines 3 to 17, Eq. 2, section 3.3.
"""

import dataclasses

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

# τ = -1 is below all cosines, but rounding puts those of opposite vectors below -1.
_BELOW_ALL = -1.5

# The number of cosines that are compared together: 16 MB as float32.
_STRIP = 2**22


@dataclasses.dataclass(frozen=True, eq=False)
class Partition:
    """The clusters whose signatures the server has; a client that is not known yet is in none of them.

    Attributes:
      ids: Int32 [K], ascending.
      sums: Float32 [K, d], the sum of the members' signatures. Its direction is that of their mean, which is all that a
        cosine needs.
      sizes: Int32 [K], the number of members.
      changed: Bool [K], whether a cluster is new or has changed since it was compared with the others.
    """

    ids: np.ndarray
    sums: np.ndarray
    sizes: np.ndarray
    changed: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)


@dataclasses.dataclass(frozen=True, eq=False)
class Merging:
    """The result of merging the clusters of a partition.

    Attributes:
      partition: The clusters after merging.
      places: Int32 [K], the place of each old cluster in this partition.
    """

    partition: Partition
    places: np.ndarray

    @property
    def merges(self) -> int:
        """The number by which the clusters have become fewer."""
        return len(self.places) - len(self.partition)


def unit_vectors(vectors: np.ndarray) -> np.ndarray:
    """Scales rows [n, d] to length 1; a row of zeros stays, and has the cosine 0 with all others."""
    vectors = np.asarray(vectors, np.float32)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)


def cosine_distances(vectors: np.ndarray, others: np.ndarray | None = None) -> np.ndarray:
    """Returns 1 minus the cosines of rows [N, d], among each other or with others [M, d]: float32 [N, N] or [N, M],
    from 0 to 2."""
    first = unit_vectors(vectors)
    if others is not None:
        return np.clip(1 - first @ unit_vectors(others).T, 0, 2)
    distances = np.clip(1 - first @ first.T, 0, 2)
    np.fill_diagonal(distances, 0)
    return (distances + distances.T) / 2


def objective(sums: np.ndarray) -> float:
    """Eq. 2: the sum of the cosines of all pairs of clusters [K, d], in O(K d)."""
    units = unit_vectors(sums).astype(np.float64)
    whole = units.sum(axis=0)
    return float((whole @ whole - (units**2).sum()) / 2)


def with_singletons(partition: Partition, ids: np.ndarray, signatures: np.ndarray) -> Partition:
    """Adds clusters of one client each, whose signatures have arrived (Alg. 1 lines 5 to 8).

    Args:
      partition: The partition before.
      ids: Integers [n], new cluster IDs.
      signatures: Float32 [n, d].
    """
    ids = np.concatenate([partition.ids, ids]).astype(np.int32)
    order = np.argsort(ids)
    count = len(signatures)
    return Partition(
        ids[order],
        np.concatenate([partition.sums, signatures])[order],
        np.concatenate([partition.sizes, np.ones(count, np.int32)])[order],
        np.concatenate([partition.changed, np.ones(count, bool)])[order],
    )


def with_members(partition: Partition, ids: np.ndarray, signatures: np.ndarray) -> Partition:
    """Puts clients into clusters; IDs that do not exist yet are new clusters.

    Args:
      partition: The partition before.
      ids: Integers [n], the cluster of each client.
      signatures: Float32 [n, d].
    """
    touched, which = np.unique(ids, return_inverse=True)
    founded = np.setdiff1d(touched, partition.ids)
    nothing = np.zeros([len(founded), partition.sums.shape[1]], np.float32)
    grown = with_singletons(partition, founded, nothing)
    places = np.searchsorted(grown.ids, touched)
    sums, sizes, changed = grown.sums, grown.sizes, grown.changed
    sums[places] += summed(signatures, which, len(touched))
    sizes[np.searchsorted(grown.ids, founded)] = 0
    sizes[places] += np.bincount(which).astype(np.int32)
    changed[places] = True
    return Partition(grown.ids, sums, sizes, changed)


def merge(partition: Partition, threshold: float, linkage: str = "single") -> Merging:
    """Merges clusters whose cosine is above the threshold (Alg. 1 lines 9 to 17).

    "single" is the algorithm as printed: the cosines are those before any merge of the round, and merging is
    transitive, so the order of the pairs does not matter, and each new cluster is a connected component of the graph of
    the pairs above τ. Representations that changed are compared again in the next round. Merging all clients at once is
    thus agglomerative clustering with single linkage, cut at the cosine τ: one pair above it joins two groups.

    "centroid" averages after each step, so that a single pair cannot mislead it: pairs that are each other's most
    similar merge and are replaced by their means, until no pair is above τ. All changed clusters are compared again
    after every such step, about a fifth as many as there are new clients, so it is for cohorts of hundreds, not of
    thousands.

    Only clusters that are new or changed are compared with all others, since the pairs among the rest were compared
    before, with the same result. Memory is bounded: there is no matrix of all pairs.

    Args:
      partition: The partition before.
      threshold: τ; a cosine equal to it does not merge.
      linkage: A name in `MERGE_RULES`.

    Returns:
      The partition after merging; a new cluster has the lowest ID of its parts.
    """
    touched, threshold = np.flatnonzero(partition.changed), _limit(threshold)
    if linkage == "single":
        return _joined(partition, connected(unit_vectors(partition.sums), touched, threshold))
    places = np.arange(len(partition))
    while True:
        labels, near = _mutual(unit_vectors(partition.sums), touched, threshold)
        step = _joined(partition, labels)
        partition, places = step.partition, step.places[places]
        if step.merges == 0:
            return Merging(partition, places.astype(np.int32))
        touched = np.flatnonzero(partition.changed | np.isin(np.arange(len(partition)), step.places[near]))


_EQUAL = 1 - 1e-6  # a cosine from which directions are the same up to rounding


def _limit(threshold: float) -> float:
    return threshold if threshold > -1 else _BELOW_ALL


def _mutual(units: np.ndarray, touched: np.ndarray, threshold: float) -> tuple[np.ndarray, np.ndarray]:
    """Joins clusters that are each other's most similar, above the threshold.

    Args:
      units: Float32 [K, d].
      touched: Integers [t], ascending; no pair of others is above the threshold.
      threshold: τ.

    Returns:
      `(labels, near)`: component numbers int64 [K] as in `connected`, and the touched clusters with a pair above τ.
    """
    count = len(units)
    best, other = np.full(count, -2, np.float32), np.arange(count)
    own = np.full(len(touched), -2, np.float32)
    rows_at_a_time = max(1, _STRIP // max(count, 1))
    for start in range(0, len(touched), rows_at_a_time):
        rows = touched[start : start + rows_at_a_time]
        found = np.minimum(units[rows] @ units.T, 1)
        found[np.arange(len(rows)), rows] = -2
        own[start : start + len(rows)] = found.max(axis=1)
        for axis, which, names in ((1, rows, np.arange(count)), (0, np.arange(count), rows)):
            highest, place = found.max(axis=axis), names[found.argmax(axis=axis)]
            better = (highest > best[which]) | ((highest == best[which]) & (place < other[which]))
            best[which[better]], other[which[better]] = highest[better], place[better]
    labels = np.arange(count)
    mutual = (other[other] == labels) & (best > threshold)
    labels = _united(labels, labels[mutual], other[mutual])
    return np.unique(labels, return_inverse=True)[1], touched[own > threshold]


def merge_sampled(partition: Partition, ids: np.ndarray, signatures: np.ndarray, threshold: float) -> Merging:
    """Does the same as `merge`, but by the clients of a cohort only, as the authors' code does.

    Args:
      partition: The partition before; its sums are updated, but not used.
      ids: Integers [m], the cluster of each client of the cohort.
      signatures: Float32 [m, d], the signatures of these clients.
      threshold: τ.
    """
    present, which = np.unique(ids, return_inverse=True)
    sampled = summed(signatures, which, len(present))
    found = connected(unit_vectors(sampled), np.arange(len(present)), _limit(threshold))
    # Every component has the number of its first cluster, so that the others keep theirs.
    places = np.searchsorted(partition.ids, present)
    _, first = np.unique(found, return_index=True)
    labels = np.arange(len(partition))
    labels[places] = places[first[found]]
    return _joined(partition, np.unique(labels, return_inverse=True)[1])


def summed(values: np.ndarray, which: np.ndarray, count: int) -> np.ndarray:
    """Sums rows [n, d] by group, float32 [count, d]; `which` [n] are the groups."""
    groups = sparse.csr_matrix((np.ones(len(which), np.float32), (which, np.arange(len(which)))), (count, len(which)))
    return np.asarray(groups @ np.asarray(values, np.float32))


def connected(units: np.ndarray, touched: np.ndarray, threshold: float) -> np.ndarray:
    """Finds the connected components of the graph of pairs with a cosine above the threshold.

    Args:
      units: Float32 [K, d], rows of length 1 (or 0).
      touched: Integers [t], ascending; only pairs with at least one of these are considered.
      threshold: τ.

    Returns:
      Int64 [K], component numbers from 0, ascending by their first member.
    """
    count = len(units)
    labels = np.arange(count)
    if threshold >= 1:  # no cosine is above 1, except by rounding
        return labels
    order = np.concatenate([touched, np.setdiff1d(labels, touched)])
    arranged, start = units[order], 0
    while start < len(touched):
        stop = min(len(touched), start + max(1, _STRIP // (count - start)))
        # The rows before were compared with all, so their pairs with these are known.
        rows, others = np.nonzero(arranged[start:stop] @ arranged[start:].T > threshold)
        labels = _united(labels, labels[order[start + rows]], labels[order[start + others]])
        start = stop
    return np.unique(labels, return_inverse=True)[1]


def _united(labels: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Components [K] after edges join components; a component's number is the lowest of its parts'."""
    across = first != second
    if not across.any():
        return labels
    count = len(labels)
    edges = sparse.coo_matrix((np.ones(across.sum(), bool), (first[across], second[across])), (count, count))
    _, found = csgraph.connected_components(edges, directed=False)
    _, least = np.unique(found, return_index=True)
    return least[found][labels]


def _joined(partition: Partition, labels: np.ndarray) -> Merging:
    """Puts clusters together by component numbers [K], which are ascending by first member."""
    count = int(labels.max(initial=-1)) + 1
    parts = np.bincount(labels, minlength=count)
    _, first = np.unique(labels, return_index=True)
    sums = partition.sums[first]
    grown = np.flatnonzero(parts > 1)
    if len(grown):
        moving = np.flatnonzero(parts[labels] > 1)
        sums[grown] = summed(partition.sums[moving], np.searchsorted(grown, labels[moving]), len(grown))
    sizes = np.bincount(labels, weights=partition.sizes, minlength=count).astype(np.int32)
    return Merging(Partition(partition.ids[first], sums, sizes, parts > 1), labels.astype(np.int32))


def merge_models(
    models: np.ndarray, weights: np.ndarray, places: np.ndarray, rule: str
) -> tuple[np.ndarray, np.ndarray]:
    """Merges the models of clusters that became one.

    Args:
      models: Float32 [n, P], the models of the clusters that have one.
      weights: Numbers [n], the members that trained each model.
      places: Integers [n], the cluster that each is now a part of.
      rule: A name in `MODEL_MERGES`; of equally large clusters the first one's model wins.

    Returns:
      `(places, models)`: the different places, ascending, and float32 [len(places), P].
    """
    present, which = np.unique(places, return_inverse=True)
    if rule == "larger":
        order = np.lexsort((np.arange(len(places)), -np.asarray(weights, float), which))
        _, first = np.unique(which[order], return_index=True)
        return present, models[order[first]]
    shares = np.asarray(weights, np.float64)
    shares = shares / np.bincount(which, weights=shares)[which]
    mixing = sparse.csr_matrix((shares.astype(np.float32), (which, np.arange(len(which)))), (len(present), len(which)))
    return present, np.asarray(mixing @ models, np.float32)


@dataclasses.dataclass(frozen=True, eq=False)
class Inference:
    """The clusters of newcomers (section 3.3).

    Attributes:
      closest: Int64 [B], the place of the nearest known cluster.
      founded: Int64 [B], the number from 0 of a newcomer's new cluster; -1 for a newcomer that joined `closest`.
    """

    closest: np.ndarray
    founded: np.ndarray


def infer(partition: Partition, signatures: np.ndarray, threshold: float) -> Inference:
    """Finds the clusters of newcomers (section 3.3).

    A newcomer joins the closest cluster if its cosine reaches the threshold. The others are put into new clusters,
    together with similar newcomers. All are compared with the clusters as they were, so their order does not matter.

    Args:
      partition: At least one cluster.
      signatures: Float32 [B, d].
      threshold: τ.
    """
    closest, cosines = nearest(signatures, partition.sums)
    founded = np.full(len(closest), -1, np.int64)
    alone = np.flatnonzero(cosines < min(_limit(threshold), _EQUAL))
    founded[alone] = connected(unit_vectors(signatures[alone]), np.arange(len(alone)), threshold)
    return Inference(closest, founded)


def nearest(vectors: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Finds for each row [n, d] the row of `others` [K, d] with the largest cosine, the first of equal ones.

    Returns:
      `(int64 [n], float32 [n])`: which, and the cosine.
    """
    units, known = unit_vectors(vectors), unit_vectors(others)
    closest, cosines = np.zeros(len(units), np.int64), np.zeros(len(units), np.float32)
    rows_at_a_time = max(1, _STRIP // len(known))
    for start in range(0, len(units), rows_at_a_time):
        found = np.minimum(units[start : start + rows_at_a_time] @ known.T, 1)
        rows = slice(start, start + len(found))
        closest[rows] = found.argmax(axis=1)
        cosines[rows] = found.max(axis=1)
    return closest, cosines


@dataclasses.dataclass(frozen=True, eq=False)
class KnownClients:
    """What the server knows of the clients whose signatures it has.

    Attributes:
      mask: Bool [N], the clients that are known.
      trained: Bool [N], those of them that have trained.
      signatures: Float32 [M, d], the signatures of the known clients, in order of client ID.
      partition: Their clusters.
      rows: Int32 [K], each cluster's row of the state's models; -1 for a cluster that has never trained.
    """

    mask: np.ndarray
    trained: np.ndarray
    signatures: np.ndarray
    partition: Partition
    rows: np.ndarray

    @classmethod
    def nobody(cls, clients: int, size: int) -> "KnownClients":
        """The state in which no client is known; signatures have `size` numbers."""
        none = np.zeros(0, np.int32)
        partition = Partition(none, np.zeros([0, size], np.float32), none, np.zeros(0, bool))
        return cls(np.zeros(clients, bool), np.zeros(clients, bool), partition.sums, partition, none)

    def with_clients(self, where: np.ndarray, signatures: np.ndarray, partition, rows) -> "KnownClients":
        """The state with signatures [n, d] of the clients at the places `where` [n], ascending, and with the clusters
        after these arrived."""
        mask = self.mask.copy()
        mask[where] = True
        together = np.empty([mask.sum(), signatures.shape[1]], np.float32)
        new = np.isin(np.flatnonzero(mask), where)
        together[new], together[~new] = signatures, self.signatures
        return KnownClients(mask, self.trained, together, partition, rows)

    def with_strangers(self, count: int, order: np.ndarray) -> "KnownClients":
        """The state with more clients that are not yet known, in the new `order` of places."""
        nobody = np.zeros(count, bool)
        mask, trained = (np.concatenate([each, nobody])[order] for each in (self.mask, self.trained))
        return dataclasses.replace(self, mask=mask, trained=trained)

    def signatures_of(self, where: np.ndarray) -> np.ndarray:
        """Signatures `float32 [n, d]` of known clients at the places `where` [n]."""
        return self.signatures[np.cumsum(self.mask)[where] - 1]

    def places_of(self, clusters: np.ndarray) -> np.ndarray:
        """The places in the partition of the given cluster IDs."""
        return np.searchsorted(self.partition.ids, clusters)

    def merged_models(self, models: np.ndarray, assignment: np.ndarray, places: np.ndarray, count: int, rule: str):
        """Merges the models of clusters that have merged.

        Args:
          models: `float32 [R, P]`, to which `rows` refers.
          assignment: Int32 [N], the clusters of all clients before they merged.
          places: Int32 [K], the new cluster that each old one is a part of.
          count: The number of new clusters.
          rule: A name in `choices.MODEL_MERGES`.

        Returns:
          The models, those of merged clusters at their end, and `rows int32 [count]`.
        """
        rows = np.full(count, -1, np.int32)
        rows[places] = self.rows
        several = np.bincount(places, minlength=count)[places] > 1
        if not several.any():
            return models, rows
        weights = np.bincount(self.places_of(assignment[self.trained]), minlength=len(places))
        # If newcomers' clusters merge, which have copies of others' models, nobody has trained one of these.
        nobody = np.bincount(places, weights=weights, minlength=count)[places] == 0
        weights = np.where(nobody, self.partition.sizes, weights)[several]
        merged, found = merge_models(models[self.rows[several]], weights, places[several], rule)
        rows[merged] = len(models) + np.arange(len(merged))
        return np.concatenate([models, found]), rows
