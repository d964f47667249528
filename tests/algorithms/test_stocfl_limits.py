"""What StoCFL becomes at its limits (section 2.4)."""

import dataclasses

import numpy as np
import pytest
from scipy.cluster import hierarchy

from tests.algorithms.conftest import PULL
from tests.short_runs import COHORTS, TRAINING, assert_close, cohort_of, models_of, train
from tffcl.algorithms.each_round_parameters import StoCFLParameters
from tffcl.algorithms.stocfl import build_stocfl

# Clients come in two rounds: limits must hold whoever has taken part.
PARTIAL = ((0, 1, 2), (1, 3), (0, 2, 3), (2, 3))
FIRST = pytest.mark.parametrize(
    "cohorts", [pytest.param(COHORTS, marks=pytest.mark.slow), PARTIAL], ids=["everyone first", "partial"]
)


@FIRST
def test_one_cluster_without_the_term_is_fedavg(tff_worker, model, population, reference, cohorts):
    stocfl = build_stocfl(model, TRAINING, StoCFLParameters(threshold=-1, proximal_weight=0.0))
    clustered = train(stocfl, population, cohorts)
    _, averaged = reference("fedavg", cohorts)
    assert clustered.models.shape[0] == 2
    assert_close(models_of(stocfl, clustered, population), averaged)
    assert_close(stocfl.views(clustered).global_model, averaged[0])


@pytest.mark.slow
@FIRST
def test_one_cluster_with_a_proximal_global_objective_is_fedprox(tff_worker, model, population, reference, cohorts):
    """Both models then start alike and are held near the same broadcast: they stay equal to each other and
    to FedProx.
    """
    how = StoCFLParameters(threshold=-1, proximal_weight=PULL, global_objective="fedprox")
    stocfl = build_stocfl(model, TRAINING, how)
    clustered, (_, averaged) = train(stocfl, population, cohorts), reference("fedprox", cohorts)
    assert_close(models_of(stocfl, clustered, population), averaged)
    assert_close(stocfl.views(clustered).global_model, averaged[0])


@pytest.mark.slow
def test_one_cluster_as_the_paper_trains_it_is_fedprox_in_the_first_round(tff_worker, model, population, reference):
    """Then the centre is FedAvg's model, which is not the cluster's own last state: section 2.4 speaks of the
    objective.
    """
    stocfl = build_stocfl(model, TRAINING, StoCFLParameters(threshold=-1, proximal_weight=PULL))
    first = train(stocfl, population, COHORTS[:1])
    assert_close(first.models[1], reference("fedprox", COHORTS[:1])[1][0])
    third = train(stocfl, population)
    assert_close(stocfl.views(third).global_model, reference("fedavg")[1][0])
    assert np.abs(third.models[1] - reference("fedprox")[1][0]).max() > 1e-3


@FIRST
def test_as_many_clusters_as_clients_is_ditto(tff_worker, model, population, reference, cohorts):
    stocfl = build_stocfl(model, TRAINING, StoCFLParameters(threshold=1, proximal_weight=PULL))
    clustered, (views, personal) = train(stocfl, population, cohorts), reference("ditto", cohorts)
    assert sorted(clustered.assignment) == [0, 1, 2, 3, 4]
    assert_close(models_of(stocfl, clustered, population), personal)
    assert_close(stocfl.views(clustered).global_model, views.global_model)
    met = sorted({client for cohort in cohorts for client in cohort})
    assert clustered.known.mask.nonzero()[0].tolist() == met
    assert len(clustered.models) == 1 + len(met)


@pytest.mark.slow  # as of the rule alone, in clustering/test_stochastic
def test_everyone_in_the_first_round_is_agglomerative_clustering(tff_worker, model, digit_clients):
    """SciPy's single linkage of the signatures, cut at the cosine τ, for some numbers of clusters."""
    population = digit_clients([60] * 8, turns=[0, 1, 2, 0, 1, 2, 3, 3])
    quick = dataclasses.replace(TRAINING, epochs=1, batch_size=0)

    def after_one_round(threshold):
        stocfl = build_stocfl(model, quick, StoCFLParameters(threshold=threshold))
        return stocfl.next(stocfl.initialize(population), cohort_of(population, np.arange(8), 1))[0]

    merges = hierarchy.linkage(after_one_round(1).known.signatures.astype(float), "single", "cosine")
    heights = np.concatenate([[0], merges[:, 2], [2]])
    counts = []
    for cut in ((heights[:-1] + heights[1:]) / 2)[1::3]:
        state = after_one_round(1 - cut)
        expected = hierarchy.fcluster(merges, cut, "distance")
        pairs = set(zip(state.assignment.tolist(), expected.tolist()))
        assert len(pairs) == len(set(state.assignment)) == len(set(expected))
        counts.append(len(pairs))
    assert counts == [7, 4, 1]
