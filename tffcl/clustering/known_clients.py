"""What StoCFL's server keeps of the clients whose signatures it has: those that have taken part, and admitted newcomers."""

import dataclasses

import numpy as np

from tffcl.clustering import stochastic


@dataclasses.dataclass(frozen=True, eq=False)
class KnownClients:
    """What the server knows of the clients whose signatures it has.

    Attributes:
      mask: Bool [N], which clients.
      trained: Bool [N], those of them that have trained.
      signatures: Float32 [M, d], of these, in order of client ID.
      partition: Their clusters.
      rows: Int32 [K], the row of the state's models of each cluster; -1 for one that has never trained.
    """

    mask: np.ndarray
    trained: np.ndarray
    signatures: np.ndarray
    partition: stochastic.Partition
    rows: np.ndarray

    @classmethod
    def nobody(cls, clients: int, size: int) -> "KnownClients":
        """Of so many clients none; signatures have `size` numbers."""
        none = np.zeros(0, np.int32)
        partition = stochastic.Partition(none, np.zeros([0, size], np.float32), none, np.zeros(0, bool))
        return cls(np.zeros(clients, bool), np.zeros(clients, bool), partition.sums, partition, none)

    def with_clients(self, where: np.ndarray, signatures: np.ndarray, partition, rows) -> "KnownClients":
        """With signatures [n, d] of the clients at the places `where` [n], ascending, and the clusters after they came."""
        mask = self.mask.copy()
        mask[where] = True
        together = np.empty([mask.sum(), signatures.shape[1]], np.float32)
        new = np.isin(np.flatnonzero(mask), where)
        together[new], together[~new] = signatures, self.signatures
        return KnownClients(mask, self.trained, together, partition, rows)

    def with_strangers(self, count: int, order: np.ndarray) -> "KnownClients":
        """With so many more clients that are not known yet, in the new `order` of places."""
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
        """Merges the models of clusters that are one now.

        Args:
          models: `float32 [R, P]`, in which `rows` counts.
          assignment: Int32 [N], the clusters of all clients before they merged.
          places: Int32 [K], what the clusters before are part of now.
          count: How many clusters there are now.
          rule: A name in `stochastic.MODEL_MERGES`.

        Returns:
          The models, those of merged clusters at their end, and `rows int32 [count]`.
        """
        rows = np.full(count, -1, np.int32)
        rows[places] = self.rows
        several = np.bincount(places, minlength=count)[places] > 1
        if not several.any():
            return models, rows
        weights = np.bincount(self.places_of(assignment[self.trained]), minlength=len(places))
        # Where newcomers' clusters merge that have copies of others' models, nobody has trained any.
        nobody = np.bincount(places, weights=weights, minlength=count)[places] == 0
        weights = np.where(nobody, self.partition.sizes, weights)[several]
        merged, found = stochastic.merge_models(models[self.rows[several]], weights, places[several], rule)
        rows[merged] = len(models) + np.arange(len(merged))
        return np.concatenate([models, found]), rows
