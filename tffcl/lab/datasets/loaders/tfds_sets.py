"""The image sets that TFDS has: MNIST, Fashion-MNIST, CIFAR, SVHN and EMNIST."""

import dataclasses
import string

import numpy as np

from tffcl.lab.datasets import storage
from tffcl.lab.datasets.core import Dataset, Images
from tffcl.lab.datasets.loaders.tfds_files import read_arrays, read_split
from tffcl.lab.datasets.normalization import constants

_DIGITS = tuple(string.digits)


@dataclasses.dataclass(frozen=True)
class _Set:
    """What is to know about one TFDS set.

    Attributes:
      builder: Its name in TFDS.
      url: Where TFDS downloads it from.
      sizes: Training and test images of the complete set.
      class_names: Name of each label.
      transposed: If TFDS gives its images with rows and columns exchanged.
      first_label: The label of the first class.
    """

    builder: str
    url: str
    sizes: tuple[int, int]
    class_names: tuple[str, ...] | int
    transposed: bool = False
    first_label: int = 0


_FASHION = (
    "t-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
# EMNIST balanced joins small letters that look like their capitals (Cohen et al. 2017, section II-C).
_BALANCED = _DIGITS + tuple(string.ascii_uppercase) + tuple("abdefghnqrt")
_NIST = "https://biometrics.nist.gov"

_SETS = {
    "mnist": _Set("mnist", "https://storage.googleapis.com", (60000, 10000), _DIGITS),
    "fashion_mnist": _Set(
        "fashion_mnist",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        (60000, 10000),
        _FASHION,
    ),
    "cifar10": _Set("cifar10", "https://www.cs.toronto.edu", (50000, 10000), _CIFAR10),
    "cifar100": _Set("cifar100", "https://www.cs.toronto.edu", (50000, 10000), 100),
    "svhn_cropped": _Set("svhn_cropped", "http://ufldl.stanford.edu", (73257, 26032), _DIGITS),
    "emnist_balanced": _Set("emnist/balanced", _NIST, (112800, 18800), _BALANCED, transposed=True),
    "emnist_letters": _Set(
        "emnist/letters", _NIST, (88800, 14800), tuple(string.ascii_uppercase), transposed=True, first_label=1
    ),
}


def _note(name: str, found: tuple[int, int], sizes: tuple[int, int]) -> str:
    if found == sizes:
        return ""
    return f"a part: {found[0]:,} + {found[1]:,} of {name}'s {sizes[0]:,} + {sizes[1]:,} images"


def _load(name: str, data_dir) -> Dataset:
    about = _SETS[name]
    arrays = read_arrays(name, about.builder, about.url, storage.resolve(data_dir), read_split)

    def images(split):
        x, y = arrays[f"x_{split}"], arrays[f"y_{split}"] - np.int32(about.first_label)
        return Images(np.ascontiguousarray(x.transpose(0, 2, 1, 3)) if about.transposed else x, y)

    train, test = images("train"), images("test")
    named = isinstance(about.class_names, tuple)
    num_classes = len(about.class_names) if named else about.class_names
    note = _note(name, (len(train), len(test)), about.sizes)
    return Dataset(name, train, test, num_classes, *constants(name, train.x), about.class_names if named else None, note)


def load_mnist(*, data_dir=None) -> Dataset:
    """Returns MNIST, 28x28x1; `data_dir` as in `storage.resolve`. Raises UserError if it cannot be had."""
    return _load("mnist", data_dir)


def load_fashion_mnist(*, data_dir=None) -> Dataset:
    """Returns Fashion-MNIST, 28x28x1; see `load_mnist`."""
    return _load("fashion_mnist", data_dir)


def load_cifar10(*, data_dir=None) -> Dataset:
    """Returns CIFAR-10, 32x32x3; see `load_mnist`."""
    return _load("cifar10", data_dir)


def load_cifar100(*, data_dir=None) -> Dataset:
    """Returns CIFAR-100 with its 100 fine labels, 32x32x3; see `load_mnist`."""
    return _load("cifar100", data_dir)


def load_svhn_cropped(*, data_dir=None) -> Dataset:
    """Returns SVHN's cropped digits without its "extra" part, 32x32x3; see `load_mnist`."""
    return _load("svhn_cropped", data_dir)


def load_emnist_balanced(*, data_dir=None) -> Dataset:
    """Returns EMNIST balanced, 28x28x1, upright (TFDS gives it transposed); see `load_mnist`."""
    return _load("emnist_balanced", data_dir)


def load_emnist_letters(*, data_dir=None) -> Dataset:
    """Returns EMNIST letters, 28x28x1, upright, labels 0 to 25 (TFDS has 1 to 26); see `load_mnist`."""
    return _load("emnist_letters", data_dir)
