"""Loads the image sets of TFDS: MNIST, Fashion-MNIST, CIFAR, SVHN, EMNIST, CelebA (Liu et al. 2015). TensorFlow is
imported only when a data set is read for the first time."""

import dataclasses
import functools
import os
import pathlib
import string
from collections.abc import Callable, Mapping
from typing import Annotated

import msgspec
import numpy as np

from tffcl.errors import UserError, unknown
from tffcl.files import entries
from tffcl.lab.datasets import storage
from tffcl.lab.datasets.core import Dataset
from tffcl.lab.datasets.images import Images, measured
from tffcl.lab.datasets.preparation import constants
from tffcl.validation import validated

_BATCH = 4096
# TFDS looks for a prepared copy here before it asks the source.
_MIRROR = "https://storage.googleapis.com"


def prepared(directory: pathlib.Path, builder: str) -> pathlib.Path | None:
    """Returns the directory of the newest version of a TFDS data set, e.g. "emnist/letters"; None if there is none."""

    def version(path):
        return [int(part) if part.isdigit() else -1 for part in path.name.split(".")]

    there = [each for each in entries(directory / builder) if each.match("[0-9]*.*.*")]
    return max((each for each in there if (each / "dataset_info.json").exists()), key=version, default=None)


def read_arrays(
    name: str,
    builder: str,
    url: str,
    directory: pathlib.Path,
    decode: Callable[[object, str], Mapping[str, np.ndarray]],
    *,
    key: str | None = None,
) -> Mapping[str, np.ndarray]:
    """Returns the arrays of a TFDS data set, which is downloaded if it is not there.

    Args:
      name: The data set's name in the catalog, for messages.
      builder: The data set's name in TFDS, e.g. "emnist/letters".
      url: The server from which TFDS downloads the data set, to check whether it can be reached.
      directory: The directory of data sets.
      decode: Maps a TFDS builder and a split to arrays, whose names get the split added: "x" -> "x_train".
      key: The name in the cache; default `name`.

    Raises:
      UserError: If the data set is missing and cannot be downloaded, or cannot be read.
    """
    if prepared(directory, builder) is None:
        _download(name, builder, url, directory)
    version = prepared(directory, builder)
    if version is None:
        raise UserError(f"{name} is not in {directory} although TFDS has downloaded it")

    def build():
        try:
            found = _tfds().builder_from_directory(version)
            splits = {split: decode(found, split) for split in ("train", "test")}
        except Exception as error:  # TFDS raises many types of errors; the user gets the reason
            raise UserError(f"{name} in {version} cannot be read ({storage.first_line(error)})") from error
        return {f"{key}_{split}": value for split, arrays in splits.items() for key, value in arrays.items()}

    files = [path for path in version.iterdir() if path.is_file()]
    return storage.cached(directory, key or name, files, build)


def _tfds():
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow_datasets as tfds

    return tfds


def _download(name: str, builder: str, url: str, directory: pathlib.Path):
    if not storage.reachable(url) and not storage.reachable(_MIRROR):
        raise storage.missing(name, directory, f"no answer from {url}")
    try:
        _tfds().builder(builder, data_dir=directory).download_and_prepare()
    except Exception as error:  # as above
        raise storage.missing(name, directory, storage.first_line(error)) from error


def read_split(builder, split: str, convert: Callable | None = None) -> dict[str, np.ndarray]:
    """Reads one split in the order of its files.

    Args:
      builder: A prepared TFDS builder.
      split: "train" or "test".
      convert: Maps one example of TFDS to a dict of tensors; default its image as "x" and its label as "y".

    Returns:
      One array per tensor, with the examples along the first axis.
    """
    import tensorflow as tf
    import tensorflow_datasets as tfds

    convert = convert or (lambda example: {"x": example["image"], "y": tf.cast(example["label"], tf.int32)})
    examples = builder.as_dataset(split=split, read_config=tfds.ReadConfig(try_autocache=False))
    batches = list(examples.map(convert, num_parallel_calls=2).batch(_BATCH).as_numpy_iterator())
    return {key: np.concatenate([batch[key] for batch in batches]) for key in batches[0]}


_DIGITS = tuple(string.digits)


@dataclasses.dataclass(frozen=True)
class _Set:
    """What the loader needs to know about one TFDS data set.

    Attributes:
      builder: The data set's name in TFDS.
      url: The server from which TFDS downloads it.
      sizes: The numbers of training and test images of the complete data set.
      class_names: The name of each label, or the number of labels.
      transposed: Whether TFDS gives images with rows and columns exchanged.
      first_label: The label of the first class.
    """

    builder: str
    url: str
    sizes: tuple[int, int]
    class_names: tuple[str, ...] | int
    transposed: bool = False
    first_label: int = 0


_FASHION = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
# EMNIST balanced merges small letters that look like their capitals (Cohen et al. 2017, section II-C).
_BALANCED = _DIGITS + tuple(string.ascii_uppercase) + tuple("abdefghnqrt")
_NIST = "https://biometrics.nist.gov"

_SETS = {
    "mnist": _Set("mnist", "https://storage.googleapis.com", (60000, 10000), _DIGITS),
    "fashion_mnist": _Set(
        "fashion_mnist", "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com", (60000, 10000), _FASHION
    ),
    "cifar10": _Set("cifar10", "https://www.cs.toronto.edu", (50000, 10000), _CIFAR10),
    "cifar100": _Set("cifar100", "https://www.cs.toronto.edu", (50000, 10000), 100),
    "svhn_cropped": _Set("svhn_cropped", "http://ufldl.stanford.edu", (73257, 26032), _DIGITS),
    "emnist_balanced": _Set("emnist/balanced", _NIST, (112800, 18800), _BALANCED, transposed=True),
    "emnist_letters": _Set(
        "emnist/letters", _NIST, (88800, 14800), tuple(string.ascii_uppercase), transposed=True, first_label=1
    ),
}


def _load(name: str, data_dir) -> Dataset:
    about = _SETS[name]
    arrays = read_arrays(name, about.builder, about.url, storage.resolve(data_dir), read_split)

    def images(split):
        x, y = arrays[f"x_{split}"], arrays[f"y_{split}"] - np.int32(about.first_label)
        return Images(np.ascontiguousarray(x.transpose(0, 2, 1, 3)) if about.transposed else x, y)

    train, test = images("train"), images("test")
    named = isinstance(about.class_names, tuple)
    num_classes = len(about.class_names) if named else about.class_names
    found, all_of_it = (f"{first:,} + {second:,}" for first, second in ((len(train), len(test)), about.sizes))
    note = "" if found == all_of_it else f"a part: {found} of {name}'s {all_of_it} images"
    return Dataset(
        name, train, test, num_classes, *constants(name, train.x), about.class_names if named else None, note
    )


def _loader(name: str, about: str) -> Callable[..., Dataset]:
    def load(*, data_dir=None) -> Dataset:
        return _load(name, data_dir)

    load.__doc__ = f"Returns {about}; `data_dir` as in `storage.resolve`. Raises UserError if it cannot be loaded."
    return load


load_mnist = _loader("mnist", "MNIST, 28x28x1")
load_fashion_mnist = _loader("fashion_mnist", "Fashion-MNIST, 28x28x1")
load_cifar10 = _loader("cifar10", "CIFAR-10, 32x32x3")
load_cifar100 = _loader("cifar100", "CIFAR-100 with its 100 fine labels, 32x32x3")
load_svhn_cropped = _loader("svhn_cropped", 'SVHN\'s cropped digits without its "extra" part, 32x32x3')
load_emnist_balanced = _loader("emnist_balanced", "EMNIST balanced, 28x28x1, upright (TFDS gives it transposed)")
load_emnist_letters = _loader("emnist_letters", "EMNIST letters, 28x28x1, upright, labels 0 to 25 (TFDS has 1 to 26)")


_FACES_URL = "https://drive.google.com"
_FACES = (162770, 19962)
_LEFT_OUT = (218 - 178) // 2  # rows above and below the central square of 218x178 pixels


@validated
def load_celeba(
    *, size: Annotated[int, msgspec.Meta(ge=8, le=178)] = 32, target: str = "Male", data_dir=None
) -> Dataset:
    """Returns CelebA's training and test faces with their 40 attributes, [n, size, size, 3].

    The central square of each picture is averaged down to `size`. The label is one attribute: 0 no, 1 yes. Mean and
    deviation are measured.

    Args:
      size: Height and width, 8 to 178. The complete data set takes 0.6 GB at 32 and grows with the square of `size`.
      target: The attribute that is the label.
      data_dir: As in `storage.resolve`.

    Raises:
      UserError: If there is no such attribute, or the data set is missing and cannot be downloaded.
    """
    directory, read = storage.resolve(data_dir), functools.partial(_read_faces, size=size)
    arrays = read_arrays("celeba", "celeb_a", _FACES_URL, directory, read, key=f"celeba_{size}")
    names = tuple(str(name) for name in arrays["names_train"])
    if target not in names:
        raise unknown("attribute of celeba", target, names)
    column = names.index(target)
    marks = {split: arrays[f"attributes_{split}"] for split in ("train", "test")}
    train, test = (
        Images(arrays[f"x_{split}"], own[:, column].astype(np.int32), attributes=own) for split, own in marks.items()
    )
    found = len(train), len(test)
    note = f"a part: {found[0]:,} + {found[1]:,} of {_FACES[0]:,} + {_FACES[1]:,} images"
    return Dataset(
        "celeba", train, test, 2, *measured(train.x), (f"not {target}", target),
        note="" if found == _FACES else note, attribute_names=names,
    )  # fmt: skip


def _read_faces(builder, split: str, *, size: int) -> dict[str, np.ndarray]:
    import tensorflow as tf

    names = sorted(builder.info.features["attributes"])

    def convert(example):
        square = example["image"][_LEFT_OUT:-_LEFT_OUT]
        small = tf.image.resize(square, [size, size], method="area")
        attributes = tf.stack([example["attributes"][name] for name in names])
        return {"x": tf.cast(tf.round(small), tf.uint8), "attributes": attributes}

    return {**read_split(builder, split, convert), "names": np.array(names)}
