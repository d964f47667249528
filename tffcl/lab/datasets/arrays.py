"""What arrays of a data set may hold: numbers, labels, owners; and the mean and deviation of images."""

import numpy as np

from tffcl import arrays
from tffcl.errors import UserError

_BLOCK = 4096


def numbers_of(x, where: str) -> np.ndarray:
    """Returns examples as uint8, int32 or float32; `where` names them in errors."""
    given, x = x, arrays.numbers_of(x, where)
    if x.dtype == np.uint8:
        return x
    if x.dtype.kind == "f":
        arrays.check_finite(x, where, given)
        return x.astype(np.float32)
    if x.size and not -(2**31) <= x.min() <= x.max() < 2**31:
        raise UserError(f"{where} is {x.dtype} of shape {x.shape}; it must be numbers of shape [n, ...], whole ones of 32 bits")
    return x.astype(np.int32)


def labels_of(y, where: str) -> np.ndarray:
    """Returns labels as int32 [n]; `where` names them in errors."""
    y = arrays.labels_of(y, where)
    if y.ndim != 1:
        raise UserError(f"{where} is {y.dtype} of shape {y.shape}; it must be integers of shape [n]")
    if len(y) and not 0 <= y.min() <= y.max() < 2**31:
        raise UserError(f"{where} has labels {y.min()} to {y.max()}; they count from 0")
    return y.astype(np.int32)


def owners_of(train: np.ndarray, test: np.ndarray, places: tuple[str, str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns who holds each example as int32 numbers; `places` name the two arrays in errors."""
    # Text in pandas is of objects.
    train, test = (
        each.astype(str) if each.dtype == object and all(isinstance(name, str) for name in each.flat) else each
        for each in (train, test)
    )
    for array, where in zip((train, test), places, strict=True):
        if array.ndim != 1 or array.dtype.kind not in "iuUS":
            raise UserError(f"{where} is {array.dtype} of shape {array.shape}; it must be names or integers, [n]")
    if train.dtype.kind in "US" and test.dtype.kind in "US":
        names = np.concatenate([train, test])
    elif train.dtype.kind in "iu" and test.dtype.kind in "iu":
        names = np.concatenate([train.astype(np.int64), test.astype(np.int64)])
    else:
        raise UserError(f"{places[0]} and {places[1]} must both be names or both integers")
    numbers = np.unique(names, return_inverse=True)[1].reshape(-1).astype(np.int32)
    return numbers[: len(train)], numbers[len(train) :]


def measured(x: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns mean and standard deviation of each channel of uint8 images [n, h, w, c], on the scale 0 to 1.

    In whole numbers, which is exact, and in blocks, as a float copy of a large set would be eight times its
    size. A channel that is constant gets deviation 1.
    """
    total, squares = np.zeros(x.shape[-1], np.uint64), np.zeros(x.shape[-1], np.uint64)
    for start in range(0, len(x), _BLOCK):
        block = x[start : start + _BLOCK]
        total += block.sum(axis=(0, 1, 2), dtype=np.uint64)
        # 255 x 255 is just within uint16.
        squares += np.square(block, dtype=np.uint16).sum(axis=(0, 1, 2), dtype=np.uint64)
    pixels = x.size // x.shape[-1]
    mean = total / pixels
    variance = np.maximum(squares / pixels - mean**2, 0.0)
    std = np.where(variance > 0, np.sqrt(variance) / 255, 1.0)
    return tuple((mean / 255).tolist()), tuple(std.tolist())
