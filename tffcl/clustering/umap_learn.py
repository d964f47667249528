"""umap-learn, whose compiled loops are kept on disk.

It compiles some of its loops anew in every process, which takes ten seconds and more before the first point is laid out; those
of its other loops that it keeps show that they can be kept. Kept loops are the same machine code, so the points are the same.
"""

import contextlib
import functools
import importlib
import types
import warnings

# What is compiled for a fit and a transform in one thread, by module of umap-learn.
_LOOPS = {
    "umap.umap_": ("smooth_knn_dist", "compute_membership_strengths", "init_transform", "init_update"),
    "umap.utils": ("fast_knn_indices", "submatrix"),
    "umap.layouts": ("_nb_optimize_layout_euclidean_single_epoch",),
}


@functools.cache
def load_umap() -> types.ModuleType:
    """Returns the module `umap`; it is imported where it is needed, as this takes seconds that only its users should wait."""
    with warnings.catch_warnings():
        # Its tqdm complains at length of a notebook without ipywidgets.
        warnings.simplefilter("ignore")
        import umap
    for module, names in _LOOPS.items():
        for name in names:
            # Another version may name them otherwise, and a read-only machine may have no place: it compiles then.
            with contextlib.suppress(AttributeError, RuntimeError):
                getattr(importlib.import_module(module), name).enable_caching()
    return umap
