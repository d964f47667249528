"""What happens to a data set beside its partition: normalisation, smaller variants, the server's images, validation
examples.

Images are normalised as `(x / 255 - mean) / std`, per channel. Some methods (FLIS) compare clients by what their models
say of images of the server's own. FLIS takes "real or synthetic" ones. Here they are held out of the data set; others,
as synthetic ones, go in by Python: `build_flis_hc` and `build_flis_dc` take any `server_images`.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from tffcl.errors import UserError
from tffcl.lab.datasets.core import Dataset
from tffcl.lab.datasets.images import Images, measured
from tffcl.lab.datasets.partitions.splitting import by_class, joined
from tffcl.validation import Count, Fraction, Whole, one_of, validated

# The constants of the transforms in PACFL's, FLIS's and NIID-Bench's code. Fashion-MNIST uses MNIST's there.
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
    """Returns the papers' mean and deviation of a set; if there are none, those of its images `x`."""
    return PAPER_CONSTANTS.get(name) or measured(x)


@validated
def normalized(dataset: Dataset, *, normalization: one_of(NORMALIZATIONS) = "pacfl") -> Dataset:
    """Returns the data set with the mean and deviation of a named convention.

    Args:
      dataset: As a loader returns it, with the constants of "pacfl".
      normalization: "pacfl": the constants of PACFL's code where it has them, else measured on the training
        images; "unit": pixels from 0 to 1 as they are (FLT, StoCFL on MNIST); "half": from -1 to 1 (FLT,
        StoCFL on CIFAR-10).

    Raises:
      UserError: For another name.
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
        kept.append(stratified(images.strata, dataset.num_strata, size, rng))
    return dataset.take(*kept)


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
    index = rng.permutation(_balanced(source.strata, dataset.num_strata, server_examples, rng))
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


@validated
def hold_out_validation(
    train: Sequence[np.ndarray], *, seed: Whole, validation: Fraction = 0.0
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Holds a share of every client's training examples out, after the partition: who holds what stays as it is
    without.

    Args:
      train: Indices into the training examples, `int [n]`, of each client.
      seed: Decides which examples.
      validation: The share, rounded to different examples; every client keeps at least one to train on. 0 holds none
        out.

    Returns:
      The same of each client for training and for validation; of nobody for validation where it holds none out.

    Raises:
      UserError: If the share is no example of any client.
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
    """Training and validation examples of one client, in their order; one that it holds several times is of one kind
    alone."""
    places = np.sort(np.unique(index, return_index=True)[1])  # where each example is for the first time
    count = min(round(share * len(places)), len(places) - 1)
    held = index[places[np.random.default_rng(seed).choice(len(places), count, replace=False)]]
    chosen = np.isin(index, held)
    return index[~chosen], index[chosen]
