"""Data sets for these tests: labels without pictures, and the real ones where they are laid out."""

import dataclasses
import functools
import os
import pathlib

import numpy as np
import pytest

from tffcl.lab.datasets.core import Dataset
from tffcl.lab.datasets.federated import load_dataset
from tffcl.lab.datasets.images import Images

# What shows that a set is laid out, so that a test never starts a download.
_MARKS = {
    "mnist": "mnist/*/dataset_info.json",
    "fashion_mnist": "fashion_mnist/*/dataset_info.json",
    "cifar10": "cifar10/*/dataset_info.json",
    "cifar100": "cifar100/*/dataset_info.json",
    "svhn_cropped": "svhn_cropped/*/dataset_info.json",
    "emnist_letters": "emnist/letters/*/dataset_info.json",
    "emnist_balanced": "emnist/balanced/*/dataset_info.json",
    "celeba": "celeb_a/*/dataset_info.json",
    "femnist": "emnist_all.sqlite",
    "usps": "usps.npz",
}


def need(*names: str):
    """Skips the test if one of the sets is not laid out."""
    directory = os.environ.get("TFFCL_DATA_DIR")
    if not directory:
        pytest.skip("TFFCL_DATA_DIR is not set: no real data")
    for name in names:
        if not any(pathlib.Path(directory).expanduser().glob(_MARKS[name])):
            pytest.skip(f"{name} is not in TFFCL_DATA_DIR")


@functools.cache
def _load(name: str, options: tuple) -> Dataset:
    return load_dataset({"name": name, **dict(options)}, seed=0)


def real(name: str, **options) -> Dataset:
    """Loads a real data set, once a session; skips the test if it is not laid out."""
    need(name)
    return _load(name, tuple(options.items()))


def blank(y, shape=(1, 1, 1)) -> Images:
    """Returns black images with labels."""
    y = np.asarray(y, np.int32)
    return Images(np.zeros((len(y), *shape), np.uint8), y)


def labelled(train, test=None, num_classes=None, shape=(1, 1, 1), **more) -> Dataset:
    """Returns a data set of black images; its test labels are the training ones if not given.

    Columns of `Images` are given as `train_owner` and the like, the rest as of `Dataset`.
    """
    test = train if test is None else test
    classes = num_classes or int(max(np.max(train), np.max(test, initial=0))) + 1
    columns = {
        split: {key.split("_")[1]: more.pop(key) for key in list(more) if key.startswith(split)}
        for split in ("train", "test")
    }
    splits = (dataclasses.replace(blank(y, shape), **columns[split]) for split, y in (("train", train), ("test", test)))
    return Dataset("toy", *splits, classes, (0.0,), (1.0,), **more)


def numbered(n: int, num_classes: int = 10) -> Dataset:
    """Returns n training and n test images that all differ, with labels that go round."""
    x = np.zeros((2 * n, 4, 4, 1), np.uint8)
    x[:, 0, 0, 0], x[:, 0, 1, 0], x[:, 0, 2, 0] = 255, np.arange(2 * n) % 256, np.arange(2 * n) // 256
    y = (np.arange(n) % num_classes).astype(np.int32)
    return Dataset("toy", Images(x[:n], y), Images(x[n:], y), num_classes, (0.0,), (1.0,))


def balanced(n: int, num_classes: int = 10) -> np.ndarray:
    """Returns n labels that go round through the classes."""
    return np.arange(n) % num_classes
