"""The four-shift suite: what each level changes, for whom, and that everything else stays."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lab.datasets.helpers import balanced, labelled, need, numbered, real
from tffcl.errors import UserError
from tffcl.lab.cli.main import main
from tffcl.lab.datasets import catalog, images
from tffcl.lab.datasets.core import Dataset
from tffcl.lab.datasets.federated import federated
from tffcl.lab.datasets.images import Images, Transform
from tffcl.lab.datasets.partitions.shifts import shift_class_features, shift_concept, shift_features, shift_labels

SHIFTS = {
    "features": shift_features,
    "labels": shift_labels,
    "concept": shift_concept,
    "class_features": shift_class_features,
}
LEVELS = range(1, 9)
PLAIN = Transform()


def coloured(n=300) -> Dataset:
    """Random images of three channels."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (2 * n, 4, 4, 3), dtype=np.uint8)
    y = (np.arange(n) % 10).astype(np.int32)
    return Dataset("toy", Images(x[:n], y), Images(x[n:], y), 10, (0.0,) * 3, (1.0,) * 3)


def by_group(split) -> list[Transform]:
    """The transform of each group, which must be that of all its clients."""
    transforms = split.transforms or (PLAIN,) * len(split.train)
    each = [
        {transform for transform, own in zip(transforms, split.groups, strict=True) if own == g}
        for g in groups_of(split)
    ]
    assert all(len(one) == 1 for one in each)
    return [one.pop() for one in each]


def groups_of(split) -> range:
    assert split.groups.dtype == np.int32
    return range(int(split.groups.max()) + 1)


def classes_of(split, data) -> list[set]:
    """The classes that the clients of each group hold together."""
    members = [np.flatnonzero(split.groups == group) for group in groups_of(split)]
    return [set(data.train.y[np.concatenate([split.train[each] for each in own])].tolist()) for own in members]


@pytest.mark.parametrize("shift", SHIFTS.values(), ids=SHIFTS)
@pytest.mark.parametrize("level", LEVELS)
@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 2**31), clients=st.integers(15, 40))
def test_every_example_is_with_one_client_and_groups_are_near_equal_blocks(shift, level, seed, clients):
    data = numbered(600)
    split = shift(data, seed=seed, clients=clients, level=level)
    for parts in (split.train, split.test):
        np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(600))
    assert all(len(index) and index.dtype == np.int64 for index in split.train)
    sizes = np.bincount(split.groups)
    assert (np.diff(split.groups) >= 0).all() and sizes.max() - sizes.min() <= 1
    held = federated(data, split, "shift")
    assert len(held.train) == len(held.test) == 600  # each image once
    assert held.label_counts().sum() == 600
    if shift is not shift_labels:
        assert len(np.unique([len(index) for index in split.train])) <= 2


@pytest.mark.parametrize("shift", SHIFTS.values(), ids=SHIFTS)
def test_the_seed_decides(shift):
    data = numbered(600)
    first, again, other = (shift(data, seed=seed, clients=20, level=5) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(first.train + first.test, again.train + again.test, strict=True))
    assert first.transforms == again.transforms and np.array_equal(first.groups, again.groups)
    assert any(not np.array_equal(a, b) for a, b in zip(first.train, other.train, strict=True))


def test_levels_of_features_are_the_sources_rotations_and_colours():
    for level in LEVELS:
        for data, tones in ((coloured(), ("red", "blue", "green")), (numbered(300), ("", "negative", "faint"))):
            turns = 2 + (level - 1) % 4
            expected = [
                Transform(degrees=360 * turn // turns, tone=tone)
                for turn in range(turns)
                for tone in (tones if level > 4 else ("",))
            ]
            assert by_group(shift_features(data, seed=1, clients=15, level=level)) == expected
    assert [len(by_group(shift_features(coloured(), seed=1, clients=15, level=level))) for level in LEVELS] == [
        2, 3, 4, 5, 6, 9, 12, 15,
    ]  # fmt: skip


def test_fewer_groups_of_features_are_some_of_the_patterns():
    every = by_group(shift_features(coloured(), seed=1, clients=20, level=8))
    drawn = [by_group(shift_features(coloured(), seed=seed, clients=20, level=8, groups=4)) for seed in range(6)]
    assert all(len(set(each)) == 4 and set(each) <= set(every) for each in drawn)
    assert len(set(map(tuple, drawn))) > 1


@pytest.mark.parametrize("classes", [2, 10, 47, 100])
def test_levels_of_labels_take_classes_away(classes):
    data = labelled(balanced(6000, classes), balanced(1000, classes))
    before = None
    for level in LEVELS:
        split = shift_labels(data, seed=2, clients=20, level=level)
        held = classes_of(split, data)
        left = max(1, classes - ((level - 1) * classes + 5) // 10)
        assert {len(each) for each in held} == {left}
        assert len(set(map(frozenset, held))) == len(held) == (min(5, classes) if left < classes else 1)
        assert set().union(*held) == set(range(classes))
        if before and len(before) == len(held):
            assert all(now <= then for now, then in zip(held, before, strict=True))
        before = held
        for client, index in enumerate(split.test):  # tested on no class that it does not train on
            assert set(data.test.y[index]) <= set(data.train.y[split.train[client]])
    counts = [11 - level for level in LEVELS]
    if classes == 10:
        assert [
            len(classes_of(shift_labels(data, seed=2, clients=20, level=level), data)[0]) for level in LEVELS
        ] == counts


def test_under_all_a_group_is_tested_on_all_images_of_its_classes():
    data = labelled(balanced(600), balanced(300))
    split = shift_labels(data, seed=0, clients=10, level=8, test="all")
    for group, held in enumerate(classes_of(split, data)):
        own = [split.test[client] for client in np.flatnonzero(split.groups == group)]
        assert all(np.array_equal(index, np.flatnonzero(np.isin(data.test.y, list(held)))) for index in own)


@pytest.mark.parametrize("classes", [2, 3, 10, 47])
def test_levels_of_concept_swap_labels(classes):
    data = labelled(balanced(2000, classes))
    before = None
    for level in LEVELS:
        maps = [  # by a seed that draws two groups the same pair of ten labels
            each.labels or tuple(range(classes))
            for each in by_group(shift_concept(data, seed=14, clients=20, level=level))
        ]
        swapped = (level * classes + 5) // 10
        changed = [{label for label in range(classes) if each[label] != label} for each in maps]
        if swapped < 2:
            assert changed == [set()]
            continue
        assert not changed[0] and all(len(each) == swapped for each in changed[1:])
        assert len(set(maps)) == len(maps) == (2 if classes == 2 else 3 if (classes, swapped) == (3, 3) else 4)
        assert all(sorted(each) == list(range(classes)) for each in maps)
        if classes == 10:
            assert before is None or all(then <= now for then, now in zip(before, changed, strict=True))
            before = changed


def test_concept_changes_labels_and_no_picture():
    data = numbered(500)
    held = federated(data, shift_concept(data, seed=0, clients=8, level=6), "shift")
    split = shift_concept(data, seed=0, clients=8, level=6)
    for parts, indices, pool, whole in (
        (split.train, held.train_indices, held.train, data.train),
        (split.test, held.test_indices, held.test, data.test),
    ):
        for own, index, transform in zip(parts, indices, split.transforms, strict=True):
            np.testing.assert_array_equal(pool.x[index], whole.x[own])
            np.testing.assert_array_equal(pool.y[index], np.array(transform.labels)[whole.y[own]])


@pytest.mark.slow
@pytest.mark.parametrize("data", [numbered(500), coloured(500)], ids=["grey", "colour"])
def test_levels_of_class_features_turn_the_pictures_of_more_classes(data):
    before = set()
    for level in LEVELS:
        split = shift_class_features(data, seed=7, clients=8, level=level)
        transforms = by_group(split)
        assert [each.degrees for each in transforms] == [0, 90, 180, 270]
        changed = set(transforms[0].classes)
        assert len(changed) == level and before < changed
        others = shift_class_features(data, seed=8, clients=8, level=level).transforms[0].classes
        assert changed != set(others)  # which are drawn
        before = changed
        held = federated(data, split, "shift")
        for parts, indices, pool, whole in (
            (split.train, held.train_indices, held.train, data.train),
            (split.test, held.test_indices, held.test, data.test),
        ):
            np.testing.assert_array_equal(pool.y[np.concatenate(indices)], whole.y[np.concatenate(parts)])
            for own, index, group in zip(parts, indices, split.groups, strict=True):
                for here, there in zip(index, own, strict=True):
                    turns = group if whole.y[there] in changed else 0
                    np.testing.assert_array_equal(pool.x[here], np.rot90(whole.x[there], turns))


def test_class_features_with_tones_has_twelve_patterns():
    assert len(set(by_group(shift_class_features(coloured(), seed=0, clients=24, level=3, tones=True)))) == 12


@pytest.mark.parametrize("shift", SHIFTS.values(), ids=SHIFTS)
def test_each_distinct_test_image_is_there_once_where_clients_share_it(shift):
    data = coloured(100)
    split = shift(data, seed=0, clients=12, level=3, groups=4, test="all")
    held = federated(data, split, "shift")
    as_told = {(image.tobytes(), int(label)) for image, label in zip(held.test.x, held.test.y, strict=True)}
    assert len(as_told) == len(held.test)
    for own, index, transform in zip(split.test, held.test_indices, split.transforms or (PLAIN,) * 12, strict=True):
        expected = transform.apply(data.test.take(own), 10)
        np.testing.assert_array_equal(held.test.x[index], expected.x)
        np.testing.assert_array_equal(held.test.y[index], expected.y)


def test_a_lower_and_a_higher_level_give_clients_the_same_examples():
    for shift in (shift_features, shift_concept, shift_class_features):
        low, high = (shift(numbered(500), seed=9, clients=15, level=level) for level in (1, 8))
        assert all(np.array_equal(a, b) for a, b in zip(low.train, high.train, strict=True))


@given(degrees=st.integers(0, 720), side=st.integers(1, 9))
@settings(deadline=None, max_examples=60)
def test_turned_pictures(degrees, side):
    x = np.random.default_rng(0).integers(1, 255, (3, side, side, 2), dtype=np.uint8)
    turned = images.turned(x, degrees)
    assert turned.shape == x.shape and turned.dtype == np.uint8
    assert set(turned.ravel().tolist()) <= set(x.ravel().tolist()) | {0}
    if degrees % 90 == 0:
        np.testing.assert_array_equal(turned, np.rot90(x, degrees // 90, axes=(1, 2)))
    np.testing.assert_array_equal(
        images._sources(side, side, 90)[0], np.rot90(np.arange(side**2).reshape(side, side)).ravel()
    )


def test_turned_is_as_pillow_turns():
    from PIL import Image

    x = np.random.default_rng(1).integers(0, 255, (28, 28), dtype=np.uint8)
    for degrees in (72, 120, 216):
        other = np.asarray(Image.fromarray(x).rotate(degrees))
        # Pillow rounds pixels in between two the other way.
        assert (images.turned(x[None, :, :, None], degrees)[0, :, :, 0] == other).mean() > 0.98


def test_a_transform_in_words():
    assert PLAIN.in_words() == Transform(degrees=360).in_words() == ""
    assert Transform(90, 3).in_words() == "images turned by 90 degrees; labels shifted by 3"
    told = Transform(degrees=72, tone="red", classes=(2, 7)).in_words()
    assert told == "images of classes 2, 7 turned by 72 degrees and made red"
    assert Transform(labels=(1, 0, 2)).in_words() == "labels changed: 0 to 1, 1 to 0"


@pytest.mark.slow
def test_show_says_what_happens_to_each_group(tmp_path, capsys):
    need("mnist")
    options = ["--set", "partition.level=2", "--out", str(tmp_path)]
    assert main(["show", "shift_class_features_mnist_small", *options]) == 0
    said = capsys.readouterr().out
    assert "15 clients, 4 true groups of 3 to 4" in said
    assert "group 0: 4 clients" in said and said.count("images of classes") == 3 and "turned by 270 degrees" in said
    assert main(["show", "shift_features_mnist_small", "--set", "partition.level=8", "--out", str(tmp_path)]) == 0
    assert "group 14: 1 client," in capsys.readouterr().out  # all fifteen are told and drawn


def test_tones():
    grey, colour = np.array([[[[0], [255]]]], np.uint8), np.array([[[[1, 2, 3]]]], np.uint8)
    assert images.toned(grey, "negative").ravel().tolist() == [255, 0]
    assert images.toned(grey, "faint").ravel().tolist() == [64, 191]
    assert images.toned(colour, "green").ravel().tolist() == [1, 255, 3] and colour.ravel().tolist() == [1, 2, 3]
    assert images.toned(grey, "") is grey
    for x, tone in ((grey, "red"), (colour, "pink")):
        with pytest.raises(ValueError, match="have no tone"):
            images.toned(x, tone)


WRONG = [
    (shift_features, {"level": 0}, "level is 0; it must be a whole number from 1 to 8"),
    (shift_labels, {"level": 9}, "level is 9; it must be a whole number from 1 to 8"),
    (shift_concept, {"level": 2.5}, "level is 2.5"),
    (shift_class_features, {"level": 3, "tones": 1}, "tones is 1; it must be true or false"),
    (
        shift_features,
        {"level": 1, "groups": 3},
        "groups is 3; it must be at most 2: level 1 of shift_features has 2 patterns",
    ),
    (shift_labels, {"level": 3, "groups": 11}, "groups is 11; it must be at most 10: toy has 10 classes"),
    (
        shift_concept,
        {"level": 2, "groups": 47},
        "groups is 47; it must be at most 46: 2 of 10 labels are swapped in 45 ways",
    ),
    (shift_class_features, {"level": 2, "groups": 5}, "groups is 5; it must be at most 4: 4 patterns"),
    (shift_features, {"level": 8}, "clients is 12; the 15 groups need one each"),
    (shift_labels, {"level": 8, "clients": 400}, "shift_labels leaves client .* without examples; use fewer clients"),
    (shift_concept, {"level": 8, "clients": 400}, "400 clients and only 300 training examples"),
    (shift_features, {"level": 2, "test": "al"}, "unknown test 'al'; did you mean 'all'"),
]


@pytest.mark.parametrize(("shift", "options", "message"), WRONG)
def test_a_wrong_option_gets_one_line(shift, options, message):
    with pytest.raises(UserError, match=message) as refused:
        shift(coloured(), seed=0, **{"clients": 12, **options})
    assert "\n" not in str(refused.value)


def test_what_is_no_image_is_not_turned():
    vectors = Images(np.zeros((40, 3), np.float32), (np.arange(40) % 4).astype(np.int32))
    data = Dataset("vectors", vectors, vectors, 4, 0.0, 1.0)
    for shift in (shift_features, shift_class_features):
        with pytest.raises(UserError, match="turns images, and the examples of vectors are none"):
            shift(data, seed=0, clients=4, level=1)
    with pytest.raises(UserError, match="are no images"):
        Transform(degrees=72).apply(vectors, 4)
    assert len(shift_concept(data, seed=0, clients=4, level=8).train) == 4


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10", "cifar100", "svhn_cropped", "usps", "digits"])
@pytest.mark.parametrize("kind", SHIFTS)
def test_the_suite_is_for_every_image_set(name, kind):
    data = real(name, subset=2000, test_subset=500) if name != "digits" else catalog.DATASETS["digits"].builder()()
    entry = catalog.PARTITIONS[f"shift_{kind}"]
    held = federated(data, entry.builder()(data, seed=0, clients=15, level=8), kind)
    assert held.num_clients == 15 and held.train.x.dtype == np.uint8
    assert len(np.unique(held.true_groups)) == {"features": 15, "labels": 5}.get(kind, 4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shift_features_mnist_small", "shift_concept_mnist_small"])
def test_a_small_task_runs(name, tmp_path, capsys):
    need("mnist")
    out = tmp_path / "out"
    assert main(["run", name, "--algorithm", "ifca", "--set", "partition.level=2", "--out", str(out)]) == 0, (
        capsys.readouterr().err
    )
    summary = json.loads((out / "summary.json").read_text())
    assert summary["accuracy"]["cluster"]["mean"] > 0.15
    assert -1 <= summary["clusters"]["ari"] <= 1
