"""The mean and deviation that images are normalised with: `(x / 255 - mean) / std`, per channel."""

import dataclasses

import numpy as np

from tffcl.datasets.core import Dataset
from tffcl.datasets.options import choice

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


def measured(x: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns mean and standard deviation of each channel of uint8 images [n, h, w, c], on the scale 0 to 1.

    Counts values instead of converting them: exact, and a float copy of a large set would be four times its
    size. A channel that is constant gets deviation 1.
    """
    means, deviations = [], []
    values = np.arange(256) / 255.0
    for channel in range(x.shape[-1]):
        share = np.bincount(x[..., channel].ravel(), minlength=256) / max(1, x[..., channel].size)
        mean = float(share @ values)
        deviation = float(np.sqrt(share @ (values - mean) ** 2))
        means.append(mean)
        deviations.append(deviation or 1.0)
    return tuple(means), tuple(deviations)


def constants(name: str, x: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns the papers' mean and deviation of a set; if there are none, those of its images `x`."""
    return PAPER_CONSTANTS.get(name) or measured(x)


def normalized(dataset: Dataset, normalization: str) -> Dataset:
    """Returns the data set with the mean and deviation of a named convention.

    Args:
      dataset: As a loader returns it, with the constants of "pacfl".
      normalization: "pacfl": the constants of PACFL's code where it has them, else measured on the training
        images; "unit": pixels from 0 to 1 as they are (FLT, StoCFL on MNIST); "half": from -1 to 1 (FLT,
        StoCFL on CIFAR-10).

    Raises:
      UserError: For another name.
    """
    choice("normalization", normalization, NORMALIZATIONS)
    if normalization == "pacfl":
        return dataset
    channels = dataset.train.x.shape[-1]
    mean, std = {"unit": (0.0, 1.0), "half": (0.5, 0.5)}[normalization]
    return dataclasses.replace(dataset, mean=(mean,) * channels, std=(std,) * channels)
