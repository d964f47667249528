"""FedSEM on digits: its limit, its centres, and clients that come late."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import tffcl
from tests.algorithms.conftest import OWNERS, same_groups
from tests.oracles import local_training
from tests.short_runs import TRAINING, assert_close, cohort_of, models_of, split, train
from tffcl import FlatModel, LocalTraining, Population
from tffcl.algorithms.cfl import build_cfl
from tffcl.algorithms.clustered_training import build_collected_round
from tffcl.algorithms.each_round_parameters import CFLParameters, FedSEMParameters
from tffcl.algorithms.fedsem import build_fedsem
from tffcl.algorithms.solo import build_solo
from tffcl.errors import UserError
from tffcl.rounds.traffic import Traffic


@pytest.mark.slow  # as the means of those who end near a centre
def test_fedsem_with_one_centre_is_fedavg(tff_worker, model, population, reference):
    one = train(build_fedsem(model, TRAINING, FedSEMParameters(1)), population)
    assert len(one.models) == 1
    assert_close(one.models[0], reference("fedavg")[1][0])


@pytest.mark.slow
def test_fedsems_centres_are_the_means_of_the_models_near_them(tff_worker, model, grouped):
    method, solo = build_fedsem(model, TRAINING, FedSEMParameters(3)), build_solo(model, TRAINING)
    cohort = cohort_of(grouped, grouped.client_ids, 1)
    state, _ = method.next(method.initialize(grouped), cohort)
    trained = models_of(solo, solo.next(solo.initialize(grouped), cohort)[0], grouped)
    assert same_groups(state.assignment)
    for cluster in range(3):
        members = state.assignment == cluster
        assert_close(state.models[cluster], np.average(trained[members], axis=0, weights=grouped.sizes[members]))
    after, metrics = method.next(state, cohort_of(grouped, [0, 1, 2, 5], 2))
    np.testing.assert_array_equal(metrics.clusters, state.assignment[[0, 1, 2, 5]])
    absent = [3, 4, 6, 7, 8]
    np.testing.assert_array_equal(after.assignment[absent], state.assignment[absent])
    with pytest.raises(UserError, match="num_clusters is 3; it must be at most the clients of a round, 2"):
        method.next(method.initialize(grouped), cohort_of(grouped, [0, 1], 3))


def test_fedsems_centres_are_the_means_of_those_who_end_near_them(tff_worker, model, grouped):
    """Not of those who trained them: everybody trains another group's centre here, and ends near its own group's."""
    method, everyone = build_fedsem(model, TRAINING, FedSEMParameters(3)), grouped.client_ids
    state, _ = method.next(method.initialize(grouped), cohort_of(grouped, everyone, 1))
    near = model.initial + 0.01 * (state.models - model.initial)
    astray = dataclasses.replace(state, models=near, assignment=(state.assignment + 1) % 3)
    cohort = cohort_of(grouped, everyone, 2)
    after, metrics = method.next(astray, cohort)
    np.testing.assert_array_equal(metrics.clusters, astray.assignment)
    np.testing.assert_array_equal(after.assignment, state.assignment)
    starts = near[astray.assignment]
    trained = np.stack([local_training.trained(model, grouped, cohort, c, starts[c], TRAINING) for c in everyone])
    for cluster in range(3):
        members = after.assignment == cluster
        mean = np.average(trained[members], axis=0, weights=grouped.sizes[members])
        np.testing.assert_allclose(after.models[cluster], mean, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_first_round_of_few_by_chance_leaves_centres_at_the_initial_model(tff_worker, model, grouped):
    """They are there for clients that are nearer to them."""
    method = build_fedsem(model, TRAINING, FedSEMParameters(3))
    for drawn in ([0], [0, 3]):
        state, _ = method.next(method.initialize(grouped), cohort_of(grouped, drawn, 1, rate=0.2))
        assert state.models.shape == (3, model.size) and sorted(state.assignment[drawn]) == list(range(len(drawn)))
        moved = (state.models != model.initial).any(axis=1)
        assert moved.tolist() == [True] * len(drawn) + [False] * (3 - len(drawn))
        state, metrics = method.next(state, cohort_of(grouped, grouped.client_ids, 2, rate=0.2))
        assert np.isfinite(metrics.losses).all() and state.known.all()


def test_fedsems_centre_of_an_absent_group_stays(tff_worker, model, grouped):
    """scikit-learn's k-means would hand it to the farthest of the others."""
    method = build_fedsem(model, TRAINING, FedSEMParameters(3))
    state, _ = method.next(method.initialize(grouped), cohort_of(grouped, grouped.client_ids, 1))
    away = state.assignment == state.assignment[0]
    after, _ = method.next(state, cohort_of(grouped, grouped.client_ids[~away], 2))
    np.testing.assert_array_equal(after.assignment, state.assignment)
    changed = (after.models != state.models).any(axis=1)
    assert changed.sum() == 2 and not changed[state.assignment[0]]


@pytest.mark.slow
def test_fedsem_finds_the_clusters_of_clients_that_come_late(tff_worker, model, grouped):
    """Trained from another group's centre their models would stay near to it."""
    known, newcomers = split(grouped, [4, 8])
    method = build_fedsem(model, TRAINING, FedSEMParameters(3))
    state, firsts = method.initialize(known), np.array([OWNERS.index(owner) for owner in range(3)])
    for number in range(1, 9):
        state, metrics = method.next(state, cohort_of(known, firsts, number))
        assert metrics.signatures == Traffic()
    np.testing.assert_array_equal(np.flatnonzero(state.known), np.searchsorted(known.client_ids, firsts))
    late = np.setdiff1d(known.client_ids, firsts)
    state, metrics = method.next(state, cohort_of(known, late, 9))
    sent = build_collected_round(model, TRAINING).transfer
    assert metrics.signatures == Traffic(len(late) * sent.down_bytes(1), len(late) * sent.up_bytes())
    assert metrics.traffic == metrics.signatures + metrics.signatures
    assert state.known.all()
    np.testing.assert_array_equal(metrics.clusters, state.clusters(late))  # they trained their own clusters' models
    admitted = method.admit(state, newcomers)
    assert same_groups(admitted.assignment)
    assert admitted.known.all()


def test_fedsem_places_late_clients_by_the_first_rounds_centres(tff_worker, model, grouped):
    """Wherever the centres have gone since."""
    known, newcomers = split(grouped, [4, 8])
    method = build_fedsem(model, TRAINING, FedSEMParameters(3))
    state, _ = method.next(method.initialize(known), cohort_of(known, known.client_ids, 1))
    assert same_groups(method.admit(state, newcomers).assignment)
    gone = dataclasses.replace(state, models=np.roll(state.models, 1, axis=0))
    assert same_groups(method.admit(gone, newcomers).assignment)


@pytest.mark.slow  # that of a warm-up is another
def test_fedsem_places_late_clients_at_the_first_rounds_learning_rate(tff_worker, model, grouped):
    """Steps of the present rate, ten thousandths of the first one, would leave everybody at the centre nearest to the
    initial model.
    """
    known, newcomers = split(grouped, [4, 8])
    method = build_fedsem(model, dataclasses.replace(TRAINING, learning_rate_decay=0.9), FedSEMParameters(3))
    firsts = np.array([OWNERS.index(owner) for owner in range(3)])
    state, _ = method.next(method.initialize(known), cohort_of(known, firsts, 1))
    centres = state.first_centres
    late = np.setdiff1d(known.client_ids, firsts)
    state, _ = method.next(state, cohort_of(known, late, 90))
    # They have trained with next to no step since: the centres tell where they were placed.
    np.testing.assert_allclose(state.models, centres, atol=1e-3)
    assert same_groups(method.admit(state, newcomers).assignment)


@pytest.mark.slow
def test_fedsem_places_late_clients_at_the_first_rounds_rate_of_a_warm_up(tff_worker, model, grouped, monkeypatch):
    """Which is a tenth of the full one."""
    warming = dataclasses.replace(TRAINING, learning_rate_decay=tffcl.LearningRateDecay(warm_up=10))
    method, compared = build_fedsem(model, warming, FedSEMParameters(2)), []
    state, _ = method.next(method.initialize(grouped), cohort_of(grouped, [0, 1, 2], 1))
    nearest = method._nearest
    monkeypatch.setattr(
        method, "_nearest", lambda trained, centres: compared.append(trained) or nearest(trained, centres)
    )
    method.next(state, cohort_of(grouped, [4], 30))
    slow = dataclasses.replace(TRAINING, learning_rate=TRAINING.learning_rate / 10)
    expected = local_training.trained(model, grouped, cohort_of(grouped, [4], 1), 4, model.initial, slow)
    np.testing.assert_allclose(compared[0][0], expected, rtol=0, atol=1e-5)


def test_fedsems_newcomers_before_the_first_round_are_as_all_others(tff_worker, model, grouped):
    known, newcomers = split(grouped, [4, 8])
    method = build_fedsem(model, TRAINING, FedSEMParameters(3))
    cohort = cohort_of(grouped, grouped.client_ids, 1)
    joined = method.next(method.admit(method.initialize(known), newcomers), cohort)[0]
    together = method.next(method.initialize(grouped), cohort)[0]
    np.testing.assert_array_equal(joined.assignment, together.assignment)
    assert_close(joined.models, together.models)


@pytest.mark.slow
def test_statistics_decide_no_clusters(tff_worker):
    """Two rules of labels on the same examples of scale 10, whose moments would be most of a vector's length."""
    rng, clients = np.random.default_rng(5), {}
    for number in range(8):
        x = (10 * rng.normal(size=(80, 8))).astype(np.float32)
        clients[number] = x, (x[:, 0] > 0).astype(int) ^ number % 2
    population = Population.from_arrays(clients, clients)
    tf.keras.utils.set_random_seed(1)
    layers = tf.keras.layers
    network = tf.keras.Sequential([layers.Input([8]), layers.BatchNormalization(), layers.Dense(2)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = FlatModel.from_keras(network, loss, (tf.TensorSpec([None, 8]), tf.TensorSpec([None], tf.int32)))
    training = LocalTraining(epochs=5, batch_size=10, learning_rate=0.1)
    at_once = CFLParameters(relative=True, stationary_norm=1.0, progress_norm=0.1, first_rounds=0)
    fedsem = build_fedsem(model, training, FedSEMParameters(num_clusters=2))
    for method in (fedsem, build_cfl(model, training, at_once)):
        state, _ = method.next(method.initialize(population), cohort_of(population, population.client_ids, 1))
        assert len(set(state.assignment[::2])) == len(set(state.assignment[1::2])) == 1, method.name
        assert state.assignment[0] != state.assignment[1], method.name
