import collections
import tracemalloc

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.relatedness_mean import RelatednessMeanFactory
from tffcl.clients import large_rows

FLOAT = tff.TensorType(np.float32)
MATRIX = np.array([[1, 0.5, 0], [0, 1, 2], [1, 1, 1]], np.float32)
VALUES = np.array([[1, 2], [3, 5], [-4, 7]], np.float32)
WEIGHTS = np.array([1, 2, 4], np.float32)


def keyed(value, **more):
    return tff.to_type(collections.OrderedDict(key=np.int32, **more, value=value))


def uploads(order=(0, 1, 2)):
    return [collections.OrderedDict(key=np.int32(i), value=VALUES[i]) for i in order], [WEIGHTS[i] for i in order]


def mixed(matrix, values=VALUES, weights=WEIGHTS):
    shares = matrix * weights
    return shares @ values / shares.sum(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def process():
    return RelatednessMeanFactory().create(keyed(tff.TensorType(np.float32, [2])), FLOAT)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_every_row_is_a_mix_whatever_the_order_of_the_clients(tff_worker, process, order):
    output = process.next(MATRIX, *uploads(order))
    np.testing.assert_allclose(output.result, mixed(MATRIX), rtol=1e-6)
    np.testing.assert_array_equal(output.state, MATRIX)
    np.testing.assert_array_equal(output.measurements["key"], [0, 1, 2])
    np.testing.assert_array_equal(output.measurements["weight"], WEIGHTS)


def test_all_ones_is_the_mean_and_the_identity_leaves_all_alone(tff_worker, process):
    everyone = process.next(np.ones([3, 3], np.float32), *uploads()).result
    np.testing.assert_allclose(everyone, [np.average(VALUES, axis=0, weights=WEIGHTS)] * 3, rtol=1e-6)
    np.testing.assert_allclose(process.next(np.eye(3, dtype=np.float32), *uploads()).result, VALUES, rtol=1e-6)


def test_keys_pick_their_columns_of_a_larger_matrix(tff_worker, process):
    matrix = np.random.default_rng(0).uniform(size=(4, 9)).astype(np.float32)
    keys = [7, 2, 5]
    clients = [collections.OrderedDict(key=np.int32(key), value=value) for key, value in zip(keys, VALUES)]
    output = process.next(matrix, clients, list(WEIGHTS))
    order = [1, 2, 0]
    expected = mixed(matrix[:, [2, 5, 7]], VALUES[order], WEIGHTS[order])
    np.testing.assert_allclose(output.result, expected, rtol=1e-5)
    np.testing.assert_array_equal(output.measurements["key"], [2, 5, 7])


def test_a_weight_of_zero_silences_also_what_is_not_finite(tff_worker, process):
    clients, _ = uploads()
    clients[2]["value"] = np.array([np.nan, np.inf], np.float32)
    output = process.next(np.ones([3, 3], np.float32), clients, [np.float32(1), np.float32(3), np.float32(0)])
    np.testing.assert_allclose(output.result, [[2.5, 4.25]] * 3, rtol=1e-6)


def test_a_row_without_weight_is_zero(tff_worker, process):
    output = process.next(np.array([[0, 0, 0], [0, 1, 0], [0, 0, 1]], np.float32), *uploads())
    np.testing.assert_array_equal(output.result[0], [0, 0])


def test_clients_related_by_what_they_upload_with_several_tensors(tff_worker):
    def relate(context, uploaded):
        apart = tf.abs(uploaded["descriptor"][:, tf.newaxis] - uploaded["descriptor"][tf.newaxis, :])
        return tf.cast(apart <= context, tf.float32)

    factory = RelatednessMeanFactory(relate, context_type=FLOAT, context=np.float32(1.5))
    value_type = collections.OrderedDict(a=FLOAT, b=tff.TensorType(np.float32, [2, 1]))
    process = factory.create(keyed(value_type, descriptor=np.float32), FLOAT)
    clients = [
        collections.OrderedDict(
            key=np.int32(i),
            descriptor=np.float32(i),
            value=collections.OrderedDict(a=np.float32(i), b=np.full([2, 1], i, np.float32)),
        )
        for i in (3, 0, 1)
    ]
    output = process.next(process.initialize(), clients, [np.float32(1)] * 3)
    np.testing.assert_array_equal(output.measurements["relatedness"], [[1, 1, 0], [1, 1, 0], [0, 0, 1]])
    np.testing.assert_allclose(output.result["a"], [0.5, 0.5, 3])
    np.testing.assert_allclose(output.result["b"][:, :, 0], [[0.5] * 2, [0.5] * 2, [3] * 2])


@pytest.mark.parametrize(
    "value, weight, message",
    [
        (tff.to_type(collections.OrderedDict(value=np.float32)), FLOAT, "key=int32"),
        (tff.to_type(collections.OrderedDict(key=np.int32, other=np.float32, value=np.float32)), FLOAT, "descriptor=S"),
        (keyed(np.int32), FLOAT, "floating"),
        (keyed(np.float32), tff.TensorType(np.float32, [1]), "scalar weight"),
    ],
)
def test_bad_types(value, weight, message):
    with pytest.raises(TypeError, match=message):
        RelatednessMeanFactory().create(value, weight)


@pytest.mark.parametrize("mixes", [2, 5, 9], ids=["fewer", "as many", "more"])
@pytest.mark.parametrize("in_memory", [True, False], ids=["in memory", "in a file"])
def test_uploads_in_parts_give_the_mixes_of_the_whole(monkeypatch, mixes, in_memory):
    """Of fewer and of more mixes than clients, made two at a time."""
    monkeypatch.setattr(large_rows, "_ROWS", 2)
    monkeypatch.setattr(large_rows, "MEMORY_BYTES", large_rows.MEMORY_BYTES if in_memory else 0)
    rng = np.random.default_rng(0)
    matrix, values = rng.uniform(size=(mixes, 5)).astype(np.float32), rng.normal(size=(5, 2, 3)).astype(np.float32)
    matrix[1], weights, keys = 0, np.array([3, 0, 1, 2, 4], np.float32), np.array([4, 2, 0, 3, 1], np.int32)
    values[1] = np.nan  # of the client whose weight is 0
    mixing = RelatednessMeanFactory().by_parts(matrix)
    for few in (slice(0, 2), slice(2, 5)):
        mixing.add({"key": keys[few], "value": values[few]}, weights[few])
    state, result, measured = mixing.finish()
    shares = (matrix[:, keys] * weights).astype(np.float64)
    expected = np.tensordot(shares, np.nan_to_num(values), 1) / np.maximum(shares.sum(axis=1), 1e-9)[:, None, None]
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(state, matrix)
    np.testing.assert_array_equal(measured["key"], range(5))
    np.testing.assert_array_equal(measured["weight"], weights[np.argsort(keys)])


def test_mixes_for_many_more_than_take_part_are_not_held_in_memory(monkeypatch):
    monkeypatch.setattr(large_rows, "MEMORY_BYTES", 2**20)
    values = np.ones([10, 2000], np.float32)
    mixing = RelatednessMeanFactory().by_parts(np.ones([1000, 10], np.float32))
    tracemalloc.start()
    try:
        mixing.add({"key": np.arange(10, dtype=np.int32), "value": values}, np.ones(10, np.float32))
        result = mixing.finish()[1]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < result.nbytes / 2
    np.testing.assert_allclose(result[::100], 1, rtol=1e-6)
