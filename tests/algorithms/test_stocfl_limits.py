"""What StoCFL becomes at its limits (section 2.4)."""

import dataclasses

import numpy as np
import pytest
from scipy.cluster import hierarchy

from tests.algorithms.test_limits import COHORTS, TRAINING, assert_close, models_of, train
from tffcl.algorithms.contracts import Cohort
from tffcl.algorithms.ditto import PersonalTraining, build_ditto
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.algorithms.fedprox import ProximalTraining, build_fedprox
from tffcl.algorithms.stocfl import StochasticClustering, build_stocfl

# Clients come in two rounds: limits must hold whoever has taken part.
PARTIAL = [(0, 1, 2), (1, 3), (0, 2, 3), (2, 3)]


def everyone_known(state, clients):
    return state.extra["known"].nonzero()[0].tolist() == clients


@pytest.mark.parametrize("cohorts", [COHORTS, PARTIAL], ids=["everyone first", "partial"])
def test_one_cluster_without_the_term_is_fedavg(tff_worker, model, population, cohorts):
    stocfl = build_stocfl(model, TRAINING, StochasticClustering(threshold=-1, proximal_weight=0.0))
    clustered = train(stocfl, population, cohorts)
    averaged = train(build_fedavg(model, TRAINING), population, cohorts)
    assert clustered.models.shape[0] == 2
    assert_close(models_of(stocfl, clustered, population), np.repeat(averaged.models, 5, axis=0))
    assert_close(stocfl.global_model(clustered), averaged.models[0])


@pytest.mark.parametrize("cohorts", [COHORTS, PARTIAL], ids=["everyone first", "partial"])
def test_one_cluster_with_a_proximal_global_objective_is_fedprox(tff_worker, model, population, cohorts):
    """Both models then start alike and are held near the same broadcast: they stay equal to each other and to FedProx."""
    how = StochasticClustering(threshold=-1, proximal_weight=0.7, global_objective="fedprox")
    stocfl, fedprox = build_stocfl(model, TRAINING, how), build_fedprox(model, TRAINING, ProximalTraining(0.7))
    clustered, averaged = train(stocfl, population, cohorts), train(fedprox, population, cohorts)
    assert_close(models_of(stocfl, clustered, population), np.repeat(averaged.models, 5, axis=0))
    assert_close(stocfl.global_model(clustered), averaged.models[0])


def test_one_cluster_as_the_paper_trains_it_is_fedprox_in_the_first_round(tff_worker, model, population):
    """Then the centre is FedAvg's model, which is not the cluster's own last state: section 2.4 speaks of the objective."""
    stocfl = build_stocfl(model, TRAINING, StochasticClustering(threshold=-1, proximal_weight=0.7))
    fedprox = build_fedprox(model, TRAINING, ProximalTraining(0.7))
    first = train(stocfl, population, COHORTS[:1])
    assert_close(first.models[1], train(fedprox, population, COHORTS[:1]).models[0])
    third = train(stocfl, population)
    assert_close(stocfl.global_model(third), train(build_fedavg(model, TRAINING), population).models[0])
    assert np.abs(third.models[1] - train(fedprox, population).models[0]).max() > 1e-3


@pytest.mark.parametrize("cohorts", [COHORTS, PARTIAL], ids=["everyone first", "partial"])
def test_as_many_clusters_as_clients_is_ditto(tff_worker, model, population, cohorts):
    stocfl = build_stocfl(model, TRAINING, StochasticClustering(threshold=1, proximal_weight=0.7))
    ditto = build_ditto(model, TRAINING, PersonalTraining(0.7))
    clustered, personal = train(stocfl, population, cohorts), train(ditto, population, cohorts)
    assert sorted(clustered.assignment) == [0, 1, 2, 3, 4]
    assert_close(models_of(stocfl, clustered, population), models_of(ditto, personal, population))
    assert_close(stocfl.global_model(clustered), ditto.global_model(personal))
    met = sorted({client for cohort in cohorts for client in cohort})
    assert everyone_known(clustered, met)
    assert len(clustered.models) == 1 + len(met)


def test_everyone_in_the_first_round_is_agglomerative_clustering(tff_worker, model, digit_clients):
    """SciPy's single linkage of the signatures, cut at the cosine τ, for every number of clusters that there can be."""
    population = digit_clients([60] * 8, turns=[0, 1, 2, 0, 1, 2, 3, 3])
    quick = dataclasses.replace(TRAINING, epochs=1, batch_size=0)
    algorithm = build_stocfl(model, quick, StochasticClustering(threshold=1))
    whole = algorithm.next(algorithm.initialize(population), Cohort(population, np.arange(8), (7, 1)))[0]
    merges = hierarchy.linkage(whole.extra["signatures"].astype(float), "single", "cosine")
    heights = np.concatenate([[0], merges[:, 2], [2]])
    counts = []
    for cut in (heights[:-1] + heights[1:]) / 2:
        stocfl = build_stocfl(model, quick, StochasticClustering(threshold=1 - cut))
        state, _ = stocfl.next(stocfl.initialize(population), Cohort(population, np.arange(8), (7, 1)))
        expected = hierarchy.fcluster(merges, cut, "distance")
        pairs = set(zip(state.assignment.tolist(), expected.tolist()))
        assert len(pairs) == len(set(state.assignment)) == len(set(expected))
        counts.append(len(pairs))
    assert counts == [8, 7, 6, 5, 4, 3, 2, 1]
