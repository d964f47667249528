"""Training in which every client gets its own mix of the cohort's models (FLT Alg. 3, case I)."""

import collections
import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.collect import collect
from tffcl.aggregators.relatedness_mean import RelatednessMeanFactory
from tffcl.algorithms.clustered_training import cohort_inputs, round_metrics
from tffcl.algorithms.contracts import Cohort, RoundMetrics, State, Transfer, index_of
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.client_work.update import FLAG, build_train_and_report, client_type
from tffcl.errors import unknown
from tffcl.models.flat import FlatModel

MIXES = {
    "cohort": "clients that take part get a mix, the others keep their model",
    "everyone": "clients that are related to someone who takes part get a mix too",
    "stored": "everyone gets a mix of all relatives' models, of those who do not take part the model that they have",
}


def build_related_update(
    model: FlatModel, training: LocalTraining, *, local_test: bool, flags: bool = False
) -> tff.Computation:
    """Builds the client's part: train the own model, upload it under the own place in the cohort.

    With `flags` it also tells whether its data have changed.

    Returns:
      `(<model=float32[P], client=<...,row=int32,key=int32>> ->
        <upload=<key=int32,value=float32[P]>, weight=float32, client_id=int32, report=R>)`.
    """
    train_and_report = build_train_and_report(model, training, local_test=local_test)
    own_type = client_type(model, local_test=local_test, row=np.int32, key=np.int32, **(FLAG if flags else {}))

    @tff.tensorflow.computation(tff.TensorType(np.float32, [model.size]), own_type)
    def client_update(vector, client):
        trained, report = train_and_report(vector, client)
        return collections.OrderedDict(
            upload=collections.OrderedDict(key=client["key"], value=trained),
            weight=tf.where(report["finite"], tf.cast(report["examples"], tf.float32), 0.0),
            client_id=client["client_id"],
            report=report,
        )

    return client_update


def build_related_process(
    model: FlatModel, training: LocalTraining, *, local_test: bool = False, flags: bool = False
) -> tff.templates.IterativeProcess:
    """Builds one round of training with a relatedness matrix as one TFF computation.

    The state is `<models=float32[?,P],aggregator=float32[?,?]>@SERVER`: different models, and the relatedness of this round,
    a row for each mix that is asked for and a column for each client of the cohort. A client is `<examples=E*,
    client_id=int32,seed=int32[2],row=int32,key=int32>`: the row of its model, and its column. The mixes replace the models;
    the output is `<client_id,value=R>@SERVER`, R as in `client_work.update.build_train_and_report`.

    Args:
      model: What is trained.
      training: Local hyper-parameters.
      local_test: Whether clients bring test examples and test their own model after training.
      flags: Whether clients tell that their data have changed (`changed=int32` in their input and their report).
    """
    client_update = build_related_update(model, training, local_test=local_test, flags=flags)
    _, own_type = client_update.type_signature.parameter
    result_type = client_update.type_signature.result
    aggregator = RelatednessMeanFactory().create(result_type["upload"], result_type["weight"])
    models_type = tff.TensorType(np.float32, [None, model.size])

    @tff.tensorflow.computation(models_type, own_type)
    def gather_and_update(models, client):
        return client_update(models[client["row"]], client)

    @tff.tensorflow.computation
    def initial_models():
        return tf.compat.v1.placeholder_with_default(model.initial[np.newaxis], models_type.shape)

    @tff.federated_computation
    def initialize():
        models = tff.federated_eval(initial_models, tff.SERVER)
        return tff.federated_zip(collections.OrderedDict(models=models, aggregator=aggregator.initialize()))

    @tff.federated_computation(initialize.type_signature.result, tff.FederatedType(own_type, tff.CLIENTS))
    def next_fn(state, clients):
        updated = tff.federated_map(gather_and_update, (tff.federated_broadcast(state["models"]), clients))
        output = aggregator.next(state["aggregator"], updated["upload"], updated["weight"])
        reports = collect(updated["client_id"], updated["report"])
        return tff.federated_zip(collections.OrderedDict(models=output.result, aggregator=output.state)), reports

    return tff.templates.IterativeProcess(initialize, next_fn, next_is_multi_arg=True)


@dataclasses.dataclass(frozen=True, eq=False)
class RelatedTraining:
    """Rounds on a `State` with `extra["relatedness"] [N, N]` and `extra["rows"] int32 [N]`, whose model is which row.

    Clients with the same model share a row: no model is stored twice, and none that nobody has.

    Attributes:
      process: From `build_related_process` with `local_test=True`.
      transfer: What a client receives and sends.
      mixes: A name in `MIXES`. What "stored" adds is added on the server in Python, from models that it has; the process is the
        same, and so is what is exported.
      flags: `(State, Cohort) -> int32 [m]`, the clients' flags of change, for a process that takes them; else None.
    """

    process: tff.templates.IterativeProcess
    transfer: Transfer
    mixes: str
    flags: Callable[[State, Cohort], np.ndarray] | None = None

    def initial_aggregator_state(self):
        return self.process.initialize()["aggregator"]

    def next(self, state: State, cohort: Cohort) -> tuple[State, RoundMetrics]:
        """One round; see `Algorithm.next`."""
        where = index_of(state.client_ids, cohort.client_ids)
        everything = np.asarray(state.extra["relatedness"], np.float32)
        relatedness = everything[:, where]
        counted = everything if self.mixes == "stored" else relatedness
        mixed = where if self.mixes == "cohort" else np.flatnonzero(counted.sum(axis=1) > 0)
        _, first, mix_of = np.unique(counted[mixed], axis=0, return_index=True, return_inverse=True)
        asked = relatedness[mixed[first]]
        used, rows = np.unique(state.extra["rows"][where], return_inverse=True)
        server = collections.OrderedDict(models=state.models[used], aggregator=asked)
        places = np.arange(len(where), dtype=np.int32)
        flags = {"changed": self.flags(state, cohort)} if self.flags else {}
        server, reports = self.process.next(server, cohort_inputs(cohort, row=rows.astype(np.int32), key=places, **flags))
        metrics = round_metrics(reports, cohort, state.assignment[where], self.transfer)
        mixes = server["models"]
        if self.mixes == "stored":
            sizes = cohort.population.sizes[cohort.population.index(state.client_ids)]
            mixes = _with_stored(mixes, everything[mixed[first]] * sizes, where, state)
        everyone = state.extra["rows"].copy()
        everyone[mixed] = len(state.models) + mix_of
        models, everyone = _kept(state.models, mixes, everyone)
        metrics = dataclasses.replace(metrics, relatedness=relatedness[where])
        return dataclasses.replace(state, models=models, extra={**state.extra, "rows": everyone}), metrics

    @staticmethod
    def assign(state: State, client_ids) -> tuple[np.ndarray, np.ndarray]:
        """See `Algorithm.assign`."""
        return state.models, state.extra["rows"][index_of(state.client_ids, client_ids)]


def _with_stored(mixes: np.ndarray, shares: np.ndarray, where: np.ndarray, state: State) -> np.ndarray:
    """Adds the models of those who did not take part to the mixes of the cohort (FLT Alg. 3 line 17 as printed: W̄ has all).

    Args:
      mixes: `float32 [r, P]`, means over the cohort.
      shares: `[r, N]`, relatedness times number of examples.
      where: `[m]`, the cohort's columns.
      state: From before the round.

    Returns:
      `float32 [r, P]`, the means over all clients.
    """
    absent = np.delete(np.arange(shares.shape[1]), where)
    of_models = np.zeros((len(state.models), len(mixes)), np.float32)
    np.add.at(of_models, state.extra["rows"][absent], shares[:, absent].T)
    of_cohort, total = shares[:, where].sum(axis=1, keepdims=True), shares.sum(axis=1, keepdims=True)
    return ((of_cohort * mixes + of_models.T @ state.models) / total).astype(np.float32)


def _kept(models: np.ndarray, new: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Only the models that somebody has, and everyone's row among them; `rows` counts `models` first, then `new`."""
    used, renumbered = np.unique(rows, return_inverse=True)
    old = used < len(models)
    # Not the two joined and then picked from: with a model for each of many clients that is gigabytes more. Mode "clip",
    # because "raise" makes a copy of its own.
    kept = np.empty((len(used), models.shape[1]), np.float32)
    np.take(models, used[old], axis=0, out=kept[: old.sum()], mode="clip")
    np.take(new, used[~old] - len(models), axis=0, out=kept[old.sum() :], mode="clip")
    return kept, renumbered.astype(np.int32)


def build_related_training(model: FlatModel, training: LocalTraining, mixes: str = "cohort", flags=None) -> RelatedTraining:
    """Builds the rounds of FLT's case I; `mixes` is a name in `MIXES`, flags as in `RelatedTraining`."""
    asks = flags is not None
    if mixes not in MIXES:
        raise unknown("mixes", mixes, MIXES)
    sent = build_related_update(model, training, local_test=False, flags=asks).type_signature
    process = build_related_process(model, training, local_test=True, flags=asks)
    return RelatedTraining(process, Transfer(down=sent.parameter[0], up=sent.result), mixes, flags)
