"""Clusters that are formed anew when clients tell that their data have changed, or every so many rounds (FLT Alg. 3).

Lines 13 and 21 to 28: a client sends a flag of change beside its model; the server keeps the flags, and when enough stand,
or when a period is over, all clients sign again and the clusters are formed from the new signatures.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
from scipy.optimize import linear_sum_assignment

from tffcl.algorithms.method import Moves, joined_order
from tffcl.clients.cohort import Cohort
from tffcl.clients.population import Population
from tffcl.errors import UserError
from tffcl.rounds.traffic import RoundMetrics, Traffic


@dataclasses.dataclass(frozen=True)
class Triggers:
    """When clusters are formed anew.

    Attributes:
      flags: λ: when more clients than this have raised their flag (line 23); None: flags are not asked for.
      period: τ: in every round that is a multiple of it; None: never.
    """

    flags: int | None = None
    period: int | None = None

    def __bool__(self) -> bool:
        return self.flags is not None or self.period is not None

    def due(self, standing: int, round_number: int) -> bool:
        """Says whether clusters are formed anew after a round in which so many flags stand."""
        enough = self.flags is not None and standing > self.flags
        return enough or (self.period is not None and round_number % self.period == 0)


@dataclasses.dataclass(frozen=True, eq=False)
class ChangeFlags:
    """Who has told that its data have changed, and who has moved; `int32 [N]` each.

    Attributes:
      raised: Δ, the flags that stand: 1 or 0.
      flagged_in: The round in which the flag was last raised; 0: never.
      moved_in: The round in which the client last changed its cluster; 0: never.
      signed_version: Of which version of its data the client's signature is.
    """

    raised: np.ndarray
    flagged_in: np.ndarray
    moved_in: np.ndarray
    signed_version: np.ndarray

    @classmethod
    def none(cls, population: Population) -> "ChangeFlags":
        """When clusters have just been formed."""
        nothing = np.zeros(len(population), np.int32)
        return cls(nothing, nothing, nothing, population.versions)

    def with_arrivals(self, state, arrivals: Population) -> "ChangeFlags":
        """When newcomers have joined: "the state of being a newcomer" is a flag of change too (section III-B4)."""
        order = joined_order(state, arrivals)
        new = dataclasses.replace(ChangeFlags.none(arrivals), raised=np.ones(len(arrivals), np.int32))
        names = [field.name for field in dataclasses.fields(self)]
        return ChangeFlags(*(np.concatenate([getattr(self, name), getattr(new, name)])[order] for name in names))

    def with_changed(self, where: np.ndarray, round_number: int) -> "ChangeFlags":
        """Line 22: with the flags that the clients at the places `where` sent in a round."""
        raised, flagged_in = self.raised.copy(), self.flagged_in.copy()
        stands = (raised[where] > 0) & (flagged_in[where] > 0)  # a newcomer's stands from the first, but it has not raised it
        flagged_in[where] = np.where(stands, flagged_in[where], round_number)
        raised[where] = 1
        return dataclasses.replace(self, raised=raised, flagged_in=flagged_in)

    def moves(self) -> Moves:
        """What reports show of it."""
        return Moves(self.moved_in, self.flagged_in)


@dataclasses.dataclass(frozen=True, eq=False)
class DynamicClustering:
    """Rounds after which clusters may be formed anew, on a state with `flags`, a `ChangeFlags`.

    Attributes:
      rounds: `ClusteredTraining` or `RelatedTraining` that asks for flags.
      form: `(Population) -> (labels int32 [N], fields of the state)`, signatures and all.
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
        due = self.triggers.due(standing, cohort.seed[1])
        if due:
            state = self._formed(state, cohort.population, cohort.seed[1])
            metrics = metrics.with_signatures(self.signing * len(state.client_ids))
        return state, dataclasses.replace(metrics, scalars={"change_flags": standing, "formed_anew": int(due)})

    def _formed(self, state, population: Population, round_number: int):
        """Lines 24 to 26."""
        if not np.array_equal(population.client_ids, state.client_ids):
            raise UserError("clusters are formed anew by all clients: a round's population must be all that were admitted")
        labels, formed = self.form(population)
        labels, moved = renumbered(labels, state.assignment)
        moved_in = np.where(moved, np.int32(round_number), state.flags.moved_in)
        flags = dataclasses.replace(ChangeFlags.none(population), flagged_in=state.flags.flagged_in, moved_in=moved_in)
        carried = self.carry(state, labels, population)
        return dataclasses.replace(state, assignment=labels, flags=flags, **formed, **carried)


def changed_since_signed(state, cohort: Cohort) -> np.ndarray:
    """δ of line 13, `int32 [m]`: 1 for a client whose data are not those that it signed; each knows that of itself."""
    versions = cohort.population.versions[cohort.population.index(cohort.client_ids)]
    return (versions > state.flags.signed_version[state.index(cohort.client_ids)]).astype(np.int32)


def renumbered(labels: np.ndarray, before: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Orders clusters as those before that most of their members were in, and tells who is in another one than before.

    Args:
      labels: `int [N]`, from 0.
      before: `int [N]`, from 0.

    Returns:
      `int32 [N]`, the same clusters, numbered from 0 without gaps: where one has gone, those after it move up. And `bool
      [N]`, who is not in the cluster that goes on where it was.
    """
    shared = np.zeros((labels.max() + 1, max(before.max(), labels.max()) + 1), np.int64)
    np.add.at(shared, (labels, before), 1)
    _, number = linear_sum_assignment(shared, maximize=True)
    _, dense = np.unique(number, return_inverse=True)
    return dense[labels].astype(np.int32), number[labels] != before


def mean_of_members(models: np.ndarray, before: np.ndarray, labels: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The models that clusters start from when they are formed anew: their members' models so far, weighted by examples.

    The paper does not say where the new clusters' models come from.

    Args:
      models: `float32 [K, P]`.
      before: `int [N]`, whose model is which row.
      labels: `int [N]`, the new clusters, from 0.
      sizes: `[N]`, training examples.

    Returns:
      `float32 [K', P]`.
    """
    shares = np.zeros((labels.max() + 1, len(models)))
    np.add.at(shares, (labels, before), sizes)
    return (shares / shares.sum(axis=1, keepdims=True)).astype(np.float32) @ models
