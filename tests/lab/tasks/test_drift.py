"""Clients that exchange their data."""

import dataclasses

import numpy as np
import pytest

from tffcl.clients import cohort
from tffcl.errors import UserError
from tffcl.lab.datasets.federated import load_federated
from tffcl.lab.tasks import resolve
from tffcl.lab.tasks.populations import drifted_in, drifting, drifting_clients, exchanged, next_groups, passed_on
from tffcl.lab.tasks.settings import DriftSettings

EVERYONE = np.arange(12)


@pytest.fixture(scope="module")
def rotated():
    return load_federated(
        {"name": "digits", "validation": 0.1},
        {"name": "rotated", "clients": 12, "rotations": 4, "reuse": False},
        seed=0,
    )


@pytest.mark.parametrize("count", [2, 3, 4, 5, 7, 12])
@pytest.mark.parametrize("seed", range(3))
def test_everyone_moves_to_another_group_and_no_data_is_lost(rotated, count, seed):
    chosen = drifting_clients(rotated, count, EVERYONE, seed=seed)
    assert len(set(chosen.tolist())) == count
    after = exchanged(rotated, passed_on(rotated, chosen))
    moved = after.true_groups != rotated.true_groups
    np.testing.assert_array_equal(np.flatnonzero(moved), np.sort(chosen))
    for client in range(12):
        same = np.array_equal(after.train_indices[client], rotated.train_indices[client])
        assert same == (client not in chosen)
    for part in ("train_indices", "test_indices"):
        everything = [np.sort(np.concatenate(getattr(each, part))) for each in (rotated, after)]
        np.testing.assert_array_equal(*everything)


def test_train_test_and_group_move_together(rotated):
    chosen = drifting_clients(rotated, 5, EVERYONE, seed=1)
    after = exchanged(rotated, passed_on(rotated, chosen))
    for client in chosen:
        (source,) = [k for k in range(12) if rotated.train_indices[k] is after.train_indices[client]]
        for kind in ("test_indices", "validation_indices"):
            np.testing.assert_array_equal(getattr(after, kind)[client], getattr(rotated, kind)[source])
        assert after.true_groups[client] == rotated.true_groups[source]


def test_without_groups_everyone_still_gets_others_data():
    data = load_federated({"name": "digits"}, {"name": "label_skew", "clients": 6, "classes_per_client": 2}, seed=0)
    chosen = drifting_clients(data, 6, EVERYONE[:6], seed=2)
    after = exchanged(data, passed_on(data, chosen))
    assert after.true_groups is None
    assert not any(np.array_equal(a, b) for a, b in zip(after.train_indices, data.train_indices, strict=True))


def test_groups_swap_their_data(rotated):
    after = exchanged(rotated, next_groups(rotated, EVERYONE))
    np.testing.assert_array_equal(after.true_groups, (rotated.true_groups + 1) % 4)
    ours, theirs = (np.sort(np.concatenate(each.train_indices)) for each in (after, rotated))
    np.testing.assert_array_equal(ours, theirs)
    two = dataclasses.replace(rotated, true_groups=rotated.true_groups % 2)
    np.testing.assert_array_equal(exchanged(two, next_groups(two, EVERYONE)).true_groups, 1 - two.true_groups)
    skewed = {"name": "label_skew", "clients": 6, "classes_per_client": 2}
    ungrouped = load_federated({"name": "digits"}, skewed, seed=0)
    with pytest.raises(UserError, match="has no groups to swap"):
        next_groups(ungrouped, np.arange(6))


def test_a_part_of_the_examples_is_exchanged(rotated):
    chosen = drifting_clients(rotated, 4, EVERYONE, seed=0)
    source = passed_on(rotated, chosen)
    for share, moved in ((0.25, False), (0.5, True)):
        after = exchanged(rotated, source, share)
        for client in chosen:
            own, others, now = rotated.train_indices[client], rotated.train_indices[source[client]], after.train_indices
            assert np.isin(now[client], others).sum() == round(share * len(others))
            assert np.isin(now[client], own).sum() == len(own) - round(share * len(own))
        np.testing.assert_array_equal(after.true_groups != rotated.true_groups, moved & np.isin(range(12), chosen))


def test_a_part_is_of_all_classes_and_grows():
    """Where a client's examples are in the order of their classes, the first half would be of some of them alone."""
    data = load_federated({"name": "digits"}, {"name": "dirichlet", "clients": 4, "alpha": 1.0}, seed=0)
    ordered = tuple(held[np.argsort(data.train.y[held], kind="stable")] for held in data.train_indices)
    data = dataclasses.replace(data, train_indices=ordered)
    client, source = 1, passed_on(data, np.arange(4))
    whole, before = data.train_indices[source[client]], np.array([], int)
    for share in (0.25, 0.5, 0.75):
        after = exchanged(data, source, share, seed=3)
        taken = after.train_indices[client][np.isin(after.train_indices[client], whole)]
        assert np.isin(before, taken).all()
        before = taken
        for each in np.unique(data.train.y[whole]):
            count = np.sum(data.train.y[whole] == each)
            assert abs(np.sum(data.train.y[taken] == each) - share * count) <= 3 * np.sqrt(count)
        everything = [np.sort(np.concatenate(each.train_indices)) for each in (data, after)]
        np.testing.assert_array_equal(*everything)


@pytest.mark.parametrize(
    "how, changes",
    [
        ({}, []),
        ({"clients": 4, "round": 5}, [5]),
        ({"clients": 4, "round": 5, "pattern": "incremental", "every": 2, "steps": 3}, [5, 7, 9]),
        ({"clients": 4, "round": 5, "pattern": "recurrent", "every": 3}, [5, 8, 11]),
        ({"round": 5, "pattern": "swapped"}, [5]),
    ],
)
def test_when_data_change(how, changes):
    assert DriftSettings(**how).rounds(12) == changes


@pytest.mark.parametrize(
    "how, shares",
    [
        ({"clients": 4}, {4: 0, 5: 1, 20: 1}),
        ({"clients": 4, "pattern": "incremental", "every": 2, "steps": 4}, {5: 0.25, 8: 0.5, 10: 0.75, 11: 1, 20: 1}),
        ({"clients": 4, "pattern": "recurrent", "every": 3}, {5: 1, 8: 0, 11: 1, 14: 0}),
        ({"pattern": "swapped"}, {4: 0, 5: 1, 20: 1}),
    ],
)
def test_which_share_of_their_data_clients_have_exchanged_in_a_round(rotated, how, shares):
    overrides = {"train": {"rounds": 20}, "drift": {"round": 5, **how}}
    config = resolve.resolve("demo_digits", "fedavg", overrides=overrides)
    clients = drifting(config, rotated) if "clients" in how else np.arange(12)
    source = passed_on(rotated, clients) if "clients" in how else next_groups(rotated, EVERYONE)
    seed = cohort.stream(config.seed, "drift")
    for number, share in shares.items():
        (found, versions), expected = drifted_in(config, rotated, number), exchanged(rotated, source, share, seed=seed)
        for kind in ("train_indices", "test_indices", "validation_indices"):
            for own, wanted in zip(getattr(found, kind), getattr(expected, kind) if share else getattr(rotated, kind)):
                np.testing.assert_array_equal(own, wanted)
        changes = len(config.drift.rounds(number))
        assert versions.tolist() == [changes if client in clients else 0 for client in range(12)]


def test_swapped_groups_take_no_number_of_clients():
    with pytest.raises(UserError, match="clients is 4; where pattern is"):
        DriftSettings(clients=4, pattern="swapped")


@pytest.mark.parametrize("joined", [0, 9])
def test_groups_swap_their_data_without_newcomers(rotated, joined):
    changes = {"drift": {"pattern": "swapped", "round": 5}, "newcomers": {"clients": 4, "round": joined}}
    config = resolve.resolve("demo_digits", "fedavg", overrides=changes | {"train": {"rounds": 20}})
    there, late = config.participants(12), config.held_out(12)[1]
    found, versions = drifted_in(config, rotated, 5)
    assert versions[there].all() and not versions[late].any()
    for client in late:
        assert found.train_indices[client] is rotated.train_indices[client]
        assert found.true_groups[client] == rotated.true_groups[client]
    kept = {id(rotated.train_indices[client]) for client in late}
    assert not kept & {id(found.train_indices[client]) for client in there}
    assert np.all(found.true_groups[there] != rotated.true_groups[there])


@pytest.mark.parametrize("count", [1, 13])
def test_impossible_numbers(rotated, count):
    wrong = f"drift.clients is {count}; it must be from 2 to the number of clients that take part before, 12"
    with pytest.raises(UserError, match=wrong):
        drifting_clients(rotated, count, EVERYONE, seed=0)


@pytest.mark.parametrize("joined, among", [(0, 8), (5, 8), (9, 8), (4, 12)])
def test_those_change_who_take_part_before(rotated, joined, among):
    """A client that is held out then has no data that could change; it also gives nobody its own."""
    newcomers = {"clients": 4, "round": joined}
    changes = {"drift": {"clients": among, "round": 5}, "newcomers": newcomers, "train": {"rounds": 20}}
    config = resolve.resolve("demo_digits", "fedavg", overrides=changes)
    expected = EVERYONE if among == 12 else config.participants(12)
    np.testing.assert_array_equal(np.sort(drifting(config, rotated)), expected)
    too_many = resolve.resolve(
        "demo_digits", "fedavg", overrides={**changes, "drift": {"clients": among + 1, "round": 5}}
    )
    with pytest.raises(UserError, match=f"that take part before, {among}"):
        drifting(too_many, rotated)
