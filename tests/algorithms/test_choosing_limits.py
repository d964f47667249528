"""What FLIS and IFCA become at their limits."""

import numpy as np
import pytest

from tests.algorithms.test_limits import COHORTS, TRAINING, assert_close, models_of, train
from tffcl.algorithms.contracts import Cohort
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.algorithms.flis_dc import JointClustering, build_flis_dc
from tffcl.algorithms.flis_hc import InferenceClustering, build_flis_hc
from tffcl.algorithms.ifca import IterativeClustering, build_ifca
from tffcl.algorithms.solo import build_solo


@pytest.fixture(scope="module")
def images(digits):
    return digits[0][600:700]


@pytest.mark.parametrize("answered_by", ["clients", "server"])
@pytest.mark.parametrize("similarity", ["agreement", "frobenius"])
def test_flis_dc_with_beta_0_is_fedavg(tff_worker, model, population, images, answered_by, similarity):
    how = JointClustering(beta=0.0, answered_by=answered_by, similarity=similarity)
    joint = train(build_flis_dc(model, TRAINING, how, server_images=images), population)
    averaged = train(build_fedavg(model, TRAINING), population)
    assert len(joint.models) == 1
    assert_close(joint.models, averaged.models)


def test_flis_dc_with_beta_above_every_similarity_is_every_client_alone(tff_worker, model, digit_clients, images):
    """Clients whose digits are turned differently: each finds its own model again in every round."""
    population = digit_clients([31, 40, 25, 50], [0, 1, 2, 3])
    everyone = [(0, 1, 2, 3)] * 3
    joint = build_flis_dc(model, TRAINING, JointClustering(beta=1.0), server_images=images)
    state = joint.choose(train(joint, population, everyone), population)
    solo = build_solo(model, TRAINING)
    assert sorted(state.assignment) == [0, 1, 2, 3]
    assert_close(models_of(joint, state, population), models_of(solo, train(solo, population, everyone), population))


def test_flis_hc_with_one_cluster_is_fedavg_and_with_n_solo(tff_worker, model, population, images):
    one = build_flis_hc(model, TRAINING, InferenceClustering(num_clusters=1), server_images=images)
    assert_close(train(one, population).models, train(build_fedavg(model, TRAINING), population).models)
    every = build_flis_hc(model, TRAINING, InferenceClustering(num_clusters=5), server_images=images)
    solo = build_solo(model, TRAINING)
    clustered, alone = train(every, population), train(solo, population)
    assert_close(models_of(every, clustered, population), models_of(solo, alone, population))


@pytest.mark.parametrize("start", ["independent", "attracting", "warm_up"])
def test_ifca_with_one_model_is_fedavg(tff_worker, model, population, start):
    one = train(build_ifca(model, TRAINING, IterativeClustering(num_clusters=1, start=start)), population)
    assert_close(one.models, train(build_fedavg(model, TRAINING), population).models)


def test_ifca_with_everything_shared_but_one_model_chosen_is_fedavg(tff_worker, model, population):
    """Two equal models: everyone chooses the first; the second takes part in the shared layers only."""
    how = IterativeClustering(num_clusters=2, share_representation=True)
    algorithm = build_ifca(model, TRAINING, how)
    state = algorithm.initialize(population)
    first = model.layer_slices()
    *_, last = first.values()
    np.testing.assert_array_equal(state.models[0, : last.start], state.models[1, : last.start])
    for number, clients in enumerate(COHORTS, 1):
        state, _ = algorithm.next(state, Cohort(population, np.array(clients), (7, number)))
    np.testing.assert_allclose(state.models[0, : last.start], state.models[1, : last.start], atol=1e-7)
    assert np.abs(state.models[0, last.start :] - state.models[1, last.start :]).max() > 1e-3
