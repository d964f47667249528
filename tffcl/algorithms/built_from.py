"""Records what a method was built from, so that a resumed run is checked against it and config.toml lists it."""

import functools
import inspect
from collections.abc import Callable
from typing import TypeVar

from tffcl.algorithms.method import Method

Build = TypeVar("Build", bound=Callable)


def remembering(build: Build) -> Build:
    """Makes a builder of methods leave on each method, as `built_from`, what it was given by name, defaults included."""
    signature = inspect.signature(build)

    @functools.wraps(build)
    def remembered(*args, **kwargs):
        method, bound = build(*args, **kwargs), signature.bind(*args, **kwargs)
        bound.apply_defaults()
        if isinstance(method, Method):  # and no engine of one
            method.built_from = dict(bound.arguments)
        return method

    return remembered  # type: ignore[return-value]
