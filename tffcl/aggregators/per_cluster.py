"""The base and the helpers of factories that aggregate keyed uploads inside each of a fixed number of clusters."""

import collections
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.contract import FactoryTraits, key_by_attributes
from tffcl.errors import UserError

SECURE_BOUND = 2**30  # the bound of the whole numbers in secure sums


class PerClusterFactory(FactoryTraits, tff.aggregators.WeightedAggregationFactory):
    """Base of factories that need the number of clusters before they are created.

    Where clusters are founded, merged or renumbered, those that stay keep their part of the state of the process:
    tensors with a row for each cluster, or lists with a state for each, also by name. All other numbers stay as they
    are.
    """

    is_keyed = True
    key = property(key_by_attributes)

    def __init__(self, num_clusters: int | None, *rule, **options):
        if num_clusters is not None and num_clusters < 1:
            raise UserError(f"num_clusters is {num_clusters}; it must be 1 or more, or None")
        self.num_clusters, self._rule, self._options = num_clusters, rule, options

    @property
    def waits_for_clusters(self) -> bool:
        """Whether it needs the number of clusters before it can be created."""
        return self.num_clusters is None

    def with_clusters(self, num_clusters: int) -> "PerClusterFactory":
        """Returns the factory for this number of clusters."""
        return type(self)(*self._rule, num_clusters=num_clusters, **self._options)

    def deployed(self) -> "PerClusterFactory":
        """Returns the factory without the seed of its noise, if it has one."""
        if self._options.get("seed") is None:
            return self
        return type(self)(*self._rule, num_clusters=self.num_clusters, **{**self._options, "seed": None})

    def numbered(self, number: int) -> "PerClusterFactory":
        """Returns the factory for one of several uploads, with its own noise where a seed decides the noise."""
        seed = self._options.get("seed")
        if seed is None or not number:
            return self
        own = {**self._options, "seed": seed_of(seed, number)}
        return type(self)(*self._rule, num_clusters=self.num_clusters, **own)

    def _clusters(self) -> int:
        if self.num_clusters is None:
            raise UserError(f"{type(self).__name__} aggregates inside each cluster, so it needs num_clusters")
        return self.num_clusters


def seed_of(seed: int, number: int) -> int:
    """Returns another seed, for draws that must be separate from those of the given seed."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0] >> 1)


def rearranged_state(old, fresh, rows: np.ndarray):
    """Returns the state of an aggregation process after clusters are rearranged; old clusters keep their state.

    Args:
      old: The state with the old clusters.
      fresh: The first state with the new clusters: a list with a state for each cluster; or values, by name or not, of
        which those with a row for each cluster are rearranged.
      rows: `int [K]`, the old row of each cluster, -1 for a new cluster.
    """
    if isinstance(fresh, Mapping):
        return collections.OrderedDict((name, rearranged_state(old[name], new, rows)) for name, new in fresh.items())
    if isinstance(fresh, (list, tuple)):
        if len(fresh) != len(rows):
            return [rearranged_state(kept, new, rows) for kept, new in zip(old, fresh)] if len(fresh) else fresh
        return [new if row < 0 else old[row] for row, new in zip(rows, fresh)]
    of_clusters = np.ndim(fresh) and np.shape(fresh)[0] == len(rows)
    return rearranged_rows(old, fresh, rows) if of_clusters else old


def rearranged_rows(old, fresh, rows: np.ndarray) -> np.ndarray:
    """Returns the rows of `old [K, ...]` that `rows int [K']` names; where it is -1, the row of `fresh [K', ...]`."""
    found = np.array(fresh)
    found[rows >= 0] = np.asarray(old)[rows[rows >= 0]]
    return found


def global_norm(value) -> tf.Tensor:
    """The L2 norm `float32` of a structure of tensors taken together."""
    # tf.linalg.global_norm would need the operation L2Loss, which devices lack.
    return tf.sqrt(tf.add_n([tf.cast(tf.reduce_sum(leaf**2), tf.float32) for leaf in tf.nest.flatten(value)]))


def by_row(values: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Reshapes `[K]` so that it multiplies the rows of `like [K, ...]`."""
    return tf.reshape(tf.cast(values, like.dtype), [-1] + [1] * (len(like.shape) - 1))


def counting_alike(
    factory: tff.aggregators.WeightedAggregationFactory, value_type: tff.Type, weight_type: tff.Type
) -> tff.templates.AggregationProcess:
    """Creates the process of a factory in which every client with a weight above 0 has weight 1, and the others 0."""
    inner = factory.create(value_type, tff.TensorType(np.float32))

    @tff.tensorflow.computation(weight_type)
    def one_or_nothing(weight):
        return tf.cast(weight > 0, tf.float32)

    def step(state, value, weight):
        return inner.next(state, value, tff.federated_map(one_or_nothing, weight))

    return aggregation_process(inner.initialize, step, value_type, weight_type)


def secure_sums(
    value_type: tff.Type, weight_type: tff.Type, clusters: int, *, uniform: bool = False
) -> tff.templates.AggregationProcess:
    """Builds the process that sums the values of each cluster's members securely.

    Every client uploads a row for each cluster, all zero except its own, in whole numbers; the server receives only
    their sum.

    Args:
      value_type: `<key=int32,value=T>` with all coordinates from -1 to 1; others are clipped. They are rounded to 30
        binary places, so a sum is off by at most 2⁻³¹ for each client.
      weight_type: The type of weights from 0 to 1.
      clusters: K.
      uniform: Whether all weights are 1 or 0; then their sums, which are the numbers of clients, are left out.

    Returns:
      A process over values and weights with the result `<value=T[K,...],[weight=float32[K],]clients=float32[K]>`: the
      sums of weight times value, of the weights, and the number of clients with a weight above 0.
    """

    @tff.tensorflow.computation(value_type, weight_type)
    def as_integers(upload, weight):
        one = tf.one_hot(upload["key"], clusters, dtype=tf.float64)
        weight = tf.clip_by_value(tf.cast(weight, tf.float64), 0.0, 1.0)

        def scaled(leaf):
            leaf = tf.where(tf.math.is_nan(leaf), tf.zeros_like(leaf), leaf)
            leaf = tf.clip_by_value(tf.cast(leaf, tf.float64), -1.0, 1.0) * weight
            rows = tf.reshape(one, [clusters] + [1] * len(leaf.shape)) * leaf[tf.newaxis]
            return tf.cast(tf.round(rows * SECURE_BOUND), tf.int64)

        found = collections.OrderedDict(value=tf.nest.map_structure(scaled, upload["value"]))
        if not uniform:
            found["weight"] = tf.cast(tf.round(one * weight * SECURE_BOUND), tf.int64)
        counts = one * tf.cast(weight > 0, tf.float64)
        return collections.OrderedDict(**found, clients=tf.cast(counts * SECURE_BOUND, tf.int64))

    summing = tff.aggregators.SecureSumFactory(SECURE_BOUND, -SECURE_BOUND).create(as_integers.type_signature.result)

    @tff.tensorflow.computation(as_integers.type_signature.result)
    def as_floats(sums):
        return tf.nest.map_structure(lambda leaf: tf.cast(tf.cast(leaf, tf.float64) / SECURE_BOUND, tf.float32), sums)

    def step(state, value, weight):
        output = summing.next(state, tff.federated_map(as_integers, (value, weight)))
        nothing = tff.federated_value((), tff.SERVER)
        return tff.templates.MeasuredProcessOutput(output.state, tff.federated_map(as_floats, output.result), nothing)

    return aggregation_process(summing.initialize, step, value_type, weight_type)


def aggregation_process(
    first: tff.Computation | None, step: Callable, value_type: tff.Type, weight_type: tff.Type | None = None
) -> tff.templates.AggregationProcess:
    """Builds the process of an aggregation.

    Args:
      first: Returns the first state, at the server or without a placement; None for processes that have no state.
      step: `(state, value[, weight]) -> tff.templates.MeasuredProcessOutput`, of federated values.
      value_type: The type of a client's value.
      weight_type: The type of its weight; None if clients have none.
    """

    @tff.federated_computation
    def initialize():
        if first is None:
            return tff.federated_value((), tff.SERVER)
        placed = isinstance(first.type_signature.result, tff.FederatedType)
        return first() if placed else tff.federated_eval(first, tff.SERVER)

    state_type, uploaded = initialize.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS)
    if weight_type is None:

        @tff.federated_computation(state_type, uploaded)
        def next_fn(state, value):
            return step(state, value)
    else:

        @tff.federated_computation(state_type, uploaded, tff.FederatedType(weight_type, tff.CLIENTS))
        def next_fn(state, value, weight):
            return step(state, value, weight)

    return tff.templates.AggregationProcess(initialize, next_fn)
