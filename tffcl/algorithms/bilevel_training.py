"""One round of bi-level training (StoCFL Eq. 3): a cluster's model, pulled towards a global one, and the global one."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.clustered_mean import (
    ClusteredMeanFactory,
    UniformClusteredMeanFactory,
    aggregated_beside,
    keyed_factory,
    pad_rows,
)
from tffcl.aggregators.traits import traits
from tffcl.aggregators.uniform_mean import UniformMeanFactory
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.client_work.training import build_bilevel_work
from tffcl.errors import UserError
from tffcl.kept_builds import built_once
from tffcl.models.flat import FlatModel
from tffcl.rounds.composer import Round, Server, compose
from tffcl.rounds.server_steps import models_type


@built_once
def build_bilevel_round(
    model: FlatModel,
    training: LocalTraining,
    global_training: LocalTraining | None,
    *,
    aggregation: tff.aggregators.AggregationFactory | None = None,
    global_aggregation: tff.aggregators.AggregationFactory | None = None,
) -> Round:
    """Builds one round of bi-level training (StoCFL Eq. 3, Alg. 1 lines 18 to 25): two models, of which the cluster's is pulled towards the global one.

    The server has `models float32[?,P]` and `global_model float32[P]`; a client receives row `key` of the models and the global
    model. Row k moves by the weighted mean of the differences of the clients with key k, the global model by that of all
    clients.

    Args:
      model: What is trained.
      training: Of the cluster models; its `proximal_weight` is λ.
      global_training: Of the global model; None: it stays as it is.
      aggregation: Of the cluster models' updates, over `<key=int32,value=float32[P]>`; default `ClusteredMeanFactory()`.
      global_aggregation: Over `float32[P]`, the other half of the global objective; default the mean weighted by examples,
        zero where nobody has any weight, or that in which all count the same where they do in the clusters' means.
    """

    def receive(values, client):
        return collections.OrderedDict(model=values["models"][client["key"]], global_model=tf.identity(values["global_model"]))

    def step(state, results, measurements):
        del measurements
        models = state["models"] + pad_rows(results["update"], tf.shape(state["models"])[0])
        moved = {} if global_training is None else {"global_model": state["global_model"] + results["global_update"]}
        return {**state, "models": models, **moved}

    uploads = {"update": _of_changing_clusters(aggregation)}
    if global_training is not None:
        uploads["global_update"] = global_aggregation or _mean_over_all(uploads["update"])
    values = {"models": models_type(model.size), "global_model": tff.TensorType(np.float32, [model.size])}
    return compose(build_bilevel_work(model, training, global_training), uploads, Server(values, receive, step))


def _mean_over_all(of_clusters):
    """The mean over all clients, who count in it as they do in the clusters' means."""
    if isinstance(aggregated_beside(of_clusters, ClusteredMeanFactory()), UniformClusteredMeanFactory):
        return UniformMeanFactory()
    return tff.aggregators.MeanFactory(no_nan_division=True)


def _of_changing_clusters(aggregation):
    """The factory over keyed uploads; StoCFL's clusters come and go, so that none can run once per cluster."""
    factory = keyed_factory(aggregation)
    if traits(factory).waits_for_clusters or isinstance(factory, ClusteredMeanFactory) and not factory.is_plain:
        raise UserError(
            "StoCFL's clusters come and go, so that no aggregation can run once for each of them; its cluster models take the plain "
            "mean or a factory over keyed updates, its global model any (global_aggregation)"
        )
    return factory
