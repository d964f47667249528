"""What FLIS and IFCA become at their limits."""

import dataclasses

import numpy as np
import pytest

import tffcl
from tests.short_runs import TRAINING, assert_close, cohort_of, models_of, train
from tffcl.algorithms import choosing_method
from tffcl.algorithms.choosing_method import build_trying, losses_of_few
from tffcl.algorithms.clove import build_clove
from tffcl.algorithms.each_round_parameters import CLoVEParameters, FLISDCParameters, IFCAParameters
from tffcl.algorithms.flis_dc import build_flis_dc
from tffcl.algorithms.ifca import build_ifca
from tffcl.algorithms.parameters import FLISHCParameters
from tffcl.algorithms.presets import build_flis_hc
from tffcl.algorithms.solo import build_solo
from tffcl.client_work.local_sgd import build_local_sgd
from tffcl.clustering.groupings import group_by_losses
from tffcl.rounds.client_queries import ask_all

CHOOSERS = (build_ifca, IFCAParameters), (build_clove, CLoVEParameters)


@pytest.fixture(scope="module")
def images(digits):
    return digits[0][600:700]


# That answers at the server give the same models is held in test_flis, and there is a round by hand.
@pytest.mark.slow
@pytest.mark.parametrize("metric, answered_by", [("agreement", "clients"), ("frobenius", "server")])
def test_flis_dc_with_threshold_0_is_fedavg(tff_worker, model, population, images, reference, answered_by, metric):
    how = FLISDCParameters(threshold=0.0, answered_by=answered_by, metric=metric)
    joint = train(build_flis_dc(model, TRAINING, how, server_images=images), population)
    assert len(joint.models) == 1
    assert_close(joint.models[0], reference("fedavg")[1][0])


@pytest.mark.slow
def test_flis_dc_with_a_threshold_above_every_similarity_is_every_client_alone(
    tff_worker, model, digit_clients, images
):
    """Clients whose digits are turned differently: each finds its own model again in every round."""
    population = digit_clients([31, 40, 25, 50], [0, 1, 2, 3])
    everyone = [(0, 1, 2, 3)] * 3
    joint = build_flis_dc(model, TRAINING, FLISDCParameters(threshold=1.0), server_images=images)
    solo = build_solo(model, TRAINING)
    state = joint.choose(train(joint, population, everyone), population)
    assert sorted(state.assignment) == [0, 1, 2, 3]
    assert_close(models_of(joint, state, population), models_of(solo, train(solo, population, everyone), population))


@pytest.mark.parametrize("num_clusters, limit", [pytest.param(1, "fedavg", marks=pytest.mark.slow), (5, "solo")])
def test_flis_hc_with_one_cluster_is_fedavg_and_with_n_solo(
    tff_worker, model, population, images, reference, num_clusters, limit
):
    method = build_flis_hc(model, TRAINING, FLISHCParameters(num_clusters=num_clusters), server_images=images)
    assert_close(models_of(method, train(method, population), population), reference(limit)[1])


@pytest.mark.slow  # NumPy has rounds of more models
@pytest.mark.parametrize("start", ["attracting", "warm_up"])
def test_ifca_with_one_model_is_fedavg(tff_worker, model, population, reference, start):
    one = train(build_ifca(model, TRAINING, IFCAParameters(num_clusters=1, start=start)), population)
    assert len(one.models) == 1
    assert_close(one.models[0], reference("fedavg")[1][0])


@pytest.mark.parametrize("noise", [None, 1.0])
def test_in_a_warm_up_groups_are_equal_and_in_a_private_one_nobody_moves_another(model, population, noise):
    """In equal groups one client more would change the rows of others, too."""
    aggregation = noise and tffcl.aggregation("dp", noise_multiplier=noise, seed=1)
    how = IFCAParameters(num_clusters=2, start="warm_up", warm_up_rounds=50)
    method, moved = build_ifca(model, TRAINING, how, seed=5, aggregation=aggregation), 0
    for number in range(1, 31):
        fewer, more = (method.forced(cohort_of(population, range(count), number)) for count in (3, 4))
        moved += (fewer != more[:3]).any()
        assert noise or np.bincount(more).tolist() == [2, 2]
    assert bool(moved) == (noise is None)


@pytest.mark.slow
def test_ifcas_shared_layers_are_the_mean_over_the_whole_cohort(tff_worker, model, population):
    """And the last layer of each model is that of the clients who chose it (paper, section 5)."""
    method = build_ifca(model, TRAINING, IFCAParameters(num_clusters=2, share_representation=True), seed=1)
    before = method.initialize(population)
    *_, last = model.layer_slices().values()
    np.testing.assert_array_equal(before.models[0, : last.start], before.models[1, : last.start])
    cohort = cohort_of(population, population.client_ids, 1)
    after, metrics = method.next(before, cohort)
    sgd, chosen = build_local_sgd(model, TRAINING), metrics.clusters
    data = [population.train(client).stacked for client in population.client_ids]
    seeds = map(cohort.client_seed, population.client_ids)
    trained = np.stack(
        [
            sgd(before.models[key], each["x"], each["y"], seed)[0]
            for key, each, seed in zip(chosen, data, seeds, strict=True)
        ]
    )
    shared = np.average(trained[:, : last.start], axis=0, weights=population.sizes)
    for cluster in range(2):
        members = chosen == cluster
        assert_close(after.models[cluster, : last.start], shared)
        own = (
            np.average(trained[members], axis=0, weights=population.sizes[members])
            if members.any()
            else before.models[cluster]
        )
        assert_close(after.models[cluster, last.start :], own[last.start :])
    assert np.abs(shared - before.models[0, : last.start]).max() > 1e-2


@pytest.mark.slow
def test_losses_of_many_small_clients_are_those_that_each_would_answer(tff_worker, model, digit_clients, monkeypatch):
    """At an evaluation these are not asked through the runtime; choices are the same, with clients of any size
    together.
    """
    population = digit_clients([3, 260, 40, 250, 1, 200, 51, 7])
    models = np.stack([model.draw(seed) for seed in (1, 2, 3)] + [np.full(model.size, np.nan, np.float32)])
    asked = ask_all(build_trying(model, 4, stacked=True), models, population)
    few, losses = losses_of_few(model, models, population, population.train)
    assert few.tolist() == [True, False, True, True, True, True, True, True] and np.isinf(losses[:, 3]).all()
    np.testing.assert_allclose(losses, asked[few], rtol=1e-5)
    ifca, clove = (build(model, TRAINING, how(num_clusters=4)) for build, how in CHOOSERS)
    people = []
    monkeypatch.setattr(
        choosing_method,
        "ask_all",
        lambda *given, **more: people.append(given[2].client_ids.tolist()) or ask_all(*given, **more),
    )
    np.testing.assert_array_equal(ifca.chosen_rows(models, population), asked.argmin(axis=1))
    assert people == [[1]]
    state = dataclasses.replace(clove.initialize(population), models=models)
    expected = group_by_losses(asked)
    np.testing.assert_array_equal(clove.choose(state, population).assignment, expected)
