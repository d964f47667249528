"""Loads data sets through scikit-learn: its digits, USPS from OpenML (Hull 1994), and two medical tables.

One table has a diagnosis to classify, the other the course of a disease to predict.
"""

import contextlib
import pathlib

import numpy as np

from tffcl.errors import UserError
from tffcl.lab.datasets import storage
from tffcl.lab.datasets.core import Dataset
from tffcl.lab.datasets.images import Images
from tffcl.lab.datasets.loaders.own import images_of, read_npz
from tffcl.lab.datasets.preparation import constants

_TEST_SIZE = 0.25


def load_digits() -> Dataset:
    """Returns 8x8x1 digits, 1,347 for training and 450 for tests, stratified; the split is always the same.

    The original values 0 to 16 are scaled to 0 to 255.
    """
    from sklearn import datasets, model_selection

    bunch = datasets.load_digits()
    x = np.round(bunch.images * (255 / 16)).astype(np.uint8)[..., None]
    y = bunch.target.astype(np.int32)
    x_train, x_test, y_train, y_test = model_selection.train_test_split(
        x, y, test_size=_TEST_SIZE, random_state=0, stratify=y
    )
    mean, std = constants("digits", x_train)
    names = tuple(str(digit) for digit in range(10))
    return Dataset("digits", Images(x_train, y_train), Images(x_test, y_test), 10, mean, std, names)


_TRAIN, _TEST = 7291, 2007
_OPENML = "https://www.openml.org"
_OPENML_ID = 41082  # "USPS": training images first, then test images; pixels -1 to 1, labels 1 to 10


def load_usps(*, data_dir=None) -> Dataset:
    """Returns USPS, 16x16x1 with bright ink, 7,291 images for training and 2,007 for tests.

    Args:
      data_dir: As in `storage.resolve`; it has the data set as `usps.npz` with x_train, y_train, x_test, y_test. If
        there is no such file, OpenML's copy is downloaded and kept there.

    Raises:
      UserError: If the data set is missing and cannot be downloaded, or is damaged.
    """
    directory = storage.resolve(data_dir)
    path = directory / "usps.npz"
    arrays = read_npz(path) if path.exists() else _fetch(directory, path)
    train, test = images_of(arrays, str(path))
    found = len(train), len(test)
    note = "" if found == (_TRAIN, _TEST) else f"not the usual split: {found[0]:,} + {found[1]:,} images"
    return Dataset("usps", train, test, 10, *constants("usps", train.x), tuple("0123456789"), note)


def from_openml(pixels: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """Converts OpenML's table.

    Args:
      pixels: float [9298, 256], -1 (background) to 1 (ink).
      labels: [9298], "1" for digit 0 to "10" for digit 9.

    Returns:
      x_train, y_train, x_test, y_test as `load_npz` describes them.

    Raises:
      UserError: If the table is not the expected one.
    """
    labels = np.asarray(labels).astype(float).astype(np.int64) - 1
    pixels = np.asarray(pixels, float)
    as_it_was = pixels.shape == (_TRAIN + _TEST, 256) and labels.min() == 0 and labels.max() == 9
    if not (as_it_was and abs(pixels).max() <= 1.001):  # NaN fails this, too
        raise UserError(f"OpenML's data set {_OPENML_ID} is not USPS as it was; put usps.npz in the data directory")
    x = np.round(np.clip((pixels + 1) / 2, 0, 1) * 255).astype(np.uint8).reshape(-1, 16, 16)
    return {"x_train": x[:_TRAIN], "y_train": labels[:_TRAIN], "x_test": x[_TRAIN:], "y_test": labels[_TRAIN:]}


def _fetch(directory: pathlib.Path, path: pathlib.Path) -> dict[str, np.ndarray]:
    if not storage.reachable(_OPENML):
        raise storage.missing("usps", directory, f"no answer from {_OPENML}")
    from sklearn.datasets import fetch_openml

    try:
        table = fetch_openml(data_id=_OPENML_ID, as_frame=False, parser="liac-arff", cache=False, n_retries=1)
    except Exception as error:  # OpenML and the network fail in many ways; the user gets the reason
        raise storage.missing("usps", directory, storage.first_line(error)) from error
    arrays = from_openml(table.data, table.target)
    with contextlib.suppress(OSError):
        storage.write_npz(path, arrays)
    return arrays


_TEST_SHARE = 0.3
_NOTE = "features are standardised by means and deviations of all training examples"


def load_breast_cancer() -> Dataset:
    """Returns the Wisconsin diagnostic breast cancer table (Street et al. 1993): 30 numbers of a tumour's cell nuclei,
    398 examples for training and 171 for tests, stratified; the split is always the same.

    Class 1 is malignant (37 % of the examples), so precision, recall and F1 measure how well cancer is found.
    """
    from sklearn import datasets

    x, malignant = datasets.load_breast_cancer(return_X_y=True)
    y = (1 - malignant).astype(np.int32)  # scikit-learn calls benign tumours 1
    train, test = _split(x, y, stratify=y)
    return Dataset("breast_cancer", train, test, 2, 0.0, 1.0, ("benign", "malignant"), _NOTE)


def load_diabetes() -> Dataset:
    """Returns the diabetes table (Efron et al. 2004): 10 numbers of a patient, and the progression of the disease after
    a year; 309 examples for training and 133 for tests. The split is always the same.

    The labels are standardised, too: their unit is one deviation over the training examples, 79 original units.
    """
    from sklearn import datasets

    x, progression = datasets.load_diabetes(return_X_y=True, scaled=False)
    train, test = _split(x, progression)
    mean, std = train.y.mean(), train.y.std()
    train, test = (Images(each.x, (each.y - mean) / std) for each in (train, test))
    return Dataset("diabetes", train, test, None, 0.0, 1.0, note=f"{_NOTE}, labels too: their unit is {std:.0f}")


def _split(x: np.ndarray, y: np.ndarray, stratify=None) -> tuple[Images, Images]:
    from sklearn.model_selection import train_test_split

    parts = train_test_split(x, y, test_size=_TEST_SHARE, random_state=0, stratify=stratify)
    mean, std = parts[0].mean(axis=0), parts[0].std(axis=0)
    numbers = [((each - mean) / std).astype(np.float32) for each in parts[:2]]
    labels = [each if each.dtype == np.int32 else each.astype(np.float32) for each in parts[2:]]
    return Images(numbers[0], labels[0]), Images(numbers[1], labels[1])
