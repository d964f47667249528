"""Types and pools: what they refuse, and that every client finds its own images in the pool."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lab.datasets.helpers import blank, labelled, numbered
from tffcl.errors import UserError
from tffcl.lab.datasets.core import Dataset, FederatedDataset, Partition
from tffcl.lab.datasets.federated import federated, pool
from tffcl.lab.datasets.images import Images, Transform


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros((2, 3, 3), np.int64), np.zeros(2, np.int32), "examples are int64 of rank 3"),
        (np.zeros((2, 3, 3, 1), np.float64), np.zeros(2, np.int32), "examples are float64 of rank 4"),
        (np.zeros((2, 3, 3, 1), np.uint8), np.zeros(2, np.int64), "labels are int64"),
        (np.zeros((1, 3, 3, 1), np.uint8), np.zeros(3, np.int32), "there are 1 image and 3 labels"),
        (np.zeros((2, 3, 3, 1), np.uint8), np.array([0, -1], np.int32), "label -1 of image 1"),
        (np.array([0.0, np.nan]).reshape(2, 1, 1, 1), np.zeros(2, np.int32), "image 1 has a pixel that is not"),
    ],
)
def test_images_refuse(x, y, message):
    with pytest.raises(UserError, match=message):
        Images(x, y)


def test_dataset_refuses_what_does_not_fit():
    with pytest.raises(UserError, match="a test label is 3; labels are 0 to 2"):
        labelled([0, 1, 2], [3], num_classes=3)
    with pytest.raises(UserError, match="no training images"):
        Dataset("toy", blank([]), blank([0]), 1, 0.0, 1.0)
    with pytest.raises(UserError, match="3 train images have 2 entries of owner"):
        labelled([0, 1, 2], train_owner=np.zeros(2, np.int32))
    with pytest.raises(UserError, match="the shapes must be equal"):
        Dataset("toy", blank([0]), blank([0], (2, 2, 1)), 1, 0.0, 1.0)


def test_partition_refuses_unequal_parts():
    with pytest.raises(ValueError, match=r"\[1, 2\] clients"):
        Partition((np.arange(2),), (np.arange(2), np.arange(2)))


def test_transform_turns_each_image_and_shifts_labels():
    images = Images(np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3, 1), np.array([1, 8], np.int32))
    turned = Transform(degrees=90, label_shift=3).apply(images, 10)
    for before, after in zip(images.x, turned.x, strict=True):
        np.testing.assert_array_equal(after[..., 0], np.rot90(before[..., 0]))
    assert turned.y.tolist() == [4, 1] and turned.y.dtype == np.int32
    assert Transform().apply(images, 10) is images


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_pool_gives_every_client_its_images(data):
    n, clients = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 6))
    images = numbered(n).train
    lists = st.lists(st.integers(0, n - 1), min_size=0, max_size=n)
    held = [np.array(data.draw(lists), np.int64) for _ in range(clients)]
    of_some = Transform(90, 3, classes=(1, 2))  # all labels are shifted, and the pictures of two classes turned
    kinds = st.sampled_from([Transform(), Transform(90), Transform(180, 3), Transform(0, 6), of_some])
    transforms = [data.draw(kinds) for _ in range(clients)]
    together, indices = pool(images, held, transforms, 10)
    for index, own, transform in zip(indices, held, transforms, strict=True):
        expected = transform.apply(images.take(own), 10)
        np.testing.assert_array_equal(together.x[index], expected.x)
        np.testing.assert_array_equal(together.y[index], expected.y)
    distinct = {(transform, each) for own, transform in zip(held, transforms, strict=True) for each in own}
    assert len(together) == len(distinct)


def test_a_pool_of_several_labels_keeps_them():
    images = Images(numbered(4).train.x, np.arange(8, dtype=np.int32).reshape(4, 2))
    together, indices = pool(images, [np.arange(4), np.array([3, 1])], [Transform(), Transform(90)], 1)
    assert [together.y[index].tolist() for index in indices] == [images.y.tolist(), [[6, 7], [2, 3]]]


@pytest.mark.parametrize("change", [{"label_shift": 1}, {"labels": (1, 0)}, {"classes": (0,), "tone": "negative"}])
def test_what_is_done_to_classes_is_refused_where_labels_are_none(change):
    """Nothing would be changed."""
    numbers = Images(blank([0] * 4).x, np.linspace(0, 1, 4, dtype=np.float32))
    split = Partition(HALVES, HALVES, transforms=(Transform(), Transform(**change)))
    with pytest.raises(UserError, match="needs one class for each example; toy has numbers"):
        federated(Dataset("toy", numbers, numbers, None, 0.0, 1.0), split, "by hand")


def test_pool_keeps_shared_arrays_shared():
    everything = np.arange(5)
    _, indices = pool(numbered(5).train, [everything, everything, everything.copy()], None, 10)
    assert indices[0] is indices[1] and indices[0] is not indices[2]


def test_federated_counts_labels_after_the_shift():
    data = labelled([0, 0, 1, 2], num_classes=3)
    split = Partition((np.array([0, 2]), np.array([1, 3])), (np.array([0]),) * 2, None, (Transform(), Transform(0, 1)))
    both = federated(data, split, "by hand")
    assert isinstance(both, FederatedDataset) and both.num_clients == 2
    assert both.label_counts().tolist() == [[1, 1, 0], [1, 1, 0]]  # {0, 1}, and {0, 2} shifted to {1, 0}
    assert both.label_counts().dtype == np.int64
    assert both.name == "toy/by hand"


@pytest.mark.parametrize("names, called", [(None, "1"), (("ann", "bo"), "bo")])
def test_federated_names_the_client_without_examples(names, called):
    split = Partition((np.array([0]), np.zeros(0, np.int64)), (np.array([0]),) * 2, names=names)
    with pytest.raises(UserError, match=f"client {called} has no training examples under partition by hand of toy"):
        federated(labelled([0, 1]), split, "by hand")


HALVES = (np.array([0, 1]), np.array([2, 3]))


@pytest.mark.parametrize(
    "parts, message",
    [
        ({"train": (HALVES[0], np.array([2, 4]))}, "the training indices of client 1 have 4; there are 4 examples, "
                                                   "from 0 to 3"),
        ({"test": (HALVES[0], np.array([2, 4]))}, "the test indices of client 1 have 4; there are 4 examples, "
                                                  "from 0 to 3"),
        ({"train": (np.array([-1, 0]), HALVES[1])}, "the training indices of client 0 have -1; there are 4 examples"),
        ({"train": (HALVES[0], np.array([2.0, 3.0]))}, "the training indices of client 1 are float64 of rank 1; they "
                                                       "must be integers"),
        ({"train": (HALVES[0][:, np.newaxis], HALVES[1])}, "the training indices of client 0 are int64 of rank 2; "
                                                           "they must be integers of"),
        ({"train": (HALVES[0], np.array([True, False]))}, "of client 1 are bool of rank 1; they must be integers of "
                                                          "rank 1, or a mask of 4"),
        ({"train": (HALVES[0], [[0], [1, 2]])}, "the training indices of client 1 are object of rank 2; they must be "
                                                "integers"),
        ({"train": (HALVES[0], 3)}, "the training indices of client 1 are int64 of rank 0; they must be integers"),
        ({"groups": np.array(["a", "b"])}, "the groups are <U1 of rank 1; they must be integers, one a client"),
        ({"groups": [0.5, 1.5]}, "the groups are float64 of rank 1; they must be integers"),
        ({"groups": [0, 2], "group_names": ("a", "b")}, "the groups are 0 to 2; group_names has those of 0 to 1"),
        ({"groups": [-1, 0], "group_names": ("a", "b")}, "the groups are -1 to 0; group_names has those of 0 to 1"),
        ({"names": ("a", "a")}, "'a' is the name of 2 clients; names must be texts, all different"),
        ({"names": (10, 11)}, "10 is the name of 1 client; names must be texts, all different"),
    ],
)  # fmt: skip
def test_indices_that_are_none_are_refused_by_client(parts, message):
    split = Partition(**{"train": HALVES, "test": HALVES, **parts})
    with pytest.raises(UserError, match=f"partition by hand of toy: .*{message}") as said:
        federated(labelled([0, 1, 0, 1]), split, "by hand")
    assert "\n" not in str(said.value)


def test_a_partition_without_clients_is_refused():
    with pytest.raises(UserError, match="partition by hand of toy has no clients; at least 1 is needed"):
        federated(labelled([0, 1, 0, 1]), Partition((), ()), "by hand")


def test_masks_lists_and_repeated_indices_are_taken():
    split = Partition((np.array([True, False, False, True]), [1, 1, 2]), (HALVES[0], []), [3, 5])
    data = federated(labelled([0, 1, 2, 0], num_classes=3), split, "by hand")
    assert data.label_counts().tolist() == [[2, 0, 0], [0, 2, 1]]
    assert list(map(len, data.test_indices)) == [2, 0] and data.true_groups.tolist() == [3, 5]
