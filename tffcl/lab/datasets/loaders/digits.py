"""The embedded default: scikit-learn's copy of the UCI optical digits. Needs no network, no directory."""

import numpy as np

from tffcl.lab.datasets.core import Dataset, Images
from tffcl.lab.datasets.normalization import constants

_TEST_SIZE = 0.25


def load_digits(*, data_dir=None) -> Dataset:
    """Returns 8x8x1 digits, 1,347 to train and 450 to test, stratified; the split is always the same.

    The values 0 to 16 of the original are scaled to 0 to 255.

    Args:
      data_dir: Not used; all loaders have it.
    """
    del data_dir
    from sklearn import datasets, model_selection

    bunch = datasets.load_digits()
    x = np.round(bunch.images * (255 / 16)).astype(np.uint8)[..., None]
    y = bunch.target.astype(np.int32)
    x_train, x_test, y_train, y_test = model_selection.train_test_split(x, y, test_size=_TEST_SIZE, random_state=0, stratify=y)
    mean, std = constants("digits", x_train)
    names = tuple(str(digit) for digit in range(10))
    return Dataset("digits", Images(x_train, y_train), Images(x_test, y_test), 10, mean, std, names)
