"""What client graphs hold, against the installed TensorFlow's list of what TFLite can run."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.algorithms.parameters import PACFLParameters
from tffcl.algorithms.presets import build_pacfl
from tffcl.client_work.client_work import visiting_order
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.export.deployment_forms import missing_on_devices, operations_of
from tffcl.models.classifiers import build_mlp


def test_the_list_knows_what_devices_lack():
    names = ["MatMul", "Qr", "ReduceDataset", "StatelessWhile", "Svd", "SelfAdjointEigV2", "StatelessShuffle"]
    assert missing_on_devices(names) == ["SelfAdjointEigV2", "StatelessShuffle", "Svd"]


def test_operations_in_functions_count_too():
    @tff.tensorflow.computation(tff.TensorType(np.float32, [3, 3]))
    def computation(matrix):
        return tf.function(lambda given: tf.linalg.svd(given)[0])(matrix) + tf.linalg.svd(matrix)[0]

    found = operations_of(computation)
    assert found["Svd"] == 2 and list(found) == sorted(found)
    with pytest.raises(TypeError, match="expected a TensorFlow computation, found one of"):
        operations_of(tff.federated_computation(lambda: tff.federated_value(1, tff.SERVER)))


@pytest.mark.slow
def test_a_subspace_for_each_class_needs_nothing_that_devices_lack():
    """Every method's computations are looked at in tests/conformance, with its default signature."""
    model = build_mlp((8, 8, 1), 10, hidden=16, normalization=(0.3, 0.4), seed=3)
    method = build_pacfl(model, LocalTraining(momentum=0.5), PACFLParameters(per_class=True))
    computations = method.exports().build()
    for name in ("signature", "training"):
        form = tff.backends.mapreduce.get_map_reduce_form_for_computation(computations[name])
        assert missing_on_devices(operations_of(form.work)) == []


@pytest.mark.parametrize("count", [0, 1, 2, 45, 1000])
def test_every_example_is_visited_once(count):
    order = visiting_order(count, [3, 4]).numpy()
    np.testing.assert_array_equal(np.sort(order), np.arange(count))
    np.testing.assert_array_equal(order, visiting_order(count, [3, 4]))
    if count >= 45:
        assert (order != visiting_order(count, [3, 5]).numpy()).any()


def test_orders_are_uniform():
    """All orders of three come as often: 6,000 draws, each within five standard deviations of a sixth."""
    draws = tf.vectorized_map(lambda number: visiting_order(3, tf.stack([number, 7])), tf.range(6000)).numpy()
    _, counts = np.unique(draws, axis=0, return_counts=True)
    assert len(counts) == 6 and np.abs(counts - 1000).max() < 5 * np.sqrt(6000 * 5 / 36)
