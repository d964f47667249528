"""A client's part of a training round: receive a model, train, report, upload the difference."""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.client_work.examples import stack
from tffcl.client_work.local_evaluation import build_count_correct
from tffcl.client_work.local_sgd import LocalTraining, build_local_sgd
from tffcl.models.flat import FlatModel


def client_type(model: FlatModel, /, *, local_test: bool, **own) -> tff.StructType:
    """The TFF type of a client's input.

    Args:
      model: Decides the examples' type.
      local_test: Whether the client brings test examples.
      **own: Further fields that the client knows of itself, name to TFF type.

    Returns:
      `<examples=E*[,test_examples=E*],client_id=int32,seed=int32[2],...own>`.
    """
    examples = tff.SequenceType(tff.types.tensorflow_to_type(model.example_spec))
    fields = collections.OrderedDict(examples=examples)
    if local_test:
        fields["test_examples"] = examples
    fields.update(client_id=np.int32, seed=tff.TensorType(np.int32, [2]), **own)
    return tff.to_type(fields)


FLAG = {"changed": np.int32}  # field of a client that tells whether its data have changed, see `dynamic_clustering`


def build_train_and_report(model: FlatModel, training: LocalTraining, *, local_test: bool):
    """Builds the tf.function that every training method's client runs.

    Args:
      model: What is trained.
      training: Hyper-parameters.
      local_test: Whether the client tests its own model after training, on its own test examples.

    Returns:
      A tf.function `(vector float32[P], client, centre=None) -> (vector float32[P], report)`; `client` as in `client_type`,
      `centre` as in `build_local_sgd`, the report
      `<examples=int32,loss=float32,finite=bool[,test_correct=int32,test_examples=int32][,changed=int32]>`: training
      examples, mean training loss over the last epoch, whether the trained model is finite, the local test, and the
      client's flag of change if it brings one.
    """
    local_sgd = build_local_sgd(model, training)
    count_correct = build_count_correct(model)

    @tf.function
    def train_and_report(vector, client, centre=None):
        local = stack(client["examples"])
        trained, loss = local_sgd(vector, local["x"], local["y"], client["seed"], centre)
        finite = tf.reduce_all(tf.math.is_finite(trained))
        report = collections.OrderedDict(examples=tf.size(local["y"]), loss=loss, finite=finite)
        if local_test:
            test = stack(client["test_examples"])
            report["test_correct"] = count_correct(trained, test["x"], test["y"])
            report["test_examples"] = tf.size(test["y"])
        if "changed" in client:
            report["changed"] = client["changed"]
        return trained, report

    return train_and_report


def build_client_update(model: FlatModel, training: LocalTraining, *, local_test: bool, flags: bool = False) -> tff.Computation:
    """Builds the upload of one client of a clustered round; with `flags` it also tells whether its data have changed.

    The weight is the number of training examples, |D_k| of PACFL Alg. 1 line 24; a model that is not finite gets weight 0.

    Returns:
      `(<model=float32[P], client=<...,key=int32>> ->
        <upload=<key=int32,value=float32[P]>, weight=float32, client_id=int32, report=R>)` with
      `value` = trained minus received model and R as in `build_train_and_report`.
    """
    train_and_report = build_train_and_report(model, training, local_test=local_test)
    keyed = client_type(model, local_test=local_test, key=np.int32, **(FLAG if flags else {}))

    @tff.tensorflow.computation(tff.TensorType(np.float32, [model.size]), keyed)
    def client_update(model, client):
        trained, report = train_and_report(model, client)
        weight = tf.cast(report["examples"], tf.float32)
        return collections.OrderedDict(
            upload=collections.OrderedDict(key=client["key"], value=trained - model),
            weight=tf.where(report["finite"], weight, 0.0),
            client_id=client["client_id"],
            report=report,
        )

    return client_update


def build_bilevel_update(
    model: FlatModel, training: LocalTraining, global_training: LocalTraining, *, local_test: bool
) -> tff.Computation:
    """Builds the client's part of bi-level training (StoCFL Eq. 3, Alg. 1 lines 27 to 30).

    Both models start from what this round broadcast: the cluster's is pulled towards the broadcast global model by
    `training.proximal_weight`, the global one is trained by itself, on the same batches.

    Args:
      model: What is trained.
      training: Of the cluster model; its `proximal_weight` is λ.
      global_training: Of the global model.
      local_test: Whether clients bring test examples; the cluster model is tested after its training.

    Returns:
      `(<model=float32[P], global_model=float32[P], client=<...,key=int32>> ->
        <upload=<key=int32,value=float32[P]>, global_upload=float32[P], weight=float32, client_id=int32, report=R>)`: the
      two differences, and R of the cluster model as in `build_train_and_report`; it is finite if both models are.
    """
    train_and_report = build_train_and_report(model, training, local_test=local_test)
    global_sgd = build_local_sgd(model, global_training)
    vector_type = tff.TensorType(np.float32, [model.size])
    keyed = client_type(model, local_test=local_test, key=np.int32)

    @tff.tensorflow.computation(vector_type, vector_type, keyed)
    def bilevel_update(model, global_model, client):
        trained, report = train_and_report(model, client, global_model)
        local = stack(client["examples"])
        moved, _ = global_sgd(global_model, local["x"], local["y"], client["seed"])
        report["finite"] = tf.logical_and(report["finite"], tf.reduce_all(tf.math.is_finite(moved)))
        return collections.OrderedDict(
            upload=collections.OrderedDict(key=client["key"], value=trained - model),
            global_upload=tf.where(report["finite"], moved - global_model, tf.zeros_like(moved)),
            weight=tf.where(report["finite"], tf.cast(report["examples"], tf.float32), 0.0),
            client_id=client["client_id"],
            report=report,
        )

    return bilevel_update
