"""StoCFL: stochastic clustered federated learning (Zeng et al., KDD FL4Data-Mining 2023, arXiv:2303.00897, Alg. 1).

A client that takes part for the first time sends the gradient of its data at a fixed anchor model. Clusters with like
gradients merge, and each trains a model that is held near a global one.
"""

import collections
import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow_federated as tff

from tffcl.algorithms.bilevel_training import bilevel_transfer, build_bilevel_process, global_training_of
from tffcl.algorithms.clustered_training import cohort_inputs, round_metrics
from tffcl.algorithms.contracts import (
    Algorithm,
    Cohort,
    Population,
    State,
    Transfer,
    check_newcomers,
    extended,
    index_of,
    joined_order,
)
from tffcl.algorithms.known_clients import KEPT, KnownClients
from tffcl.algorithms.one_shot import OneShotClustering, signature_transfer
from tffcl.algorithms.signature_round import build_signing
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clustering import stochastic
from tffcl.errors import UserError, unknown
from tffcl.models.flat import FlatModel
from tffcl.runtime import MESSAGE_BYTES
from tffcl.signatures.anchor_gradient import FORMS, build_anchor_gradient, signature_size
from tffcl.signatures.signature import Signature, build_collection

STARTS = {
    "initial": "from the initial model (paper: all cluster models are the same at first)",
    "global": "from the global model as it is then (the authors' code)",
    "closest": "from the model of the closest cluster, as newcomers do (section 3.3)",
}


@dataclasses.dataclass(frozen=True)
class StochasticClustering:
    """How StoCFL clusters and what holds the clusters' models together.

    Attributes:
      threshold: τ, clusters with a larger cosine merge; -1 merges everyone known (with the representation
        "cohort" those of a round), 1 nobody.
      proximal_weight: λ of Eq. 3, how strongly the global model pulls at the clusters' models.
      linkage: "single" (Alg. 1) or "centroid", see `stochastic.merge`: which clusters of a round merge. Where single
        clients tell little (50 examples each), some of another group are more alike than those of one's own: "centroid"
        then finds the groups, at a lower threshold, "single" joins them.
      representation: Of what a cluster's representation is the mean: its "members" (Eq. 2), or those of them in the round's
        "cohort" (the authors' code).
      model_merge: The model of clusters that merge: the "mean", weighted by members that trained, or that of the "larger"
        (the authors' code).
      start: Where a cluster that has never been trained starts: the "initial" model, the "global" one as it is then (the
        authors' code), or that of the "closest" cluster.
      global_objective: G of Eq. 3: "fedavg" or "fedprox".
      form: What a client sends of its data: its "gradient", or its "displacement" from the anchor after some local steps
        (the authors' code).
      anchor_epochs: With the form "displacement": passes over the local data from the anchor.
      anchor_batch_size: With it: examples a step; 0 is all local data.
      anchor_learning_rate: With it: step size; default that of training.
      projection: Dimensions that each client projects its signature to; 0, or as many as the model has parameters, is none.
    """

    threshold: float = 0.5
    proximal_weight: float = 0.05
    linkage: str = "single"
    representation: str = "members"
    model_merge: str = "mean"
    start: str = "initial"
    global_objective: str = "fedavg"
    form: str = "gradient"
    anchor_epochs: int = 10
    anchor_batch_size: int = 0
    anchor_learning_rate: float | None = None
    projection: int = 4096

    def __post_init__(self):
        stochastic.check_threshold(self.threshold)
        named = (
            ("linkage", stochastic.LINKAGES),
            ("representation", stochastic.REPRESENTATIONS),
            ("model_merge", stochastic.MODEL_MERGES),
            ("start", STARTS),
            ("form", FORMS),
        )
        for name, allowed in named:
            if getattr(self, name) not in allowed:
                raise unknown(name, getattr(self, name), allowed)
        if self.representation == "cohort" and self.linkage != "single":
            raise UserError(f"representation 'cohort' knows linkage 'single' only, not {self.linkage!r}")
        global_training_of(LocalTraining(), self.global_objective)


def build_data_signature(model: FlatModel, training: LocalTraining, how: StochasticClustering, seed: int) -> Signature:
    """Builds the signature that StoCFL's clients send."""
    local = LocalTraining(
        epochs=how.anchor_epochs,
        batch_size=how.anchor_batch_size,
        learning_rate=training.learning_rate if how.anchor_learning_rate is None else how.anchor_learning_rate,
    )
    return build_anchor_gradient(model, form=how.form, local=local, projection=how.projection, seed=seed)


def build_clustering(
    model: FlatModel, training: LocalTraining, how: StochasticClustering = StochasticClustering(), *, seed: int = 0
) -> OneShotClustering:
    """Builds what StoCFL does when everyone takes part in the first round: single linkage, cut at the cosine τ.

    Args:
      model: Architecture and anchor.
      training: Decides the learning rate of displacements.
      how: Signature and threshold.
      seed: Decides the projection.

    Raises:
      UserError: With the linkage "centroid": the cosines of means may rise as clusters merge, so there is no tree of them.
    """
    if how.linkage != "single":
        raise UserError(
            f"linkage is {how.linkage!r}, which has no tree that could be drawn; the clients' cosines are the same with "
            "--set algorithms.stocfl.linkage=single"
        )

    def measure(first, second) -> np.ndarray:
        return stochastic.cosine_distances(first["signatures"], None if second is None else second["signatures"])

    return OneShotClustering(
        build_data_signature(model, training, how, seed),
        {"": "signatures"},
        measure,
        unit="1 - cosine",
        measure_name="cosine distance",
        linkage="single",
        threshold=1 - how.threshold,
        setting=lambda threshold: ("threshold", 1 - threshold),
        num_clusters=None,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Rounds:
    """StoCFL's server.

    Attributes:
      initial: `float32 [P]`, the initial model.
      how: The method's parameters.
      sign: Asks clients for their signatures, see `build_signing`.
      process: From `build_bilevel_process` with `local_test=True`.
      transfers: Of the signature and of training.
    """

    initial: np.ndarray
    how: StochasticClustering
    sign: Callable[[Population], np.ndarray]
    process: tff.templates.IterativeProcess
    transfers: dict[str, Transfer]

    def initialize(self, population: Population, size: int) -> State:
        count = len(population.client_ids)
        aggregator, everyone = self.process.initialize()["aggregator"], np.arange(count, dtype=np.int32)
        return State(
            population.client_ids, everyone, self.initial[np.newaxis], aggregator, KnownClients.nobody(count, size).extra()
        )

    def next(self, state: State, cohort: Cohort):
        """One round; see `Algorithm.next`."""
        state, fresh, merges = self._meet(state, cohort)
        state, metrics = self._train(state, cohort)
        partition = KnownClients.of(state).partition
        total, pairs = stochastic.objective(partition.sums), len(partition) * (len(partition) - 1) / 2
        scalars = {
            "known_clients": int(state.extra["known"].sum()),
            "known_clusters": len(partition),
            "merges": merges,
            "objective": total,
            "mean_cosine": total / pairs if pairs else 0.0,
        }
        sent = self.transfers["representation"]
        down, up = sent.down_bytes * fresh, sent.up_bytes * fresh
        return state, dataclasses.replace(
            metrics, down_bytes=metrics.down_bytes + down, up_bytes=metrics.up_bytes + up, signature_bytes=down + up,
            scalars=scalars,
        )  # fmt: skip

    def signatures(self, population: Population, client_ids: np.ndarray) -> np.ndarray:
        """Asks some clients, ascending, for their signatures `float32 [n, d]`.

        Raises:
          UserError: If one is not finite.
        """
        sizes = population.sizes[population.index(client_ids)]
        found = self.sign(dataclasses.replace(population, client_ids=client_ids, sizes=sizes))
        with np.errstate(over="ignore"):
            bad = np.flatnonzero(~np.isfinite(np.linalg.norm(found, axis=1)))  # a length that overflows has no direction
        if len(bad):
            raise UserError(
                f"client {client_ids[bad[0]]} has a signature that is not finite; its data hold NaN, or "
                "anchor_learning_rate is too high"
            )
        return found

    def _meet(self, state: State, cohort: Cohort) -> tuple[State, int, int]:
        """Alg. 1 lines 5 to 17; returns the state, how many clients are new in it, and the number of merges."""
        before = KnownClients.of(state)
        where = np.sort(index_of(state.client_ids, cohort.client_ids))
        fresh = where[~before.mask[where]]
        partition, known = before.partition, before
        if len(fresh):
            signed = self.signatures(cohort.population, state.client_ids[fresh])
            partition = stochastic.with_singletons(partition, state.assignment[fresh], signed)
            known = before.with_clients(fresh, signed, partition, before.rows)
        merging = self._merge(state, known, partition, where)
        assignment = state.assignment.copy()
        mine = np.searchsorted(partition.ids, assignment[known.mask])
        assignment[known.mask] = merging.partition.ids[merging.places[mine]]
        places = merging.places[np.searchsorted(partition.ids, before.partition.ids)]
        models, rows = self._merge_models(state, before, places, len(merging.partition))
        known = dataclasses.replace(known, partition=merging.partition, rows=rows)
        state = dataclasses.replace(state, assignment=assignment, models=models, extra=known.extra())
        return state, len(fresh), merging.merges

    def _merge(self, state: State, known: KnownClients, partition, where: np.ndarray) -> stochastic.Merging:
        if self.how.representation == "members":
            return stochastic.merge(partition, self.how.threshold, self.how.linkage)
        sampled = known.signatures_of(where)
        return stochastic.merge_sampled(partition, state.assignment[where], sampled, self.how.threshold)

    def _merge_models(self, state: State, before: KnownClients, places: np.ndarray, count: int):
        """Models and rows `int32 [count]` after merging; `places` [K] says what the clusters before are part of now."""
        rows = np.full(count, -1, np.int32)
        rows[places] = before.rows
        several = np.bincount(places, minlength=count)[places] > 1
        if not several.any():
            return state.models, rows
        trained = state.assignment[before.trained]
        weights = np.bincount(np.searchsorted(before.partition.ids, trained), minlength=len(places))
        # Where newcomers' clusters merge that have copies of others' models, nobody has trained any.
        nobody = np.bincount(places, weights=weights, minlength=count)[places] == 0
        weights = np.where(nobody, before.partition.sizes, weights)[several]
        own = state.models[before.rows[several]]
        merged, found = stochastic.merge_models(own, weights, places[several], self.how.model_merge)
        rows[merged] = len(state.models) + np.arange(len(merged))
        return np.concatenate([state.models, found]), rows

    def _train(self, state: State, cohort: Cohort):
        """Alg. 1 lines 18 to 25, and which models are kept."""
        extra = state.extra
        clusters = state.clusters(cohort.client_ids)
        present, keys = np.unique(np.searchsorted(extra["clusters"], clusters), return_inverse=True)
        most = MESSAGE_BYTES // self.initial.nbytes - 2  # beside the global model, and with room for all else
        if present.size > most:
            raise UserError(
                f"the cohort of round {cohort.seed[1]} is in {len(present)} clusters, whose models are too large for one "
                f"message (at most {most}); a lower threshold or fewer clients_per_round would do"
            )
        server = collections.OrderedDict(
            models=self._starts(state, present), global_model=state.models[0], aggregator=state.aggregator
        )
        server, reports = self.process.next(server, cohort_inputs(cohort, key=keys.astype(np.int32)))
        metrics = round_metrics(reports, cohort, clusters, self.transfers["training"])
        others = np.setdiff1d(np.arange(len(extra["rows"])), present)
        kept, places = np.unique(extra["rows"][others], return_inverse=True)
        rows = np.empty_like(extra["rows"])
        rows[others], rows[present] = 1 + places, 1 + len(kept) + np.arange(len(present))
        models = np.concatenate([server["global_model"][np.newaxis], state.models[kept], server["models"]])
        trained = extra["trained"].copy()
        trained[index_of(state.client_ids, cohort.client_ids)] = True
        extra = {**extra, "rows": rows, "trained": trained}
        return dataclasses.replace(state, models=models, aggregator=server["aggregator"], extra=extra), metrics

    def _starts(self, state: State, present: np.ndarray) -> np.ndarray:
        """The models `float32 [n, P]` that the clusters at the places `present` train from."""
        known = KnownClients.of(state)
        rows = known.rows[present]
        new, trained = rows < 0, known.rows >= 0
        if self.how.start == "closest" and new.any() and trained.any():
            sums = known.partition.sums
            near = stochastic.nearest(sums[present[new]], sums[trained])[0]
            rows = rows.copy()
            rows[new] = known.rows[trained][near]
            return state.models[rows]
        unlike = state.models[0] if self.how.start == "global" else self.initial
        return np.where(new[:, np.newaxis], unlike, state.models[np.maximum(rows, 0)])

    def admit(self, state: State, newcomers: Population) -> State:
        """Section 3.3; before the first round there are no clusters to compare with, and newcomers are as all others."""
        check_newcomers(state, newcomers)
        known, order = KnownClients.of(state), joined_order(state, newcomers)
        arriving, count = newcomers.client_ids, len(newcomers.client_ids)
        unused = state.assignment.max() + 1 + np.arange(count)
        came = np.concatenate([np.zeros(len(state.client_ids), bool), np.ones(count, bool)])[order]
        mask, trained = (np.concatenate([each, np.zeros(count, bool)])[order] for each in (known.mask, known.trained))
        known = dataclasses.replace(known, mask=mask, trained=trained)
        if not len(known.partition):
            return dataclasses.replace(state, extra=known.extra(), **extended(state, newcomers, unused))
        signed = self.signatures(newcomers, arriving)
        found = stochastic.infer(known.partition, signed, self.how.threshold)
        joined = np.where(found.founded < 0, known.partition.ids[found.closest], unused[found.founded])
        partition = stochastic.with_members(known.partition, joined, signed)
        old = np.isin(partition.ids, known.partition.ids)
        rows = np.empty(len(partition), np.int32)
        rows[old] = known.rows
        if not old.all():
            rows[~old] = known.rows[stochastic.nearest(partition.sums[~old], known.partition.sums)[0]]
        known = known.with_clients(np.flatnonzero(came), signed, partition, rows)
        return dataclasses.replace(state, extra=known.extra(), **extended(state, newcomers, joined))

    def assign(self, state: State, client_ids) -> tuple[np.ndarray, np.ndarray]:
        """See `Algorithm.assign`."""
        where, known = index_of(state.client_ids, client_ids), state.extra
        keys = np.zeros(len(where), np.int32)
        met = known["known"][where]
        keys[met] = known["rows"][np.searchsorted(known["clusters"], state.assignment[where[met]])]
        return state.models, keys


def build_stocfl(
    model: FlatModel,
    training: LocalTraining,
    clustering: StochasticClustering = StochasticClustering(),
    *,
    seed: int = 0,
    global_aggregation: tff.aggregators.WeightedAggregationFactory | None = None,
) -> Algorithm:
    """Builds StoCFL.

    Every client is a cluster of its own at first. Clusters merge before the cohort trains (Alg. 1). A cluster's model is
    the mean of its members', weighted by examples. Where the paper is silent:

    * Clusters that merge have their models averaged, weighted by members; members that come in this round have trained
      nothing and count nothing, so that τ = -1 and λ = 0 is FedAvg whoever takes part.
    * A client that has not taken part yet is assigned the global model: nothing is known of it.
    * In a round that merges clusters, representations are as before it; the merged ones are compared in the next.

    What it becomes at its limits: τ = -1, λ = 0 is FedAvg. τ = -1 with G = "fedprox" is FedProx. With the paper's G, which is
    FedAvg, the one cluster's model is held near FedAvg's instead of its own last state; that is FedProx in the first round
    only. τ = 1 is Ditto.

    Args:
      model: What is trained; its initial vector is the anchor too (section 3.1).
      training: Local hyper-parameters, of both models.
      clustering: The method's own.
      seed: Decides the signature's projection.
      global_aggregation: Of the global model, e.g. a robust one; with `clustering.global_objective` it is G of Eq. 3.

    Returns:
      The method. Row 0 of the state's models is the global model; the others are the different models of clusters.
      `State.extra` has `known bool [N]`, `trained bool [N]`, the known clients' `signatures float32 [M, d]`, and of their
      clusters, by ID (`clusters int32 [K]`), the `sums float32 [K, d]` of signatures, whether they `changed bool [K]` since
      they were compared, and `rows int32 [K]` of their models: a cluster that nobody of a cohort belongs to costs nothing.
    """
    proximal = dataclasses.replace(training, proximal_weight=clustering.proximal_weight)
    parts = (model, proximal, global_training_of(proximal, clustering.global_objective))
    signature = build_data_signature(model, training, clustering, seed)
    process = build_bilevel_process(*parts, global_aggregation=global_aggregation, local_test=True)
    transfers = {"representation": signature_transfer(signature), "training": bilevel_transfer(model, proximal)}
    rounds = _Rounds(model.initial, clustering, build_signing(signature), process, transfers)
    size = signature_size(model, clustering.projection)

    def computations():
        process = build_bilevel_process(*parts, global_aggregation=global_aggregation)
        collection = build_collection(signature)
        return {"signature": collection, "initialize": process.initialize, "training": process.next}

    return Algorithm(
        "stocfl",
        lambda population: rounds.initialize(population, size),
        rounds.next,
        rounds.assign,
        rounds.admit,
        computations,
        transfers,
        extra_keys=KEPT,
        global_model=lambda state: state.models[0],
    )
