"""FedSEM: multi-centre federated learning (Xie et al. 2021, arXiv:2005.01026): k-means on the clients' models over the rounds.

A client trains the centre that it belongs to; then it belongs to the centre nearest to its trained model (the E-step), and a
centre is the mean of the models that belong to it (the M-step). A round is one step of each.
"""

import dataclasses

import numpy as np
from scipy.spatial import distance
from sklearn.cluster import KMeans

from tffcl.aggregators.collect import CollectFactory
from tffcl.algorithms.method import (
    ClusteredState,
    Exports,
    Method,
    Views,
    check_newcomers,
    extended,
    joined_order,
)
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.client_work.training import build_difference_work
from tffcl.clients.cohort import Cohort
from tffcl.clients.population import Population
from tffcl.errors import UserError
from tffcl.models.flat import FlatModel
from tffcl.rounds.cache import built_once
from tffcl.rounds.composer import Round, Server, compose
from tffcl.rounds.server_steps import models_type, own_row
from tffcl.rounds.simulation import run_round
from tffcl.rounds.traffic import RoundMetrics, Traffic
from tffcl.validation import Count, Parameters

_AT_A_TIME = 1 << 18  # parameters whose float64 copies are in memory
_FIRST_STARTS = 20  # of k-means in the first round, as in FLT's code
_BYTES_AT_A_TIME = 2**29  # of the clients' models that are on their way when newcomers meet the first centres


@dataclasses.dataclass(frozen=True)
class FedSEMParameters(Parameters):
    """How FedSEM groups clients.

    Attributes:
      num_clusters: Number of centres.
    """

    num_clusters: Count = 5


@built_once
def build_collected_round(model: FlatModel, training: LocalTraining) -> Round:
    """Builds a round's client half: every client trains its centre, row `key` of `models float32[?,P]`.

    All differences come to the server, beside the reports; the models come back unchanged: the coordinator clusters.
    """
    server = Server({"models": models_type(model.size)}, own_row)
    return compose(build_difference_work(model, training), {"difference": CollectFactory()}, server)


def first_groups(trained: np.ndarray, num_clusters: int, seed: int) -> np.ndarray:
    """Clusters the models of the first round, for which there are no centres yet, by k-means with several starts.

    Args:
      trained: `float32 [m, P]`.
      num_clusters: K, at most m.
      seed: Of the starts.

    Returns:
      `int32 [m]`.
    """
    # m models span at most m - 1 dimensions, whatever P is: k-means there finds the same in a fraction of the time.
    points = _without_dimensions(trained)
    return KMeans(num_clusters, n_init=_FIRST_STARTS, random_state=seed).fit_predict(points).astype(np.int32)


def nearest_centres(trained: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """The E-step: which centre each model is nearest to.

    Not k-means of a library: that gives a centre which nobody is near to the farthest model, and so a group of which nobody
    takes part in a round would lose its own.

    Args:
      trained: `float32 [m, P]`.
      centres: `float32 [K, P]`.

    Returns:
      `int32 [m]`; the lower number wins a tie.
    """
    squares = np.zeros((len(trained), len(centres)))
    for start in range(0, trained.shape[1], _AT_A_TIME):
        columns = slice(start, start + _AT_A_TIME)
        squares += distance.cdist(trained[:, columns], centres[:, columns], "sqeuclidean")
    return squares.argmin(axis=1).astype(np.int32)


def _without_dimensions(vectors: np.ndarray) -> np.ndarray:
    """Points `float64 [n, n]` with the same distances as `vectors [n, P]`: their coordinates along principal axes."""
    # Not by scikit-learn's PCA, whose copy and components are two more arrays [n, P]: gigabytes for a large cohort's CNNs.
    mean, products = vectors.mean(axis=0, dtype=np.float64), np.zeros((len(vectors), len(vectors)))
    for start in range(0, vectors.shape[1], _AT_A_TIME):
        part = vectors[:, start : start + _AT_A_TIME] - mean[start : start + _AT_A_TIME]
        products += part @ part.T
    values, axes = np.linalg.eigh(products)
    return axes * np.sqrt(np.maximum(values, 0))


def weighted_means(centres: np.ndarray, trained: np.ndarray, found: np.ndarray, examples: np.ndarray) -> np.ndarray:
    """The M-step: means of the models by cluster, weighted by examples; a centre without models stays.

    Args:
      centres: `float32 [K, P]`, before.
      trained: `float32 [m, P]`.
      found: `int32 [m]`, the cluster of each model.
      examples: `int32 [m]`, training examples.

    Returns:
      `float32 [K, P]`.
    """
    centres = centres.copy()
    for cluster in np.unique(found):
        members = found == cluster
        shares = examples[members] / examples[members].sum()
        centres[cluster] = shares.astype(np.float32) @ trained[members]
    return centres


@dataclasses.dataclass(frozen=True, eq=False)
class FedSEMState(ClusteredState):
    """Beside `ClusteredState`, whom the server has met.

    Attributes:
      known: `bool [N]`, who has a cluster.
      first_centres: `float32 [K, P]` of the first round; `[0, P]` before it.
    """

    known: np.ndarray | None = None
    first_centres: np.ndarray | None = None


class FedSEM(Method):
    """FedSEM, see `build_fedsem`."""

    name = "fedsem"
    state_class = FedSEMState

    def __init__(self, model: FlatModel, training: LocalTraining, parameters: FedSEMParameters, seed: int):
        self.model, self._initial = model, model.initial
        self._clusters, self._seed = parameters.num_clusters, seed
        self._round = build_collected_round(model, training)
        if self._clusters > 1:  # a first training of the initial model, to be placed by
            self.joining = Traffic.of(self._round.transfer)

    def initialize(self, population: Population) -> FedSEMState:
        nobody = np.zeros(len(population), np.int32)
        nothing = np.zeros([0, self._initial.size], np.float32)
        return FedSEMState(
            population.client_ids, nobody, self._initial[np.newaxis], (), known=nobody.astype(bool), first_centres=nothing
        )

    def next(self, state: FedSEMState, cohort: Cohort) -> tuple[FedSEMState, RoundMetrics]:
        if not len(state.first_centres):
            return self._begin(state, cohort)
        state, fresh = self._meet(state, cohort)
        where = state.index(cohort.client_ids)
        own, assignment = state.assignment[where], state.assignment.copy()
        trained, metrics = self._train(state.models, own, cohort)
        assignment[where] = nearest_centres(trained, state.models)
        models = weighted_means(state.models, trained, assignment[where], metrics.examples)
        state = dataclasses.replace(state, models=models, assignment=assignment)
        return state, metrics.with_signatures(self.joining * fresh)

    def _begin(self, state: FedSEMState, cohort: Cohort) -> tuple[FedSEMState, RoundMetrics]:
        """The first round: all clients in it train the initial model, and what comes out is clustered."""
        if self._clusters > len(cohort.client_ids):
            most = len(cohort.client_ids)
            raise UserError(f"num_clusters is {self._clusters}; it must be at most the clients of a round, {most}")
        where = state.index(cohort.client_ids)
        trained, metrics = self._train(state.models, state.assignment[where], cohort)
        assignment, known = state.assignment.copy(), state.known.copy()
        assignment[where], known[where] = first_groups(trained, self._clusters, self._seed), True
        nothing = np.repeat(self._initial[np.newaxis], self._clusters, axis=0)
        centres = weighted_means(nothing, trained, assignment[where], metrics.examples)
        changes = {"models": centres, "assignment": assignment, "known": known, "first_centres": centres}
        return dataclasses.replace(state, **changes), metrics

    def _meet(self, state: FedSEMState, cohort: Cohort) -> tuple[FedSEMState, int]:
        """Finds the clusters of clients that have no model yet; returns the state and how many these are."""
        where = state.index(cohort.client_ids)
        fresh = ~state.known[where]
        if not fresh.any():
            return state, 0
        assignment, known = state.assignment.copy(), state.known.copy()
        few = dataclasses.replace(cohort, client_ids=cohort.client_ids[fresh], local_test=None)
        assignment[where[fresh]], known[where[fresh]] = self._first_clusters(state, few), True
        return dataclasses.replace(state, assignment=assignment, known=known), int(fresh.sum())

    def _first_clusters(self, state: FedSEMState, cohort: Cohort) -> np.ndarray:
        """Which of the first centres the clients' models are nearest to that they train from the initial one, `int32 [n]`."""
        if self._clusters == 1:
            return np.zeros(len(cohort.client_ids), np.int32)
        found = []
        for _, few in cohort.parts(max(1, _BYTES_AT_A_TIME // self._initial.nbytes)):
            trained, _ = self._train(self._initial[np.newaxis], np.zeros(len(few.client_ids), np.int32), few)
            found.append(nearest_centres(trained, state.first_centres))
        return np.concatenate(found)

    def _train(self, models: np.ndarray, keys: np.ndarray, cohort: Cohort) -> tuple[np.ndarray, RoundMetrics]:
        """Every client of the cohort trains its row of the models; returns theirs `float32 [m, P]`, and the metrics."""
        result = run_round(self._round, cohort, {"models": models}, key=keys)
        return models[keys] + result.collected["difference"], result.metrics(cohort, keys)

    def models_for(self, state: FedSEMState, client_ids):
        return state.models, state.clusters(client_ids)

    def admit(self, state: FedSEMState, newcomers: Population) -> FedSEMState:
        """Newcomers train the initial model, as all clients do first; before the first round they are as all others."""
        check_newcomers(state, newcomers)
        begun, found = len(state.first_centres) > 0, np.zeros(len(newcomers), np.int32)
        if begun:
            found = self._first_clusters(state, Cohort(newcomers, newcomers.client_ids, (self._seed, 0)))
        known = np.concatenate([state.known, np.full(len(newcomers), begun)])[joined_order(state, newcomers)]
        return dataclasses.replace(state, known=known, **extended(state, newcomers, found))

    def views(self, state: FedSEMState) -> Views:
        return Views(state.client_ids, state.assignment, known=state.known)

    def exports(self) -> Exports:
        return Exports(lambda: {"training": self._round.deployed}, server_values=lambda state: {"models": state.models})


def build_fedsem(
    model: FlatModel, training: LocalTraining, parameters: FedSEMParameters = FedSEMParameters(), *, seed: int = 0
) -> Method:
    """Builds FedSEM.

    The clients of a round are clustered by their trained models, weighted means of which are the next centres; a centre
    that nobody is near to stays, and so does the cluster of a client that does not take part. FLT's code instead clusters
    the stored models of all clients in every round, of which most are old.

    The paper lets everyone take part, so that all models are of the same number of rounds. Here a client that takes part for
    the first time after the first round trains the initial model first, and belongs to the centre of the first round that
    this is nearest to; then it trains that cluster's present model, as the others do. (A model that was trained from
    anybody's centre is near to that one: clients without a model, all in one cluster, would stay there.) That training is
    counted as signature traffic, and newcomers are placed in the same way.

    Args:
      model: What is trained.
      training: Local hyper-parameters.
      parameters: Number of centres.
      seed: Of k-means, and of newcomers' shuffling.
    """
    return FedSEM(model, training, parameters, seed)
