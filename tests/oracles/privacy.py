"""The privacy loss of Gaussian mechanisms by integration, without a formula for it."""

import numpy as np
from scipy import integrate, optimize, stats


def epsilon_of_gaussian(distance: float, delta: float) -> float:
    """ε at δ of telling apart two normal distributions whose means are so many standard deviations apart."""

    def beyond(epsilon):
        def part(z):
            return max(0.0, 1 - np.exp(epsilon - distance * z - distance**2 / 2)) * stats.norm.pdf(z)

        start = epsilon / distance - distance / 2  # where the loss is ε
        return integrate.quad(part, start, start + 40, points=[max(start, 0.0)], epsabs=1e-14)[0] - delta

    return optimize.brentq(beyond, 0, distance**2 + 9 * distance, xtol=1e-9) if distance and beyond(0.0) > 0 else 0.0


def epsilon_of_rounds(noise_multiplier: float, count: int, delta: float) -> float:
    """ε at δ of so many rounds of everybody, a client being added or removed."""
    return epsilon_of_gaussian(np.sqrt(count) / noise_multiplier, delta)
