"""FedGWC: interaction-aware Gaussian weighting (Licciardi et al., ICML 2025, arXiv:2502.03340).

Comparing the losses of a round's clients shows which clients relate to all others in the same way. Once these
interactions have settled, a cluster is split by spectral clustering.
"""

import dataclasses
import warnings

import numpy as np
import tensorflow_federated as tff
from scipy.spatial import distance
from sklearn.cluster import SpectralClustering
from sklearn.manifold import SpectralEmbedding
from sklearn.metrics import davies_bouldin_score

from tffcl.algorithms.choosing_method import TryingMethod
from tffcl.algorithms.clustered_training import ClusteredTraining, build_clustered_training
from tffcl.algorithms.each_round_parameters import FedGWCParameters
from tffcl.algorithms.method import ClusteredState, Exports, Method, Views, method_builder
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clients.cohort import Cohort
from tffcl.clients.newcomers import check_newcomers, extended, joined_order
from tffcl.clients.population import Population
from tffcl.clustering.groupings import single_thread
from tffcl.models.flat import FlatModel

_WHEN = (
    "when clients join, with all models; it takes as many as were exported: where there are more after a split, run it "
    "several times, the last time with some of them twice; a newcomer takes the model of its least loss"
)


@dataclasses.dataclass(frozen=True, eq=False)
class FedGWCState(ClusteredState):
    """Adds the interactions P `float64 [N, N]`; for each cluster how much its interactions change, `float64 [K]`, and
    for how many rounds this was less than ε, `int32 [K]`; and `(round, cluster, founded cluster)` for each split."""

    interactions: np.ndarray | None = None
    changes: np.ndarray | None = None
    settled: np.ndarray | None = None
    splits: np.ndarray | None = None


class FedGWC(TryingMethod):
    """FedGWC, see `build_fedgwc`."""

    state_class = FedGWCState
    pair_bytes = 8  # for the interactions

    def __init__(self, engine: ClusteredTraining, parameters: FedGWCParameters, seed: int):
        super().__init__("fedgwc", engine, when=_WHEN)
        self._how, self._seed = parameters, seed

    def initialize(self, population: Population) -> FedGWCState:
        clients, none = len(population), np.zeros([0, 3], np.int32)
        fields = self.engine.start(population, np.zeros(clients, np.int32))
        uniform, settled = np.full([clients, clients], clients**-2.0), np.zeros(1, np.int32)
        return FedGWCState(**fields, interactions=uniform, changes=np.ones(1), settled=settled, splits=none)

    def next(self, state: FedGWCState, cohort: Cohort):
        state, metrics, result = self.engine.run(state, cohort)
        there = np.isin(state.client_ids, cohort.population.client_ids)
        for cluster in np.unique(metrics.clusters):
            chosen = metrics.clusters == cluster
            present, members = chosen.sum(), np.sum(there & (state.assignment == cluster))  # that have not left
            if present > 1:
                weights = gaussian_weights(result.collected["losses"][chosen], metrics.examples[chosen])
                where = state.index(metrics.client_ids[chosen])
                state = self._observed(state, cluster, present / members, where, weights)
                state = self._split(state, cluster, round(members / present), cohort.seed[1])
        return state, metrics

    def _observed(self, state: FedGWCState, cluster: int, share: float, where: np.ndarray, weights) -> FedGWCState:
        """The state after a round has weighed clients `where`, which are this share of a cluster."""
        block = np.ix_(where, where)
        seen, changes, settled = (getattr(state, name).copy() for name in ("interactions", "changes", "settled"))
        seen[block] = (1 - share) * seen[block] + share * weights[:, np.newaxis]
        moved = np.mean((seen[block] - state.interactions[block]) ** 2)
        changes[cluster] = (1 - share) * changes[cluster] + share * moved
        settled[cluster] = settled[cluster] + 1 if changes[cluster] < self._how.tolerance else 0
        return dataclasses.replace(state, interactions=seen, changes=changes, settled=settled)

    def _split(self, state: FedGWCState, cluster: int, rounds: int, number: int) -> FedGWCState:
        """The state after a cluster is split, if it has been settled for the rounds that meeting all clients takes."""
        members = np.flatnonzero(state.assignment == cluster)
        if len(members) < self._how.least_clients or state.settled[cluster] < rounds:
            return state
        affinity = affinity_of_perceptions(state.interactions[np.ix_(members, members)], self._how.gamma)
        labels = split(affinity, self._how.most_parts, self._seed)
        changes, settled = state.changes.copy(), state.settled.copy()
        changes[cluster], settled[cluster] = 1, 0
        if labels is None:
            return dataclasses.replace(state, changes=changes, settled=settled)
        count, more, assignment = len(state.models), labels.max(), state.assignment.copy()
        assignment[members[labels > 0]] = count - 1 + labels[labels > 0]
        founded = np.array([[number, cluster, new] for new in range(count, count + more)], np.int32)
        return dataclasses.replace(
            state,
            **self.engine.rearranged(state, np.append(np.arange(count), np.full(more, cluster))),
            assignment=assignment,
            changes=np.append(changes, np.ones(more)),
            settled=np.append(settled, np.zeros(more, np.int32)),
            splits=np.concatenate([state.splits, founded]),
        )

    def admit(self, state: FedGWCState, newcomers: Population) -> FedGWCState:
        """A newcomer takes the model with the lowest loss; it has not yet met another client."""
        check_newcomers(state, newcomers)
        joined, order = self.tried(state, newcomers).argmin(axis=1), joined_order(state, newcomers)
        seen = np.full([len(order)] * 2, len(order) ** -2.0)
        seen[: -len(newcomers), : -len(newcomers)] = state.interactions
        return dataclasses.replace(state, interactions=seen[np.ix_(order, order)], **extended(state, newcomers, joined))

    def exports(self) -> Exports:
        found = super().exports()
        note = (
            "after a round the coordinator weighs each cluster's clients by their `losses`, and splits a cluster whose "
            "`interactions` (of clustering/state.npz) have settled, whose parts go on from its model (Python, "
            "tffcl.algorithms.fedgwc)"
        )
        return dataclasses.replace(found, when={**found.when, "training": note})

    def views(self, state: FedGWCState) -> Views:
        takes = f"tolerance {self._how.tolerance}, and that takes {self._how.least_clients} clients or more"
        note = f"interactions change by {state.changes[0]:.1e}, {takes}"
        if state.changes[0] == 1:  # before any interaction, or after an attempt to split
            note = "its interactions had settled, and told no parts apart, or no two of its clients have met in a round"
        notes = () if len(state.splits) else (f"no cluster has split: {note}",)
        return dataclasses.replace(super().views(state), splits=state.splits, notes=notes)


@method_builder
def build_fedgwc(
    model: FlatModel,
    training: LocalTraining,
    parameters: FedGWCParameters = FedGWCParameters(),
    *,
    seed: int = 0,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> Method:
    """Builds FedGWC: clusters are split by how clients' losses compare with each other; as long as none splits it is
    FedAvg.

    From the paper: Gaussian rewards of losses, the interactions P_ij of clients that meet in a round, by (1 - α) P_ij +
    α ω_i with α the share of the cluster that takes part, unbiased perception vectors and their affinity, recursive
    splits by spectral clustering and the Davies-Bouldin score. From the authors' code: means weighted by examples, the
    rule when P has settled, no score above 1, parts that start from the split model. Ours: the losses are means over a
    client's epochs, not over a fixed number of steps; clusters share the round's cohort. If all clients take part in
    every round, their perceptions are all the same and nothing splits.

    Args:
      parameters: When and how clusters split.
      seed: Seed of the spectral clustering.
    """
    engine = build_clustered_training(model, training, aggregation=aggregation, trajectories=True)
    return FedGWC(engine, parameters, seed)


_LEAST_VARIANCE = 1e-16  # as in the authors' code


def gaussian_weights(losses: np.ndarray, examples: np.ndarray) -> np.ndarray:
    """Weighs the clients of a round by how near their losses are to the mean: each local step has the reward
    exp(-(l - μ)² / 2σ²), and a client's weight is its mean reward divided by the sum of these means over all clients.

    Args:
      losses: `float [m, S]`, each client's losses at S steps of its local training.
      examples: `int [m]`, the weight of each client in μ and σ².

    Returns:
      `float64 [m]`, which sum to 1.
    """
    losses, shares = np.asarray(losses, np.float64), np.asarray(examples, np.float64) / np.sum(examples)
    apart = (losses - shares @ losses) ** 2
    rewards = np.exp(-apart / 2 / (shares @ apart + _LEAST_VARIANCE)).mean(axis=1)
    return rewards / rewards.sum()


def affinity_of_perceptions(interactions: np.ndarray, gamma: float) -> np.ndarray:
    """Compares how clients relate to all others: exp(-γ ‖v_i - v_j‖²), where v_i is column i of the interactions,
    scaled to 0 to 1, without the entries of i and j themselves (unbiased perception vectors).

    Args:
      interactions: P `float [n, n]`: row i has the weights of client i in rounds with each other client.
      gamma: γ.

    Returns:
      `float64 [n, n]`, symmetric, with a zero diagonal.
    """
    seen = np.asarray(interactions, np.float64).T
    seen = (seen - seen.min()) / max(seen.max() - seen.min(), 1e-8)
    own = (seen.diagonal()[:, np.newaxis] - seen.T) ** 2  # (i, j): of entry i in the vectors of i and j
    apart = distance.squareform(distance.pdist(seen, "sqeuclidean")) - own - own.T
    found = np.exp(-gamma * np.maximum(apart, 0))
    np.fill_diagonal(found, 0)
    return found


def split(affinity: np.ndarray, most: int, seed: int) -> np.ndarray | None:
    """Splits a cluster by spectral clustering, into the number of parts with the lowest Davies-Bouldin score in the
    spectral embedding.

    Args:
      affinity: `float [n, n]`, the affinities of its clients.
      most: The largest number of parts.
      seed: Decides where the search for eigenvectors starts.

    Returns:
      `int32 [n]`, the part of each client; None if no score is below 1 or all clients are alike, so that the cluster
      stays whole.
    """
    others = affinity[~np.eye(len(affinity), dtype=bool)]
    if np.ptp(others) < 1e-9:  # all alike: every embedding is as good, and rounding would choose one
        return None
    best, found = 1.0, None
    for parts in range(2, min(most, len(affinity) - 1) + 1):
        options = {"n_components": parts, "affinity": "precomputed", "random_state": seed % 2**32}
        with single_thread(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about clients without affinities, and about few clients
            labels = SpectralClustering(parts, assign_labels="cluster_qr", **options).fit_predict(affinity)
            embedded = SpectralEmbedding(**options).fit_transform(affinity)
        if len(np.unique(labels)) == parts and (score := davies_bouldin_score(embedded, labels)) < best:
            best, found = score, labels.astype(np.int32)
    return found
