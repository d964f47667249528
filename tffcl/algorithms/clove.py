"""CLoVE: clustering of loss vector embeddings (Bhatia et al. 2025, arXiv:2506.22427): k-means on losses in every round.

Clients try all K models and send their losses; the server clusters these by k-means, gives each cluster a model, and
they train it.
"""

import dataclasses

import numpy as np
import tensorflow_federated as tff

from tffcl.algorithms.choosing_method import build_trying, losses_of_few, notes_of_models
from tffcl.algorithms.clustered_training import ClusteredTraining, EngineMethod, build_clustered_training
from tffcl.algorithms.each_round_parameters import CLoVEParameters
from tffcl.algorithms.method import ClusteredState, Exports, Method, Views, method_builder
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clients.cohort import Cohort
from tffcl.clients.population import Population, check_newcomers, extended
from tffcl.clustering.model_kmeans import group_by_losses
from tffcl.models.flat import FlatModel
from tffcl.rounds import privacy_releases
from tffcl.rounds.client_queries import ask_all
from tffcl.rounds.traffic import Traffic


class CLoVE(EngineMethod):
    """CLoVE, see `build_clove`."""

    def __init__(self, engine: ClusteredTraining, parameters: CLoVEParameters, seed: int):
        super().__init__(
            "clove", dataclasses.replace(engine, draw=self._drawn) if parameters.num_clusters > 1 else engine
        )
        self._how, self._seed = parameters, seed
        self._trying = build_trying(engine.model, parameters.num_clusters, stacked=True)
        if parameters.num_clusters > 1:
            self.joining = Traffic(parameters.num_clusters * self.model.initial.nbytes, 4 * parameters.num_clusters)

    def initialize(self, population: Population) -> ClusteredState:
        fields = self.engine.start(population, np.arange(self._how.num_clusters, dtype=np.int32))
        return ClusteredState(**{**fields, "assignment": np.zeros(len(population), np.int32)})

    def _drawn(self, count: int) -> np.ndarray:
        """The models that a run starts from."""
        seeds = np.random.SeedSequence(self._seed).generate_state(count)
        return np.stack([self.model.draw(int(each)) for each in seeds])

    def next(self, state: ClusteredState, cohort: Cohort):
        if self._how.num_clusters == 1:
            return self.engine.next(state, cohort)
        clients = len(cohort.client_ids)
        asked = cohort.population.restricted(cohort.client_ids)
        losses = ask_all(self._trying, state.models, asked, release=privacy_releases.of_all("the losses", asked))
        grouped = self._grouped(state, asked, cohort.seed[1], losses)
        state, metrics = self.engine.next(grouped, cohort)
        return state, metrics.with_signatures(self.joining * clients)

    def _grouped(
        self, state: ClusteredState, population: Population, number: int, losses: np.ndarray
    ) -> ClusteredState:
        """The state after the clients of a population were clustered by their losses `float32 [N, K]`."""
        assignment = state.assignment.copy()
        where = state.index(population.client_ids)
        assignment[where] = group_by_losses(losses, square_root=self._how.square_root, seed=self._seed + number)
        return dataclasses.replace(state, assignment=assignment)

    def choose(self, state: ClusteredState, population: Population) -> ClusteredState:
        """Everyone is clustered by their losses under the models of now."""
        if self._how.num_clusters == 1:
            return state
        few, losses = losses_of_few(self.model, state.models, population, population.train)
        found = np.empty([len(population), self._how.num_clusters], np.float32)
        found[few] = losses
        if not few.all():
            others = population.restricted(population.client_ids[~few])
            found[~few] = ask_all(self._trying, state.models, others)
        return self._grouped(state, population, 0, found)

    def admit(self, state: ClusteredState, newcomers: Population) -> ClusteredState:
        """A newcomer, who has nobody to be clustered with, takes the model of least loss."""
        check_newcomers(state, newcomers)
        found = np.zeros(len(newcomers), np.int32)
        if self._how.num_clusters > 1:
            release = privacy_releases.of_all("the losses", newcomers)
            losses = ask_all(self._trying, state.models, newcomers, release=release)
            found = losses.argmin(axis=1).astype(np.int32)
        return dataclasses.replace(state, **extended(state, newcomers, found))

    def joined_traffic(self, before: ClusteredState | None, after: ClusteredState) -> Traffic:
        """Nobody is asked before the first round."""
        return Traffic() if before is None else super().joined_traffic(before, after)

    def views(self, state: ClusteredState) -> Views:
        notes = notes_of_models(self.model, state.assignment, self._how.num_clusters)
        return dataclasses.replace(super().views(state), notes=notes)

    def hides_empty_rounds(self, state: ClusteredState) -> bool:
        return self._how.num_clusters == 1 and super().hides_empty_rounds(state)  # else the losses show who takes part

    def exports(self) -> Exports:
        clusters = self._how.num_clusters
        if clusters == 1:
            return self.engine.exports()
        when = (
            "every round, before training, of its clients and with its models; the coordinator clusters the losses by "
            "k-means and gives each cluster the model of least loss, whose row is the key of its clients (Python, "
            "tffcl.clustering.model_kmeans)"
        )
        return self.engine.exports(build=lambda: {"losses": build_trying(self.model, clusters)}, when={"losses": when})


@method_builder
def build_clove(
    model: FlatModel,
    training: LocalTraining,
    parameters: CLoVEParameters = CLoVEParameters(),
    *,
    seed: int = 0,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> Method:
    """Builds CLoVE.

    From the paper: vectors of losses on training data under all models, k-means at the server, a matching of clusters
    to models by least total loss, models averaged by examples. Ours: the K models are drawn as IFCA's; an evaluation
    clusters everyone by the losses of then; a newcomer takes the model of least loss. With one model it is FedAvg.

    The losses of a round are counted as signature traffic: each client receives all models and sends K numbers. Then it
    receives the model of its cluster, which a device that kept all of them would not need again.

    Args:
      parameters: K and how losses are compared.
      seed: Decides the initial models, and the starts of k-means.
    """
    return CLoVE(build_clustered_training(model, training, aggregation=aggregation), parameters, seed)
