"""Clusters that are formed anew when clients tell that their data have changed, or every so many rounds (FLT Alg. 3).

Lines 13 and 21 to 28: a client sends a flag of change beside its model; the server keeps the flags, and when enough stand,
or when a period is over, all clients sign again and the clusters are formed from the new signatures.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
from scipy.optimize import linear_sum_assignment

from tffcl.algorithms.contracts import Cohort, Population, RoundMetrics, State, Transfer, index_of, joined_order
from tffcl.errors import UserError

# In `State.extra`, `int32 [N]` each: the flag (Δ), the round in which it was last raised (0: never), the round in which the
# client last changed its cluster (0: never), and of which version of its data its signature is.
KEYS = ("flags", "flagged_in", "moved_in", "signed_version")


@dataclasses.dataclass(frozen=True)
class Triggers:
    """When clusters are formed anew.

    Attributes:
      flags: λ: when more clients than this have raised their flag (line 23); None: flags are not asked for.
      period: τ: in every round that is a multiple of it; None: never.
    """

    flags: int | None = None
    period: int | None = None

    def __post_init__(self):
        if self.flags is not None and self.flags < 0:
            raise UserError(f"change_flags is {self.flags}; it must be a whole number from 0")
        if self.period is not None and self.period < 1:
            raise UserError(f"period is {self.period}; it must be a whole number from 1")

    def __bool__(self) -> bool:
        return self.flags is not None or self.period is not None


def no_flags(population: Population) -> dict[str, np.ndarray]:
    """What the state keeps beside the clustering when clusters have just been formed, by name in `KEYS`."""
    nothing = np.zeros(len(population.client_ids), np.int32)
    return {**{key: nothing for key in KEYS[:3]}, "signed_version": population.versions}


def with_arrivals(state: State, arrivals: Population) -> dict[str, np.ndarray]:
    """The same when newcomers have joined: "the state of being a newcomer" is a flag of change too (section III-B4)."""
    order = joined_order(state, arrivals)
    new = {**no_flags(arrivals), "flags": np.ones(len(arrivals.client_ids), np.int32)}
    return {key: np.concatenate([state.extra[key], new[key]])[order] for key in KEYS}


@dataclasses.dataclass(frozen=True, eq=False)
class DynamicClustering:
    """Rounds after which clusters may be formed anew.

    Attributes:
      rounds: `ClusteredTraining` or `RelatedTraining` that asks for flags.
      form: `(Population) -> (labels int32 [N], extra)`, signatures and all.
      carry: `(State, labels, Population) -> {field: value}`: the models of the new clusters, from those of their members.
      triggers: When.
      transfer: Of a signature.
    """

    rounds: object
    form: Callable
    carry: Callable
    triggers: Triggers
    transfer: Transfer

    def next(self, state: State, cohort: Cohort) -> tuple[State, RoundMetrics]:
        """One round, see `Algorithm.next`; its scalars are the flags that stood and whether clusters were formed anew."""
        state, metrics = self.rounds.next(state, cohort)
        state = _raised(state, cohort, metrics)
        standing = int(state.extra["flags"].sum())
        due = self._due(standing, cohort.seed[1])
        if due:
            state = self._formed(state, cohort.population, cohort.seed[1])
            down, up = (len(state.client_ids) * each for each in (self.transfer.down_bytes, self.transfer.up_bytes))
            metrics = dataclasses.replace(
                metrics, down_bytes=metrics.down_bytes + down, up_bytes=metrics.up_bytes + up, signature_bytes=down + up
            )
        return state, dataclasses.replace(metrics, scalars={"change_flags": standing, "formed_anew": int(due)})

    def _due(self, standing: int, round_number: int) -> bool:
        enough = self.triggers.flags is not None and standing > self.triggers.flags
        return enough or (self.triggers.period is not None and round_number % self.triggers.period == 0)

    def _formed(self, state: State, population: Population, round_number: int) -> State:
        """Lines 24 to 26."""
        if not np.array_equal(population.client_ids, state.client_ids):
            raise UserError("clusters are formed anew by all clients: a round's population must be all that were admitted")
        labels, extra = self.form(population)
        labels, moved = renumbered(labels, state.assignment)
        moved = np.where(moved, np.int32(round_number), state.extra["moved_in"])
        kept = {**no_flags(population), "flagged_in": state.extra["flagged_in"], "moved_in": moved}
        return dataclasses.replace(
            state, assignment=labels, extra={**state.extra, **extra, **kept}, **self.carry(state, labels, population)
        )


def changed_since_signed(state: State, cohort: Cohort) -> np.ndarray:
    """δ of line 13, `int32 [m]`: 1 for a client whose data are not those that it signed; each knows that of itself."""
    versions = cohort.population.versions[cohort.population.index(cohort.client_ids)]
    where = index_of(state.client_ids, cohort.client_ids)
    return (versions > state.extra["signed_version"][where]).astype(np.int32)


def _raised(state: State, cohort: Cohort, metrics: RoundMetrics) -> State:
    """Line 22: the flags that this round's clients sent."""
    if metrics.changed is None:
        return state
    flags, flagged_in = state.extra["flags"].copy(), state.extra["flagged_in"].copy()
    where = index_of(state.client_ids, metrics.client_ids)[metrics.changed]
    stands = (flags[where] > 0) & (flagged_in[where] > 0)  # a newcomer's stands from the first, but it has not raised it
    flagged_in[where] = np.where(stands, flagged_in[where], cohort.seed[1])
    flags[where] = 1
    return dataclasses.replace(state, extra={**state.extra, "flags": flags, "flagged_in": flagged_in})


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
