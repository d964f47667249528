"""Medical tables that come with scikit-learn: a diagnosis to classify, and the course of a disease to predict."""

import numpy as np

from tffcl.lab.datasets.core import Dataset
from tffcl.lab.datasets.images import Images

_TEST_SIZE = 0.3
_NOTE = "features are standardised by means and deviations of all training examples"


def load_breast_cancer() -> Dataset:
    """Returns the Wisconsin diagnostic breast cancer table (Street et al. 1993): 30 numbers of a tumour's cell nuclei,
    398 examples to train and 171 to test, stratified; the split is always the same.

    Class 1 is malignant, which 37 % are, so that precision, recall and F1 are those of finding cancer.
    """
    from sklearn import datasets

    x, malignant = datasets.load_breast_cancer(return_X_y=True)
    y = (1 - malignant).astype(np.int32)  # scikit-learn calls benign tumours 1
    train, test = _split(x, y, stratify=y)
    return Dataset("breast_cancer", train, test, 2, 0.0, 1.0, ("benign", "malignant"), _NOTE)


def load_diabetes() -> Dataset:
    """Returns the diabetes table (Efron et al. 2004): 10 numbers of a patient, 309 examples to train and 133 to test,
    and how far the disease has gone a year later; the split is always the same.

    The labels are standardised, too: their unit is one deviation over the training examples, 79 of the original.
    """
    from sklearn import datasets

    x, progression = datasets.load_diabetes(return_X_y=True, scaled=False)
    train, test = _split(x, progression)
    mean, std = train.y.mean(), train.y.std()
    train, test = (Images(each.x, (each.y - mean) / std) for each in (train, test))
    return Dataset("diabetes", train, test, None, 0.0, 1.0, note=f"{_NOTE}, labels too: their unit is {std:.0f}")


def _split(x: np.ndarray, y: np.ndarray, stratify=None) -> tuple[Images, Images]:
    from sklearn.model_selection import train_test_split

    parts = train_test_split(x, y, test_size=_TEST_SIZE, random_state=0, stratify=stratify)
    mean, std = parts[0].mean(axis=0), parts[0].std(axis=0)
    numbers = [((each - mean) / std).astype(np.float32) for each in parts[:2]]
    labels = [each if each.dtype == np.int32 else each.astype(np.float32) for each in parts[2:]]
    return Images(numbers[0], labels[0]), Images(numbers[1], labels[1])
