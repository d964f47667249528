"""FedDrift and FedDrift-Eager: models for the concepts of data that drift (Jothimurugesan et al., AISTATS 2023,
arXiv:2206.00799).

Clients try all models and send their losses. One whose least loss has risen opens a new model; models that do about as
well on each other's data merge.
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
from tffcl.clients.population import Population, check_newcomers, extended, joined_order
from tffcl.clustering.cross_losses import cross_losses, merged_clusters, merged_models
from tffcl.models.flat import FlatModel
from tffcl.rounds.traffic import Traffic

_WHEN = (
    "in a round that is checked, before training, of its clients and with all models, here as many as were exported; "
    "the coordinator opens models for clients whose least loss has risen and merges models (Python, "
    "tffcl.clustering.cross_losses); the row of a client's model is its key"
)


@dataclasses.dataclass(frozen=True, eq=False)
class FedDriftState(ClusteredState):
    """Adds each client's least loss when it was last asked, infinite before, `float32 [N]`; the round in which it last
    opened a model, 0 for never, `int32 [N]`; and which models nobody has trained yet, `bool [K]`."""

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
        untrained = np.full(len(fields["models"]), alone)
        return FedDriftState(**fields, losses=unasked, drifted_in=never, untrained=untrained)

    def next(self, state: FedDriftState, cohort: Cohort):
        asked = Traffic()
        if (cohort.seed[1] - 1) % self._how.check_every == 0:
            asked = self.tried_traffic(state) * len(cohort.client_ids)
            state = self._checked(state, cohort)
        state, metrics = self.engine.next(state, cohort)
        untrained = state.untrained.copy()
        untrained[metrics.clusters] = False
        return dataclasses.replace(state, untrained=untrained), metrics.with_signatures(asked)

    def _checked(self, state: FedDriftState, cohort: Cohort) -> FedDriftState:
        """The state after the clients of a round have tried all models: they choose, models are opened, some merge."""
        asked, how = cohort.population.restricted(cohort.client_ids), self._how
        where, count, losses = state.index(asked.client_ids), len(state.models), self.tried(state, asked)
        before, own = state.assignment, state.assignment[where]
        best, least = _best(state, losses, own)
        drifted = (least > state.losses[where] + how.threshold) & ~state.untrained[own]
        founders = best[drifted][: 1 if how.eager else None]
        best[drifted] = count + np.arange(drifted.sum()) * (not how.eager)
        changed = {name: getattr(state, name).copy() for name in ("assignment", "losses", "drifted_in")}
        changed["assignment"][where], changed["losses"][where] = best, least
        changed["drifted_in"][where[drifted]] = cohort.seed[1]
        changed["untrained"] = np.append(state.untrained, np.ones(len(founders), bool))
        changed |= self.engine.rearranged(state, np.append(np.arange(count), founders))
        state = dataclasses.replace(state, **changed)
        if how.eager:
            return state
        known = np.pad(losses, ((0, 0), (0, len(founders))), constant_values=np.nan)
        known[:, state.untrained] = np.nan
        rows = np.append(np.arange(len(best)), np.flatnonzero(~drifted))  # of what clients have now, and had before
        apart = cross_losses(known[rows], np.append(best, own[~drifted]), asked.sizes[rows])
        return self._merged(state, merged_clusters(apart, how.threshold), np.append(before, state.assignment))

    def _merged(self, state: FedDriftState, labels: np.ndarray, members: np.ndarray) -> FedDriftState:
        """The state after models have merged, arguments as of `merged_models`."""
        first = np.unique(labels, return_index=True)[1]
        changed = {**self.engine.rearranged(state, first), "untrained": state.untrained[first]}
        changed["models"] = merged_models(state.models, labels, members)
        return dataclasses.replace(state, assignment=labels[state.assignment], **changed)

    def place(self, state: FedDriftState, population: Population) -> FedDriftState:
        """A client that was never asked takes the model of least loss."""
        unmet = population.client_ids[np.isinf(state.losses[state.index(population.client_ids)])]
        if not len(unmet):
            return state
        where, assignment = state.index(unmet), state.assignment.copy()
        losses = self.tried(state, population.restricted(unmet), released=False)
        assignment[where] = _best(state, losses, assignment[where])[0]
        return dataclasses.replace(state, assignment=assignment)

    def admit(self, state: FedDriftState, newcomers: Population) -> FedDriftState:
        """A newcomer takes the model of least loss."""
        check_newcomers(state, newcomers)
        best, least = _best(state, self.tried(state, newcomers), np.full(len(newcomers), -1))
        order = joined_order(state, newcomers)
        losses = np.append(state.losses, least)[order]
        drifted_in = np.append(state.drifted_in, np.zeros_like(best))[order]
        return dataclasses.replace(state, losses=losses, drifted_in=drifted_in, **extended(state, newcomers, best))

    def exports(self) -> Exports:
        def still(state: FedDriftState) -> FedDriftState:
            """The state whose next round opens no model and merges none."""
            unasked, closed = np.full_like(state.losses, np.inf), np.ones_like(state.untrained)
            return dataclasses.replace(state, losses=unasked, untrained=closed)

        return dataclasses.replace(super().exports(), rehearsal=still)

    def views(self, state: FedDriftState) -> Views:
        moves = Moves(np.zeros_like(state.drifted_in), state.drifted_in)
        return dataclasses.replace(super().views(state), known=np.isfinite(state.losses), moves=moves)


def _best(state: FedDriftState, losses: np.ndarray, owners: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns of each client the model of least loss, `int32 [n]`, and that loss.

    A model that nobody has trained yet is only for its owners: `owners int [n]` has the model of each client, or -1.
    """
    closed = state.untrained & (owners[:, np.newaxis] != np.arange(len(state.models)))
    best = np.where(closed, np.inf, losses).argmin(axis=1).astype(np.int32)
    return best, losses[np.arange(len(best)), best]


@method_builder
def build_feddrift(
    model: FlatModel,
    training: LocalTraining,
    parameters: FedDriftParameters = FedDriftParameters(),
    *,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> Method:
    """Builds FedDrift, or FedDrift-Eager (`parameters.eager`); with a threshold that no loss reaches it is FedAvg.

    From the paper: a client whose least loss rises by more than δ leaves for a new model; clusters are
    max(L_ij - L_ii, L_ji - L_jj, 0) apart, and merge up to δ by complete linkage to the mean weighted by clients;
    models without clients stay, for concepts that come back. From the authors' code: a new model starts as a copy of
    the one of least loss, and until it was trained it is for nobody else and does not merge. Ours: every
    `check_every`-th round begins a time step of the paper, for the clients of that round, whether data have changed or
    not; L_ij is a loss on what these hold then, as that of the model which they have and, unless it drifted away, of
    the one which they had, in the paper on all that cluster j ever held, and so are the numbers of clients; a newcomer,
    and in an evaluation a client that was never asked, has the model of least loss.

    Args:
      parameters: Threshold, measure and start.
    """
    return FedDrift(build_clustered_training(model, training, aggregation=aggregation), parameters)
