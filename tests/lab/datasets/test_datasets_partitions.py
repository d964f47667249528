"""Partitions of one data set: who holds what, as properties of labels, parameters and seed."""

import dataclasses
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lab.datasets.helpers import balanced, labelled
from tffcl.errors import UserError
from tffcl.lab.datasets.federated import federated
from tffcl.lab.datasets.images import Images, Transform, turned
from tffcl.lab.datasets.partitions import by_label
from tffcl.lab.datasets.partitions.by_label import (
    dirichlet,
    growing_sizes,
    iid,
    label_groups,
    label_skew,
    quantity_skew,
    scheme_groups,
    structured,
)
from tffcl.lab.datasets.partitions.natural import by_attribute, by_owner
from tffcl.lab.datasets.partitions.splitting import by_class
from tffcl.lab.datasets.partitions.transformed import rotated, shifted

SEEDS = st.integers(0, 2**31)
RUN = settings(deadline=None, max_examples=25)

# Rules under which every training example is with exactly one client, whatever the labels.
ONCE = {
    "iid": lambda data, seed: iid(data, seed=seed, clients=20, test="classes"),
    "quantity_skew": lambda data, seed: quantity_skew(data, seed=seed, clients=20, test="classes", min_size=3),
    "label_skew": lambda data, seed: label_skew(data, seed=seed, clients=20, classes_per_client=3),
    "dirichlet": lambda data, seed: dirichlet(data, seed=seed, clients=20, alpha=0.5, min_size=2),
    "stocfl": lambda data, seed: label_groups(data, seed=seed, clients=20, scheme="stocfl"),
    "flt1": lambda data, seed: label_groups(data, seed=seed, clients=20, scheme="flt1"),
    "flt2": lambda data, seed: label_groups(data, seed=seed, clients=20, scheme="flt2"),
    "structured": lambda data, seed: structured(data, seed=seed, clients=20),
    "rotated": lambda data, seed: rotated(data, seed=seed, clients=20, reuse=False, test="classes"),
    "shifted": lambda data, seed: shifted(data, seed=seed, clients=20, reuse=False, test="classes"),
}


def uneven(seed: int) -> np.ndarray:
    """900 labels of ten classes of different sizes, none below 40."""
    rng = np.random.default_rng(seed)
    rest = rng.choice(10, 500, p=rng.dirichlet(np.ones(10)))
    return rng.permutation(np.concatenate([np.repeat(np.arange(10), 40), rest]))


def same(a, b) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a.train + a.test, b.train + b.test, strict=True))


@pytest.mark.parametrize("rule", ONCE)
@RUN
@given(seed=SEEDS)
def test_every_example_is_with_one_client(rule, seed):
    data = labelled(uneven(seed))
    split = ONCE[rule](data, seed)
    assert len(split.train) == 20
    np.testing.assert_array_equal(np.sort(np.concatenate(split.train)), np.arange(900))
    assert all(len(index) and index.dtype == np.int64 for index in split.train)
    assert split.groups is None or split.groups.shape == (20,)


@pytest.mark.parametrize("rule", ONCE)
@RUN
@given(seed=SEEDS)
def test_the_seed_decides(rule, seed):
    data = labelled(uneven(seed))
    first = ONCE[rule](data, seed)
    assert same(first, ONCE[rule](data, seed))
    assert not same(first, ONCE[rule](data, seed + 1))


@RUN
@given(seed=SEEDS, clients=st.integers(1, 60), held=st.integers(1, 10))
def test_label_skew_is_niid_bench(seed, clients, held):
    y = balanced(2000)
    split = label_skew(labelled(y), seed=seed, clients=clients, classes_per_client=held)
    counts = np.stack([np.bincount(y[index], minlength=10) for index in split.train])
    assert ((counts > 0).sum(axis=1) == held).all()
    assert all(counts[client, client % 10] > 0 for client in range(clients))
    for label in range(10):
        parts = counts[counts[:, label] > 0, label]
        if len(parts):
            # Near-equal parts in client order, the larger ones first, as np.array_split makes them.
            assert parts.tolist() == [len(part) for part in np.array_split(np.arange(200), len(parts))]


def test_label_skew_is_quick_on_60000_labels():
    data = labelled(balanced(60000), balanced(10000))
    start = time.perf_counter()
    split = label_skew(data, seed=0, clients=100, classes_per_client=2)
    assert time.perf_counter() - start < 1
    assert all(len(index) == 2000 for index in split.test)
    assert len({id(index) for index in split.test}) <= 45  # shared: as many as there are pairs of classes


@RUN
@given(seed=SEEDS, alpha=st.sampled_from([0.3, 1.0, 100.0]), min_size=st.integers(1, 8))
def test_dirichlet_keeps_niid_benchs_rules(seed, alpha, min_size):
    y = uneven(seed)
    split = dirichlet(labelled(y), seed=seed, clients=10, alpha=alpha, min_size=min_size)
    counts = np.stack([np.bincount(y[index], minlength=10) for index in split.train])
    assert counts.sum(axis=1).min() >= min_size
    before = np.cumsum(counts, axis=1) - counts
    assert (counts[before >= 90] == 0).all()  # who holds an equal share already gets nothing more


def test_dirichlet_alpha_is_the_skew():
    y = balanced(10000)

    def largest_share(alpha):
        split = dirichlet(labelled(y), seed=3, clients=10, alpha=alpha)
        return np.mean([np.bincount(y[index], minlength=10).max() / len(index) for index in split.train])

    assert largest_share(1000.0) < 0.12 < 0.2 < largest_share(1.0) < largest_share(0.05)
    # Of a class a client holds a tenth, drawn at random: neighbours in a set may be alike.
    own = dirichlet(labelled(y), seed=3, clients=10, alpha=1000.0).train[0]
    assert np.ptp(np.searchsorted(np.flatnonzero(y == 0), own[y[own] == 0])) > 500


@RUN
@given(seed=SEEDS, power=st.floats(0.2, 3), min_size=st.integers(1, 10))
def test_quantity_skew_is_a_power_law(seed, power, min_size):
    split = quantity_skew(labelled(balanced(5000)), seed=seed, clients=30, power=power, min_size=min_size)
    sizes = np.sort([len(index) for index in split.train])[::-1]
    weights = np.arange(1, 31) ** -power
    np.testing.assert_allclose(sizes, min_size + (5000 - 30 * min_size) * weights / weights.sum(), atol=1.01)
    turned = rotated(labelled(balanced(5000)), seed=seed, clients=32, power=power, reuse=False)
    used, weights = [len(index) for index in turned.train], np.arange(1, 33) ** -power
    expected = 10 + (5000 - 320) * weights / weights.sum()
    np.testing.assert_allclose(np.sort(used)[::-1], expected, atol=1.01)
    assert turned.groups.tolist() == np.repeat(range(4), 8).tolist()
    assert len(np.unique(np.concatenate(turned.train))) == 5000


@RUN
@given(seed=SEEDS)
def test_label_groups_hold_their_classes_only(seed):
    y = uneven(seed)
    split = label_groups(labelled(y), seed=seed, clients=12, groups=[[0, 1], [1, 2, 5], [9]])
    assert split.groups.tolist() == [0] * 4 + [1] * 4 + [2] * 4 and split.groups.dtype == np.int32
    for index, group in zip(split.train, split.groups, strict=True):
        assert set(y[index]) == [{0, 1}, {1, 2, 5}, {9}][group]
    used = np.concatenate(split.train)
    assert len(used) == len(set(used)) == np.isin(y, [0, 1, 2, 5, 9]).sum()
    ones = [(y[index] == 1).sum() for index in split.train[:8]]
    assert max(ones) - min(ones) <= 1  # the class of two groups is shared among the clients of both


@pytest.mark.parametrize("rotations", [2, 4])
def test_label_groups_of_every_rotation(rotations):
    """Each rotation parts all images by label anew; the true groups are label groups and rotations together."""
    data = labelled(balanced(400), balanced(200))
    split = label_groups(data, seed=1, clients=8 * rotations, scheme="stocfl", rotations=rotations, test="share")
    classes = ({0, 1, 2}, {3, 4}, {5, 6}, {7, 8, 9})
    for turn in range(rotations):
        own = range(8 * turn, 8 * turn + 8)
        assert sorted(np.concatenate([split.train[client] for client in own])) == list(range(400))
        assert sorted(np.concatenate([split.test[client] for client in own])) == list(range(200))
        for client in own:
            assert split.groups[client] == client // 2
            assert set(data.train.y[split.train[client]]) == classes[(client - 8 * turn) // 2]
            assert set(data.test.y[split.test[client]]) <= classes[(client - 8 * turn) // 2]
            assert split.transforms[client].degrees == turn * 360 // rotations
    assert any(set(split.train[client]) != set(split.train[client + 8]) for client in range(8))


@RUN
@given(seed=SEEDS)
def test_label_groups_with_share_gives_a_class_to_each_of_its_groups(seed):
    y = uneven(seed)
    groups = [[0, 1], [1, 2]]
    split = label_groups(labelled(y), seed=seed, clients=6, groups=groups, share=True)
    for number, group in enumerate(groups):
        held = np.concatenate([split.train[client] for client in np.flatnonzero(split.groups == number)])
        np.testing.assert_array_equal(np.sort(held), np.flatnonzero(np.isin(y, group)))


@RUN
@given(seed=SEEDS)
def test_flt_schemes_are_random_pairs_and_a_ring_of_triples(seed):
    pairs = scheme_groups("flt1", 10, np.random.default_rng(seed))
    assert sorted(sum(pairs, [])) == list(range(10)) and {len(pair) for pair in pairs} == {2}
    triples = scheme_groups("flt2", 10, np.random.default_rng(seed))
    common = [len(set(triples[i]) & set(triples[(i + 1) % 5])) for i in range(5)]
    apart = [len(set(triples[i]) & set(triples[(i + 2) % 5])) for i in range(5)]
    assert common == [1] * 5 and apart == [0] * 5 and set(sum(triples, [])) == set(range(10))


def test_schemes_and_ranks_are_dealt_at_random():
    for scheme in ("flt1", "flt2"):
        drawn = {str(scheme_groups(scheme, 10, np.random.default_rng(seed))) for seed in range(5)}
        assert len(drawn) == 5
    data = labelled(balanced(500))
    largest = [
        np.argmax([len(index) for index in quantity_skew(data, seed=seed, clients=10).train]) for seed in range(9)
    ]
    assert len(set(largest)) > 2


def test_flt_scenario_2_gives_600_examples_each():
    split = label_groups(labelled(balanced(60000), balanced(100)), seed=1, clients=100, scheme="flt2")
    assert {len(index) for index in split.train} == {600}
    assert {len(index) for index in split.test} == {30}  # all test images of the group's three classes


@RUN
@given(total=st.integers(20, 20000), clients=st.integers(1, 300))
def test_growing_sizes_are_half_equal_half_growing(total, clients):
    clients = min(clients, total // 2)
    sizes = growing_sizes(total, clients)
    flat = total // 2 // clients
    assert sizes.sum() == total and sizes.min() >= flat and (np.diff(sizes) >= 0).all()
    if clients > 2 and total > 4 * clients:
        extra = sizes - flat  # exp(a i^2): log of it is linear in i^2, up to the rounding
        rate = np.log(extra[-1]) / clients**2
        np.testing.assert_allclose(extra, np.exp(rate * np.arange(1, clients + 1) ** 2), rtol=0.08, atol=2)


def test_structured_is_flts_scenario_4():
    y, y_test = balanced(112800, 47), balanced(18800, 47)
    split = structured(labelled(y, y_test), seed=0, clients=600)
    assert split.groups.max() == 9 and (np.bincount(split.groups) == 60).all()
    for group in range(10):
        members = np.flatnonzero(split.groups == group)
        held = np.concatenate([split.train[client] for client in members])
        assert set(y[held]) == set(range(5 * group, min(5 * group + 5, 47)))
        assert len(held) == (12000 if group < 9 else 4800)
        assert len(split.test[members[0]]) == (2000 if group < 9 else 800)


@pytest.mark.parametrize("rotations", [2, 4])
@RUN
@given(seed=SEEDS)
def test_rotated_with_reuse_gives_every_group_everything(rotations, seed):
    data = labelled(uneven(seed), shape=(2, 2, 1))
    split = rotated(data, seed=seed, clients=20, rotations=rotations)
    assert split.groups.tolist() == np.repeat(np.arange(rotations), 20 // rotations).tolist()
    for group in range(rotations):
        members = np.flatnonzero(split.groups == group)
        assert {split.transforms[client] for client in members} == {Transform(group * 360 // rotations)}
        for parts in (split.train, split.test):
            held = np.concatenate([parts[client] for client in members])
            np.testing.assert_array_equal(np.sort(held), np.arange(900))


def test_shifted_gives_each_client_as_many_examples_of_its_part_as_are_asked_for():
    whole = shifted(labelled(balanced(800)), seed=0, clients=8)
    split = shifted(labelled(balanced(800)), seed=0, clients=8, examples_per_client=320)
    held = {len(part) for part in whole.train}
    assert len(held) == 1 and held.pop() > 320 and {len(part) for part in split.train} == {320}
    assert all(set(few) <= set(all_of_it) for few, all_of_it in zip(split.train, whole.train))
    assert sum(map(len, split.test)) == sum(map(len, whole.test))
    # At random also where the set is in the order of its classes, of which the first ones would be all.
    ordered = labelled(np.sort(balanced(800)))
    few = shifted(ordered, seed=0, clients=8, examples_per_client=len(whole.train[0]) // 2)
    assert all(len(np.unique(ordered.train.y[part])) == ordered.num_classes for part in few.train)
    with pytest.raises(UserError, match=f"examples_per_client is 9999; a client's part has {len(whole.train[0])}"):
        shifted(labelled(balanced(800)), seed=0, clients=8, examples_per_client=9999)


def test_shifted_moves_labels_by_group():
    split = shifted(labelled(balanced(800)), seed=0, clients=8)
    assert [each.label_shift for each in split.transforms] == [0, 0, 3, 3, 6, 6, 9, 9]
    assert split.groups.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def owners():
    rng = np.random.default_rng(0)
    train_owner = rng.integers(0, 6, 200).astype(np.int32)
    train_owner[:6] = np.arange(6)
    test_owner = rng.integers(0, 5, 60).astype(np.int32)  # owner 5 has no test image
    return labelled(rng.integers(0, 4, 200), rng.integers(0, 4, 60), 4, train_owner=train_owner, test_owner=test_owner)


def test_by_owner_gives_everyone_their_own():
    data = owners()
    split = by_owner(data, seed=0)
    assert len(split.train) == 5  # not owner 5
    for owner, (train, test) in enumerate(zip(split.train, split.test, strict=True)):
        np.testing.assert_array_equal(train, np.flatnonzero(data.train.owner == owner))
        np.testing.assert_array_equal(test, np.flatnonzero(data.test.owner == owner))
    whole = by_owner(data, seed=0, min_test=0)
    assert len(whole.train) == 6
    assert split.groups is None
    told = "only owners with 1 or more training and 1 or more test images are clients; left out: 5"
    assert (split.note, whole.note) == (told, "")
    noted = dataclasses.replace(data, note="a part")
    assert federated(noted, split, "by_owner").note == f"a part; {told}"


def test_by_owner_takes_some_at_random_and_drops_small_ones():
    data = owners()
    taken = {tuple(index[0] for index in by_owner(data, seed=seed, clients=2).train) for seed in range(12)}
    assert len(taken) > 2
    sizes = np.bincount(data.train.owner)[:5]
    least = int(np.sort(sizes)[2])
    assert len(by_owner(data, seed=0, min_train=least).train) == (sizes >= least).sum()
    with pytest.raises(UserError, match="clients is 6; toy has 5 owners with 1 or more training and 1 or more"):
        by_owner(data, seed=0, clients=6)


def test_by_attribute_holds_one_attribute_each():
    rng = np.random.default_rng(0)
    marks = rng.random((400, 4)) < 0.4
    names = ("Bald", "Smiling", "Wavy_Hair", "Wearing_Hat")
    y = rng.integers(0, 2, 400)
    data = labelled(y, train_attributes=marks, test_attributes=marks, attribute_names=names)
    split = by_attribute(data, seed=0, clients=9)
    assert split.groups.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    for group in range(3):
        only = np.flatnonzero(marks[:, 1 + group] & (marks[:, 1:].sum(axis=1) == 1))
        for parts in (split.train, split.test):
            held = np.concatenate([parts[client] for client in np.flatnonzero(split.groups == group)])
            np.testing.assert_array_equal(np.sort(held), only)
    with pytest.raises(UserError, match="did you mean 'Smiling'"):
        by_attribute(data, seed=0, clients=4, attributes=["Smilin", "Bald"])


IMPOSSIBLE = [
    (iid, {"clients": 101}, "101 clients and only 100 training examples"),
    (iid, {"clients": 0}, "clients is 0; it must be a whole number from 1"),
    (iid, {"clients": 2.5}, "clients is 2.5"),
    (iid, {"clients": 5, "test": "clases"}, "unknown test 'clases'; did you mean 'classes'"),
    (iid, {"clients": 5, "test": "own"}, r"unknown test 'own' \(allowed: all, classes, share\)"),
    (label_skew, {"clients": 5, "classes_per_client": 11}, "toy has 10 classes"),
    (label_skew, {"clients": 5, "classes_per_client": 0}, "classes_per_client is 0"),
    (label_skew, {"clients": 110, "classes_per_client": 1}, r"leaves client 100 .* \(class 0: 10 for 11 cl"),
    (dirichlet, {"clients": 11, "alpha": 1.0}, "10 each need 110"),
    (dirichlet, {"clients": 10, "alpha": 0.0}, "alpha is 0.0; it must be a number from 0.001"),
    (dirichlet, {"clients": 10, "alpha": float("nan")}, "alpha is nan"),
    (dirichlet, {"clients": 9, "alpha": 0.01}, "did not reach min_size = 10 .*the smallest client had 6 ex"),
    (dirichlet, {"clients": 5, "alpha": 1e-300}, "alpha is 1e-300; it must be a number from 0.001"),
    (quantity_skew, {"clients": 20}, "10 each need 200"),
    (quantity_skew, {"clients": 5, "power": -1}, "power is -1"),
    (rotated, {"clients": 20, "power": 1, "reuse": False}, "10 each need 200"),
    (label_groups, {"clients": 5}, "needs either groups"),
    (label_groups, {"clients": 5, "groups": [[0]], "scheme": "flt1"}, "needs either groups"),
    (label_groups, {"clients": 5, "groups": [[0], [10]]}, "a class in groups is 10"),
    (label_groups, {"clients": 5, "groups": [[0, 0]]}, "must be a list of different classes"),
    (label_groups, {"clients": 5, "groups": 3}, "it must be lists of classes"),
    (label_groups, {"clients": 1, "groups": [[0], [1]]}, "clients is 1; it must be a multiple of 2, the number of "),
    (label_groups, {"clients": 22, "groups": [[0], [1]]}, "11 clients and only 10 examples of classes"),
    (label_groups, {"clients": 5, "scheme": "flt3"}, "unknown scheme 'flt3'; did you mean 'flt"),
    (structured, {"clients": 3}, "clients is 3; it must be a multiple of 2, the number of groups of classes"),
    (structured, {"clients": 52}, "50 examples; structured needs 52, two for each client"),
    (structured, {"clients": 4, "classes_per_group": 11}, "classes_per_group is 11; it must be a whole number"),
    (rotated, {"clients": 8, "rotations": 3}, "clients is 8; it must be a multiple of 3, the number of rotations"),
    (
        rotated,
        {"clients": 8, "rotations": 0},
        "rotations is 0; it must be a whole number from 1 to 360 or different whole degrees",
    ),
    (
        rotated,
        {"clients": 8, "rotations": [0, 360]},
        "rotations is .*; it must be a whole number .* degrees from 0 to 359",
    ),
    (
        rotated,
        {"clients": 8, "rotations": [90, 90]},
        "rotations is .*; it must be different whole degrees from 0 to 359",
    ),
    (rotated, {"clients": 404}, "101 clients and only 100 training examples"),
    (rotated, {"clients": 7}, "clients is 7; it must be a multiple of 4, the number of rotations"),
    (rotated, {"clients": 8, "reuse": 1}, "reuse is 1; it must be true or false"),
    (shifted, {"clients": 8, "shifts": [0, 0]}, "it must be different whole numbers"),
    (shifted, {"clients": 8, "shifts": [0, 10]}, "a shift is 10"),
    (by_owner, {}, "by_owner needs a data set with owners"),
    (by_attribute, {"clients": 3}, "by_attribute needs a data set with attributes"),
]


@pytest.mark.parametrize(("rule", "options", "message"), IMPOSSIBLE)
def test_impossible_parameters_are_refused(rule, options, message, monkeypatch):
    monkeypatch.setattr(by_label, "_ATTEMPTS", 50)  # of thousands, in which none succeeds either
    with pytest.raises(UserError, match=message) as refused:
        rule(labelled(balanced(100)), seed=0, **options)
    assert "\n" not in str(refused.value)


def test_clients_may_be_as_many_as_there_are_examples_for():
    data = labelled(balanced(100))
    assert {len(part) for part in iid(data, seed=0, clients=100, test="all").train} == {1}
    assert {len(part) for part in structured(data, seed=0, clients=50).train} == {2}
    alone = structured(data, seed=0, clients=20, classes_per_group=3)  # the last class is a group
    assert set(data.train.y[alone.train[-1]]) == {9} and alone.groups.tolist() == np.repeat(range(4), 5).tolist()


def test_the_examples_of_a_class_are_in_their_order_on_every_machine():
    """Who gets which would follow from how a processor sorts."""
    y = np.random.default_rng(0).integers(0, 3, 5000)
    for label, index in enumerate(by_class(y, 3)):
        np.testing.assert_array_equal(index, np.flatnonzero(y == label))


@pytest.mark.parametrize(("rotations", "degrees"), [(10, range(0, 360, 36)), ([0, 15, 200], (0, 15, 200))])
def test_any_number_of_rotations_and_any_angles(rotations, degrees):
    data = labelled(balanced(300), shape=(6, 6, 1))
    split = rotated(data, seed=0, clients=30, rotations=rotations)
    found = [each.degrees for each in split.transforms]
    assert found == np.repeat(list(degrees), 30 // len(degrees)).tolist()
    images = Images(np.arange(72, dtype=np.uint8).reshape(2, 6, 6, 1), np.zeros(2, np.int32))
    np.testing.assert_array_equal(split.transforms[-1].apply(images, 4).x, turned(images.x, degrees[-1]))
    parted = label_groups(data, seed=0, clients=30, groups=[[0], [1]], rotations=[45, 200, 300], test="share")
    assert [each.degrees for each in parted.transforms] == 10 * [45] + 10 * [200] + 10 * [300]


def test_oblong_images_do_not_turn_by_90_degrees():
    data = labelled(balanced(100), shape=(2, 3, 1))
    with pytest.raises(UserError, match="images are 2x3: only square ones"):
        rotated(data, seed=0, clients=4)
    assert len(rotated(data, seed=0, clients=4, rotations=2).train) == 4


def test_schemes_are_for_ten_classes():
    with pytest.raises(UserError, match="scheme 'stocfl' is for 10 classes, not 4"):
        label_groups(labelled(balanced(100, 4)), seed=0, clients=4, scheme="stocfl")
