"""Images of the server's own: some methods (FLIS) compare clients by what their models say of such images.

FLIS takes "real or synthetic" ones. Here they are held out of the data set; others, as synthetic ones, go in by Python:
`build_flis_hc` and `build_flis_dc` take any `server_images`.
"""
import dataclasses

import numpy as np

from tffcl.errors import UserError
from tffcl.lab.datasets.core import Dataset, Images
from tffcl.lab.datasets.partitions.splitting import by_class
from tffcl.validation import Whole, one_of, validated

# What the images of a split are called in messages.
_SPLITS = {"train": "training", "test": "test"}


@validated
def hold_out_server(
    dataset: Dataset, *, seed: Whole, server_examples: Whole = 0, server_split: one_of(_SPLITS) = "train"
) -> tuple[Dataset, Images | None]:
    """Gives the server images, before a partition hands the others out to clients.

    Each class gets as many as the others; one more for some classes that the seed decides, if the number does
    not divide. What a class is short of comes from the others.

    Args:
      dataset: The data set.
      seed: Decides which images the server gets, and their order.
      server_examples: How many.
      server_split: "train": training images, that no client gets then. "test": copies of test images, that
        clients are tested on all the same, as in the code of FLIS's authors; the data set's note says so.

    Returns:
      The data set for the clients, and the server's images in random order (None if it gets none).

    Raises:
      UserError: If the number is not whole, negative or not below that of the split's images, or the split
        has another name.
    """
    if not server_examples:
        return dataset, None
    source = getattr(dataset, server_split)
    if server_examples >= len(source):
        raise UserError(
            f"server_examples is {server_examples}; it must be less than the {len(source)} "
            f"{_SPLITS[server_split]} images of {dataset.name}"
        )
    # A stream of its own: the subset and the partition are the same ones with and without a server's images.
    rng = np.random.default_rng([seed, 0x5E12E])
    index = rng.permutation(_balanced(source.y, dataset.num_classes, server_examples, rng))
    if server_split == "train":
        rest = np.delete(np.arange(len(source)), index)
        return dataset.take(rest, np.arange(len(dataset.test))), source.take(index)
    leak = f"the server's {server_examples:,} images are from the test set that clients are tested on"
    note = f"{dataset.note}; {leak}" if dataset.note else leak
    return dataclasses.replace(dataset, note=note), source.take(index)


def _balanced(y: np.ndarray, num_classes: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Returns `size` random indices into the labels `y`, as equal numbers of each class as there can be."""
    examples = by_class(y, num_classes)
    available = np.array([len(index) for index in examples])
    sizes = np.zeros(num_classes, int)
    while missing := size - sizes.sum():
        left = np.flatnonzero(available > sizes)
        each = missing // len(left)
        if each:
            sizes = np.minimum(sizes + each, available)
        else:  # at last: one more for some of those that have more
            sizes[rng.choice(left, missing, replace=False)] += 1
    return np.concatenate([rng.permutation(index)[:wanted] for index, wanted in zip(examples, sizes, strict=True)])
