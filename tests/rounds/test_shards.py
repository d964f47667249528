"""The parts of shards that have a form of their own."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.rounds import shards

PAIR = collections.OrderedDict(b=tff.TensorType(np.float32, [None]), a=np.int32)


def test_what_is_computed_in_this_process_is_what_the_runtime_computes(tff_worker):
    @tff.tensorflow.computation(PAIR, np.int32)
    def loops(pair, times):
        grown = tf.map_fn(lambda each: each * 2.0, pair["b"])
        total = tf.while_loop(lambda done, _: done < times, lambda done, sums: (done + 1, sums + grown), (0, pair["b"]))
        return collections.OrderedDict(total=total[1], same=pair, numbers=[pair["a"], times])

    @tff.tensorflow.computation(np.int32)
    def with_a_variable(number):
        variable = tf.Variable(0)
        with tf.control_dependencies([variable.assign_add(number)]):
            return variable.read_value()

    for length in (3, 5):
        given = collections.OrderedDict(b=np.arange(length, dtype=np.float32), a=np.int32(4)), np.int32(2)
        here, there = shards.in_process(loops)(*given), loops(*given)
        assert list(here) == list(there) and type(here["numbers"]) is type(there["numbers"])
        tf.nest.map_structure(np.testing.assert_array_equal, here, there)
    assert shards.in_process(with_a_variable)(3) == 3


def test_rows_of_shards_come_back_as_they_were():
    row = tff.to_type(
        collections.OrderedDict(z=[np.bool_, np.str_, tff.TensorType(np.float32, [2, 2])], t=np.str_, k=np.int64)
    )
    rng = np.random.default_rng(0)
    texts = [np.array([b"a", b"", b"long", b"d", b"e"], object), np.array([b"f", b"g\0", b"h", b"", b"j"], object)]
    numbers = [rng.integers(0, 2, 5).astype(bool), rng.standard_normal([5, 2, 2]).astype(np.float32), np.arange(5) - 2]
    table = tf.concat([shards._bytes(tf.constant(each)) for each in numbers], 1).numpy()
    found = shards.joined([(table[:3], *(each[:3] for each in texts)), (table[3:], *(each[3:] for each in texts))], row)
    assert list(found) == ["z", "t", "k"]
    wanted = [numbers[0], texts[0], numbers[1], texts[1], numbers[2]]
    for each, expected in zip([*found["z"], found["t"], found["k"]], wanted, strict=True):
        np.testing.assert_array_equal(each, expected)
        assert each.dtype == expected.dtype
