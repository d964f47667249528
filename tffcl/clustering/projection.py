"""Layouts of clients in the plane, in which clients that are near in a distance matrix are near each other."""

import contextlib
import functools
import importlib
import types
import warnings

import numpy as np
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE

from tffcl.clustering import hierarchical, stochastic
from tffcl.clustering.groupings import single_thread
from tffcl.errors import UserError

LEAST = 4  # fewer clients have no neighbourhoods that UMAP could keep
_COMPONENTS = 50  # to which van der Maaten and Hinton reduce rows before t-SNE

_PERPLEXITY = 30.0  # about how many neighbours t-SNE keeps near each client; with few clients a third of the others
_SAME = 1e-6  # how far apart rounding may put unit vectors of one direction


def project(distances: np.ndarray, *, seed: int) -> np.ndarray:
    """Lays clients out by UMAP (McInnes et al. 2018, arXiv:1802.03426).

    In the result only nearness has a meaning; the axes and the distances between far groups have none.

    Args:
      distances: Numbers [N, N], e.g. principal angles.
      seed: Decides the layout.

    Returns:
      Float32 [N, 2].

    Raises:
      UserError: If there are fewer than 4 clients, or `distances` is no matrix of distances.
    """
    distances = hierarchical.check_proximity(distances)
    if len(distances) < LEAST:
        raise UserError(f"a map of clients needs at least {LEAST} of them; there are {len(distances)}")
    layout = new_reducer(len(distances), seed, metric="precomputed")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="using precomputed metric")
        return layout.fit_transform(np.asarray(distances, np.float32)).astype(np.float32)


def project_directions(vectors: np.ndarray, *, seed: int) -> np.ndarray:
    """Lays clients out by t-SNE (van der Maaten and Hinton 2008), so that vectors of similar direction are near each
    other.

    This is how StoCFL's Fig. 6 shows representations. The rows are first scaled to length 1 and reduced to 50 principal
    components. If all directions are the same, all clients are at one point.

    Args:
      vectors: Numbers [N, d].
      seed: Decides the layout.

    Returns:
      Float32 [N, 2].

    Raises:
      UserError: If there are fewer than 4 clients.
    """
    units = stochastic.unit_vectors(vectors)
    if len(units) < LEAST:
        raise UserError(f"a map of clients needs at least {LEAST} of them; there are {len(units)}")
    if np.allclose(units, units[0], atol=_SAME):
        # t-SNE starts from the first component divided by its deviation, and scikit-learn's tree ends the process over
        # NaN.
        return np.zeros((len(units), 2), np.float32)
    if units.shape[1] < 2:  # t-SNE starts from two components
        units = np.pad(units, ((0, 0), (0, 1)))
    kept = min(_COMPONENTS, *units.shape)
    reduced = PCA(kept, random_state=seed).fit_transform(units)
    tsne = TSNE(perplexity=min(_PERPLEXITY, (len(units) - 1) / 3), init="pca", random_state=seed, n_jobs=1)
    with single_thread():
        return tsne.fit_transform(reduced).astype(np.float32)


# The functions that are compiled for a fit and a transform in one thread, by module of umap-learn.
_LOOPS = {
    "umap.umap_": ("smooth_knn_dist", "compute_membership_strengths", "init_transform", "init_update"),
    "umap.utils": ("fast_knn_indices", "submatrix"),
    "umap.layouts": ("_nb_optimize_layout_euclidean_single_epoch",),
}


def new_reducer(count: int, seed: int, *, num_components: int = 2, num_neighbors: int = 15, **options):
    """Returns an unfitted `umap.UMAP` for `count` points, with further options."""
    few = count < 2 * LEAST or count <= num_components + 1
    return load_umap().UMAP(
        n_components=num_components,
        n_neighbors=min(num_neighbors, count - 1),
        init="random" if few else "spectral",
        random_state=seed,
        n_jobs=1,  # the same seed gives the same points in one thread only
        **options,
    )


@functools.cache
def load_umap() -> types.ModuleType:
    """Returns the module `umap`; it is imported only when it is needed, because this takes seconds."""
    with warnings.catch_warnings():
        # Its tqdm warns at length in a notebook without ipywidgets.
        warnings.simplefilter("ignore")
        import umap
    for module, names in _LOOPS.items():
        for name in names:
            # Another version may name them differently, and a read-only machine may have no place: then umap compiles.
            with contextlib.suppress(AttributeError, RuntimeError):
                getattr(importlib.import_module(module), name).enable_caching()
    return umap
