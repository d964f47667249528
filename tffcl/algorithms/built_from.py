"""What a method was built from, kept on the method: whoever resumes its run is held to it, and config.toml tells it."""

import functools
import inspect
from collections.abc import Callable

from tffcl.algorithms.method import Method


def remembering(build: Callable) -> Callable:
    """Makes a builder of methods leave on each method, as `built_from`, what it was given by name, defaults included."""
    signature = inspect.signature(build)

    @functools.wraps(build)
    def remembered(*args, **kwargs):
        method, bound = build(*args, **kwargs), signature.bind(*args, **kwargs)
        bound.apply_defaults()
        if isinstance(method, Method):  # and no engine of one
            method.built_from = dict(bound.arguments)
        return method

    remembered.remembers = True
    return remembered


def remembered_in(module, name: str):
    """Returns a name of a module; a builder there remembers from now on, whoever calls it by the module."""
    found = getattr(module, name)
    if not inspect.isfunction(found) or hasattr(found, "remembers"):
        return found
    setattr(module, name, remembering(found))
    return getattr(module, name)
