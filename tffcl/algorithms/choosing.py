"""Clients that choose among all the server's models: the client's half of IFCA and of FLIS (DC)."""

import collections
import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.collect import collect
from tffcl.algorithms.clustered_training import ClusteredTraining
from tffcl.algorithms.contracts import Cohort, Population, State, check_newcomers, extended, index_of
from tffcl.algorithms.signature_round import in_waves
from tffcl.client_work.choice import build_choose
from tffcl.client_work.examples import stack
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.client_work.update import build_train_and_report
from tffcl.errors import UserError, unknown
from tffcl.models.flat import FlatModel
from tffcl.signatures.signature import sequence_type

PROTOCOLS = ("paper", "authors")
CHOOSE_BY_LOSS = np.int32(-1)  # a client's `forced` row: none, it chooses itself


def criterion_of(protocol: str) -> str:
    """The criterion of a protocol: least loss on training data (paper), or best accuracy on test data (authors' code).

    Raises:
      UserError: If the protocol is unknown.
    """
    if protocol not in PROTOCOLS:
        raise unknown("protocol", protocol, PROTOCOLS)
    return "accuracy" if protocol == "authors" else "loss"


def build_choose_and_train(model: FlatModel, training: LocalTraining, *, protocol: str, local_test: bool):
    """Builds the tf.function of a client that chooses a model and trains it (IFCA Alg. 1 lines 5 to 9; FLIS Alg. 1 lines 9, 10).

    Args:
      model: What is trained.
      training: Hyper-parameters.
      protocol: "paper": the client chooses by loss on its training examples; "authors": by accuracy on its test examples,
        a leak that is there to match published numbers.
      local_test: Whether the client tests its own model after training.

    Returns:
      A tf.function `(models float32[K, P], client) -> (start float32[P], trained float32[P], report)`; the client has a
      field `forced=int32`, the row to take, or -1 to choose; the report is that of `build_train_and_report` and
      `choice=int32`.
    """
    train_and_report = build_train_and_report(model, training, local_test=local_test)
    choose = build_choose(model, criterion_of(protocol))

    @tf.function
    def choose_and_train(models, client):
        tried = stack(client["test_examples" if protocol == "authors" else "examples"])

        def best():
            return choose(models, tried["x"], tried["y"])[0]

        choice = tf.cond(client["forced"] < 0, best, lambda: tf.identity(client["forced"]))
        start = models[choice]
        trained, report = train_and_report(start, client)
        report["choice"] = choice
        return start, trained, report

    return choose_and_train


def build_choice_collection(model: FlatModel, criterion: str) -> tff.Computation:
    """Builds the computation that lets clients choose, without training.

    Returns:
      `(<models=float32[?,P]@SERVER, {<examples=E*,client_id=int32>}@CLIENTS> ->
        <client_id=int32[?],value=int32[?]>@SERVER)`, the rows that they choose.
    """
    choose = build_choose(model, criterion)
    models_type = tff.TensorType(np.float32, [None, model.size])
    client_type = tff.to_type(collections.OrderedDict(examples=sequence_type(model.example_spec), client_id=np.int32))

    @tff.tensorflow.computation(models_type, client_type)
    def choose_one(models, client):
        tried = stack(client["examples"])
        choice, _ = choose(models, tried["x"], tried["y"])
        return collections.OrderedDict(client_id=client["client_id"], choice=choice)

    @tff.federated_computation(tff.FederatedType(models_type, tff.SERVER), tff.FederatedType(client_type, tff.CLIENTS))
    def choosing(models, clients):
        chosen = tff.federated_map(choose_one, (tff.federated_broadcast(models), clients))
        return collect(chosen["client_id"], chosen["choice"])

    return choosing


def build_choosing(model: FlatModel, protocol: str) -> Callable[[np.ndarray, Population], np.ndarray]:
    """Builds `choose(models float32 [K, P], population) -> int32 [N]`: the row that each client of the population chooses."""
    collection = build_choice_collection(model, criterion_of(protocol))

    def choose(models: np.ndarray, population: Population) -> np.ndarray:
        tried = population.test_examples if protocol == "authors" else population.examples
        return in_waves(lambda clients: collection(models, clients), population, tried).astype(np.int32)

    return choose


def whose_clients_choose(choose_row: Callable[[np.ndarray, Population], np.ndarray]) -> dict[str, Callable]:
    """Makes `assign`, `admit` and `choose` of a method whose clients choose among `State.models`.

    Args:
      choose_row: From `build_choosing`.

    Returns:
      Keyword arguments of `contracts.Algorithm`.
    """

    def admit(state: State, newcomers: Population) -> State:
        check_newcomers(state, newcomers)
        return dataclasses.replace(state, **extended(state, newcomers, choose_row(state.models, newcomers)))

    def choose(state: State, population: Population) -> State:
        assignment = state.assignment.copy()
        assignment[index_of(state.client_ids, population.client_ids)] = choose_row(state.models, population)
        return dataclasses.replace(state, assignment=assignment)

    return {"assign": ClusteredTraining.assign, "admit": admit, "choose": choose}


def start_of(population: Population, protocol: str, models: np.ndarray, aggregator) -> State:
    """The state before anyone has chosen: everyone in cluster 0.

    Raises:
      UserError: If a client has no test examples, on which the protocol "authors" chooses.
    """
    if protocol == "authors":
        _check_tests(population)
    return State(population.client_ids, np.zeros(len(population.client_ids), np.int32), models, aggregator, {})


def cohort_of(cohort: Cohort, protocol: str) -> Cohort:
    """The cohort with everyone's test examples if the protocol needs them to choose."""
    if protocol != "authors":
        return cohort
    return dataclasses.replace(cohort, local_test=np.ones(len(cohort.client_ids), bool))


def _check_tests(population: Population):
    for client in population.client_ids:
        if not int(population.test_examples(int(client)).cardinality()):
            raise UserError(
                f"client {client} has no test examples; protocol 'authors' lets clients choose on them, 'paper' does not"
            )
