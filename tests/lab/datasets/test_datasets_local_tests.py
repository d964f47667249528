"""The clients' test sets under each rule."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lab.datasets.helpers import balanced, labelled
from tffcl.errors import UserError
from tffcl.lab.datasets.partitions.by_label import dirichlet, iid, label_skew, quantity_skew
from tffcl.lab.datasets.partitions.splitting import Domains, with_tests

RUN = settings(deadline=None, max_examples=25)
SEEDS = st.integers(0, 2**31)


@RUN
@given(seed=SEEDS, held=st.integers(1, 4))
def test_classes_is_all_test_images_of_the_clients_classes(seed, held):
    y, y_test = balanced(1000), np.random.default_rng(seed).integers(0, 10, 300)
    split = label_skew(labelled(y, y_test, 10), seed=seed, clients=30, classes_per_client=held)
    for train, test in zip(split.train, split.test, strict=True):
        np.testing.assert_array_equal(test, np.flatnonzero(np.isin(y_test, np.unique(y[train]))))


@RUN
@given(seed=SEEDS, alpha=st.sampled_from([0.2, 1.0, 10.0]))
def test_share_gives_each_test_image_once_and_follows_the_training_labels(seed, alpha):
    y, y_test = balanced(2000), balanced(1000)
    split = dirichlet(labelled(y, y_test), seed=seed, clients=10, alpha=alpha, min_size=20, test="share")
    np.testing.assert_array_equal(np.sort(np.concatenate(split.test)), np.arange(1000))
    train = np.stack([np.bincount(y[index], minlength=10) for index in split.train])
    test = np.stack([np.bincount(y_test[index], minlength=10) for index in split.test])
    assert (np.abs(test - train / 2) < 1).all()  # half as many test images: rounding is all that differs
    assert (test[train == 0] == 0).all()
    # Rounding evens out over the classes.
    assert np.abs(test.sum(axis=1) - train.sum(axis=1) / 2).max() <= 2


def test_which_images_of_a_class_a_client_gets_is_drawn_anew_by_each_seed():
    """Of a class that lies in the order in which it was recorded no client has a stretch."""
    data = labelled(np.zeros(400, int))
    first = quantity_skew(data, seed=0, clients=4, test="share")
    split = dirichlet(data, seed=0, clients=4, alpha=100.0, test="share")
    for index in (*first.train, *first.test, *split.train, *split.test):
        assert np.ptp(index) > len(index)
    drawn = [with_tests(data, first.train, test="share", seed=seed).test for seed in (0, 0, 1)]
    same = [[np.array_equal(*pair) for pair in zip(drawn[0], each, strict=True)] for each in drawn[1:]]
    assert all(same[0]) and not any(same[1])


def test_share_leaves_out_test_images_of_classes_that_nobody_has():
    data = labelled(balanced(100), balanced(100))
    split = label_skew(data, seed=0, clients=3, classes_per_client=1, test="share")
    assert set(data.test.y[np.concatenate(split.test)]) == {0, 1, 2}


def test_share_refuses_a_client_without_test_images():
    data = labelled(balanced(100), [0, 1])
    with pytest.raises(UserError, match="without a test image: 50 clients for 2 test images"):
        iid(data, seed=0, clients=50, test="share")


def test_all_is_the_domain():
    data = labelled([0, 1, 0, 1], [0, 0, 1, 1, 1])
    domains = Domains(np.array([1, 0]), [np.array([0, 2]), np.array([1, 3, 4])])
    train = [np.array([0, 1]), np.array([2])]
    every = with_tests(data, train, test="all", seed=0, domains=domains)
    assert [index.tolist() for index in every.test] == [[1, 3, 4], [0, 2]]
    classes = with_tests(data, train, test="classes", seed=0, domains=domains)
    assert [index.tolist() for index in classes.test] == [[1, 3, 4], [0]]
