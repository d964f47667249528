"""The engine of every method with hard clusters: clients train their cluster's model, one mean per cluster."""

import collections
import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.clustered_mean import ClusteredMeanFactory, pad_rows
from tffcl.aggregators.collect import by_client, collect
from tffcl.algorithms.contracts import Cohort, RoundMetrics, State, Transfer, none_of
from tffcl.algorithms.summed_training import build_summed_round
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.client_work.update import build_client_update
from tffcl.errors import UserError, unknown
from tffcl.models.flat import FlatModel

DISTRIBUTIONS = ("broadcast", "select")


def build_training_process(
    model: FlatModel,
    training: LocalTraining,
    *,
    aggregation: tff.aggregators.WeightedAggregationFactory | None = None,
    distribution: str = "broadcast",
    local_test: bool = False,
    flags: bool = False,
) -> tff.templates.IterativeProcess:
    """Builds one round of clustered training (PACFL Alg. 1 lines 17 to 25) as a TFF process.

    `initialize`: `( -> <models=float32[?,P],aggregator=A>@SERVER)` with the model's initial weights as the only row;
    `next`: `(<state=S@SERVER, clients={<examples=E*,client_id=int32,seed=int32[2],key=int32>}@CLIENTS> ->
             <S@SERVER, <client_id=int32[?],value=R[?]>@SERVER>)`, R as in `client_work.update.build_train_and_report`.
    Row `key` of the state's models is what a client receives and what its upload moves: `models[k]` becomes
    `models[k]` plus the weighted mean of the differences of the clients with key k.

    A deployed client gets its own row only. `distribution="select"` says just that (`tff.federated_select`);
    "broadcast" hands all rows to every client computation, which gathers its own: the same result, faster in simulation
    (nothing is copied per client), and the form that TFF's MapReduceForm accepts. Traffic is counted as for "select".

    Args:
      model: What is trained.
      training: Local hyper-parameters.
      aggregation: Over `<key=int32,value=float32[P]>` with float32 weights; default `ClusteredMeanFactory()`.
      distribution: "broadcast" or "select".
      local_test: Whether clients bring test examples and test their own model after training.
      flags: Whether clients tell that their data have changed (`changed=int32` in their input and their report).

    Raises:
      UserError: If the distribution is unknown.
    """
    if distribution not in DISTRIBUTIONS:
        raise unknown("distribution", distribution, DISTRIBUTIONS)
    client_update = build_client_update(model, training, local_test=local_test, flags=flags)
    model_type, input_type = client_update.type_signature.parameter
    upload_type = client_update.type_signature.result["upload"]
    weight_type = client_update.type_signature.result["weight"]
    aggregator = (aggregation or ClusteredMeanFactory()).create(upload_type, weight_type)
    models_type = tff.TensorType(np.float32, [None, model.size])

    @tff.tensorflow.computation
    def initial_models():
        # One row, of a type that lets later rounds have more.
        return tf.compat.v1.placeholder_with_default(model.initial[np.newaxis], models_type.shape)

    @tff.federated_computation
    def initialize():
        return tff.federated_zip(
            collections.OrderedDict(models=tff.federated_eval(initial_models, tff.SERVER), aggregator=aggregator.initialize())
        )

    @tff.tensorflow.computation(models_type, aggregator.next.type_signature.result.result.member)
    def move(models, differences):
        return models + pad_rows(differences, tf.shape(models)[0])

    distribute = _build_distribution(distribution, model_type, models_type, input_type, client_update)
    clients_type = tff.FederatedType(input_type, tff.CLIENTS)

    @tff.federated_computation(initialize.type_signature.result, clients_type)
    def next_fn(state, clients):
        # Server to clients, client computation.
        updated = distribute(state["models"], clients)
        # Aggregation.
        output = aggregator.next(state["aggregator"], updated["upload"], updated["weight"])
        reports = collect(updated["client_id"], updated["report"])
        # Server computation.
        models = tff.federated_map(move, (state["models"], output.result))
        state = tff.federated_zip(collections.OrderedDict(models=models, aggregator=output.state))
        return state, reports

    return tff.templates.IterativeProcess(initialize, next_fn, next_is_multi_arg=True)


def _build_distribution(distribution, model_type, models_type, input_type, client_update):
    """Returns the function that gives each client its row and runs the client computation."""

    @tff.tensorflow.computation(models_type, input_type)
    def gather_and_update(models, client):
        return client_update(models[client["key"]], client)

    @tff.tensorflow.computation(models_type, np.int32)
    def select_row(models, key):
        return models[key]

    @tff.tensorflow.computation(tff.SequenceType(model_type), input_type)
    def update_selected(rows, client):
        return client_update(rows.reduce(tf.zeros(model_type.shape), lambda _, row: row), client)

    @tff.tensorflow.computation(input_type)
    def own_key(client):
        return tf.reshape(client["key"], [1])

    @tff.tensorflow.computation(models_type)
    def count_rows(models):
        return tf.shape(models)[0]

    def broadcast(models, clients):
        return tff.federated_map(gather_and_update, (tff.federated_broadcast(models), clients))

    def select(models, clients):
        keys, rows = tff.federated_map(own_key, clients), tff.federated_map(count_rows, models)
        selected = tff.federated_select(keys, rows, models, select_row)
        return tff.federated_map(update_selected, (selected, clients))

    return broadcast if distribution == "broadcast" else select


def training_transfer(model: FlatModel, training: LocalTraining, *, flags: bool = False) -> Transfer:
    """What a client of a clustered round receives (its row) and sends (difference, key, weight, ID, report)."""
    signature = build_client_update(model, training, local_test=False, flags=flags).type_signature
    return Transfer(down=signature.parameter[0], up=signature.result)


def build_summed_training(model: FlatModel, training: LocalTraining, aggregation=None, *, flags: bool = False):
    """Builds `Algorithm.summed` of a method on this engine; None with an aggregation of the user's own."""
    if aggregation is not None:
        return None
    return lambda clusters: build_summed_round(build_client_update(model, training, local_test=False, flags=flags), clusters)


def cohort_inputs(cohort: Cohort, **own) -> list:
    """The clients' inputs of a round, largest client first, so that no core waits at the end for a large one.

    Args:
      cohort: Who takes part.
      **own: Further fields, name to a value per client in the cohort's order.

    Returns:
      A list of structures as in `client_work.update.client_type` with test examples.
    """
    population = cohort.population
    order = np.argsort(-population.sizes[population.index(cohort.client_ids)], kind="stable")
    tested = cohort.local_test if cohort.local_test is not None else np.zeros(len(cohort.client_ids), bool)
    inputs = []
    for i in order:
        client = int(cohort.client_ids[i])
        test = population.test_examples(client)
        fields = collections.OrderedDict(
            examples=population.examples(client),
            test_examples=test if tested[i] else none_of(test),
            client_id=np.int32(client),
            seed=cohort.client_seed(client),
        )
        fields.update((name, values[i]) for name, values in own.items())
        inputs.append(fields)
    return inputs


def round_metrics(reports, cohort: Cohort, clusters, transfer: Transfer) -> RoundMetrics:
    """Turns collected reports into `RoundMetrics`.

    Raises:
      UserError: If a client's trained model is not finite.
    """
    value = by_client(reports, cohort.client_ids)
    if not np.all(value["finite"]):
        bad = np.flatnonzero(~value["finite"])[0]
        raise UserError(
            f"client {cohort.client_ids[bad]} trained a model that is not finite (loss {value['loss'][bad]:g}) in round "
            f"{cohort.seed[1]}; a lower learning_rate or momentum helps, or its data holds NaN"
        )
    return RoundMetrics(
        client_ids=np.asarray(cohort.client_ids, np.int32),
        clusters=np.asarray(clusters, np.int32),
        examples=value["examples"],
        losses=value["loss"],
        test_correct=value["test_correct"],
        test_examples=value["test_examples"],
        down_bytes=transfer.down_bytes * len(cohort.client_ids),
        up_bytes=transfer.up_bytes * len(cohort.client_ids),
        changed=value["changed"].astype(bool) if "changed" in value else None,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class ClusteredTraining:
    """Rounds of clustered training on a `State` whose `assignment` says which row of `models` a client trains.

    Attributes:
      process: From `build_training_process` with `local_test=True`.
      transfer: What a client receives and sends.
      compact: Whether only the rows that the cohort trains are sent to the runtime; not with aggregations that have a
        fixed number of clusters.
      flags: `(State, Cohort) -> int32 [m]`, the clients' flags of change, for a process that takes them; else None.
    """

    process: tff.templates.IterativeProcess
    transfer: Transfer
    compact: bool
    flags: Callable[[State, Cohort], np.ndarray] | None = None

    def initial_aggregator_state(self):
        return self.process.initialize()["aggregator"]

    def next(self, state: State, cohort: Cohort) -> tuple[State, RoundMetrics]:
        """One round; see `Algorithm.next`."""
        clusters = state.clusters(cohort.client_ids)
        rows, keys = np.unique(clusters, return_inverse=True) if self.compact else (np.arange(len(state.models)), clusters)
        server = collections.OrderedDict(models=state.models[rows], aggregator=state.aggregator)
        flags = {"changed": self.flags(state, cohort)} if self.flags else {}
        server, reports = self.process.next(server, cohort_inputs(cohort, key=keys.astype(np.int32), **flags))
        metrics = round_metrics(reports, cohort, clusters, self.transfer)
        models = state.models.copy()
        models[rows] = server["models"]
        return dataclasses.replace(state, models=models, aggregator=server["aggregator"]), metrics

    @staticmethod
    def assign(state: State, client_ids) -> tuple[np.ndarray, np.ndarray]:
        """See `Algorithm.assign`."""
        return state.models, state.clusters(client_ids)


def build_clustered_training(
    model: FlatModel, training: LocalTraining, *, aggregation=None, distribution: str = "broadcast", flags=None
) -> ClusteredTraining:
    """Builds the engine; arguments as in `build_training_process`, flags as in `ClusteredTraining`."""
    asks = flags is not None
    process = build_training_process(
        model, training, aggregation=aggregation, distribution=distribution, local_test=True, flags=asks
    )
    return ClusteredTraining(process, training_transfer(model, training, flags=asks), aggregation is None, flags)
