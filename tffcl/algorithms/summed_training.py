"""A round of clustered training whose only aggregation is a sum, for deployments that know no other.

TFF's DistributeAggregateForm, and with it secure aggregation, takes `tff.federated_sum`; TFF 0.87 can't make one of a
`tff.federated_aggregate`. So every client uploads one row a cluster, zero but for its own.
"""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff


def build_summed_round(client_update: tff.Computation, num_clusters: int) -> tff.Computation:
    """Builds a round that gives the models of `clustered_training`'s or `ifca`'s up to rounding.

    The number of clusters is fixed, an upload is `num_clusters` times as large, and the server sees sums only, no client's
    report.

    Args:
      client_update: A client's part, `(<T, client> -> <upload=<key=int32,value=float32[P]>,weight=float32,...,report=R>)` with
        T the client's own model `float32[P]`, or all models `float32[?,P]` for clients that choose.
      num_clusters: K.

    Returns:
      `(<models=float32[K,P]@SERVER, {client}@CLIENTS> ->
        <<models=float32[K,P]>@SERVER, <weight=float32[K],clients=int32[K],loss=float32>@SERVER>)`, `loss` the mean over
      the clients by weight.
    """
    given_type, client_type = client_update.type_signature.parameter
    size = client_update.type_signature.result["upload"]["value"].shape[0]
    models_type = tff.TensorType(np.float32, [num_clusters, size])
    state_type = tff.to_type(collections.OrderedDict(models=models_type))
    chooses = len(given_type.shape) == 2

    @tff.tensorflow.computation(state_type, client_type)
    def update(state, client):
        models = state["models"]
        result = client_update(models if chooses else models[client["key"]], client)
        own = tf.one_hot(result["upload"]["key"], num_clusters)
        weight = result["weight"]
        # A weight of 0 silences the client, also one whose value is not finite.
        value = tf.math.multiply_no_nan(result["upload"]["value"], weight)
        return collections.OrderedDict(
            sums=tf.math.multiply_no_nan(value[tf.newaxis], own[:, tf.newaxis]),
            weight=own * weight,
            clients=tf.cast(own, tf.int32),
            loss=tf.math.multiply_no_nan(result["report"]["loss"], weight),
        )

    @tff.tensorflow.computation(state_type, update.type_signature.result)
    def move(state, totals):
        means = tf.math.divide_no_nan(totals["sums"], totals["weight"][:, tf.newaxis])
        loss = tf.math.divide_no_nan(totals["loss"], tf.reduce_sum(totals["weight"]))
        told = collections.OrderedDict(weight=totals["weight"], clients=totals["clients"], loss=loss)
        return collections.OrderedDict(models=state["models"] + means), told

    @tff.federated_computation(tff.FederatedType(state_type, tff.SERVER), tff.FederatedType(client_type, tff.CLIENTS))
    def summed_round(state, clients):
        totals = tff.federated_sum(tff.federated_map(update, (tff.federated_broadcast(state), clients)))
        moved = tff.federated_map(move, (state, totals))
        return moved[0], moved[1]

    return summed_round
