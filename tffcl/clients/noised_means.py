"""Means and deviations of a table's columns, with or without noise that hides any one client. Imports no TensorFlow."""

import dataclasses
import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from tffcl.errors import UserError, unknown
from tffcl.validation import Positive, check_value


def noised_means(bounds: Mapping | None, noise_multiplier: float | None, seed: int) -> "NoisedMeans | None":
    """Returns the noised means for these options, None if both are None; raises UserError if only one is given."""
    if (bounds is None) != (noise_multiplier is None):
        raise UserError(
            "bounds and noise_multiplier go together: noise hides a client where its values have bounds, "
            'e.g. bounds={"age": (0, 100)}, noise_multiplier=1.0'
        )
    return None if bounds is None else NoisedMeans(bounds, noise_multiplier, seed)


def pair_of(given) -> tuple[float, float] | None:
    """Returns the two finite numbers that a user gives for a column; None if they are anything else."""
    try:
        pair = np.asarray(given)
    except ValueError:  # of lists of unequal lengths
        return None
    two = pair.shape == (2,) and pair.dtype.kind in "iuf" and bool(np.isfinite(pair).all())
    return (float(pair[0]), float(pair[1])) if two else None


def deviation(values: np.ndarray) -> float:
    """Returns the standard deviation of a column's values, without missing ones; 0 if they are constant up to rounding,
    by scikit-learn's bound."""
    there = values[~np.isnan(values.astype(np.float64))]
    rounding, variance = len(there) * np.finfo(np.float64).eps, float(np.var(there, dtype=np.float64))
    constant = variance <= rounding * variance + (rounding * float(np.mean(there))) ** 2
    return 0.0 if constant else variance**0.5


@dataclasses.dataclass(frozen=True)
class NoisedMeans:
    """Means and deviations of columns that hide any one client.

    A client's value v is scaled to u = (v - middle) / (half the distance of the bounds), from -1 to 1; a missing one is
    0. The client reports its means of u and of u² - 1/2 for each of d columns. Together their length is at most
    sqrt(5 d) / 2, since (mean u)² is no more than mean u². The sum over clients gets Gaussian noise of
    `noise_multiplier` times this length, and is divided by the number N of clients, which is not secret. Each client
    has the same weight, whatever it holds. A multiplier of 1 moves a mean by about 0.6 sqrt(d) / N of the distance of
    its bounds: 0.02 with d = 10, N = 100.

    Attributes:
      bounds: Maps a column to its lowest and highest value; values beyond are clipped to these.
      noise_multiplier: z of the Gaussian mechanism, for one client that is left out or added.
      seed: Decides the noise in simulations.
    """

    bounds: Mapping[str, Sequence[float]]
    noise_multiplier: float
    seed: int

    def __post_init__(self):
        check_value("noise_multiplier", self.noise_multiplier, Positive)
        if not isinstance(self.bounds, Mapping) or not self.bounds:
            raise UserError(f"bounds is {self.bounds!r:.80}; it must be a mapping of columns to (lowest, highest)")
        for name, bound in self.bounds.items():
            pair = pair_of(bound)
            if pair is None or not 0 < pair[1] - pair[0] < np.inf:
                raise UserError(f"the bounds of column {name} are {bound!r:.80}; they must be (lowest, highest)")

    def of(self, training: Mapping[str, np.ndarray], owners: np.ndarray) -> dict[str, tuple[float, float]]:
        """Returns the mean and the deviation of each column from its values `[n]`, which the clients `[n]` own."""
        for name in training:
            if name not in self.bounds:
                raise UserError(f"bounds has no column {name}, whose mean is measured; standardize=[...] says which")
        for name in self.bounds:
            if name not in training:
                raise unknown("column of bounds that is measured", name, training)
        clients, owner = np.unique(owners, return_inverse=True)
        lowest, highest = np.array([self.bounds[name] for name in training], np.float64).T
        middle, half = (lowest + highest) / 2, (highest - lowest) / 2
        u = np.stack([values.astype(np.float64) for values in training.values()], axis=1)
        u = np.nan_to_num(np.clip((u - middle) / half, -1, 1))
        weights = 1 / np.bincount(owner)[owner] / len(clients)
        reported = np.stack([weights @ u, weights @ (u**2 - 0.5)])  # the mean over clients of what each reports
        std = self.noise_multiplier * np.sqrt(5 * len(training)) / 2 / len(clients)
        random = np.random.default_rng([self.seed, zlib.crc32(b"means of columns")])
        mean, square = reported + random.normal(0, std, reported.shape)
        mean = np.clip(mean, -1, 1)
        # A deviation that the noise hides is set to the largest that the noise could hide.
        deviation = np.sqrt(np.clip(square + 0.5 - mean**2, min(std, 1.0), 1.0))
        pairs = zip((middle + half * mean).tolist(), (half * deviation).tolist(), strict=True)
        return dict(zip(training, pairs, strict=True))
