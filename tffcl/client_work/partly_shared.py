"""Training of a model of which a client keeps some layers to itself and shares the others (LG-FedAvg)."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.client_work.client_work import ClientResult, ClientWork, keyed
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.client_work.training import build_train_and_report, training_work
from tffcl.models.flat import FlatModel
from tffcl.models.layer_parts import LayerParts
from tffcl.trace_cache import built_once


@built_once
def build_partly_shared_work(model: FlatModel, training: LocalTraining, parts: LayerParts) -> ClientWork:
    """Builds clustered training of which only the global part travels (Liang et al. 2020, Alg. 1).

    The client puts its own local layers to the global part that it receives, trains both together, keeps the one and
    uploads the difference of the other under its key. Of a training that is not finite it keeps nothing.

    Args:
      parts: What is kept and what is shared.

    Returns:
      Work that receives `<model=float32[G]>` and keeps `float32[L]`, with the field `key` and the upload
      `update=<key=int32,value=float32[G]>`; none if nothing is global.
    """
    train_and_report = build_train_and_report(model, training)

    def compute(received, client):
        trained, report = train_and_report(parts.join(client["kept"], received["model"]), client)
        local, shared = parts.split(trained)
        uploads = {"update": keyed(client["key"], shared - received["model"])} if parts.global_size else {}
        return ClientResult(uploads, report, tf.where(report["finite"], local, client["kept"]))

    kept = tff.TensorType(np.float32, [parts.local_size])
    return training_work(model, training, compute, kept=kept, key=np.int32)
