"""What an attack on privacy achieves, and the most that any attack can achieve against a Gaussian mechanism."""

import numpy as np
from scipy import stats


def auc(members, others) -> float:
    """The share of pairs in which the member has the larger score; 0.5 is guessing."""
    return float(stats.mannwhitneyu(members, others).statistic / (len(members) * len(others)))


def most_auc(sensitivity: float, noise: float) -> float:
    """The area under the curve of the best test between two values so far apart, in noise of this standard deviation.

    Dong, Roth and Su 2022, Gaussian differential privacy: the curve is that of N(0, 1) against N(μ, 1), μ = sensitivity
    / noise.
    """
    return float(stats.norm.cdf(sensitivity / noise / np.sqrt(2)))


def standard_error(members: int, others: int) -> float:
    """Of an AUC near 0.5, which is larger than of one near 1."""
    return float(np.sqrt((members + others + 1) / (12 * members * others)))
