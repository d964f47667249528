"""Smaller variants of a data set."""

import numpy as np

from tffcl.errors import UserError
from tffcl.lab.datasets.core import Dataset
from tffcl.lab.datasets.partitions.splitting import by_class, joined
from tffcl.validation import Count, Whole, validated


def stratified(y: np.ndarray, num_classes: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Returns `size` random indices into the labels `y`, ascending, with the shares of the classes kept.

    Shares are rounded by largest remainder.
    """
    examples = by_class(y, num_classes)
    fair = np.array([len(index) for index in examples]) * (size / len(y))
    sizes = np.floor(fair).astype(int)
    sizes[np.argsort(sizes - fair, kind="stable")[: size - sizes.sum()]] += 1
    return joined([rng.permutation(index)[:wanted] for index, wanted in zip(examples, sizes, strict=True)])


@validated
def reduced(dataset: Dataset, *, seed: Whole, subset: Count | None = None, test_subset: Count | None = None) -> Dataset:
    """Keeps a stratified random part of a data set.

    Args:
      dataset: The data set.
      seed: Decides which examples are kept.
      subset: How many training examples to keep; None: all.
      test_subset: How many test examples to keep; None: all.

    Raises:
      UserError: If there are fewer examples than that.
    """
    if subset is None and test_subset is None:
        return dataset
    rng = np.random.default_rng([seed, 0x5B5E7])
    kept = []
    for key, size, images in (("subset", subset, dataset.train), ("test_subset", test_subset, dataset.test)):
        if size is None:
            kept.append(np.arange(len(images)))
            continue
        if size > len(images):
            raise UserError(f"{key} is {size}; {dataset.name} has only {len(images)}")
        kept.append(stratified(images.y, dataset.num_classes, size, rng))
    return dataset.take(*kept)
