"""Methods that cluster once, before training: signatures, a proximity matrix, a tree of merges, then the engine.

PACFL, FLIS (HC) and PCA+kM+HC are this with different signatures.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow_federated as tff

from tffcl.algorithms.clustered_training import ClusteredTraining, EngineMethod, build_clustered_training
from tffcl.algorithms.method import ClusteredState, Exports, MetricView, Views, nowhere_note
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clients.arrivals import check_newcomers, extended, joined_order
from tffcl.clients.population import Population
from tffcl.clustering import hierarchical
from tffcl.clustering import newcomers as joining
from tffcl.clustering.signature_distances import without_direction
from tffcl.errors import UserError
from tffcl.models.flat import FlatModel
from tffcl.rounds.asking import build_collection, build_signing, signature_transfer
from tffcl.rounds.traffic import Traffic
from tffcl.signatures.signature import Signature
from tffcl.validation import tell_once

CUTS = (("threshold", "num_clusters"),)  # `Parameters.alternatives` of methods that cut a tree
THRESHOLD = {"threshold": lambda threshold: threshold}  # a task's key for a threshold, and its value there


@dataclasses.dataclass(frozen=True, eq=False)
class OneShotClustering:
    """How clients are grouped by their signatures.

    Attributes:
      signature: What every client sends, a structure of arrays by name.
      distances: `(first, second or None) -> float32 [N, M]`: how far clients are apart, from the arrays of their signatures,
        rows are clients; among the first's clients if there is no second.
      unit: Of the proximity, for reports.
      metric: Name of the metric, for reports.
      linkage: A name in `hierarchical.LINKAGES`.
      threshold: Merges up to it are made; None for the other two ways.
      num_clusters: The number of clusters instead. With neither, the largest relative gap between merges decides.
      tree_unit: Of the merges, where they have another than the proximity.
      setting: How a task says a threshold: its key and `(threshold) -> value`; empty where it cannot.
      device_signature: The same by operations that device runtimes have, where they lack some of `signature`'s: what is
        exported.
    """

    signature: Signature
    distances: Callable[[Mapping, Mapping | None], np.ndarray]
    unit: str
    metric: str
    linkage: str
    threshold: float | None
    num_clusters: int | None
    tree_unit: str | None = None
    setting: Mapping[str, Callable[[float], float]] = dataclasses.field(default_factory=dict)
    device_signature: Signature | None = None

    def build_signing(self) -> Callable[[Population], dict[str, np.ndarray]]:
        """Builds `sign(population)`: the signatures' arrays by name, rows are clients."""
        sign = build_signing(self.signature)

        def signed(population: Population):
            value = sign(population)
            return dict(value) if isinstance(value, Mapping) else {"value": value}

        return signed

    def group(self, proximity: np.ndarray):
        """Clusters a proximity matrix, see `hierarchical.group`."""
        return hierarchical.group(proximity, self.linkage, self.threshold, self.num_clusters, unit=self.unit)

    def suggest(self, proximity: np.ndarray, dendrogram: hierarchical.Dendrogram) -> hierarchical.Suggestion:
        """Suggests a threshold, as `setting` says it in a task, from what `group` was given and gave."""
        del proximity
        return hierarchical.suggest_threshold(dendrogram, unit=self.suggested_unit)

    @property
    def suggested_unit(self) -> str:
        """The unit of what `suggest` suggests."""
        return self.tree_unit or self.unit

    def check(self, clients: int):
        """Raises UserError if there are fewer clients than clusters are asked for."""
        wanted = self.num_clusters
        if wanted is not None and not 1 <= wanted <= clients:
            raise UserError(f"num_clusters is {wanted}; it must be from 1 to the number of clients, {clients}")

    def described(self) -> dict[str, str]:
        """What the grouping's numbers mean, for an export's manifest."""
        described = {"unit": self.unit, "metric": self.metric, "linkage": self.linkage}
        return described if self.tree_unit is None else {**described, "tree_unit": self.tree_unit}


def grouped_as(
    how, signature: Signature, distances: Callable[[str, Mapping, Mapping | None], np.ndarray], unit: str, **more
) -> OneShotClustering:
    """Makes a grouping of parameters that have `metric`, `linkage`, `threshold` and `num_clusters`.

    Args:
      how: The parameters.
      signature: What every client sends.
      distances: `(metric, first, second or None) -> float32 [N, M]`.
      unit: Of the proximity, for reports.
      **more: Further fields of `OneShotClustering`.
    """
    return OneShotClustering(
        signature,
        functools.partial(distances, how.metric),
        unit=unit,
        metric=how.metric,
        linkage=how.linkage,
        threshold=how.threshold,
        num_clusters=how.num_clusters,
        setting=THRESHOLD,
        **more,
    )


def check_cut(parameters):
    """Checks that a method's parameters have `threshold` or `num_clusters`, not both; UserError if they do."""
    if parameters.threshold is not None and parameters.num_clusters is not None:
        raise UserError("give threshold or num_clusters, not both")


@dataclasses.dataclass(frozen=True, eq=False)
class OneShotState(ClusteredState):
    """Beside `ClusteredState`, what the clients were clustered by.

    Attributes:
      signatures: The signatures' arrays by name, rows are clients.
      proximity: `float32 [N, N]`.
      merges: `float64 [N-1, 4]`, SciPy linkage matrix.
      threshold: `float64`, where the tree is cut.
    """

    signatures: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    proximity: np.ndarray | None = None
    merges: np.ndarray | None = None
    threshold: np.ndarray | None = None


class OneShot(EngineMethod):
    """A method that clusters all clients before the first round; all cluster models start from the same initial one."""

    state_class = OneShotState
    pair_bytes = 8  # the matrix in float32, and half of it in float64 while the tree is made

    def __init__(self, name: str, engine: ClusteredTraining, clustering: OneShotClustering):
        super().__init__(name, engine)
        self.clustering, self._sign = clustering, clustering.build_signing()
        self.joining = Traffic.of(signature_transfer(clustering.signature))

    def initialize(self, population: Population) -> OneShotState:
        self.clustering.check(len(population))
        signatures = self._sign(population)
        _tell_nowhere(population, signatures)
        proximity = self.clustering.distances(signatures, None)
        labels, dendrogram, threshold = self.clustering.group(proximity)
        grouped = {"proximity": proximity, "merges": dendrogram.merges, "threshold": np.float64(threshold)}
        return OneShotState(**self.engine.start(population, labels), signatures=signatures, **grouped)

    def admit(self, state: OneShotState, newcomers: Population) -> OneShotState:
        """PACFL Alg. 2 and 3; a cluster that newcomers found starts from the initial model.

        With `num_clusters` 1 they found none.
        """
        check_newcomers(state, newcomers)
        how, known, signed = self.clustering, state.signatures, self._sign(newcomers)
        _tell_nowhere(newcomers, signed)
        proximity = joining.extend_proximity(state.proximity, how.distances(known, signed), how.distances(signed, None))
        # Whoever asks for one cluster has everyone in it; the tree of those who came first has another cut to show.
        threshold = math.inf if how.num_clusters == 1 else float(state.threshold)
        labels = joining.assign_newcomers(proximity, state.assignment, threshold=threshold, linkage=how.linkage)
        members = extended(state, newcomers, labels[len(state.assignment) :])
        order = joined_order(state, newcomers)
        extended_proximity = proximity[np.ix_(order, order)]
        return dataclasses.replace(
            state,
            **members,
            **self.engine.grown(state, labels.max() + 1 - len(state.models)),
            signatures={name: np.concatenate([known[name], signed[name]])[order] for name in known},
            proximity=extended_proximity,
            # The tree of all that are there now. It is for reports: the old clients' clusters do not follow from it any more.
            merges=hierarchical.build_dendrogram(extended_proximity, how.linkage).merges,
        )

    def views(self, state: OneShotState) -> Views:
        how = self.clustering
        metric = MetricView(
            state.proximity, how.unit, how.metric, state.merges, float(state.threshold), how.linkage, how.tree_unit
        )
        return Views(
            state.client_ids, state.assignment, metric=metric, nowhere=lambda: _nowhere(state.client_ids, state.signatures)
        )

    def exports(self) -> Exports:
        signature = self.clustering.device_signature or self.clustering.signature
        return self.engine.exports(
            build=lambda: {"signature": build_collection(signature)}, clustering=self.clustering.described()
        )


def _nowhere(client_ids: np.ndarray, signatures: Mapping[str, np.ndarray]) -> np.ndarray:
    """The clients whose subspaces have no direction; of other signatures nobody."""
    return client_ids[without_direction(signatures)] if {"basis", "mask"} <= set(signatures) else client_ids[:0]


def _tell_nowhere(population: Population, signatures: Mapping[str, np.ndarray]):
    """Names the clients whose subspaces have no direction, and how they are placed."""
    nowhere = _nowhere(population.client_ids, signatures)
    if len(nowhere):
        tell_once(nowhere_note([population.name_of(client) for client in nowhere]))


def build_one_shot(
    name: str,
    model: FlatModel,
    training: LocalTraining,
    clustering: OneShotClustering,
    *,
    aggregation: tff.aggregators.AggregationFactory | None = None,
) -> OneShot:
    """Builds a method that clusters all clients before the first round.

    Args:
      name: Of the method.
      model: What is trained.
      training: Local hyper-parameters.
      clustering: How clients are grouped.
      aggregation: Of the updates inside each cluster, e.g. `tff.aggregators.MeanFactory()`, or over keyed updates; see
        `aggregators.clustered_mean.keyed_factory`.
    """
    return OneShot(name, build_clustered_training(model, training, aggregation=aggregation), clustering)
