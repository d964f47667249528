"""FLT's training with a relatedness matrix (Alg. 3, case I): its limits, and a round by hand."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.algorithms.test_limits import COHORTS, TRAINING, assert_close, models_of, train
from tffcl.algorithms.clustered_training import cohort_inputs
from tffcl.algorithms.contracts import Algorithm, Cohort, State, type_bytes
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.algorithms.related_training import build_related_process, build_related_training
from tffcl.algorithms.solo import build_solo
from tffcl.errors import UserError


def related(model, matrix, mixes="cohort"):
    """A method that is given its relatedness."""
    rounds = build_related_training(model, TRAINING, mixes)

    def initialize(population):
        ids = population.client_ids
        extra = {"relatedness": np.asarray(matrix, np.float32), "rows": np.zeros(len(ids), np.int32)}
        return State(ids, np.zeros(len(ids), np.int32), model.initial[np.newaxis], (), extra)

    return Algorithm("given", initialize, rounds.next, rounds.assign, None, dict, {"training": rounds.transfer})


def test_all_ones_is_fedavg(tff_worker, model, population):
    """With everyone mixed: also those who join later start from the common model."""
    algorithm = related(model, np.ones([5, 5]), "everyone")
    state = train(algorithm, population)
    assert len(state.models) == 1
    assert_close(state.models, train(build_fedavg(model, TRAINING), population).models)


@pytest.mark.parametrize("mixes", ["cohort", "stored"])
def test_all_ones_is_fedavg_when_everyone_takes_part(tff_worker, model, population, mixes):
    cohorts = [(0, 1, 2, 3, 4)] * 3
    state = train(related(model, np.ones([5, 5]), mixes), population, cohorts)
    assert_close(state.models, train(build_fedavg(model, TRAINING), population, cohorts).models)


def test_the_identity_is_solo(tff_worker, model, population):
    for mixes in ("cohort", "everyone", "stored"):
        algorithm, solo = related(model, np.eye(5), mixes), build_solo(model, TRAINING)
        state = train(algorithm, population)
        assert_close(models_of(algorithm, state, population), models_of(solo, train(solo, population), population))


def test_blocks_are_one_fedavg_each(tff_worker, model, population):
    from tffcl.algorithms.clustered_training import build_clustered_training

    groups = np.array([0, 1, 0, 1, 1], np.int32)
    algorithm = related(model, groups[:, None] == groups[None], "everyone")
    engine = build_clustered_training(model, TRAINING)
    clustered = State(population.client_ids, groups, np.repeat(model.initial[None], 2, axis=0), (), {})
    for number, clients in enumerate(COHORTS, 1):
        clustered, _ = engine.next(clustered, Cohort(population, np.array(clients), (7, number)))
    state = train(algorithm, population)
    assert_close(models_of(algorithm, state, population), clustered.models[groups])


@pytest.mark.parametrize("mixes", ["cohort", "stored"])
def test_a_round_by_hand_of_simultaneous_mixes(tff_worker, model, population, mixes):
    """One round by hand: relations that are not symmetric, three of five clients."""
    matrix = np.array([[1, 1, 0, 0, 1], [0, 1, 1, 0, 0], [1, 1, 1, 1, 0], [0, 0, 0, 1, 0], [0, 1, 0, 0, 1]], np.float32)
    algorithm, solo = related(model, matrix, mixes), build_solo(model, TRAINING)
    before = train(algorithm, population, COHORTS[:1])
    starts = models_of(algorithm, before, population)
    cohort = Cohort(population, np.array([0, 1, 4]), (7, 2))
    after, metrics = algorithm.next(before, cohort)
    rows = {"rows": np.arange(5, dtype=np.int32)}
    alone = State(population.client_ids, np.arange(5, dtype=np.int32), starts, (), rows)
    # SOLO takes row 0 for the common start: a row before those of the clients.
    alone = State(alone.client_ids, alone.assignment, np.concatenate([starts[:1], starts]), (), {"rows": rows["rows"] + 1})
    trained = models_of(solo, solo.next(alone, cohort)[0], population)
    expected = starts.copy()
    if mixes == "cohort":
        shares = matrix[np.ix_([0, 1, 4], [0, 1, 4])] * population.sizes[[0, 1, 4]]
        expected[[0, 1, 4]] = shares @ trained[[0, 1, 4]] / shares.sum(axis=1, keepdims=True)
    else:  # SOLO has left the models of 2 and 3 as they were
        shares = matrix * population.sizes
        expected = shares @ trained / shares.sum(axis=1, keepdims=True)
    assert_close(models_of(algorithm, after, population), expected)
    np.testing.assert_array_equal(metrics.relatedness, matrix[np.ix_([0, 1, 4], [0, 1, 4])])
    assert np.abs(expected - starts)[[0, 1, 4]].max(axis=1).min() > 1e-3


def test_no_model_is_stored_twice(tff_worker, model, digit_clients):
    groups = np.repeat([0, 1, 2], 4)
    population = digit_clients([20] * 12)
    algorithm = related(model, groups[:, None] == groups[None])
    state = algorithm.initialize(population)
    for number in range(1, 4):
        state, _ = algorithm.next(state, Cohort(population, np.arange(0, 12, 2), (7, number)))
        assert len(state.models) == 4  # three mixes, and the initial model of those who never took part
    assert len(np.unique(state.models, axis=0)) == 4


def test_traffic_and_the_map_reduce_form(tff_worker, through_map_reduce, model, population):
    process = build_related_process(model, TRAINING)
    places = np.arange(3, dtype=np.int32)
    inputs = cohort_inputs(Cohort(population, places, (7, 1)), row=np.array([0, 1, 0], np.int32), key=places)
    for each in inputs:
        del each["test_examples"]
    matrix = np.array([[1, 0, 1], [0, 1, 1]], np.float32)
    state = {"models": np.stack([model.initial, 2 * model.initial]), "aggregator": matrix}
    direct, _ = process.next(state, inputs)
    assert direct["models"].shape == (2, model.size)
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(process.next)
    transfer = build_related_training(model, TRAINING).transfer
    assert transfer.down_bytes == 4 * model.size
    assert transfer.up_bytes == type_bytes(form.work.type_signature.result)
    again, _ = through_map_reduce(process.next, state, inputs)
    np.testing.assert_allclose(again["models"], direct["models"], atol=1e-6)


def test_unknown_mixes(model):
    with pytest.raises(UserError, match="did you mean 'everyone'"):
        build_related_training(model, TRAINING, "everyon")
