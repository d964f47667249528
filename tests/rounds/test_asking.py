import numpy as np
import pytest

from tffcl.clients.simulation_context import simulating
from tffcl.rounds import client_queries
from tffcl.signatures.label_histogram import build_label_histogram


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


def test_few_clients_are_asked_at_once(tff_worker, model, digit_clients):
    moved = []
    with simulating(on_progress=lambda *counts: moved.append(counts)):
        client_queries.build_signing(build_label_histogram(model))(digit_clients([11, 12, 13]))
    assert not moved
