"""Groups of clients by their losses under several models (CLoVE), and which model each group takes."""

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans

from tffcl.clustering.single_thread import single_thread

_STARTS = 10  # of k-means


def group_by_losses(losses: np.ndarray, *, square_root: bool = False, seed: int = 0) -> np.ndarray:
    """Clusters clients by k-means on their vectors of losses and gives each cluster the model that suits it.

    Clusters and models are matched so that the sum of all clients' losses under their models is least (the Hungarian method).
    Where fewer vectors differ than there are models, as of fewer clients, some models have no cluster. A loss that is not
    finite counts as twice the largest that is: it is the worst, and no distance is infinite.

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
