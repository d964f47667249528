"""FLUX: clusters by descriptors of the data under a warmed-up model (Fenoglio et al., NeurIPS 2025, arXiv:2511.22305).

After some rounds of FedAvg all clients describe their data with its model. The server groups them by density, which
finds the number of clusters, and every cluster trains on. A newcomer without labels is placed by the descriptors that
need no labels.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
import tensorflow_federated as tff
from scipy.spatial import distance

from tffcl.algorithms.clustered_training import ClusteredTraining, EngineMethod, build_clustered_training
from tffcl.algorithms.each_round_parameters import FLUXParameters
from tffcl.algorithms.method import (
    ClusteredState,
    Exports,
    Method,
    MetricView,
    Views,
    ended_within,
    in_first_rounds,
    method_builder,
)
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clients.cohort import Cohort
from tffcl.clients.newcomers import check_newcomers, extended, joined_order
from tffcl.clients.population import Population
from tffcl.clients.simulation_context import current
from tffcl.clustering import groupings, hierarchical
from tffcl.display import counted
from tffcl.errors import UserError
from tffcl.models.flat import FlatModel
from tffcl.models.layer_parts import require_shared
from tffcl.rounds import privacy_releases
from tffcl.rounds.client_queries import (
    ask_all,
    build_collection,
    build_stacked_collection,
    check_signatures,
    signature_transfer,
)
from tffcl.rounds.traffic import Traffic
from tffcl.signatures.predictions import build_descriptors

_ALONE = "one model is trained (warm_up_rounds)"


@dataclasses.dataclass(frozen=True, eq=False)
class FLUXState(ClusteredState):
    """Adds, once clients are grouped: descriptors by name, rows are clients (only those of P(X) after newcomers have
    joined); the divisor of each of their blocks; eps of the grouping; and the model `float32 [P]` with which clients
    describe their data."""

    descriptors: Mapping[str, np.ndarray] | None = None
    spans: Mapping[str, np.ndarray] | None = None
    eps: np.ndarray | None = None
    described_by: np.ndarray | None = None


class FLUX(EngineMethod):
    """FLUX, see `build_flux`."""

    state_class = FLUXState

    def __init__(self, engine: ClusteredTraining, parameters: FLUXParameters):
        super().__init__("flux", engine)
        after = f"after {counted(parameters.warm_up_rounds, 'round')}"
        require_shared(self.model, f"{after} clients describe their data with one model")
        first, later = build_descriptors(engine.model), build_descriptors(engine.model, by_class=False)
        self._how, self._newcomers = parameters, later
        self._collection, self._later_collection = build_stacked_collection(first), build_stacked_collection(later)
        self._grouping, self.joining = (Traffic.of(signature_transfer(each)) for each in (first, later))
        self._shown = None, None, ()  # descriptors, their metric view, and the rule's notes on their distances

    def initialize(self, population: Population) -> FLUXState:
        current().announce(_release_of(population))
        return FLUXState(**self.engine.start(population, np.zeros(len(population), np.int32)))

    def next(self, state: FLUXState, cohort: Cohort):
        described = 0
        if state.descriptors is None and cohort.seed[1] > self._how.warm_up_rounds:
            state, described = self._grouped(state, cohort.population), len(cohort.population)
        state, metrics = self.engine.next(state, cohort)
        return state, metrics.with_signatures(self._grouping * described)

    def _grouped(self, state: FLUXState, population: Population) -> FLUXState:
        """All clients describe their data; every cluster continues the warm-up's model, optimizer and clip."""
        if not np.array_equal(population.client_ids, state.client_ids):
            raise UserError(
                f"{self.name} groups all its clients after {counted(self._how.warm_up_rounds, 'round')} "
                "(warm_up_rounds), and one has left before; it may leave later"
            )
        described = self._described(self._collection, state.models[0], population)
        points, spans = groupings.scaled(described)
        labels, eps = groupings.dense_groups(points, self._how.neighbourhood, self._how.eps_scale)
        carried = self.engine.rearranged(state, np.zeros(labels.max() + 1, int))
        found = {"descriptors": described, "spans": spans, "eps": np.float64(eps), "described_by": state.models[0]}
        return dataclasses.replace(state, assignment=labels, **found, **carried)

    def _described(self, query: tff.Computation, model: np.ndarray, population: Population):
        found = ask_all(query, model, population, release=_release_of(population))
        check_signatures(population, found)
        return found

    def admit(self, state: FLUXState, newcomers: Population) -> FLUXState:
        """A newcomer sends its descriptor of P(X) only, and joins the cluster with the nearest mean of these."""
        check_newcomers(state, newcomers)
        if state.descriptors is None:
            return dataclasses.replace(state, **extended(state, newcomers, np.zeros(len(newcomers), np.int32)))
        theirs = self._described(self._later_collection, state.described_by, newcomers)
        known = {"marginal": state.descriptors["marginal"]}
        (points, _), (arrived, _) = (groupings.scaled(each, state.spans) for each in (known, theirs))
        nearest = groupings.nearest_groups(points, state.assignment, arrived)
        order = joined_order(state, newcomers)
        together = {name: np.concatenate([known[name], theirs[name]])[order] for name in known}
        return dataclasses.replace(state, descriptors=together, **extended(state, newcomers, nearest))

    def joined_traffic(self, before: FLUXState | None, after: FLUXState) -> Traffic:
        """Before clients are grouped, none describes its data; the round that groups them counts what all of them
        send."""
        described = before is not None and before.descriptors is not None
        return super().joined_traffic(before, after) if described else Traffic()

    def views(self, state: FLUXState) -> Views:
        if state.descriptors is None:
            note = in_first_rounds(self._how.warm_up_rounds, _ALONE)
            return dataclasses.replace(super().views(state), notes=(note,))
        of, metric, notes = self._shown
        if of is not state.descriptors:  # many rounds have the same descriptors, and all pairs take seconds
            apart = distance.squareform(distance.pdist(groupings.scaled(state.descriptors, state.spans)[0])).astype(
                np.float32
            )
            if "conditional" in state.descriptors:
                tree, by_gap = hierarchical.build_dendrogram(apart, "single"), self._how.neighbourhood == "gap"
                metric = MetricView(apart, "scaled descriptors", "euclidean", tree.merges, float(state.eps), "single")
                one = (groupings.ONE_DISTANCE,) if len(apart) == 2 else ()
                notes = hierarchical.suggest_threshold(tree).doubts if by_gap else one
            else:  # all clients can be compared only by P(X), which did not form the groups
                metric, notes = MetricView(apart, "scaled descriptors of P(X)", "euclidean"), ()
            self._shown = state.descriptors, metric, notes
        return Views(state.client_ids, state.assignment, metric=metric, notes=notes)

    def exports(self) -> Exports:
        rounds = counted(self._how.warm_up_rounds, "round")
        note = f"a run begins with {rounds} of one model, row 0, which every cluster then starts from"
        joins = (
            "when newcomers have signed: each joins the cluster whose mean signature is nearest, both divided by "
            "`spans` (of clustering/state.npz); the groups of this run are by descriptors that need labels, of which "
            "there is no computation here"
        )
        found = self.engine.exports(
            build=lambda: {"signature": build_collection(self._newcomers)}, clustering={"when": joins},
            when={"signature": "once for each newcomer, when it joins clients that are grouped", "training": note},
        )  # fmt: skip

        def values(state: FLUXState) -> dict:
            if state.descriptors is None:
                raise ended_within(self._how.warm_up_rounds, _ALONE)
            return found.server_values(state)

        return dataclasses.replace(found, server_values=values)


def _release_of(population: Population) -> privacy_releases.Release:
    return privacy_releases.of_all("the descriptors", population, once=True)


@method_builder
def build_flux(
    model: FlatModel,
    training: LocalTraining,
    parameters: FLUXParameters = FLUXParameters(),
    *,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> Method:
    """Builds FLUX: clusters by descriptors of the data under a warmed-up model; newcomers need no labels.

    From the paper: descriptors of P(X) and of each class under a warmed-up global model, DBSCAN with a distance that is
    found from the data, points without neighbours as clusters of their own, cluster models that start from the global
    one, label-free newcomers. From the authors' code: Kneedle's first knee, min-max scaling of means and deviations,
    separately for each class, and the stand-in for a class that a client lacks. Ours: the model's outputs in place of
    its latent layer (in the paper projected to as many dimensions as there are classes), a fixed number of warm-up
    rounds, the largest distance where there is no knee (in the authors' code an error), and no noise on the
    descriptors.

    The exported signature is that of newcomers, since an export already has its groups.

    Args:
      parameters: When and how clients are grouped.
    """
    return FLUX(build_clustered_training(model, training, aggregation=aggregation), parameters)
