"""FedSoft: soft clusters by the number of examples that each cluster's model fits best, with one training per client
(Ruan and Joe-Wong, AAAI 2022, arXiv:2112.06053, Alg. 1).

Every τ rounds a client counts for how many of its examples each cluster's model has the lowest loss: its importance
weights. It trains one model, held near all clusters' models by these weights. Each cluster's model becomes the weighted
mean of the clients' models.
"""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.clustered_mean import keyed_factory
from tffcl.aggregators.contract import traits
from tffcl.aggregators.soft_mean import SoftMeanFactory
from tffcl.algorithms.clustered_training import draw_models
from tffcl.algorithms.each_round_parameters import FedSoftParameters
from tffcl.algorithms.method import Method, method_builder
from tffcl.algorithms.soft_training import SoftMethod, build_finding
from tffcl.client_work.client_work import ClientResult, arrays_type, stack
from tffcl.client_work.local_sgd import ROUND, LocalTraining
from tffcl.client_work.mixture import build_all_losses, mean_model, nearest_shares
from tffcl.client_work.training import build_train_and_report, training_work
from tffcl.errors import UserError
from tffcl.models.flat import FlatModel
from tffcl.registry import ALGORITHMS
from tffcl.rounds.composer import Round, Server, compose
from tffcl.rounds.server import all_values, models_type
from tffcl.trace_cache import built_once


def move_clusters(state, results, measurements):
    """Sets every model to the weighted mean of the clients' models. Uploads are differences from the mean of all
    models, which the server knows. A model for which no client has a weight stays unchanged."""
    del measurements
    models, update = state["models"], results["update"]
    took_part = tf.reduce_any(tf.not_equal(update, 0), axis=1, keepdims=True)
    return {**state, "models": tf.where(took_part, tf.reduce_mean(models, axis=0) + update, models)}


@built_once
def build_fedsoft_round(model: FlatModel, training: LocalTraining, how: FedSoftParameters, aggregation=None) -> Round:
    """Builds one round of FedSoft.

    A client receives the models `float32[S,P]` and uploads one model with S weights; it keeps its importance weights,
    the round of their estimate, and with the start "own" its model. The proximal weight of its training is λ: since its
    importance weights sum to one, the paper's terms are one term towards the models' mean by these weights.
    """
    all_losses, train = build_all_losses(model), build_train_and_report(model, training)

    def compute(received, client):
        models, kept, local = received["models"], client["kept"], stack(client["examples"])
        period, last = ((each - 1) // how.estimate_every for each in (client[ROUND], kept["estimated"]))
        due = tf.logical_or(tf.equal(kept["estimated"], 0), period > last)

        def estimated():
            losses, counts = all_losses(models, local["x"], local["y"]), model.objective.counts(local["y"])
            return nearest_shares(losses, how.smoother, counts), client[ROUND]

        importance, when = tf.cond(due, estimated, lambda: (kept["importance"], kept["estimated"]))
        centre = mean_model(models, importance)
        start = tf.where(kept["estimated"] > 0, kept["model"], centre) if how.start == "own" else centre
        trained, report = train(start, client, centre)
        upload = collections.OrderedDict(weights=importance, value=trained - tf.reduce_mean(models, axis=0))
        own = {"model": trained} if how.start == "own" else {}
        renewed = collections.OrderedDict(importance=importance, estimated=when, **own)
        renewed = tf.nest.map_structure(lambda new, old: tf.where(report["finite"], new, old), renewed, kept)
        return ClientResult({"update": upload}, report, renewed)

    kept = arrays_type(first_kept(model, how))
    work = training_work(model, training, compute, kept=kept, **{ROUND: np.int32})
    server = Server({"models": models_type(model.size, how.num_clusters)}, all_values, move_clusters)
    return compose(work, {"update": SoftMeanFactory(how.num_clusters, aggregation, shared=True)}, server)


def first_kept(model: FlatModel, how: FedSoftParameters) -> collections.OrderedDict:
    """Returns what a client keeps before its first round."""
    equal = np.full([how.num_clusters], 1 / how.num_clusters, np.float32)
    own = {"model": np.zeros([model.size], np.float32)} if how.start == "own" else {}
    return collections.OrderedDict(importance=equal, estimated=np.int32(0), **own)


@built_once
def _build_finding(model: FlatModel, how: FedSoftParameters) -> tff.Computation:
    all_losses = build_all_losses(model)

    def find(values, x, y):
        return nearest_shares(all_losses(values["models"], x, y), how.smoother, model.objective.counts(y))

    return build_finding(model, {"models": models_type(model.size, how.num_clusters)}, find)


@method_builder
def build_fedsoft(
    model: FlatModel,
    training: LocalTraining,
    parameters: FedSoftParameters = FedSoftParameters(),
    *,
    seed: int = 0,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> Method:
    """Builds FedSoft: each client trains one model that is held near the models of its clusters; with one cluster it is
    FedProx, with λ = 0 FedAvg.

    From the paper: importance weights u_ks, the proximal objective, means by u_ks n_k. Ours: the run draws one cohort
    for all clusters, and means use the weights by which the paper draws clients (as in the authors' code without
    selection); a client estimates its weights again in its first round of each new period of τ rounds; they sum to one,
    also where σ was put in. `cluster` accuracies are those of the mixture of the clusters' models, `local` ones those
    of the client's own model.

    Args:
      parameters: The number of clusters, λ, τ and σ.
      seed: Decides the initial models.
    """
    given = traits(keyed_factory(aggregation, 1))
    refused = "dp" if given.is_uniform or not given.is_mean else "secure_sum" if given.hides_uploads else None
    if refused:
        raise UserError(f"fedsoft cannot have this aggregation: {ALGORITHMS['fedsoft'].refuses[refused]}")
    held = training.with_proximal_weight(parameters.proximal_weight)
    composed = build_fedsoft_round(model, held, parameters, aggregation)
    first = {"models": draw_models(model, parameters.num_clusters, seed)}
    find, kept = _build_finding(model, parameters), first_kept(model, parameters)
    return SoftMethod("fedsoft", model, composed, find, first, kept, lambda value: value["importance"])
