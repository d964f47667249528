"""The mean and deviation that images are normalised with: `(x / 255 - mean) / std`, per channel."""

import dataclasses

import numpy as np

from tffcl.datasets.core import Dataset
from tffcl.errors import UserError
from tffcl.validation import one_of, validated

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

_BLOCK = 4096

NORMALIZATIONS = ("pacfl", "unit", "half")


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
    return dataclasses.replace(dataset, mean=(mean,) * channels, std=(std,) * channels)
