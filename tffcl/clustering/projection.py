"""Clients as points in the plane, so that those which are near each other in a distance matrix are near each other."""

import warnings

import numpy as np

from tffcl.clustering import hierarchical
from tffcl.errors import UserError

_LEAST = 4  # UMAP has no neighbourhoods to keep among fewer


def project(distances: np.ndarray, *, seed: int, neighbors: int = 15) -> np.ndarray:
    """Lays clients out by UMAP (McInnes et al. 2018, arXiv:1802.03426).

    Only who is near whom has a meaning in the result, not the axes nor the distances between far groups.

    Args:
      distances: Numbers [N, N], e.g. principal angles.
      seed: Decides the layout.
      neighbors: How many neighbours of each client are kept near; N - 1 where there are fewer.

    Returns:
      Float32 [N, 2].

    Raises:
      UserError: If there are fewer than 4 clients, or `distances` is no matrix of distances.
    """
    distances = hierarchical.check_proximity(distances)
    if len(distances) < _LEAST:
        raise UserError(f"a map of clients needs at least {_LEAST} of them; there are {len(distances)}")
    with warnings.catch_warnings():
        # Its tqdm complains at length of a notebook without ipywidgets.
        warnings.simplefilter("ignore")
        # Compiles itself when imported, which takes seconds that only its users should wait.
        import umap

    layout = umap.UMAP(
        n_components=2,
        n_neighbors=min(neighbors, len(distances) - 1),
        metric="precomputed",
        init="random" if len(distances) < 2 * _LEAST else "spectral",
        random_state=seed,
        n_jobs=1,  # the same seed gives the same points in one thread only
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="using precomputed metric")
        return layout.fit_transform(np.asarray(distances, np.float32)).astype(np.float32)
