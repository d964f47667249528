"""Tables and texts that are installed: what the loaders return, and who holds what."""

import numpy as np
import pytest

from tffcl.errors import UserError
from tffcl.lab.datasets import preparation
from tffcl.lab.datasets.federated import load_federated
from tffcl.lab.datasets.images import Transform
from tffcl.lab.datasets.loaders import scikit_learn, texts

DEVICES = {"name": "devices", "clients": 12, "devices": 3, "shift": 1.0}


@pytest.fixture(scope="module")
def clinics():
    return load_federated({"name": "breast_cancer"}, DEVICES, seed=0)


def same(one, other):
    return np.array_equal(one.x, other.x) and np.array_equal(one.y, other.y)


@pytest.mark.parametrize(
    "load, sizes, features",
    [(scikit_learn.load_breast_cancer, (398, 171), 30), (scikit_learn.load_diabetes, (309, 133), 10)],
)
def test_tables_are_standardised_by_their_training_rows_and_always_the_same(load, sizes, features):
    found, again = load(), load()
    assert (len(found.train), len(found.test)) == sizes and found.train.x.shape[1:] == (features,)
    np.testing.assert_allclose(found.train.x.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(found.train.x.std(axis=0), 1, atol=1e-5)
    assert same(found.train, again.train) and same(found.test, again.test)
    rows = np.concatenate([found.train.x, found.test.x])
    assert len(np.unique(rows, axis=0)) == sum(sizes), "no row is in both parts"


def test_classes_and_numbers_of_tables():
    cancer, diabetes = scikit_learn.load_breast_cancer(), scikit_learn.load_diabetes()
    assert cancer.class_names == ("benign", "malignant") and cancer.num_classes == 2
    shares = [each.y.mean() for each in (cancer.train, cancer.test)]
    np.testing.assert_allclose(shares, 212 / 569, atol=0.005)
    assert diabetes.num_classes is None and diabetes.train.y.dtype == np.float32
    assert abs(diabetes.train.y.mean()) < 1e-5 and diabetes.train.y.std() == pytest.approx(1, abs=1e-5)


def test_devices_measure_in_their_own_way_and_nobody_shares_a_row(clinics):
    plain = scikit_learn.load_breast_cancer()
    assert clinics.num_clients == 12 and clinics.true_groups.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    for pool, indices, whole in (
        (clinics.train, clinics.train_indices, plain.train),
        (clinics.test, clinics.test_indices, plain.test),
    ):
        held = np.concatenate(indices)
        assert len(np.unique(held)) == len(held) == len(whole)
        own = pool.take(np.concatenate(indices[:4])).x
        assert len(np.unique(np.concatenate([own, whole.x]), axis=0)) == len(whole), "the first device measures right"
    of_client = [len(index) for index in clinics.test_indices]
    assert min(of_client) >= 14 and max(of_client) <= 15
    malignant = [clinics.test.y[index].mean() for index in clinics.test_indices]
    assert 0.25 < min(malignant) <= max(malignant) < 0.5


def test_a_device_has_one_gain_and_one_offset_a_feature(clinics):
    transform = clinics.transforms[-1]
    gains, offsets = np.array(transform.gains), np.array(transform.offsets)
    assert clinics.transforms[0] == Transform() and clinics.transforms[4] != transform == clinics.transforms[8]
    assert (
        np.exp(-1) < gains.min() < 0.6 < 1.6 < gains.max() < np.exp(1) and -1.01 < offsets.min() < offsets.max() < 1.01
    )
    for split in ("train", "test"):
        pool, indices = getattr(clinics, split), getattr(clinics, f"{split}_indices")
        measured = pool.take(np.concatenate(indices[8:])).x
        plain = getattr(scikit_learn.load_breast_cancer(), split).x
        back = (measured - offsets) / gains
        near = np.abs(back[:, np.newaxis] - plain[np.newaxis]).max(axis=-1).min(axis=1)
        assert near.max() < 1e-4, "undone, these are rows of the table"
    assert "examples measured by a device of their own" in transform.in_words()


CANCER, DIABETES, TEXTS = ({"name": name} for name in ("breast_cancer", "diabetes", "texts"))


@pytest.mark.parametrize(
    "dataset, partition, message",
    [
        ({"name": "digits"}, DEVICES, r"devices needs numbers that are measured, .* uint8 of shape \[1347, 8, 8, 1\]"),
        (CANCER, {**DEVICES, "clients": 10}, "clients is 10; it must be a multiple of 3, the number of devices"),
        (CANCER, {"name": "rotated", "clients": 4}, "are no images, which could be turned"),
        (DIABETES, {"name": "shifted", "clients": 4}, "shifted needs one class for each example; diabetes has numbers"),
        (DIABETES, {"name": "label_skew", "clients": 4, "classes_per_client": 1}, "label_skew needs one class"),
        (DIABETES, {"name": "dirichlet", "clients": 4, "alpha": 0.1}, "dirichlet needs one class"),
        (TEXTS, {"name": "shift_labels", "clients": 4, "level": 3}, "has 20 labels an example"),
        (DIABETES, {"name": "iid", "clients": 4, "test": "classes"}, "test = 'classes' needs one class"),
        ({"names": ["diabetes", "digits"]}, {"name": "hybrid", "clients": 4}, "needs one class .*; diabetes has"),
        ({"names": ["breast_cancer", "digits"]}, {"name": "hybrid", "clients": 4}, "the examples of breast_cancer"),
        ({**TEXTS, "documents": 100}, {"name": "by_owner"}, r"documents is 100; \d+ of kind prose with 8000"),
        ({**TEXTS, "characters": 80}, {"name": "by_owner"}, "for a test sequence of 20 it must be 84 or more"),
        ({**TEXTS, "kinds": []}, {"name": "by_owner"}, "must be a list of one or more of prose, python"),
        ({**TEXTS, "kinds": ["c++", "c++"]}, {"name": "by_owner"}, r"kinds names c\+\+ twice; give each once"),
    ],
)
def test_what_does_not_go_together_is_told(dataset, partition, message):
    with pytest.raises(UserError, match=message):
        load_federated(dataset, partition, seed=0)


def test_numbers_are_drawn_for_a_subset_the_server_and_validation():
    asked = {"name": "diabetes", "subset": 200, "test_subset": 100, "server_examples": 20, "validation": 0.2}
    found, again = (load_federated(asked, DEVICES, seed=3) for _ in range(2))
    held = np.concatenate([*found.train_indices, *found.validation_indices])
    assert len(np.unique(held)) == len(held) == 180 and len(found.server) == 20 and len(found.test) == 100
    assert found.label_counts() is None and same(found.train, again.train)
    with pytest.raises(UserError, match="validation is 0.001, which is no example of any client; give a larger share"):
        load_federated({**asked, "validation": 0.001}, DEVICES, seed=3)


def test_an_example_that_a_client_holds_several_times_is_not_trained_on_and_validated_with():
    """As of a partition of one's own that repeats what there is little of."""
    held = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 3]), np.array([5, 5, 5])
    train, validation = preparation.hold_out_validation(held, seed=0, validation=0.3)
    assert not set(train[0]) & set(validation[0]) and len(train[0]) + len(validation[0]) == 10 > len(train[0])
    assert train[1].tolist() == [5, 5, 5] and not len(validation[1])


def test_labels_of_a_text_are_its_characters_one_later():
    found = texts.load_texts(documents=2, characters=2000)
    assert found.owner_groups.tolist() == [0, 0, 1, 1, 2, 2] and found.num_classes == len(found.class_names) == 97
    assert found.train.x.shape == found.train.y.shape == (6 * 74, 20) and found.test.x.shape == (6 * 24, 20)
    np.testing.assert_array_equal(found.train.x[:, 1:], found.train.y[:, :-1])
    for owner, (kind, name) in enumerate(each.split(": ") for each in found.owner_names):
        text = dict(texts._READERS[kind]())[name][:2000]
        own = [each.x[each.owner == owner].ravel() for each in (found.train, found.test)]
        np.testing.assert_array_equal(own[0], texts.encode(text)[: len(own[0])])
        np.testing.assert_array_equal(own[1], texts.encode(text)[1500 : 1500 + len(own[1])])
    assert "licen" not in dict(texts._headers()).popitem()[1][:200].lower()
    assert same(found.train, texts.load_texts(documents=2, characters=2000).train)


def test_documents_are_natural_clients_that_the_seed_draws():
    parts = [
        load_federated({"name": "texts", "documents": 3}, {"name": "by_owner", "clients": 6}, seed=seed)
        for seed in (0, 1)
    ]
    assert parts[0].client_names != parts[1].client_names
    groups = [("prose", "python", "c++").index(name.split(":")[0]) for name in parts[0].client_names]
    assert parts[0].true_groups.tolist() == groups
    assert parts[0].label_counts().sum() == 6 * 299 * 20


def test_a_character_that_is_not_on_the_keyboard_is_one_class_more():
    assert texts.encode("a\n~é\t").tolist() == [texts.CHARACTERS.index("a"), 0, 95, 96, 96]


def test_texts_that_are_not_installed_are_told(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pydoc_data.topics", None)
    with pytest.raises(UserError, match="this Python has no pydoc_data"):
        texts.load_texts()
