"""Forms the client relatedness of FLT from the centres that clients sent (FCR, Alg. 2), and places newcomers in it."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from tffcl.choices import GAP
from tffcl.clients.large_rows import joined, let_go, slices
from tffcl.clustering import hierarchical, taskonomy
from tffcl.display import counted


def suggested_gamma(apart: np.ndarray, unit: str = "") -> hierarchical.Suggestion:
    """Suggests γ: the height at which the tree of average linkage has its largest relative gap.

    This needs no knowledge of the groups. FLT says only that γ "can be tuned"; the rule is ours, see
    `hierarchical.suggest_threshold`. Single linkage would have no gap if groups form a ring in which each shares a
    class with the next, as in FLT's scenario 2.

    Args:
      apart: `float [N, N]`, distances of clients in the map.
      unit: The unit, for the suggestion's sentence.
    """
    return hierarchical.suggest_threshold(hierarchical.build_dendrogram(apart, "average"), unit=unit)


@dataclasses.dataclass(frozen=True, eq=False)
class ClientRelatedness:
    """Forms the client relatedness from the centres that clients sent.

    Attributes:
      metric: A name in `choices.DISTANCES`.
      threshold: γ, clients nearer than this in the map are related; `GAP` for `suggested_gamma`.
      num_clusters: C, for the disjoint clusters; None for the number that fits best.
      layout: Options of `taskonomy.fit_map`.
      seed: Seed of the map.
    """

    metric: str
    threshold: float | str
    num_clusters: int | None
    layout: Mapping[str, float]
    seed: int

    def form(self, centres: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Alg. 2 lines 13 to 19.

        Args:
          centres: `float32 [N, k, e]`.
          mask: `bool [N, k]`.

        Returns:
          The disjoint clusters `int32 [N]`, and what the state keeps: `centres`, `mask`, `points` (the map), `mapped`
          (`bool [N]`, the clients whose centres the map was made of), `proximity` (distances in the map),
          `relatedness`, `merges` (Ward's tree of its rows), `threshold` (a height at which the tree gives the
          clusters), `gamma` (γ).
        """
        points, apart = self.distances(centres, mask)
        labels, cut = self.flattened(apart)
        mapped = np.ones(len(centres), bool)
        return labels, {"centres": centres, "mask": mask, "points": points, "mapped": mapped, "proximity": apart, **cut}

    def distances(self, centres: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Lines 13 to 16: the map's points, and the clients' distances in it."""
        points = self._map(centres, mask).points
        return points, taskonomy.client_distances(points, mask, distance=self.metric)

    def flattened(self, apart: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Lines 17 to 19: the disjoint clusters; `relatedness`, `merges`, `threshold` and `gamma`."""
        gamma = self.gamma(apart)
        relatedness = taskonomy.relate(apart, gamma)
        labels, merges = taskonomy.flatten(relatedness, self.num_clusters)
        threshold = hierarchical.threshold_of(hierarchical.Dendrogram(merges, "ward"), int(labels.max()) + 1)
        cut = {"merges": merges, "threshold": np.float64(threshold), "gamma": np.float64(gamma)}
        return labels, {"relatedness": relatedness, **cut}

    def gamma(self, apart: np.ndarray) -> float:
        """γ for these distances; if no γ separates the clients, one above all distances."""
        if self.threshold != GAP:
            return float(self.threshold)
        suggested = suggested_gamma(apart).threshold
        return suggested if suggested > 0 else float(np.nextafter(apart.max(initial=0), np.inf))

    def doubts(self, state, unit: str) -> tuple[str, ...]:
        """Says why a state has fewer clusters than asked for, and whether the rule for γ is unsure.

        Args:
          state: As in `place`, with the clusters as `assignment`.
          unit: The unit of the distances.
        """
        found, wanted = int(state.assignment.max()) + 1, self.num_clusters or 0
        fewer = (
            f"num_clusters is {wanted}, but there {'is' if found == 1 else 'are'} {counted(found, 'cluster')}: clients "
            f"with the same relatives, nearer than threshold {float(state.gamma):.4g}, stay together",
        )
        placed = np.ix_(state.mapped, state.mapped)  # newcomers do not change γ
        unsure = suggested_gamma(state.proximity[placed], unit).doubts if self.threshold == GAP else ()
        return (*(fewer if found < wanted else ()), *unsure)

    def place(self, state, centres: np.ndarray, mask: np.ndarray):
        """Places newcomers in the map of the others.

        The map is fitted again, to the centres that it was made of. On another machine, or with another version of
        umap-learn, this may be another layout than that of the stored points, so all points are those of the new fit.

        Args:
          state: The results of `form` for the others, as attributes.
          centres: `float32 [B, k, e]`.
          mask: `bool [B, k]`.

        Returns:
          The points `[N + B, k, u]` and distances `[N + B, N + B]` of the others and, after them, the newcomers.
        """
        # with earlier newcomers it would be another map than the one that related the others
        mapped = state.mapped
        fitted = self._map(state.centres[mapped], state.mask[mapped])
        points = np.empty([*state.mask.shape, fitted.points.shape[2]], np.float32)
        points[mapped] = fitted.points
        points[~mapped] = fitted.place(state.centres[~mapped], state.mask[~mapped])
        points = np.concatenate([points, fitted.place(centres, mask)])
        return points, taskonomy.client_distances(points, np.concatenate([state.mask, mask]), distance=self.metric)

    def _map(self, centres, mask):
        return taskonomy.fit_map(centres, mask, seed=self.seed, **self.layout)


def starting_models(models: np.ndarray, rows: np.ndarray, related: np.ndarray, across: np.ndarray) -> np.ndarray:
    """Returns the models that newcomers start from, `float32 [B, P]`.

    Args:
      models: `float32 [K, P]`, the different models of the old clients.
      rows: `int32 [N]`, each old client's row of the models.
      related: `[B, N]` of 0 and 1, which old clients each newcomer is related to.
      across: `float [N, B]`, distances of old clients and newcomers.
    """
    nearest = np.eye(len(rows), dtype=np.float32)[across.argmin(axis=0)]
    shares = np.where(related.any(axis=1, keepdims=True), related, nearest).astype(np.float32)
    shares /= shares.sum(axis=1, keepdims=True)
    # These are shares of models, not of clients, so that a model of many clients is not copied for each of them.
    by_model = np.stack([np.bincount(rows, weights=share, minlength=len(models)) for share in shares])
    return by_model.astype(np.float32) @ models


def with_stored(
    mixes: np.ndarray, shares: np.ndarray, where: np.ndarray, models: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """Adds the models of clients outside the cohort to its mixes (FLT Alg. 3 line 17: W̄ has all).

    Args:
      mixes: `float32 [r, P]`, means over the cohort.
      shares: `[r, N]`, relatedness times number of examples.
      where: `[m]`, the cohort's columns.
      models: `float32 [K, P]`, from before the round.
      rows: `int32 [N]`, each client's row of the models.

    Returns:
      `float32 [r, P]`, the means over all clients.
    """
    absent = np.delete(np.arange(shares.shape[1]), where)
    of_models = np.zeros((len(models), len(mixes)), np.float32)
    np.add.at(of_models, rows[absent], shares[:, absent].T)
    of_cohort, total = shares[:, where].sum(axis=1, keepdims=True), shares.sum(axis=1, keepdims=True)

    def parts():
        for few in slices(len(mixes), mixes[:1].nbytes):
            yield (of_cohort[few] * mixes[few] + of_models[:, few].T @ models) / total[few]
            let_go(models)
            let_go(mixes)

    return joined(parts(), mixes.shape)


def only_used(models: np.ndarray, new: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns only the models that clients have, and each client's row; `rows` counts `models` first, then `new`."""
    used, renumbered = np.unique(rows, return_inverse=True)
    renumbered = renumbered.astype(np.int32)
    old, added = used[used < len(models)], used[used >= len(models)] - len(models)
    if not len(old) and len(added) == len(new):
        return new, renumbered

    def parts():
        for source, wanted in ((models, old), (new, added)):
            for few in slices(len(wanted), source[:1].nbytes):
                yield source[wanted[few]]
                let_go(source)

    return joined(parts(), (len(used), models.shape[1])), renumbered
