"""Methods that cluster once, before training: signatures, a proximity matrix, a tree of merges, then the engine.

PACFL, FLIS (HC) and PCA+kM+HC are this with different signatures.
"""

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow_federated as tff

from tffcl.algorithms.clustered_training import build_clustered_training, build_summed_training, build_training_process
from tffcl.algorithms.contracts import Algorithm, Population, State, Transfer, check_newcomers, extended, joined_order
from tffcl.algorithms.signature_round import build_signing
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clustering import hierarchical
from tffcl.clustering import newcomers as joining
from tffcl.errors import UserError
from tffcl.models.flat import FlatModel
from tffcl.signatures.signature import Signature, build_collection

_CLUSTERING_KEYS = ("proximity", "merges", "threshold")


@dataclasses.dataclass(frozen=True, eq=False)
class OneShotClustering:
    """How clients are grouped by their signatures.

    Attributes:
      signature: What every client sends.
      names: Name in `State.extra` of each part of the signature's value; "" for a value that is one tensor.
      measure: `(first, second or None) -> float32 [N, M]`: dissimilarities of clients, from dictionaries of the
        signatures' parts by name in `State.extra`, rows are clients; among the first's clients if there is no second.
      unit: Of the proximity, for reports.
      measure_name: Of the measure, for reports.
      linkage: A name in `hierarchical.LINKAGES`.
      threshold: Merges up to it are made; None for the other two ways.
      num_clusters: The number of clusters instead. With neither, the largest relative gap between merges decides.
      tree_unit: Of the merges, where they have another than the proximity.
      setting: `(threshold) -> (key, value)`, how a task says this threshold; None where it cannot.
      device_signature: The same by operations that device runtimes have, where they lack some of `signature`'s: what is
        exported.
    """

    signature: Signature
    names: Mapping[str, str]
    measure: Callable
    unit: str
    measure_name: str
    linkage: str
    threshold: float | None
    num_clusters: int | None
    tree_unit: str | None = None
    setting: Callable[[float], tuple[str, float]] | None = None
    device_signature: Signature | None = None

    def build_signing(self) -> Callable[[Population], dict[str, np.ndarray]]:
        """Builds `sign(population)`: the signatures' parts by name in `State.extra`, rows are clients."""
        sign = build_signing(self.signature)

        def signed(population: Population):
            value = sign(population)
            return {kept: value[part] if part else value for part, kept in self.names.items()}

        return signed

    def group(self, proximity: np.ndarray):
        """Clusters a proximity matrix.

        Args:
          proximity: `[N, N]`.

        Returns:
          `(labels int32 [N], dendrogram, threshold)`; the threshold is one that gives these labels, for newcomers.

        Raises:
          UserError: If there are more clusters than clients.
        """
        dendrogram = hierarchical.build_dendrogram(proximity, self.linkage)
        if self.num_clusters is not None:
            labels = hierarchical.cut(dendrogram, num_clusters=self.num_clusters)
            return labels, dendrogram, threshold_of(dendrogram, self.num_clusters)
        threshold = self.threshold
        if threshold is None:
            threshold = hierarchical.suggest_threshold(dendrogram, unit=self.unit).threshold
        return hierarchical.cut(dendrogram, threshold=threshold), dendrogram, threshold

    def check(self, clients: int):
        """Raises UserError if there are fewer clients than clusters are asked for."""
        wanted = self.num_clusters
        if wanted is not None and not 1 <= wanted <= clients:
            raise UserError(f"num_clusters is {wanted}; it must be from 1 to the number of clients, {clients}")


def check_cut(how):
    """Checks `threshold` (or `beta`), `num_clusters` and `linkage` of a method's parameters.

    Raises:
      UserError: If there are both ways to cut, or the linkage is unknown.
    """
    cut = "beta" if hasattr(how, "beta") else "threshold"
    if getattr(how, cut) is not None and how.num_clusters is not None:
        raise UserError(f"give {cut} or num_clusters, not both")
    hierarchical.check_linkage(how.linkage)


def threshold_of(dendrogram, num_clusters: int) -> float:
    """A threshold for newcomers to clusters that were cut by count."""
    try:
        return hierarchical.threshold_for(dendrogram, num_clusters)
    except UserError:  # merges of equal height: no threshold gives this number; the last merge that was made is the limit
        return float(dendrogram.heights[dendrogram.num_leaves - num_clusters - 1])


def build_one_shot(
    name: str,
    model: FlatModel,
    training: LocalTraining,
    clustering: OneShotClustering,
    *,
    aggregation: tff.aggregators.WeightedAggregationFactory | None = None,
) -> Algorithm:
    """Builds a method that clusters all clients before the first round; all cluster models start from the same initial one.

    Args:
      name: Of the method.
      model: What is trained.
      training: Local hyper-parameters.
      clustering: How clients are grouped.
      aggregation: Optional factory over keyed updates, see `ClusteredMeanFactory`.

    Returns:
      The method. `State.extra` has the signatures under `clustering.names`, `proximity float32 [N, N]`, `merges float64
      [N-1, 4]` (SciPy linkage matrix) and `threshold float64`.
    """
    engine = build_clustered_training(model, training, aggregation=aggregation)
    sign, kept = clustering.build_signing(), tuple(clustering.names.values())

    def initialize(population: Population) -> State:
        clustering.check(len(population.client_ids))
        signed = sign(population)
        proximity = clustering.measure(signed, None)
        labels, dendrogram, threshold = clustering.group(proximity)
        extra = {**signed, "proximity": proximity, "merges": dendrogram.merges, "threshold": np.float64(threshold)}
        models = np.repeat(model.initial[np.newaxis], labels.max() + 1, axis=0)
        return State(population.client_ids, labels, models, engine.initial_aggregator_state(), extra)

    def admit(state: State, arrivals: Population) -> State:
        """PACFL Alg. 2 and 3; a cluster that newcomers found starts from the initial model."""
        check_newcomers(state, arrivals)
        signed, old = sign(arrivals), state.extra
        known = {key: old[key] for key in kept}
        proximity = joining.extend_proximity(
            old["proximity"], clustering.measure(known, signed), clustering.measure(signed, None)
        )
        labels = joining.assign_newcomers(
            proximity, state.assignment, threshold=float(old["threshold"]), linkage=clustering.linkage
        )
        members = extended(state, arrivals, labels[len(state.assignment) :])
        founded = labels.max() + 1 - len(state.models)
        order = joined_order(state, arrivals)
        together = {key: np.concatenate([known[key], signed[key]])[order] for key in kept}
        extended_proximity = proximity[np.ix_(order, order)]
        # The tree of all that are there now. It is for reports: the old clients' clusters do not follow from it any more.
        merges = hierarchical.build_dendrogram(extended_proximity, clustering.linkage).merges
        extra = {**old, **together, "proximity": extended_proximity, "merges": merges}
        models = np.concatenate([state.models, np.repeat(model.initial[np.newaxis], founded, axis=0)])
        return dataclasses.replace(state, models=models, extra=extra, **members)

    def computations():
        process = build_training_process(model, training, aggregation=aggregation)
        collection = build_collection(clustering.device_signature or clustering.signature)
        return {"signature": collection, "initialize": process.initialize, "training": process.next}

    return Algorithm(
        name,
        initialize,
        engine.next,
        engine.assign,
        admit,
        computations,
        {"signature": signature_transfer(clustering.signature), "training": engine.transfer},
        extra_keys=(*kept, *_CLUSTERING_KEYS),
        clustering={"unit": clustering.unit, "measure": clustering.measure_name, "linkage": clustering.linkage},
        summed=build_summed_training(model, training, aggregation),
    )


def signature_transfer(signature: Signature) -> Transfer:
    """What a client receives for its signature (nothing where the context is a placeholder) and sends."""
    nothing = isinstance(signature.context_type, tff.TensorType) and not signature.context_type.shape
    return Transfer(down=None if nothing else signature.context_type, up=signature.value_type)
