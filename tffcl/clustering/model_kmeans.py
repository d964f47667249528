"""k-means on the clients' models, a step a round (FedSEM's E- and M-step)."""

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.spatial import distance
from sklearn.cluster import KMeans

from tffcl.clustering.threads import single_thread

_AT_A_TIME = 1 << 18  # parameters whose float64 copies are in memory
_FIRST_STARTS = 20  # of k-means in the first round, as in FLT's code


def first_groups(trained: np.ndarray, num_clusters: int, seed: int) -> np.ndarray:
    """Clusters the models of the first round, for which there are no centres yet, by k-means with several starts.

    Args:
      trained: `float32 [m, P]`.
      num_clusters: K, at most m.
      seed: Of the starts.

    Returns:
      `int32 [m]`.
    """
    # m models span at most m - 1 dimensions, whatever P is: k-means there finds the same in a fraction of the time.
    points = without_dimensions(trained)
    with single_thread():
        return KMeans(num_clusters, n_init=_FIRST_STARTS, random_state=seed).fit_predict(points).astype(np.int32)


def nearest_centres(trained: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """The E-step: which centre each model is nearest to.

    Not k-means of a library: that gives a centre which nobody is near to the farthest model, and so a group of which
    nobody takes part in a round would lose its own.

    Args:
      trained: `float32 [m, P]`.
      centres: `float32 [K, P]`.

    Returns:
      `int32 [m]`; the lower number wins a tie.
    """
    squares = np.zeros((len(trained), len(centres)))
    for start in range(0, trained.shape[1], _AT_A_TIME):
        columns = slice(start, start + _AT_A_TIME)
        squares += distance.cdist(trained[:, columns], centres[:, columns], "sqeuclidean")
    return squares.argmin(axis=1).astype(np.int32)


def without_dimensions(vectors: np.ndarray) -> np.ndarray:
    """Points `float64 [n, n]` with the same distances as `vectors [n, P]`: their coordinates along principal axes."""
    # Not by scikit-learn's PCA, whose copy and components are two more arrays [n, P]: gigabytes for a large cohort's
    # CNNs.
    mean, products = vectors.mean(axis=0, dtype=np.float64), np.zeros((len(vectors), len(vectors)))
    for start in range(0, vectors.shape[1], _AT_A_TIME):
        part = vectors[:, start : start + _AT_A_TIME] - mean[start : start + _AT_A_TIME]
        products += part @ part.T
    values, axes = np.linalg.eigh(products)
    return axes * np.sqrt(np.maximum(values, 0))


def weighted_means(centres: np.ndarray, trained: np.ndarray, found: np.ndarray, examples: np.ndarray) -> np.ndarray:
    """The M-step: means of the models by cluster, weighted by examples; a centre without models stays.

    Args:
      centres: `float32 [K, P]`, before.
      trained: `float32 [m, P]`.
      found: `int32 [m]`, the cluster of each model.
      examples: `int32 [m]`, training examples.

    Returns:
      `float32 [K, P]`.
    """
    centres = centres.copy()
    for cluster in np.unique(found):
        members = found == cluster
        shares = (examples[members] / examples[members].sum()).astype(np.float32)
        for start in range(0, trained.shape[1], _AT_A_TIME):  # a part, because picking the members makes a copy
            columns = slice(start, start + _AT_A_TIME)
            centres[cluster, columns] = shares @ trained[members, columns]
    return centres


_STARTS = 10  # of k-means


def group_by_losses(losses: np.ndarray, *, square_root: bool = False, seed: int = 0) -> np.ndarray:
    """Clusters clients by k-means on their vectors of losses and gives each cluster the model that suits it.

    Clusters and models are matched so that the sum of all clients' losses under their models is least (the Hungarian
    method). Where fewer vectors differ than there are models, as of fewer clients, some models have no cluster. A loss
    that is not finite counts as twice the largest that is: it is the worst, and no distance is infinite.

    Args:
      losses: `float [m, K]`; row i has client i's mean losses under the K models.
      square_root: Whether the roots of the losses are clustered and matched.
      seed: Of k-means' starts.

    Returns:
      `int32 [m]`, each client's model.
    """
    losses = np.asarray(losses, np.float64)
    finite = np.isfinite(losses)
    losses = np.where(finite, losses, 2 * np.max(losses, where=finite, initial=1.0))
    points = np.sqrt(losses) if square_root else losses
    models = points.shape[1]
    different = min(models, len(np.unique(points, axis=0)))
    with single_thread():
        found = KMeans(different, n_init=_STARTS, random_state=seed % 2**32).fit_predict(points)
    costs = np.stack([points[found == cluster].sum(axis=0) for cluster in range(different)])
    rows, columns = linear_sum_assignment(costs)
    return columns[np.argsort(rows)][found].astype(np.int32)
