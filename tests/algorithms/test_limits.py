"""What the methods become at their limits, and FedAvg against TFF's own."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.short_runs import COHORTS, TRAINING, assert_close, cohort_of, learned_by_tff, models_of, train
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.algorithms.parameters import PACFLParameters
from tffcl.algorithms.presets import build_pacfl
from tffcl.clients.cohort import Cohort


def test_training_moves_the_models(tff_worker, model, reference):
    _, models = reference("fedavg")
    assert np.abs(models - model.initial).max(axis=1).min() > 0.05


def test_pacfl_with_one_cluster_is_fedavg(tff_worker, model, population, reference):
    pacfl = build_pacfl(model, TRAINING, PACFLParameters(num_clusters=1))
    clustered = train(pacfl, population)
    assert clustered.models.shape[0] == 1
    assert_close(models_of(pacfl, clustered, population), reference("fedavg")[1])


def test_pacfl_with_as_many_clusters_as_clients_is_solo(tff_worker, model, population, reference):
    pacfl = build_pacfl(model, TRAINING, PACFLParameters(num_clusters=5))
    clustered = train(pacfl, population)
    assert sorted(clustered.assignment) == [0, 1, 2, 3, 4]
    assert_close(models_of(pacfl, clustered, population), reference("solo")[1])


def test_a_cluster_that_nobody_of_the_cohort_belongs_to_keeps_its_model(tff_worker, model, population):
    pacfl = build_pacfl(model, TRAINING, PACFLParameters(num_clusters=3))
    before = train(pacfl, population, COHORTS[:1])
    absent = before.assignment[0]
    others = population.client_ids[before.assignment != absent]
    after, _ = pacfl.next(before, cohort_of(population, others, 2))
    np.testing.assert_array_equal(after.models[absent], before.models[absent])
    changed = np.abs(after.models - before.models).max(axis=1) > 0
    assert changed.sum() == 2


@pytest.mark.slow  # as with an optimizer of the server, in test_server_optimizer
def test_fedavg_is_tff_learnings_fedavg(tff_worker, model, population, reference):
    """The same batches in the same order give the same model as `build_weighted_fed_avg`."""
    process = tff.learning.algorithms.build_weighted_fed_avg(
        model.functional,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(TRAINING.learning_rate, TRAINING.momentum),
        server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
    )
    assert_close(reference("fedavg")[1][0], learned_by_tff(process, model, population))


def test_the_same_seed_gives_the_same_models_and_another_gives_others(tff_worker, model, population):
    method = build_fedavg(model, TRAINING)
    state = method.initialize(population)
    by_seed = {}
    for seed in ((1, 1), (2, 1), (1, 2)):
        by_seed[seed] = method.next(state, Cohort(population, np.array([0, 3]), seed))[0].models
    np.testing.assert_array_equal(
        by_seed[1, 1], method.next(state, Cohort(population, np.array([0, 3]), (1, 1)))[0].models
    )
    assert np.abs(by_seed[1, 1] - by_seed[2, 1]).max() > 1e-6
    assert np.abs(by_seed[1, 1] - by_seed[1, 2]).max() > 1e-6
