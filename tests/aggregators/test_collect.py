import collections

import numpy as np
import pytest
import tensorflow_federated as tff

from tffcl.aggregators.collect import by_client, collect


def build():
    value = tff.to_type(collections.OrderedDict(a=np.float32, b=tff.TensorType(np.bool_, [2])))

    @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS), tff.FederatedType(value, tff.CLIENTS))
    def gather(client_id, value):
        return collect(client_id, value)

    return gather


VALUES = [collections.OrderedDict(a=float(i), b=[i == 1, True]) for i in range(3)]


def test_every_value_comes_with_its_client(tff_worker):
    rows = by_client(build()([7, 3, 5], VALUES), [3, 5, 7])
    np.testing.assert_array_equal(rows["a"], [1, 2, 0])
    np.testing.assert_array_equal(rows["b"], [[True, True], [False, True], [False, True]])


def test_who_did_not_answer_is_named(tff_worker):
    with pytest.raises(ValueError, match=r"\[3, 4\] were asked, \[3, 5\] answered"):
        by_client(build()([3, 5], VALUES[:2]), [3, 4])


def test_nobody(tff_worker):
    collected = build()([], [])
    assert collected["value"]["b"].shape == (0, 2)


@pytest.mark.parametrize("clients", [1, 2, 7, 8, 64, 1100])
def test_everybody_comes_once_whatever_the_number(tff_worker, clients):
    """1,100 rows do not fit into blocks of 1 to 256: the last block grows."""
    ids = np.random.default_rng(0).permutation(clients).astype(np.int32)
    values = [collections.OrderedDict(a=np.float32(client), b=[client % 2 == 0, True]) for client in ids]
    rows = by_client(build()(list(ids), values), np.arange(clients))
    np.testing.assert_array_equal(rows["a"], np.arange(clients))
    np.testing.assert_array_equal(rows["b"][:, 0], np.arange(clients) % 2 == 0)
