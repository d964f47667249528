"""The ledger of a run's privacy loss: ε of all that was released, by dp-accounting; and the budget that it must not exceed."""

import collections
import dataclasses
import functools
import sys
import zlib
from typing import Annotated

import msgspec
import numpy as np

from tffcl.errors import UserError
from tffcl.rounds.releases import Release
from tffcl.validation import Parameters, Positive

NOTHING = np.zeros((0, 6))  # what `Ledger.as_array` gives where nothing was released
_INTERVAL = 1e-3  # discretisation of privacy losses: ε is too large by some 1e-4, and takes milliseconds a round
_LITTLE_NOISE = 0.2  # below, a loss distribution would be huge and its ε beyond use; Rényi's bound will do


@dataclasses.dataclass(frozen=True)
class PrivacySettings(Parameters):
    """What the releases of a run may cost, at the level of clients.

    Attributes:
      epsilon: The budget: the run ends before the round that would make ε larger; not set: ε is told only.
      delta: δ at which ε is taken; not set: N^-1.1 for N clients. It should be below 1 / N.
    """

    epsilon: Positive | None = None
    delta: Annotated[float, msgspec.Meta(gt=0, lt=1)] | None = None


class BudgetSpent(UserError):
    """The next release would cost more than the budget has left."""


class Ledger:
    """Counts releases and says what they cost together.

    Which clients are neighbours depends on how cohorts are drawn. With Poisson sampling, and where everyone takes part, a
    client is added or removed, and ε comes from privacy loss distributions. With cohorts of a fixed size out of more clients
    one client is replaced by another; that changes a sum by up to twice as much, so a noise multiplier z counts as z / 2, and ε
    is Rényi's, with the amplification of sampling without replacement (Wang et al. 2019, Theorem 27) or without, whichever is
    less.
    """

    def __init__(self, settings: PrivacySettings, clients: int, entries: np.ndarray | None = None):
        """Opens a ledger.

        Args:
          settings: Budget and δ.
          clients: N, of the first population.
          entries: From `as_array`, to go on.
        """
        self.budget, self.delta = settings.epsilon, settings.delta or max(clients, 2) ** -1.1
        self._counts: collections.Counter = collections.Counter()
        self._hidden: set[tuple] = set()  # which of them the server has in sums only
        self.restore(NOTHING if entries is None else entries)

    def restore(self, entries: np.ndarray):
        """Makes the ledger what it was when `as_array` gave the entries."""
        rows = {tuple(map(float, row[:4])): row[4:] for row in np.asarray(entries)}
        self._counts = collections.Counter({key: int(row[0]) for key, row in rows.items()})
        self._hidden = {key for key, row in rows.items() if row[1:].any()}  # files of earlier versions do not say

    def as_array(self) -> np.ndarray:
        """Returns the releases, `float64 [E, 6]`: noise multiplier, rate (-1 for a fixed size), clients, population, how often, and
        whether secure sums hid them.

        What each client tells once has no population, and a number of what it is in place of the clients.
        """
        rows = [[*key, count, key in self._hidden] for key, count in self._counts.items()]
        return np.array(rows, np.float64).reshape(-1, NOTHING.shape[1])

    @property
    def is_private(self) -> bool:
        """Whether something was released, and all of it with noise."""
        return bool(self._counts) and all(key[0] for key in self._counts)

    @property
    def epsilon(self) -> float:
        """ε of all releases at δ; infinite where one had no noise."""
        return self._epsilon(self._counts)

    @property
    def neighbours(self) -> str:
        """Which populations ε compares: "add or remove a client" or "replace a client"."""
        return "replace a client" if _replaces(self._counts) else "add or remove a client"

    def spend(self, release: Release):
        """Counts a release that is about to happen; one that each client tells once counts once, whoever tells it when.

        Raises:
          BudgetSpent: If there is a budget and ε would exceed it; the release is not counted.
        """
        expected = -1.0 if release.rate is None else release.rate
        # A Poisson cohort's size is random, and not what its loss depends on; nor is how many tell what each tells once, which
        # is known by what it is: of two kinds with as much noise both count.
        clients = 0 if release.rate is not None else release.clients
        if release.once:
            clients = zlib.crc32(release.what.encode())
        population = 0 if release.once else release.population
        key = (float(release.noise_multiplier), expected, float(clients), float(population))
        if release.once and self._counts[key]:
            return
        after = self._counts + collections.Counter({key: 1})
        if self.budget is not None:
            self._check(release, after)
        self._counts = after
        if release.hidden:
            self._hidden.add(key)

    def _check(self, release: Release, after):
        if not release.noise_multiplier:
            rounds = "an [aggregation] dp with a noise_multiplier above 0 would be, for methods that send nothing else"
            signatures = (
                "signature_noise_multiplier of the method would be, or noise_multiplier in composed's table of the signature"
            )
            raise UserError(
                f"privacy.epsilon is {self.budget:g}, and there is no noise on {release.what}; "
                f"{signatures if release.once else rounds}",
                table="privacy",
                key="epsilon",
            )
        epsilon = self._epsilon(after)
        if epsilon > self.budget:
            raise BudgetSpent(
                f"privacy.epsilon is {self.budget:g}; {self.epsilon:.4g} is spent, and {release.what} would make it {epsilon:.4g} at "
                f"delta {self.delta:.3g}",
                table="privacy",
                key="epsilon",
            )

    def _epsilon(self, counts) -> float:
        if any(not key[0] for key in counts):
            return float("inf")
        return _epsilon_of(tuple(sorted(counts.items())), self.delta, _replaces(counts)) if counts else 0.0

    @property
    def notes(self) -> list[str]:
        """What who relies on secure sums must know: they hide the updates, and the server has seen something else of each client."""
        told_once = any(not noise and not population for noise, _, _, population in self._counts)
        said = "secure sums hide the updates only: the server has each client's signature as it is, which has no noise"
        return [said] if self._hidden and told_once else []

    def summary(self, stopped: str = "") -> dict | None:
        """Returns what summary.json says; None where nothing that was released has noise.

        `epsilon` is None, which stands for infinite, where `open_releases` came without noise; `noised_epsilon` is that of the
        others.
        """
        noised = collections.Counter({key: count for key, count in self._counts.items() if key[0]})
        if not noised and self.budget is None:
            return None
        opened = sum(self._counts.values()) - sum(noised.values())
        told = {
            "epsilon": None if opened else self.epsilon,
            "delta": self.delta,
            "neighbours": self.neighbours,
            "budget": self.budget,
        }
        told |= {"open_releases": opened, "noised_epsilon": self._epsilon(noised)} if opened else {}
        return {**told, "releases": sum(self._counts.values()), **({"stopped": stopped} if stopped else {})}


def warn_of_delta(ledger: Ledger, clients: int):
    """Says on standard error when δ allows to give a client away entirely."""
    if clients > 1 and ledger.delta >= 1 / clients:
        print(
            f"privacy.delta is {ledger.delta:g}; with {clients} clients it should be below {1 / clients:.3g}: releasing one client's data as "
            "they are would pass for private",
            file=sys.stderr,
        )


def privacy_notes(summary: dict | None) -> list[str]:
    """Returns what a report says of the privacy of a run."""
    if summary is None:
        return []
    if summary["epsilon"] is None:
        return [
            f"not private: {_releases(summary['open_releases'])} without noise (signatures, uploads beside the updates, or what the method "
            f"reads itself); those with noise alone cost epsilon {summary['noised_epsilon']:.4g} at delta {summary['delta']:.3g} ({summary['neighbours']})"
        ]
    told = f"privacy: epsilon {summary['epsilon']:.4g} at delta {summary['delta']:.3g} ({summary['neighbours']})"
    budget = "" if summary["budget"] is None else f", of a budget of {summary['budget']:g}"
    return [f"{told}{budget}", *([summary["stopped"]] if "stopped" in summary else [])]


def _releases(count: int) -> str:
    return "1 release came" if count == 1 else f"{count} releases came"


def _replaces(counts) -> bool:
    return any(rate < 0 and clients < population for _, rate, clients, population in counts)


@functools.lru_cache(maxsize=64)
def _epsilon_of(counts, delta: float, replaces: bool) -> float:
    if replaces or any(key[0] < _LITTLE_NOISE for key, _ in counts):
        amplified = (False, True) if replaces else (True,)
        return min(_renyi(counts, delta, replaces, each) for each in amplified)
    total = None
    for (noise, rate, _, _), count in counts:
        own = _loss(noise, rate if rate > 0 else 1.0).self_compose(count)
        total = own if total is None else total.compose(own)
    return float(total.get_epsilon_for_delta(delta))


@functools.lru_cache(maxsize=16)
def _loss(noise: float, rate: float):
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_gaussian_mechanism(
        noise, value_discretization_interval=_INTERVAL, sampling_prob=rate, use_connect_dots=True
    )


def _renyi(counts, delta: float, replaces: bool, amplified: bool) -> float:
    import dp_accounting
    from dp_accounting import rdp

    relation = dp_accounting.NeighboringRelation
    accountant = rdp.RdpAccountant(neighboring_relation=relation.REPLACE_ONE if replaces else relation.ADD_OR_REMOVE_ONE)
    for (noise, rate, clients, population), count in counts:
        event = dp_accounting.GaussianDpEvent(noise / 2 if replaces else noise)
        if rate > 0 and not replaces and rate < 1:
            event = dp_accounting.PoissonSampledDpEvent(rate, event)
        elif replaces and amplified and clients < population:
            event = dp_accounting.SampledWithoutReplacementDpEvent(int(population), int(clients), event)
        accountant.compose(event, count)
    return float(accountant.get_epsilon(delta))
