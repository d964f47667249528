"""A composed round on a cohort: what it refuses, local tests, cohorts that train in parts."""

import dataclasses

import numpy as np
import pytest

from tests.short_runs import TRAINING, assert_close, cohort_of
from tffcl.algorithms.ditto import DittoParameters, build_ditto
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.algorithms.solo import build_solo
from tffcl.client_work.local_evaluation import build_count_correct
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.errors import UserError
from tffcl.rounds import simulation


def test_a_model_that_is_not_finite_names_the_client_and_changes_nothing(tff_worker, model, digit_clients):
    population = digit_clients([30, 30])
    method = build_fedavg(model, LocalTraining(epochs=3, learning_rate=1e30))
    state = method.initialize(population)
    with pytest.raises(UserError, match=r"client 0 trained a model that is not finite .* in round 4; a lower learning_rate"):
        method.next(state, cohort_of(population, [0, 1], 4))
    np.testing.assert_array_equal(state.models[0], model.initial)


def test_a_client_without_examples_is_refused(digit_clients):
    with pytest.raises(UserError, match="client 1 has no training examples"):
        digit_clients([10, 0, 10])


def test_an_unknown_client_is_named(tff_worker, model, digit_clients):
    method = build_fedavg(model, TRAINING)
    state = method.initialize(digit_clients([10, 10]))
    with pytest.raises(UserError, match="client 5 is not known; there are 2 clients, 0 to 1"):
        method.models_for(state, [0, 5])


def test_models_that_are_too_large_for_one_message_are_refused(tff_worker, model, population, monkeypatch):
    monkeypatch.setattr(simulation, "MESSAGE_BYTES", 4 * model.size - 1)
    method = build_fedavg(model, TRAINING)
    with pytest.raises(UserError, match=f"the models of round 3 take {4 * model.size:,} bytes"):
        method.next(method.initialize(population), cohort_of(population, [0, 1], 3))


def test_the_local_test_is_of_the_clients_own_trained_model(tff_worker, model, population):
    """SOLO's next model of a client is the one whose local test the round reports."""
    solo = build_solo(model, TRAINING)
    cohort = cohort_of(population, [0, 1], 1, local_test=np.array([True, False]))
    state, metrics = solo.next(solo.initialize(population), cohort)
    models, keys = solo.models_for(state, [0])
    test = next(iter(population.test_examples(0).batch(100)))
    assert metrics.test_correct[0] == int(build_count_correct(model)(models[keys[0]], test["x"], test["y"]))
    assert metrics.test_examples.tolist() == [50, 0]


def test_a_cohort_that_trains_in_parts_trains_the_same(tff_worker, model, population, monkeypatch):
    method, run = build_ditto(model, TRAINING, DittoParameters(0.3)), simulation._run
    cohort = cohort_of(population, [3, 0, 4, 1], 1, local_test=np.array([True, False, True, True]))
    sizes = []

    def counted(composed, few, *given):
        sizes.append((bool(composed.uploads), len(few.client_ids)))
        return run(composed, few, *given)

    monkeypatch.setattr(simulation, "_run", counted)
    whole, told = method.next(method.initialize(population), cohort)
    monkeypatch.setattr(simulation, "_KEPT_BYTES_AT_A_TIME", 3 * 4 * model.size)
    parts, again = method.next(method.initialize(population), cohort)
    assert sizes == [(False, 4), (True, 4), (False, 3), (False, 1), (True, 4)]
    np.testing.assert_array_equal(parts.models, whole.models)
    np.testing.assert_array_equal(parts.kept.of(cohort.client_ids), whole.kept.of(cohort.client_ids))
    for name in ("test_examples", "test_correct", "losses", "examples"):
        np.testing.assert_array_equal(getattr(again, name), getattr(told, name))


def test_what_clients_keep_is_never_traffic(tff_worker, model, population):
    solo = build_solo(model, TRAINING)
    state, metrics = solo.next(solo.initialize(population), cohort_of(population, [0, 1], 1))
    assert dataclasses.astuple(metrics.traffic) == (0, 0)
    assert_close(state.models, [model.initial])
    assert state.kept.has([0, 1, 2]).tolist() == [True, True, False]
