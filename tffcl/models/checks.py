"""Checks of what a user may give to a model's builder."""

import numbers

from tffcl.errors import UserError


def check_image(name: str, input_shape, *, least: int = 1) -> tuple[int, int, int]:
    """Takes an image's shape apart.

    Args:
      name: Of the model, for the message.
      input_shape: Of one raw example.
      least: Smallest height and width that the model can take.

    Returns:
      Height, width and channels.

    Raises:
      UserError: If that is no image, or one too small.
    """
    if len(input_shape) != 3 or min(input_shape) < 1:
        shape = "x".join(map(str, input_shape))
        raise UserError(f"{name} needs images of height x width x channels, not {shape}")
    height, width, channels = input_shape
    if min(height, width) < least:
        raise UserError(f"{name} needs images of at least {least}x{least}, not {height}x{width}; mlp takes any size")
    return height, width, channels


def _is_number(value) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def check_rate(name: str, value) -> float:
    """Returns a dropout rate.

    Raises:
      UserError: If it is not a number from 0 to below 1.
    """
    if not _is_number(value) or not 0 <= value < 1:
        raise UserError(f"{name} is {value!r}; it must be a number from 0 to below 1")
    return float(value)


def check_count(name: str, value) -> int:
    """Returns a number of units.

    Raises:
      UserError: If it is not a whole number from 1.
    """
    if not _is_number(value) or value % 1 != 0 or value < 1:
        raise UserError(f"{name} is {value!r}; it must be a whole number from 1")
    return int(value)
