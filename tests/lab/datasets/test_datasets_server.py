"""Images of the server's own: who has them, how balanced they are, and what is refused."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lab.datasets.helpers import labelled, need, numbered, real
from tffcl.errors import UserError
from tffcl.lab.datasets import catalog
from tffcl.lab.datasets.federated import federated, load_dataset, load_federated
from tffcl.lab.datasets.partitions.by_label import iid
from tffcl.lab.datasets.preparation import hold_out_server

RUN = settings(deadline=None, max_examples=25)
SEEDS = st.integers(0, 2**31)
DIGITS = {"name": "digits"}
IID = {"name": "iid", "clients": 5}
LEAK = "the server's 50 images are from the test set that clients are tested on"


def held_out(data, examples, split="train", seed=0):
    return hold_out_server(data, seed=seed, server_examples=examples, server_split=split)


def numbers(images):
    """The numbers that `numbered` wrote into the pixels."""
    return images.x[:, 0, 1, 0] + 256 * images.x[:, 0, 2, 0].astype(int)


def turned(images):
    """All images in all four rotations, as bytes."""
    return {np.rot90(image, turn).tobytes() for image in images.x for turn in range(4)}


def same(a, b):
    return np.array_equal(a.x, b.x) and np.array_equal(a.y, b.y)


@RUN
@given(seed=SEEDS, examples=st.integers(1, 290), clients=st.integers(1, 10))
def test_nobody_holds_a_training_image_of_the_server(seed, examples, clients):
    data = numbered(300)
    rest, server = held_out(data, examples, seed=seed)
    both = federated(rest, iid(rest, seed=seed, clients=clients), "iid", server)
    assert both.server is server and len(server) == examples
    held = np.concatenate([numbers(both.train)[index] for index in both.train_indices])
    # Each image once, with the server or with one client, and with its own label.
    np.testing.assert_array_equal(np.sort(np.concatenate([held, numbers(server)])), np.arange(300))
    np.testing.assert_array_equal(server.y, data.train.y[numbers(server)])
    np.testing.assert_array_equal(rest.train.y, data.train.y[numbers(rest.train)])
    assert same(rest.test, data.test) and rest.note == data.note


@RUN
@given(seed=SEEDS, examples=st.integers(1, 299))
def test_test_images_of_the_server_stay_in_the_test_set(seed, examples):
    data = numbered(300)
    rest, server = held_out(data, examples, "test", seed)
    assert rest.train is data.train and rest.test is data.test
    assert len(set(numbers(server))) == examples
    np.testing.assert_array_equal(server.y, data.test.y[numbers(server) - 300])
    assert not np.shares_memory(server.x, data.test.x)


@RUN
@given(
    seed=SEEDS,
    available=st.lists(st.integers(0, 20), min_size=2, max_size=12).filter(lambda counts: sum(counts) > 1),
    split=st.sampled_from(["train", "test"]),
    choose=st.data(),
)
def test_labels_are_as_equal_as_the_classes_allow(seed, available, split, choose):
    available = np.array(available)
    y = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(available)), available))
    examples = choose.draw(st.integers(1, len(y) - 1))
    _, server = held_out(labelled(y, num_classes=len(available)), examples, split, seed)
    counts = np.bincount(server.y, minlength=len(available))
    assert counts.sum() == examples and (counts <= available).all()
    assert (counts >= np.minimum(available, examples // len(available))).all()
    # Who has fewer than another, by more than the remainder's one, has no more.
    assert ((counts == available) | (counts >= counts.max() - 1)).all()


def test_the_seed_decides_who_gets_the_remainder():
    extra = [tuple(np.bincount(held_out(numbered(100), 23, seed=seed)[1].y)) for seed in range(20)]
    assert all(sorted(counts) == [2] * 7 + [3] * 3 for counts in extra)
    assert len(set(extra)) > 10


@RUN
@given(seed=st.integers(0, 2**30), split=st.sampled_from(["train", "test"]))
def test_the_seed_decides(seed, split):
    server, again, other = (held_out(numbered(300), 50, split, each)[1] for each in (seed, seed, seed + 1))
    assert same(server, again)
    assert set(numbers(server)) != set(numbers(other))
    assert (np.diff(server.y) < 0).any()  # shuffled, not class by class


def test_owners_sources_and_attributes_stay_with_their_images():
    order = np.arange(100, dtype=np.int32)
    data = numbered(100)
    train, test = (dataclasses.replace(each, owner=order, source=order) for each in (data.train, data.test))
    train = dataclasses.replace(train, attributes=order[:, None] > 50)
    rest, _ = held_out(dataclasses.replace(data, train=train, test=test), 30)
    np.testing.assert_array_equal(rest.train.owner, numbers(rest.train))
    np.testing.assert_array_equal(rest.train.source, numbers(rest.train))
    np.testing.assert_array_equal(rest.train.attributes[:, 0], numbers(rest.train) > 50)
    np.testing.assert_array_equal(rest.test.owner, order)


def test_without_examples_nothing_changes():
    data = numbered(20)
    assert held_out(data, 0) == (data, None)
    assert load_federated(DIGITS, IID, seed=0).server is None
    assert load_federated({**DIGITS, "server_examples": 0, "server_split": "test"}, IID, seed=0).note == ""


def test_the_leak_is_appended_to_the_note():
    noted = dataclasses.replace(numbered(100), note="a part: 100 + 100")
    assert held_out(noted, 50, "test")[0].note == f"a part: 100 + 100; {LEAK}"
    assert held_out(noted, 50, "train")[0].note == "a part: 100 + 100"


@pytest.mark.parametrize(
    "partition",
    [
        IID,
        {"name": "label_skew", "clients": 10, "classes_per_client": 2},
        {"name": "rotated", "clients": 8, "reuse": True},
    ],
)
def test_digits_from_the_training_images(partition):
    plain = load_dataset(DIGITS, seed=3)
    data = load_federated({**DIGITS, "server_examples": 100}, partition, seed=3)
    assert np.bincount(data.server.y).tolist() == [10] * 10 and data.note == ""
    assert data.server.x.dtype == np.uint8 and data.server.x.shape == (100, 8, 8, 1)
    pictures = {image.tobytes() for image in plain.train.x}
    assert all(image.tobytes() in pictures for image in data.server.x)
    assert not turned(data.server) & turned(data.train)
    held = np.concatenate(data.train_indices)
    assert len(held) == len(set(held)) == 1247 * (4 if partition["name"] == "rotated" else 1)
    assert sorted(data.test.y) == sorted(load_federated(DIGITS, partition, seed=3).test.y)


def test_digits_from_the_test_images_change_nothing_but_the_note():
    plain = load_federated(DIGITS, IID, seed=3)
    data = load_federated({**DIGITS, "server_examples": 50, "server_split": "test"}, IID, seed=3)
    assert data.note == LEAK and plain.note == ""
    assert same(data.train, plain.train) and same(data.test, plain.test)
    for ours, theirs in ((data.train_indices, plain.train_indices), (data.test_indices, plain.test_indices)):
        assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert np.bincount(data.server.y).tolist() == [5] * 10
    assert turned(data.server) <= turned(data.test)


def test_they_are_of_what_subset_leaves():
    asked = {**DIGITS, "subset": 200, "server_examples": 50}
    data = load_federated(asked, IID, seed=1)
    kept = load_dataset({**DIGITS, "subset": 200}, seed=1)
    assert data.label_counts().sum() == len(data.train) == 150
    assert turned(data.server) | turned(data.train) == turned(kept.train)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"server_examples": 1347}, "server_examples is 1347; it must be less than the 1347 training"),
        (
            {"server_examples": 450, "server_split": "test"},
            "server_examples is 450; it must be less than the 450 test images of digits",
        ),
        ({"server_examples": 100, "subset": 100}, "it must be less than the 100 training images of digits"),
        ({"server_examples": -1}, "server_examples is -1; it must be a whole number from 0"),
        ({"server_examples": 10.0}, "server_examples is 10.0; it must be a whole number"),
        ({"server_examples": True}, "server_examples is True; it must be a whole number"),
        ({"server_examples": "all"}, "server_examples is 'all'; it must be a whole number"),
        ({"server_split": "tets"}, "unknown dataset.server_split 'tets'; did you mean 'test'"),
        ({"server_split": ["test"]}, r"server_split is \['test'\]; it must be one of test, train"),
        ({"server_exmples": 5}, "unknown option of dataset digits 'server_exmples'; did you mean 'server_e"),
    ],
)
def test_mistakes_are_named(options, message):
    with pytest.raises(UserError, match=message) as refused:
        load_federated({**DIGITS, **options}, IID, seed=0)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("mistake", [{"server_examples": -1}, {"server_split": "tets"}])
def test_a_mistake_is_answered_before_data_is_read(mistake, tmp_path):
    with pytest.raises(UserError, match="server_"):
        load_federated({"name": "mnist", **mistake}, IID, seed=0, data_dir=str(tmp_path))


def test_a_data_set_alone_has_no_server():
    with pytest.raises(UserError, match="unknown option of dataset digits 'server_examples'"):
        load_dataset({**DIGITS, "server_examples": 5}, seed=0)


def load_first(*, data_dir=None):
    del data_dir
    return numbered(400).take(np.arange(200), np.arange(200))


def load_second(*, data_dir=None):
    """The same with other images: no number is in both sets."""
    del data_dir
    return numbered(400).take(np.arange(200, 400), np.arange(200, 400))


@pytest.mark.parametrize("split", ["train", "test"])
def test_of_several_sets_they_are_drawn_once(split, monkeypatch):
    for name in ("first", "second"):
        monkeypatch.setitem(catalog.DATASETS, name, catalog.Row("toy", f"{__name__}:load_{name}"))
    asked = {"names": ["first", "second"], "normalization": "unit"}
    server = {"server_examples": 50, "server_split": split}
    data = load_federated({**asked, **server}, {"name": "hybrid", "clients": 4}, seed=0)
    assert np.bincount(data.server.y).tolist() == [5] * 10  # 50 in all, not 50 of each
    mine = numbers(data.server)
    assert len(set(mine % 400 < 200)) == 2  # of both sets
    if split == "train":
        everything = np.concatenate([mine, numbers(data.train)])
        np.testing.assert_array_equal(np.sort(everything), np.arange(400))
    else:
        assert len(data.train) == 400 and set(mine) <= set(numbers(data.test))
    assert len(data.test) == 400 and data.note == (LEAK if split == "test" else "")


def test_fashion_mnist():
    whole = real("fashion_mnist")
    skew = {"name": "label_skew", "clients": 20, "classes_per_client": 2}
    data = load_federated({"name": "fashion_mnist", "server_examples": 2500}, skew, seed=0)
    assert np.bincount(data.server.y).tolist() == [250] * 10
    assert data.label_counts().sum() == len(whole.train) - 2500
    leaky = {"name": "fashion_mnist", "server_examples": 50, "server_split": "test"}
    data = load_federated(leaky, {**IID, "test": "all"}, seed=0)
    assert same(data.test, whole.test) and data.note.endswith(LEAK)
    pictures = {image.tobytes() for image in whole.test.x}
    assert all(image.tobytes() in pictures for image in data.server.x)


def test_hybrid_of_the_real_sets():
    need("mnist", "fashion_mnist")
    asked = {"names": ["mnist", "fashion_mnist"], "subset": 2000, "test_subset": 400, "server_examples": 200}
    data = load_federated(asked, {"name": "hybrid", "clients": 20, "test": "all"}, seed=0)
    assert np.bincount(data.server.y).tolist() == [20] * 10
    assert data.label_counts().sum() == 3800 and len(data.test) == 800
    pictures = {image.tobytes() for image in real("fashion_mnist").train.x}
    from_clothes = sum(image.tobytes() in pictures for image in data.server.x)
    assert 50 < from_clothes < 150  # of both sets: labels are balanced, sets are as chance has it
