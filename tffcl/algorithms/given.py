"""FedAvg inside known groups, and the oracle with which other methods are compared.

Clients send nothing before training. A mapping or a file says which client is in which group, such as hospitals or
regions. With the true groups of the population, which other methods have to find, the accuracy is the best that
grouping could give.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
import tensorflow_federated as tff

from tffcl.algorithms.clustered_training import ClusteredTraining, EngineMethod, build_clustered_training
from tffcl.algorithms.method import ClusteredState, Method, Views, method_builder
from tffcl.algorithms.parameters import TRUE, GivenParameters
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clients.arrays import check_grouped
from tffcl.clients.cohort import Cohort
from tffcl.clients.newcomers import check_newcomers, extended
from tffcl.clients.population import Population
from tffcl.errors import UserError
from tffcl.models.flat import FlatModel
from tffcl.registry import GIVEN, ORACLE
from tffcl.validation import tell_once


@dataclasses.dataclass(frozen=True, eq=False)
class GivenState(ClusteredState):
    """Adds `groups [K]`, the group of each model: text, or the numbers of `Population.groups`."""

    groups: np.ndarray | None = None


class Given(EngineMethod):
    """Training inside groups that are known, see `build_given`."""

    state_class = GivenState

    def __init__(self, engine: ClusteredTraining, groups: Mapping[str, str] | None):
        super().__init__("given", engine)
        self._groups = groups  # groups by clients' names; None: the true ones

    def initialize(self, population: Population) -> GivenState:
        groups, assignment = np.unique(self._groups_of(population), return_inverse=True)
        absent = sorted(set(self._groups or ()) - set(map(str, population.shown_ids.tolist())))
        if absent:
            tell_once(f"{self.name}: groups names clients that are not here, {len(absent)} of them, as {absent[0]}")
        return GivenState(**self.engine.start(population, assignment.astype(np.int32)), groups=groups)

    def next(self, state: GivenState, cohort: Cohort):
        """Runs a round; clients that have moved to another true group since the last round train its model."""
        there = cohort.population
        if self._groups is None and there.groups is not None:
            moves = np.isin(state.client_ids, there.client_ids)
            state, clusters = self._placed(state, there.restricted(state.client_ids[moves]))
            assignment = state.assignment.copy()
            assignment[moves] = clusters
            state = dataclasses.replace(state, assignment=assignment)
        return self.engine.next(state, cohort)

    def admit(self, state: GivenState, newcomers: Population) -> GivenState:
        """A newcomer joins its group; the first client of a group starts from the initial model."""
        check_newcomers(state, newcomers)
        state, clusters = self._placed(state, newcomers)
        return dataclasses.replace(state, **extended(state, newcomers, clusters))

    def _placed(self, state: GivenState, clients: Population) -> tuple[GivenState, np.ndarray]:
        """The state with a model for every group of the clients, and their clusters `int32 [n]`."""
        found = self._groups_of(clients)
        new = np.setdiff1d(found, state.groups)
        if len(new):
            grown = self.engine.grown(state, len(new))
            state = dataclasses.replace(state, **grown, groups=np.concatenate([state.groups, new]))
        order = np.argsort(state.groups)
        return state, order[np.searchsorted(state.groups, found, sorter=order)].astype(np.int32)

    def _groups_of(self, clients: Population) -> np.ndarray:
        """The group of each client; UserError if one has none."""
        if self._groups is None:
            if clients.groups is None:
                raise UserError(
                    f'groups is "{TRUE}", and these clients have no true groups; give a mapping of clients to groups '
                    "or a CSV file of the columns client and group, or name their column, from_frame(group=...), or "
                    "the groups, clients.with_groups(...)",
                    key="groups",
                )
            return np.asarray(clients.groups)
        names = list(map(str, clients.shown_ids.tolist()))
        check_grouped(names, self._groups)
        return np.array([self._groups[name] for name in names])

    def views(self, state: GivenState) -> Views:
        return dataclasses.replace(super().views(state), notes=(ORACLE if self._groups is None else GIVEN,))


@method_builder
def build_given(
    model: FlatModel,
    training: LocalTraining,
    parameters: GivenParameters = GivenParameters(),
    *,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> Method:
    """Builds FedAvg inside groups that are known, e.g. hospitals; with the true groups, the oracle.

    Papers call it "oracle" or "ground truth" (FedDrift, FLUX, PRFL). A newcomer joins its group's model, and founds its
    group if no client is in it yet. With the true groups, clients move if these change in a later round. Other
    arguments are as in `build_fedavg`.

    Args:
      parameters: The groups of the clients.
    """
    return Given(build_clustered_training(model, training, aggregation=aggregation), parameters.by_client())
