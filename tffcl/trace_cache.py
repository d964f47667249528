"""Builders whose results are kept: the same method built twice traces once."""

import collections
import functools
import hashlib
from collections.abc import Callable, Hashable

import numpy as np

_MOST = 24  # builds that are kept of each builder; a traced round takes some megabytes


class KeptBuilds:
    """Builds by key; the most recently used ones are kept."""

    def __init__(self):
        self._kept = collections.OrderedDict()

    def find(self, key: Hashable, build: Callable):
        """Returns what `build()` returned for this key, now or earlier."""
        if key not in self._kept:
            self._kept[key] = build()
        self._kept.move_to_end(key)
        if len(self._kept) > _MOST:
            self._kept.popitem(last=False)
        return self._kept[key]

    def forget(self):
        """Forgets all builds."""
        self._kept.clear()


def built_once(build: Callable) -> Callable:
    """Makes a builder return the same object for the same arguments.

    Models of one architecture count as the same whatever their initial weights (`FlatModel.key`), aggregation factories
    of one class and with the same options (`FactoryTraits.key`), arrays by their contents, and all else by equality; an
    argument that has none, such as a factory of TFF's, by identity.

    Args:
      build: The builder. Its result must depend only on its arguments, and not on a model's initial weights.
    """
    kept = KeptBuilds()

    @functools.wraps(build)
    def cached(*args, **kwargs):
        return kept.find(key_of((args, kwargs)), lambda: build(*args, **kwargs))

    cached.forget = kept.forget
    return cached


def key_of(value) -> Hashable:
    """Returns a key that is equal for values that count as the same, see `built_once`."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, hashlib.sha256(np.ascontiguousarray(value).tobytes()).digest()
    if isinstance(value, dict):
        return tuple((name, key_of(each)) for name, each in sorted(value.items()))
    if type(value) is tuple:
        return tuple(map(key_of, value))
    key = value.key if hasattr(type(value), "key") else None  # a TFF type has its fields as attributes
    return value if key is None else key
