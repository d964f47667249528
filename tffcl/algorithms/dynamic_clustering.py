"""Clusters that are formed anew when clients tell that their data have changed, or every so many rounds (FLT Alg. 3).

Lines 13 and 21 to 28: a client sends a flag of change beside its model; the server keeps the flags, and when enough stand,
or when a period is over, all clients sign again and the clusters are formed from the new signatures.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from tffcl.clients.cohort import Cohort
from tffcl.clients.population import Population
from tffcl.clustering.reclustering import ChangeFlags, Triggers, renumbered
from tffcl.errors import UserError
from tffcl.rounds.traffic import RoundMetrics, Traffic


@dataclasses.dataclass(frozen=True, eq=False)
class DynamicClustering:
    """Rounds after which clusters may be formed anew, on a state with `flags`, a `ChangeFlags`.

    Attributes:
      rounds: `ClusteredTraining` or `RelatedTraining` that asks for flags.
      form: `(Population, state, round) -> (labels int32 [N], fields of the state)`, signatures and all.
      carry: `(state, labels, Population) -> fields of the state`: the models of the new clusters, from those of their members.
      triggers: When.
      signing: What a client exchanges for a signature.
    """

    rounds: object
    form: Callable
    carry: Callable
    triggers: Triggers
    signing: Traffic

    def next(self, state, cohort: Cohort) -> tuple[object, RoundMetrics]:
        """Runs one round; its scalars are the flags that stood and whether clusters were formed anew."""
        state, metrics = self.rounds.next(state, cohort)
        if metrics.changed is not None:
            where = state.index(metrics.client_ids)[metrics.changed]
            state = dataclasses.replace(state, flags=state.flags.with_changed(where, cohort.seed[1]))
        standing = int(state.flags.raised.sum())
        due = self.triggers.due(standing, cohort.seed[1], state.flags.formed_in)
        if due:
            state = self._formed(state, cohort.population, cohort.seed[1])
            metrics = metrics.with_signatures(self.signing * len(state.client_ids))
        return state, dataclasses.replace(metrics, scalars={"change_flags": standing, "formed_anew": int(due)})

    def _formed(self, state, population: Population, round_number: int):
        """Lines 24 to 26."""
        if not np.array_equal(population.client_ids, state.client_ids):
            raise UserError("clusters are formed anew by all clients: a round's population must be all that were admitted")
        labels, formed = self.form(population, state, round_number)
        labels, moved = renumbered(labels, state.assignment)
        moved_in = np.where(moved, np.int32(round_number), state.flags.moved_in)
        none = ChangeFlags.none(population.versions, round_number)
        flags = dataclasses.replace(none, flagged_in=state.flags.flagged_in, moved_in=moved_in)
        carried = self.carry(state, labels, population)
        return dataclasses.replace(state, assignment=labels, flags=flags, **formed, **carried)


def changed_since_signed(state, cohort: Cohort) -> np.ndarray:
    """δ of line 13, `int32 [m]`: 1 for a client whose data are not those that it signed; each knows that of itself."""
    versions = cohort.population.versions[cohort.population.index(cohort.client_ids)]
    return (versions > state.flags.signed_version[state.index(cohort.client_ids)]).astype(np.int32)
