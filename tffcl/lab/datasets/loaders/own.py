"""Loads a user's own table, folders of pictures, or .npz file, with natural clients."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from tffcl.clients.arrays import checked_labels, coded_labels, names_of_labels
from tffcl.clients.folders import read_folders
from tffcl.clients.tables import MISSING, Table, read_table
from tffcl.display import counted
from tffcl.errors import UserError
from tffcl.lab.datasets.core import Dataset, class_count, labels_of, numbers_of, owners_of
from tffcl.lab.datasets.images import Images, measured
from tffcl.lab.datasets.storage import expanded
from tffcl.validation import Count, Fraction, Whole, one_of, validated


@validated
def load_table(
    *,
    path: str,
    client: str,
    label: str | Sequence[str],
    features: Sequence[str] | None = None,
    test: Fraction | str = 0.3,
    split_seed: Whole = 0,
    group: str | None = None,
    missing: one_of(MISSING) = "refuse",
    standardize: bool | Sequence[str] = True,
    bounds: Mapping[str, Sequence[float]] | None = None,
    noise_multiplier: float | None = None,
) -> Dataset:
    """Returns the data set of a CSV or Parquet file with one row for each example. Columns become features, and labels
    become classes or numbers, as described in `tffcl.Population.from_frame`.

    Args:
      path: The file.
      client: The column with the client of each row.
      label: The column of labels, or several such columns. Whole numbers from 0, texts and bools are classes; other
        numbers are to be predicted.
      features: The columns that the model takes; default all other columns with a name.
      test: The share of each client's rows that is kept for tests, or a column of bools that marks these rows.
      split_seed: Decides which rows are kept for tests.
      group: The column with the true group of each client.
      missing: "refuse" (default), "drop" or "mean": how missing values are treated.
      standardize: Whether columns of numbers are scaled to mean 0 and deviation 1; or a list of such columns.
      bounds: [lowest, highest] of each of these columns, for means and deviations with noise.
      noise_multiplier: The multiplier of this noise, which protects one client.

    Raises:
      UserError: If the file cannot be read, a column is missing or of another type, or a value is missing.
    """
    path = expanded(path)
    table = read_table(
        path, client=client, label=label, features=features, test=test, seed=split_seed, group=group, missing=missing,
        standardize=standardize, bounds=bounds, noise_multiplier=noise_multiplier,
    )  # fmt: skip
    return _dataset(path.stem, table)


@validated
def load_folders(
    *,
    path: str,
    image_size: Sequence[Count] | Count | None = None,
    channels: Count | None = None,
    test: Fraction = 0.3,
    split_seed: Whole = 0,
) -> Dataset:
    """Returns the data set of a folder PATH/CLIENT/LABEL/NAME.png (or .jpg and other formats of Pillow).

    Args:
      path: The folder that contains one folder for each client.
      image_size: Height and width to which pictures are scaled, or one number for both; default no scaling, if all
        pictures have one size.
      channels: 1 for grey, 3 for colours; default 1 if all pictures are grey.
      test: The share of each client's pictures that is kept for tests.
      split_seed: Decides which pictures are kept for tests.

    Raises:
      UserError: If a client has no pictures, a picture cannot be read, or pictures have different sizes.
    """
    path = expanded(path)
    return _dataset(path.name, read_folders(path, image_size=image_size, channels=channels, test=test, seed=split_seed))


def _dataset(name: str, table: Table) -> Dataset:
    y = checked_labels(table.y, f"{name}: the labels")
    names = table.label_names or names_of_labels([y])
    x, y = numbers_of(table.x, f"{name}: the examples"), coded_labels(y, name, names)
    owners, parts = sorted(table.parts["training"]), []
    for kind in ("training", "test"):
        rows = [table.parts[kind][owner] for owner in owners]
        owner, held = np.repeat(np.arange(len(owners), dtype=np.int32), list(map(len, rows))), np.concatenate(rows)
        parts.append(Images(x[held], y[held], owner, row=held))
    train, test = parts
    are_images = train.are_images and len(train)
    normal = measured(train.x) if are_images else (0.0, 1.0)
    return Dataset(
        name, train, test, len(names) if names else class_count(y), *normal, names, table.note,
        owner_names=tuple(map(str, owners)),
        measured_noise=0.0 if are_images else table.rules and table.rules.measured_noise,
        owner_groups=table.groups and np.array([table.groups[owner] for owner in owners], np.int32),
        group_names=table.rules.groups if table.groups else None,
        table=table if table.rules else None,
    )  # fmt: skip


_NEEDED = ("x_train", "y_train", "x_test", "y_test")
_OWNERS = ("client_train", "client_test")


@validated
def load_npz(*, path: str, num_classes: Count | None = None) -> Dataset:
    """Returns the data set of an .npz file; mean and deviation are measured on its training images.

    The file has `x_train`, `x_test` [n, height, width] or [n, height, width, channels], integers 0 to 255 or floats 0
    to 1 (stored as the nearest of 256 steps), and `y_train`, `y_test` [n], integers from 0. For natural clients it also
    has `client_train` and `client_test` [n], integers or strings, which become the clients' names and their order.

    Args:
      path: The file.
      num_classes: The number of labels; default one more than the largest label in the file.

    Raises:
      UserError: If the file or an array is missing or damaged, or a value is NaN, infinite or out of range; the message
        says where.
    """
    path = expanded(path)
    arrays = read_npz(path)
    train, test = images_of(arrays, str(path))
    classes = class_count(train.y, test.y) if num_classes is None else num_classes
    *owners, names = _owners(arrays, path)
    train, test = (dataclasses.replace(each, owner=own) for each, own in zip((train, test), owners, strict=True))
    return Dataset(path.stem, train, test, classes, *measured(train.x), owner_names=names, measured_noise=0.0)


def read_npz(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns the arrays of an .npz file; raises UserError if it cannot be read."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except FileNotFoundError:
        raise UserError(f"npz file {path} does not exist") from None
    except Exception as error:  # NumPy, zipfile and the tokenizer raise a dozen types of errors for damaged files
        reason = str(error).splitlines()[:1]
        raise UserError(f"{path} cannot be read as an .npz file of plain arrays ({''.join(reason)[:200]})") from None


def images_of(arrays: dict[str, np.ndarray], where: str) -> tuple[Images, Images]:
    """Returns training and test images from arrays as in `load_npz`; `where` names the arrays in errors."""
    absent = [key for key in _NEEDED if key not in arrays]
    if absent:
        raise UserError(f"{where} lacks {', '.join(absent)} (needed: {', '.join(_NEEDED)})")
    splits = []
    for split in ("train", "test"):
        x = to_uint8(arrays[f"x_{split}"], f"{where}: x_{split}")
        y = labels_of(arrays[f"y_{split}"], f"{where}: y_{split}")
        if len(x) != len(y):
            images, labels = counted(len(x), "image"), counted(len(y), "label")
            raise UserError(f"{where}: x_{split} has {images} and y_{split} {labels}")
        splits.append(Images(x, y))
    return splits[0], splits[1]


def to_uint8(x: np.ndarray, where: str) -> np.ndarray:
    """Returns images as uint8 [n, h, w, c], from integers 0 to 255 or floats 0 to 1, with or without a channel axis.

    Raises:
      UserError: If `x` has another rank or type, or a value is NaN, infinite or out of range.
    """
    x = x[..., None] if x.ndim == 3 else x
    if x.ndim != 4:
        raise UserError(f"{where} has shape {x.shape}; it must be [n, height, width] or [n, height, width, channels]")
    if x.dtype == np.uint8:
        return x
    floats = np.issubdtype(x.dtype, np.floating)
    if not floats and not np.issubdtype(x.dtype, np.integer):
        raise UserError(f"{where} is of type {x.dtype}; it must be integers 0 to 255 or floats 0 to 1")
    top = 1 if floats else 255
    wrong = ~((x >= 0) & (x <= top))  # true for NaN too
    if wrong.any():
        place = tuple(int(each) for each in np.unravel_index(int(wrong.argmax()), x.shape))
        raise UserError(
            f"{where} is {x[place]} at {list(place)}; {'floats' if floats else 'integers'} must be 0 to {top}"
        )
    return np.round(x * 255.0).astype(np.uint8) if floats else x.astype(np.uint8)


def _owners(arrays, path):
    present = [key for key in _OWNERS if key in arrays]
    if not present:
        return None, None, ()
    if len(present) == 1:
        raise UserError(f"{path} has {present[0]} only; natural clients need both {' and '.join(_OWNERS)}")
    return owners_of(*(arrays[key] for key in _OWNERS), tuple(f"{path}: {key}" for key in _OWNERS))
