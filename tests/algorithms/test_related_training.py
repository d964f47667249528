"""FLT's training with a relatedness matrix (Alg. 3, case I): its limits, and a round by hand."""

import dataclasses
import tracemalloc
import types
from unittest import mock

import numpy as np
import pytest

from tests.memory import resident_bytes
from tests.short_runs import COHORTS, TRAINING, assert_close, cohort_of, models_of, train
from tffcl.algorithms.clustered_training import build_clustered_training
from tffcl.algorithms.flt import FLTState
from tffcl.algorithms.method import ClusteredState
from tffcl.algorithms.related_training import build_related_training
from tffcl.algorithms.solo import build_solo
from tffcl.clients import large_rows
from tffcl.clients.client_state import KeptStates
from tffcl.clustering.relatedness_graph import only_used
from tffcl.rounds import blocks

EVERYONE = (0, 1, 2, 3, 4)


def related(model, matrix, mixes="cohort"):
    """A method that is given its relatedness."""
    rounds = build_related_training(model, TRAINING, mixes)

    def initialize(population):
        start = rounds.start(population, np.zeros(len(population), np.int32))
        return FLTState(**start, relatedness=np.asarray(matrix, np.float32))

    return types.SimpleNamespace(initialize=initialize, next=rounds.next, models_for=rounds.models_for)


def test_all_ones_is_fedavg(tff_worker, model, population, reference):
    """With everyone mixed: also those who join later start from the common model."""
    state = train(related(model, np.ones([5, 5]), "everyone"), population)
    assert len(state.models) == 1
    assert_close(state.models[0], reference("fedavg")[1][0])


@pytest.mark.parametrize("mixes", ["cohort", "stored"])
def test_all_ones_is_fedavg_when_everyone_takes_part(tff_worker, model, population, reference, mixes):
    cohorts = (EVERYONE,) * 3
    state = train(related(model, np.ones([5, 5]), mixes), population, cohorts)
    assert len(state.models) == 1
    assert_close(state.models[0], reference("fedavg", cohorts)[1][0])


@pytest.mark.parametrize(
    "mixes", ["cohort", *(pytest.param(each, marks=pytest.mark.slow) for each in ("everyone", "stored"))]
)
def test_the_identity_is_solo(tff_worker, model, population, reference, mixes):
    method = related(model, np.eye(5), mixes)
    assert_close(models_of(method, train(method, population), population), reference("solo")[1])


def test_blocks_are_one_fedavg_each(tff_worker, model, population):
    groups = np.array([0, 1, 0, 1, 1], np.int32)
    method = related(model, groups[:, None] == groups[None], "everyone")
    engine = build_clustered_training(model, TRAINING)
    clustered = train(engine, population, state=ClusteredState(**engine.start(population, groups)))
    state = train(method, population)
    assert_close(models_of(method, state, population), clustered.models[groups])


@pytest.mark.parametrize("mixes", ["cohort", "stored"])
def test_a_round_by_hand_of_simultaneous_mixes(tff_worker, model, population, mixes):
    """One round by hand: relations that are not symmetric, three of five clients."""
    matrix = np.array([[1, 1, 0, 0, 1], [0, 1, 1, 0, 0], [1, 1, 1, 1, 0], [0, 0, 0, 1, 0], [0, 1, 0, 0, 1]], np.float32)
    method, solo = related(model, matrix, mixes), build_solo(model, TRAINING)
    before = train(method, population, COHORTS[:1])
    starts = models_of(method, before, population)
    cohort = cohort_of(population, [0, 1, 4], 2)
    after, metrics = method.next(before, cohort)
    # SOLO from the same models; it leaves those of 2 and 3 as they are.
    own = KeptStates(model.initial).updated(population.client_ids, starts)
    alone, _ = solo.next(dataclasses.replace(solo.initialize(population), kept=own), cohort)
    trained = models_of(solo, alone, population)
    expected = starts.copy()
    if mixes == "cohort":
        shares = matrix[np.ix_([0, 1, 4], [0, 1, 4])] * population.sizes[[0, 1, 4]]
        expected[[0, 1, 4]] = shares @ trained[[0, 1, 4]] / shares.sum(axis=1, keepdims=True)
    else:
        shares = matrix * population.sizes
        expected = shares @ trained / shares.sum(axis=1, keepdims=True)
    assert_close(models_of(method, after, population), expected)
    np.testing.assert_array_equal(metrics.relatedness, matrix[np.ix_([0, 1, 4], [0, 1, 4])])
    assert np.abs(expected - starts)[[0, 1, 4]].max(axis=1).min() > 1e-3


def test_no_model_is_stored_twice(tff_worker, model, digit_clients):
    groups = np.repeat([0, 1, 2], 4)
    population = digit_clients([20] * 12)
    method = related(model, groups[:, None] == groups[None])
    state = method.initialize(population)
    for number in range(1, 4):
        state, _ = method.next(state, cohort_of(population, np.arange(0, 12, 2), number))
        assert len(state.models) == 4  # three mixes, and the initial model of those who never took part
    assert len(np.unique(state.models, axis=0)) == 4


@pytest.mark.slow
@pytest.mark.parametrize("mixes", ["cohort", "everyone", "stored"])
def test_models_in_a_file_are_those_in_memory(tff_worker, model, population, monkeypatch, mixes):
    """In blocks and a few at a time too; a round does not touch the models of the state before it."""
    matrix = np.array([[1, 1, 0, 0, 1], [0, 1, 1, 0, 0], [1, 1, 1, 1, 0], [0, 0, 0, 1, 0], [0, 1, 0, 0, 1]], np.float32)
    method = related(model, matrix, mixes)
    expected = models_of(method, train(method, population, COHORTS[:2]), population)
    monkeypatch.setattr(large_rows, "MEMORY_BYTES", 0)
    monkeypatch.setattr(large_rows, "_ROWS", 2)
    with mock.patch.object(blocks, "plan", lambda *_: blocks.Plan(blocks=2)):
        state = train(method, population, COHORTS[:1])
        before = models_of(method, state, population).copy()
        after, _ = method.next(state, cohort_of(population, COHORTS[1], 2))
    np.testing.assert_array_equal(models_of(method, state, population), before)
    assert_close(models_of(method, after, population), expected)


def test_only_a_few_models_are_in_memory_when_a_round_replaces_some(monkeypatch):
    monkeypatch.setattr(large_rows, "MEMORY_BYTES", 2**20)
    models = large_rows.joined((np.full([1, 16000], row, np.float32) for row in range(1000)), (1000, 16000))
    new, rows = np.full([10, 16000], -1, np.float32), np.arange(1000, dtype=np.int32)
    rows[:10] = 1000 + np.arange(10)
    held = resident_bytes()
    tracemalloc.start()
    try:
        kept, rows = only_used(models, new, rows)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < models.nbytes / 4
    assert resident_bytes() - held < models.nbytes / 2  # what was read of the file is no part of the peak above
    np.testing.assert_array_equal(kept[rows, 0], [*[-1] * 10, *range(10, 1000)])
