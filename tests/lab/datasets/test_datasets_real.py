"""The real sets, where they are laid out: shapes, counts, orientation, constants."""

import time

import numpy as np
import pytest

from tests.lab.datasets.helpers import need, real
from tffcl.lab.datasets.federated import load_dataset, load_federated
from tffcl.lab.datasets.images import measured

# name: complete sizes, shape, classes
SETS = {
    "mnist": ((60000, 10000), (28, 28, 1), 10),
    "fashion_mnist": ((60000, 10000), (28, 28, 1), 10),
    "cifar10": ((50000, 10000), (32, 32, 3), 10),
    "cifar100": ((50000, 10000), (32, 32, 3), 100),
    "svhn_cropped": ((73257, 26032), (32, 32, 3), 10),
    "emnist_letters": ((88800, 14800), (28, 28, 1), 26),
    "emnist_balanced": ((112800, 18800), (28, 28, 1), 47),
    "usps": ((7291, 2007), (16, 16, 1), 10),
    "femnist": ((671585, 77483), (28, 28, 1), 62),
}


# By default grey images, images in colour and the one set with owners: each takes seconds to read.
@pytest.mark.parametrize(
    "name",
    [name if name in ("mnist", "cifar100", "femnist") else pytest.param(name, marks=pytest.mark.slow) for name in SETS],
)
def test_shapes_and_counts(name):
    sizes, shape, classes = SETS[name]
    data = real(name)
    assert data.train.x.shape[1:] == data.test.x.shape[1:] == shape
    assert data.train.x.dtype == np.uint8 and data.train.y.dtype == np.int32
    assert data.num_classes == classes and set(data.train.y) == set(data.test.y) == set(range(classes))
    found = len(data.train), len(data.test)
    if data.note:
        assert "a part" in data.note and f"{found[0]:,} + {found[1]:,}" in data.note and found < sizes
    else:
        assert found == sizes
    assert data.class_names is None or len(data.class_names) == classes
    assert data.train.x.max() == 255 and data.train.x.min() == 0


@pytest.mark.parametrize(
    "name", ["mnist", "cifar100", *(pytest.param(each, marks=pytest.mark.slow) for each in ("cifar10", "svhn_cropped"))]
)
def test_the_papers_means_are_these_sets_means(name):
    data = real(name)
    # Parts are near the mean only. Deviations: CIFAR's in the papers' code are means of each image's own.
    tolerance = 0.03 if data.note else 0.001
    mean, std = measured(data.train.x)
    np.testing.assert_allclose(data.mean, mean, atol=tolerance)
    if name in ("mnist", "svhn_cropped") and not data.note:
        np.testing.assert_allclose(data.std, std, atol=tolerance)


@pytest.mark.parametrize(
    ("name", "per_class"),
    [
        ("mnist", None),
        pytest.param("fashion_mnist", 6000, marks=pytest.mark.slow),
        pytest.param("cifar10", 5000, marks=pytest.mark.slow),
    ],
)
def test_classes_are_as_published(name, per_class):
    counts = np.bincount(real(name).train.y)
    published = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]  # MNIST
    assert counts.tolist() == (published if per_class is None else [per_class] * 10)


def ink(images, label):
    """Mean picture of a class, as the shares of its ink [28, 28]."""
    mean = images.x[images.y == label].mean(axis=0)[..., 0]
    return mean / mean.sum()


def width(shares):
    """Standard deviation of the column in which ink is."""
    columns = np.arange(shares.shape[1])
    weights = shares.sum(axis=0) / shares.sum()
    return np.sqrt(weights @ (columns - weights @ columns) ** 2)


def upright(c, v, ell):
    """If a C is open to the right, a V wide at its top and an L heavy at its bottom."""
    return c[:, :14].sum() > 0.55 and width(v[:12]) > 1.2 * width(v[16:]) and ell[14:].sum() > 0.5


@pytest.mark.slow
def test_emnist_letters_are_upright():
    data = real("emnist_letters")
    letters = [ink(data.test, data.class_names.index(letter)) for letter in "CVL"]
    assert upright(*letters)
    assert not upright(*[letter.T for letter in letters])
    assert not upright(*[np.rot90(letter) for letter in letters])


def test_femnist_is_upright_with_bright_ink():
    data = real("femnist")
    letters = [ink(data.train, data.class_names.index(letter)) for letter in "CVL"]
    assert upright(*letters) and not upright(*[letter.T for letter in letters])
    assert data.train.x[:, 0].mean() < 5 < data.train.x[:, 10:18, 10:18].mean()  # the edge is background
    assert 0.02 < data.train.x.mean() / 255 < 0.3


@pytest.mark.slow
def test_usps_and_mnist_show_the_same_digits():
    usps, mnist = real("usps"), real("mnist")
    small = np.stack([ink(mnist.train, digit)[4:24, 4:24] for digit in range(10)])
    other = np.stack([ink(usps.train, digit) for digit in range(10)])
    grid = np.round(np.linspace(0, 15, 20)).astype(int)
    other = other[:, grid][:, :, grid]  # MNIST's digits fill 20x20

    def likeness(a, b):
        return np.corrcoef(a.reshape(10, -1), b.reshape(10, -1))[:10, 10:]

    assert (likeness(small, other).argmax(axis=1) == np.arange(10)).sum() >= 8
    assert np.trace(likeness(small, other)) > 1.5 * np.trace(likeness(small, other.transpose(0, 2, 1)))


def test_femnist_by_writer():
    data = real("femnist")
    writers = 1 + data.train.owner.max()
    split = load_federated({"name": "femnist"}, {"name": "by_owner", "clients": 20, "min_train": 20}, seed=1)
    assert split.num_clients == 20 < writers
    assert split.label_counts().sum(axis=1).min() >= 20
    assert min(len(index) for index in split.test_indices) >= 1
    assert split.true_groups is None and split.num_classes == 62
    first = np.flatnonzero(np.bincount(data.train.owner, minlength=writers) >= 20)
    held = {len(index) for index in split.train_indices}
    assert held <= set(np.bincount(data.train.owner)[first])
    digits = load_dataset({"name": "femnist", "only_digits": True}, seed=0)
    assert digits.num_classes == 10 and digits.train.y.max() == 9
    assert len(digits.train) == (data.train.y < 10).sum()


def test_the_second_reading_is_quick():
    real("mnist")
    start = time.perf_counter()
    split = load_federated({"name": "mnist"}, {"name": "label_skew", "clients": 100, "classes_per_client": 2}, seed=0)
    assert time.perf_counter() - start < 3
    assert split.num_clients == 100 and split.label_counts().sum() == 60000
    assert ((split.label_counts() > 0).sum(axis=1) == 2).all()
    for held, index in zip(split.label_counts(), split.test_indices):
        assert set(split.test.y[index]) == set(np.flatnonzero(held)) and len(index) > 1500


@pytest.mark.slow
def test_flt_scenario_4_on_letters():
    need("emnist_letters")
    # 26 classes: five groups of 5 and one of 1.
    split = load_federated({"name": "emnist_letters"}, {"name": "structured", "clients": 60}, seed=0)
    assert split.true_groups.tolist() == np.repeat(np.arange(6), 10).tolist()
    assert split.label_counts()[50:, :25].sum() == 0 and split.label_counts()[:10, 5:].sum() == 0
