"""StoCFL: stochastic clustered federated learning (Zeng et al., KDD FL4Data-Mining 2023, arXiv:2303.00897, Alg. 1).

A client that takes part for the first time sends the gradient of its data at a fixed anchor model. Clusters with
similar gradients merge, and each trains a model that is held near a global one.
"""

import collections
import dataclasses

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators import clustered_mean as means
from tffcl.aggregators.contract import traits
from tffcl.algorithms.clustered_training import build_clustered_round, round_computations
from tffcl.algorithms.each_round_parameters import StoCFLParameters
from tffcl.algorithms.method import ClusteredState, Exports, Method, Views, method_builder
from tffcl.algorithms.one_shot import OneShotClustering
from tffcl.client_work.local_sgd import LocalTraining, client_fields, fields_of
from tffcl.client_work.training import build_bilevel_work, build_train_and_report
from tffcl.clients.cohort import Cohort
from tffcl.clients.newcomers import check_newcomers, extended, joined_order
from tffcl.clients.population import Population
from tffcl.clustering import stochastic
from tffcl.clustering.stochastic import KnownClients
from tffcl.errors import Diverged, Option, UserError
from tffcl.models.flat import FlatModel
from tffcl.models.graph_function import session_function
from tffcl.models.layer_parts import require_shared
from tffcl.rounds.client_queries import build_collection, build_signing, signature_transfer
from tffcl.rounds.composer import Round, Server, compose
from tffcl.rounds.server import models_type, move_rows, row_of
from tffcl.rounds.simulation import check_finite, run_round
from tffcl.rounds.traffic import Traffic
from tffcl.runtime import MESSAGE_BYTES
from tffcl.signatures.anchor_gradient import build_anchor_gradient, signature_size
from tffcl.signatures.signature import Signature
from tffcl.trace_cache import built_once
from tffcl.validation import check_kind


def both_models(values, client) -> collections.OrderedDict:
    """Returns what a client receives: the model of its cluster and the global one."""
    return collections.OrderedDict(
        model=row_of(values["models"], client["key"]), global_model=tf.identity(values["global_model"])
    )


@built_once
def build_bilevel_round(
    model: FlatModel,
    training: LocalTraining,
    global_training: LocalTraining | None,
    *,
    aggregation: tff.aggregators.AggregationFactory | None = None,
    global_aggregation: tff.aggregators.AggregationFactory | None = None,
) -> Round:
    """Builds one round of bi-level training (StoCFL Eq. 3, Alg. 1 lines 18 to 25), in which the cluster's model is
    pulled towards the global one.

    The server has `models float32[?,P]` and `global_model float32[P]`; a client receives row `key` of the models and
    the global model. Row k moves by the weighted mean of the differences of the clients with key k, the global model by
    the weighted mean over all clients.

    Args:
      training: Local training of the cluster models; its `proximal_weight` is λ.
      global_training: Local training of the global model; None: it stays unchanged.
      aggregation: Aggregates the cluster models' updates, over `<key=int32,value=float32[P]>`; default
        `ClusteredMeanFactory()`.
      global_aggregation: Aggregates the updates of the global model, over `float32[P]`, the other half of the global
        objective. Default: the mean weighted by examples, zero if no client has any weight, or the unweighted mean if
        the clusters' means are unweighted.
    """

    def step(state, results, measurements):
        moved = {} if global_training is None else {"global_model": state["global_model"] + results["global_update"]}
        return {**move_rows(state, results, measurements), **moved}

    uploads = {"update": _of_changing_clusters(aggregation)}
    if global_training is not None:
        uploads["global_update"] = _of_all(global_aggregation) or _mean_over_all(uploads["update"])
    values = {"models": models_type(model.size), "global_model": tff.TensorType(np.float32, [model.size])}
    return compose(build_bilevel_work(model, training, global_training), uploads, Server(values, both_models, step))


def _of_all(aggregation):
    """Returns the factory over the updates of all clients, if given; UserError if it is none, or takes keyed ones."""
    kinds = tff.aggregators.WeightedAggregationFactory, tff.aggregators.UnweightedAggregationFactory, type(None)
    must = "a factory over the updates of all clients, without keys, e.g. tff.learning.robust_aggregator()"
    check_kind("global_aggregation", aggregation, kinds, must)
    if traits(aggregation).is_keyed:
        raise UserError(f"global_aggregation {type(aggregation).__name__} takes keyed uploads; it must be {must}")
    means.tell_of_sums(aggregation)
    return aggregation


def _mean_over_all(of_clusters):
    """The mean over all clients, which count as in the clusters' means."""
    if isinstance(
        means.aggregated_beside(of_clusters, means.ClusteredMeanFactory()), means.UniformClusteredMeanFactory
    ):
        return means.UniformMeanFactory()
    return tff.aggregators.MeanFactory(no_nan_division=True)


def _of_changing_clusters(aggregation):
    """The factory over keyed uploads. StoCFL's clusters come and go, so it cannot run once per cluster."""
    factory = means.keyed_factory(aggregation)
    if traits(factory).waits_for_clusters or traits(factory).num_clusters is not None:
        raise UserError(
            "StoCFL's clusters come and go, so that no aggregation can run once for each of them; its cluster models "
            "take the plain mean or a factory over keyed updates of any number of clusters, its global model any "
            "(global_aggregation)"
        )
    return factory


@built_once
def _build_training_here(model: FlatModel, training: LocalTraining):
    """Builds `(vector float32[P], client) -> (vector float32[P], report)` on arrays, as a client of a simulated round
    trains."""
    examples = tf.nest.map_structure(lambda spec: tf.TensorSpec([None, *spec.shape], spec.dtype), model.example_spec)
    client = collections.OrderedDict(examples=examples, seed=tf.TensorSpec([2], tf.int32))
    client.update((name, tf.TensorSpec([], dtype)) for name, dtype in client_fields(training).items())
    return session_function(build_train_and_report(model, training), tf.TensorSpec([model.size]), client)


def train_in_a_chain(
    model: FlatModel, training: LocalTraining, global_model: np.ndarray, cohort: Cohort
) -> tuple[np.ndarray, Traffic]:
    """Lets the clients of a round train a global model in their order, in this process: a chain has nothing that
    workers could do at the same time.

    Args:
      global_model: `float32 [P]`.
      cohort: The clients; each shuffles as in the round's other training.

    Returns:
      The plain mean of the clients' models, `float32 [P]`, and the traffic: the model to each client and back, as in a
      round of one cluster.

    Raises:
      Diverged: If a client's model is not finite.
    """
    train, current, total = _build_training_here(model, training), global_model, np.zeros(global_model.shape)
    for _, one in cohort.parts(1):
        client, fields = int(one.client_ids[0]), fields_of(training, one)
        given = collections.OrderedDict(
            examples=cohort.population.train(client).stacked, seed=cohort.client_seed(client)
        )
        given.update((name, fields[name][0]) for name in client_fields(training))
        current, report = train(current, given)
        check_finite({name: np.atleast_1d(value) for name, value in report.items()}, one)
        total += current
    transfer = build_clustered_round(model, training).transfer
    sent = Traffic(transfer.down_bytes(1), transfer.up_bytes()) * len(cohort.client_ids)
    return (total / len(cohort.client_ids)).astype(np.float32), sent


def build_data_signature(
    model: FlatModel, training: LocalTraining, how: StoCFLParameters, seed: int, noise_seed: int | None = None
) -> Signature:
    """Builds the signature that StoCFL's clients send."""
    local = LocalTraining(
        epochs=how.anchor_epochs,
        batch_size=how.anchor_batch_size,
        learning_rate=training.learning_rate if how.anchor_learning_rate is None else how.anchor_learning_rate,
    )
    return build_anchor_gradient(
        model, form=how.form, local=local, projection=how.projection, seed=seed, **how.noise, noise_seed=noise_seed
    )


def group_stocfl(
    model: FlatModel,
    training: LocalTraining,
    how: StoCFLParameters = StoCFLParameters(),
    *,
    seed: int = 0,
    noise_seed: int | None = None,
) -> OneShotClustering:
    """Builds StoCFL's grouping if all clients take part in the first round: single linkage, cut at the cosine τ.

    Args:
      model: Architecture and anchor.
      training: Decides the learning rate of displacements.
      how: Signature and threshold.
      seed: Decides the projection.
      noise_seed: See `signatures.signature.build_signature`.

    Raises:
      UserError: With the linkage "centroid": the cosines of means may rise as clusters merge, so there is no tree of
        them.
    """
    if how.linkage != "single":
        single = Option("--set algorithms.stocfl.linkage=single", 'linkage="single"')
        raise UserError(
            f"linkage is {how.linkage!r}, which has no tree that could be drawn; the clients' cosines are the same "
            f"with {single}"
        )

    def distances(first, second) -> np.ndarray:
        return stochastic.cosine_distances(first["value"], None if second is None else second["value"])

    return OneShotClustering(
        build_data_signature(model, training, how, seed, noise_seed), distances, unit="1 - cosine",
        metric="cosine distance", linkage="single", threshold=1 - how.threshold,
        setting={"threshold": lambda threshold: 1 - threshold}, num_clusters=None,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class StoCFLState(ClusteredState):
    """Adds to `ClusteredState` the clients that the server has met. Row 0 of the models is the global model; the other
    rows are the different models of clusters, so that a cluster without clients in cohorts needs no row."""

    known: KnownClients | None = None


class StoCFL(Method):
    """StoCFL, see `build_stocfl`."""

    name = "stocfl"
    state_class = StoCFLState
    trained_models = 2  # a global model in a chain keeps nothing

    def __init__(self, model: FlatModel, training: LocalTraining, parameters: StoCFLParameters, seeds, **aggregations):
        self.model, self._initial, self._how = model, model.initial, parameters
        proximal = training.with_proximal_weight(parameters.proximal_weight)
        fedprox = parameters.global_objective == "fedprox"
        plain = proximal if fedprox else dataclasses.replace(proximal, proximal_weight=0.0)
        self._chain = plain if parameters.global_order == "sequential" else None
        if self._chain:
            require_shared(model, "global_order 'sequential' sends one model from client to client")
        if self._chain and training.keeps_state:
            raise UserError(
                "global_order 'sequential' sends one model from client to client: optimizer_state must be 'reset'"
            )
        if self._chain and aggregations.get("global_aggregation") is not None:
            raise UserError(
                "global_order 'sequential' averages the global models plainly; it takes no global_aggregation"
            )
        self._round = build_bilevel_round(model, proximal, None if self._chain else plain, **aggregations)
        self._signature = build_data_signature(model, training, parameters, *seeds)
        self._sign, self._size = build_signing(self._signature), signature_size(model, parameters.projection)
        self.joining = Traffic.of(signature_transfer(self._signature))

    def initialize(self, population: Population) -> StoCFLState:
        alone, nobody = np.arange(len(population), dtype=np.int32), KnownClients.nobody(len(population), self._size)
        models = self._initial[np.newaxis]
        return StoCFLState(population.client_ids, alone, models, self._round.initial_aggregators, known=nobody)

    def next(self, state: StoCFLState, cohort: Cohort):
        state, fresh, merges = self._meet(state, cohort)
        state, metrics = self._train(state, cohort)
        partition = state.known.partition
        total, pairs = stochastic.objective(partition.sums), len(partition) * (len(partition) - 1) / 2
        scalars = {
            "known_clients": int(state.known.mask.sum()),
            "known_clusters": len(partition),
            "merges": merges,
            "objective": total,
            "mean_cosine": total / pairs if pairs else 0.0,
        }
        return state, dataclasses.replace(metrics.with_signatures(self.joining * fresh), scalars=scalars)

    def _signatures(self, population: Population, client_ids: np.ndarray) -> np.ndarray:
        """Asks some clients, ascending, for their signatures `float32 [n, d]`; raises Diverged if one is not finite."""
        found = self._sign(population.restricted(client_ids))
        with np.errstate(over="ignore"):
            # a vector whose length overflows has no direction
            bad = np.flatnonzero(~np.isfinite(np.linalg.norm(found, axis=1)))
        if len(bad):
            trained = ", or anchor_learning_rate is too high" if self._how.form == "displacement" else ""
            raise Diverged(
                f"client {population.name_of(client_ids[bad[0]])} has a signature that is not finite; its data hold "
                f"NaN{trained}"
            )
        return found

    def _meet(self, state: StoCFLState, cohort: Cohort) -> tuple[StoCFLState, int, int]:
        """Alg. 1 lines 5 to 17; returns the state, how many clients are new in it, and the number of merges."""
        before = state.known
        where = np.sort(state.index(cohort.client_ids))
        fresh = where[~before.mask[where]]
        partition, known = before.partition, before
        if len(fresh):
            signed = self._signatures(cohort.population, state.client_ids[fresh])
            partition = stochastic.with_singletons(partition, state.assignment[fresh], signed)
            known = before.with_clients(fresh, signed, partition, before.rows)
        merging = self._merge(state, known, partition, where)
        assignment = state.assignment.copy()
        mine = np.searchsorted(partition.ids, assignment[known.mask])
        assignment[known.mask] = merging.partition.ids[merging.places[mine]]
        places = merging.places[np.searchsorted(partition.ids, before.partition.ids)]
        models, rows = before.merged_models(
            state.models, state.assignment, places, len(merging.partition), self._how.model_merge
        )
        known = dataclasses.replace(known, partition=merging.partition, rows=rows)
        return dataclasses.replace(state, assignment=assignment, models=models, known=known), len(fresh), merging.merges

    def _merge(self, state: StoCFLState, known: KnownClients, partition, where: np.ndarray) -> stochastic.Merging:
        if self._how.representation == "members":
            return stochastic.merge(partition, self._how.threshold, self._how.linkage)
        return stochastic.merge_sampled(
            partition, state.assignment[where], known.signatures_of(where), self._how.threshold
        )

    def _train(self, state: StoCFLState, cohort: Cohort):
        """Alg. 1 lines 18 to 25; also decides which models are kept."""
        known, clusters = state.known, state.clusters(cohort.client_ids)
        present, keys = np.unique(known.places_of(clusters), return_inverse=True)
        most = MESSAGE_BYTES // self._initial.nbytes - 2  # leaves room for the global model and all else
        if present.size > most:
            raise UserError(
                f"the cohort of round {cohort.seed[1]} is in {len(present)} clusters, whose models are too large for "
                f"one message (at most {most}); a lower threshold or fewer clients_per_round would do"
            )
        values = {"models": self._starts(state, present), "global_model": state.models[0]}
        fields = {"optimizers": state.optimizers, "key": keys.astype(np.int32)}
        result = run_round(self._round, cohort, values, state.aggregators, **fields)
        others = np.setdiff1d(np.arange(len(known.rows)), present)
        kept, places = np.unique(known.rows[others], return_inverse=True)
        rows = np.empty_like(known.rows)
        rows[others], rows[present] = 1 + places, 1 + len(kept) + np.arange(len(present))
        trained = known.trained.copy()
        trained[state.index(cohort.client_ids)] = True
        moved, metrics = dict(result.values), result.metrics(cohort, clusters)
        if self._chain:
            moved["global_model"], sent = train_in_a_chain(self.model, self._chain, state.models[0], cohort)
            metrics = dataclasses.replace(metrics, traffic=metrics.traffic + sent)
        models = np.concatenate([moved["global_model"][np.newaxis], state.models[kept], moved["models"]])
        known = dataclasses.replace(known, rows=rows, trained=trained)
        changes = {"aggregators": result.aggregators, "optimizers": result.optimizers}
        return dataclasses.replace(state, models=models, known=known, **changes), metrics

    def _starts(self, state: StoCFLState, present: np.ndarray) -> np.ndarray:
        """The models `float32 [n, P]` from which the clusters at the places `present` train."""
        known = state.known
        rows = known.rows[present]
        new, trained = rows < 0, known.rows >= 0
        if self._how.start == "closest" and new.any() and trained.any():
            sums = known.partition.sums
            near = stochastic.nearest(sums[present[new]], sums[trained])[0]
            rows = rows.copy()
            rows[new] = known.rows[trained][near]
            return state.models[rows]
        unlike = state.models[0] if self._how.start == "global" else self._initial
        return np.where(new[:, np.newaxis], unlike, state.models[np.maximum(rows, 0)])

    def admit(self, state: StoCFLState, newcomers: Population) -> StoCFLState:
        """Section 3.3; before the first round there are no clusters yet, and newcomers are like all other clients."""
        check_newcomers(state, newcomers)
        order, arriving, count = joined_order(state, newcomers), newcomers.client_ids, len(newcomers)
        known = state.known.with_strangers(count, order)
        unused = state.assignment.max() + 1 + np.arange(count)
        if not len(known.partition):
            return dataclasses.replace(state, known=known, **extended(state, newcomers, unused))
        signed = self._signatures(newcomers, arriving)
        found = stochastic.infer(known.partition, signed, self._how.threshold)
        joined = np.where(found.founded < 0, known.partition.ids[found.closest], unused[found.founded])
        partition = stochastic.with_members(known.partition, joined, signed)
        old = np.isin(partition.ids, known.partition.ids)
        rows = np.empty(len(partition), np.int32)
        rows[old] = known.rows
        if not old.all():
            rows[~old] = known.rows[stochastic.nearest(partition.sums[~old], known.partition.sums)[0]]
        came = np.flatnonzero(order >= len(state.client_ids))
        known = known.with_clients(came, signed, partition, rows)
        return dataclasses.replace(state, known=known, **extended(state, newcomers, joined))

    def place(self, state: StoCFLState, population: Population) -> StoCFLState:
        """Section 3.3 for clients of the population that have not taken part: each gets the model of the closest
        cluster."""
        known = state.known
        where = state.index(population.client_ids)
        where = where[~known.mask[where]]
        if not len(where) or not len(known.partition):
            return state
        signed = self._signatures(population, state.client_ids[where])
        near = stochastic.nearest(signed, known.partition.sums)[0]
        partition = stochastic.with_members(known.partition, known.partition.ids[near], signed)
        assignment = state.assignment.copy()
        assignment[where] = known.partition.ids[near]
        return dataclasses.replace(
            state, assignment=assignment, known=known.with_clients(where, signed, partition, known.rows)
        )

    def models_for(self, state: StoCFLState, client_ids):
        """A client that the server has not met is assigned the global model, because nothing is known about it."""
        where, known = state.index(client_ids), state.known
        rows = np.zeros(len(where), np.int32)
        met = known.mask[where]
        rows[met] = known.rows[known.places_of(state.assignment[where[met]])]
        return state.models, rows

    def views(self, state: StoCFLState) -> Views:
        known = state.known
        return Views(
            state.client_ids,
            state.assignment,
            known.mask,
            global_model=state.models[0],
            representations=known.signatures,
        )

    def exports(self) -> Exports:
        first = {"models": self._initial[np.newaxis], "global_model": self._initial}
        return Exports(
            lambda: {"signature": build_collection(self._signature), **round_computations(self._round, first)},
            server_values=lambda state: {"models": state.models, "global_model": state.models[0]},
            clustering={"when": _MERGES.format(**vars(self._how))},
            when={"training": _TRAINS + _IN_A_CHAIN * bool(self._chain)},
            members_needed=lambda: self._round.members_needed,
        )


# What a deployment must know about the coordinator's work.
_MERGES = (
    "before every round, when those of its clients that are in their first one have signed: each of these is a cluster "
    "of its own, those whose cosine is above {threshold} merge (Python, tffcl.clustering.stochastic, with the linkage "
    "{linkage} and the representation {representation}), and so do their models: the {model_merge} one, by how many "
    "members have trained each (`known.trained` of clustering/state.npz); a cluster that has not trained yet starts "
    "from the {start} model; newcomers to a run sign when they join: each is in the nearest cluster, or below "
    "{threshold} in a new one, which starts from the nearest one's model"
)
_TRAINS = "row 0 of models is nobody's key; after a round the coordinator puts global_model there"
_IN_A_CHAIN = (
    "; a round leaves global_model as it is: a run trains it in a chain of the round's clients, of which there is no "
    "computation here"
)


@method_builder
def build_stocfl(
    model: FlatModel,
    training: LocalTraining,
    parameters: StoCFLParameters = StoCFLParameters(),
    *,
    seed: int = 0,
    noise_seed: int | None = None,
    aggregation: tff.aggregators.AggregationFactory | None = None,
    global_aggregation: tff.aggregators.AggregationFactory | None = None,
) -> Method:
    """Builds StoCFL: clusters merge by gradients at an anchor model as clients become known, and their models are held
    near a global one.

    Every client is a cluster of its own at first. Clusters merge before the cohort trains (Alg. 1). A cluster's model
    is the mean of its members' models, weighted by examples. Where the paper is silent:

    * The models of clusters that merge are averaged, weighted by members. Members that are new in this round have not
      trained and do not count, so that τ = -1 and λ = 0 is FedAvg whoever takes part.
    * A client that has not taken part yet is assigned the global model, since nothing is known of it.
    * In a round that merges clusters, representations are those from before it; the next round compares the merged
      ones.

    The limits: τ = -1, λ = 0 is FedAvg. τ = -1 with G = "fedprox" is FedProx. With the paper's G, which is FedAvg, the
    one cluster's model is held near FedAvg's model instead of its own last state, which is FedProx in the first round
    only. τ = 1 is Ditto.

    Args:
      model: The model to train; its initial vector is the anchor too (section 3.1).
      training: Local hyper-parameters of both models.
      parameters: The method's own parameters.
      seed: Decides the signature's projection.
      noise_seed: Seed of the noise of private signatures, to repeat simulations; None draws new noise.
      aggregation: Aggregates the updates of the cluster models, over keyed updates.
      global_aggregation: Aggregates the updates of the global model, e.g. `tff.learning.robust_aggregator()`; with
        `parameters.global_objective` it is G of Eq. 3.
    """
    seeds = (seed, noise_seed)
    return StoCFL(model, training, parameters, seeds, aggregation=aggregation, global_aggregation=global_aggregation)
