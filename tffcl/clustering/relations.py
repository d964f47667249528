"""Forms the client relatedness of FLT from the centres that clients sent (FCR, Alg. 2), and places newcomers in it."""

import dataclasses

import numpy as np

from tffcl.clustering import centre_map, hierarchical
from tffcl.clustering import client_relatedness as fcr


@dataclasses.dataclass(frozen=True, eq=False)
class ClientRelatedness:
    """Forms the client relatedness from the centres that clients sent.

    Attributes:
      metric: A name in `client_relatedness.DISTANCES`.
      threshold: γ, clients nearer than this in the map are related.
      num_clusters: C, for the disjoint clusters; None for the best fitting number.
      num_neighbors: Of UMAP.
      seed: Of the map.
    """

    metric: str
    threshold: float
    num_clusters: int | None
    num_neighbors: int
    seed: int

    def form(self, centres: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Alg. 2 lines 13 to 19.

        Args:
          centres: `float32 [N, k, e]`.
          mask: `bool [N, k]`.

        Returns:
          The disjoint clusters `int32 [N]`, and what the state keeps: `centres`, `mask`, `points` (the map), `mapped` (`bool
          [N]`, whose centres it was made of), `proximity` (distances in it), `relatedness`, `merges` (Ward's tree of the
          relatedness' rows), `threshold` (a height at which the tree gives the clusters).
        """
        points, apart = self.distances(centres, mask)
        labels, cut = self.flattened(apart)
        mapped = np.ones(len(centres), bool)
        return labels, {"centres": centres, "mask": mask, "points": points, "mapped": mapped, "proximity": apart, **cut}

    def distances(self, centres: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Lines 13 to 16: the map's points, and the clients' distances in it."""
        points = self._map(centres, mask).points
        return points, fcr.client_distances(points, mask, distance=self.metric)

    def flattened(self, apart: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Lines 17 to 19: the disjoint clusters; `relatedness`, `merges` and `threshold`."""
        relatedness = fcr.relate(apart, self.threshold)
        labels, merges = fcr.flatten(relatedness, self.num_clusters)
        threshold = hierarchical.threshold_of(hierarchical.Dendrogram(merges, "ward"), int(labels.max()) + 1)
        return labels, {"relatedness": relatedness, "merges": merges, "threshold": np.float64(threshold)}

    def place(self, state, centres: np.ndarray, mask: np.ndarray):
        """Places newcomers in the map of the others.

        Args:
          state: What `form` gave of the others, as attributes.
          centres: `float32 [B, k, e]`.
          mask: `bool [B, k]`.

        Returns:
          Their points, and distances to the others and to each other.
        """
        mapped = state.mapped  # with earlier newcomers it would be another map than that which has the others' points
        points = self._map(state.centres[mapped], state.mask[mapped]).place(centres, mask)
        distance = {"distance": self.metric}
        across = fcr.client_distances(state.points, state.mask, points, mask, **distance)
        return points, across, fcr.client_distances(points, mask, **distance)

    def _map(self, centres, mask):
        return centre_map.fit_map(centres, mask, seed=self.seed, num_neighbors=self.num_neighbors)


def starting_models(models: np.ndarray, rows: np.ndarray, related: np.ndarray, across: np.ndarray) -> np.ndarray:
    """The models that newcomers start from, `float32 [B, P]`.

    Args:
      models: `float32 [K, P]`, the different models of the old clients.
      rows: `int32 [N]`, which is whose.
      related: `[B, N]` of 0 and 1.
      across: `float [N, B]`, distances.
    """
    nearest = np.eye(len(rows), dtype=np.float32)[across.argmin(axis=0)]
    shares = np.where(related.any(axis=1, keepdims=True), related, nearest).astype(np.float32)
    shares /= shares.sum(axis=1, keepdims=True)
    # Shares of models, not of clients: a model that many clients have is not spread out for each of them.
    by_model = np.stack([np.bincount(rows, weights=share, minlength=len(models)) for share in shares])
    return by_model.astype(np.float32) @ models
