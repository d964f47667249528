"""Records what a method was built from, so that a resumed run is checked against it and config.toml lists it."""

import functools
import inspect
from collections.abc import Callable
from typing import TypeVar

from tffcl.algorithms.method import Method
from tffcl.models.flat import FlatModel
from tffcl.models.foreign import check_start
from tffcl.validation import Parameters, check_kind

Build = TypeVar("Build", bound=Callable)


def remembering(build: Build) -> Build:
    """Makes a builder of methods leave on each method, as `built_from`, what it was given by name, defaults included.

    The model and the parameters are checked to be of the classes that the builder declares.
    """
    signature = inspect.signature(build)

    @functools.wraps(build)
    def remembered(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            check_declared(name, value, signature.parameters[name].annotation)
        method = build(*args, **kwargs)
        if isinstance(method, Method):  # and no engine of one
            method.built_from = dict(bound.arguments)
        return method

    return remembered  # type: ignore[return-value]


def check_declared(name: str, value: object, kind: object):
    """Raises UserError if a model is no FlatModel that a run can start from, or parameters are not of the class `kind`."""
    if kind is FlatModel:
        check_kind(name, value, FlatModel, "a tffcl.FlatModel, as FlatModel.from_keras makes one")
        check_start(value)
    elif isinstance(kind, type) and issubclass(kind, Parameters):
        check_kind(name, value, kind, f"a {kind.__name__}(...)")
