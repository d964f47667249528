"""Several data sets at once: how they become one, and who holds what of them."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lab.datasets.helpers import balanced, labelled
from tffcl.errors import UserError
from tffcl.lab.datasets.core import Dataset
from tffcl.lab.datasets.images import Images
from tffcl.lab.datasets.partitions.mixed import MIX4_COUNTS, by_dataset, framed, hybrid, mix4, mixture

SEEDS = st.integers(0, 2**31)
RUN = settings(deadline=None, max_examples=15)
MIX4 = ("usps", "cifar10", "svhn_cropped", "fashion_mnist")
# Training images per class of USPS (Hull 1994).
USPS = [1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644]


def constant(name, value, shape, n=20, **more):
    x = np.full((n, *shape), value, np.uint8)
    images = Images(x, balanced(n).astype(np.int32))
    return Dataset(name, images, images, 10, (value / 255,), (0.5,), **more)


def four(sizes):
    """A data set of four sources with labels apart; sizes: per source, training images of each class."""
    y = [np.repeat(np.arange(10), counts) + 10 * number for number, counts in enumerate(sizes)]
    source = np.repeat(np.arange(4), [len(each) for each in y]).astype(np.int32)
    y_test, test_source = np.repeat(np.arange(40), 3), np.repeat(np.arange(4), 30)
    return labelled(np.concatenate(y), y_test, 40, source_names=MIX4, train_source=source, test_source=test_source)


def test_frames_and_repeats_channels():
    x = np.arange(1, 5, dtype=np.uint8).reshape(1, 2, 2, 1)
    out = framed(x, (6, 6, 3))
    assert out.shape == (1, 6, 6, 3) and out.dtype == np.uint8
    np.testing.assert_array_equal(out[0, 2:4, 2:4, 0], [[1, 2], [3, 4]])
    assert out.sum() == 3 * x.sum()
    np.testing.assert_array_equal(out[..., 0], out[..., 2])


def test_labels_apart_gives_mix4s_shapes_and_labels():
    grey, colour = constant("small", 51, (16, 16, 1)), constant("large", 102, (32, 32, 3))
    both = mixture([dataclasses.replace(grey, std=(0.3,)), dataclasses.replace(colour, std=(0.7,))], labels="apart")
    assert both.train.x.shape == (40, 32, 32, 3) and both.num_classes == 20
    np.testing.assert_array_equal(both.train.y, np.concatenate([balanced(20), balanced(20) + 10]))
    np.testing.assert_array_equal(both.train.source, np.repeat([0, 1], 20))
    assert (both.train.x[0, 8:24, 8:24] == 51).all() and both.train.x[0].sum() == 51 * 16 * 16 * 3
    np.testing.assert_allclose(both.mean, [0.3] * 3)  # of 0.2 and 0.4
    np.testing.assert_allclose(both.std, [0.5] * 3)  # of 0.3 and 0.7
    assert both.name == "small+large" and both.source_names == ("small", "large")


def test_labels_in_common_need_equal_shapes():
    both = mixture([constant("a", 1, (4, 4, 1)), constant("b", 2, (4, 4, 1))], labels="common")
    assert both.num_classes == 10 and both.train.y.max() == 9
    with pytest.raises(UserError, match=r"images of a are \(4, 4, 1\) and of b \(5, 5, 1\)"):
        mixture([constant("a", 1, (4, 4, 1)), constant("b", 2, (5, 5, 1))], labels="common")


@RUN
@given(seed=SEEDS)
def test_hybrid_clients_hold_one_set_each(seed):
    a, b = constant("a", 1, (4, 4, 1), n=100), constant("b", 2, (4, 4, 1), n=60)
    both = mixture([a, b], labels="common")
    split = hybrid(both, seed=seed, clients=10)
    assert split.groups.tolist() == [0] * 5 + [1] * 5
    for parts, source in ((split.train, both.train.source), (split.test, both.test.source)):
        np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(160))
        assert all(set(source[index]) == {group} for index, group in zip(parts, split.groups, strict=True))
    for index, group in zip(hybrid(both, seed=seed, clients=10, test="classes").test, split.groups, strict=True):
        assert set(both.test.source[index]) == {group}  # clients of either set hold the same classes


def test_by_dataset_has_a_client_of_each_set_with_its_name():
    data = four([[3] * 10, [2] * 10, [5] * 10, [1] * 10])
    split = by_dataset(data, seed=0)
    assert split.names == MIX4 and split.groups is None
    for parts, source in ((split.train, data.train.source), (split.test, data.test.source)):
        assert [np.flatnonzero(source == number).tolist() for number in range(4)] == [each.tolist() for each in parts]


@pytest.mark.parametrize(("counts", "clients"), [("paper", 97), ("code", 100)])
def test_mix4_gives_50_of_each_class_but_for_usps(counts, clients):
    data = four([USPS, [5000] * 10, [4948] * 10, [6000] * 10])
    split = mix4(data, seed=0, counts=counts)
    assert len(split.train) == clients
    assert np.bincount(split.groups).tolist() == [MIX4_COUNTS[counts][name] for name in MIX4]
    held = np.concatenate(split.train)
    assert len(held) == len(set(held)) == 500 * clients  # no image twice, everybody 500
    assert {len(index) for index in split.train} == {500}
    for index, group in zip(split.train, split.groups, strict=True):
        per_class = np.bincount(data.train.y[index], minlength=40).reshape(4, 10)
        assert per_class[np.arange(4) != group].sum() == 0
        if group:
            assert (per_class[group] == 50).all()
        else:
            # 542 images of class 8 for 14 clients; classes 0 and 1 have most left to make up for it.
            assert per_class[0, 8] in (38, 39) and per_class[0, 0] > 50
    assert len(split.test[0]) == 30 and set(data.test.y[split.test[-1]]) == set(range(30, 40))


def test_mix4_with_share_is_exactly_50_of_each_class():
    data = four([USPS, [100] * 10, [100] * 10, [100] * 10])
    split = mix4(data, seed=0, counts=[14, 3, 3, 3], share=True)
    for index, group in zip(split.train, split.groups, strict=True):
        per_class = np.bincount(data.train.y[index], minlength=40).reshape(4, 10)
        assert (per_class[group] == 50).all() and len(set(index)) == 500


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"counts": [1, 1, 3, 1]}, "svhn_cropped has 1000 training images; 3 clients with 50 .* per_class = 33"),
        ({"counts": [1, 1, 1]}, "it must be 'paper', 'code' or 4 numbers"),
        (
            {"counts": [1, 1, 1, 0]},
            r"counts is \[1, 1, 1, 0\]; it must be code, paper or a list of whole numbers from 1",
        ),
        ({"counts": "papers"}, "unknown counts 'papers'; did you mean 'paper'"),
        ({"counts": [1, 1, 1, 1], "per_class": 101, "share": True}, "100 images of class 0 of cifar10"),
    ],
)
def test_mix4_refuses(options, message):
    with pytest.raises(UserError, match=message):
        mix4(four([USPS, [100] * 10, [100] * 10, [100] * 10]), seed=0, **options)


def test_named_counts_are_for_the_papers_sets():
    data = labelled([0, 1], source_names=("a", "b"), train_source=np.arange(2), test_source=np.arange(2))
    with pytest.raises(UserError, match="counts = 'paper' is for usps, cifar10, svhn_cropped, fashion_mnist, not a, b"):
        mix4(data, seed=0)


def test_channels_must_fit():
    with pytest.raises(UserError, match="a has 2 channels; beside 3 it must have 1"):
        mixture([constant("a", 1, (4, 4, 2)), constant("b", 2, (4, 4, 3))], labels="apart")


@pytest.mark.parametrize("share", [True, False])
def test_the_seed_decides_mix4(share):
    def held(seed):
        data = four([USPS, [100] * 10, [100] * 10, [100] * 10])
        split = mix4(data, seed=seed, counts=[2, 1, 1, 1], per_class=20, share=share)
        return [index.tolist() for index in split.train]

    assert held(1) == held(1)
    assert not any(a == b for a, b in zip(held(1), held(2), strict=True))


@pytest.mark.parametrize("rule", [hybrid, mix4])
def test_one_set_is_refused(rule):
    options = {"clients": 2} if rule is hybrid else {}
    with pytest.raises(UserError, match="is of several data sets: dataset needs"):
        rule(labelled(balanced(100)), seed=0, **options)
