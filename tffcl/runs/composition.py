"""What releases cost together: ε at a δ of Gaussian mechanisms, alone or of cohorts drawn at random, by dp-accounting.

A kind of release is `(noise multiplier, rate, clients, population)`: a rate is of Poisson cohorts, -1 is of a fixed
size; counts are how often each kind happened.
"""

import functools
import math

import numpy as np
from scipy import optimize, special

_INTERVAL = 1e-3  # discretisation of privacy losses: ε is too large by some 1e-4, and takes milliseconds a round
_LITTLE_NOISE = 0.2  # below, losses are large: they get a wider interval, or their distribution would be huge


def epsilon_of(counts, delta: float, *, replaces: bool = False) -> float:
    """Returns ε at δ of all releases together; infinite where one has no noise.

    Where nobody is drawn at random they are one Gaussian mechanism, whose ε is exact (Balle and Wang 2018, Theorem 8).

    Args:
      counts: Kind to how often.
      delta: δ.
      replaces: Whether neighbours differ by one client in another's place, which changes a sum by up to twice as much;
        cohorts of a fixed size are then amplified by Theorem 27 of Wang et al. 2019, if that is less.
    """
    if any(not noise for noise, *_ in counts):
        return math.inf
    return _epsilon_of(tuple(sorted(counts.items())), delta, replaces) if counts else 0.0


def replacing_epsilon_of(counts, delta: float) -> float:
    """Returns an upper bound of ε at δ where a client's data are replaced by others.

    It is exact where nobody is drawn at random. Releases of Poisson cohorts cost the least of three: what they would if
    everybody took part; two steps (`_two_steps`); or two steps of their own at δ / 2, with the exact cost of the others
    at the other half.
    """
    sampled = _sampled(counts.items())
    bounds = [gaussian_epsilon(2 * _together(counts), delta)]
    if sampled:
        others = {kind: count for kind, count in counts.items() if kind not in sampled}
        own = gaussian_epsilon(2 * _together(others), delta / 2) + _two_steps(sampled, delta / 2)
        bounds += [_two_steps(counts, delta), own]
    return min(bounds)


def _two_steps(counts, delta: float) -> float:
    """ε at δ of a step that takes the client's data away and one that puts others there: each costs (ε', δ'), which are
    together 2 ε' at (1 + exp ε') δ'. Infinite where no δ' is found."""
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
    """The shift of the one Gaussian mechanism that releases of everybody are together."""
    return math.sqrt(sum(count / noise**2 for (noise, *_), count in counts.items()))


@functools.lru_cache(maxsize=64)
def _epsilon_of(counts, delta: float, replaces: bool) -> float:
    together = (2 if replaces else 1) * _together(dict(counts))
    drawn = (
        (clients < population for (_, _, clients, population), _ in counts) if replaces else _sampled(counts).values()
    )
    if not any(drawn):
        return gaussian_epsilon(together, delta)
    if replaces:
        return min(gaussian_epsilon(together, delta), _renyi(counts, delta, replaces))
    least = min(noise for (noise, *_), _ in counts)
    epsilon = float(_losses(counts).get_epsilon_for_delta(delta))
    if least >= _LITTLE_NOISE:
        return epsilon
    return min(epsilon, gaussian_epsilon(together, delta), _renyi(counts, delta, replaces))


def _sampled(counts) -> dict:
    return {kind: count for kind, count in counts if 0 < kind[1] < 1}


@functools.lru_cache(maxsize=64)
def _losses(counts):
    """The distribution of the privacy loss of all releases, a client being added or removed."""
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
    """One release's Rényi divergence at each of dp-accounting's orders, which takes it a tenth of a second."""
    import dp_accounting
    from dp_accounting import rdp

    noise, rate, clients, population = kind
    relation = dp_accounting.NeighboringRelation
    event = dp_accounting.GaussianDpEvent(noise / 2 if replaces else noise)
    if 0 < rate < 1 and not replaces:
        event = dp_accounting.PoissonSampledDpEvent(rate, event)
    elif replaces and clients < population:
        event = dp_accounting.SampledWithoutReplacementDpEvent(int(population), int(clients), event)
    return (
        rdp.RdpAccountant(neighboring_relation=relation.REPLACE_ONE if replaces else relation.ADD_OR_REMOVE_ONE)
        .compose(event)
        ._rdp
    )
