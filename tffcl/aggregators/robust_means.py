"""Means per cluster that bound what malicious members can do. None of them is private."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.clustered_mean import check_types, segment_process
from tffcl.aggregators.collect import collect_rows, stacked
from tffcl.aggregators.contract import FactoryTraits, key_by_attributes
from tffcl.aggregators.parameters import RobustParameters
from tffcl.aggregators.per_cluster import PerClusterFactory, aggregation_process, global_norm

_VOTE = tff.to_type(collections.OrderedDict(key=np.int32, value=np.float32))  # whether an update was short enough


class ClippedClusteredMeanFactory(PerClusterFactory):
    """`tff.aggregators.WeightedAggregationFactory` for means keyed by cluster ID of updates that are clipped.

    Every cluster has its own clip C, which follows a quantile of the L2 norms of *its members'* updates (the geometric
    rule of Andrew et al. 2021 without noise); a cluster without members in a round keeps its clip. Longer updates are
    scaled down to C; updates more than `zeroing` times as long as C count as zero. Without attackers a result is within
    `Σ w max(0, ‖x‖ - C) / Σ w` of the plain mean in L2 norm.

    State: `<clip=float32[K]>`; results and measurements as in `ClusteredMeanFactory`.
    """

    by_length = True

    def __init__(self, how: RobustParameters = RobustParameters(rule="clipping"), *, num_clusters: int | None = None):
        """Makes the factory; `num_clusters` as in `ClusteredMeanFactory`."""
        super().__init__(num_clusters, how)
        self._how = how

    def uploaded_type(self, value_type: tff.Type) -> tff.Type:
        """Returns the type of what a client sends for a value `<key=int32,value=T>`: this, and a vote with a weight."""
        return tff.to_type([value_type, _VOTE, np.float32])

    def create(self, value_type: tff.Type, weight_type: tff.Type) -> tff.templates.AggregationProcess:
        """Creates the process for values of type `<key=int32, value=T>`; errors as in `ClusteredMeanFactory.create`."""
        check_types(value_type, weight_type)
        how, clusters = self._how, self._clusters()
        mean = segment_process(value_type, weight_type, clusters)
        votes = segment_process(_VOTE, weight_type, clusters, uniform=True)
        state_type = tff.to_type(collections.OrderedDict(clip=tff.TensorType(np.float32, [None])))

        @tff.tensorflow.computation(value_type, state_type)
        def clip(upload, state):
            bound, norm = state["clip"][upload["key"]], global_norm(upload["value"])
            scale = tf.where(tf.math.is_finite(norm), bound / tf.maximum(norm, bound), 0.0)
            if how.zeroing:
                scale = tf.where(norm > how.zeroing * bound, 0.0, scale)

            def scaled(leaf):
                return tf.math.multiply_no_nan(leaf, tf.cast(scale, leaf.dtype))

            return collections.OrderedDict(key=upload["key"], value=tf.nest.map_structure(scaled, upload["value"]))

        @tff.tensorflow.computation(value_type, state_type)
        def vote(upload, state):
            short = global_norm(upload["value"]) <= state["clip"][upload["key"]]
            return collections.OrderedDict(key=upload["key"], value=tf.cast(short, tf.float32))

        @tff.tensorflow.computation(
            state_type,
            votes.next.type_signature.result.result.member,
            votes.next.type_signature.result.measurements.member,
        )
        def move(state, shares, measured):
            followed = state["clip"] * tf.exp(-how.clip_learning_rate * (shares - how.quantile))
            return collections.OrderedDict(clip=tf.where(measured["clients"] > 0, followed, state["clip"]))

        @tff.tensorflow.computation
        def first():
            clips = np.full([clusters], how.initial_clip, np.float32)
            return collections.OrderedDict(clip=tf.compat.v1.placeholder_with_default(clips, [None]))

        def step(state, value, weight):
            bounds = tff.federated_broadcast(state)
            voted = votes.next(votes.initialize(), tff.federated_map(vote, (value, bounds)), weight)
            output = mean.next(mean.initialize(), tff.federated_map(clip, (value, bounds)), weight)
            moved = tff.federated_map(move, (state, voted.result, voted.measurements))
            return tff.templates.MeasuredProcessOutput(moved, output.result, output.measurements)

        return aggregation_process(first, step, value_type, weight_type)


class RobustClusteredMeanFactory(FactoryTraits, tff.aggregators.WeightedAggregationFactory):
    """`tff.aggregators.WeightedAggregationFactory` for robust means keyed by cluster ID, of uploads that the server
    sees.

    The rules are for the n members of a cluster. Every member of positive weight counts the same (a weight would be
    another way to attack); a member whose value is not finite does not count.

    * "median": the median of each coordinate. Within σ of the mean, where σ² is the coordinate's variance among the
      members.
    * "trimmed_mean": the mean of each coordinate without its b = ⌊attackers · n⌉ largest and smallest values, if that
      leaves at least one (Yin et al. 2018). Within σ √(2b / (n - 2b)) of the mean.
    * "multi_krum": the mean of the n - f updates whose sum of squared distances to their n - f - 2 nearest others (at
      least one) is least, f = ⌊attackers · n⌉ (Blanchard et al. 2017, section 4 and multi-Krum). Within √(f / (n - f))
      times the L2 deviation √(Σ σ²) of the mean.

    The server collects every upload, so nothing is hidden from it, and a round has no DistributeAggregateForm. Results
    are as in `ClusteredMeanFactory` without a fixed number of clusters; `measurements=<clients=int32[?]>`.
    """

    is_keyed, is_mean = True, False
    key = property(key_by_attributes)

    def __init__(self, how: RobustParameters = RobustParameters()):
        """Makes the factory.

        Args:
          how: Rule and the share of attackers; "clipping" is `ClippedClusteredMeanFactory`.
        """
        self._how, self.by_length = how, how.rule == "multi_krum"

    def beside(self, plain: tff.aggregators.AggregationFactory, bound: float | None = None):
        """Returns this rule, since attackers can misuse the other upload, too, and members count the same in both."""
        del plain, bound
        return self

    def create(self, value_type: tff.Type, weight_type: tff.Type) -> tff.templates.AggregationProcess:
        """Creates the process for values of type `<key=int32, value=T>`; errors as in `ClusteredMeanFactory.create`."""
        check_types(value_type, weight_type)
        how = self._how
        row_type = tff.to_type(collections.OrderedDict(upload=value_type, weight=weight_type))

        @tff.tensorflow.computation(stacked(row_type))
        def combine(rows):
            counting = rows["weight"] > 0
            for leaf in tf.nest.flatten(rows["upload"]["value"]):
                counting &= tf.reduce_all(tf.math.is_finite(leaf), axis=list(range(1, leaf.shape.rank)))
            keys = tf.boolean_mask(rows["upload"]["key"], counting)
            leaves = [tf.boolean_mask(leaf, counting) for leaf in tf.nest.flatten(rows["upload"]["value"])]
            clusters = tf.reduce_max(tf.concat([keys, [-1]], 0)) + 1
            counts = tf.math.bincount(keys, minlength=clusters, maxlength=clusters)
            flat = tf.concat([tf.reshape(leaf, [-1, int(np.prod(leaf.shape[1:]))]) for leaf in leaves], 1)

            def of_cluster(cluster):
                members = tf.boolean_mask(flat, tf.equal(keys, cluster))
                centre = _RULES[how.rule]
                return tf.cond(
                    tf.shape(members)[0] > 0, lambda: centre(members, how.attackers), lambda: tf.zeros_like(flat[0])
                )

            shape = tf.TensorSpec([flat.shape[1]], flat.dtype)
            found = tf.map_fn(of_cluster, tf.range(clusters), fn_output_signature=shape)
            parts = tf.split(found, [int(np.prod(leaf.shape[1:])) for leaf in leaves], 1)
            means = [
                tf.ensure_shape(tf.reshape(part, tf.concat([[clusters], leaf.shape[1:]], 0)), [None, *leaf.shape[1:]])
                for part, leaf in zip(parts, leaves)
            ]
            measured = collections.OrderedDict(clients=tf.ensure_shape(counts, [None]))
            return tf.nest.pack_sequence_as(rows["upload"]["value"], means), measured

        def step(state, value, weight):
            rows = collect_rows(tff.federated_zip(collections.OrderedDict(upload=value, weight=weight)))
            combined = tff.federated_map(combine, rows)
            return tff.templates.MeasuredProcessOutput(state, combined[0], combined[1])

        return aggregation_process(None, step, value_type, weight_type)


def _left_out(members, attackers: float):
    return tf.cast(tf.round(attackers * tf.cast(tf.shape(members)[0], tf.float32)), tf.int32)


def _most_left_out(members):
    return (tf.shape(members)[0] - 1) // 2


def _trimmed(members, cut):
    ordered = tf.sort(members, axis=0)
    return tf.reduce_mean(ordered[cut : tf.shape(members)[0] - cut], axis=0)


def _trimmed_mean(members, attackers: float):
    return _trimmed(members, tf.minimum(_left_out(members, attackers), _most_left_out(members)))


def _multi_krum(members, attackers: float):
    # Members come in no promised order, and of two that are each other's nearest, and so have equal scores, the first
    # is taken. So they are put into an order that depends on their values alone.
    directions = tf.cos(tf.range(tf.shape(members)[1], dtype=tf.float32))
    members = tf.gather(members, tf.argsort(tf.linalg.matvec(members, tf.cast(directions, members.dtype))))
    count, precise = tf.shape(members)[0], tf.cast(members, tf.float64)
    chosen = count - _left_out(members, attackers)
    products = tf.matmul(precise, precise, transpose_b=True)
    squares = tf.linalg.diag_part(products)
    both_ways = products + tf.transpose(products)  # symmetric to the last bit
    distances = tf.sort(squares[:, tf.newaxis] + squares[tf.newaxis] - both_ways, axis=1)
    nearest = tf.clip_by_value(chosen - 2, tf.minimum(1, count - 1), count - 1)
    scores = tf.reduce_sum(distances[:, 1 : 1 + nearest], axis=1)  # without the first, its distance to itself
    return tf.reduce_mean(tf.gather(members, tf.argsort(scores, stable=True)[:chosen]), axis=0)


_RULES = {
    "median": lambda members, attackers: _trimmed(members, _most_left_out(members)), "trimmed_mean": _trimmed_mean,
    "multi_krum": _multi_krum,
}  # fmt: skip


def build_robust_mean(how: RobustParameters = RobustParameters()):
    """Builds the factory of a rule: a `ClippedClusteredMeanFactory` or a `RobustClusteredMeanFactory`."""
    return ClippedClusteredMeanFactory(how) if how.rule == "clipping" else RobustClusteredMeanFactory(how)
