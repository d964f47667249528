"""FedDrift and FedDrift-Eager: models for the concepts of drifting data (Jothimurugesan et al., AISTATS 2023,
arXiv:2206.00799). A client whose lowest loss has risen creates a model; models that do well on each other's data merge.
"""

import dataclasses

import numpy as np
import tensorflow_federated as tff

from tffcl.algorithms.choosing_method import TryingMethod
from tffcl.algorithms.clustered_training import ClusteredTraining, build_clustered_training
from tffcl.algorithms.each_round_parameters import FedDriftParameters
from tffcl.algorithms.method import ClusteredState, Exports, Method, Moves, Views, method_builder
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clients.cohort import Cohort
from tffcl.clients.newcomers import check_newcomers, extended
from tffcl.clients.population import Population
from tffcl.clustering.hierarchical import build_dendrogram, cut
from tffcl.models.flat import FlatModel
from tffcl.rounds.traffic import Traffic

_WHEN = (
    "in a round that is checked, before training, of its clients and with all models; it takes as many as were "
    "exported: where there are more by now, run it several times, the last time with some of them twice; the "
    "coordinator opens and merges models (Python, tffcl.algorithms.feddrift); the row of a client's is its key"
)


@dataclasses.dataclass(frozen=True, eq=False)
class FedDriftState(ClusteredState):
    """Adds each client's lowest loss when it was last asked, infinite before, `float32 [N]`; the round in which it last
    created a model, 0 for never, `int32 [N]`; and which models no client has trained yet, `bool [K]`."""

    losses: np.ndarray | None = None
    drifted_in: np.ndarray | None = None
    untrained: np.ndarray | None = None


class FedDrift(TryingMethod):
    """FedDrift, see `build_feddrift`."""

    state_class = FedDriftState

    def __init__(self, engine: ClusteredTraining, parameters: FedDriftParameters):
        criterion = {"loss": "loss", "error": "accuracy"}[parameters.measure]
        super().__init__("feddrift", engine, when=_WHEN, criterion=criterion)
        self._how = parameters

    def initialize(self, population: Population) -> FedDriftState:
        alone = self._how.start == "each"
        fields = self.engine.start(population, np.arange(len(population), dtype=np.int32) * alone)
        never, unasked = np.zeros(len(population), np.int32), np.full(len(population), np.inf, np.float32)
        return FedDriftState(
            **fields, losses=unasked, drifted_in=never, untrained=np.full(len(fields["models"]), alone)
        )

    def next(self, state: FedDriftState, cohort: Cohort):
        traffic = Traffic()
        if (cohort.seed[1] - 1) % self._how.check_every == 0:
            traffic = self.tried_traffic(state) * len(cohort.client_ids)
            state = self._checked(state, cohort)
        state, metrics = self.engine.next(state, cohort)
        untrained = state.untrained & ~np.isin(np.arange(len(state.models)), metrics.clusters)
        return dataclasses.replace(state, untrained=untrained), metrics.with_signatures(traffic)

    def _checked(self, state: FedDriftState, cohort: Cohort) -> FedDriftState:
        """The state after a round's clients have tried all models: they choose, create new ones, and some models
        merge."""
        present = cohort.population.restricted(cohort.client_ids)
        where, own = state.index(present.client_ids), state.clusters(present.client_ids)
        how, sizes = {"threshold": self._how.threshold, "eager": self._how.eager}, present.sizes_of(present.client_ids)
        found = find_concepts(self.tried(state, present), own, state.losses[where], state.untrained, sizes, **how)
        changed = {name: getattr(state, name).copy() for name in ("assignment", "losses", "drifted_in")}
        changed["assignment"][where], changed["losses"][where] = found.chosen, found.least
        changed["drifted_in"][where[found.drifted]] = cohort.seed[1]
        members = np.append(state.assignment, changed["assignment"])
        changed |= self.engine.rearranged(state, found.origins[found.first])
        changed["models"] = merged_models(state.models, found.origins, found.labels, members)
        changed |= {"untrained": found.untrained[found.first], "assignment": found.labels[changed["assignment"]]}
        return dataclasses.replace(state, **changed)

    def place(self, state: FedDriftState, population: Population) -> FedDriftState:
        """A client that was never asked takes the model with the lowest loss."""
        unmet = population.client_ids[np.isinf(state.losses[state.index(population.client_ids)])]
        if not len(unmet):
            return state
        where, assignment = state.index(unmet), state.assignment.copy()
        losses = self.tried(state, population.restricted(unmet), released=False)
        assignment[where] = best_models(losses, assignment[where], state.untrained)[0]
        return dataclasses.replace(state, assignment=assignment)

    def admit(self, state: FedDriftState, newcomers: Population) -> FedDriftState:
        """A newcomer takes the model with the lowest loss; before any is trained, it is like all other clients."""
        check_newcomers(state, newcomers)
        if state.untrained.all():
            count, never = len(newcomers), np.zeros(len(newcomers), np.int32)
            own = np.arange(len(state.models), len(state.models) + count, dtype=np.int32)
            members = extended(state, newcomers, own, losses=np.full(count, np.inf, np.float32), drifted_in=never)
            untrained = np.ones(len(state.models) + count, bool)
            return dataclasses.replace(state, **members, **self.engine.grown(state, count), untrained=untrained)
        best, least = best_models(self.tried(state, newcomers), np.full(len(newcomers), -1), state.untrained)
        never = np.zeros_like(best)
        return dataclasses.replace(state, **extended(state, newcomers, best, losses=least, drifted_in=never))

    def joined_traffic(self, before: FedDriftState | None, after: FedDriftState) -> Traffic:
        """No client is asked before a model is trained."""
        return Traffic() if before is None or before.untrained.all() else super().joined_traffic(before, after)

    def exports(self) -> Exports:
        def still(state: FedDriftState) -> FedDriftState:  # its next round creates no model and merges none
            unasked, closed = np.full_like(state.losses, np.inf), np.ones_like(state.untrained)
            return dataclasses.replace(state, losses=unasked, untrained=closed)

        return dataclasses.replace(super().exports(), rehearsal=still)

    def views(self, state: FedDriftState) -> Views:
        moves = Moves(np.zeros_like(state.drifted_in), state.drifted_in)
        return dataclasses.replace(super().views(state), known=np.isfinite(state.losses), moves=moves)


@method_builder
def build_feddrift(
    model: FlatModel,
    training: LocalTraining,
    parameters: FedDriftParameters = FedDriftParameters(),
    *,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> Method:
    """Builds FedDrift, or FedDrift-Eager (`parameters.eager`): a client whose loss rises creates a model, and models
    that do well on each other's data merge; with a threshold that no loss reaches it is FedAvg.

    From the paper: a client whose least loss rises by more than δ leaves for a new model; clusters at most δ apart
    merge by complete linkage to the mean weighted by clients; models without clients stay. From the authors' code: a
    new model is a copy of the one with the least loss, and until it is trained no other client takes it and it does not
    merge. Ours: every `check_every`-th round begins a time step for its clients, whether data have changed or not; L_ij
    is a loss on the data that these clients hold then, where a client counts for the model that it has and, unless it
    drifted away, for the one that it had (in the paper on all data that cluster j ever held); models that merge are
    weighted by their clients now and at the last check (in the authors' code by those of every time step so far); a
    client that was never asked has the model of least loss.

    Args:
      parameters: Threshold, measure and start.
    """
    return FedDrift(build_clustered_training(model, training, aggregation=aggregation), parameters)


@dataclasses.dataclass(frozen=True, eq=False)
class Concepts:
    """What follows from the losses of m clients under K models, which become K' with new ones.

    Attributes:
      chosen: `int32 [m]`, the model of each client, before any merge.
      least: `float [m]`, its lowest loss under the K models.
      drifted: `bool [m]`, the clients whose lowest loss has risen by more than δ; each creates a model, or all create
        one.
      origins: `int [K']`, for each model the one of the K that it is, or is a copy of.
      untrained: `bool [K']`, the models that no client has trained yet.
      labels: `int32 [K']`, the model that each is merged into, in the order of their first parts.
    """

    chosen: np.ndarray
    least: np.ndarray
    drifted: np.ndarray
    origins: np.ndarray
    untrained: np.ndarray
    labels: np.ndarray

    @property
    def first(self) -> np.ndarray:
        """`int [L]`, for each model after the merges the first of the K' models that are its parts."""
        return np.unique(self.labels, return_index=True)[1]


def find_concepts(
    losses: np.ndarray,
    owners: np.ndarray,
    before: np.ndarray,
    untrained: np.ndarray,
    examples: np.ndarray,
    *,
    threshold: float,
    eager: bool,
) -> Concepts:
    """Finds which models clients take and create, and which merge.

    Args:
      losses: `float [m, K]`; row c has client c's mean losses under the K models.
      owners: `int [m]`, the model of each client.
      before: `float [m]`, the lowest loss of each when it was last asked.
      untrained: `bool [K]`, the models that no client has trained yet.
      examples: `int [m]`, the number of examples behind each client's losses.
      threshold: δ.
      eager: Whether all clients that have drifted create one model, and none merge (FedDrift-Eager).
    """
    count, (best, least) = losses.shape[1], best_models(losses, owners, untrained)
    drifted = (least > before + threshold) & ~untrained[owners]
    founders, chosen = best[drifted][: 1 if eager else None], best.copy()
    chosen[drifted] = count + np.arange(drifted.sum()) * (not eager)
    origins, untrained = np.append(np.arange(count), founders), np.append(untrained, np.ones(len(founders), bool))
    if eager:
        return Concepts(chosen, least, drifted, origins, untrained, np.arange(len(origins), dtype=np.int32))
    rows = np.append(np.arange(len(chosen)), np.flatnonzero(~drifted))  # with their new models, and with those before
    apart = cross_losses(losses[rows], np.append(chosen, owners[~drifted]), examples[rows], untrained)
    return Concepts(chosen, least, drifted, origins, untrained, merged_clusters(apart, threshold))


def best_models(losses: np.ndarray, owners: np.ndarray, untrained: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns for each client the model with the lowest loss, `int32 [m]`, and that loss.

    Args:
      losses: `float [m, K]`; row c has client c's mean losses under the K models.
      owners: `int [m]`, the model of each client, or -1.
      untrained: `bool [K]`, the models that no client has trained yet, which only their owners can take.
    """
    closed = untrained & (owners[:, np.newaxis] != np.arange(losses.shape[1]))
    best = np.where(closed, np.inf, losses).argmin(axis=1).astype(np.int32)
    return best, losses[np.arange(len(best)), best]


def cross_losses(losses: np.ndarray, clusters: np.ndarray, examples: np.ndarray, untrained: np.ndarray) -> np.ndarray:
    """Returns the loss of each cluster's model on the data of each cluster.

    Args:
      losses: `float [m, K]`; row c has client c's mean losses under the K models that were tried.
      clusters: `int [m]`, the cluster of each client.
      examples: `int [m]`, the number of examples behind each client's losses.
      untrained: `bool [K']`, the models that no client has trained yet; those from K on are among them.

    Returns:
      L `float64 [K', K']`: entry (i, j) is the mean loss of model i over the examples of cluster j's clients; NaN in
      the rows of untrained models and the columns of clusters without clients.
    """
    found = np.full([len(untrained)] * 2, np.nan)
    for cluster in np.unique(clusters):
        members = clusters == cluster
        tried = np.average(losses[members].astype(np.float64), axis=0, weights=examples[members])
        found[: len(tried), cluster] = tried
    found[untrained] = np.nan
    return found


def merged_clusters(apart: np.ndarray, threshold: float) -> np.ndarray:
    """Finds which clusters merge, by complete linkage up to δ on the distances max(L_ij - L_ii, L_ji - L_jj, 0).

    A cluster merges with no other if the loss of its own model on its data is unknown or not finite.

    Args:
      apart: L `float64 [K, K]`, from `cross_losses`.
      threshold: δ.

    Returns:
      `int32 [K]`: labels 0..K'-1, in the order of each one's first cluster.
    """
    labels, known = np.arange(len(apart)), np.flatnonzero(np.isfinite(apart.diagonal()))
    if len(known):
        worse = apart[np.ix_(known, known)] - apart.diagonal()[known][:, np.newaxis]
        distances = np.minimum(np.fmax(np.fmax(worse, worse.T), 0), np.finfo(np.float32).max)
        groups = cut(build_dendrogram(distances, "complete"), threshold=threshold)
        labels[known] = known[np.unique(groups, return_index=True)[1]][groups]
    return np.unique(labels, return_inverse=True)[1].astype(np.int32)


def merged_models(models: np.ndarray, origins: np.ndarray, labels: np.ndarray, members: np.ndarray) -> np.ndarray:
    """Returns the models `float32 [L, P]` of clusters that merged: means, weighted by the clients of each.

    Args:
      models: `float32 [K, P]`, before.
      origins: `int [K']`, for each model before the merges which of these it is a copy of.
      labels: `int32 [K']`, which of the L models each has become a part of.
      members: `int32 [M]`, the one of the K' models of each client that counts; each model that merges has a client.
    """
    found = models[origins[np.unique(labels, return_index=True)[1]]]
    for label in np.flatnonzero(np.bincount(labels) > 1):
        parts = np.flatnonzero(labels == label)
        weights = np.bincount(members, minlength=len(labels))[parts]
        found[label] = np.average(models[origins[parts]], axis=0, weights=weights)
    return found
