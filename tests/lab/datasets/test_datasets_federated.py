"""The way in: `load_federated` on the embedded digits, its options and its errors."""

import inspect
import subprocess
import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from tests.lab.datasets.helpers import real
from tffcl.errors import UserError
from tffcl.lab.datasets import catalog
from tffcl.lab.datasets.federated import load_dataset, load_federated
from tffcl.lab.datasets.preparation import PAPER_CONSTANTS
from tffcl.validation import keys_of

DIGITS = {"name": "digits"}


def test_the_catalog_imports_nothing_heavy():
    code = (
        "import sys; from tffcl.lab.datasets import catalog; assert catalog.DATASETS and catalog.PARTITIONS;"
        "heavy = 'tensorflow', 'sklearn', 'tensorflow_datasets', 'numpy';"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_entry_is_a_documented_function_with_one_line():
    for table in (catalog.DATASETS, catalog.PARTITIONS):
        for name, entry in table.items():
            function = entry.builder()
            assert inspect.getdoc(function), name
            assert len(entry.summary) < 110 and "\n" not in entry.summary, name
            if table is catalog.PARTITIONS:
                assert "seed" in keys_of(function), name
            else:
                downloaded = name == "usps" or function.__module__.endswith((".tfds", ".femnist"))
                assert ("data_dir" in keys_of(function)) == downloaded, name


@pytest.mark.parametrize("reuse", [True, False])
def test_digits_rotated_on_40_clients(reuse):
    data = load_federated(DIGITS, {"name": "rotated", "clients": 40, "reuse": reuse}, seed=0)
    assert data.num_clients == 40 and data.name == "digits/rotated" and data.num_classes == 10
    assert np.bincount(data.true_groups).tolist() == [10] * 4
    times = 4 if reuse else 1
    assert len(data.train) == 1347 * times and len(data.test) == 450 * times
    assert data.label_counts().sum() == 1347 * times
    assert min(len(index) for index in data.test_indices) >= (40 if reuse else 9)
    held = np.concatenate(data.test_indices)
    assert len(held) == len(set(held)) == len(data.test)


def test_rotated_clients_have_turned_pictures():
    plain = load_dataset(DIGITS, seed=0)
    data = load_federated(DIGITS, {"name": "rotated", "clients": 4, "test": "all"}, seed=0)
    for group, index in enumerate(data.test_indices):
        np.testing.assert_array_equal(data.test.x[index], np.rot90(plain.test.x, group, axes=(1, 2)))
        np.testing.assert_array_equal(data.test.y[index], plain.test.y)


def test_shifted_clients_have_shifted_labels():
    plain = load_dataset(DIGITS, seed=0)
    data = load_federated(DIGITS, {"name": "shifted", "clients": 4, "test": "all"}, seed=0)
    for shift, index in zip((0, 3, 6, 9), data.test_indices, strict=True):
        np.testing.assert_array_equal(data.test.y[index], (plain.test.y + shift) % 10)
        np.testing.assert_array_equal(data.test.x[index], plain.test.x)


def test_digits_are_scikit_learns():
    data = load_dataset(DIGITS, seed=0)
    assert data.train.x.shape == (1347, 8, 8, 1) and data.test.x.shape == (450, 8, 8, 1)
    assert data.train.x.max() == 255
    theirs = {tuple(np.round(image.ravel() / 16 * 255).astype(int)) for image in load_digits().images}
    assert {tuple(image.ravel()) for image in np.concatenate([data.train.x, data.test.x])} == theirs
    _, last = train_test_split(np.arange(1797), test_size=0.25, random_state=0, stratify=load_digits().target)
    np.testing.assert_array_equal(data.test.x[..., 0], np.round(load_digits().images[last] / 16 * 255))
    share = np.bincount(data.test.y) / np.bincount(np.concatenate([data.train.y, data.test.y]))
    assert np.abs(share - 0.25).max() < 0.01  # stratified
    np.testing.assert_allclose(data.mean, data.train.x.mean() / 255)
    np.testing.assert_allclose(data.std, data.train.x.std() / 255)


def test_normalization_by_name():
    half = load_dataset({**DIGITS, "normalization": "half"}, seed=0)
    assert (half.mean, half.std) == ((0.5,), (0.5,))
    unit = load_dataset({**DIGITS, "normalization": "unit"}, seed=0)
    assert (unit.mean, unit.std) == ((0.0,), (1.0,))
    assert PAPER_CONSTANTS["fashion_mnist"] == PAPER_CONSTANTS["mnist"] == ((0.1307,), (0.3081,))
    with pytest.raises(UserError, match="unknown dataset.normalization 'hlaf'; did you mean 'half'"):
        load_dataset({**DIGITS, "normalization": "hlaf"}, seed=0)


def test_subset_is_stratified_and_seeded():
    data = load_dataset({**DIGITS, "subset": 500, "test_subset": 95}, seed=1)
    assert (len(data.train), len(data.test)) == (500, 95)
    whole = load_dataset(DIGITS, seed=1)
    fair = np.bincount(whole.train.y) * (500 / 1347)
    assert np.abs(np.bincount(data.train.y) - fair).max() < 1
    more = np.bincount(data.train.y) > fair  # by largest remainder
    assert (fair % 1)[more].min() >= (fair % 1)[~more].max()
    pictures = {image.tobytes() for image in whole.train.x}
    assert all(image.tobytes() in pictures for image in data.train.x)
    again = load_dataset({**DIGITS, "subset": 500}, seed=1)
    np.testing.assert_array_equal(again.train.x, data.train.x)
    other = load_dataset({**DIGITS, "subset": 500}, seed=2)
    assert not np.array_equal(other.train.x, data.train.x)
    with pytest.raises(UserError, match="subset is 1348; digits has only 1347"):
        load_dataset({**DIGITS, "subset": 1348}, seed=0)


def test_the_seed_decides():
    def parts(seed):
        return load_federated(DIGITS, {"name": "iid", "clients": 5}, seed=seed).train_indices

    assert all(np.array_equal(a, b) for a, b in zip(parts(1), parts(1), strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(parts(1), parts(2), strict=True))


IID = {"name": "iid", "clients": 5}


@pytest.mark.parametrize(
    ("dataset", "partition", "message"),
    [
        ({"name": "digit"}, IID, "unknown dataset 'digit'; did you mean 'digits'"),
        ({"name": ["digits"]}, IID, r"unknown dataset \['digits'\]"),
        ({}, IID, "dataset has no 'name'"),
        ("digits", IID, "dataset is 'digits'; it must have a name and options"),
        ({"name": "digits", "subst": 3}, IID, "unknown option of dataset digits 'subst'; did you mean 'subset'"),
        ({"name": "digits", "data_dir": "x"}, IID, "unknown option of dataset digits 'data_dir'"),
        (DIGITS, {"name": "idd"}, "unknown partition 'idd'; did you mean 'iid'"),
        (DIGITS, {"name": "iid"}, "partition iid needs 'clients'"),
        (DIGITS, {**IID, "seed": 1}, "unknown option of partition iid 'seed'"),
        (DIGITS, {**IID, "client": 1}, "unknown option of partition iid 'client'; did you mean 'clients'"),
        (DIGITS, {"name": "by_owner"}, "by_owner needs a data set with owners"),
        ({"names": ["digits", "mnist"]}, IID, "iid is of one data set"),
        (DIGITS, {"name": "hybrid", "clients": 4}, "hybrid is of several data sets"),
        ({"names": ["digits", "digits"]}, {"name": "mix4"}, "mix4 is of several data sets"),
        ({"names": "digits"}, {"name": "mix4"}, "mix4 is of several data sets"),
    ],
)
def test_mistakes_are_named(dataset, partition, message):
    with pytest.raises(UserError, match=message) as refused:
        load_federated(dataset, partition, seed=0)
    assert "\n" not in str(refused.value)


def test_a_mistyped_option_is_answered_before_data_is_read(tmp_path):
    with pytest.raises(UserError, match="unknown option of partition iid 'clientss'"):
        load_federated({"name": "mnist"}, {"name": "iid", "clientss": 5}, seed=0, data_dir=str(tmp_path))


def test_a_seed_is_a_whole_number():
    with pytest.raises(UserError, match="seed is -1"):
        load_federated(DIGITS, IID, seed=-1)
    assert load_federated(DIGITS, IID, seed=np.int64(3)).num_clients == 5


@pytest.mark.slow
def test_hybrid_of_the_real_sets():
    clothes = real("fashion_mnist").test.x
    real("mnist")
    names = {"names": ["mnist", "fashion_mnist"], "subset": 2000, "test_subset": 400}
    data = load_federated(names, {"name": "hybrid", "clients": 20, "test": "all"}, seed=0)
    assert data.num_classes == 10 and data.true_groups.tolist() == [0] * 10 + [1] * 10
    assert {len(index) for index in data.train_indices} == {200}
    pictures = {image.tobytes() for image in clothes}
    assert all(image.tobytes() in pictures for image in data.test.x[data.test_indices[19]])
    assert not any(image.tobytes() in pictures for image in data.test.x[data.test_indices[0]])
    assert data.class_names[9] == "9 / ankle boot"


@pytest.mark.slow
def test_mix4_of_the_real_sets():
    for name in ("usps", "cifar10", "svhn_cropped", "fashion_mnist"):
        real(name)
    sets = {"names": ["usps", "cifar10", "svhn_cropped", "fashion_mnist"], "normalization": "half"}
    data = load_federated(sets, {"name": "mix4", "counts": [2, 3, 4, 5], "per_class": 20}, seed=0)
    assert data.train.x.shape == (14 * 200, 32, 32, 3) and data.num_classes == 40
    assert data.mean == (0.5, 0.5, 0.5)
    counts = data.label_counts().reshape(14, 4, 10)
    expected = np.zeros((14, 4, 10), int)
    expected[np.arange(14), data.true_groups] = 20
    np.testing.assert_array_equal(counts, expected)
    digit = data.train.x[data.train_indices[0][0]]
    assert digit[8:24, 8:24].any() and not digit[:8].any() and not digit[:, 24:].any()
    np.testing.assert_array_equal(digit[..., 0], digit[..., 1])
    clothes = data.train.x[data.train_indices[13]]
    assert not clothes[:, :2].any() and not clothes[:, :, 30:].any() and clothes[:, 2:30, 2:30].any()
    assert len(data.test_indices[0]) == 2007 and len(data.test_indices[13]) == 10000
