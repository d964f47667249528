"""k-means on a client: Lloyd's iterations from k-means++ starts (FLT Alg. 2 lines 8 and 9)."""

import collections
import functools
import math

import tensorflow as tf

from tffcl.models.graph_function import traced_once
from tffcl.trace_cache import built_once
from tffcl.validation import Count, check_value

_ITERATIONS = 300  # of Lloyd's algorithm, at most, for each start


def _squared_distances(points, centre):
    """`float64 [n]`; computed from differences, because |p|^2 - 2 p'c + |c|^2 would not be 0 for equal points."""
    return tf.reduce_sum(tf.math.squared_difference(points, centre), axis=1)


def _start(points, num_centres, seed):
    """Greedy k-means++: each further centre is the best of a few points drawn by their squared distance from those
    before.

    Args:
      points: `float64 [n, e]`, n from 1.
      num_centres: k.
      seed: `int32 [2]`.

    Returns:
      `(centres float64 [k, e], nearest float64 [k, n])`, the centres and, in row i, each point's squared distance to
      the nearest of the first i + 1 centres; these are the centres that a start with so many would have. If there are
      fewer than k different points, the last centres repeat one of them.
    """
    n = tf.shape(points)[0]
    candidates = 2 + int(math.log(num_centres))  # as in scikit-learn
    draws = tf.random.stateless_uniform([num_centres, candidates], seed=seed, dtype=tf.float64)
    nearest = tf.ones([n], tf.float64)
    centres, after = [], []
    for number in range(num_centres):
        heaps = tf.cumsum(nearest)
        # "right" skips points of weight 0; if there are no others, it skips all points, hence the minimum.
        drawn = tf.minimum(tf.searchsorted(heaps, draws[number] * heaps[-1], side="right"), n - 1)
        if number == 0:
            centres.append(points[drawn[0]])
            nearest = _squared_distances(points, centres[0])
            after.append(nearest)
            continue
        tried = tf.gather(points, drawn)
        distances = tf.minimum(nearest, tf.stack([_squared_distances(points, each) for each in tf.unstack(tried)]))
        best = tf.argmin(tf.reduce_sum(distances, axis=1))
        centres.append(tried[best])
        nearest = distances[best]
        after.append(nearest)
    return tf.stack(centres), tf.stack(after)


def _assign(points, centres):
    """Returns the nearest centre of every point, the first of equal ones, `int32 [n]`, and the squared distance to
    it."""
    distances = tf.map_fn(lambda centre: _squared_distances(points, centre), centres, parallel_iterations=1)
    return tf.argmin(distances, axis=0, output_type=tf.int32), tf.reduce_min(distances, axis=0)


def _lloyd(points, centres):
    """Moves centres to the means of their points until no point changes its centre.

    Empty centres move to the point that is farthest from its own centre, and the first of them keeps it. This lowers
    the inertia, so the iterations cannot go in circles.

    Args:
      points: `float64 [n, e]`, with more different points than centres.
      centres: `float64 [k, e]`.
    """
    num_centres = tf.shape(centres)[0]
    lengths = tf.reduce_sum(tf.square(points), axis=1)

    def improve(number, centres, before, changed):
        del changed
        # Squared distances minus the points' squared lengths, by a matrix product: many times faster than differences.
        scores = tf.reduce_sum(tf.square(centres), axis=1) - 2.0 * tf.matmul(points, centres, transpose_b=True)
        assignment = tf.argmin(scores, axis=1, output_type=tf.int32)
        members = tf.one_hot(assignment, num_centres, dtype=tf.float64)
        counts = tf.reduce_sum(members, axis=0)[:, tf.newaxis]
        means = tf.matmul(members, points, transpose_a=True) / tf.maximum(counts, 1.0)
        farthest = points[tf.argmax(lengths + tf.reduce_min(scores, axis=1))]
        empty = tf.equal(counts, 0.0)
        centres = tf.where(empty, farthest, means)
        changed = tf.logical_or(tf.reduce_any(tf.not_equal(assignment, before)), tf.reduce_any(empty))
        return number + 1, centres, assignment, changed

    _, centres, *_ = tf.while_loop(
        lambda number, centres, before, changed: tf.logical_and(number < _ITERATIONS, changed),
        improve,
        (0, centres, tf.fill(tf.shape(points)[:1], -1), True),
        parallel_iterations=1,
    )
    return centres


@built_once
def build_kmeans(num_centres: int, *, restarts: int = 10):
    """Builds k-means as a tf.function.

    Of several starts the one with the lowest inertia (sum of squared distances of the points to their centres) counts.
    A client with at most k different points sends these as its centres. Points that are not finite (the codes of an
    encoder that diverged) are left out. It computes in float64.

    Args:
      num_centres: k.
      restarts: The number of starts; 10 as scikit-learn's `n_init` in the authors' code.

    Returns:
      A tf.function `(points float32[n, e], seed int32[2], limit=int32) ->
      <centres=float32[k, e],mask=bool[k],counts=int32[k],inertia=float32>`; a centre without points, whose `counts` is
      0, is zero and masked. So are the centres after the first `limit`, for a client that makes fewer than k, and with
      n = 0 all centres.

    Raises:
      UserError: If one of the numbers is not a whole number from 1.
    """
    num_centres, restarts = check_value("num_centres", num_centres, Count), check_value("restarts", restarts, Count)

    def once(points, seed, limit):
        started, nearest = _start(points, num_centres, seed)
        centres = started[:limit]
        # with at most k different points nothing can be improved
        all_centres = tf.equal(tf.reduce_max(nearest[limit - 1]), 0.0)
        centres = tf.cond(all_centres, lambda: centres, lambda: _lloyd(points, centres))
        assignment, squared = _assign(points, centres)
        counts = tf.math.unsorted_segment_sum(tf.ones_like(assignment), assignment, num_centres)
        return tf.pad(centres, [[0, num_centres - limit], [0, 0]]), counts, tf.reduce_sum(squared)

    def best(points, seed, limit):
        def restart(number):
            return once(points, tf.random.experimental.stateless_fold_in(seed, number), limit)

        types = (tf.float64, tf.int32, tf.float64)
        centres, counts, inertia = tf.map_fn(
            restart, tf.range(restarts), fn_output_signature=types, parallel_iterations=1
        )
        least = tf.argmin(inertia)
        return centres[least], counts[least], inertia[least]

    def nothing(points):
        no_centres = tf.zeros([num_centres, tf.shape(points)[1]], tf.float64)
        return no_centres, tf.zeros([num_centres], tf.int32), tf.zeros([], tf.float64)

    signature = [tf.TensorSpec([None, None], tf.float32), tf.TensorSpec([2], tf.int32), tf.TensorSpec([], tf.int32)]

    @functools.partial(traced_once, input_signature=signature)
    def kmeans(points, seed, limit=num_centres):
        limit = tf.clip_by_value(limit, 1, num_centres)
        finite = tf.boolean_mask(points, tf.reduce_all(tf.math.is_finite(points), axis=1))
        finite = tf.cast(finite, tf.float64)
        centres, counts, inertia = tf.cond(
            tf.shape(finite)[0] > 0, lambda: best(finite, seed, limit), lambda: nothing(finite)
        )
        mask = tf.ensure_shape(counts, [num_centres]) > 0
        return collections.OrderedDict(
            centres=tf.cast(tf.where(mask[:, tf.newaxis], centres, tf.zeros_like(centres)), tf.float32),
            mask=mask,
            counts=tf.ensure_shape(counts, [num_centres]),
            inertia=tf.cast(inertia, tf.float32),
        )

    return kmeans
