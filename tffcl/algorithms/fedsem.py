"""FedSEM: multi-centre federated learning (Xie et al. 2021, arXiv:2005.01026): k-means on the clients' models over the
rounds.

A client trains the centre that it belongs to. Then it is assigned to the centre nearest to its trained model (the
E-step), and each centre becomes the mean of the models assigned to it (the M-step). A round is one step of each.
"""

import dataclasses

import numpy as np

from tffcl.algorithms.clustered_training import CollectedTraining
from tffcl.algorithms.each_round_parameters import FedSEMParameters
from tffcl.algorithms.method import ClusteredState, Method, Views, method_builder
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clients.cohort import Cohort
from tffcl.clients.newcomers import check_newcomers, extended
from tffcl.clients.population import Population
from tffcl.clustering.groupings import first_groups, nearest_centres, weighted_means
from tffcl.errors import UserError
from tffcl.models.flat import FlatModel
from tffcl.rounds.traffic import RoundMetrics, Traffic


@dataclasses.dataclass(frozen=True, eq=False)
class FedSEMState(ClusteredState):
    """Adds to `ClusteredState` which clients the server has met.

    Attributes:
      known: `bool [N]`, the clients that have a cluster.
      first_centres: `float32 [K, P]`, the centres of the first round; `[0, P]` before it.
    """

    known: np.ndarray | None = None
    first_centres: np.ndarray | None = None


class FedSEM(CollectedTraining):
    """FedSEM, see `build_fedsem`."""

    name = "fedsem"
    state_class = FedSEMState

    def __init__(self, model: FlatModel, training: LocalTraining, parameters: FedSEMParameters, seed: int):
        super().__init__(model, training, parameters)
        self._initial, self._clusters, self._seed = model.initial, parameters.num_clusters, seed
        if self._clusters > 1:  # clients are placed by a first training of the initial model
            self.joining = Traffic.of(self.round.transfer)

    def initialize(self, population: Population) -> FedSEMState:
        nobody = np.zeros(len(population), np.int32)
        nothing = np.zeros([0, self._initial.size], np.float32)
        return FedSEMState(
            population.client_ids, nobody, self._initial[np.newaxis], (), known=nobody.astype(bool),
            first_centres=nothing,
        )  # fmt: skip

    def next(self, state: FedSEMState, cohort: Cohort) -> tuple[FedSEMState, RoundMetrics]:
        if not len(state.first_centres):
            return self._begin(state, cohort)
        state, fresh = self._meet(state, cohort)
        where = state.index(cohort.client_ids)
        own, assignment = state.assignment[where], state.assignment.copy()
        trained, metrics, optimizers = self._train(state, own, cohort)
        assignment[where] = self._nearest(trained, state.models)
        models = weighted_means(state.models, trained, assignment[where], metrics.examples)
        state = dataclasses.replace(state, models=models, assignment=assignment, optimizers=optimizers)
        return state, metrics.with_signatures(self.joining * fresh)

    def _begin(self, state: FedSEMState, cohort: Cohort) -> tuple[FedSEMState, RoundMetrics]:
        """The first round: its clients train the initial model, and their models are clustered."""
        most = len(cohort.client_ids)
        if self._clusters > most and cohort.rate is None:
            raise UserError(f"num_clusters is {self._clusters}; it must be at most the clients of a round, {most}")
        where = state.index(cohort.client_ids)
        trained, metrics, optimizers = self._train(state, state.assignment[where], cohort)
        assignment, known = state.assignment.copy(), state.known.copy()
        seen = self.model.of_trained(trained)
        assignment[where], known[where] = first_groups(seen, min(self._clusters, most), self._seed), True
        nothing = np.repeat(self._initial[np.newaxis], self._clusters, axis=0)
        centres = weighted_means(nothing, trained, assignment[where], metrics.examples)
        changes = {"models": centres, "assignment": assignment, "known": known, "first_centres": centres}
        return dataclasses.replace(state, optimizers=optimizers, **changes), metrics

    def _meet(self, state: FedSEMState, cohort: Cohort) -> tuple[FedSEMState, int]:
        """Finds the clusters of clients that have no model yet; returns the state and the number of these clients."""
        where = state.index(cohort.client_ids)
        fresh = ~state.known[where]
        if not fresh.any():
            return state, 0
        assignment, known = state.assignment.copy(), state.known.copy()
        few = dataclasses.replace(cohort, client_ids=cohort.client_ids[fresh], local_test=None)
        assignment[where[fresh]], known[where[fresh]] = self._first_clusters(state, few), True
        return dataclasses.replace(state, assignment=assignment, known=known), int(fresh.sum())

    def _first_clusters(self, state: FedSEMState, cohort: Cohort) -> np.ndarray:
        """Each client trains the initial model; returns which of the first round's centres is nearest to its model,
        `int32 [n]`."""
        if self._clusters == 1:
            return np.zeros(len(cohort.client_ids), np.int32)
        # They train as the first centres' members did: at the first round's rate, if the rate changes.
        if not self.training.decay.is_constant:
            cohort = dataclasses.replace(cohort, seed=(cohort.seed[0], 1))
        moves = self.updates_in_parts(self._initial, cohort)
        return np.concatenate([self._nearest(few + self._initial, state.first_centres) for _, few in moves])

    def _nearest(self, trained: np.ndarray, centres: np.ndarray) -> np.ndarray:
        """The centre nearest to each model, `int32 [m]`."""
        return nearest_centres(self.model.of_trained(trained), self.model.of_trained(centres))

    def _train(self, state: FedSEMState, keys: np.ndarray, cohort: Cohort):
        """Every client of the cohort trains its row of the models; returns the clients' models `float32 [m, P]`, the
        metrics, and the optimizer states that clients keep."""
        trained, result = self.updates(state.models, keys, cohort, optimizers=state.optimizers)
        for place, key in enumerate(keys):  # in place: a large cohort's CNNs are gigabytes
            trained[place] += state.models[key]
        return trained, result.metrics(cohort, keys), result.optimizers

    def admit(self, state: FedSEMState, newcomers: Population) -> FedSEMState:
        """Newcomers first train the initial model, as all clients do; before the first round they are like others."""
        check_newcomers(state, newcomers)
        begun, found = len(state.first_centres) > 0, np.zeros(len(newcomers), np.int32)
        if begun:
            found = self._first_clusters(state, Cohort(newcomers, newcomers.client_ids, (self._seed, 0)))
        known = np.full(len(newcomers), begun)
        return dataclasses.replace(state, **extended(state, newcomers, found, known=known))

    def views(self, state: FedSEMState) -> Views:
        return Views(state.client_ids, state.assignment, known=state.known)


@method_builder
def build_fedsem(
    model: FlatModel, training: LocalTraining, parameters: FedSEMParameters = FedSEMParameters(), *, seed: int = 0
) -> Method:
    """Builds FedSEM: k-means on the clients' models in every round.

    The clients of a round are clustered by their trained models, whose weighted means are the next centres. A centre
    without clients near it stays as it is, and a client that does not take part stays in its cluster. Weights are
    numbers of examples, as in FLT's code, which however clusters the stored models of all clients in every round, most
    of them old.

    In the paper all clients take part, so that all models have trained for the same number of rounds. Here a client
    that takes part for the first time after the first round first trains the initial model, at the first round's
    learning rate, and is assigned to the nearest centre of the first round; then it trains that cluster's present
    model, as the others do. (A model trained from some centre is near that centre, so clients without a model, all in
    one cluster, would stay there.) This first training is counted as signature traffic, and newcomers are placed in the
    same way. Where Poisson sampling draws fewer clients than centres for the first round, the remaining centres start
    from the initial model.

    Args:
      parameters: Number of centres.
      seed: Seed of k-means, and of newcomers' shuffling.
    """
    return FedSEM(model, training, parameters, seed)
