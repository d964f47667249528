"""What can be done to pictures as they are handed out: turned by any angle, tinted, or with other grey values."""

import numpy as np

# ANDA's three colours set one channel of a picture with three of them to its greatest value. One channel has no hue: there,
# the first of three stays as it is, and the others have changed brightness and contrast.
COLOUR_TONES = ("red", "blue", "green")
GREY_TONES = ("", "negative", "faint")

_CHANNEL = {"red": 0, "green": 1, "blue": 2}


def turned(x: np.ndarray, degrees: int) -> np.ndarray:
    """Turns pictures about their centre, counter-clockwise; what the turn leaves empty is black.

    Square pictures are turned exactly by multiples of 90 degrees, all others by the nearest pixel, as Pillow does by default:
    no new grey values come up.

    Args:
      x: uint8 [n, height, width, channels].
      degrees: The angle.

    Returns:
      uint8 of the same shape, a new array.
    """
    height, width, channels = x.shape[1:]
    quarters, rest = divmod(degrees % 360, 90)
    if not rest and (height == width or quarters % 2 == 0):
        return np.ascontiguousarray(np.rot90(x, quarters, axes=(1, 2)))
    place, inside = _sources(height, width, degrees)
    pixels = x.reshape(len(x), height * width, channels)[:, place]
    pixels[:, ~inside] = 0
    return pixels.reshape(x.shape)


def _sources(height: int, width: int, degrees: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns int64 [height * width], where each pixel of a turned picture comes from, and bool, if that is in the picture."""
    middle = np.array([(height - 1) / 2, (width - 1) / 2])
    down, right = (each.ravel() - at for each, at in zip(np.indices((height, width)), middle, strict=True))
    sine, cosine = np.sin(np.deg2rad(degrees)), np.cos(np.deg2rad(degrees))
    exact = np.stack([down * cosine + right * sine, right * cosine - down * sine]) + middle[:, None]
    # Rounded twice, so that a last bit of the sine does not decide between two pixels.
    row, column = np.floor(np.round(exact, 6) + 0.5).astype(np.int64)
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    return np.where(inside, row * width + column, 0), inside


def toned(x: np.ndarray, tone: str) -> np.ndarray:
    """Changes the colours or the grey values of pictures.

    Args:
      x: uint8 [n, height, width, channels].
      tone: "" for nothing; "red", "green" or "blue": this channel of three is 255 everywhere (ANDA's colours); "negative":
        255 minus the value; "faint": half the contrast, from 64 to 191.

    Returns:
      uint8 of the same shape; `x` itself for "".

    Raises:
      ValueError: For another tone, or a colour where there are not three channels.
    """
    if not tone:
        return x
    if tone == "negative":
        return 255 - x
    if tone == "faint":
        return 64 + x // 2
    if tone not in _CHANNEL or x.shape[-1] != 3:
        raise ValueError(f"pictures of {x.shape[-1]} channels have no tone {tone!r}")
    tinted = x.copy()
    tinted[..., _CHANNEL[tone]] = 255
    return tinted
