"""LG-FedAvg: its limits, a plain NumPy version, which layers are local, what is sent, and its warm start."""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tffcl
from tests.algorithms.conftest import same_groups
from tests.oracles import local_training
from tests.short_runs import COHORTS, TRAINING, assert_close, cohort_of, models_of, split, train
from tffcl.aggregators.parameters import DPParameters
from tffcl.aggregators.private_mean import PrivateClusteredMeanFactory
from tffcl.algorithms.composed import build_composed
from tffcl.algorithms.lg_fedavg import build_lg_fedavg, build_partly_shared_training, local_names
from tffcl.algorithms.method import ClusteredState
from tffcl.algorithms.parameters import ComposedParameters
from tffcl.algorithms.training_parameters import LGFedAvgParameters
from tffcl.errors import UserError
from tffcl.models.classifiers import build_lenet5, build_mlp, build_resnet9
from tffcl.models.layer_parts import layer_parts
from tffcl.rounds.traffic import Traffic

HIDDEN = slice(0, 64 * 16 + 16)  # the first layer of the fixture `model`


@pytest.mark.slow
def test_with_every_layer_global_it_is_fedavg(tff_worker, model, population, reference):
    shared = build_lg_fedavg(model, TRAINING, LGFedAvgParameters(local_layers=0))
    state = train(shared, population)
    assert_close(models_of(shared, state, population), reference("fedavg")[1])
    assert_close(state.models, reference("fedavg")[1][:1])


def test_with_every_layer_local_it_is_solo(tff_worker, model, population, reference):
    alone = build_lg_fedavg(model, TRAINING, LGFedAvgParameters(local_layers=["output", "hidden"]))
    state = train(alone, population)
    assert state.models.shape == (1, 0)
    assert_close(models_of(alone, state, population), reference("solo")[1])
    assert alone.next(state, cohort_of(population, [0], 4))[1].traffic == Traffic()


@pytest.mark.parametrize("weighting", ["examples", pytest.param("uniform", marks=pytest.mark.slow)])
def test_it_is_liangs_algorithm_by_hand(tff_worker, model, population, weighting):
    """Alg. 1 in NumPy: own local layers, the last global part, one mean of what was trained."""
    how = LGFedAvgParameters(weighting=weighting)
    method = build_lg_fedavg(model, TRAINING, how)
    whole = np.repeat(model.initial[np.newaxis].astype(float), 5, axis=0)
    for number, ids in enumerate(COHORTS, 1):
        cohort = cohort_of(population, ids, number)
        for client in ids:
            whole[client] = local_training.trained(model, population, cohort, client, whole[client], TRAINING)
        weights = population.sizes[list(ids)] if weighting == "examples" else None
        whole[:, HIDDEN.stop :] = np.average(whole[list(ids), HIDDEN.stop :], axis=0, weights=weights)
    state = train(method, population)
    np.testing.assert_allclose(models_of(method, state, population), whole, rtol=0, atol=1e-5)
    assert np.abs(whole[0] - whole[1])[HIDDEN].max() > 0.05


def test_what_is_local_by_default_is_what_the_papers_have():
    lenet, resnet = build_lenet5((28, 28, 1), 10), build_resnet9((32, 32, 3), 100)
    parts = layer_parts(lenet, local_names(lenet, None))
    assert (parts.global_size, parts.local_size) == (11_014, 44_426 - 11_014)
    assert (
        parts
        == layer_parts(lenet, ["conv1", "conv2", "dense1"])
        == layer_parts(lenet, local_names(lenet, "all_but_four_tensors"))
    )
    assert layer_parts(build_lenet5((32, 32, 3), 10), local_names(lenet, 3)).global_size == 11_014
    assert local_names(resnet, None) == list(resnet.layer_slices())[:7] and local_names(resnet, None)[-1] == "block6a"
    code = layer_parts(resnet, local_names(resnet, "all_but_four_tensors"))
    assert code.global_size == 2 * 512 + 512 * 100 + 100  # the last normalization and the dense layer
    assert local_names(build_mlp((8, 8, 1), 10), None) == ["hidden"]


@pytest.mark.parametrize(
    "local, size",
    [(["output/bias", "hidden/kernel"], 10 + 1024), (["output"], 170), ([], 0), (["hidden", "output"], 1210)],
    ids=str,
)
def test_parts_of_a_vector_come_together_again(model, local, size):
    parts, vector = layer_parts(model, local), model.initial
    kept, shared = parts.split(vector)
    np.testing.assert_array_equal(kept, vector[parts.is_local])
    np.testing.assert_array_equal(parts.join(kept, shared), vector)
    np.testing.assert_array_equal(parts.joined(kept.numpy()[None], shared.numpy()[None])[0], vector)
    assert parts.local_size == size


def test_only_the_global_part_of_lenet_travels():
    engine = build_lg_fedavg(build_lenet5((28, 28, 1), 10), TRAINING).engine
    transfer = engine.round.transfer
    assert transfer.down_bytes(1) == 4 * 11_014
    # With it its key, the weight of the mean, the client's ID, and its report: examples, loss and a flag.
    assert transfer.up_bytes() == 4 * 11_014 + 4 + 4 + 4 + (4 + 4 + 1)


def test_clients_see_the_global_part_of_now_and_newcomers_the_first_local_layers(tff_worker, model, population):
    known, newcomers = split(population, [4])
    method = build_lg_fedavg(model, TRAINING)
    state = train(method, known, [(0, 1), (1, 2)])
    joined = method.admit(state, newcomers)
    models, rows = method.models_for(joined, [0, 2, 3, 4])
    assert rows[2] == rows[3] and len(models) == 3  # those who have not trained share a row
    np.testing.assert_array_equal(models[rows[3], HIDDEN], model.initial[HIDDEN])
    np.testing.assert_array_equal(models[:, HIDDEN.stop :], np.repeat(state.models, 3, axis=0))
    assert np.abs(models[rows[0]] - models[rows[1]])[HIDDEN].max() > 0.05
    with pytest.raises(UserError, match="client 9"):
        method.models_for(joined, [0, 9])


@pytest.mark.slow
def test_a_warm_start_is_fedavg_first_and_everyone_goes_on_from_there(tff_worker, model, population, reference):
    method = build_lg_fedavg(model, TRAINING, LGFedAvgParameters(fedavg_rounds=2))
    cold = build_lg_fedavg(model, TRAINING)
    first = train(method, population, COHORTS[:1])
    assert first.models.shape == (1, model.size)
    with pytest.raises(UserError, match="for 2 rounds the whole model is shared"):
        method.exports().server_values(first)
    assert method.views(first).notes[0].startswith("for 2 rounds the whole model is shared (fedavg_rounds)")
    warm, averaged = train(method, population, COHORTS[:2]), reference("fedavg", COHORTS[:2])[1]
    assert_close(models_of(method, warm, population), averaged)
    assert warm.models.shape == cold.initialize(population).models.shape and not method.views(warm).notes
    cohort = cohort_of(population, COHORTS[2], 3)
    after, metrics = method.next(warm, cohort)
    # The same as a method whose initial model is FedAvg's.
    functional = dataclasses.replace(model, key=None)
    start = dataclasses.replace(
        cold.initialize(population), models=averaged[:1, HIDDEN.stop :], server={"local": averaged[:1, HIDDEN]}
    )
    expected, plain = build_lg_fedavg(functional, TRAINING).next(start, cohort)
    assert_close(models_of(method, after, population), models_of(cold, expected, population))
    # Each of the three has received the local layers to start from, once.
    assert metrics.traffic.down - plain.traffic.down == 3 * 4 * HIDDEN.stop and metrics.traffic.up == plain.traffic.up
    assert method.next(after, cohort_of(population, COHORTS[2], 4))[1].traffic == plain.traffic


def test_where_nobody_takes_part_in_the_last_whole_round_the_next_shares_a_part(tff_worker, model, population):
    def after(whole_rounds):
        method = build_lg_fedavg(model, TRAINING, LGFedAvgParameters(fedavg_rounds=whole_rounds))
        state, _ = method.next(method.initialize(population), cohort_of(population, COHORTS[0], 1))
        # A run leaves out the round that nobody was drawn for.
        return method.next(state, cohort_of(population, COHORTS[1], 3))

    (state, metrics), (expected, told) = after(2), after(1)
    assert metrics.traffic == told.traffic and state.kept.has(COHORTS[1]).all()
    np.testing.assert_array_equal(state.models, expected.models)


def test_in_a_grouping_everyone_goes_on_from_the_layers_of_its_own_cluster(tff_worker, model, population):
    """After rounds on whole models clusters have local layers of their own, from which who comes late starts."""
    engine = build_partly_shared_training(model, TRAINING, LGFedAvgParameters(fedavg_rounds=1))
    state = ClusteredState(**engine.start(population, np.array([0, 1, 0, 1, 0], np.int32)))
    parted, _ = engine.next(state, cohort_of(population, [0, 1], 1))
    starts = np.stack([engine.whole_model(parted, row) for row in (0, 1)])
    assert np.abs(starts[0] - starts[1])[HIDDEN].max() > 0.01
    cohort = cohort_of(population, [2, 3], 2)
    after, _ = engine.next(parted, cohort)
    models, rows = engine.models_for(after, [2, 3])
    for client, row in zip((2, 3), rows):
        own = local_training.trained(model, population, cohort, client, starts[client % 2], TRAINING)
        np.testing.assert_allclose(models[row], own, rtol=0, atol=1e-5)


def test_clusters_that_are_formed_or_started_anew_have_local_layers_too(model, population):
    """One goes on from the second, one is of three members of both, and one starts from another model."""
    engine = build_partly_shared_training(model, TRAINING, LGFedAvgParameters())
    state = ClusteredState(**engine.start(population, np.array([0, 1, 1, 0, 1], np.int32)))
    first, second, third = np.random.default_rng(0).normal(size=(3, model.size)).astype(np.float32)
    for row, whole in enumerate((first, second)):
        state = dataclasses.replace(state, **engine.started_from(state, np.array([row]), whole))
    labels, origins = np.array([1, 0, 1, 2, 1], np.int32), np.array([1, -1, -1])
    formed = dataclasses.replace(state, assignment=labels, **engine.formed_anew(state, labels, origins))
    formed = dataclasses.replace(formed, **engine.started_from(formed, np.array([2]), third))
    found = [engine.whole_model(formed, row) for row in range(3)]
    np.testing.assert_allclose(found, [second, (first + 2 * second) / 3, third], rtol=0, atol=1e-6)


def test_each_shared_layer_is_compressed_with_a_range_of_its_own(model):
    """Of the layers that a run tells the aggregation, those of the whole model, the shared ones; also where it was
    told none.
    """
    for layers in (None, [layer.stop - layer.start for layer in model.layer_slices().values()]):
        compressed = tffcl.aggregation("compression", layers=layers)
        for local, ranges in ((["hidden/kernel"], 2), (["hidden"], 1), ([], 2)):
            shared = build_lg_fedavg(
                model, TRAINING, LGFedAvgParameters(local), aggregation=compressed
            ).engine.round_for(1)
            value = tff.TensorType(np.float32, [shared.server.values["models"].shape[1]])
            sent = shared.uploads["update"].uploaded_type(
                tff.to_type(collections.OrderedDict(key=np.int32, value=value))
            )
            assert sent["ranges"].shape == (2 * ranges,), local


@pytest.mark.slow
def test_private_noise_goes_on_where_the_whole_model_is_no_longer_shared(tff_worker, model, population):
    private = PrivateClusteredMeanFactory(DPParameters(noise_multiplier=1.0, clip=0.1, min_cluster_size=1), seed=3)
    method = build_lg_fedavg(model, TRAINING, LGFedAvgParameters(fedavg_rounds=1), aggregation=private)
    state = train(method, population, COHORTS[:2])
    # The noise is drawn by seed and round: a round number that began again would draw the same noise for two releases.
    assert state.aggregators["update"]["round"] == 2


class Remembering(tff.aggregators.UnweightedAggregationFactory):
    """The sum of the values; its state is the sum of all rounds, as large as a value."""

    def create(self, value_type):
        @tff.federated_computation
        def initialize():
            return tff.federated_eval(
                tff.tensorflow.computation(lambda: tf.zeros(value_type.shape, tf.float32)), tff.SERVER
            )

        @tff.federated_computation(
            tff.FederatedType(value_type, tff.SERVER), tff.FederatedType(value_type, tff.CLIENTS)
        )
        def next_fn(state, value):
            total = tff.federated_sum(value)
            both = tff.federated_map(tff.tensorflow.computation(lambda a, b: a + b), (state, total))
            return tff.templates.MeasuredProcessOutput(both, total, tff.federated_value(0, tff.SERVER))

        return tff.templates.AggregationProcess(initialize, next_fn)


@pytest.mark.slow
def test_an_aggregator_that_does_not_fit_the_shared_part_starts_anew(tff_worker, model, population):
    method = build_lg_fedavg(model, TRAINING, LGFedAvgParameters(fedavg_rounds=1), aggregation=Remembering())
    whole = train(method, population, COHORTS[:1])
    assert np.shape(whole.aggregators["update"][0]) == (model.size - HIDDEN.stop,) and not np.any(
        whole.aggregators["update"]
    )
    shared = train(method, population, COHORTS[:2])
    assert np.any(shared.aggregators["update"])


@pytest.mark.slow  # test_composed has each training with a grouping
def test_any_grouping_takes_it(tff_worker, model, grouped):
    def composed(training, aggregation=None):
        how = ComposedParameters(signature="subspace", num_clusters=3, training=training)
        return build_composed(model, TRAINING, how, aggregation=aggregation)

    cohorts = [range(9), (0, 3, 4)]
    sgd, shared = composed("sgd"), composed({"name": "lg_fedavg", "local_layers": 0})
    assert_close(
        models_of(shared, train(shared, grouped, cohorts), grouped),
        models_of(sgd, train(sgd, grouped, cohorts), grouped),
    )
    partly = composed("lg_fedavg")
    state = train(partly, grouped, cohorts)
    assert same_groups(state.assignment) and state.models.shape == (3, model.size - HIDDEN.stop)
    models = models_of(partly, state, grouped)
    assert len(np.unique(models[:, HIDDEN], axis=0)) == 9 and len(np.unique(models[:, HIDDEN.stop :], axis=0)) == 3
    inside = composed("lg_fedavg", tff.aggregators.MeanFactory())
    assert_close(models_of(inside, train(inside, grouped, cohorts), grouped), models)


@pytest.mark.parametrize(
    "asked, message",
    [
        (3, "local_layers is 3; it must be from 0 to the number of layers of mlp, 2 (hidden, output)"),
        (["hiden"], "unknown layer of mlp in local_layers 'hiden'; did you mean 'hidden'?"),
    ],
)
def test_layers_that_the_model_has_not_are_refused(model, asked, message):
    with pytest.raises(UserError) as refused:
        build_lg_fedavg(model, TRAINING, LGFedAvgParameters(local_layers=asked))
    assert str(refused.value).startswith(message) and refused.value.key == "local_layers"


@pytest.mark.parametrize("asked", [-1, "conv1", 1.5, [1]])
def test_what_is_no_layers_is_refused(asked):
    with pytest.raises(
        UserError, match="local_layers is .*; it must be a whole number from 0, a list of names of layers or all_but"
    ):
        LGFedAvgParameters(local_layers=asked)
