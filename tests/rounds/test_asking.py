import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.client_work.client_work import sequence_type, stacked_type
from tffcl.clients.simulation_context import simulating
from tffcl.rounds import client_queries
from tffcl.rounds.blocks import INPUT_COPIES
from tffcl.signatures.label_histogram import build_label_histogram
from tffcl.signatures.signature import OWN_NOISE, OWN_SEED
from tffcl.signatures.subspace import build_subspace


@pytest.fixture(scope="module")
def population(digit_clients):
    return digit_clients([10 + client for client in range(25)])


@pytest.mark.parametrize(
    "long, expected", [(60.0, [(10, 25), (25, 25)]), (0.0, [(10, 25), (20, 25), (25, 25)])], ids=["quick", "long"]
)
def test_who_watches_sees_clients_come(tff_worker, model, population, monkeypatch, long, expected):
    monkeypatch.setattr(client_queries, "_LONG", long)
    moved = []
    with simulating(on_progress=lambda *counts: moved.append(counts)):
        found = client_queries.build_signing(build_label_histogram(model))(population)
    assert moved == expected
    counts = [
        np.bincount([int(each["y"]) for each in population.train(client).dataset], minlength=10) for client in range(25)
    ]
    np.testing.assert_allclose(found, [each / each.sum() for each in counts], atol=1e-6)


@pytest.mark.slow
def test_as_many_are_asked_at_a_time_as_fit_into_memory(tff_worker, model, population):
    sign, moved = client_queries.build_signing(build_label_histogram(model)), []
    each = population.train(24).nbytes
    assert each == sum(leaf.nbytes for leaf in population.train(24).stacked.values()) == 34 * (64 + 4)
    whole = sign(population)
    with simulating(memory=INPUT_COPIES * 3 * each, on_progress=lambda *counts: moved.append(counts[0])):
        np.testing.assert_array_equal(sign(population), whole)
    assert moved == [7, 12, 16, 19, 22, 25]
    moved.clear()
    with simulating(memory=1, on_progress=lambda *counts: moved.append(counts[0])):
        sign(population.restricted([3, 20]))
    assert moved == [1, 2]
    moved.clear()
    kind = tff.TensorType(np.float32, [1000])
    counting = client_queries.build_asking(
        kind, stacked_type(sequence_type(model.example_spec)), lambda context, examples: tf.shape(examples["y"])[0]
    )
    with simulating(memory=1, on_progress=lambda *counts: moved.append(counts[0])):
        assert client_queries.ask_all(counting, np.zeros(1000, np.float32), population).tolist() == [*range(10, 35)]
    assert moved == [4, 7, 10, 12, 14, 16, 18, 20, 21, 22, 23, 24, 25]


@pytest.mark.slow
def test_each_client_has_seeds_of_its_own(tff_worker, model, population):
    """The same whoever is asked beside it; all else that the server sends is as it was sent."""
    seed, sequence = tff.TensorType(np.int32, [2]), sequence_type(model.example_spec)
    kind = tff.to_type(collections.OrderedDict([(OWN_SEED, seed), ("as_sent", seed), (OWN_NOISE, seed)]))
    asking = client_queries.build_asking(kind, stacked_type(sequence), lambda context, examples: dict(context))
    context = {name: np.array([3, 4], np.int32) for name in (OWN_SEED, "as_sent", OWN_NOISE)}
    found = client_queries.ask_all(asking, context, population)
    few = client_queries.ask_all(asking, context, population.restricted([3, 20]))
    for name in (OWN_SEED, OWN_NOISE):
        assert len(np.unique(found[name], axis=0)) == 25
        np.testing.assert_array_equal(few[name], found[name][[3, 20]])
    np.testing.assert_array_equal(found["as_sent"], [[3, 4]] * 25)


@pytest.mark.slow
def test_clients_in_shards_answer_the_same(tff_worker, model, population):
    sign = client_queries.build_signing(build_subspace(model.example_spec, 2))
    whole = sign(population)
    with simulating(shards=4):
        again = sign(population)
    tf.nest.map_structure(lambda *both: np.testing.assert_allclose(*both, rtol=0, atol=1e-6), again, whole)
    assert np.ptp(whole["basis"], axis=0).max() > 0.1


def test_few_clients_are_asked_at_once(tff_worker, model, digit_clients):
    moved = []
    with simulating(on_progress=lambda *counts: moved.append(counts)):
        client_queries.build_signing(build_label_histogram(model))(digit_clients([11, 12, 13]))
    assert not moved
