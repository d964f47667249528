"""A composed round whose only aggregation is a sum, for deployments without any other aggregation.

TFF's DistributeAggregateForm, and with it secure aggregation, takes `tff.federated_sum`; TFF 0.87 cannot make such a
form from a `tff.federated_aggregate`. So every client uploads one row for each cluster: zero except for its own
cluster, or weighted if it is in several.
"""

import collections
import functools
from collections.abc import Callable

import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.clustered_mean import ClusteredMeanFactory
from tffcl.aggregators.per_cluster import by_row
from tffcl.aggregators.soft_mean import SoftMeanFactory
from tffcl.rounds.composer import Round
from tffcl.trace_cache import built_once


def summed_form(composed: Round) -> Callable[[int], tff.Computation] | None:
    """Returns `(number of clusters) -> summed round`; None if sums do not suffice: a result is no mean by cluster."""
    composed = composed.as_promised
    means = ClusteredMeanFactory, SoftMeanFactory
    plain = all(type(each) in means and each.is_plain for each in composed.uploads.values())
    can = composed.uploads and plain and composed.server.step and not composed.server.private
    return functools.partial(build_summed_round, composed) if can else None


@built_once
def build_summed_round(composed: Round, num_clusters: int) -> tff.Computation:
    """Builds a round that gives the models of `composed` up to rounding.

    The number of clusters is fixed, an upload is `num_clusters` times as large, and the server sees only sums and no
    client's report.

    Args:
      composed: A round that has a `summed_form`.
      num_clusters: K.

    Returns:
      `(<values@SERVER, {client}@CLIENTS> ->
        <values@SERVER, <weight=float32[K],clients=int32[K],loss=float32>@SERVER>)`: the server's values of the round,
      with K where their leading dimension is unknown; weight and clients of the first upload; `loss` is the mean over
      the clients by weight.
    """
    client_update = composed.client_update
    _, client_type = client_update.type_signature.parameter
    state_type = tff.to_type(
        collections.OrderedDict((name, _with_rows(kind, num_clusters)) for name, kind in composed.server.values.items())
    )

    @tff.tensorflow.computation(state_type, client_type)
    def update(values, client):
        result = client_update(values, client)
        sums, weights, counts = collections.OrderedDict(), collections.OrderedDict(), collections.OrderedDict()
        for name, upload in result["uploads"].items():
            if "key" in upload:
                own = tf.one_hot(upload["key"], num_clusters)
                value, counts[name] = upload["value"][tf.newaxis], tf.cast(own, tf.int32)
            else:
                own, value = upload["weights"], composed.uploads[name].rows_of(upload["value"])
                counts[name] = tf.cast(own * result["weight"] > 0, tf.int32)
            weights[name] = own * result["weight"]
            # A weight of 0 silences a client, also one whose value is not finite.
            sums[name] = tf.math.multiply_no_nan(value, by_row(weights[name], value))
        weight = result["weight"]  # once for each client, although it may be in the sums of several models
        loss = tf.math.multiply_no_nan(result["report"]["loss"], weight)
        return collections.OrderedDict(sums=sums, weights=weights, clients=counts, loss=loss, weight=weight)

    @tff.tensorflow.computation(state_type, update.type_signature.result)
    def move(values, totals):
        means = {
            name: tf.math.divide_no_nan(sums, by_row(totals["weights"][name], sums))
            for name, sums in totals["sums"].items()
        }
        counts = {
            name: collections.OrderedDict(weight=totals["weights"][name], clients=totals["clients"][name])
            for name in means
        }
        moved = composed.server.step(values, means, counts)
        weight, clients = next(iter(counts.values())).values()
        loss = tf.math.divide_no_nan(totals["loss"], totals["weight"])
        kept = collections.OrderedDict((name, tf.ensure_shape(moved[name], state_type[name].shape)) for name in values)
        return kept, collections.OrderedDict(weight=weight, clients=clients, loss=loss)

    @tff.federated_computation(tff.FederatedType(state_type, tff.SERVER), tff.FederatedType(client_type, tff.CLIENTS))
    def summed_round(state, clients):
        totals = tff.federated_sum(tff.federated_map(update, (tff.federated_broadcast(state), clients)))
        moved = tff.federated_map(move, (state, totals))
        return moved[0], moved[1]

    return summed_round


def _with_rows(kind: tff.TensorType, rows: int) -> tff.TensorType:
    return tff.TensorType(kind.dtype, [rows if size is None else size for size in kind.shape])
