"""Means in which every client counts the same, but for those without any weight."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.clustered_mean import UniformClusteredMeanFactory, UniformMeanFactory
from tffcl.algorithms.solo import build_own_round
from tffcl.client_work.local_sgd import LocalTraining

WEIGHT = tff.TensorType(np.float32)
ROW = tff.TensorType(np.float32, [2])
VALUES = np.array([[1, 2], [30, 40], [3, 6], [5, 5]], np.float32)
WEIGHTS = [7.0, 0.0, 1.0, 0.5]  # the second client's training was not finite


def test_within_clusters_a_client_without_weight_counts_nowhere(tff_worker):
    process = UniformClusteredMeanFactory().create(
        tff.to_type(collections.OrderedDict(key=np.int32, value=ROW)), WEIGHT
    )
    uploads = [collections.OrderedDict(key=np.int32(key), value=value) for key, value in zip([0, 0, 0, 2], VALUES)]
    found = process.next(process.initialize(), uploads, WEIGHTS)
    np.testing.assert_allclose(found.result, [[2, 4], [0, 0], [5, 5]])
    assert list(found.measurements["clients"]) == [2, 0, 1] and list(found.measurements["weight"]) == [2, 0, 1]


@pytest.mark.parametrize(("weights", "mean"), [(WEIGHTS, [3, 13 / 3]), ([0.0] * 4, [0, 0])], ids=["some", "nobody"])
def test_over_all_clients_too(tff_worker, weights, mean):
    process = UniformMeanFactory().create(ROW, WEIGHT)
    np.testing.assert_allclose(process.next(process.initialize(), list(VALUES), weights).result, mean, rtol=1e-6)


@pytest.mark.slow
def test_a_device_keeps_its_model_where_training_is_not_finite(tff_worker, model, population):
    """And what it keeps of its optimizer."""
    training = LocalTraining(epochs=2, batch_size=4, learning_rate=1e30, momentum=0.5, optimizer_state="kept")
    composed = build_own_round(model, training)
    client = collections.OrderedDict(
        examples=population.train(0).dataset, client_id=np.int32(0), seed=np.array([1, 0], np.int32),
        kept=model.initial, optimizer=composed.work.optimizer,
    )  # fmt: skip
    _, told, kept = composed.deployed_with_kept(collections.OrderedDict(aggregators=()), [client])
    assert not any(np.ravel(told["reports"]["value"]["finite"]))
    np.testing.assert_array_equal(kept[0]["kept"], model.initial)
    tf.nest.map_structure(np.testing.assert_array_equal, list(kept[0]["optimizer"]), composed.work.optimizer)
