"""PACFL's Table 5: angles beside well-known distances between distributions, on Gaussians.

    python tasks/pacfl_table_5.py [DRAWS]    # default: 40

The paper (supplement, "Consistency with other Distribution Similarity Metrics") takes 100 points from each of two
Gaussians of dimension 20, and p = 3. It gives neither mean m nor covariance S, so that this is no reproduction. Of
seven families tried, this came nearest to its angles: S = I + BB' with B and m uniform on 0 to 1, and m'S^-1 m = 20,
which follows from the paper's own Bhattacharyya distances and KL divergences of the first two columns. Those of its
last column fit 3S and not 5S, and the kernel of its MMD is not named.

Only directions count for angles: 2m and 3m have the same one. That the angle grows from the first to the second
column is an effect of S: where the first singular vector lies between m and the main axis of S, a longer mean turns
it. With S = I the angle shrinks, as the direction of m is found more exactly.
"""

import sys

import numpy as np
from sklearn.metrics.pairwise import euclidean_distances

from tffcl.clustering.proximity import principal_angles
from tffcl.lab.reporting.table import Table

DIMENSION, POINTS, VECTORS = 20, 100, 3
MAHALANOBIS_SQUARED = 20.0  # m'S^-1 m

# The second Gaussian of each column, as multiples of the first one's mean and covariance.
COLUMNS = {"N(2m, S)": (2.0, 1.0), "N(3m, S)": (3.0, 1.0), "N(m, 2S)": (1.0, 2.0), "N(m, 5S)": (1.0, 5.0)}

# PACFL (arXiv:2209.10526) Table 5: angles in degrees (of "x (y)" the x; y is 3 x again), the others in nats or, MMD,
# without unit.
PUBLISHED = {
    "Bhattacharyya": (3.07, 10.31, 1.14, 2.13),
    "KL": (15.18, 47.12, 3.31, 5.79),
    "MMD": (0.6218, 0.6238, 0.6234, 0.6246),
    "first vectors": (10.73, 18.41, 8.93, 13.72),
}


def measured(draws: int = 40) -> dict[str, np.ndarray]:
    """Returns for each measure float64 [draws, 4], its distances of N(m, S) from the Gaussians of `COLUMNS`.

    A single draw of mean, covariance and points says little: the deviation of an angle is some degrees.
    """
    rows = [_draw(np.random.default_rng([0, number])) for number in range(draws)]
    return {name: np.array([[column[name] for column in row] for row in rows]) for name in rows[0][0]}


def table(distances: dict[str, np.ndarray]) -> str:
    """Returns a text table of what `measured` returns, with the paper's values in a line below ours."""
    rows = []
    for name, values in distances.items():
        mean, deviation = values.mean(axis=0), values.std(axis=0)
        farther = mean[0] < mean[1] and mean[2] < mean[3]
        cells = [f"{one:.3g} ({other:.2g})" for one, other in zip(mean, deviation, strict=True)]
        rows.append([name, *cells, "yes" if farther else "no"])
        if name in PUBLISHED:
            rows.append(["PACFL Table 5", *(f"{value:g}" for value in PUBLISHED[name]), ""])
    return Table.of(["mean (deviation)", *COLUMNS, "farther as in the paper"], rows).to_text()


def _draw(rng: np.random.Generator) -> list[dict[str, float]]:
    factors = rng.random((DIMENSION, DIMENSION))
    covariance = np.eye(DIMENSION) + factors @ factors.T
    mean = rng.random(DIMENSION)
    mean *= np.sqrt(MAHALANOBIS_SQUARED / (mean @ np.linalg.solve(covariance, mean)))

    def points(of_mean, of_covariance):
        return rng.multivariate_normal(of_mean * mean, of_covariance * covariance, POINTS, method="cholesky")

    return [_distances(points(1.0, 1.0), points(*factors)) for factors in COLUMNS.values()]


def _distances(a: np.ndarray, b: np.ndarray) -> dict[str, float]:
    """All measures between two samples [n, d]; points are columns of the data matrix, uncentred, as PACFL's are."""
    fitted = (a.mean(axis=0), np.cov(a, rowvar=False), b.mean(axis=0), np.cov(b, rowvar=False))
    bases = np.stack([np.linalg.svd(x.T, full_matrices=False)[0][:, :VECTORS] for x in (a, b)])
    return {
        "Bhattacharyya": bhattacharyya(*fitted),
        "KL": kl_divergence(*fitted),
        "MMD": maximum_mean_discrepancy(a, b),
        "first vectors": float(principal_angles(bases[:, :, :1])[0, 1]),
        "smallest angle": float(principal_angles(bases)[0, 1]),
        "angle sum": float(principal_angles(bases, metric="angle_sum")[0, 1]),
    }


def bhattacharyya(mean_a, covariance_a, mean_b, covariance_b) -> float:
    """Returns the Bhattacharyya distance between two Gaussians, in nats (Kailath 1967)."""
    middle, apart = (covariance_a + covariance_b) / 2, mean_b - mean_a
    volumes = _log_det(middle) - (_log_det(covariance_a) + _log_det(covariance_b)) / 2
    return float(apart @ np.linalg.solve(middle, apart) / 8 + volumes / 2)


def kl_divergence(mean_a, covariance_a, mean_b, covariance_b) -> float:
    """Returns the Kullback-Leibler divergence KL(a || b) of two Gaussians, in nats."""
    apart = mean_b - mean_a
    widths = np.trace(np.linalg.solve(covariance_b, covariance_a)) - len(mean_a)
    volumes = _log_det(covariance_b) - _log_det(covariance_a)
    return float((widths + apart @ np.linalg.solve(covariance_b, apart) + volumes) / 2)


def maximum_mean_discrepancy(a: np.ndarray, b: np.ndarray) -> float:
    """Returns the distance between the mean embeddings of two samples [n, d] (Gretton et al. 2012, Eq. 5, biased).

    The kernel is exp(-|x - y|^2 / w), with w the median squared distance between two points of the union.
    """
    distances = euclidean_distances(np.concatenate([a, b]), squared=True)
    kernel = np.exp(-distances / np.median(distances[np.triu_indices(len(distances), 1)]))
    n = len(a)
    squared = kernel[:n, :n].mean() + kernel[n:, n:].mean() - 2 * kernel[:n, n:].mean()
    return float(np.sqrt(max(squared, 0.0)))


def _log_det(matrix: np.ndarray) -> float:
    return float(np.linalg.slogdet(matrix)[1])


if __name__ == "__main__":
    print(table(measured(*map(int, sys.argv[1:]))))
