"""Prepares a data set beside its partition: normalisation, smaller variants, the server's images, validation examples.

Images are normalised as `(x / 255 - mean) / std`, per channel. Some methods (FLIS) compare clients by their models'
predictions on images that the server has. FLIS takes "real or synthetic" images. Here they are held out of the data
set. In Python, `build_flis_hc` and `build_flis_dc` take any `server_images`, e.g. synthetic ones.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from tffcl.errors import UserError
from tffcl.lab.datasets.core import Dataset
from tffcl.lab.datasets.images import Images, measured
from tffcl.lab.datasets.partitions.splitting import by_class, joined
from tffcl.validation import Count, Fraction, Whole, one_of, validated

# Constants of the transforms in the code of PACFL, FLIS and NIID-Bench, where Fashion-MNIST has those of MNIST.
PAPER_CONSTANTS = {
    "mnist": ((0.1307,), (0.3081,)),
    "fashion_mnist": ((0.1307,), (0.3081,)),
    "emnist_balanced": ((0.1307,), (0.3081,)),
    "emnist_letters": ((0.1307,), (0.3081,)),
    "femnist": ((0.1307,), (0.3081,)),
    "svhn_cropped": ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": ((0.507, 0.487, 0.441), (0.267, 0.256, 0.276)),
}

NORMALIZATIONS = ("pacfl", "unit", "half")


def constants(name: str, x: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns the papers' mean and deviation of a data set; if there are none, those of its images `x`."""
    return PAPER_CONSTANTS.get(name) or measured(x)


@validated
def normalized(dataset: Dataset, *, normalization: one_of(NORMALIZATIONS) = "pacfl") -> Dataset:
    """Returns the data set with the mean and deviation of a named convention.

    Args:
      dataset: The data set as a loader returns it, with the constants of "pacfl".
      normalization: "pacfl": the constants of PACFL's code where it has them, else those measured on the training
        images; "unit": pixels stay from 0 to 1 (FLT, StoCFL on MNIST); "half": pixels become -1 to 1 (FLT, StoCFL on
        CIFAR-10).

    Raises:
      UserError: For another name, or "unit" or "half" if the examples are not images.
    """
    if normalization == "pacfl":
        return dataset
    if not dataset.train.are_images:
        raise UserError(
            f"normalization is {normalization!r}; the examples of {dataset.name} are no images and stay as they are"
        )
    channels = dataset.train.x.shape[-1]
    mean, std = {"unit": (0.0, 1.0), "half": (0.5, 0.5)}[normalization]
    return dataclasses.replace(dataset, mean=(mean,) * channels, std=(std,) * channels, measured_noise=None)


def stratified(y: np.ndarray, num_classes: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Returns `size` random indices into the labels `y`, ascending, which keep the shares of the classes.

    Shares are rounded by the largest remainder.
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
      seed: Decides which examples are kept.
      subset: How many training examples to keep; None: all.
      test_subset: How many test examples to keep; None: all.

    Raises:
      UserError: If the data set has fewer examples than that.
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
        kept.append(stratified(images.strata, dataset.num_strata, size, rng))
    return dataset.take(*kept)


# The names of the splits in messages.
_SPLITS = {"train": "training", "test": "test"}


@validated
def hold_out_server(
    dataset: Dataset, *, seed: Whole, server_examples: Whole = 0, server_split: one_of(_SPLITS) = "train"
) -> tuple[Dataset, Images | None]:
    """Gives the server its images, before a partition distributes the others among clients.

    The server gets equally many images of each class, and one more of some classes, drawn by the seed, if the number
    does not divide. If a class has too few images, the other classes make up for it.

    Args:
      seed: Decides which images the server gets, and their order.
      server_examples: The number of images for the server.
      server_split: "train": training images, which no client gets then. "test": copies of test images, on which clients
        are tested nevertheless, as in the code of FLIS's authors; the data set's note says so.

    Returns:
      The data set for the clients, and the server's images in random order (None if it gets none).

    Raises:
      UserError: If the number is not whole, is negative or not below the number of the split's images, or if the split
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
    # A separate random stream, so that the server's images do not change the draws of subset and partition.
    rng = np.random.default_rng([seed, 0x5E12E])
    index = rng.permutation(_balanced(source.strata, dataset.num_strata, server_examples, rng))
    if server_split == "train":
        rest = np.delete(np.arange(len(source)), index)
        return dataset.take(rest, np.arange(len(dataset.test))), source.take(index)
    leak = f"the server's {server_examples:,} images are from the test set that clients are tested on"
    note = f"{dataset.note}; {leak}" if dataset.note else leak
    return dataclasses.replace(dataset, note=note), source.take(index)


def _balanced(y: np.ndarray, num_classes: int, size: int, rng: np.random.Generator) -> np.ndarray:
    """Returns `size` random indices into the labels `y`, with the numbers of the classes as equal as possible."""
    examples = by_class(y, num_classes)
    available = np.array([len(index) for index in examples])
    sizes = np.zeros(num_classes, int)
    while missing := size - sizes.sum():
        left = np.flatnonzero(available > sizes)
        each = missing // len(left)
        if each:
            sizes = np.minimum(sizes + each, available)
        else:  # the rest: one more for some of the classes that have more
            sizes[rng.choice(left, missing, replace=False)] += 1
    return np.concatenate([rng.permutation(index)[:wanted] for index, wanted in zip(examples, sizes, strict=True)])


@validated
def hold_out_validation(
    train: Sequence[np.ndarray], *, seed: Whole, validation: Fraction = 0.0
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Holds out a share of every client's training examples, after the partition, which therefore stays the same.

    Args:
      train: For each client, `int [n]`, indices into the training examples.
      seed: Decides which examples are held out.
      validation: The share of a client's distinct examples, rounded; every client keeps at least one for training. 0
        holds none out.

    Returns:
      Each client's indices for training, and for validation; the latter are empty if none are held out.

    Raises:
      UserError: If the share is less than one example for every client.
    """
    if not validation:
        return tuple(train), ()
    parts = [_parted(index, validation, [seed, 0xA11D, client]) for client, index in enumerate(train)]
    if not any(len(held) for _, held in parts):
        raise UserError(
            f"validation is {validation:g}, which is no example of any client; give a larger share, or 0",
            table="dataset", key="validation",
        )  # fmt: skip
    return tuple(zip(*parts, strict=True))


def _parted(index: np.ndarray, share: float, seed: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Training and validation examples of one client, in their order; copies of an example are in the same part."""
    places = np.sort(np.unique(index, return_index=True)[1])  # the first place of each example
    count = min(round(share * len(places)), len(places) - 1)
    held = index[places[np.random.default_rng(seed).choice(len(places), count, replace=False)]]
    chosen = np.isin(index, held)
    return index[~chosen], index[chosen]
