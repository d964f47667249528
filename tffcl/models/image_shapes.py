"""Checks of the shapes that a model can take."""

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
