"""Reading what a task file asks for: names, keys and values, with one clear line where they are wrong."""

import inspect
import math
import numbers
from collections.abc import Callable, Collection, Mapping

from tffcl.errors import UserError, unknown


def keys_of(function: Callable) -> dict[str, object]:
    """Returns the keyword-only parameters of `function` and their defaults (`inspect.Parameter.empty`)."""
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


def check(
    kind: str,
    function: Callable,
    options: Mapping,
    *,
    given: Collection[str] = (),
    also: Collection[str] = (),
):
    """Checks that a user's options are what a function takes.

    Args:
      kind: What the options are of, e.g. "partition label_skew".
      function: Its options are its keyword-only parameters.
      options: The user's keys and values.
      given: Parameters that we supply and that users may not.
      also: Keys that are read elsewhere, to be named among the allowed ones.

    Raises:
      UserError: For an option that `function` does not have, or that it needs and did not get.
    """
    own = {key: default for key, default in keys_of(function).items() if key not in given}
    allowed = sorted({*own, *also})
    for key in options:
        if key not in own:
            raise unknown(f"option of {kind}", key, allowed)
    for key, default in own.items():
        if default is inspect.Parameter.empty and key not in options:
            raise UserError(f"{kind} needs {key!r} (its options: {', '.join(allowed)})")


def integer(key: str, value: object, minimum: int, maximum: int | None = None) -> int:
    """Returns `value` if it is a whole number from `minimum` to `maximum`, else raises UserError."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if whole and value >= minimum and (maximum is None or value <= maximum):
        return int(value)
    allowed = f"{minimum} or more" if maximum is None else f"from {minimum} to {maximum}"
    raise UserError(f"{key} is {value!r}; it must be a whole number, {allowed}")


def positive(key: str, value: object) -> float:
    """Returns `value` as a float if it is a finite number above 0, else raises UserError."""
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if number and math.isfinite(value) and value > 0:
        return float(value)
    raise UserError(f"{key} is {value!r}; it must be a number above 0")


def boolean(key: str, value: object) -> bool:
    """Returns `value` if it is true or false, else raises UserError."""
    if isinstance(value, bool):
        return value
    raise UserError(f"{key} is {value!r}; it must be true or false")


def choice(key: str, value: object, allowed: Collection):
    """Returns `value` if it is one of `allowed`, else raises UserError."""
    if value in list(allowed):
        return value
    if isinstance(value, str):
        raise unknown(key, value, allowed)
    raise UserError(f"{key} is {value!r}; it must be one of {', '.join(str(each) for each in allowed)}")
