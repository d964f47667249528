"""Flags of change: which clients report that their data have changed, and when clusters are formed anew (FLT Alg. 3
lines 22 and 23)."""

import dataclasses

import numpy as np
from scipy.optimize import linear_sum_assignment


@dataclasses.dataclass(frozen=True)
class Triggers:
    """When clusters are formed anew.

    Attributes:
      flags: λ, the number of raised flags above which they are (line 23); None: clients raise no flags.
      period: τ: they are in every round that is a multiple of it, or in the next that has clients; None: never.
      share: The share of all clients from which on raised flags are enough; None: clients raise no flags.
    """

    flags: int | None = None
    period: int | None = None
    share: float | None = None

    def __bool__(self) -> bool:
        return any(each is not None for each in (self.flags, self.period, self.share))

    def due(self, standing: int, round_number: int, formed_in: int, clients: int = 0) -> bool:
        """Returns whether clusters are formed anew after a round.

        Args:
          standing: The number of raised flags.
          round_number: The round.
          formed_in: See `ChangeFlags`.
          clients: The number of clients.
        """
        enough = self.flags is not None and standing > self.flags
        enough |= self.share is not None and standing > 0 and standing >= self.share * clients
        return enough or (self.period is not None and round_number // self.period > formed_in // self.period)


@dataclasses.dataclass(frozen=True, eq=False)
class ChangeFlags:
    """Which clients reported a change of their data, and which moved, `int32 [N]` each; and when clusters were last
    formed.

    Attributes:
      raised: Δ, the flags that are raised: 1 or 0.
      flagged_in: The round in which the flag was last raised; 0: never.
      moved_in: The round in which the client last changed its cluster; 0: never.
      signed_version: The version of its data that the client's signature describes.
      formed_in: `int32 []`, the round in which clusters were last formed; 0: before the first.
    """

    raised: np.ndarray
    flagged_in: np.ndarray
    moved_in: np.ndarray
    signed_version: np.ndarray
    formed_in: np.ndarray

    @classmethod
    def none(cls, versions: np.ndarray, formed_in: int = 0) -> "ChangeFlags":
        """The flags after clusters have just been formed from clients with these versions of data, `int32 [N]`."""
        nothing = np.zeros(len(versions), np.int32)
        return cls(nothing, nothing, nothing, versions, np.int32(formed_in))

    def with_arrivals(self, versions: np.ndarray, order: np.ndarray, raised: int = 1) -> "ChangeFlags":
        """The flags after newcomers joined: "the state of being a newcomer" is a flag of change too (section III-B4).

        Args:
          versions: `int32 [B]`, the versions of the newcomers' data.
          order: `[N + B]`, places that put rows of the old clients, then of the newcomers, into order.
          raised: The newcomers' flags; 0 if they are grouped when they join.
        """
        new = dataclasses.replace(ChangeFlags.none(versions), raised=np.full(len(versions), raised, np.int32))
        names = ("raised", "flagged_in", "moved_in", "signed_version")
        together = {name: np.concatenate([getattr(self, name), getattr(new, name)])[order] for name in names}
        return dataclasses.replace(self, **together)

    def with_changed(self, where: np.ndarray, round_number: int) -> "ChangeFlags":
        """Line 22: the flags after the clients at the places `where` have raised theirs in a round."""
        raised, flagged_in = self.raised.copy(), self.flagged_in.copy()
        # a newcomer's flag is raised from the start, although it has not raised it
        stands = (raised[where] > 0) & (flagged_in[where] > 0)
        flagged_in[where] = np.where(stands, flagged_in[where], round_number)
        raised[where] = 1
        return dataclasses.replace(self, raised=raised, flagged_in=flagged_in)

    def formed_anew(self, moved: np.ndarray, versions: np.ndarray, round_number: int) -> "ChangeFlags":
        """Lines 24 to 26: the flags after clusters have been formed anew, none of them raised.

        Args:
          moved: `bool [N]`, the clients that are in another cluster than before.
          versions: `int32 [N]`, the versions of the data that the clients have signed now.
          round_number: The round after which clusters were formed.
        """
        moved_in = np.where(moved, np.int32(round_number), self.moved_in)
        none = ChangeFlags.none(versions, round_number)
        return dataclasses.replace(none, flagged_in=self.flagged_in, moved_in=moved_in)


def renumbered(labels: np.ndarray, before: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers new clusters like the old ones that most of their members were in, and finds the clients that moved.

    Args:
      labels: `int [N]`, from 0.
      before: `int [N]`, from 0.

    Returns:
      `int32 [N]`, the same clusters, numbered from 0 without gaps: if one has gone, those after it move up; `bool [N]`,
      the clients that are not in the cluster that continues their old one; and `int [K]`, the old cluster that each new
      one continues, or -1 if it has no member of that.
    """
    shared = np.zeros((labels.max() + 1, max(before.max(), labels.max()) + 1), np.int64)
    np.add.at(shared, (labels, before), 1)
    _, number = linear_sum_assignment(shared, maximize=True)
    numbers, places, dense = np.unique(number, return_index=True, return_inverse=True)
    origins = np.where(shared[places, numbers] > 0, numbers, -1)
    return dense[labels].astype(np.int32), number[labels] != before, origins


def mean_of_members(
    models: np.ndarray, before: np.ndarray, labels: np.ndarray, sizes: np.ndarray | int = 1
) -> np.ndarray:
    """Returns the models from which clusters start when they are formed anew: the means of their members' old models.

    The paper does not say where the new clusters' models come from.

    Args:
      models: `float32 [K, P]`.
      before: `int [N]`, each client's row of the models.
      labels: `int [N]`, the new clusters, from 0.
      sizes: `[N]`, the weight of each member, such as its training examples; 1: all the same.

    Returns:
      `float32 [K', P]`.
    """
    shares = np.zeros((labels.max() + 1, len(models)))
    np.add.at(shares, (labels, before), sizes)
    return (shares / shares.sum(axis=1, keepdims=True)).astype(np.float32) @ models
