"""A composed round on a cohort: what it refuses, local tests, cohorts that train in parts."""

import dataclasses
import threading

import numpy as np
import pytest

from tests.memory import resident_bytes
from tests.short_runs import TRAINING, assert_close, cohort_of
from tffcl.algorithms.ditto import build_ditto
from tffcl.algorithms.each_round_parameters import FedSEMParameters
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.algorithms.fedsem import build_fedsem
from tffcl.algorithms.solo import build_solo
from tffcl.algorithms.training_parameters import DittoParameters
from tffcl.client_work.evaluation import build_count_correct
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clients.client_examples import ClientExamples
from tffcl.clients.population import Population
from tffcl.clients.simulation_context import simulating
from tffcl.errors import UserError
from tffcl.rounds import blocks, shards, simulation
from tffcl.runtime import memory


def test_a_model_that_is_not_finite_names_the_client_and_changes_nothing(tff_worker, model, digit_clients):
    population = digit_clients([30, 30])
    method = build_fedavg(model, LocalTraining(epochs=3, learning_rate=1e30))
    state = method.initialize(population)
    with pytest.raises(
        UserError,
        match=r"client 0 trained a model that is not finite .* in round 4; a lower learning_rate .* scaling its "
        r"features where the model does not \(the largest is \d+\)",
    ):
        method.next(state, cohort_of(population, [0, 1], 4))
    np.testing.assert_array_equal(state.models[0], model.initial)


def test_what_to_scale_is_told_of_every_input_and_of_numbers_to_predict():
    given = {"age": np.array([40.0]), "pulse": np.array([-70.0])}, np.array([20_000.0])
    cohort = cohort_of(Population.from_arrays({"a": given}), [0], 4)
    with pytest.raises(
        UserError, match=r"client a .* its features .*largest is 70\), or its labels .*largest is 20000"
    ):
        simulation.check_finite({"finite": np.array([False]), "loss": np.array([np.nan])}, cohort)


def test_a_client_without_examples_is_refused(digit_clients):
    with pytest.raises(UserError, match="client 1 has no training examples"):
        digit_clients([10, 0, 10])


def test_an_unknown_client_is_named(tff_worker, model, digit_clients):
    method = build_fedavg(model, TRAINING)
    state = method.initialize(digit_clients([10, 10]))
    with pytest.raises(UserError, match="client 5 is not known; there are 2 clients, 0 to 1"):
        method.models_for(state, [0, 5])


def test_models_that_are_too_large_for_one_message_are_refused(tff_worker, model, population, monkeypatch):
    monkeypatch.setattr(blocks, "MESSAGE_ROOM", 4 * model.size - 1)
    method = build_fedavg(model, TRAINING)
    with pytest.raises(UserError, match="the models of round 3 take .* bytes; one message"):
        method.next(method.initialize(population), cohort_of(population, [0, 1], 3))


def test_the_local_test_is_of_the_clients_own_trained_model(tff_worker, model, population):
    """SOLO's next model of a client is the one whose local test the round reports."""
    solo = build_solo(model, TRAINING)
    cohort = cohort_of(population, [0, 1], 1, local_test=np.array([True, False]))
    state, metrics = solo.next(solo.initialize(population), cohort)
    models, keys = solo.models_for(state, [0])
    test = next(iter(population.test(0).dataset.batch(100)))
    assert metrics.test_correct[0] == int(build_count_correct(model)(models[keys[0]], test["x"], test["y"])[0])
    assert metrics.test_examples.tolist() == [50, 0]


@pytest.mark.parametrize(
    "build",
    [lambda model: build_ditto(model, TRAINING, DittoParameters(0.3)), lambda model: build_solo(model, TRAINING)],
)
def test_a_cohort_in_blocks_trains_the_same(tff_worker, model, population, build):
    method = build(model)
    cohort = cohort_of(population, [3, 0, 4, 1], 1, local_test=np.array([True, False, True, True]))
    whole, told = method.next(method.initialize(population), cohort)
    lines, moved = [], []
    # A client takes some 14 models of memory here, in each of two blocks that are under way.
    with simulating(memory=45 * 4 * model.size, on_plan=lines.append, on_progress=lambda *counts: moved.append(counts)):
        parts, again = method.next(method.initialize(population), cohort)
    assert lines and all("4 clients of a round compute in" in line for line in lines)
    assert moved[-1] == (4, 4) and len(moved) > 1
    assert_same_round(parts, again, whole, told, cohort)


def assert_same_round(ours, metrics, theirs, others, cohort):
    assert_close(ours.models, theirs.models)
    for one, other in zip(ours.kept.of(cohort.client_ids), theirs.kept.of(cohort.client_ids)):
        np.testing.assert_array_equal(one, other)
    for name in ("test_examples", "test_correct", "losses", "examples"):
        np.testing.assert_array_equal(getattr(metrics, name), getattr(others, name))


def test_small_clients_compute_in_shards_where_they_are_many(tff_worker, model, population, monkeypatch):
    monkeypatch.setattr(blocks, "_MANY_CLIENTS", 4)
    monkeypatch.setattr(shards, "_SHARD_CLIENTS", 3)
    method, lines = build_solo(model, TRAINING), []
    cohort = cohort_of(population, [3, 0, 4, 1], 1, local_test=np.array([True, False, True, True]))
    start = method.initialize(population)
    with simulating(shards=0, on_plan=lines.append):
        whole = method.next(start, cohort)
    assert not lines
    monkeypatch.setattr(shards, "_FEW_EXAMPLES", max(cohort.sizes))
    with simulating(on_plan=lines.append):
        assert_same_round(*method.next(start, cohort), *whole, cohort)
        method.next(start, cohort_of(population, [3, 0, 4], 1))
    assert lines == ["4 clients of a round compute in 2 shards of 2"]
    monkeypatch.setattr(shards, "_FEW_EXAMPLES", min(cohort.sizes) - 1)
    with simulating(on_plan=lines.append):
        method.next(start, cohort)
    assert len(lines) == 1


@pytest.mark.slow
def test_what_a_round_takes_of_memory_is_about_its_budget(tff_worker, model, population):
    rows = np.arange(57_000) % len(population.train(3))
    tests = ClientExamples(*population.train(3).pool, rows)
    many = Population(
        np.arange(20, dtype=np.int32), dict.fromkeys(range(20), population.train(4)), dict.fromkeys(range(20), tests)
    )
    method, pids, most, over = build_fedavg(model, TRAINING), ("self", tff_worker.pid), [0], threading.Event()
    state, _ = method.next(method.initialize(many), cohort_of(many, [0, 1], 0, local_test=np.array([True, False])))
    before = sum(map(resident_bytes, pids))

    def watch():
        while not over.wait(0.01):
            most.append(sum(map(resident_bytes, pids)) - before)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    with simulating(memory=250_000_000):
        method.next(state, cohort_of(many, many.client_ids, 1, local_test=np.ones(20, bool)))
    over.set()
    watcher.join()
    assert max(most) < 400_000_000  # the tests of all, 78 MB, would take 600 MB at once


def test_a_budget_below_one_client_is_refused(tff_worker, model, population):
    method = build_fedavg(model, TRAINING)
    state = method.initialize(population)
    with (
        simulating(memory=4 * model.size),
        pytest.raises(UserError, match=r"memory is .*; one client of a round takes about"),
    ):
        method.next(state, cohort_of(population, [0, 1], 3))


def test_uploads_that_do_not_fit_together_are_refused(tff_worker, model, population, monkeypatch):
    method = build_fedsem(model, TRAINING, FedSEMParameters(num_clusters=2))
    state = method.initialize(population)
    monkeypatch.setattr(memory, "free_bytes", lambda: 2 * 4 * model.size)
    with (
        simulating(memory=10**9),
        pytest.raises(UserError, match="the uploads of 3 clients take .* together, .* are free: fewer"),
    ):
        method.next(state, cohort_of(population, [0, 1, 2], 1))


def test_what_clients_keep_is_never_traffic(tff_worker, model, population):
    solo = build_solo(model, TRAINING)
    state, metrics = solo.next(solo.initialize(population), cohort_of(population, [0, 1], 1))
    assert dataclasses.astuple(metrics.traffic) == (0, 0)
    assert_close(state.models, [model.initial])
    assert state.kept.has([0, 1, 2]).tolist() == [True, True, False]
