"""Any factory of TFF inside each cluster: when the number of clusters is known, as it grows, and with secure sums."""

import dataclasses

import numpy as np
import pytest
import tensorflow_federated as tff

import tffcl
from tests.short_runs import COHORTS, TRAINING, assert_close, cohort_of, train
from tffcl import registry
from tffcl.aggregators.clustered_mean import ClusteredMeanFactory, keyed_factory
from tffcl.algorithms.clustered_training import build_clustered_training
from tffcl.algorithms.composed import build_composed
from tffcl.algorithms.ditto import build_ditto
from tffcl.algorithms.each_round_parameters import IFCAParameters
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.algorithms.fednova import build_fednova
from tffcl.algorithms.flux import build_flux
from tffcl.algorithms.ifca import build_ifca
from tffcl.algorithms.method import ClusteredState
from tffcl.algorithms.parameters import ComposedParameters, PACFLParameters
from tffcl.algorithms.per_fedavg import build_per_fedavg
from tffcl.algorithms.presets import build_pacfl
from tffcl.algorithms.scaffold import build_scaffold
from tffcl.algorithms.stocfl import build_stocfl
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.errors import UserError
from tffcl.runs import checkpoints

MEAN = tff.aggregators.MeanFactory(no_nan_division=True)
ONCE = LocalTraining(epochs=1, batch_size=0, learning_rate=0.1)


@pytest.fixture(scope="module")
def turned(digit_clients):
    """Clients of upright digits and one whose digits are turned, which is alone at most thresholds."""
    return digit_clients([40, 40, 40, 40], turns=[0, 0, 0, 1])


@pytest.mark.slow
def test_the_number_of_clusters_comes_from_the_state_and_grows_with_newcomers(tff_worker, model, turned):
    """An adaptive clip is a state of each cluster: a founded one starts anew, the others keep theirs."""
    clip = tff.aggregators.PrivateQuantileEstimationProcess.no_noise(0.01, 0.5, 0.2)
    clipped = tff.aggregators.clipping_factory(clip, MEAN)
    few, late = turned.restricted([0, 1, 2]), turned.restricted([3])
    how = PACFLParameters(threshold=12)
    method = build_pacfl(model, ONCE, how, aggregation=clipped)
    state = method.initialize(few)
    assert len(state.models) == len(state.aggregators["update"]) == 1
    state, _ = method.next(state, cohort_of(few, [0, 1, 2], 1))
    joined = method.admit(state, late)
    assert len(joined.models) == len(joined.aggregators["update"]) == 2
    first, fresh = (_clip_of(each) for each in joined.aggregators["update"])
    assert first == _clip_of(state.aggregators["update"][0]) != pytest.approx(0.01) and fresh == pytest.approx(0.01)
    arrays, _ = checkpoints.pack({"state": joined})
    restored = checkpoints.unpack(arrays, {"state": method.state_class})["state"]
    after, _ = method.next(restored, cohort_of(turned, [3], 2))
    np.testing.assert_array_equal(after.models[0], joined.models[0])
    assert 0 < np.linalg.norm(after.models[1] - joined.models[1]) < 0.011
    computations = method.exports().computations(after)
    assert "float32[?" in str(computations["training"].type_signature)


def _clip_of(state) -> float:
    return float(state["clipping_norm"][0]["current_estimate"])


@pytest.mark.slow
def test_secure_sums_are_simulated_and_exported_as_they_are(tff_worker, model, population):
    """TFF's own aggregator with secure sums, whose clip starts at 1: nobody's update of this round is longer."""
    method = build_fedavg(model, ONCE, aggregation=tff.learning.secure_aggregator(zeroing=False, clipping=False))
    plain = build_fedavg(model, ONCE)
    found, expected = (train(each, population, COHORTS[:1]).models for each in (method, plain))
    np.testing.assert_allclose(found, expected, atol=1e-4)  # fixed point
    alone, metrics = method.next(state := method.initialize(population), cohort_of(population, [2], 1))
    assert not len(metrics.client_ids) and np.array_equal(alone.models, state.models)  # whose update the sum would be
    exported = method.exports().computations(method.initialize(population))["training"]
    assert b"federated_secure_sum" in tff.framework.serialize_computation(exported).SerializeToString()
    assert "loss" not in str(exported.type_signature.result)  # no report of a client beside the sums


@pytest.mark.slow  # PACFL has it above, and in a run in test_own_parts
def test_a_method_whose_clients_choose_takes_it_too(tff_worker, model, population):
    how = IFCAParameters(num_clusters=2)
    ifca = (build_ifca(model, TRAINING, how, aggregation=each) for each in (MEAN, None))
    found, expected = (train(each, population, COHORTS[:2]).models for each in ifca)
    assert_close(found, expected)


def test_what_cannot_be_is_said():
    with pytest.raises(UserError, match="aggregation is .dp.; it must be an aggregation factory.*tffcl.aggregation"):
        keyed_factory("dp")
    with pytest.raises(UserError, match="has num_clusters 3; here it must be 2, or left out"):
        keyed_factory(ClusteredMeanFactory(3), 2)


@pytest.mark.parametrize("inner", [None, MEAN], ids=["plain", "inside"])
def test_an_aggregation_of_another_number_of_clusters_is_refused(tff_worker, model, population, inner):
    """Clients of a cluster that it does not have would count nowhere."""
    engine = build_clustered_training(model, ONCE, aggregation=ClusteredMeanFactory(2, inner))
    refused = pytest.raises(UserError, match="has num_clusters 2; here it must be 3, or left out")
    with refused:
        engine.start(population, np.array([0, 1, 2, 1, 0]))
    state = ClusteredState(**engine.start(population, np.array([0, 1, 1, 1, 0])))
    assert len(state.models) == 2
    with refused:
        engine.grown(state, 1)


@pytest.mark.parametrize("given", [MEAN, ClusteredMeanFactory(5), ClusteredMeanFactory(5, MEAN)])
def test_stocfls_clusters_come_and_go(model, given):
    with pytest.raises(UserError, match="StoCFL's clusters come and go, so that no aggregation can run once for each"):
        build_stocfl(model, TRAINING, aggregation=given)


@pytest.mark.parametrize("given", [tffcl.aggregation("robust"), ClusteredMeanFactory(), "dp"])
def test_stocfls_global_model_has_an_aggregation_without_keys(model, given):
    with pytest.raises(UserError, match="global_aggregation.* must be a factory over the updates of all clients, with"):
        build_stocfl(model, TRAINING, global_aggregation=given)


def test_an_unknown_weighting_is_said(model):
    with pytest.raises(UserError, match="unknown weighting 'unform'; did you mean 'uniform'"):
        build_clustered_training(model, TRAINING, weighting="unform")


@pytest.mark.slow
def test_secure_sums_hide_what_is_uploaded_beside_updates(tff_worker, model, population):
    """Control variates, too: all that is aggregated are secure sums, and the models are the plain ones."""
    sums = registry.aggregation("secure_sum")
    secure, plain = (build_scaffold(model, ONCE, aggregation=each) for each in (sums, None))
    composed = secure.engine.round_for(1)
    for name, process in composed.aggregators.items():
        serialized = tff.framework.serialize_computation(process.next).SerializeToString()
        assert b"federated_secure_sum_bitwidth" in serialized and b"federated_aggregate" not in serialized, name
    found, expected = (train(each, population, COHORTS[:2]) for each in (secure, plain))
    np.testing.assert_allclose(found.models, expected.models, atol=1e-5)
    for name, rows in expected.server.items():
        np.testing.assert_allclose(found.server[name], rows, atol=1e-6)


@pytest.mark.slow  # those of an early round are above, and what a bound cuts off in test_secure_sums
@pytest.mark.parametrize("build", [build_per_fedavg, build_fednova])
def test_secure_sums_of_a_late_round_are_the_plain_ones(tff_worker, model, population, build):
    """The small updates of a trained model, where each client counts the same or has many steps: within a
    thousandth.
    """
    trained = train(build_fedavg(model, TRAINING), population, COHORTS[:1] * 15).models
    late = LocalTraining(epochs=10, batch_size=10, learning_rate=0.001, momentum=0.9)
    moves = []
    for aggregation in (None, registry.aggregation("secure_sum")):
        method = build(model, late if build is build_fednova else TRAINING, aggregation=aggregation)
        state = dataclasses.replace(method.initialize(population), models=trained)
        moves.append(method.next(state, cohort_of(population, [0, 1, 2, 3, 4], 99))[0].models - trained)
    assert np.linalg.norm(moves[1] - moves[0]) < 1e-3 * np.linalg.norm(moves[0])


@pytest.mark.slow
def test_who_waits_trains_no_personal_model_either(tff_worker, model, population):
    """Nobody is sent a model that the traffic has not, and nobody counts as trained that was not asked."""
    method = build_ditto(model, ONCE, aggregation=tffcl.aggregation("secure_sum"))
    start = method.initialize(population)
    state, metrics = method.next(start, cohort_of(population, [2], 1))
    assert not len(metrics.client_ids) and metrics.traffic.down == 0 and not state.kept.has([2]).any()
    np.testing.assert_array_equal(state.models, start.models)
    state, metrics = method.next(state, cohort_of(population, [1, 2], 2))
    assert metrics.client_ids.tolist() == [1, 2] and state.kept.has([1, 2]).all() and metrics.traffic.down > 0


def test_private_control_variates_are_another_release(model):
    for build in (build_fednova, build_scaffold):
        hiding = build(model, ONCE, aggregation=registry.aggregation("secure_sum")).engine.round_for(1).uploads
        assert len(hiding) == 2 and all(factory.hides_uploads for factory in hiding.values())
    composed = build_scaffold(model, ONCE, aggregation=registry.aggregation("dp", seed=3)).engine.round_for(1)
    assert [factory.noise_multiplier for factory in composed.uploads.values()] == [1, 1]
    seeds = [factory.noise_seed for factory in composed.uploads.values()]
    assert seeds[0] == 3 and seeds[1] not in (None, 3)  # the same numbers would be bare in their difference


def test_control_variates_have_a_fixed_clip_where_that_of_updates_adapts(model):
    adapting = {"clipping": "adaptive", "quantile": 0.3, "clip_learning_rate": 0.1, "quantile_share": 0.1}
    private = build_scaffold(model, ONCE, aggregation=tffcl.aggregation("dp", clip=2.0, **adapting))
    fixed = tffcl.aggregation("dp", clip=2.0).with_clusters(1)
    assert private.engine.round_for(1).uploads["control"].key == fixed.key


def test_what_would_travel_in_the_open_beside_hidden_updates_is_refused(model):
    with pytest.raises(UserError, match="upload 'steps' beside 'update', and this .aggregation. hides the latter only"):
        build_fednova(model, ONCE, aggregation=registry.aggregation("dp"))
    fednova = ComposedParameters(signature="label_histogram", training="fednova", num_clusters=2)
    with pytest.raises(UserError, match="upload 'steps' beside 'update'"):
        build_composed(model, ONCE, fednova, aggregation=registry.aggregation("dp"))
    tffs_own = tff.learning.secure_aggregator(zeroing=False, clipping=False)
    with pytest.raises(UserError, match="upload 'steps' beside 'update'"):
        # As a run asks before its first round.
        build_fednova(model, ONCE, aggregation=tffs_own).engine.round_for(1).members_needed
    for name in ("dp", "secure_sum"):
        with pytest.raises(UserError, match="StoCFL's clusters come and go"):
            build_stocfl(model, ONCE, aggregation=registry.aggregation(name))


def of_whole_numbers():
    return tff.aggregators.MeanFactory(tff.aggregators.SecureModularSumFactory(2**20))


def of_tffs_secure_sums():
    return tff.aggregators.MeanFactory(tff.aggregators.SecureSumFactory(1.0))


def of_the_global_model(model, training, *, aggregation):
    return build_stocfl(model, training, global_aggregation=aggregation)


def of_tffs_distributed_privacy():
    return tff.learning.ddp_secure_aggregator(noise_multiplier=0.1, expected_clients_per_round=5)


@pytest.mark.parametrize(
    "build, aggregation, message",
    [
        (build_ifca, tff.aggregators.UnweightedMeanFactory, "is unweighted, so that in each of 2 clusters"),
        (build_flux, tff.aggregators.UnweightedMeanFactory, "is unweighted, so that in each of 2 clusters"),
        (build_fedavg, of_whole_numbers, "aggregation MeanFactory cannot aggregate float32.*must either be an integer"),
        (build_fednova, of_tffs_secure_sums, "upload 'steps'"),
        (of_the_global_model, of_tffs_secure_sums, "upload 'update' beside 'global_update'"),
        pytest.param(build_fedavg, of_tffs_distributed_privacy, "nested deeper", marks=pytest.mark.slow),
    ],
)
def test_an_aggregation_that_cannot_be_is_refused_before_a_run_writes_anything(
    model, population, tmp_path, build, aggregation, message
):
    """Also where the run may end early, by a budget."""
    how = {"rounds": 1, "clients_per_round": 3, "privacy": tffcl.PrivacySettings(epsilon=1.0)}
    with pytest.raises(UserError, match=message):
        tffcl.train(build(model, ONCE, aggregation=aggregation()), population, **how, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("depth", [pytest.param(9, marks=pytest.mark.slow), 10])
def test_an_aggregation_that_is_nested_deeper_than_tffs_messages_is_told(model, depth):
    """Of a round that is, or already by itself, as the one that TFF has for distributed privacy."""
    nested = tff.aggregators.MeanFactory()
    for _ in range(depth):
        nested = tff.aggregators.clipping_factory(1.0, nested)
    composed = build_fedavg(model, ONCE, aggregation=nested).engine.round_for(1)
    if depth < 10:
        composed.aggregators
    with pytest.raises(UserError, match="nested deeper than TFF's messages can be, as .*ddp_secure_aggregator"):
        composed.simulated
