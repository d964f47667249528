"""The ledger of a run's privacy loss: ε of all releases, the budget that it must not exceed, and the ledger's file.

dp-accounting computes ε at a given δ for Gaussian mechanisms together, some of them on cohorts drawn at random. A kind
of release is `(noise multiplier, rate, clients, population)`; the rate is that of Poisson cohorts, or -1 for cohorts of
a fixed size. Counts say how often each kind happened.
"""

import dataclasses
import functools
import hashlib
import json
import math
import pathlib
import sys
import zlib
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from scipy import optimize, special

from tffcl.display import counted
from tffcl.errors import OVERWRITE, UserError
from tffcl.files import read_text, replacing
from tffcl.rounds.privacy_releases import MEASURED, Release
from tffcl.validation import Parameters, Positive

_INTERVAL = 1e-3  # discretisation of privacy losses: ε is too large by some 1e-4; it takes milliseconds
_LITTLE_NOISE = 0.2  # with less, losses are large and need a wider interval, or their distribution is huge


def epsilon_of(counts, delta: float, *, replaces: bool = False) -> float:
    """Returns ε at δ of all releases together; infinite if one has no noise.

    If no cohort is drawn at random, they are one Gaussian mechanism, whose ε is exact (Balle and Wang 2018, Theorem 8).

    Args:
      counts: Maps each kind of release to how often it happened.
      delta: δ.
      replaces: Whether neighbours differ by one client in another's place, which changes a sum by up to twice as much.
        For cohorts of a fixed size ε is then that of Theorem 27 of Wang et al. 2019, if it is lower.
    """
    if any(not noise for noise, *_ in counts):
        return math.inf
    return _epsilon_of(tuple(sorted(counts.items())), delta, replaces) if counts else 0.0


def replacing_epsilon_of(counts, delta: float) -> float:
    """Returns an upper bound of ε at δ if neighbours replace a client's data by others.

    It is exact if no cohort is drawn at random. With Poisson cohorts it is the lowest of three bounds: the cost if
    everybody took part; the cost of two steps (`_two_steps`); or two steps for the Poisson cohorts alone at δ / 2, plus
    the exact cost of the other releases at the other half.
    """
    sampled = _sampled(counts.items())
    bounds = [gaussian_epsilon(2 * _together(counts), delta)]
    if sampled:
        others = {kind: count for kind, count in counts.items() if kind not in sampled}
        own = gaussian_epsilon(2 * _together(others), delta / 2) + _two_steps(sampled, delta / 2)
        bounds += [_two_steps(counts, delta), own]
    return min(bounds)


def _two_steps(counts, delta: float) -> float:
    """ε at δ of two steps: one removes the client's data, the other adds the data that replace them. Each costs (ε',
    δ'); together they cost 2 ε' at (1 + exp ε') δ'. Infinite if no δ' is found."""
    for step in range(1, 80):
        log_delta = math.log(delta) - step / 4
        each = epsilon_of(counts, math.exp(log_delta))
        if np.logaddexp(0, each) + log_delta <= math.log(delta):
            return 2 * each
    return math.inf


def gaussian_epsilon(shift: float, delta: float) -> float:
    """Returns the exact ε of a Gaussian mechanism that shifts a standard normal number by so much."""

    def beyond(epsilon):
        first, second = special.log_ndtr(shift / 2 - epsilon / shift), special.log_ndtr(-shift / 2 - epsilon / shift)
        return math.exp(first) - math.exp(epsilon + second) - delta

    if not shift or beyond(0.0) <= 0:
        return 0.0
    return float(optimize.brentq(beyond, 0.0, shift**2 / 2 + shift * math.sqrt(2 * math.log(1 / delta)), xtol=1e-10))


def _together(counts) -> float:
    """The shift of the one Gaussian mechanism that all releases together are if everybody takes part."""
    return math.sqrt(sum(count / noise**2 for (noise, *_), count in counts.items()))


@functools.lru_cache(maxsize=64)
def _epsilon_of(counts, delta: float, replaces: bool) -> float:
    together = (2 if replaces else 1) * _together(dict(counts))
    if not (any(_is_part(kind) for kind, _ in counts) if replaces else _sampled(counts)):
        return gaussian_epsilon(together, delta)
    if replaces:
        return min(gaussian_epsilon(together, delta), _renyi(counts, delta, replaces))
    least = min(noise for (noise, *_), _ in counts)
    epsilon = float(_losses(counts).get_epsilon_for_delta(delta))
    if least >= _LITTLE_NOISE:
        return epsilon
    return min(epsilon, gaussian_epsilon(together, delta), _renyi(counts, delta, replaces))


def _is_part(kind) -> bool:
    """Whether a release is of a cohort of a fixed size out of more clients. A Poisson cohort has no fixed size: beside
    such releases, whose neighbours replace a client, its release counts as one of everybody."""
    _, rate, clients, population = kind[:4]
    return rate < 0 and clients < population


def _sampled(counts) -> dict:
    return {kind: count for kind, count in counts if 0 < kind[1] < 1}


@functools.lru_cache(maxsize=64)
def _losses(counts):
    """The distribution of the privacy loss of all releases when a client is added or removed."""
    sampled = _sampled(counts)
    others = _together({kind: count for kind, count in counts if kind not in sampled})
    noises = [noise for noise, *_ in sampled] + ([1 / others] if others else [])
    interval = _INTERVAL * max(1.0, (_LITTLE_NOISE / min(noises)) ** 2)
    total = _loss(1 / others, 1.0, interval) if others else None
    for (noise, rate, *_), count in sampled.items():
        own = _loss(noise, rate, interval).self_compose(count)
        total = own if total is None else total.compose(own)
    return total


@functools.lru_cache(maxsize=16)
def _loss(noise: float, rate: float, interval: float):
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_gaussian_mechanism(
        noise, value_discretization_interval=interval, sampling_prob=rate, use_connect_dots=True
    )


def _renyi(counts, delta: float, replaces: bool) -> float:
    from dp_accounting import rdp

    orders = np.array(rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS)
    total = sum(count * _renyi_of(kind, replaces) for kind, count in counts)
    return float(rdp.compute_epsilon(orders, total, delta)[0])


@functools.lru_cache(maxsize=64)
def _renyi_of(kind, replaces: bool) -> np.ndarray:
    """One release's Rényi divergence at each of dp-accounting's orders; computing it takes a tenth of a second."""
    import dp_accounting
    from dp_accounting import rdp

    noise, rate, clients, population = kind
    relation = dp_accounting.NeighboringRelation
    event = dp_accounting.GaussianDpEvent(noise / 2 if replaces else noise)
    if 0 < rate < 1 and not replaces:
        event = dp_accounting.PoissonSampledDpEvent(rate, event)
    elif replaces and _is_part(kind):
        event = dp_accounting.SampledWithoutReplacementDpEvent(int(population), int(clients), event)
    relation = relation.REPLACE_ONE if replaces else relation.ADD_OR_REMOVE_ONE
    return rdp.RdpAccountant(neighboring_relation=relation).compose(event)._rdp


NOTHING = np.zeros((0, 8))  # what `Ledger.as_array` returns if nothing was released


@dataclasses.dataclass(frozen=True)
class PrivacySettings(Parameters):
    """The privacy budget of a run, at the level of clients.

    Attributes:
      epsilon: The budget. The run ends before the round that would make ε larger. If not set, ε is only reported.
      delta: δ at which ε is computed. If not set, N^-1.1 for N clients, including those that join in the middle. It
        should be below 1 / N.
    """

    epsilon: Positive | None = None
    delta: Annotated[float, msgspec.Meta(gt=0, lt=1)] | None = None


class BudgetSpent(UserError):
    """The next release would cost more than the budget has left."""


class _Kind(NamedTuple):
    """Releases that cost the same: fields as in `Release`; `hidden` is set only for releases without noise. For what
    each client releases once the population is 0, and `clients` is a number that stands for what it is."""

    noise: float
    rate: float
    clients: float
    population: float
    hidden: float

    @property
    def once(self) -> bool:
        return not self.population


@dataclasses.dataclass
class _Count:
    """How often a kind of release has happened.

    Attributes:
      times: That count; for what each client releases once, the most that one client has released it.
      fresh: How many of them had noise that no seed repeats, or came after such a release.
      again: For what each client releases once: whether some client is about to release it once more.
    """

    times: int = 0
    fresh: int = 0
    again: bool = False


class Ledger:
    """Counts releases and says what they cost together.

    Which populations are neighbours depends on how cohorts are drawn. With Poisson sampling, and if everyone takes
    part, a client is added or removed. What a client releases under its own name, such as a signature, shows that it is
    there; for this its data are left out, or replaced by zeros. With cohorts of a fixed size out of more clients one
    client is replaced by another; that changes a sum by up to twice as much, so a noise multiplier z counts as z / 2.
    `runs.privacy` says how ε follows.

    A release whose noise no seed repeats is written to the ledger's file before it happens, so that it counts even if
    the process is killed. A release that a seed repeats from the same state is the same release, and needs no file.
    """

    def __init__(self, settings: PrivacySettings, clients: int, entries: np.ndarray = NOTHING):
        """Opens a ledger without a file.

        Args:
          settings: Budget and δ.
          clients: N, the number of clients over all rounds.
          entries: From `as_array`, to continue from.
        """
        self.budget, self.delta = settings.epsilon, settings.delta or max(clients, 2) ** -1.1
        self._counts = _counts_in(entries)
        self.file: pathlib.Path | None = None
        self.run = ""  # the name of the run that the file belongs to

    def read_file(self, run: str = ""):
        """Takes over the counts in the file, if there is one.

        Args:
          run: The name of the run that the file must belong to; "" allows any.

        Raises:
          UserError: If it is damaged, or of another run.
        """
        if not self.file.exists():
            return
        try:
            saved = json.loads(read_text(self.file))
            if _digest(saved["tffcl run"], saved["releases"]) != saved["digest"]:
                raise ValueError("its digest is another")
            if run and saved["tffcl run"] != run:
                raise ValueError("it is of another run")
            self._counts = _counts_in(np.array(saved["releases"], np.float64))
        except (OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
            raise self._unusable(f"cannot be read ({error})") from None

    def _unusable(self, why: str) -> UserError:
        return UserError(
            f"{self.file}, which counts what was released of the clients, {why}; put a copy of it there, or "
            f"{OVERWRITE} starts anew"
        )

    def check_holds(self, entries: np.ndarray, when: str):
        """Raises UserError if the file lacks releases of the entries: it is missing, or an older one."""
        for kind, there in _counts_in(entries).items():
            if there.fresh > self._counts.get(kind, _Count()).fresh:
                raise self._unusable(f"is missing, or older than {when}")

    def rewind(self, entries: np.ndarray) -> int:
        """Goes back to what `as_array` returned, except for releases that no seed repeats: these have happened, and
        stay counted.

        Returns:
          How many of these there are.
        """
        counts, lost = _counts_in(entries), 0
        for kind, here in self._counts.items():
            there = counts.setdefault(kind, _Count())
            if more := here.fresh - there.fresh:
                times, again = (here.times, True) if kind.once else (there.times + more, False)
                counts[kind], lost = _Count(times, here.fresh, again), lost + more
        self._counts = {kind: each for kind, each in counts.items() if each.times}
        return lost

    def as_array(self) -> np.ndarray:
        """Returns the releases, `float64 [E, 8]`: noise multiplier, rate (-1 for a fixed size), clients, population,
        how often, whether secure sums hid them, how many had noise that no seed repeats, and whether it is about to be
        released again.

        For what each client releases once the population is 0, and a number for what it is replaces the clients.
        """
        return _array_of(self._counts)

    @property
    def is_private(self) -> bool:
        """Whether something was released, and all of it with noise."""
        return bool(self._counts) and all(kind.noise for kind in self._counts)

    @property
    def epsilon(self) -> float:
        """ε of all releases at δ; infinite if one had no noise."""
        return self._epsilon(self._counts)

    def spend(self, *releases: Release):
        """Counts releases that are about to happen together. What each client releases once counts once, for whichever
        client and in whichever round.

        Raises:
          BudgetSpent: If there is a budget and ε would exceed it; nothing is counted.
          OSError: If the file cannot be written; nothing is counted, and nothing may be released.
        """
        after = {kind: dataclasses.replace(each) for kind, each in self._counts.items()}
        for release in releases:
            kind = _kind_of(release)
            count = after.setdefault(kind, _Count())
            if not release.once or not count.times or count.again:
                count.times, count.again = count.times + 1, False
                if self.budget is not None:
                    self._check(release, after)
            anew = bool(release.noise_multiplier) and not release.repeats
            count.fresh += anew or any(each.fresh for each in after.values())
        if any(each.fresh for each in after.values()):
            self._write(after)
        self._counts = after

    def _write(self, counts):
        if self.file is None:
            return
        rows = _array_of(counts).tolist()
        with replacing(self.file, durable=True) as file:
            file.write(
                json.dumps({"tffcl run": self.run, "releases": rows, "digest": _digest(self.run, rows)}).encode()
            )

    def check_noised(self, release: Release):
        """Raises UserError if there is a budget, and a release that is still to come has no noise."""
        if self.budget is not None and not release.noise_multiplier:
            rounds = (
                "an [aggregation] dp with a noise_multiplier above 0 would add some, for methods that send nothing else"
            )
            signatures = (
                "signature_noise_multiplier would add some in methods that have it, or noise_multiplier in composed's "
                "table of the signature"
            )
            raise UserError(
                f"privacy.epsilon is {self.budget:g}, and no noise is counted on {release.what}; "
                f"{release.cure or (signatures if release.once else rounds)}",
                table="privacy",
                key="epsilon",
            )

    def _check(self, release: Release, after):
        self.check_noised(release)
        epsilon = self._epsilon(after)
        if epsilon > self.budget:
            raise BudgetSpent(
                f"privacy.epsilon is {self.budget:g}; {self.epsilon:.4g} is spent, and {release.what} would make it "
                f"{epsilon:.4g} at delta {self.delta:.3g}",
                table="privacy",
                key="epsilon",
            )

    def _epsilon(self, counts) -> float:
        return epsilon_of(_times_of(counts), self.delta, replaces=_replaces(counts))

    @property
    def notes(self) -> list[str]:
        """Notes for users who rely on secure sums: these hide the updates, but the server has seen something else of
        each client."""
        of_all = zlib.crc32(MEASURED.encode())  # it shows no single client
        in_the_open = [kind for kind in self._counts if not (kind.noise or kind.hidden or kind.clients == of_all)]
        if not any(kind.hidden for kind in self._counts):
            return []
        note = (
            "secure sums hide the updates only: the server has each client's signature, or what the method reads of "
            "its examples itself, as it is, which has no noise"
        )
        others = sum(self._counts[kind].times for kind in in_the_open if not kind.once)
        beside = (
            "secure sums hide the updates only: clients also told the server, under their names, what nothing hides, "
            "such as their losses under the models or the model that they choose (asked "
            f"{'once' if others == 1 else f'{others} times'})"
        )
        return [note] * any(kind.once for kind in in_the_open) + [beside] * bool(others)

    def summary(self, stopped: str = "") -> dict | None:
        """Returns the entry for summary.json; None if no release had noise.

        `epsilon` is None, for infinite, if there are `open_releases`, which had no noise; `noised_epsilon` and
        `neighbours` are of the other releases. `replacing_epsilon` is the most that these cost if a client's data are
        replaced by others instead of left out. `stopped` says why the budget has ended the run; "" if it has not.
        """
        noised = {kind: count for kind, count in self._counts.items() if kind.noise}
        if not noised and self.budget is None:
            return None
        releases = sum(count.times for count in self._counts.values())
        opened = releases - sum(count.times for count in noised.values())
        facts = {
            "epsilon": None if opened else self.epsilon,
            "delta": self.delta,
            "neighbours": _neighbours_in(noised or self._counts),
            "budget": self.budget,
        }
        facts |= {"open_releases": opened, "noised_epsilon": self._epsilon(noised)} if opened else {}
        if any(kind.once for kind in noised) and not _replaces(noised):
            facts["replacing_epsilon"] = replacing_epsilon_of(_times_of(noised), self.delta)
        return {**facts, "releases": releases, **({"stopped": stopped} if stopped else {})}


def _kind_of(release: Release) -> _Kind:
    # The loss does not depend on the size of a Poisson cohort, which is random, nor on how many clients release what
    # each releases once. The latter is told apart by what it is, so that two kinds with equal noise both count.
    rate, clients = (-1.0, release.clients) if release.rate is None else (release.rate, 0)
    if release.once:
        clients = zlib.crc32(release.what.encode())
    population = 0 if release.once else release.population
    noise, hidden = release.noise_multiplier, release.hidden and not release.noise_multiplier
    return _Kind(float(noise), rate, float(clients), float(population), float(hidden))


def _counts_in(entries: np.ndarray) -> dict[_Kind, _Count]:
    """The inverse of `_array_of`."""
    rows = np.asarray(entries, np.float64).reshape(-1, NOTHING.shape[1]).tolist()
    return {_Kind(*row[:4], row[5]): _Count(int(row[4]), int(row[6]), bool(row[7])) for row in rows}


def _array_of(counts) -> np.ndarray:
    rows = [[*kind[:4], each.times, kind.hidden, each.fresh, each.again] for kind, each in counts.items()]
    return np.array(rows, np.float64).reshape(-1, NOTHING.shape[1])


def _digest(run: str, rows) -> str:
    return hashlib.sha256(json.dumps([run, rows]).encode()).hexdigest()


def _times_of(counts) -> dict[tuple, int]:
    return {kind[:4]: count.times for kind, count in counts.items()}


def _replaces(counts) -> bool:
    return any(map(_is_part, counts))


def _neighbours_in(counts) -> str:
    """Says which neighbouring populations ε of these releases compares."""
    if _replaces(counts):
        return "replace a client"
    if any(kind.once and kind.noise for kind in counts):
        return "a client's data left out, as if zeros"
    return "add or remove a client"


def warn_of_delta(ledger: Ledger, clients: int):
    """Warns on standard error if δ is so large that one client's data could be released as they are."""
    if clients > 1 and ledger.delta >= 1 / clients:
        print(
            f"privacy.delta is {ledger.delta:g}; with {clients} clients it should be below {1 / clients:.3g}: "
            "releasing one client's data as they are would pass for private",
            file=sys.stderr,
        )


def privacy_notes(summary: dict | None) -> list[str]:
    """Returns the notes of a report on the privacy of a run."""
    if summary is None:
        return []
    if summary["epsilon"] is None:
        return [
            f"not private: {counted(summary['open_releases'], 'release')} came without noise (signatures, uploads "
            "beside the updates, what features are standardised by, or what the method reads itself); those with noise "
            f"alone cost epsilon {summary['noised_epsilon']:.4g} "
            f"at delta {summary['delta']:.3g} ({_neighbours(summary)})"
        ]
    note = f"privacy: epsilon {summary['epsilon']:.4g} at delta {summary['delta']:.3g} ({_neighbours(summary)})"
    budget = "" if summary["budget"] is None else f", of a budget of {summary['budget']:g}"
    return [f"{note}{budget}"]


def _neighbours(summary: dict) -> str:
    """Says which populations ε compares, and what ε is if other data replace a client's."""
    replacing = summary.get("replacing_epsilon")
    return summary["neighbours"] + ("" if replacing is None else f"; {replacing:.4g} with other data in their place")
