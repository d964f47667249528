"""The images that a run keeps of its clusters: whose they are, over which labels, and when there are none."""

import numpy as np
import pytest

from tffcl.clients.population import Population
from tffcl.runs.write_results import write_samples

CLUSTERS = np.array([1, 1, 0, 1, 1, 1])


def population_of(shape=(8, 8), kind=np.uint8, clients=6, classes=3, labels=()):
    """Clients whose examples are images of one colour that says client and label."""
    rng = np.random.default_rng(0)
    held = {}
    for client in range(clients):
        y = np.sort(rng.integers(0, classes, (20, *labels)))
        x = np.zeros((20, *shape), kind) + (10 * client + y.reshape(20, -1)[:, 0]).reshape(
            20, *[1] * len(shape)
        ).astype(kind)
        held[client] = (x, y)
    return Population.from_arrays(held)


def kept(tmp_path, population, clusters=CLUSTERS):
    write_samples(tmp_path, population, clusters)
    file = tmp_path / "samples.npz"
    return dict(np.load(file)) if file.exists() else None


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 1), (6, 9, 3)])
def test_they_are_of_the_cluster_and_over_its_labels(tmp_path, shape):
    found = kept(tmp_path, population_of(shape))
    assert found["images"].dtype == np.uint8 and found["images"].shape[1:] == (
        *shape[:2],
        shape[2] if len(shape) == 3 else 1,
    )
    np.testing.assert_array_equal(found["clusters"], [1] * 10 + [0] * 10)  # the larger first
    for cluster in (0, 1):
        own = found["clusters"] == cluster
        clients, labels = np.divmod(found["images"][own][:, 0, 0, 0], 10)
        assert set(clients) <= set(np.flatnonzero(cluster == CLUSTERS)) and set(labels) == {0, 1, 2}
        np.testing.assert_array_equal(labels, found["labels"][own])
        assert np.all(np.diff(labels.astype(int)) >= 0)
    assert len(set(found["images"][:10, 0, 0, 0] // 10)) > 1  # of several clients


def test_numbers_from_0_to_1_become_shades(tmp_path):
    population = population_of(kind=np.float32)
    bright = {client: (population.train(client).x / 60, population.train(client).y) for client in range(6)}
    found = kept(tmp_path, Population.from_arrays(bright))
    clients, labels = np.divmod(np.round(found["images"][:, 0, 0, 0] / 255 * 60), 10)
    np.testing.assert_array_equal(labels, found["labels"])
    pixels = kept(tmp_path, population)["images"][:, 0, 0, 0]  # floats from 0 to 255 are as they are
    np.testing.assert_array_equal(pixels % 10, found["labels"])


@pytest.mark.parametrize("shape", [(64,), (8, 8, 2), (300, 300), (2, 8, 8, 3)])
def test_examples_that_are_no_images_are_not_kept(tmp_path, shape):
    assert kept(tmp_path, population_of(shape)) is None


def test_labels_that_are_sequences_are_not_kept(tmp_path):
    assert kept(tmp_path, population_of(labels=(5,))) is None


def test_a_cluster_of_each_client_is_not_kept_and_of_many_the_largest(tmp_path):
    assert kept(tmp_path, population_of(), np.arange(6)) is None
    assert set(kept(tmp_path, population_of(), np.zeros(6, int))["clusters"]) == {0}
    many = np.repeat(np.arange(30), np.where(np.arange(30) < 24, 2, 1))
    found = kept(tmp_path, population_of(clients=len(many)), many)
    assert set(found["clusters"]) == set(range(24))
