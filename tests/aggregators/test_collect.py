import collections
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow_federated as tff

from tffcl.aggregators.collect import by_client, collect, collect_rows, first_value, stacked


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


@pytest.mark.parametrize("clients", [1, 2, 7, 8, 64, pytest.param(1100, marks=pytest.mark.slow)])
def test_everybody_comes_once_whatever_the_number(tff_worker, clients):
    """1,100 rows do not fit into blocks of 1 to 256: the last block grows."""
    ids = np.random.default_rng(0).permutation(clients).astype(np.int32)
    values = [collections.OrderedDict(a=np.float32(client), b=[client % 2 == 0, True]) for client in ids]
    rows = by_client(build()(list(ids), values), np.arange(clients))
    np.testing.assert_array_equal(rows["a"], np.arange(clients))
    np.testing.assert_array_equal(rows["b"][:, 0], np.arange(clients) % 2 == 0)


KINDS = collections.OrderedDict(
    matrix=tff.TensorType(np.float32, [2, 3]),
    text=np.str_,
    flag=np.bool_,
    flags=tff.TensorType(np.bool_, [2]),
    byte=np.int8,
    bytes=tff.TensorType(np.uint8, [2]),
    whole=np.int64,
    double=tff.TensorType(np.float64, [3]),
    complex=np.complex64,
    nothing=tff.TensorType(np.float32, [0]),
    many=tff.TensorType(np.float32, [300]),
)


@pytest.mark.slow
def test_numbers_of_every_kind_come_as_they_were(tff_worker):
    def of(client):
        return collections.OrderedDict(
            matrix=np.full((2, 3), client + 0.1, np.float32),
            text=f"client {client}",
            flag=client == 1,
            flags=[True, client == 0],
            byte=-client,
            bytes=[client, 255],
            whole=2**40 + client,
            double=np.array([0.1, -client, 1e300]),
            complex=1j * client,
            nothing=np.zeros(0, np.float32),
            many=np.arange(300, dtype=np.float32) * client,
        )

    @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS), tff.FederatedType(KINDS, tff.CLIENTS))
    def gather(client_id, value):
        return collect(client_id, value)

    assert gather.type_signature.result.member["value"] == tff.to_type(stacked(tff.to_type(KINDS)))
    rows = by_client(gather(list(range(5)), [of(client) for client in range(5)]), np.arange(5))
    for name, kind in KINDS.items():
        expected = [of(client)[name] for client in range(5)]
        if name == "text":
            assert [text.decode() for text in rows[name]] == expected
        else:
            assert rows[name].dtype == tff.to_type(kind).dtype
            np.testing.assert_array_equal(rows[name], np.asarray(expected, rows[name].dtype))


@pytest.mark.parametrize("kind", [np.float32, [np.int32, np.bool_], tff.TensorType(np.float32, [300])], ids=str)
def test_rows_are_of_any_structure(tff_worker, kind):
    @tff.federated_computation(tff.FederatedType(kind, tff.CLIENTS))
    def gather(value):
        return collect_rows(value)

    assert gather.type_signature.result.member == tff.to_type(stacked(tff.to_type(kind)))


class Moments(NamedTuple):
    second: tff.Type
    first: tff.Type


def test_a_first_value_with_mappings_for_named_tuples_is_of_their_type():
    """As checkpoints have it; TensorFlow would put the fields of a mapping, but not of a named tuple, in order."""
    kind = tff.to_type(Moments(tff.TensorType(np.float32, [None]), tff.TensorType(np.float32, [None])))

    @tff.tensorflow.computation
    def first():
        return first_value(collections.OrderedDict(second=np.ones(2), first=np.zeros(1)), kind)

    assert kind.is_assignable_from(first.type_signature.result)
