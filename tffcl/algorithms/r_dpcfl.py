"""R-DPCFL: clients' clusters are drawn by a mixture of Gaussians on noised updates, until their losses decide
(Malekmohammadi, Taik and Farnadi, TMLR 09/2025, OpenReview JSsko0a4yr)."""

import dataclasses

import numpy as np
import tensorflow_federated as tff

from tffcl.algorithms.choosing_method import Choosing
from tffcl.algorithms.each_round_parameters import IFCAParameters, RDPCFLParameters
from tffcl.algorithms.ifca import IFCA, IFCAState
from tffcl.algorithms.method import Exports, Method, Views, method_builder
from tffcl.algorithms.one_shot import check_enough
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clients.cohort import Cohort
from tffcl.clients.newcomers import joined_order
from tffcl.clients.population import Population
from tffcl.clients.simulation_context import current
from tffcl.clustering.groupings import fit_mixture, largest_overlap
from tffcl.display import counted
from tffcl.models.flat import FlatModel
from tffcl.rounds import privacy_releases
from tffcl.rounds.client_queries import build_collection, build_signing, check_signatures, signature_transfer
from tffcl.rounds.traffic import Traffic
from tffcl.signatures.anchor_gradient import build_anchor_gradient


@dataclasses.dataclass(frozen=True, eq=False)
class RDPCFLState(IFCAState):
    """Adds the probability that each client's update belongs to each cluster, `float64 [N, K]`; the overlap of
    clusters, `float64`; and the number of further rounds in which they are drawn, `int64`."""

    probabilities: np.ndarray | None = None
    overlap: np.ndarray | None = None
    soft_rounds: np.ndarray | None = None


class RDPCFL(IFCA):
    """R-DPCFL, see `build_r_dpcfl`."""

    name, state_class = "r_dpcfl", RDPCFLState

    def __init__(self, model: FlatModel, training: LocalTraining, how: RDPCFLParameters, seed, noise_seed, aggregation):
        super().__init__(model, training, IFCAParameters(num_clusters=how.num_clusters), seed, aggregation)
        self._how, self._drawn = how, np.repeat(model.initial[np.newaxis], how.num_clusters, axis=0)
        self._signature = build_anchor_gradient(
            model, form="displacement", projection=how.projection, seed=seed,
            local=dataclasses.replace(training, epochs=how.pre_training_epochs, batch_size=0),
            **how.noise, noise_seed=noise_seed,
        )  # fmt: skip
        self._sign, self.joining = build_signing(self._signature), Traffic.of(signature_transfer(self._signature))

    def check_clients(self, clients: int):
        check_enough(clients, self._how.num_clusters)

    def initialize(self, population: Population) -> RDPCFLState:
        clusters, clients = self._how.num_clusters, len(population)
        self.check_clients(clients)
        updates = self._sign(population)
        check_signatures(population, updates)
        mixture = fit_mixture(updates, clusters, self._seed)
        found, overlap = np.zeros([clients, clusters]), largest_overlap(updates, mixture)
        found[:, : mixture.probabilities.shape[1]] = mixture.probabilities
        start = {**vars(super().initialize(population)), "assignment": found.argmax(axis=1).astype(np.int32)}
        # Clients cannot choose among models before these differ.
        rounds = max(1, int((1 - overlap) * self._how.soft_rounds))
        return RDPCFLState(**start, probabilities=found, overlap=np.float64(overlap), soft_rounds=np.int64(rounds))

    def _choose_and_train(self, state: RDPCFLState, cohort: Cohort):
        if not state.soft_rounds:
            return super()._choose_and_train(state, cohort)
        rng, likely = np.random.default_rng([self._seed, cohort.seed[1]]), state.probabilities
        drawn = [rng.choice(len(row), p=row) for row in likely[state.index(cohort.client_ids)]]
        after, metrics, _ = self.train_rows(state, cohort, forced=np.array(drawn, np.int32))
        return dataclasses.replace(after, assignment=state.assignment, soft_rounds=state.soft_rounds - 1), metrics

    def choose(self, state: RDPCFLState, population: Population) -> RDPCFLState:
        """While clusters are drawn, a client has the model of its most likely cluster."""
        return state if state.soft_rounds else super().choose(state, population)

    def without_choices(self, state: RDPCFLState) -> RDPCFLState:
        return state if state.soft_rounds else super().without_choices(state)

    def admit(self, state: RDPCFLState, newcomers: Population) -> RDPCFLState:
        """Newcomers take the model with the lowest loss, and keep it while clusters are drawn."""
        if state.soft_rounds:  # they report their choices, by which the coordinator draws
            current().release(privacy_releases.of_all("the choices among models", newcomers))
        joined, order = super().admit(state, newcomers), joined_order(state, newcomers)
        chosen = np.eye(self._how.num_clusters)[joined.clusters(newcomers.client_ids)]
        return dataclasses.replace(joined, probabilities=np.concatenate([state.probabilities, chosen])[order])

    def joined_traffic(self, before: RDPCFLState | None, after: RDPCFLState) -> Traffic:
        return self.joining * len(after.client_ids) if before is None else Traffic()

    def views(self, state: RDPCFLState) -> Views:
        left = counted(state.soft_rounds, "more round")
        note = f"the clusters of updates overlap by {state.overlap:.2g}; drawn for {left}"
        return dataclasses.replace(Choosing.views(self, state), notes=(note, *self._notes_of_waiting(state)))

    def exports(self) -> Exports:
        found = super().exports()
        draws = (
            f"up to round {self._how.soft_rounds} at the latest the coordinator draws each client's row (`forced`) "
            "by a mixture of Gaussians that it fits to the signatures; then clients choose; clustering/state.npz has "
            "the `probabilities` of this run's clients, and for how many more `soft_rounds` they are drawn; a newcomer "
            "chooses when it joins, tells the coordinator its row, without noise, and keeps it as long as others "
            "are drawn"
        )
        return dataclasses.replace(
            found,
            build=lambda: {"signature": build_collection(self._signature), **found.build()},
            when={"signature": "once, before the first round, for all who are there then", "training": draws},
            sign=self._sign,
        )


@method_builder
def build_r_dpcfl(
    model: FlatModel,
    training: LocalTraining,
    parameters: RDPCFLParameters = RDPCFLParameters(),
    *,
    seed: int = 0,
    noise_seed: int | None = None,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> Method:
    """Builds R-DPCFL: a Gaussian mixture of noised updates draws each client's cluster until losses decide; with one
    cluster it is FedAvg.

    This follows the abstract, a summary of the paper by others and the authors' code; the paper's text and proofs could
    not be read. From these: clients train the common initial model on one batch of all their examples, so that noise
    matters least, and send the noised update; spherical Gaussians are fitted to the updates; for `soft_rounds` times
    (1 - MPO) rounds, where MPO is the largest overlap of two Gaussians, each client trains a cluster drawn by its
    posterior probabilities; then clients choose. Ours: noise hides clients, not examples, on the clipped and projected
    update and by `aggregation`; the code fits two principal components, with equal weights; choices are those of IFCA,
    by training loss, in every round, and hidden as in IFCA, while the code uses noised accuracies in a tenth of the
    rounds; all models start from the initial one, and clusters are drawn for at least one round; means are by examples
    where nothing is private, while the code's are unweighted; M is given (the paper can take the M of least MPO);
    newcomers, see `admit`.

    Args:
      parameters: How many clusters there are, for how long they are drawn, and what clients send.
      seed: Seed of the order of examples, the mixture, and the draws of clusters.
      noise_seed: Seed of the noise of private updates, to repeat simulations; None draws new noise.
    """
    return RDPCFL(model, training, parameters, seed, noise_seed, aggregation)
