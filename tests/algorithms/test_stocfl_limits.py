"""What StoCFL becomes at its limits (section 2.4)."""

import numpy as np
import pytest

from tests.algorithms.conftest import PULL
from tests.short_runs import COHORTS, TRAINING, assert_close, models_of, train
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
