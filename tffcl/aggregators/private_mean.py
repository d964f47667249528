"""The differentially private mean per cluster: clipped updates, noised sums and counts, one Gaussian mechanism in each
round."""

import collections
import dataclasses
import math

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.clustered_mean import check_types, segment_process
from tffcl.aggregators.contract import traits
from tffcl.aggregators.parameters import DPParameters
from tffcl.aggregators.per_cluster import (
    PerClusterFactory,
    aggregation_process,
    by_row,
    global_norm,
    secure_sums,
    seed_of,
)
from tffcl.aggregators.secure_mean import integer_rows


class PrivateClusteredMeanFactory(PerClusterFactory):
    """`tff.aggregators.WeightedAggregationFactory` for private means keyed by cluster ID.

    A member's update x is scaled to a norm of at most the clip C. For cluster k the server releases the noisy number
    of members n̂ = n + N(0, (z / √s)²) and the noisy sum Σ x + N(0, (z C / √(1 - s))² I), where s is `count_share`. The
    row of the result is their quotient, or zero where n̂ is below `min_cluster_size`. So the noise of a result has the
    standard deviation `z C / (√(1 - s) n̂)` in every coordinate, which depends on the members of *this* cluster. Every
    member counts the same, whatever its weight, which is private, too; a member of weight 0, such as one whose training
    was not finite, does not count at all.

    Privacy (client level): adding or removing a client changes one row, the sum by at most C and the count by at most
    1. Scaled by their noises this is √((1 - s) / z² + s / z²) = 1 / z, so all clusters together are **one** Gaussian
    mechanism of noise multiplier z. Replacing one client by another, as with fixed-size cohorts, changes at most twice
    as much: the multiplier is then z / 2. An adaptive clip (Andrew et al. 2021, Alg. 1) adds the noisy number of
    updates that are not clipped, which costs `quantile_share` of 1 / z²; sum and count share the rest. All clusters
    have the same clip, and only members vote on it.

    The aggregator sees uploads, unless the sums are `secure`; the server learns results and noisy counts. State: the
    clip and the number of rounds; `measurements=<clients=float32[K],clip=float32>`, the noisy counts.
    """

    by_length, is_mean, members_needed = True, False, 1  # noise hides how many members there are

    def __init__(self, how: DPParameters = DPParameters(), *, num_clusters: int | None = None, seed: int | None = None):
        """Makes the factory.

        Args:
          how: Clip, noise and the shares.
          num_clusters: K; if not given, the method that uses the factory sets it.
          seed: Seed of the noise, to repeat simulations. Whoever knows it can remove the noise, so deployments have
            none, and draw anew in every round.
        """
        super().__init__(num_clusters, how, seed=seed)
        self._how, self.noise_seed = how, seed

    @property
    def hides_uploads(self) -> bool:
        """Whether noise or secure sums hide what a single client has uploaded."""
        return bool(self._how.noise_multiplier) or self._how.secure

    @property
    def noise_multiplier(self) -> float:
        """z of the Gaussian mechanism of one aggregation, if neighbours add or remove a client."""
        return self._how.noise_multiplier

    @property
    def sends_weight(self) -> bool:
        """Whether a client sends separately that its weight is above 0; in secure sums the rows contain it."""
        return not self._how.secure

    def uploaded_type(self, value_type: tff.Type) -> tff.Type:
        """Returns the type of what a client sends for a value `<key=int32,value=T>`."""
        extended = _with_vote(value_type)
        return integer_rows(extended["value"], self._clusters(), weighted=False) if self._how.secure else extended

    def clipped(self, value):
        """Returns a client's value, shortened by a fixed clip."""
        return value * (self._how.clip / tf.maximum(global_norm(value), self._how.clip))

    def beside(self, plain: tff.aggregators.AggregationFactory, bound: float | None = None):
        """Returns the private mean of another upload in which all clients count the same, with the clip and noise of
        the updates.

        It is another release, whose noise multiplier composes with that of the updates. An adaptive clip stays at its
        first value here, so that clients know how much of their upload counts. If not all clients count the same, or
        with a `bound`, which means that the numbers are not in the unit of the clip, it returns `plain`.
        """
        if bound is not None or not traits(plain).is_uniform:
            return plain
        seed = None if self.noise_seed is None else seed_of(self.noise_seed, 2**31)  # of no upload that is `numbered`
        adapting = {key: getattr(DPParameters, key) for key in DPParameters.only_with}  # mean nothing here
        how = dataclasses.replace(self._how, clipping="fixed", **adapting)
        return PrivateClusteredMeanFactory(how, num_clusters=self.num_clusters, seed=seed)

    def create(self, value_type: tff.Type, weight_type: tff.Type) -> tff.templates.AggregationProcess:
        """Creates the process for values of type `<key=int32, value=T>`; errors as in `ClusteredMeanFactory.create`."""
        check_types(value_type, weight_type)
        how, extended = self._how, _with_vote(value_type)
        state_type = tff.to_type(collections.OrderedDict(clip=np.float32, round=np.int32))
        build_sums = secure_sums if how.secure else segment_process
        summing = build_sums(extended, tff.TensorType(np.float32), self._clusters(), uniform=True)
        clip, release = _build_clip(value_type, weight_type), self._build_release(summing, state_type)

        @tff.tensorflow.computation
        def first():
            return collections.OrderedDict(clip=tf.constant(how.clip, tf.float32), round=tf.constant(0, tf.int32))

        @tff.tensorflow.computation(state_type)
        def bound_of(state):
            return state["clip"]

        def step(state, value, weight):
            bound = tff.federated_broadcast(tff.federated_map(bound_of, state))
            uploaded = tff.federated_map(clip, (value, weight, bound))
            summed = summing.next(summing.initialize(), uploaded[0], uploaded[1])
            released = tff.federated_map(release, (summed.result, summed.measurements, state))
            return tff.templates.MeasuredProcessOutput(released[1], released[0], released[2])

        return aggregation_process(first, step, value_type, weight_type)

    def _build_release(self, summing: tff.templates.AggregationProcess, state_type: tff.Type) -> tff.Computation:
        """Builds `(<sums, counts, state> -> <noisy means, next state, measurements>)`, the only part that sees sums
        without noise."""
        how, outcome, noises = self._how, summing.next.type_signature.result, _noises(self._how)

        @tff.tensorflow.computation(outcome.result.member, outcome.measurements.member, state_type)
        def release(result, measured, state):
            if how.secure:
                sums, count = result["value"], result["clients"]
            else:
                count = tf.cast(measured["clients"], tf.float32)
                sums = tf.nest.map_structure(lambda mean: mean * by_row(count, mean), result)
            draw = _drawer(self.noise_seed, state["round"])
            noisy = count + noises["count"] * draw(tf.shape(count), tf.float32)
            large = tf.cast(noisy >= how.min_cluster_size, tf.float32)

            def mean(total):
                noised = total + noises["value"] * draw(tf.shape(total), total.dtype)
                row = noised * by_row(tf.math.divide_no_nan(large * state["clip"], noisy), total)
                return tf.ensure_shape(row, [None, *total.shape[1:]])

            means, bound = tf.nest.map_structure(mean, sums["value"]), state["clip"]
            if how.adaptive:
                votes = tf.reduce_sum(sums["vote"]) + noises["vote"] * draw([], tf.float32)
                share = tf.clip_by_value(0.5 + votes / tf.maximum(tf.reduce_sum(noisy), 1.0), 0.0, 1.0)
                bound = bound * tf.exp(-how.clip_learning_rate * (share - how.quantile))
            moved = collections.OrderedDict(clip=bound, round=state["round"] + 1)
            released = collections.OrderedDict(clients=tf.ensure_shape(noisy, [None]), clip=state["clip"])
            return means, moved, released

        return release


def _build_clip(value_type: tff.Type, weight_type: tff.Type) -> tff.Computation:
    """Builds `(<upload, weight, clip> -> <upload, weight>)`: an update in units of the clip, with a vote of ±½ on
    whether it was short enough; and 1 or 0 in place of the weight, which stays on the client."""

    @tff.tensorflow.computation(value_type, weight_type, np.float32)
    def clip(upload, weight, bound):
        norm = global_norm(upload["value"])
        counts = tf.where(tf.math.is_finite(norm), 1.0 / tf.maximum(norm, bound), 0.0)
        scaled = tf.nest.map_structure(
            lambda leaf: tf.math.multiply_no_nan(leaf, tf.cast(counts, leaf.dtype)), upload["value"]
        )
        vote = tf.where(norm <= bound, 0.5, -0.5)
        value = collections.OrderedDict(value=scaled, vote=vote)
        return collections.OrderedDict(key=upload["key"], value=value), tf.cast(weight > 0, tf.float32)

    return clip


def _with_vote(value_type: tff.Type) -> tff.Type:
    value = collections.OrderedDict(value=value_type["value"], vote=np.float32)
    return tff.to_type(collections.OrderedDict(key=np.int32, value=value))


def _noises(how: DPParameters) -> dict[str, float]:
    """Standard deviations of the noise, where sums are in units of the clip and a vote is ±½."""
    votes = how.quantile_share if how.adaptive else 0.0
    z, value = how.noise_multiplier, 1 - how.count_share - votes
    return {
        "value": z / math.sqrt(value),
        "count": z / math.sqrt(how.count_share),
        "vote": 0.5 * z / math.sqrt(votes) if votes else 0.0,
    }


def _drawer(seed: int | None, round_number):
    """Returns `(shape, dtype) -> standard normal numbers`, which differ in each call; with a seed they follow from it
    and the round."""
    calls = 0

    def draw(shape, dtype):
        nonlocal calls
        calls += 1
        if seed is None:
            return tf.random.normal(shape, dtype=dtype)
        word = tf.constant(seed_of(seed, calls), tf.int32)
        return tf.random.stateless_normal(shape, tf.stack([word, round_number]), dtype=dtype)

    return draw
