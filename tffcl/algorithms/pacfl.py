"""PACFL: principal angles between client data subspaces (Vahidian et al., AAAI 2023, arXiv:2209.10526).

Before training every client sends the first singular vectors of its data; the server measures the principal angles
between all pairs (Eq. 2 or 3), clusters them hierarchically, and every cluster trains its own model (Alg. 1).
"""

import dataclasses

import numpy as np
import tensorflow_federated as tff

from tffcl.algorithms.clustered_training import build_clustered_training, build_training_process
from tffcl.algorithms.contracts import Algorithm, Population, State, Transfer, check_newcomers, extended
from tffcl.algorithms.signature_round import build_signing
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clustering import hierarchical, newcomers as joining, proximity
from tffcl.errors import UserError, unknown
from tffcl.models.flat import FlatModel
from tffcl.signatures.signature import Signature, build_collection
from tffcl.signatures.subspace import build_subspace

EXTRA_KEYS = ("bases", "mask", "proximity", "merges", "threshold")


@dataclasses.dataclass(frozen=True)
class PrincipalAngleClustering:
    """How PACFL groups clients.

    Attributes:
      num_vectors: p, singular vectors a client sends (paper: 3 to 5).
      per_class: p vectors for each of the client's classes (the authors' code) instead of p over all its data (paper).
      max_classes: With `per_class`, room for so many classes a client; default all.
      measure: A name in `proximity.MEASURES`: "smallest_angle" (Eq. 2), "trace" (Eq. 3), "angle_sum", "smallest_entry".
      linkage: A name in `hierarchical.LINKAGES`; "weighted" is what the authors' code calls average.
      threshold: β in degrees; merges up to it are made.
      num_clusters: The number of clusters instead. With neither, the largest relative gap between merges decides.
    """

    num_vectors: int = 3
    per_class: bool = False
    max_classes: int | None = None
    measure: str = "smallest_angle"
    linkage: str = "average"
    threshold: float | None = None
    num_clusters: int | None = None

    def __post_init__(self):
        if self.threshold is not None and self.num_clusters is not None:
            raise UserError("give threshold or num_clusters, not both")
        if self.measure not in proximity.MEASURES:
            raise unknown("measure", self.measure, proximity.MEASURES)
        if self.linkage not in hierarchical.LINKAGES:
            raise unknown("linkage", self.linkage, hierarchical.LINKAGES)


def group(angles: np.ndarray, how: PrincipalAngleClustering):
    """Clusters a proximity matrix (PACFL Alg. 1 line 11).

    Args:
      angles: `[N, N]` in degrees.
      how: Linkage, and threshold or number of clusters.

    Returns:
      `(labels int32 [N], dendrogram, threshold)`; the threshold is one that gives these labels, for newcomers.

    Raises:
      UserError: If there are more clusters than clients.
    """
    dendrogram = hierarchical.build_dendrogram(angles, how.linkage)
    if how.num_clusters is not None:
        labels = hierarchical.cut(dendrogram, num_clusters=how.num_clusters)
        return labels, dendrogram, _threshold_of(dendrogram, how.num_clusters)
    threshold = how.threshold
    if threshold is None:
        threshold = hierarchical.suggest_threshold(dendrogram, unit="degrees").threshold
    return hierarchical.cut(dendrogram, threshold=threshold), dendrogram, threshold


def _threshold_of(dendrogram, num_clusters: int) -> float:
    """A threshold for newcomers to clusters that were cut by count."""
    try:
        return hierarchical.threshold_for(dendrogram, num_clusters)
    except UserError:  # merges of equal height: no threshold gives this number; the last merge that was made is the limit
        return float(dendrogram.heights[dendrogram.num_leaves - num_clusters - 1])


def build_data_signature(model: FlatModel, clustering: PrincipalAngleClustering) -> Signature:
    """Builds the signature that PACFL's clients send: the subspace of their data, as `clustering` says."""
    return build_subspace(
        model.example_spec,
        clustering.num_vectors,
        per_class=clustering.per_class,
        num_classes=model.num_classes,
        max_classes=clustering.max_classes,
    )


def build_pacfl(
    model: FlatModel,
    training: LocalTraining,
    clustering: PrincipalAngleClustering = PrincipalAngleClustering(),
    *,
    aggregation: tff.aggregators.WeightedAggregationFactory | None = None,
) -> Algorithm:
    """Builds PACFL.

    All clients are clustered before the first round (the paper clusters the first round's cohort and admits the others
    by Alg. 2; the authors' code clusters all). All cluster models start from the same initial model (Alg. 1 line 12).

    Args:
      model: What is trained.
      training: Local hyper-parameters.
      clustering: How clients are grouped.
      aggregation: Optional factory over keyed updates, see `ClusteredMeanFactory`.

    Returns:
      The method. `State.extra` has `bases float32 [N, d, q]`, `mask bool [N, q]`, `proximity float32 [N, N]` (degrees),
      `merges float64 [N-1, 4]` (SciPy linkage matrix of the clients that were clustered first) and `threshold float64`.
    """
    engine = build_clustered_training(model, training, aggregation=aggregation)
    signature = build_data_signature(model, clustering)
    sign = build_signing(signature)

    def initialize(population: Population) -> State:
        wanted = clustering.num_clusters
        if wanted is not None and not 1 <= wanted <= len(population.client_ids):
            raise UserError(f"num_clusters is {wanted}; it must be from 1 to the number of clients, {len(population.client_ids)}")
        signed = sign(population)
        angles = proximity.principal_angles(signed["basis"], signed["mask"], measure=clustering.measure)
        labels, dendrogram, threshold = group(angles, clustering)
        extra = {
            "bases": signed["basis"],
            "mask": signed["mask"],
            "proximity": angles,
            "merges": dendrogram.merges,
            "threshold": np.float64(threshold),
        }
        models = np.repeat(model.initial[np.newaxis], labels.max() + 1, axis=0)
        return State(population.client_ids, labels, models, engine.initial_aggregator_state(), extra)

    def admit(state: State, arrivals: Population) -> State:
        """PACFL Alg. 2 and 3; a cluster that newcomers found starts from the initial model."""
        check_newcomers(state, arrivals)
        signed, old = sign(arrivals), state.extra
        measure = {"measure": clustering.measure}
        cross = proximity.principal_angles(
            old["bases"], old["mask"], others=signed["basis"], others_mask=signed["mask"], **measure
        )
        within = proximity.principal_angles(signed["basis"], signed["mask"], **measure)
        angles = joining.extend_proximity(old["proximity"], cross, within)
        labels = joining.assign_newcomers(
            angles, state.assignment, threshold=float(old["threshold"]), linkage=clustering.linkage
        )
        members = extended(state, arrivals, labels[len(state.assignment) :])
        founded = labels.max() + 1 - len(state.models)
        order = np.argsort(np.concatenate([state.client_ids, arrivals.client_ids]))
        extra = {
            **old,
            "bases": np.concatenate([old["bases"], signed["basis"]])[order],
            "mask": np.concatenate([old["mask"], signed["mask"]])[order],
            "proximity": angles[np.ix_(order, order)],
        }
        models = np.concatenate([state.models, np.repeat(model.initial[np.newaxis], founded, axis=0)])
        return dataclasses.replace(state, models=models, extra=extra, **members)

    def computations():
        process = build_training_process(model, training, aggregation=aggregation)
        return {"signature": build_collection(signature), "initialize": process.initialize, "training": process.next}

    return Algorithm(
        "pacfl",
        initialize,
        engine.next,
        engine.assign,
        admit,
        computations,
        {"signature": Transfer(down=None, up=signature.value_type), "training": engine.transfer},
        extra_keys=EXTRA_KEYS,
        clustering={"unit": "degrees", "measure": clustering.measure, "linkage": clustering.linkage},
    )
