import numpy as np
import pytest
import tensorflow as tf

from tffcl.clients.simulation_context import simulating
from tffcl.rounds import client_queries
from tffcl.signatures.label_histogram import build_label_histogram
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
