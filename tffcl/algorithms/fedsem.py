"""FedSEM: multi-centre federated learning (Xie et al. 2021, arXiv:2005.01026): k-means on the clients' models over the rounds.

A client trains the centre that it belongs to; then it belongs to the centre nearest to its trained model (the E-step), and a
centre is the mean of the models that belong to it (the M-step). A round is one step of each.
"""

import collections
import dataclasses

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from scipy.spatial import distance
from sklearn.cluster import KMeans

from tffcl.aggregators.collect import by_client, collect
from tffcl.algorithms.clustered_training import ClusteredTraining, cohort_inputs, round_metrics
from tffcl.algorithms.contracts import Algorithm, Cohort, Population, State, Transfer, check_newcomers, extended, index_of
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.client_work.update import build_client_update
from tffcl.errors import UserError
from tffcl.models.flat import FlatModel

_AT_A_TIME = 1 << 18  # parameters whose float64 copies are in memory
_FIRST_STARTS = 20  # of k-means in the first round, as in FLT's code


@dataclasses.dataclass(frozen=True)
class CentreClustering:
    """How FedSEM groups clients.

    Attributes:
      num_clusters: Number of centres.
    """

    num_clusters: int = 5

    def __post_init__(self):
        if self.num_clusters < 1:
            raise UserError(f"num_clusters is {self.num_clusters}; it must be 1 or more")


def build_collected_training(model: FlatModel, training: LocalTraining, *, local_test: bool = False) -> tff.Computation:
    """Builds a round's client half: every client trains its centre, all differences come to the server.

    Returns:
      `(<models=float32[?,P]@SERVER, {<...,key=int32>}@CLIENTS> ->
        <float32[?,P]@SERVER, <client_id=int32[?],value=<difference=float32[?,P],report=R>>@SERVER>)`; the models come back.
    """
    client_update = build_client_update(model, training, local_test=local_test)
    _, own_type = client_update.type_signature.parameter
    models_type = tff.TensorType(np.float32, [None, model.size])

    @tff.tensorflow.computation(models_type, own_type)
    def gather_and_update(models, client):
        updated = client_update(models[client["key"]], client)
        told = collections.OrderedDict(difference=updated["upload"]["value"], report=updated["report"])
        return collections.OrderedDict(client_id=updated["client_id"], told=told)

    @tff.tensorflow.computation(models_type)
    def keep(models):
        return tf.identity(models)

    @tff.federated_computation(tff.FederatedType(models_type, tff.SERVER), tff.FederatedType(own_type, tff.CLIENTS))
    def collected_training(models, clients):
        updated = tff.federated_map(gather_and_update, (tff.federated_broadcast(models), clients))
        return tff.federated_map(keep, models), collect(updated["client_id"], updated["told"])

    return collected_training


def first_groups(trained: np.ndarray, num_clusters: int, seed: int) -> np.ndarray:
    """Clusters the models of the first round, for which there are no centres yet, by k-means with several starts.

    Args:
      trained: `float32 [m, P]`.
      num_clusters: K, at most m.
      seed: Of the starts.

    Returns:
      `int32 [m]`.
    """
    # m models span at most m - 1 dimensions, whatever P is: k-means there finds the same in a fraction of the time.
    points = _without_dimensions(trained)
    return KMeans(num_clusters, n_init=_FIRST_STARTS, random_state=seed).fit_predict(points).astype(np.int32)


def nearest_centres(trained: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """The E-step: which centre each model is nearest to.

    Not k-means of a library: that gives a centre which nobody is near to the farthest model, and so a group of which nobody
    takes part in a round would lose its own.

    Args:
      trained: `float32 [m, P]`.
      centres: `float32 [K, P]`.

    Returns:
      `int32 [m]`; the lower number wins a tie.
    """
    squares = np.zeros((len(trained), len(centres)))
    for start in range(0, trained.shape[1], _AT_A_TIME):
        columns = slice(start, start + _AT_A_TIME)
        squares += distance.cdist(trained[:, columns], centres[:, columns], "sqeuclidean")
    return squares.argmin(axis=1).astype(np.int32)


def _without_dimensions(vectors: np.ndarray) -> np.ndarray:
    """Points `float64 [n, n]` with the same distances as `vectors [n, P]`: their coordinates along principal axes."""
    # Not by scikit-learn's PCA, whose copy and components are two more arrays [n, P]: gigabytes for a large cohort's CNNs.
    mean, products = vectors.mean(axis=0, dtype=np.float64), np.zeros((len(vectors), len(vectors)))
    for start in range(0, vectors.shape[1], _AT_A_TIME):
        part = vectors[:, start : start + _AT_A_TIME] - mean[start : start + _AT_A_TIME]
        products += part @ part.T
    values, axes = np.linalg.eigh(products)
    return axes * np.sqrt(np.maximum(values, 0))


def build_fedsem(
    model: FlatModel, training: LocalTraining, clustering: CentreClustering = CentreClustering(), *, seed: int = 0
) -> Algorithm:
    """Builds FedSEM.

    The clients of a round are clustered by their trained models, weighted means of which are the next centres; a centre
    that nobody is near to stays, and so does the cluster of a client that does not take part. FLT's code instead clusters
    the stored models of all clients in every round, of which most are old. Newcomers start in the largest cluster, as their
    models are not known yet.

    Args:
      model: What is trained.
      training: Local hyper-parameters.
      clustering: Number of centres.
      seed: Of k-means.
    """
    rounds = build_collected_training(model, training, local_test=True)
    sent = build_client_update(model, training, local_test=False).type_signature
    told = (sent.result[name] for name in ("client_id", "report"))
    transfer = Transfer(down=sent.parameter[0], up=tff.StructType([*told, sent.result["upload"]["value"]]))

    def initialize(population: Population) -> State:
        assignment = np.zeros(len(population.client_ids), np.int32)
        return State(population.client_ids, assignment, model.initial[np.newaxis], (), {"clustered": np.bool_(False)})

    def next_round(state: State, cohort: Cohort):
        clustered = bool(state.extra["clustered"])
        if not clustered and clustering.num_clusters > len(cohort.client_ids):
            raise UserError(
                f"num_clusters is {clustering.num_clusters}; it must be at most the clients of a round, {len(cohort.client_ids)}"
            )
        where = index_of(state.client_ids, cohort.client_ids)
        own = state.assignment[where]
        _, collected = rounds(state.models, cohort_inputs(cohort, key=own))
        told = by_client(collected, cohort.client_ids)
        reports = collections.OrderedDict(client_id=np.asarray(cohort.client_ids), value=told["report"])
        metrics = round_metrics(reports, cohort, own, transfer)
        trained = state.models[own] + told["difference"]
        if clustered:
            found, models = nearest_centres(trained, state.models), state.models.copy()
        else:
            found = first_groups(trained, clustering.num_clusters, seed)
            models = np.repeat(model.initial[np.newaxis], clustering.num_clusters, axis=0)
        for cluster in np.unique(found):
            members = found == cluster
            shares = metrics.examples[members] / metrics.examples[members].sum()
            models[cluster] = shares.astype(np.float32) @ trained[members]
        assignment = state.assignment.copy()
        assignment[where] = found
        return dataclasses.replace(state, models=models, assignment=assignment, extra={"clustered": np.bool_(True)}), metrics

    def admit(state: State, newcomers: Population) -> State:
        check_newcomers(state, newcomers)
        largest = np.bincount(state.assignment).argmax()
        return dataclasses.replace(state, **extended(state, newcomers, np.full(len(newcomers.client_ids), largest)))

    return Algorithm(
        "fedsem", initialize, next_round, ClusteredTraining.assign, admit, lambda: {"training": build_collected_training(model, training)},
        {"training": transfer}, extra_keys=("clustered",),
    )  # fmt: skip
