"""The weighted mean per cluster of updates that are sent in few bits per coordinate; each layer has a range of
values."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.clustered_mean import check_types, segment_process
from tffcl.aggregators.collect import leaves_of
from tffcl.aggregators.contract import FactoryTraits, key_by_attributes
from tffcl.aggregators.parameters import CompressionParameters
from tffcl.aggregators.per_cluster import aggregation_process, seed_of


class CompressedClusteredMeanFactory(FactoryTraits, tff.aggregators.WeightedAggregationFactory):
    """`tff.aggregators.WeightedAggregationFactory` for means keyed by cluster ID of updates in few bits.

    A client sends for each layer its smallest value and a step, and each coordinate as a whole number of steps, rounded
    up or down at random so that its expectation is the value (QSGD, Alistarh et al. 2017, section 3, with the range as
    the norm). It sends its own row only. A coordinate of a mean is off by less than the largest step of the members:
    (largest - smallest value of the layer) / (2^bits - 1). The created process is that of `ClusteredMeanFactory`, with
    the number of rounds as its state.
    """

    is_keyed = True
    key = property(key_by_attributes)

    def __init__(self, how: CompressionParameters = CompressionParameters(), *, layers=None, seed: int | None = None):
        """Makes the factory.

        Args:
          how: How many bits.
          layers: Lengths of the parts of a flat value that have a range each; default: each tensor has one.
          seed: Seed of the rounding, which then follows from the seed and the value, to the last bit; without a seed it
            differs from run to run.
        """
        self._how, self._layers, self._seed = how, None if layers is None else tuple(layers), seed

    def deployed(self) -> "CompressedClusteredMeanFactory":
        """Returns the factory without the seed of its rounding."""
        return self if self._seed is None else type(self)(self._how, layers=self._layers)

    def with_layers(self, layers) -> "CompressedClusteredMeanFactory":
        """Returns the factory for flat values in which each part, of these lengths, has its own range."""
        return CompressedClusteredMeanFactory(self._how, layers=layers, seed=self._seed)

    def uploaded_type(self, value_type: tff.Type) -> tff.Type:
        """Returns the type of what a client sends for a value `<key=int32,value=T>`: the bits as bytes, and two numbers
        for each range."""
        sizes = [int(np.prod(leaf.shape)) for leaf in leaves_of(value_type["value"])]
        packed = [-(-size * self._how.bits // 8) for size in sizes]
        ranges = sum(len(self._parts(size)) for size in sizes)
        fields = {"key": np.int32, "ranges": tff.TensorType(np.float32, [2 * ranges])}
        return tff.to_type(collections.OrderedDict(**fields, bits=tff.TensorType(np.uint8, [sum(packed)])))

    def create(self, value_type: tff.Type, weight_type: tff.Type) -> tff.templates.AggregationProcess:
        """Creates the process for values of type `<key=int32, value=T>`; errors as in `ClusteredMeanFactory.create`."""
        check_types(value_type, weight_type)
        mean = segment_process(value_type, weight_type, None)

        @tff.tensorflow.computation(value_type, np.int32)
        def compress(upload, round_number):
            def coded(leaf):
                flat = tf.reshape(leaf, [-1])
                parts = tf.split(flat, self._parts(flat.shape[0]))
                seeds = [self._seed_of(flat, round_number, place) for place in range(len(parts))]
                return tf.reshape(tf.concat([self._rounded(*each) for each in zip(parts, seeds)], 0), leaf.shape)

            return collections.OrderedDict(key=upload["key"], value=tf.nest.map_structure(coded, upload["value"]))

        @tff.tensorflow.computation
        def first():
            return tf.constant(0, tf.int32)

        @tff.tensorflow.computation(np.int32)
        def count(round_number):
            return round_number + 1

        def step(state, value, weight):
            coded = tff.federated_map(compress, (value, tff.federated_broadcast(state)))
            output = mean.next(mean.initialize(), coded, weight)
            return tff.templates.MeasuredProcessOutput(
                tff.federated_map(count, state), output.result, output.measurements
            )

        return aggregation_process(first, step, value_type, weight_type)

    def _parts(self, size: int) -> list[int]:
        return list(self._layers) if self._layers and sum(self._layers) == size else [size]

    def _seed_of(self, flat, round_number, place: int):
        """Two clients round differently, since their values differ."""
        if self._seed is None:
            return tf.random.uniform([2], maxval=2**31 - 1, dtype=tf.int32)
        word = seed_of(self._seed, place)
        return tf.stack([tf.bitcast(tf.reduce_sum(tf.cast(flat, tf.float32)), tf.int32) ^ word, round_number])

    def _rounded(self, part, seed):
        """What the server decodes from the codes of a layer, `lowest + code * step`."""
        lowest, most = tf.reduce_min(part), 2**self._how.bits - 1
        step = (tf.reduce_max(part) - lowest) / most
        exact = tf.math.divide_no_nan(part - lowest, step)
        code = tf.minimum(tf.floor(exact + tf.random.stateless_uniform(tf.shape(part), seed, dtype=part.dtype)), most)
        return lowest + code * step
