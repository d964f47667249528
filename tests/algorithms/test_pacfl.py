"""PACFL on digits of which some are turned on their side: clusters, thresholds, newcomers."""

import dataclasses
import functools

import numpy as np
import pytest

import tffcl
from tests.short_runs import TRAINING, cohort_of, models_of, split
from tffcl.algorithms.pacfl import PACFLParameters, build_pacfl
from tffcl.clients import sampling
from tffcl.clients.population import as_examples, population_of
from tffcl.errors import UserError
from tffcl.rounds.traffic import Traffic
from tffcl.runner.state_arrays import pack, unpack

HOW = PACFLParameters(num_vectors=5, metric="angle_sum", num_clusters=2)


@functools.cache
def pacfl(model, how=HOW):
    return build_pacfl(model, TRAINING, how)


def test_it_finds_who_sees_digits_on_the_side(tff_worker, model, digit_clients):
    population = digit_clients([60] * 8, turns=[0, 1, 0, 1, 1, 0, 0, 1])
    state = pacfl(model).initialize(population)
    assert state.assignment.tolist() == [0, 1, 0, 1, 1, 0, 0, 1]
    assert state.models.shape == (2, model.size)
    np.testing.assert_array_equal(state.models, [model.initial] * 2)


def test_a_threshold_and_its_count_give_the_same_clusters(tff_worker, model, digit_clients):
    population = digit_clients([60] * 6, turns=[0, 1, 0, 1, 1, 0])
    by_count = pacfl(model).initialize(population)
    how = PACFLParameters(num_vectors=5, metric="angle_sum", threshold=float(by_count.threshold))
    by_threshold = pacfl(model, how).initialize(population)
    np.testing.assert_array_equal(by_count.assignment, by_threshold.assignment)
    suggested = pacfl(model, PACFLParameters(num_vectors=5, metric="angle_sum")).initialize(population)
    np.testing.assert_array_equal(suggested.assignment, by_count.assignment)


def test_newcomers_join_and_nobody_moves(tff_worker, model, digit_clients):
    everyone = digit_clients([60] * 8, turns=[0, 1, 0, 1, 1, 0, 0, 1])
    known, newcomers = split(everyone, [3, 6])
    method = pacfl(model)
    state = method.initialize(known)
    state, _ = method.next(state, cohort_of(known, known.client_ids, 1))
    admitted = method.admit(state, newcomers)
    assert admitted.client_ids.tolist() == list(range(8))
    assert admitted.assignment.tolist() == [0, 1, 0, 1, 1, 0, 0, 1]
    np.testing.assert_array_equal(admitted.models, state.models)
    whole = pacfl(model).initialize(everyone)
    np.testing.assert_allclose(admitted.proximity, whole.proximity, atol=1e-3)
    with pytest.raises(UserError, match="client 3 is no newcomer"):
        method.admit(admitted, newcomers)


def test_newcomers_that_are_like_nobody_found_a_cluster(tff_worker, model, digit_clients):
    everyone = digit_clients([60] * 6, turns=[0, 0, 0, 0, 1, 1])
    known, newcomers = split(everyone, [4, 5])
    how = PACFLParameters(num_vectors=5, metric="angle_sum", threshold=205.0)
    method = pacfl(model, how)
    state = method.initialize(known)
    assert state.assignment.tolist() == [0] * 4
    trained, _ = method.next(state, cohort_of(known, known.client_ids, 1))
    admitted = method.admit(trained, newcomers)
    assert admitted.assignment.tolist() == [0] * 4 + [1] * 2
    np.testing.assert_array_equal(admitted.models[1], model.initial)
    after, _ = method.next(admitted, cohort_of(everyone, everyone.client_ids, 2))
    assert (np.abs(after.models - admitted.models).max(axis=1) > 1e-3).all()


@pytest.mark.parametrize(
    "values, message",
    [
        ({"threshold": 3.0, "num_clusters": 2}, "threshold or num_clusters, not both"),
        ({"metric": "smalest_angle"}, "did you mean 'smallest_angle'"),
        ({"linkage": "ward"}, "unknown linkage 'ward'"),
    ],
)
def test_bad_parameters(values, message):
    with pytest.raises(UserError, match=message):
        PACFLParameters(**values)


def test_more_clusters_than_clients(tff_worker, model, digit_clients):
    method = pacfl(model, PACFLParameters(num_clusters=4))
    with pytest.raises(UserError, match="num_clusters is 4; it must be from 1 to the number of clients, 3"):
        method.initialize(digit_clients([20] * 3))


def test_copies_of_one_client_can_be_cut_by_count(tff_worker, model, digits):
    """All merges have height 0, so no threshold gives two clusters; the count is met all the same."""
    x, y = digits
    copy = as_examples(x[:30], y[:30])
    state = pacfl(model).initialize(population_of(dict.fromkeys(range(4), copy)))
    assert state.assignment.max() == 1
    assert state.threshold == 0


def test_clients_are_clustered_as_they_join(tff_worker, model, digit_clients):
    """Alg. 1 lines 7 to 20: the first cohort is clustered, who comes later is placed, and trains its cluster's model."""
    turns = [0, 1, 0, 1, 1, 0, 0, 1]
    population = digit_clients([60] * 8, turns=turns)
    how = dataclasses.replace(HOW, when="as_they_join")
    method, before = pacfl(model, how), pacfl(model)
    state = method.initialize(population)
    np.testing.assert_array_equal(models_of(method, state, population), [model.initial] * 8)
    assert not method.views(state).known.any()
    first = [0, 1, 2, 3]
    state, metrics = method.next(state, cohort_of(population, first, 1))
    assert metrics.signatures.up == 4 * method.joining.up
    alone = population.restricted(first)
    expected, _ = before.next(before.initialize(alone), cohort_of(alone, first, 1))
    views = method.views(state)
    assert views.known.tolist() == [True] * 4 + [False] * 4 and views.metric is None
    np.testing.assert_array_equal(views.clusters[:4], expected.assignment)
    assert len(set(views.clusters)) == 2 + 4  # who has not come yet is alone
    models = models_of(method, state, population)
    np.testing.assert_array_equal(models[:4], models_of(before, expected, alone))
    np.testing.assert_array_equal(models[4:], [model.initial] * 4)
    state, metrics = method.next(state, cohort_of(population, [0, 4, 5], 2))
    expected = before.admit(expected, population.restricted([4, 5]))
    expected, plain = before.next(expected, cohort_of(population, [0, 4, 5], 2))
    assert metrics.traffic.up == plain.traffic.up + 2 * method.joining.up
    np.testing.assert_array_equal(
        models_of(method, state, population)[:6], models_of(before, expected, population.restricted(range(6)))
    )
    # Newcomers before the first clusters are as all others: the first cohort forms the clusters, and not they.
    everyone = method.admit(method.initialize(alone), population.restricted([4]))
    assert everyone.client_ids.tolist() == [0, 1, 2, 3, 4] and everyone.met is None
    with pytest.raises(UserError, match="nobody has taken part in this run"):
        method.exports().server_values(everyone)
    state, _ = method.next(state, cohort_of(population, [6, 7], 3))
    assert method.views(state).clusters.tolist() == turns and method.views(state).metric.proximity.shape == (8, 8)
    arrays, _ = pack({"state": state})
    again = unpack(arrays, {"state": method.state_class})["state"]
    np.testing.assert_array_equal(models_of(method, again, population), models_of(method, state, population))


def test_one_cluster_is_fedavg_for_newcomers_too(tff_worker, model, digit_clients, population):
    """Whoever comes is in it, however far its subspace is from those of the first, whose tree has a lower top."""
    turned = digit_clients([60] * 6, turns=[0, 0, 0, 2, 1, 3])
    method = pacfl(model, PACFLParameters(num_vectors=3, num_clusters=1))
    state = method.initialize(turned.restricted([0, 1, 2]))
    joined = method.admit(state, turned.restricted([3, 4, 5]))
    assert joined.proximity[:3, 3:].min() > 1.05 * joined.proximity[:3, :3].max()
    assert joined.assignment.tolist() == [0] * 6 and len(joined.models) == 1
    assert np.isfinite(joined.threshold)


def test_a_first_cohort_among_which_there_is_no_gap(tff_worker, model, digit_clients):
    """The cut is found once: of two clients it would put everyone who comes later in a cluster of its own, or all in one."""
    population = digit_clients([60] * 4)
    method = pacfl(model, PACFLParameters(num_vectors=3, when="as_they_join"))
    with pytest.raises(
        UserError, match="the first round has 2 clients, among which no gap tells clusters apart; it needs 3 clients"
    ):
        method.next(method.initialize(population), cohort_of(population, [0, 1], 1))


def test_a_first_cohort_with_fewer_clients_than_clusters(tff_worker, model, digit_clients):
    method = pacfl(model, dataclasses.replace(HOW, num_clusters=3, when="as_they_join"))
    population = digit_clients([60] * 4)
    with pytest.raises(UserError, match="num_clusters is 3; it must be from 1 to the number of clients, 2"):
        method.next(method.initialize(population), cohort_of(population, [0, 1], 1))


@pytest.mark.parametrize("how, enough", [({}, 3), ({"num_clusters": 2}, 2), ({"threshold": 5.0}, 1)], ids=str)
def test_a_poisson_cohort_that_is_too_small_for_the_first_clusters_is_left_out(tff_worker, model, digit_clients, how, enough):
    """A run does not end by chance, and does not form clusters of too few."""
    population = digit_clients([60] * 4)
    method = pacfl(model, PACFLParameters(num_vectors=3, when="as_they_join", **how))
    state = start = method.initialize(population)
    for number in range(1, enough):
        state, metrics = method.next(state, cohort_of(population, range(number), number, rate=0.5))
        assert state is start and not len(metrics.client_ids) and metrics.traffic == Traffic()
    state, metrics = method.next(state, cohort_of(population, range(enough), 5, rate=0.5))
    assert method.views(state).known.tolist() == [client < enough for client in range(4)] and len(metrics.client_ids) == enough


def test_a_run_whose_first_cohorts_are_too_small_for_clusters_goes_on(tff_worker, model, digit_clients, tmp_path):
    population = digit_clients([60] * 4)

    def drawn(seed):
        return [len(sampling.sample_cohort(population.client_ids, 2, seed, number, "poisson")) for number in (1, 2)]

    seed = next(seed for seed in range(99) if drawn(seed) in ([1, 3], [2, 3], [2, 4]))
    method = pacfl(model, PACFLParameters(num_vectors=3, num_clusters=3, when="as_they_join"))
    how = {"rounds": 2, "clients_per_round": 2, "sample": "poisson", "evaluate_every": 1, "show_progress": False}
    run = tffcl.train(method, population, seed=seed, out=tmp_path / "run", **how)
    assert np.isnan(run.rounds["train_loss"]).tolist() == [True, False] and run.rounds["up_bytes"][0] == 0
    assert run.client_columns["rounds_trained"].sum() == drawn(seed)[1]
