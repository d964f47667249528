"""Angles beside well-known distances between distributions, on Gaussians (PACFL Table 5)."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from tffcl.clustering.proximity import principal_angles
from tffcl.errors import UserError
from tffcl.lab.reporting.table import Table

# What the paper says (supplement, section "Consistency with other Distribution Similarity Metrics"):
# 100 points from each of two Gaussians of dimension 20, p = 3.
_DIMENSION, _POINTS, _VECTORS = 20, 100, 3

# The second Gaussian of each column, as multiples of the first one's mean and covariance.
COLUMNS = {
    "N(2m, S)": (2.0, 1.0),
    "N(3m, S)": (3.0, 1.0),
    "N(m, 2S)": (1.0, 2.0),
    "N(m, 5S)": (1.0, 5.0),
}

# PACFL (arXiv:2209.10526) Table 5. Angles in degrees (of "x (y)" the x; y is 3 x again), the others in nats
# or, MMD, without unit.
PACFL_TABLE_5 = {
    "Bhattacharyya": (3.07, 10.31, 1.14, 2.13),
    "KL": (15.18, 47.12, 3.31, 5.79),
    "MMD": (0.6218, 0.6238, 0.6234, 0.6246),
    "first vectors": (10.73, 18.41, 8.93, 13.72),
}

# m' S^-1 m. The paper gives neither mean nor covariance; with about this value its Bhattacharyya distances
# and KL divergences of the first two columns follow from Gaussians fitted to 100 points.
_MAHALANOBIS_SQUARED = 20.0


@dataclasses.dataclass(frozen=True, eq=False)
class GaussianTable:
    """Distances between N(m, S) and the Gaussians of `COLUMNS`.

    Attributes:
      measured: For each measure float64 [4], the mean over the draws.
      deviation: For each measure float64 [4], the standard deviation over the draws.
      draws: How often means, covariances and points were drawn.
    """

    measured: Mapping[str, np.ndarray]
    deviation: Mapping[str, np.ndarray]
    draws: int

    def agrees(self, measure: str) -> bool:
        """Whether both comparisons of the paper hold: 3m is farther than 2m, and 5S is farther than 2S."""
        near, far, narrow, wide = self.measured[measure]
        return bool(near < far and narrow < wide)

    def to_text(self) -> str:
        """Returns a table with the paper's values in a line below ours."""
        rows = []
        for name, values in self.measured.items():
            cells = [f"{v:.3g} ({d:.2g})" for v, d in zip(values, self.deviation[name], strict=True)]
            rows.append([name, *cells, "yes" if self.agrees(name) else "no"])
            if name in PACFL_TABLE_5:
                rows.append(["PACFL Table 5", *(f"{value:g}" for value in PACFL_TABLE_5[name]), ""])
        heads = ["", *COLUMNS, "farther as in the paper"]
        about = f"{_DIMENSION} dimensions, {_POINTS} points each: mean of {self.draws} draws (deviation)"
        return "\n".join([f"Distance from N(m, S), {about}", "", Table.of(heads, rows).to_text(), "", *_ASSUMED])


_ASSUMED = (
    "No reproduction: the paper gives neither m nor S. Of seven families tried, this came nearest to its angles:",
    "S = I + BB' with B and m uniform on 0 to 1, and m'S^-1 m = 20 from the paper's own Bhattacharyya and KL;",
    "Bhattacharyya and KL of Gaussians fitted to the points; MMD with the kernel exp(-|a-b|^2 / median).",
    "The paper's Bhattacharyya and KL in the last column fit 3S and not 5S; its MMD's kernel is not named.",
    "Angles depend on how m lies to S: with S = I the first vectors' would be smaller for 3m than for 2m.",
)


def gaussian_table(*, draws: int = 40, seed: int = 0) -> GaussianTable:
    """Computes PACFL's Table 5.

    Each draw takes a new mean and covariance (see the text of the table for what is assumed), and for each
    column 100 points from either Gaussian. Points are columns of the data matrix, uncentred, as clients'
    examples are.

    Only directions count for angles: 2m and 3m have the same one. That the angle grows from the second to the
    third column is an effect of S: where the first singular vector lies between m and the main axis of S, a
    longer mean turns it. With S = I the angle shrinks, as the direction of m is found more exactly.

    Args:
      draws: How often to repeat it; a single draw says little, the deviation of an angle is some degrees.
      seed: Decides all draws.

    Raises:
      UserError: If `draws` is below 1 or `seed` below 0.
    """
    for what, value, least in (("draws", draws, 1), ("seed", seed, 0)):
        if value < least:
            raise UserError(f"{what} is {value}; it must be a whole number from {least}")
    rows = [_draw(np.random.default_rng([seed, number])) for number in range(draws)]
    stacked = {name: np.array([[column[name] for column in row] for row in rows]) for name in rows[0][0]}
    return GaussianTable(
        {name: values.mean(axis=0) for name, values in stacked.items()},
        {name: values.std(axis=0) for name, values in stacked.items()},
        draws,
    )


def _draw(rng: np.random.Generator) -> list[dict[str, float]]:
    """One draw of the table: all measures, column by column."""
    factors = rng.random((_DIMENSION, _DIMENSION))
    covariance = np.eye(_DIMENSION) + factors @ factors.T
    mean = rng.random(_DIMENSION)
    mean *= np.sqrt(_MAHALANOBIS_SQUARED / (mean @ np.linalg.solve(covariance, mean)))

    def points(of_mean, of_covariance):
        return rng.multivariate_normal(of_mean * mean, of_covariance * covariance, _POINTS, method="cholesky")

    return [_distances(points(1.0, 1.0), points(*factors)) for factors in COLUMNS.values()]


def _distances(a: np.ndarray, b: np.ndarray) -> dict[str, float]:
    """All measures between two samples [n, d]."""
    fitted = (a.mean(axis=0), np.cov(a, rowvar=False), b.mean(axis=0), np.cov(b, rowvar=False))
    bases = np.stack([np.linalg.svd(x.T, full_matrices=False)[0][:, :_VECTORS] for x in (a, b)])
    return {
        "Bhattacharyya": bhattacharyya(*fitted),
        "KL": kl_divergence(*fitted),
        "MMD": maximum_mean_discrepancy(a, b),
        "first vectors": float(principal_angles(bases[:, :, :1])[0, 1]),
        "smallest angle": float(principal_angles(bases)[0, 1]),
        "angle sum": float(principal_angles(bases, metric="angle_sum")[0, 1]),
    }


def bhattacharyya(mean_a, covariance_a, mean_b, covariance_b) -> float:
    """The Bhattacharyya distance between two Gaussians, in nats (Kailath 1967).

    Args:
      mean_a: [d].
      covariance_a: [d, d], positive definite.
      mean_b: [d].
      covariance_b: [d, d], positive definite.
    """
    middle, apart = (covariance_a + covariance_b) / 2, mean_b - mean_a
    volumes = _log_det(middle) - (_log_det(covariance_a) + _log_det(covariance_b)) / 2
    return float(apart @ np.linalg.solve(middle, apart) / 8 + volumes / 2)


def kl_divergence(mean_a, covariance_a, mean_b, covariance_b) -> float:
    """The Kullback-Leibler divergence KL(a || b) of two Gaussians, in nats; arguments as above."""
    apart = mean_b - mean_a
    widths = np.trace(np.linalg.solve(covariance_b, covariance_a)) - len(mean_a)
    volumes = _log_det(covariance_b) - _log_det(covariance_a)
    return float((widths + apart @ np.linalg.solve(covariance_b, apart) + volumes) / 2)


def maximum_mean_discrepancy(a: np.ndarray, b: np.ndarray) -> float:
    """The distance between the mean embeddings of two samples (Gretton et al. 2012, Eq. 5, biased).

    The kernel is exp(-|x - y|^2 / w), with w the median squared distance between two points of the union.

    Args:
      a: [n, d].
      b: [m, d].
    """
    union = np.concatenate([a, b])
    squares = (union**2).sum(axis=1)
    distances = np.maximum(squares[:, None] + squares[None, :] - 2 * union @ union.T, 0)
    kernel = np.exp(-distances / np.median(distances[np.triu_indices(len(union), 1)]))
    n = len(a)
    squared = kernel[:n, :n].mean() + kernel[n:, n:].mean() - 2 * kernel[:n, n:].mean()
    return float(np.sqrt(max(squared, 0.0)))


def _log_det(matrix: np.ndarray) -> float:
    return float(np.linalg.slogdet(matrix)[1])
