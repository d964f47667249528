"""FedRC: a mixture of K models that separates clients by P(y|x) alone, not by labels or features (Guo et al., ICML
2024, arXiv:2301.12379).

It is FedEM with another E-step: a model's likelihood of a label is divided by the share of this label among all
examples that the model is responsible for, so that a model gains nothing from having few labels.
"""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.clustered_mean import ClusteredMeanFactory, aggregated_beside, keyed_factory
from tffcl.aggregators.contract import traits
from tffcl.aggregators.soft_mean import SoftMeanFactory
from tffcl.algorithms.clustered_training import draw_models
from tffcl.algorithms.each_round_parameters import FedRCParameters
from tffcl.algorithms.method import Method, method_builder
from tffcl.algorithms.soft_training import SoftMethod, build_finding
from tffcl.client_work import mixture as em
from tffcl.client_work.client_work import ClientResult, arrays_type, stack
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.client_work.training import training_work
from tffcl.models.flat import FlatModel
from tffcl.rounds.composer import Round, Server, compose
from tffcl.rounds.server import all_values, models_type, move_rows
from tffcl.trace_cache import built_once


def _values_type(model: FlatModel, count: int) -> dict[str, tff.Type]:
    labels = tff.TensorType(np.float32, [count, model.num_classes])
    return {"models": models_type(model.size, count), "labels": labels}


def move(state, results, measurements):
    """Moves the models as in FedEM, and adds the changes of the clients' numbers of labels to the sums."""
    changed = results["labels"] * measurements["labels"]["weight"][:, tf.newaxis]
    return {**move_rows(state, results, measurements), "labels": tf.maximum(state["labels"] + changed, 0.0)}


@built_once
def build_fedrc_round(model: FlatModel, training: LocalTraining, num_models: int, aggregation=None) -> Round:
    """Builds one round of FedRC.

    The server has `models float32[K,P]` and `labels float32[K,C]`, the sums over all clients of what each last
    reported. A client keeps π, its mixture, and its report: the examples of each label that each model is responsible
    for. It uploads the K differences and the changes of these numbers, divided by its number of examples.
    """
    all_losses, train = em.build_all_losses(model), em.build_train_mixture(model, training, num_models)

    hidden = traits(keyed_factory(aggregation)).hides_uploads
    beside = aggregated_beside(aggregation, ClusteredMeanFactory(), bound=1.0) if hidden else None
    uploads = {"update": SoftMeanFactory(num_models, aggregation), "labels": SoftMeanFactory(num_models, beside)}

    def compute(received, client):
        models, kept, local = received["models"], client["kept"], stack(client["examples"])
        y, counted = local["y"], model.objective.counted(local["y"])
        losses, prior = all_losses(models, local["x"], y), em.label_prior(received["labels"], y, counted)
        shares, mixture = em.responsibilities(losses, kept["mixture"], model.objective.counts(y), prior)
        trained, report = train(models, shares, mixture, client)
        labels = em.label_counts(shares, y, counted, model.num_classes)
        examples = tf.cast(report["examples"], tf.float32)
        changed = uploads["labels"].clipped(tf.math.divide_no_nan(labels - kept["labels"], examples))
        sent, ones = {"update": trained - models, "labels": changed}, tf.ones([num_models])
        sent = {name: collections.OrderedDict(weights=ones, value=value) for name, value in sent.items()}
        # A later round sends what a bound has cut off.
        renewed = collections.OrderedDict(mixture=mixture, labels=kept["labels"] + examples * changed)
        renewed = tf.nest.map_structure(lambda new, old: tf.where(report["finite"], new, old), renewed, kept)
        return ClientResult(sent, report, renewed)

    kept = arrays_type(first_kept(model, num_models))
    work = training_work(model, training, compute, kept=kept, models=em.model_names(num_models))
    return compose(work, uploads, Server(_values_type(model, num_models), all_values, move))


def first_kept(model: FlatModel, count: int) -> collections.OrderedDict:
    """Returns what a client keeps before its first round."""
    equal = np.full([count], 1 / count, np.float32)
    return collections.OrderedDict(mixture=equal, labels=np.zeros([count, model.num_classes], np.float32))


@built_once
def _build_finding(model: FlatModel, num_models: int, steps: int) -> tff.Computation:
    all_losses = em.build_all_losses(model)

    def find(values, x, y):
        prior = em.label_prior(values["labels"], y, model.objective.counted(y))
        return em.fitted_mixture(all_losses(values["models"], x, y), steps, model.objective.counts(y), prior)

    return build_finding(model, _values_type(model, num_models), find)


@method_builder
def build_fedrc(
    model: FlatModel,
    training: LocalTraining,
    parameters: FedRCParameters = FedRCParameters(),
    *,
    seed: int = 0,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> Method:
    """Builds FedRC: a mixture of K models that separates clients by what labels mean, not by which labels they have;
    with one model it is FedAvg.

    From the paper: γ ∝ ω_k exp(-loss) / C_{y;k}, ω the means of γ, C_{y;k} the share of the label y among all that
    model k is responsible for, and steps on losses times γ, averaged by examples. Ours: the K models are drawn as in
    IFCA; where not all clients take part, C uses the last report of each; at an evaluation all clients, and newcomers
    when they join, find their mixtures as in FedEM. With the plain mean, robust rules and compression, the numbers of
    labels are sent separately.

    Args:
      parameters: K, and the steps to find a mixture.
      seed: Decides the initial models.

    Raises:
      UserError: If labels are not classes.
    """
    model.objective.classes_for("FedRC, which divides by the shares of labels,")
    em.check_likelihood(model, "FedRC")
    count = parameters.num_clusters
    composed = build_fedrc_round(model, training, count, aggregation)
    first = {"models": draw_models(model, count, seed), "labels": np.zeros([count, model.num_classes], np.float32)}
    find = _build_finding(model, count, parameters.mixture_steps)
    return SoftMethod("fedrc", model, composed, find, first, first_kept(model, count), lambda value: value["mixture"])
