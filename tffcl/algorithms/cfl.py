"""CFL: clustered federated learning by recursive bipartition (Sattler, Müller, Samek, TNNLS 2021, arXiv:1910.01991,
Alg. 1).

If a cluster's model stands still while single members still move, it is split by the cosines of its members' updates.
"""

import dataclasses

import numpy as np

from tffcl.algorithms.clustered_training import BYTES_AT_A_TIME, CollectedTraining
from tffcl.algorithms.each_round_parameters import CFLParameters
from tffcl.algorithms.method import ClusteredState, Exports, Views, method_builder
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clients.client_state import KeptStates
from tffcl.clients.cohort import Cohort
from tffcl.clients.newcomers import check_newcomers, extended
from tffcl.clustering.groupings import weighted_means
from tffcl.clustering.hierarchical import bipartition, nearer_second
from tffcl.display import counted
from tffcl.models.flat import FlatModel
from tffcl.rounds.traffic import Traffic


@dataclasses.dataclass(frozen=True, eq=False)
class CFLState(ClusteredState):
    """Adds the clients' last updates; `(round, cluster, founded cluster)` for each split; in `tree` for each split the
    model before it, `float32 [P]`, and its halves' updates of trained weights, `float32 [m, T]` each; and the unit of
    norms, if they are relative."""

    updates: KeptStates | None = None
    splits: np.ndarray | None = None
    tree: tuple = ()
    unit: np.ndarray | None = None


class CFL(CollectedTraining):
    """CFL, see `build_cfl`."""

    name, state_class = "cfl", CFLState

    @property
    def kept_bytes(self) -> int:
        return 4 * self.model.size  # the last update

    def initialize(self, population) -> CFLState:
        everyone, start = np.zeros(len(population), np.int32), self.model.initial[np.newaxis]
        nobody, none = KeptStates(np.zeros_like(start[0])), np.zeros([0, 3], np.int32)
        return CFLState(population.client_ids, everyone, start, (), updates=nobody, splits=none)

    def next(self, state: CFLState, cohort: Cohort):
        ids, clusters, number = cohort.client_ids, state.clusters(cohort.client_ids), cohort.seed[1]
        present, keys = np.unique(clusters, return_inverse=True)
        before = state.models
        updates, result = self.updates(before[present], keys, cohort, optimizers=state.optimizers)
        means = weighted_means(np.zeros_like(before), updates, clusters, result.reports["examples"])
        seen = self.model.of_trained(updates)  # clusters are split by these
        unit = np.linalg.norm(seen, axis=1).max() if self.parameters.relative else 1.0
        unit = np.float32(unit) if state.unit is None else state.unit
        kept = {"updates": state.updates.updated(ids, list(updates)), "optimizers": result.optimizers}
        state = dataclasses.replace(state, models=before + means, unit=unit, **kept)
        for cluster in present:
            members = clusters == cluster
            if self._is_due(self.model.of_trained(means[cluster]) / unit, seen[members] / unit, number):
                state = self._split(state, cluster, ids[members], seen[members], before[cluster], number)
        return state, result.metrics(cohort, clusters)

    def _is_due(self, mean: np.ndarray, updates: np.ndarray, number: int) -> bool:
        how, longest = self.parameters, np.linalg.norm(updates, axis=1).max()
        still = np.linalg.norm(mean) < how.stationary_norm and longest > how.progress_norm
        return number > how.first_rounds and len(updates) > 2 and still

    def _split(
        self, state: CFLState, cluster: int, ids: np.ndarray, updates: np.ndarray, model: np.ndarray, number: int
    ):
        """Absent members join the half with the update that is most like their last one; without a last update they
        stay."""
        second = bipartition(updates, self.parameters.linkage, self.parameters.gate)
        if second is None:
            return state
        halves, founded = (updates[~second], updates[second]), len(state.models)
        absent = np.setdiff1d(state.client_ids[state.assignment == cluster], ids)
        absent = absent[state.updates.has(absent)]
        parts = np.array_split(absent, 1 + len(absent) * model.nbytes // BYTES_AT_A_TIME) if len(absent) else []
        last = (self.model.of_trained(np.stack(state.updates.of(few))) for few in parts)
        moved = [few[nearer_second(own, halves)] for few, own in zip(parts, last, strict=True)]
        assignment = state.assignment.copy()
        assignment[state.index(np.concatenate([ids[second], *moved]))] = founded
        models = np.concatenate([state.models, state.models[[cluster]]])
        splits = np.concatenate([state.splits, np.array([[number, cluster, founded]], np.int32)])
        tree = (*state.tree, (model, *halves))
        return dataclasses.replace(state, assignment=assignment, models=models, splits=splits, tree=tree)

    def admit(self, state: CFLState, newcomers) -> CFLState:
        """A newcomer goes down the tree of splits; at each its update of the model that was split decides on the branch
        (section V). This counts as signature traffic.
        """
        check_newcomers(state, newcomers)
        joined = np.zeros(len(newcomers), np.int32)
        for (number, cluster, founded), (model, *halves) in zip(state.splits, state.tree, strict=True):
            here = np.flatnonzero(joined == cluster)
            cohort = Cohort(newcomers, newcomers.client_ids[here], (0, int(number)))  # at that round's learning rate
            for part, updates in self.updates_in_parts(model, cohort):
                second = nearer_second(self.model.of_trained(updates), halves)
                joined[here[part]] = np.where(second, founded, cluster)
        return dataclasses.replace(state, **extended(state, newcomers, joined))

    def joined_traffic(self, before: CFLState | None, after: CFLState) -> Traffic:
        """At every split on its way a newcomer receives the model that was split and sends an update."""
        if before is None:
            return Traffic()
        at, met = after.clusters(np.setdiff1d(after.client_ids, before.client_ids)), 0
        for _, cluster, founded in before.splits[::-1]:  # from the leaves up the tree
            met += np.isin(at, (cluster, founded)).sum()
            at = np.where(at == founded, cluster, at)
        return Traffic.of(self.round.transfer) * met

    def exports(self) -> Exports:
        found = super().exports()
        note = (
            f"{found.when['training']}; where a cluster splits, absent members go by their last differences, and those "
            "of this run are not exported: one that has not taken part since stays; a newcomer goes down the splits, "
            "at each by its update from the model that was split"
        )
        return dataclasses.replace(found, when={"training": note})

    def views(self, state: CFLState) -> Views:
        how, notes = self.parameters, ()
        if not len(state.splits):
            notes = (
                f"no cluster has split: one does after {counted(how.first_rounds, 'round')} (first_rounds), when its "
                f"mean update is shorter than {how.stationary_norm:g} (stationary_norm), a member's longer than "
                f"{how.progress_norm:g} (progress_norm)"
                + ", both times the longest update of the first round" * how.relative
                + ", and more than two take part",
            )
        return Views(state.client_ids, state.assignment, splits=state.splits, notes=notes)


@method_builder
def build_cfl(model: FlatModel, training: LocalTraining, parameters: CFLParameters = CFLParameters()) -> CFL:
    """Builds CFL: a cluster whose model stands still while its members move is split by the cosines of their updates;
    as long as none splits it is FedAvg.

    From the paper: means by examples, the two norms that decide when a cluster is split, the bipartition, its gate, and
    newcomers that go down the tree of splits. From the authors' notebook: the values of the norms, no split in the
    first 20 rounds, and none of two clients. In the notebook means are unweighted, the bipartition is complete linkage,
    and halves take the means of their own updates at once; here both start from their cluster's model after the round.
    Ours: absent members count by their last update, and norms may be relative.

    Args:
      parameters: When clusters split, and how.
    """
    return CFL(model, training, parameters)
