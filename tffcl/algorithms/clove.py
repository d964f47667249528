"""CLoVE: clustering of loss vector embeddings (Bhatia et al. 2025, arXiv:2506.22427): k-means on losses in every round.

Clients try all K models and send their losses; the server clusters these by k-means, gives each cluster a model, and
they train it.
"""

import dataclasses

import numpy as np
import tensorflow_federated as tff

from tffcl.algorithms.choosing_method import TryingMethod, losses_of_few, notes_of_models
from tffcl.algorithms.clustered_training import ClusteredTraining, EngineMethod, build_clustered_training, draw_models
from tffcl.algorithms.each_round_parameters import CLoVEParameters
from tffcl.algorithms.method import ClusteredState, Exports, Method, Views, method_builder
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clients.cohort import Cohort
from tffcl.clients.newcomers import check_newcomers, extended
from tffcl.clients.population import Population
from tffcl.clustering.groupings import group_by_losses
from tffcl.models.flat import FlatModel
from tffcl.rounds.traffic import Traffic

_WHEN = (
    "every round, before training, of its clients and with its models; the coordinator clusters the losses by k-means "
    "and gives each cluster the model of least loss, whose row is the key of its clients (Python, "
    "tffcl.clustering.groupings)"
)


class CLoVE(TryingMethod):
    """CLoVE, see `build_clove`."""

    def __init__(self, engine: ClusteredTraining, parameters: CLoVEParameters, seed: int):
        engine = dataclasses.replace(engine, draw=lambda count: draw_models(self.model, count, seed))
        super().__init__("clove", engine, when=_WHEN)
        self._how, self._seed = parameters, seed

    def initialize(self, population: Population) -> ClusteredState:
        nobody_grouped = np.zeros(len(population), np.int32)
        return ClusteredState(**self.engine.start(population, nobody_grouped, self._how.num_clusters))

    def next(self, state: ClusteredState, cohort: Cohort):
        if self._how.num_clusters == 1:
            return self.engine.next(state, cohort)
        present = cohort.population.restricted(cohort.client_ids)
        traffic = self.tried_traffic(state) * len(present)
        grouped = self._grouped(state, present, cohort.seed[1], self.tried(state, present))
        state, metrics = self.engine.next(grouped, cohort)
        return state, metrics.with_signatures(traffic)

    def _grouped(
        self, state: ClusteredState, population: Population, number: int, losses: np.ndarray
    ) -> ClusteredState:
        """The state after the clients of a population are clustered by their losses `float32 [N, K]`."""
        assignment = state.assignment.copy()
        where = state.index(population.client_ids)
        assignment[where] = group_by_losses(losses, square_root=self._how.square_root, seed=self._seed + number)
        return dataclasses.replace(state, assignment=assignment)

    def choose(self, state: ClusteredState, population: Population) -> ClusteredState:
        """Clusters all clients by their losses under the current models."""
        if self._how.num_clusters == 1:
            return state
        few, losses = losses_of_few(self.model, state.models, population, population.train)
        found = np.empty([len(population), self._how.num_clusters], np.float32)
        found[few] = losses
        if not few.all():
            others = population.restricted(population.client_ids[~few])
            found[~few] = self.tried(state, others, released=False)
        return self._grouped(state, population, 0, found)

    def admit(self, state: ClusteredState, newcomers: Population) -> ClusteredState:
        """A newcomer cannot be clustered without other clients, so it takes the model with the lowest loss."""
        check_newcomers(state, newcomers)
        found = np.zeros(len(newcomers), np.int32)
        if self._how.num_clusters > 1:
            found = self.tried(state, newcomers).argmin(axis=1).astype(np.int32)
        return dataclasses.replace(state, **extended(state, newcomers, found))

    def joined_traffic(self, before: ClusteredState | None, after: ClusteredState) -> Traffic:
        return Traffic() if self._how.num_clusters == 1 else super().joined_traffic(before, after)

    def views(self, state: ClusteredState) -> Views:
        notes = notes_of_models(self.model, state.assignment, self._how.num_clusters)
        return dataclasses.replace(super().views(state), notes=notes)

    def hides_empty_rounds(self, state: ClusteredState) -> bool:
        return self._how.num_clusters == 1 and EngineMethod.hides_empty_rounds(self, state)

    def exports(self) -> Exports:
        return self.engine.exports() if self._how.num_clusters == 1 else super().exports()


@method_builder
def build_clove(
    model: FlatModel,
    training: LocalTraining,
    parameters: CLoVEParameters = CLoVEParameters(),
    *,
    seed: int = 0,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> Method:
    """Builds CLoVE: K models, and clients clustered by their losses under all of them in every round.

    From the paper: vectors of losses on training data under all models, k-means at the server, a matching of clusters
    to models by least total loss, models averaged by examples. Ours: the K models are drawn as in IFCA; clients are
    clustered in all rounds, while the authors' code stops once a round's clients have kept their models for three
    rounds; an evaluation clusters all clients by their current losses; a newcomer takes the model of least loss. With
    one model it is FedAvg.

    Args:
      parameters: K, and how losses are compared.
      seed: Decides the initial models, and the starts of k-means.
    """
    return CLoVE(build_clustered_training(model, training, aggregation=aggregation), parameters, seed)
