"""FedEM: every client's data are a mixture of K unknown distributions (Marfoq et al., NeurIPS 2021, arXiv:2108.10252,
Alg. 1).

Clients receive K models. Each client computes the share of every model in each example (E-step) and the weights of its
mixture (M-step), and trains all models with these shares as the examples' weights; the server averages each model.
"""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.soft_mean import SoftMeanFactory
from tffcl.algorithms.clustered_training import draw_models
from tffcl.algorithms.each_round_parameters import FedEMParameters
from tffcl.algorithms.method import Method, method_builder
from tffcl.algorithms.soft_training import SoftMethod, build_finding
from tffcl.client_work import mixture as em
from tffcl.client_work.client_work import ClientResult, stack
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.client_work.training import training_work
from tffcl.models.flat import FlatModel
from tffcl.rounds.composer import Round, Server, compose
from tffcl.rounds.server import all_values, models_type, move_rows
from tffcl.trace_cache import built_once


@built_once
def build_fedem_round(model: FlatModel, training: LocalTraining, num_models: int, aggregation=None) -> Round:
    """Builds one round of FedEM.

    All models `float32[K,P]` go to every client, which uploads the K differences in one upload. It keeps π, its
    mixture. As in the paper, a model's mean is weighted by the clients' numbers of examples alone: a model with a small
    share at a client has moved little there.
    """
    all_losses, train = em.build_all_losses(model), em.build_train_mixture(model, training, num_models)

    def compute(received, client):
        models, local = received["models"], stack(client["examples"])
        losses, counts = all_losses(models, local["x"], local["y"]), model.objective.counts(local["y"])
        shares, mixture = em.responsibilities(losses, client["kept"], counts)
        trained, report = train(models, shares, mixture, client)
        update = collections.OrderedDict(weights=tf.ones([num_models]), value=trained - models)
        return ClientResult({"update": update}, report, tf.where(report["finite"], mixture, client["kept"]))

    kept, names = tff.TensorType(np.float32, [num_models]), em.model_names(num_models)
    work = training_work(model, training, compute, kept=kept, models=names)
    server = Server({"models": models_type(model.size, num_models)}, all_values, move_rows)
    return compose(work, {"update": SoftMeanFactory(num_models, aggregation)}, server)


@built_once
def _build_finding(model: FlatModel, num_models: int, steps: int) -> tff.Computation:
    all_losses = em.build_all_losses(model)

    def find(values, x, y):
        return em.fitted_mixture(all_losses(values["models"], x, y), steps, model.objective.counts(y))

    return build_finding(model, {"models": models_type(model.size, num_models)}, find)


@method_builder
def build_fedem(
    model: FlatModel,
    training: LocalTraining,
    parameters: FedEMParameters = FedEMParameters(),
    *,
    seed: int = 0,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> Method:
    """Builds FedEM: every client's data are a mixture of K distributions, and its predictions a mixture of those of K
    models; with one model it is FedAvg.

    From the paper: E-step, M-step and weighted local training (Alg. 1), the mean by examples, the mixture of
    predictions, newcomers that find their mixture of fixed models. Ours: the K models are drawn as in IFCA; at an
    evaluation all clients find their mixture in this way, because those that were in few rounds keep an old one. Means
    are over the clients of a round; the authors' code also counts all others, with the models as they were. Traffic is
    K models each way.

    Args:
      parameters: K, and the steps to find a mixture.
      seed: Decides the initial models.
    """
    count = parameters.num_clusters
    em.check_likelihood(model, "FedEM")
    composed = build_fedem_round(model, training, count, aggregation)
    first = {"models": draw_models(model, count, seed)}
    find = _build_finding(model, count, parameters.mixture_steps)
    return SoftMethod("fedem", model, composed, find, first, np.full([count], 1 / count, np.float32))
