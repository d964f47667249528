"""K weighted means of one upload, in which a client's updates of K models have K weights (soft clusters)."""

import collections
import math

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.clustered_mean import build_pick, check_mean, keyed_factory, pad_rows
from tffcl.aggregators.collect import leaves_of, stacked
from tffcl.aggregators.contract import FactoryTraits, traits
from tffcl.aggregators.per_cluster import aggregation_process, by_row
from tffcl.errors import UserError


class SoftMeanFactory(FactoryTraits, tff.aggregators.WeightedAggregationFactory):
    """`tff.aggregators.WeightedAggregationFactory` for the means of K models; every client may contribute to each.

    The created `tff.templates.AggregationProcess` takes `value = <weights=float32[K], value=T[K,...]>` and a scalar
    weight, and has
        `next`: `(<state=S@SERVER, value={<weights=float32[K],value=T[K,...]>}@CLIENTS, weight={W}@CLIENTS> ->
                  <state=S@SERVER, result=T[K,...]@SERVER, measurements=M@SERVER>)`
    where row k of the result is `sum_c w_ck v_ck / sum_c w_ck` over the clients c, with `w_ck` the client's k-th weight
    times its scalar weight. A row whose weights sum to 0 is zero. So aggregate *updates*; a model to which no client
    contributes then stays unchanged. With `shared`, clients upload one value `T` that stands for each of their K
    values.

    The plain means are one `tff.federated_aggregate`, which TFF's MapReduceForm accepts. Their measurements are
    `<weight=float32[K], clients=int32[K]>`, the sums of weights and the numbers of clients with a weight above 0.

    Any other aggregation runs once for each of the K means, with a client's k-th value and weight. Secure sums hide
    weights and values. Each of the K noised means is a Gaussian mechanism of noise multiplier z, and a client changes
    all of them: together they are one mechanism of z / √K. If all clients of a mean count the same (noise, robust
    rules, uniform means), weights above 0 count as 1.
    """

    def __init__(
        self, num_models: int, aggregation: tff.aggregators.AggregationFactory | None = None, *, shared: bool = False
    ):
        """Makes the factory.

        Args:
          num_models: K.
          aggregation: The aggregation of each mean, as in `keyed_factory`; None for the plain means.
          shared: Whether clients upload one value for all K means.

        Raises:
          UserError: If `num_models` is below 1, or `aggregation` is not an aggregation factory.
        """
        if num_models < 1:
            raise UserError(f"num_models is {num_models}; it must be 1 or more")
        self._num_models, self._aggregation, self._shared = num_models, aggregation, shared
        self._inner = traits(keyed_factory(aggregation, 1))
        inner = self._inner
        self.is_uniform, self.is_mean, self.members_needed = inner.is_uniform, inner.is_mean, inner.members_needed
        self.hides_uploads, self.noise_seed, self.by_length = inner.hides_uploads, inner.noise_seed, inner.by_length
        self.noise_multiplier = inner.noise_multiplier and inner.noise_multiplier / math.sqrt(num_models)
        self.takes_client_ids = inner.takes_client_ids

    @property
    def is_plain(self) -> bool:
        """Whether its means are plain."""
        return self._aggregation is None

    def with_layers(self, layers) -> "SoftMeanFactory":
        """Returns the factory for values whose parts, of these lengths, are layers of a model."""
        return self if self.is_plain else self._of(self._inner.with_layers(layers))

    def with_equal_weights(self) -> "SoftMeanFactory":
        """Returns the factory for uploads whose scalar weights are all 1, or 0."""
        return self if self.is_plain else self._of(self._inner.with_equal_weights())

    def clipped(self, value):
        """Returns a client's values (a tensor) as they count, within the bounds that the client knows."""
        return self._inner.clipped(value)

    def deployed(self) -> "SoftMeanFactory":
        """Returns the factory with the deployed form of its aggregation."""
        inner = self._inner.deployed()
        return self if self.is_plain or inner is self._inner else self._of(inner)

    def _of(self, aggregation) -> "SoftMeanFactory":
        return SoftMeanFactory(self._num_models, aggregation, shared=self._shared)

    def rows_of(self, value: tf.Tensor) -> tf.Tensor:
        """Returns a client's values with a row for each mean, or one row for all of them."""
        return value[tf.newaxis] if self._shared else value

    @property
    def sends_weight(self) -> bool:
        """Whether a client sends its scalar weight; in other aggregations it sends a weight for each mean instead."""
        return self.is_plain

    def uploaded_type(self, value_type: tff.Type) -> tff.Type:
        """Returns the type of what a client sends for a value; for other aggregations, the types of all K."""
        if self.is_plain:
            return value_type
        own = self._inner.uploaded_type(self._keyed_type(value_type))
        weighted = isinstance(self._inner, tff.aggregators.WeightedAggregationFactory) and self._inner.sends_weight
        return tff.to_type([(own, np.float32) if weighted else own] * self._num_models)

    def _own(self, value_type: tff.Type) -> tff.Type:
        return value_type["upload"] if self.takes_client_ids else value_type

    def _keyed_type(self, value_type: tff.Type) -> tff.Type:
        """The type of one of the K keyed uploads."""

        def row(leaf):
            return tff.TensorType(leaf.dtype, leaf.shape if self._shared else leaf.shape[1:])

        value = tff.types.structure_from_tensor_type_tree(row, self._own(value_type)["value"])
        keyed = collections.OrderedDict(key=np.int32, value=value)
        whole = collections.OrderedDict(client_id=np.int32, upload=keyed)
        return tff.to_type(whole if self.takes_client_ids else keyed)

    def create(self, value_type: tff.Type, weight_type: tff.Type) -> tff.templates.AggregationProcess:
        """Creates the process.

        Raises:
          TypeError: If `value_type` is not `<weights=float32[K],value=T[K,...]>` of floating tensors, or the weight is
            not a scalar.
        """
        self._check_types(self._own(value_type), weight_type)
        return self._create_plain(value_type, weight_type) if self.is_plain else self._create(value_type, weight_type)

    def _check_types(self, value_type: tff.Type, weight_type: tff.Type):
        struct = isinstance(value_type, tff.StructType) and tff.structure.name_list(value_type) == ["weights", "value"]
        if not struct or value_type["weights"] != tff.TensorType(np.float32, [self._num_models]):
            raise TypeError(f"expected <weights=float32[{self._num_models}],value=T[K,...]>, found {value_type}")
        check_mean(value_type["value"], weight_type)
        leaves = leaves_of(value_type["value"])
        rows = {leaf.shape[0] if leaf.shape else None for leaf in leaves}
        if not self._shared and rows != {self._num_models}:
            raise TypeError(f"expected {self._num_models} rows in every tensor, found {value_type['value']}")

    def _create_plain(self, value_type: tff.Type, weight_type: tff.Type) -> tff.templates.AggregationProcess:
        count, value = self._num_models, self._own(value_type)["value"]
        rows_type = stacked(value, count) if self._shared else value
        totals_type = tff.to_type(
            collections.OrderedDict(
                sums=rows_type, weight=tff.TensorType(np.float32, [count]), clients=tff.TensorType(np.int32, [count])
            )
        )

        @tff.tensorflow.computation
        def zero():
            return tff.types.structure_from_tensor_type_tree(lambda leaf: tf.zeros(leaf.shape, leaf.dtype), totals_type)

        @tff.tensorflow.computation(totals_type, collections.OrderedDict(upload=value_type, weight=weight_type))
        def accumulate(totals, client):
            weights = client["upload"]["weights"] * tf.cast(client["weight"], tf.float32)

            def add(total, leaf):
                rows = self.rows_of(leaf)
                # A weight of 0 silences a client, also one whose value is not finite.
                return total + tf.math.multiply_no_nan(rows, by_row(weights, rows))

            sums = tf.nest.map_structure(add, totals["sums"], client["upload"]["value"])
            clients = totals["clients"] + tf.cast(weights > 0, tf.int32)
            return collections.OrderedDict(sums=sums, weight=totals["weight"] + weights, clients=clients)

        @tff.tensorflow.computation(totals_type, totals_type)
        def merge(first, second):
            return tf.nest.map_structure(tf.add, first, second)

        @tff.tensorflow.computation(totals_type)
        def report(totals):
            return tf.nest.map_structure(tf.identity, totals)

        @tff.tensorflow.computation(totals_type)
        def divide(totals):
            def mean(total):
                return tf.math.divide_no_nan(total, by_row(totals["weight"], total))

            measured = collections.OrderedDict(weight=totals["weight"], clients=totals["clients"])
            return tf.nest.map_structure(mean, totals["sums"]), measured

        def step(state, value, weight):
            uploads = tff.federated_zip(collections.OrderedDict(upload=value, weight=weight))
            found = tff.federated_map(divide, tff.federated_aggregate(uploads, zero(), accumulate, merge, report))
            return tff.templates.MeasuredProcessOutput(state, found[0], found[1])

        return aggregation_process(None, step, value_type, weight_type)

    def _create(self, value_type: tff.Type, weight_type: tff.Type) -> tff.templates.AggregationProcess:
        """One process of the aggregation for each mean, in which all clients have the key 0."""
        keyed_type, one_weight = self._keyed_type(value_type), tff.TensorType(np.float32)
        factories = [self._inner.numbered(number) for number in range(self._num_models)]
        weighted = isinstance(factories[0], tff.aggregators.WeightedAggregationFactory)
        kinds = (keyed_type, one_weight) if weighted else (keyed_type,)
        processes = [factory.create(*kinds) for factory in factories]
        parts = [_build_part(value_type, weight_type, number, self._shared) for number in range(self._num_models)]
        outcome = processes[0].next.type_signature.result

        @tff.tensorflow.computation(tff.to_type([outcome.result.member] * self._num_models))
        def stack(results):
            # Without clients there is no row.
            rows = [pad_rows(each, 1) for each in results]
            return tf.nest.map_structure(lambda *each: tf.concat([row[:1] for row in each], 0), *rows)

        @tff.tensorflow.computation(tff.to_type([outcome.measurements.member] * self._num_models))
        def together(measured):
            return tf.nest.map_structure(lambda *each: tf.concat([tf.reshape(row, [-1]) for row in each], 0), *measured)

        @tff.federated_computation
        def initialize():
            return tff.federated_zip(tuple(process.initialize() for process in processes))

        def step(states, value, weight):
            outputs = []
            for number, (process, part) in enumerate(zip(processes, parts, strict=True)):
                own = tff.federated_map(part, (value, weight))
                state = tff.federated_map(build_pick(states.type_signature.member, number), states)
                outputs.append(process.next(state, own[0], own[1]) if weighted else process.next(state, own[0]))
            states, results, measured = (
                tff.federated_zip(tuple(getattr(output, name) for output in outputs))
                for name in ("state", "result", "measurements")
            )
            result, measured = tff.federated_map(stack, results), tff.federated_map(together, measured)
            return tff.templates.MeasuredProcessOutput(states, result, measured)

        return aggregation_process(initialize, step, value_type, weight_type)


def _build_part(value_type: tff.Type, weight_type: tff.Type, number: int, shared: bool) -> tff.Computation:
    """Builds `(upload, weight) -> (keyed upload, float32)`, what a client sends to one of the K means."""

    @tff.tensorflow.computation(value_type, weight_type)
    def part(given, weight):
        upload = given["upload"] if "upload" in given else given
        value = tf.nest.map_structure(lambda leaf: leaf if shared else leaf[number], upload["value"])
        keyed = collections.OrderedDict(key=tf.constant(0), value=value)
        whole = collections.OrderedDict(client_id=given["client_id"], upload=keyed) if "upload" in given else keyed
        return whole, upload["weights"][number] * tf.cast(weight, tf.float32)

    return part
