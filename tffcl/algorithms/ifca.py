"""IFCA: the iterative federated clustering algorithm (Ghosh et al., NeurIPS 2020, arXiv:2006.04088, Alg. 1, model averaging).

The server keeps K models; every client of a cohort takes the one of least loss on its training data and trains it.
"""

import collections
import dataclasses

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.clustered_mean import ClusteredMeanFactory, pad_rows
from tffcl.aggregators.collect import by_client, collect
from tffcl.algorithms.choosing import (
    CHOOSE_BY_LOSS,
    build_choose_and_train,
    build_choosing,
    cohort_of,
    criterion_of,
    start_of,
    whose_clients_choose,
)
from tffcl.algorithms.clustered_training import cohort_inputs, round_metrics
from tffcl.algorithms.contracts import Algorithm, Cohort, Population, State, Transfer
from tffcl.algorithms.summed_training import build_summed_round
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.client_work.update import client_type
from tffcl.errors import UserError, unknown
from tffcl.models.flat import INITIALIZATIONS, FlatModel

STARTS = {
    "independent": "K models drawn independently",
    "attracting": "drawn again until each is chosen by `least_share` of the clients (the authors' finder)",
    "warm_up": "K models drawn independently, then `warm_up_rounds` rounds with clients in random equal groups",
}
_MOST_DRAWS = 200
_TRIED_CLIENTS = 100  # the finder's: enough to tell a share of a tenth


@dataclasses.dataclass(frozen=True)
class IterativeClustering:
    """How IFCA starts and what its clusters share.

    Attributes:
      num_clusters: K, the number of models.
      start: A name in `STARTS`.
      initialization: Name in `models.flat.INITIALIZATIONS` by which the K models are drawn; default the model's own.
        PACFL's code draws them by "ifca_reference".
      least_share: With "attracting": the least share of the clients that every model must attract, at most 1 / K (authors:
        0.35 with 2 models, 0.1 with 4); default 0.4 / K.
      warm_up_rounds: With "warm_up": how many (authors: 20 on FEMNIST).
      share_representation: Whether all layers but the last are common to all clusters and averaged over the whole cohort
        (paper, section 5, FEMNIST).
      protocol: "paper": clients choose by loss on their training data; "authors": by accuracy on test data, as the PACFL
        and FLIS authors' code does.
    """

    num_clusters: int = 2
    start: str = "independent"
    initialization: str | None = None
    least_share: float | None = None
    warm_up_rounds: int = 5
    share_representation: bool = False
    protocol: str = "paper"

    def __post_init__(self):
        if self.num_clusters < 1:
            raise UserError(f"num_clusters is {self.num_clusters}; it must be 1 or more")
        if self.start not in STARTS:
            raise unknown("start", self.start, STARTS)
        if self.initialization is not None and self.initialization not in INITIALIZATIONS:
            raise unknown("initialization", self.initialization, INITIALIZATIONS)
        if self.least_share is not None and not 0 < self.least_share <= 1 / self.num_clusters:
            raise UserError(
                f"least_share is {self.least_share}; it must be above 0 and at most 1 / num_clusters, {1 / self.num_clusters:.3g}"
            )
        if self.warm_up_rounds < 1:
            raise UserError(f"warm_up_rounds is {self.warm_up_rounds}; it must be a whole number from 1")
        criterion_of(self.protocol)


def build_ifca_process(
    model: FlatModel,
    training: LocalTraining,
    how: IterativeClustering,
    initial_models: np.ndarray,
    *,
    aggregation: tff.aggregators.WeightedAggregationFactory | None = None,
    local_test: bool = False,
) -> tff.templates.IterativeProcess:
    """Builds one round of IFCA (Alg. 1 lines 3 to 11) as one TFF computation.

    The state is `<models=float32[K,P],aggregator=A>@SERVER`. All models go to every client; it uploads the difference to
    the one that it chose, keyed by its row. A model that nobody chose stays as it is. A client is `<examples=E*,
    client_id=int32,seed=int32[2],forced=int32>` with the row that it must take, or -1 to choose; the output is
    `<client_id,value=R>@SERVER`, R with the client's `choice`.

    Args:
      model: What is trained.
      training: Local hyper-parameters.
      how: Choice and what is shared.
      initial_models: `float32 [K, P]`.
      aggregation: Over `<key=int32,value=float32[P]>`; default `ClusteredMeanFactory(K)`.
      local_test: Whether clients bring test examples and test their own model; so they do with protocol "authors".

    Raises:
      UserError: If a representation is to be shared with an aggregation of one's own, whose weights are not known.
    """
    if how.share_representation and aggregation is not None:
        raise UserError("share_representation needs the weights of the clusters, which an aggregation of one's own may hide")
    client_update = build_choosing_update(model, training, protocol=how.protocol, local_test=local_test)
    _, own_type = client_update.type_signature.parameter
    result_type = client_update.type_signature.result
    factory = aggregation or ClusteredMeanFactory(how.num_clusters)
    aggregator = factory.create(result_type["upload"], result_type["weight"])
    models_type = tff.TensorType(np.float32, [how.num_clusters, model.size])
    measured_type = aggregator.next.type_signature.result.measurements.member
    shared = _shared_size(model) if how.share_representation else 0

    @tff.tensorflow.computation(models_type, aggregator.next.type_signature.result.result.member, measured_type)
    def move(models, differences, measured):
        if shared:
            weight = measured["weight"][:, tf.newaxis]
            common = tf.reduce_sum(weight * differences[:, :shared], 0, keepdims=True)
            common = tf.math.divide_no_nan(common, tf.reduce_sum(weight))
            everyone = tf.tile(common, [tf.shape(differences)[0], 1])
            differences = tf.concat([everyone, differences[:, shared:]], 1)
        return tf.ensure_shape(models + pad_rows(differences, how.num_clusters), models_type.shape)

    @tff.federated_computation
    def initialize():
        models = tff.federated_eval(tff.tensorflow.computation(lambda: tf.constant(initial_models)), tff.SERVER)
        return tff.federated_zip(collections.OrderedDict(models=models, aggregator=aggregator.initialize()))

    @tff.federated_computation(initialize.type_signature.result, tff.FederatedType(own_type, tff.CLIENTS))
    def next_fn(state, clients):
        updated = tff.federated_map(client_update, (tff.federated_broadcast(state["models"]), clients))
        output = aggregator.next(state["aggregator"], updated["upload"], updated["weight"])
        reports = collect(updated["client_id"], updated["report"])
        models = tff.federated_map(move, (state["models"], output.result, output.measurements))
        return tff.federated_zip(collections.OrderedDict(models=models, aggregator=output.state)), reports

    return tff.templates.IterativeProcess(initialize, next_fn, next_is_multi_arg=True)


def build_choosing_update(model: FlatModel, training: LocalTraining, *, protocol: str, local_test: bool) -> tff.Computation:
    """Builds the client's part: choose, train, upload the difference to the chosen model under its row.

    Returns:
      `(<models=float32[?,P], client=<...,forced=int32>> ->
        <upload=<key=int32,value=float32[P]>, weight=float32, client_id=int32, report=R>)`.
    """
    choose_and_train = build_choose_and_train(model, training, protocol=protocol, local_test=local_test)
    own_type = client_type(model, local_test=local_test or protocol == "authors", forced=np.int32)

    @tff.tensorflow.computation(tff.TensorType(np.float32, [None, model.size]), own_type)
    def client_update(models, client):
        start, trained, report = choose_and_train(models, client)
        return collections.OrderedDict(
            upload=collections.OrderedDict(key=report["choice"], value=trained - start),
            weight=tf.where(report["finite"], tf.cast(report["examples"], tf.float32), 0.0),
            client_id=client["client_id"],
            report=report,
        )

    return client_update


def _shared_size(model: FlatModel) -> int:
    """How many leading parameters are not the last layer's."""
    *_, last = model.layer_slices().values()
    return last.start


def draw_models(model: FlatModel, how: IterativeClustering, seed: int) -> np.ndarray:
    """Draws K initial models, `float32 [K, P]`.

    One model is the common initial model, so that IFCA with K = 1 is FedAvg. With a shared representation all have the
    first one's.
    """
    if how.num_clusters == 1 and how.initialization is None:
        return model.initial[np.newaxis]
    seeds = np.random.SeedSequence(seed).generate_state(how.num_clusters)
    models = np.stack([model.draw(int(each), how.initialization) for each in seeds])
    if how.share_representation:
        models[:, : _shared_size(model)] = models[0, : _shared_size(model)]
    return models


def find_attracting(model: FlatModel, how: IterativeClustering, seed: int, choose_row, population: Population) -> np.ndarray:
    """Draws K models until each attracts enough clients (the IFCA authors' `find_good_initializer`).

    Args:
      model: The architecture.
      how: K and the least share.
      seed: Decides the draws.
      choose_row: From `choosing.build_choosing`.
      population: Its first 100 clients, in an order that the seed decides, are asked.

    Raises:
      UserError: If no draw of 200 will do.
    """
    least = how.least_share if how.least_share is not None else 0.4 / how.num_clusters
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.permutation(len(population.client_ids))[:_TRIED_CLIENTS])
    asked = dataclasses.replace(population, client_ids=population.client_ids[rows], sizes=population.sizes[rows])
    best = 0.0
    for draw in range(_MOST_DRAWS):
        models = draw_models(model, how, seed + draw)
        shares = np.bincount(choose_row(models, asked), minlength=how.num_clusters) / len(rows)
        if shares.min() >= least:
            return models
        best = max(best, shares.min())
    raise UserError(
        f"{_MOST_DRAWS} draws gave no {how.num_clusters} models that each attract {least:.3g} of the clients (best: {best:.3g}); "
        "a lower least_share, another start or fewer clusters would do"
    )


def build_ifca(
    model: FlatModel,
    training: LocalTraining,
    clustering: IterativeClustering = IterativeClustering(),
    *,
    seed: int = 0,
    aggregation: tff.aggregators.WeightedAggregationFactory | None = None,
) -> Algorithm:
    """Builds IFCA.

    Models are averaged with the clients' numbers of examples as weights. A client's assignment is what it chose when last
    asked; `choose` asks everyone. Newcomers choose as all others do.

    Args:
      model: What is trained.
      training: Local hyper-parameters.
      clustering: K, start and choice.
      seed: Decides the initial models, and the groups of the warm-up.
      aggregation: Optional factory over keyed updates with K clusters, see `ClusteredMeanFactory`.
    """
    drawn = draw_models(model, clustering, seed)
    process = build_ifca_process(model, training, clustering, drawn, aggregation=aggregation, local_test=True)
    choose_row = build_choosing(model, clustering.protocol)
    sent = build_choosing_update(model, training, protocol=clustering.protocol, local_test=False)
    transfer = Transfer(down=tff.TensorType(np.float32, drawn.shape), up=sent.type_signature.result)

    def initialize(population: Population) -> State:
        start = process.initialize()
        models = start["models"]
        if clustering.start == "attracting" and clustering.num_clusters > 1:
            models = find_attracting(model, clustering, seed, choose_row, population)
        return start_of(population, clustering.protocol, models, start["aggregator"])

    def next_round(state: State, cohort: Cohort):
        clients = len(cohort.client_ids)
        if clustering.num_clusters > clients:
            raise UserError(f"num_clusters is {clustering.num_clusters}; it must be at most the clients of a round, {clients}")
        cohort = cohort_of(cohort, clustering.protocol)
        server = collections.OrderedDict(models=state.models, aggregator=state.aggregator)
        server, reports = process.next(server, cohort_inputs(cohort, forced=_forced(clustering, cohort, seed)))
        chosen = by_client(reports, cohort.client_ids)["choice"]
        metrics = round_metrics(reports, cohort, chosen, transfer)
        assignment = state.assignment.copy()
        assignment[np.searchsorted(state.client_ids, cohort.client_ids)] = chosen
        state = dataclasses.replace(state, models=server["models"], aggregator=server["aggregator"], assignment=assignment)
        return state, metrics

    def computations():
        process = build_ifca_process(model, training, clustering, drawn, aggregation=aggregation)
        return {"initialize": process.initialize, "training": process.next}

    return Algorithm(
        name="ifca",
        initialize=initialize,
        next=next_round,
        computations=computations,
        transfers={"training": transfer},
        summed=None if aggregation is not None or clustering.share_representation else lambda k: build_summed_round(sent, k),
        **whose_clients_choose(choose_row),
    )


def _forced(clustering: IterativeClustering, cohort: Cohort, seed: int) -> np.ndarray:
    """The row that each client of the cohort must take, -1 to choose: random equal groups in the warm-up."""
    clients, number = len(cohort.client_ids), cohort.seed[1]
    if clustering.start != "warm_up" or number > clustering.warm_up_rounds:
        return np.full(clients, CHOOSE_BY_LOSS)
    rng = np.random.default_rng([seed, number])
    return (rng.permutation(clients) % clustering.num_clusters).astype(np.int32)
