"""Bi-level clustered training: cluster models that a global model pulls at, both trained in one round (StoCFL Eq. 3)."""

import collections
import dataclasses

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.clustered_mean import ClusteredMeanFactory, pad_rows
from tffcl.aggregators.collect import collect
from tffcl.algorithms.contracts import Transfer
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.client_work.update import build_bilevel_update
from tffcl.errors import unknown
from tffcl.models.flat import FlatModel

GLOBAL_OBJECTIVES = {
    "fedavg": "the mean of the clients' losses, trained as FedAvg does (the paper's Alg. 1 line 29)",
    "fedprox": "the same, each client's global model held near the broadcast one by the same λ",
}


def global_training_of(training: LocalTraining, objective: str) -> LocalTraining:
    """The training of the global model, G of Eq. 3, by its name in `GLOBAL_OBJECTIVES`.

    Raises:
      UserError: If the name is unknown.
    """
    if objective not in GLOBAL_OBJECTIVES:
        raise unknown("global_objective", objective, GLOBAL_OBJECTIVES)
    return training if objective == "fedprox" else dataclasses.replace(training, proximal_weight=0.0)


def default_global_aggregation() -> tff.aggregators.WeightedAggregationFactory:
    """The mean weighted by examples; zero where nobody has any weight."""
    return tff.aggregators.MeanFactory(no_nan_division=True)


def build_bilevel_process(
    model: FlatModel,
    training: LocalTraining,
    global_training: LocalTraining,
    *,
    aggregation: tff.aggregators.WeightedAggregationFactory | None = None,
    global_aggregation: tff.aggregators.WeightedAggregationFactory | None = None,
    local_test: bool = False,
) -> tff.templates.IterativeProcess:
    """Builds one round of bi-level training (StoCFL Alg. 1 lines 18 to 25) as one TFF computation.

    The state is `<models=float32[?,P],global_model=float32[P],aggregator=<clusters=A,global_model=G>>@SERVER`; a client is
    `<examples=E*,client_id=int32,seed=int32[2],key=int32>` and gets row `key` of the models and the global model. Row k
    moves by the weighted mean of the differences of the clients with key k, the global model by that of all clients. The
    output is `<client_id=int32[?],value=R[?]>@SERVER`, R as in `client_work.update.build_train_and_report`.

    Args:
      model: What is trained.
      training: Of the cluster models; its `proximal_weight` is λ.
      global_training: Of the global model.
      aggregation: Over `<key=int32,value=float32[P]>`; default `ClusteredMeanFactory()`.
      global_aggregation: Over `float32[P]`, the other half of the global objective; default the mean weighted by examples.
      local_test: Whether clients bring test examples and test the cluster model after training it.
    """
    client_update = build_bilevel_update(model, training, global_training, local_test=local_test)
    vector_type, _, own_type = client_update.type_signature.parameter
    result_type = client_update.type_signature.result
    clusters = (aggregation or ClusteredMeanFactory()).create(result_type["upload"], result_type["weight"])
    everyone = (global_aggregation or default_global_aggregation()).create(vector_type, result_type["weight"])
    models_type = tff.TensorType(np.float32, [None, model.size])

    @tff.tensorflow.computation
    def initial_models():
        rows = tf.compat.v1.placeholder_with_default(model.initial[np.newaxis], models_type.shape)
        return rows, tf.constant(model.initial)

    @tff.federated_computation
    def initialize():
        models, global_model = tff.federated_eval(initial_models, tff.SERVER)
        state = {"clusters": clusters.initialize(), "global_model": everyone.initialize()}
        aggregator = tff.federated_zip(collections.OrderedDict(state))
        return tff.federated_zip(collections.OrderedDict(models=models, global_model=global_model, aggregator=aggregator))

    @tff.tensorflow.computation(models_type, vector_type, own_type)
    def gather_and_update(models, global_model, client):
        return client_update(models[client["key"]], global_model, client)

    @tff.tensorflow.computation(models_type, clusters.next.type_signature.result.result.member)
    def move_rows(models, differences):
        return models + pad_rows(differences, tf.shape(models)[0])

    @tff.tensorflow.computation(vector_type, vector_type)
    def move(vector, difference):
        return vector + difference

    @tff.federated_computation(initialize.type_signature.result, tff.FederatedType(own_type, tff.CLIENTS))
    def next_fn(state, clients):
        models, global_model = state["models"], state["global_model"]
        sent = (tff.federated_broadcast(models), tff.federated_broadcast(global_model), clients)
        updated = tff.federated_map(gather_and_update, sent)
        rows = clusters.next(state["aggregator"]["clusters"], updated["upload"], updated["weight"])
        whole = everyone.next(state["aggregator"]["global_model"], updated["global_upload"], updated["weight"])
        reports = collect(updated["client_id"], updated["report"])
        aggregator = tff.federated_zip(collections.OrderedDict(clusters=rows.state, global_model=whole.state))
        moved = collections.OrderedDict(
            models=tff.federated_map(move_rows, (models, rows.result)),
            global_model=tff.federated_map(move, (global_model, whole.result)),
            aggregator=aggregator,
        )
        return tff.federated_zip(moved), reports

    return tff.templates.IterativeProcess(initialize, next_fn, next_is_multi_arg=True)


def bilevel_transfer(model: FlatModel, training: LocalTraining) -> Transfer:
    """What a client receives (two models) and sends (two differences, key, ID, report, and the weight for each mean)."""
    sent = build_bilevel_update(model, training, training, local_test=False).type_signature
    vector_type, _, _ = sent.parameter
    return Transfer(down=tff.to_type((vector_type, vector_type)), up=tff.to_type((sent.result, sent.result["weight"])))
