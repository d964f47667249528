"""RR-Cluster: IFCA with a minimum size of clusters in every round, by random rebalancing (Yang, Hu, Kim, Li 2025,
arXiv:2508.06183), so that enough clients share the noise of private means."""

import dataclasses

import numpy as np
import tensorflow_federated as tff

from tffcl.algorithms.choosing_method import build_choice
from tffcl.algorithms.each_round_parameters import RRClusterParameters
from tffcl.algorithms.ifca import IFCA, IFCAState
from tffcl.algorithms.method import Exports, Method, method_builder
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.client_work.training import CHOOSE
from tffcl.clients.cohort import Cohort
from tffcl.clients.population import Population
from tffcl.errors import UserError
from tffcl.models.flat import FlatModel
from tffcl.models.layer_parts import require_shared
from tffcl.rounds import privacy_releases

_MEMORY = 0.8  # weight of the clusters' sizes in earlier rounds, which are noised


@dataclasses.dataclass(frozen=True, eq=False)
class RRClusterState(IFCAState):
    """Adds how many clients of a round are expected to choose each model, `float64 [K]`; NaN before the first round."""

    sizes: np.ndarray | None = None


class RRCluster(IFCA):
    """RR-Cluster, see `build_rr_cluster`."""

    name, state_class, fields = "rr_cluster", RRClusterState, ("forced", "moves")

    def __init__(self, model: FlatModel, training: LocalTraining, parameters: RRClusterParameters, seed, aggregation):
        super().__init__(model, training, parameters, seed, aggregation)
        if parameters.rebalance_by == "choices":
            require_shared(model, "by rebalance_by 'choices' clients tell their choices before they train")

    def initialize(self, population: Population) -> RRClusterState:
        sizes = np.full(self._parameters.num_clusters, np.nan)
        return RRClusterState(**vars(super().initialize(population)), sizes=sizes)

    def _choose_and_train(self, state: RRClusterState, cohort: Cohort):
        how, rng = self._parameters, np.random.default_rng([self._seed, cohort.seed[1]])
        forced, ids = self.forced(cohort), cohort.client_ids
        by = how.rebalance_by if (forced == CHOOSE).all() else None  # groups of a warm-up have equal sizes
        if by == "choices" and len(ids):
            present = cohort.population.restricted(ids)
            chosen = self._told_rows(state.models, present)[present.index(ids)]
            forced = rebalanced(chosen, how.num_clusters, how.least_clients, rng)
            state, metrics, _ = self.train_rows(state, cohort, forced=forced, moves=self._moves(len(ids)))
            return state, metrics.with_signatures(self.trying * len(ids))
        known = by == "counts" and np.isfinite(state.sizes).all()
        shares = moving_shares(state.sizes, how.least_clients) if known else np.eye(how.num_clusters)
        moves = self._moves(len(ids), shares, rng)
        state, metrics, measured = self.train_rows(state, cohort, forced=forced, moves=moves)
        if by != "counts":
            return state, metrics
        if "clients" not in measured["update"]:
            raise UserError("rebalance_by 'counts' needs an aggregation that counts the clients of each cluster, as dp")
        found = sizes_before(measured["update"]["clients"], shares)
        sizes = _MEMORY * state.sizes + (1 - _MEMORY) * found if known else found
        return dataclasses.replace(state, sizes=sizes), metrics

    def _moves(self, clients: int, shares: np.ndarray | None = None, rng: np.random.Generator | None = None):
        """The row that each client trains in place of each chosen row, `int32 [m, K]`; without shares the same one."""
        clusters = self._parameters.num_clusters
        if shares is None:
            return np.tile(np.arange(clusters, dtype=np.int32), (clients, 1))
        drawn = [rng.choice(clusters, clients, p=share) for share in shares]
        return np.stack(drawn, axis=1).astype(np.int32)

    def _told_rows(self, models: np.ndarray, population: Population) -> np.ndarray:
        """The row that each client of a population chooses before it trains; the server learns it."""
        release = privacy_releases.of_all("the choices among models", population)
        return self.queried_rows(models, population, release=release)

    def hides_empty_rounds(self, state: RRClusterState) -> bool:
        return self._parameters.rebalance_by == "counts" and super().hides_empty_rounds(state)

    def exports(self) -> Exports:
        found = super().exports()
        if self._parameters.rebalance_by == "counts":
            draws = "the coordinator draws of each client the row that it trains if it chooses each (`moves`), by the "
            notes = [*found.when.values(), draws + "counts of the rounds before"]  # the notes on the start stay true
            return dataclasses.replace(found, when={"training": "; ".join(notes)})
        tried = ", whose `examples` are here the `choice_examples` of training" * (self.choose_by != "train_loss")
        when = {
            "choices": f"every round but those of a warm-up, before training, of its clients{tried}; the coordinator "
            "moves some at random, so that no model has fewer than least_clients, and gives each its row (`forced`)"
        }
        choices = build_choice(self.model, self.criterion, stacked=False)
        return dataclasses.replace(
            found, build=lambda: {"choices": choices, **found.build()}, when={**found.when, **when},
            sign=lambda newcomers: self._told_rows(self._drawn, newcomers),
        )  # fmt: skip


@method_builder
def build_rr_cluster(
    model: FlatModel,
    training: LocalTraining,
    parameters: RRClusterParameters = RRClusterParameters(),
    *,
    seed: int = 0,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> Method:
    """Builds RR-Cluster on IFCA's choices; with `least_clients = 0` it is IFCA.

    From the paper: in each round clients of large clusters move at random, so that each cluster has at least B. The
    paper trusts the server that adds the noise with the choices; here it is not trusted, and `rebalance_by =
    "choices"`, the paper's way, counts them as released without noise. Ours: with "counts" a client that chose a large
    cluster trains another one with a probability that follows from a running mean of the numbers of clients in earlier
    rounds, which `dp` releases anyway. No cluster has fewer than B clients in expectation, the choices stay with the
    clients, and a client still changes one row, by no more than the clip, so that ε is the same as in IFCA.

    Args:
      parameters: IFCA's parameters, the least size, and what rebalancing uses.
      seed: Decides the initial models, the groups of a warm-up, and which clients move.
    """
    return RRCluster(model, training, parameters, seed, aggregation)


def rebalanced(choices: np.ndarray, clusters: int, least: int, rng: np.random.Generator) -> np.ndarray:
    """Moves clients one by one, each drawn from clusters above the minimum size, until no cluster is below it.

    Args:
      choices: `int [m]`, the clusters that clients chose.
      clusters: K.
      least: B, the minimum size; if there are too few clients, as many as each cluster can have.
      rng: Draws the clients.

    Returns:
      `int32 [m]`.
    """
    found, least = np.array(choices, np.int32), min(least, len(choices) // clusters)
    for cluster in range(clusters):
        for _ in range(least - np.sum(found == cluster)):
            large = np.bincount(found, minlength=clusters) > least
            found[rng.choice(np.flatnonzero(large[found]))] = cluster
    return found


def moving_shares(sizes: np.ndarray, least: int) -> np.ndarray:
    """Returns the share of each cluster that must move to each other, so that all are expected to have the minimum
    size.

    Args:
      sizes: `float [K]`, the expected number of clients that choose each cluster.
      least: B, as in `rebalanced`.

    Returns:
      `float64 [K, K]`, rows sum to 1: large clusters give in proportion to what they have above the minimum size.
    """
    sizes = np.maximum(np.asarray(sizes, np.float64), 0)
    least = min(least, sizes.sum() / len(sizes))
    lacking, above = np.maximum(least - sizes, 0), np.maximum(sizes - least, 0)
    if not lacking.sum():
        return np.eye(len(sizes))
    given = np.divide(lacking.sum() * above / above.sum(), sizes, out=np.zeros(len(sizes)), where=sizes > 0)
    return np.diag(1 - given) + np.outer(given, lacking / lacking.sum())


def sizes_before(sizes: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Returns how many clients chose each cluster, `float64 [K]`, computed from the numbers after shares had moved."""
    return np.maximum(np.linalg.lstsq(shares.T, np.asarray(sizes, np.float64), rcond=None)[0], 0)
