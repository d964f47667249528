"""The mean and deviation that images are normalised with: `(x / 255 - mean) / std`, per channel."""

import dataclasses

import numpy as np

from tffcl.errors import UserError
from tffcl.lab.datasets.arrays import measured
from tffcl.lab.datasets.core import Dataset
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
    return dataclasses.replace(dataset, mean=(mean,) * channels, std=(std,) * channels)
