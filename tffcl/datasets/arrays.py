"""A data set of a user's own arrays: images or other numbers, with natural clients or not."""

import numpy as np

from tffcl.datasets.core import Dataset, Images
from tffcl.datasets.normalization import measured
from tffcl.errors import UserError


def dataset_of_arrays(name: str, train, test, *, clients=None, num_classes: int | None = None) -> Dataset:
    """Makes a data set of arrays, e.g. in a function that a task names as `[dataset] builder`.

    Args:
      name: For titles.
      train: `(x [n, ...], y [n])`. uint8 of rank 4 are images, whose mean and deviation are measured; other numbers reach the
        model as they are, whole ones as int32 (uint8 stays uint8), others as float32. Labels are whole numbers from 0.
      test: The same for the test examples.
      clients: For natural clients `(train [n], test [n])`, who holds each example, names or whole numbers; names become numbers
        in sorted order.
      num_classes: How many labels there are; None: one more than the largest.

    Raises:
      UserError: For arrays of other types or lengths, values that are not finite, labels out of range.
    """
    train, test = (
        Images(numbers_of(x, f"{name}: x of {split}"), labels_of(y, f"{name}: y of {split}"))
        for split, (x, y) in (("train", train), ("test", test))
    )
    largest = 1 + int(max(each.y.max(initial=-1) for each in (train, test)))
    mean, std = measured(train.x) if train.are_images and len(train) else (0.0, 1.0)
    owners = (
        (None, None)
        if clients is None
        else owners_of(*map(np.asarray, clients), (f"{name}: clients of train", f"{name}: clients of test"))
    )
    return Dataset(
        name,
        train,
        test,
        largest if num_classes is None else num_classes,
        mean,
        std,
        train_owner=owners[0],
        test_owner=owners[1],
    )


def numbers_of(x, where: str) -> np.ndarray:
    """Returns examples as uint8, int32 or float32; `where` names them in errors."""
    x = np.asarray(x)
    if x.dtype == np.uint8:
        return x
    if x.dtype.kind == "f":
        return x.astype(np.float32)
    if x.dtype.kind not in "iub" or (x.size and not -(2**31) <= x.min() <= x.max() < 2**31):
        raise UserError(f"{where} is {x.dtype} of shape {x.shape}; it must be numbers of shape [n, ...], whole ones of 32 bits")
    return x.astype(np.int32)


def labels_of(y, where: str) -> np.ndarray:
    """Returns labels as int32 [n]; `where` names them in errors."""
    y = np.asarray(y)
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        raise UserError(f"{where} is {y.dtype} of shape {y.shape}; it must be integers of shape [n]")
    if len(y) and not 0 <= y.min() <= y.max() < 2**31:
        raise UserError(f"{where} has labels {y.min()} to {y.max()}; they count from 0")
    return y.astype(np.int32)


def owners_of(train: np.ndarray, test: np.ndarray, places: tuple[str, str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns who holds each example as int32 numbers; `places` name the two arrays in errors."""
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
