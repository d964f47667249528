"""The training computation as what a deployment takes of it: MapReduceForm, and the bytes that really cross."""

import collections

import numpy as np
import pytest
import tensorflow_federated as tff

from tffcl.algorithms.clustered_training import build_training_process, cohort_inputs, training_transfer
from tffcl.algorithms.contracts import Cohort, type_bytes
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.errors import UserError
from tffcl.models.mlp import build_mlp

TRAINING = LocalTraining(epochs=2, batch_size=10, learning_rate=0.1, momentum=0.5)


@pytest.fixture(scope="module")
def model():
    return build_mlp((8, 8, 1), 10, hidden=16, normalization=(0.3, 0.4), seed=3)


def deployed_inputs(population):
    """Inputs of a deployed client: no test examples."""
    cohort = Cohort(population, np.array([0, 1, 2]), (7, 1))
    inputs = cohort_inputs(cohort, key=np.array([1, 0, 1], np.int32))
    return [collections.OrderedDict((k, v) for k, v in each.items() if k != "test_examples") for each in inputs]


def test_the_round_rebuilt_from_its_map_reduce_form(tff_worker, through_map_reduce, model, digit_clients):
    process = build_training_process(model, TRAINING)
    clients = deployed_inputs(digit_clients([31, 40, 25]))
    state = collections.OrderedDict(models=np.stack([model.initial, 2 * model.initial]), aggregator=())
    direct, reports = process.next(state, clients)
    again, their_reports = through_map_reduce(process.next, state, clients)
    assert np.abs(direct["models"] - state["models"]).max() > 0.01
    np.testing.assert_allclose(again["models"], direct["models"], atol=1e-6)
    np.testing.assert_array_equal(np.sort(their_reports["client_id"]), np.sort(reports["client_id"]))


def test_traffic_is_what_the_deployed_round_sends(model):
    """Up: the result of the MapReduceForm's client work. Down: one row of the broadcast models."""
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(build_training_process(model, TRAINING).next)
    transfer = training_transfer(model, TRAINING)
    assert transfer.up_bytes == type_bytes(form.work.type_signature.result)
    assert transfer.down_bytes == 4 * model.size
    assert transfer.up_bytes == 4 * model.size + 4 + 4 + 4 + (4 + 4 + 1)  # key, weight, ID, report


def test_a_type_without_a_size_has_no_bytes():
    with pytest.raises(ValueError, match="no fixed size"):
        type_bytes(tff.TensorType(np.float32, [None, 3]))


def test_unknown_distribution(model):
    with pytest.raises(UserError, match="did you mean 'select'"):
        build_training_process(model, TRAINING, distribution="selekt")


def test_a_model_that_is_not_finite_names_the_client_and_changes_nothing(tff_worker, model, digit_clients):
    population = digit_clients([30, 30])
    algorithm = build_fedavg(model, LocalTraining(epochs=3, learning_rate=1e30))
    state = algorithm.initialize(population)
    with pytest.raises(UserError, match=r"client 0 trained a model that is not finite .* in round 4; a lower learning_rate"):
        algorithm.next(state, Cohort(population, np.array([0, 1]), (7, 4)))
    np.testing.assert_array_equal(state.models[0], model.initial)


def test_a_client_without_examples_is_refused(digit_clients):
    with pytest.raises(UserError, match="client 1 has no training examples"):
        digit_clients([10, 0, 10])


def test_an_unknown_client_is_named(tff_worker, model, digit_clients):
    algorithm = build_fedavg(model, TRAINING)
    state = algorithm.initialize(digit_clients([10, 10]))
    with pytest.raises(UserError, match="client 5 is not known; there are 2 clients, 0 to 1"):
        algorithm.assign(state, [0, 5])


def test_the_local_test_is_of_the_clients_own_trained_model(tff_worker, model, digit_clients):
    """SOLO's next model of a client is the one whose local test the round reports."""
    from tffcl.algorithms.solo import build_solo
    from tffcl.client_work.local_evaluation import build_count_correct

    population = digit_clients([40, 60])
    solo = build_solo(model, TRAINING)
    cohort = Cohort(population, np.array([0, 1]), (7, 1), np.array([True, False]))
    state, metrics = solo.next(solo.initialize(population), cohort)
    models, keys = solo.assign(state, [0])
    test = next(iter(population.test_examples(0).batch(100)))
    assert metrics.test_correct[0] == int(build_count_correct(model)(models[keys[0]], test["x"], test["y"]))
    assert metrics.test_examples.tolist() == [50, 0]
