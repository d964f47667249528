"""Matrices as small pictures, one pixel an entry, with the values for who points at them."""

import base64
import dataclasses
import functools
import io
from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from PIL import Image

_NOTHING = 255  # the entry of the palette that is see-through


@dataclasses.dataclass(frozen=True)
class Raster:
    """A picture of a matrix.

    Attributes:
      address: The picture itself, as a data URL.
      told: What the page's script needs to say a value: names of rows and columns, the entries in 255 steps, what these mean.
    """

    address: str
    told: dict


def of_matrix(
    matrix: np.ndarray, rows: Sequence[str], columns: Sequence[str], *, low: float, high: float, unit: str, dark_is_low: bool
) -> Raster:
    """Makes a raster of numbers.

    Args:
      matrix: [n, m]; NaN is see-through.
      rows: Names of the rows.
      columns: Names of the columns.
      low: Where the colours begin.
      high: Where they end.
      unit: What stands behind a value.
      dark_is_low: Whether dark colours are small numbers.
    """
    steps = np.clip(np.round((matrix - low) / ((high - low) or 1.0) * (_NOTHING - 1)), 0, _NOTHING - 1)
    entries = np.where(np.isnan(matrix), _NOTHING, np.nan_to_num(steps)).astype(np.uint8)
    told = {
        "rows": list(rows),
        "columns": list(columns),
        "entries": base64.b64encode(entries.tobytes()).decode("ascii"),
        "low": float(f"{low:.6g}"),
        "high": float(f"{high:.6g}"),
        "unit": unit,
    }
    return Raster(_address(entries, _palette(dark_is_low), transparency=_NOTHING), told)


def of_kinds(
    kinds: np.ndarray, colors: Sequence[tuple[int, int, int] | None], rows: Sequence[str], says: Sequence[str]
) -> Raster:
    """Makes a raster of a few kinds of entries.

    Args:
      kinds: int [n, n].
      colors: Of each kind; None is see-through.
      rows: Names of rows and columns.
      says: What an entry of each kind says.
    """
    palette = np.zeros([256, 3], np.uint8)
    palette[: len(colors)] = [color or (0, 0, 0) for color in colors]
    see_through = [kind for kind, color in enumerate(colors) if color is None]
    entries = kinds.astype(np.uint8)
    told = {
        "rows": list(rows),
        "columns": list(rows),
        "entries": base64.b64encode(entries.tobytes()).decode("ascii"),
        "says": says,
    }
    return Raster(_address(entries, palette, **({"transparency": see_through[0]} if see_through else {})), told)


def pooled(matrix: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Makes a matrix of at most `most` rows, by the means of rows that are neighbours.

    Returns:
      The matrix, and for each of its rows the first that it stands for.
    """
    step = -(-len(matrix) // most)
    starts = np.arange(0, len(matrix), step)
    if step == 1:
        return matrix, starts
    known = ~np.isnan(matrix)
    counts = np.add.reduceat(known, starts, axis=0)
    sums = np.add.reduceat(np.where(known, matrix, 0), starts, axis=0)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan), starts


def picture(images: np.ndarray) -> str:
    """Puts images uint8 [n, h, w, c] side by side, a see-through line between them; returns a data URL."""
    count, height, width, channels = images.shape
    canvas = np.zeros([height, count * (width + 1) - 1, 4], np.uint8)
    for number in range(count):
        left = number * (width + 1)
        canvas[:, left : left + width, :3] = images[number] if channels == 3 else images[number][..., :1]
        canvas[:, left : left + width, 3] = 255
    return _encoded(Image.fromarray(canvas))


@functools.cache
def _palette(dark_is_low: bool) -> np.ndarray:
    shades = colormaps["viridis" if dark_is_low else "viridis_r"](np.linspace(0, 1, _NOTHING))[:, :3]
    return np.concatenate([np.round(255 * shades), np.zeros([1, 3])]).astype(np.uint8)


def _address(entries: np.ndarray, palette: np.ndarray, **options) -> str:
    image = Image.fromarray(entries, "L")
    image = image.copy()
    image.putpalette(palette.ravel().tolist())
    return _encoded(image, **options)


def _encoded(image: Image.Image, **options) -> str:
    data = io.BytesIO()
    image.save(data, "PNG", **options)
    return f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode('ascii')}"


def ramp(dark_is_low: bool) -> str:
    """Returns the colours of a raster from low to high, as a data URL of a picture one pixel high."""
    return _address(np.arange(_NOTHING, dtype=np.uint8)[None], _palette(dark_is_low))
