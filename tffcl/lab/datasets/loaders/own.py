"""A user's own table, or folders of pictures, with their natural clients."""

from collections.abc import Mapping, Sequence

import numpy as np

from tffcl.clients import labels
from tffcl.clients.folders import read_folders
from tffcl.clients.tables import MISSING, Table, read_table
from tffcl.lab.datasets.core import Dataset, class_count, numbers_of
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
    """Returns the data set of a CSV or Parquet file with a row for each example; columns become features, and labels
    classes or numbers, as `tffcl.Population.from_frame` says.

    Args:
      path: The file.
      client: The column that says whose a row is.
      label: The column of labels: whole numbers from 0, texts or bools are classes, other numbers are to be predicted;
        or several such columns.
      features: The columns that the model takes; default all others.
      test: The share of each client's rows that is kept for tests, or a column of bools that says which.
      split_seed: Decides which rows these are.
      group: A column of the true group of each client.
      missing: "refuse" (default), "drop" or "mean": what happens to missing values.
      standardize: Whether columns of numbers become of mean 0 and deviation 1, or which.
      bounds: [lowest, highest] of each of these columns, for means and deviations with noise.
      noise_multiplier: That of the noise, against one client.

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
    """Returns the data set of a folder PATH/CLIENT/LABEL/NAME.png (or .jpg and others of Pillow's).

    Args:
      path: The folder that has one of each client.
      image_size: Height and width to scale pictures to, or one number for both; default as they are, all equal.
      channels: 1 for grey, 3 for colours; default 1 where all are grey.
      test: The share of each client's pictures that is kept for tests.
      split_seed: Decides which ones these are.

    Raises:
      UserError: If a client has no pictures, one cannot be read, or they are of two sizes.
    """
    path = expanded(path)
    return _dataset(path.name, read_folders(path, image_size=image_size, channels=channels, test=test, seed=split_seed))


def _dataset(name: str, table: Table) -> Dataset:
    y = labels.checked(table.y, f"{name}: the labels")
    names = table.label_names or labels.names_in([y])
    x, y = numbers_of(table.x, f"{name}: the examples"), labels.coded(y, name, names)
    owners, parts = sorted(table.parts["training"]), []
    for kind in ("training", "test"):
        rows = [table.parts[kind][owner] for owner in owners]
        owner, held = np.repeat(np.arange(len(owners), dtype=np.int32), list(map(len, rows))), np.concatenate(rows)
        parts.append(Images(x[held], y[held], owner))
    train, test = parts
    are_images = train.are_images and len(train)
    normal = measured(train.x) if are_images else (0.0, 1.0)
    return Dataset(
        name, train, test, len(names) if names else class_count(y), *normal, names, table.note,
        owner_names=tuple(map(str, owners)),
        measured_noise=0.0 if are_images else table.rules and table.rules.measured_noise,
        owner_groups=table.groups and np.array([table.groups[owner] for owner in owners], np.int32),
    )  # fmt: skip
