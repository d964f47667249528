"""A server that steps by an optimizer, against `tff.learning`; a cluster that nobody trained does not step."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.short_runs import COHORTS, TRAINING, assert_close, cohort_of, learned_by_tff, train
from tffcl.aggregators.clustered_mean import ClusteredMeanFactory
from tffcl.algorithms.clustered_training import build_clustered_training
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.algorithms.method import ClusteredState
from tffcl.client_work.local_sgd import ScheduledOptimizer
from tffcl.client_work.local_training import LearningRateDecay
from tffcl.errors import Diverged, UserError
from tffcl.rounds.server import initial_optimizer_state, keyed_server
from tffcl.rounds.simulation import run_round

MOMENTUM = tff.learning.optimizers.build_sgdm(1.0, 0.9)
GROUPS = np.array([0, 1, 0, 1, 1], np.int32)


@pytest.fixture(scope="module")
def engine(model):
    return build_clustered_training(model, TRAINING, optimizer=MOMENTUM)


@pytest.mark.slow
@pytest.mark.parametrize(
    "optimizer", [MOMENTUM, tff.learning.optimizers.build_adam(0.01, epsilon=1e-3)], ids=["momentum", "adam"]
)
def test_fedavg_is_tff_learnings_with_the_same_server_optimizer(tff_worker, model, population, optimizer):
    process = tff.learning.algorithms.build_weighted_fed_avg(
        model.functional,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(TRAINING.learning_rate, TRAINING.momentum),
        server_optimizer_fn=optimizer,
    )
    method = build_fedavg(model, TRAINING, optimizer=optimizer)
    cohorts = COHORTS[1:]
    found = train(method, population, cohorts).models[0]
    assert_close(found, learned_by_tff(process, model, population, cohorts))
    assert np.abs(found - model.initial).max() > 1e-2


def optimizer_of(state, row):
    return tf.nest.map_structure(lambda leaf: np.asarray(leaf)[row], dict(state["optimizer"]))


def assert_same(first, second):
    tf.nest.map_structure(np.testing.assert_array_equal, first, second)


@pytest.mark.slow
def test_an_empty_cluster_does_not_step_though_it_has_momentum(tff_worker, engine, population):
    """In a round that has the models of both clusters, of which one has no client."""
    state = train(engine, population, COHORTS[:1], state=ClusteredState(**engine.start(population, GROUPS)))
    before = {"models": state.models, **state.server}
    velocity = optimizer_of(before, 1)["accumulator"]
    assert np.abs(velocity).max() > 1e-3
    keys = np.zeros(2, np.int32)
    after = run_round(engine.round, cohort_of(population, [0, 2], 2), before, state.aggregators, key=keys).values
    np.testing.assert_array_equal(after["models"][1], before["models"][1])
    assert_same(optimizer_of(after, 1), optimizer_of(before, 1))
    assert np.abs(after["models"][0] - before["models"][0]).max() > 1e-3
    assert np.abs(optimizer_of(after, 0)["accumulator"] - optimizer_of(before, 0)["accumulator"]).max() > 1e-3


@pytest.mark.parametrize("aggregation", [None, ClusteredMeanFactory(2)], ids=["present clusters", "all clusters"])
def test_each_cluster_steps_as_if_it_were_alone(tff_worker, model, population, engine, aggregation):
    """Two clusters are two FedAvgs, each of which has its rounds without the other's clients."""
    if aggregation is not None:
        engine = build_clustered_training(model, TRAINING, aggregation=aggregation, optimizer=MOMENTUM)
    cohorts = ((0, 1, 2, 3), (0, 2), (1, 2, 4))
    both = train(engine, population, cohorts, state=ClusteredState(**engine.start(population, GROUPS)))
    fedavg = build_fedavg(model, TRAINING, optimizer=MOMENTUM)
    for cluster in (0, 1):
        state = fedavg.initialize(population)
        for number, clients in enumerate(cohorts, 1):
            members = [client for client in clients if GROUPS[client] == cluster]
            if members:
                state, _ = fedavg.next(state, cohort_of(population, members, number))
        assert_close(both.models[cluster], state.models[0])
        tf.nest.map_structure(assert_close, optimizer_of(both.server, cluster), optimizer_of(state.server, 0))


def test_clusters_that_are_founded_later_start_with_a_fresh_optimizer(tff_worker, engine, model, population):
    state = train(engine, population, COHORTS[:1], state=ClusteredState(**engine.start(population, GROUPS)))
    grown = engine.grown(state, 2)
    np.testing.assert_array_equal(grown["models"], [*state.models, model.initial, model.initial])
    for row in (0, 1):
        assert_same(optimizer_of(grown["server"], row), optimizer_of(state.server, row))
        assert not optimizer_of(grown["server"], 2 + row)["accumulator"].any()


@pytest.mark.slow
def test_statistics_move_by_the_mean_and_not_by_the_optimizer():
    """Here the second of two numbers."""
    half = tff.learning.optimizers.build_sgdm(0.5)
    server = keyed_server(2, optimizer=half, on_trained=lambda new, other: tf.stack([new[0], other[1]]))
    state = {"models": tf.constant([[1.0, 1.0]]), "optimizer": initial_optimizer_state(half, 2, 1)}
    after = server.step(state, {"update": tf.constant([[4.0, 4.0]])}, {})
    np.testing.assert_allclose(after["models"], [[3.0, 5.0]])


def test_a_step_of_the_server_that_leaves_no_finite_model_is_told_in_its_round(tff_worker, model, population):
    """The next round's clients could do nothing for it, and after the last nobody would know."""
    method = build_fedavg(model, TRAINING, optimizer=tff.learning.optimizers.build_sgdm(float("inf")))
    with pytest.raises(Diverged, match="models of round 1 are finite, and what the server's optimizer made of them is"):
        train(method, population, COHORTS[:1])


def test_another_optimizer_than_tffs_is_refused(model):
    for given in (tf.keras.optimizers.Adam(), lambda: tf.keras.optimizers.Adam(), "adam"):
        message = f"optimizer is of {type(given).__name__}; it must be one of tff.learning.optimizers"
        for aggregation in (None, tff.learning.robust_aggregator()):
            with pytest.raises(UserError, match=message):
                build_fedavg(model, TRAINING, optimizer=given, aggregation=aggregation)
        with pytest.raises(UserError, match=message):
            ScheduledOptimizer(given, LearningRateDecay(0.9))
