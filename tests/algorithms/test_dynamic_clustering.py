"""FLT's flags of change: raised by clients, counted by the server, answered by new clusters."""

import numpy as np
import pytest

from tests.algorithms.test_flt import TRAINING, same_groups
from tests.algorithms.test_pacfl import split
from tffcl.algorithms.contracts import Cohort, Population
from tffcl.algorithms.dynamic_clustering import Triggers, mean_of_members, renumbered
from tffcl.algorithms.flt import TaskonomyClustering, build_flt
from tffcl.errors import UserError

EVERYONE = np.arange(9)


def flt(model, encoder, **how):
    how = {"gamma": 0.6, "distance": "matching", "num_neighbors": 5, "num_centres": 2, **how}
    return build_flt(model, TRAINING, TaskonomyClustering(fine_tune_epochs=0, **how), encoder=encoder, seed=4)


def exchanged(population: Population, first: int, second: int) -> Population:
    """Two clients hold each other's data."""
    source = np.arange(len(population.client_ids))
    source[[first, second]] = second, first
    return Population(
        population.client_ids,
        population.sizes[source],
        lambda client: population.examples(int(source[client])),
        lambda client: population.test_examples(int(source[client])),
        (source != np.arange(len(source))).astype(np.int32),
    )


def round_of(algorithm, state, population, clients, number):
    return algorithm.next(state, Cohort(population, np.array(clients), (7, number)))


@pytest.mark.parametrize("clusters", ["joint", "disjoint"])
def test_a_client_whose_data_change_is_clustered_anew_after_its_flag(tff_worker, model, encoder, grouped, clusters):
    algorithm = flt(model, encoder, clusters=clusters, change_flags=1)
    state = algorithm.initialize(grouped)
    before = state.assignment.copy()
    state, metrics = round_of(algorithm, state, grouped, EVERYONE, 1)
    assert dict(metrics.scalars) == {"change_flags": 0, "formed_anew": 0}
    plain_bytes = metrics.up_bytes
    after = exchanged(grouped, 0, 8)
    # Nobody knows of the change before the clients take part; one flag is not more than one.
    state, metrics = round_of(algorithm, state, after, [1, 2], 2)
    assert metrics.scalars["change_flags"] == 0
    state, metrics = round_of(algorithm, state, after, [0, 1], 3)
    assert dict(metrics.scalars) == {"change_flags": 1, "formed_anew": 0}
    np.testing.assert_array_equal(state.assignment, before)
    models = algorithm.assign(state, EVERYONE)[0].copy()
    state, metrics = round_of(algorithm, state, after, [8, 2], 4)
    assert dict(metrics.scalars) == {"change_flags": 2, "formed_anew": 1}
    assert metrics.up_bytes > 2 * algorithm.transfers["training"].up_bytes
    moved = before.copy()
    moved[[0, 8]] = before[[8, 0]]
    np.testing.assert_array_equal(state.assignment, moved)
    np.testing.assert_array_equal(state.extra["moved_in"], np.where(np.isin(EVERYONE, [0, 8]), 4, 0))
    np.testing.assert_array_equal(state.extra["flagged_in"], [3, 0, 0, 0, 0, 0, 0, 0, 4])
    assert not state.extra["flags"].any()
    # All have told; nobody raises a flag again.
    state, metrics = round_of(algorithm, state, after, EVERYONE, 5)
    assert dict(metrics.scalars) == {"change_flags": 0, "formed_anew": 0}
    assert metrics.up_bytes == plain_bytes and np.isfinite(models).all()


def test_clusters_formed_anew_of_unchanged_clients_change_nothing(tff_worker, model, encoder, grouped):
    for clusters in ("joint", "disjoint"):
        plain, dynamic = flt(model, encoder, clusters=clusters), flt(model, encoder, clusters=clusters, period=2)
        states = [each.initialize(grouped) for each in (plain, dynamic)]
        for number in (1, 2, 3):
            states = [round_of(each, state, grouped, [0, 4, 5, 8], number)[0] for each, state in zip((plain, dynamic), states)]
        np.testing.assert_array_equal(states[0].assignment, states[1].assignment)
        models = [each.assign(state, EVERYONE) for each, state in zip((plain, dynamic), states)]
        np.testing.assert_allclose(models[0][0][models[0][1]], models[1][0][models[1][1]], rtol=1e-5, atol=1e-7)


def test_a_period_forms_clusters_without_flags(tff_worker, model, encoder, grouped):
    algorithm = flt(model, encoder, clusters="disjoint", period=3)
    state, after = algorithm.initialize(grouped), exchanged(grouped, 2, 3)
    assert not any("changed" in str(each.type_signature) for each in algorithm.computations().values())
    anew = []
    for number in range(1, 5):
        state, metrics = round_of(algorithm, state, after, [0, 1], number)
        anew.append(metrics.scalars["formed_anew"])
    assert anew == [0, 0, 1, 0]
    np.testing.assert_array_equal(np.flatnonzero(state.extra["moved_in"]), [2, 3])


def test_newcomers_are_flags_too_and_are_part_of_the_new_clusters(tff_worker, model, encoder, grouped):
    known, newcomers = split(grouped, [4, 8])
    algorithm = flt(model, encoder, clusters="disjoint", change_flags=1)
    state = algorithm.admit(algorithm.initialize(known), newcomers)
    np.testing.assert_array_equal(state.extra["flags"], np.isin(EVERYONE, [4, 8]))
    state, metrics = round_of(algorithm, state, grouped, [0, 1], 1)
    assert dict(metrics.scalars) == {"change_flags": 2, "formed_anew": 1}
    assert same_groups(state.assignment)
    # Formed by all nine: as if they had been there from the beginning.
    whole = flt(model, encoder, clusters="disjoint").initialize(grouped)
    np.testing.assert_allclose(state.extra["proximity"], whole.extra["proximity"], rtol=1e-5)


def test_a_newcomers_own_flag_counts_from_when_it_raises_it(tff_worker, model, encoder, grouped):
    known, newcomers = split(grouped, [4, 8])
    algorithm = flt(model, encoder, clusters="disjoint", change_flags=3)
    state = algorithm.admit(algorithm.initialize(known), newcomers)
    state, _ = round_of(algorithm, state, exchanged(grouped, 0, 8), [0, 1, 8], 5)
    np.testing.assert_array_equal(state.extra["flagged_in"], np.where(np.isin(EVERYONE, [0, 8]), 5, 0))


def test_a_round_of_a_part_of_the_clients_cannot_form_clusters_anew(tff_worker, model, encoder, grouped):
    known, _ = split(grouped, [4, 8])
    algorithm = flt(model, encoder, clusters="disjoint", period=1)
    state = algorithm.initialize(grouped)
    with pytest.raises(UserError, match="population must be all that were admitted"):
        round_of(algorithm, state, known, [0, 1], 1)


def test_clusters_keep_the_number_that_most_members_had():
    before = np.array([2, 2, 0, 0, 1, 1])
    for labels, numbers, moved in (
        ([0, 0, 1, 1, 2, 2], [2, 2, 0, 0, 1, 1], []),
        ([0, 0, 1, 1, 2, 1], [2, 2, 0, 0, 1, 0], [5]),
        ([0, 0, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0], [4, 5]),  # no gaps: cluster 2 is number 1 now, and nobody has left it
    ):
        found, gone = renumbered(np.array(labels), before)
        np.testing.assert_array_equal(found, numbers)
        np.testing.assert_array_equal(np.flatnonzero(gone), moved)
    split_up, gone = renumbered(np.array([0, 3, 1, 1, 2, 2]), before)
    assert sorted(set(split_up.tolist())) == [0, 1, 2, 3] and split_up[2] == 0 and split_up[4] == 1
    assert gone.sum() == 1 and gone[:2].any()


def test_a_new_cluster_starts_from_its_members_models():
    models = np.array([[1.0, 0], [0, 2], [5, 5]], np.float32)
    start = mean_of_members(models, np.array([0, 1, 2, 1]), np.array([0, 0, 1, 1]), np.array([3, 1, 4, 4]))
    np.testing.assert_allclose(start, [[0.75, 0.5], [2.5, 3.5]])


@pytest.mark.parametrize("values, message", [({"flags": -1}, "change_flags is -1"), ({"period": 0}, "period is 0")])
def test_impossible_triggers(values, message):
    with pytest.raises(UserError, match=message):
        Triggers(**values)
    with pytest.raises(UserError, match=message):
        TaskonomyClustering(**{"change_flags" if key == "flags" else key: value for key, value in values.items()})
