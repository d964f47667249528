"""IFCA against NumPy, its starts, its choices and what it sends."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tffcl
from tests import own_data
from tests.algorithms.conftest import as_arrays
from tests.oracles import ifca as oracle
from tests.short_runs import TRAINING, deployed_inputs, split
from tffcl.algorithms.each_round_parameters import IFCAParameters
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.algorithms.ifca import build_ifca, build_ifca_round, draw_models
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clients.client_examples import ClientExamples
from tffcl.clients.cohort import Cohort
from tffcl.errors import UserError
from tffcl.models.flat import FlatModel
from tffcl.rounds.traffic import type_bytes

WHOLE = LocalTraining(epochs=3, batch_size=0, learning_rate=0.2, momentum=0.5)


def test_it_is_plain_ifca(tff_worker, convex, digit_clients):
    """Six rounds of three models against NumPy in float64."""
    population = digit_clients([31, 40, 25, 50, 12, 33], turns=[0, 1, 2, 0, 1, 2])
    method = build_ifca(convex, WHOLE, IFCAParameters(num_clusters=3), seed=11)
    state = method.initialize(population)
    models = [tuple(tensor.numpy().astype(float) for tensor in convex.unravel(row)) for row in state.models]
    seen = set()
    for number, clients in enumerate([(0, 1, 2, 3, 4, 5), (0, 2, 4), (1, 3, 5), (0, 1, 2), (2, 3, 4, 5), (0, 1, 5)], 1):
        state, metrics = method.next(state, Cohort(population, np.array(clients), (7, number)))
        models, choices = oracle.round_of_ifca(
            models, [as_arrays(population, c) for c in clients], steps=3, learning_rate=0.2, momentum=0.5
        )
        np.testing.assert_array_equal(metrics.clusters, choices)
        np.testing.assert_array_equal(state.clusters(clients), choices)
        np.testing.assert_allclose(state.models, [convex.ravel(model) for model in models], rtol=0, atol=1e-5)
        seen |= set(choices)
    assert len(seen) > 1


def test_a_model_that_nobody_chose_stays(tff_worker, convex, digit_clients):
    population = digit_clients([30, 30, 30])
    method = build_ifca(convex, WHOLE, IFCAParameters(num_clusters=3))
    state = method.initialize(population)
    # One model is far better than the others: everyone chooses it.
    state, _ = method.next(state, Cohort(population, np.array([0, 1, 2]), (7, 1)))
    best = state.models[np.bincount(method.choose(state, population).assignment).argmax()]
    state = dataclasses.replace(state, models=np.stack([best * 0, best, best * -1]))
    after, metrics = method.next(state, Cohort(population, np.array([0, 1, 2]), (7, 2)))
    assert metrics.clusters.tolist() == [1, 1, 1]
    np.testing.assert_array_equal(after.models[[0, 2]], state.models[[0, 2]])
    assert np.abs(after.models[1] - state.models[1]).max() > 1e-4
    (note,) = method.views(after).notes
    assert note.startswith("no client uses 2 of the 3 models")
    assert not method.views(dataclasses.replace(after, assignment=np.array([0, 2, 1], np.int32))).notes


@pytest.mark.slow
def test_groups_of_turned_digits_are_found(tff_worker, model, digit_clients):
    turns = [0, 1, 0, 1, 1, 0, 0, 1]
    population = digit_clients([150] * 8, turns=turns)
    method = build_ifca(
        model,
        LocalTraining(epochs=5, batch_size=10, learning_rate=0.1),
        IFCAParameters(num_clusters=2, start="attracting"),
        seed=2,
    )
    state = method.initialize(population)
    for number in range(1, 5):
        state, _ = method.next(state, Cohort(population, np.arange(8), (3, number)))
    found = method.choose(state, population).assignment
    assert len({(turn, int(cluster)) for turn, cluster in zip(turns, found)}) == 2
    assert len(set(found)) == 2


def test_newcomers_choose_by_loss(tff_worker, convex, digit_clients):
    everyone = digit_clients([60] * 6, turns=[0, 0, 2, 2, 0, 2])
    known, newcomers = split(everyone, [4, 5])
    method = build_ifca(convex, WHOLE, IFCAParameters(num_clusters=3), seed=1)
    state = method.initialize(known)
    for number in range(1, 4):
        state, _ = method.next(state, Cohort(known, known.client_ids, (7, number)))
    admitted = method.admit(state, newcomers)
    models = [tuple(tensor.numpy() for tensor in convex.unravel(row)) for row in state.models]
    expected = [np.argmin([oracle.loss(model, *as_arrays(everyone, c)) for model in models]) for c in (4, 5)]
    np.testing.assert_array_equal(admitted.clusters([4, 5]), expected)
    np.testing.assert_array_equal(admitted.clusters(known.client_ids), state.assignment)
    with pytest.raises(UserError, match="client 4 is no newcomer"):
        method.admit(admitted, newcomers)


def test_the_warm_up_forces_equal_groups_and_then_clients_choose(tff_worker, convex, digit_clients):
    """Two rounds of random equal groups, whose models are the forced clients', then one of choices; against NumPy."""
    population = digit_clients([30] * 6)
    how = IFCAParameters(num_clusters=3, start="warm_up", warm_up_rounds=2)
    method, local = build_ifca(convex, WHOLE, how), {"steps": 3, "learning_rate": 0.2, "momentum": 0.5}
    clients = [as_arrays(population, client) for client in range(6)]
    state, groups = method.initialize(population), []
    for number in range(1, 4):
        models = [tuple(tensor.numpy().astype(float) for tensor in convex.unravel(row)) for row in state.models]
        chosen = method.choose(state, population).assignment
        state, metrics = method.next(state, Cohort(population, np.arange(6), (7, number)))
        groups.append(metrics.clusters.tolist())
        told = "for 2 rounds clients are in random groups (warm_up_rounds), and this run ended in that time"
        assert (told in method.views(state).notes) == (number <= 2)
        if number <= 2:
            assert sorted(groups[-1]) == [0, 0, 1, 1, 2, 2]
            assert groups[-1] != chosen.tolist()  # nobody forced, they would be others
            expected, _ = oracle.round_of_ifca(models, clients, forced=groups[-1], **local)
        else:
            assert groups[-1] == chosen.tolist()
            expected, choices = oracle.round_of_ifca(models, clients, **local)
            assert choices == groups[-1]
        np.testing.assert_allclose(state.models, [convex.ravel(each) for each in expected], rtol=0, atol=1e-5)
    assert groups[0] != groups[1]


def test_a_finder_that_finds_nothing_says_so(tff_worker, convex, digit_clients, monkeypatch):
    monkeypatch.setattr("tffcl.algorithms.ifca._MOST_DRAWS", 3)
    population = digit_clients([30])  # one client cannot be attracted by two models
    method = build_ifca(convex, WHOLE, IFCAParameters(num_clusters=2, start="attracting"))
    with pytest.raises(UserError, match=r"3 draws gave no 2 models that each attract 0.2 of the clients \(best: 0\)"):
        method.initialize(population)


@pytest.mark.slow  # as that of FLIS
def test_the_authors_way_chooses_by_test_accuracy(tff_worker, convex, digit_clients):
    population = digit_clients([40, 40])
    method = build_ifca(convex, WHOLE, IFCAParameters(num_clusters=2, choose_by="test_accuracy"))
    state = method.initialize(population)
    models = [tuple(tensor.numpy() for tensor in convex.unravel(row)) for row in state.models]
    right = []
    for client in (0, 1):
        data = next(iter(population.test(client).dataset.batch(1000)))
        x = (data["x"].numpy().reshape(-1, 64) / 255.0 - 0.3) / 0.4
        right.append(np.argmax([(oracle.probabilities(m, x).argmax(1) == data["y"].numpy()).mean() for m in models]))
    _, metrics = method.next(state, Cohort(population, np.array([0, 1]), (7, 1)))
    np.testing.assert_array_equal(metrics.clusters, right)
    np.testing.assert_array_equal(method.choose(state, population).assignment, right)


@pytest.mark.slow
def test_clients_choose_by_the_loss_on_what_was_held_out(tff_worker, convex, digit_clients):
    population = digit_clients([40, 40])
    method = build_ifca(convex, WHOLE, IFCAParameters(num_clusters=2, choose_by="validation_loss"))
    with pytest.raises(UserError, match="client 0 has no validation examples; clients.with_validation"):
        method.initialize(population)
    # Held out are the five examples that the better one of two models is worst at, so that the other examples choose
    # another way.
    data = [population.train(client).stacked for client in (0, 1)]
    stacked = np.stack([convex.initial, -convex.initial])
    models = [tuple(tensor.numpy() for tensor in convex.unravel(row)) for row in stacked]

    def losses(x, y):
        x = (x.reshape(-1, 64) / 255.0 - 0.3) / 0.4
        return np.array([-np.log(oracle.probabilities(model, x)[np.arange(len(y)), y]) for model in models])

    held, expected = [], []
    for each in data:
        apart = losses(each["x"], each["y"])
        better = apart.mean(axis=1).argmin()
        held.append(np.argsort(apart[1 - better] - apart[better])[:5])
        expected.append(losses(each["x"][held[-1]], each["y"][held[-1]]).mean(axis=1).argmin())
        assert expected[-1] == 1 - better
    x, y = (np.concatenate([each[name] for each in data]) for name in "xy")
    clients = dataclasses.replace(
        population, validation_examples={0: ClientExamples(x, y, held[0]), 1: ClientExamples(x, y, 40 + held[1])}
    )
    state = dataclasses.replace(method.initialize(clients), models=stacked)
    np.testing.assert_array_equal(method.choose(state, clients).assignment, expected)
    _, metrics = method.next(state, Cohort(clients, np.array([0, 1]), (7, 1)))
    np.testing.assert_array_equal(metrics.clusters, expected)


@pytest.mark.parametrize("start", ["independent", "warm_up"])
def test_a_round_of_fewer_clients_than_a_secure_sum_hides_is_left_out(convex, digit_clients, start):
    """Whatever they choose, their model would wait: their sums would be shown to the server for nothing."""
    how, population = IFCAParameters(num_clusters=2, start=start), digit_clients([30] * 4)
    method = build_ifca(convex, TRAINING, how, aggregation=tffcl.aggregation("secure_sum", min_cluster_size=3))
    before = method.initialize(population)
    after, metrics = method.next(before, Cohort(population, population.client_ids[:2], (0, 1)))
    assert after is before and not len(metrics.client_ids) and metrics.traffic.up == 0


@pytest.mark.slow  # every method's traffic is in the conformance checks
def test_all_models_are_charged(tff_worker, convex, digit_clients):
    population = digit_clients([30] * 4)
    method = build_ifca(convex, WHOLE, IFCAParameters(num_clusters=3))
    state, metrics = method.next(method.initialize(population), Cohort(population, np.arange(4), (7, 1)))
    assert len(state.models) == 3 and metrics.traffic.down == 4 * 3 * 4 * convex.size
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(method.exports().build()["training"])
    assert metrics.traffic.up == 4 * type_bytes(form.work.type_signature.result)


@pytest.mark.slow
def test_the_round_rebuilt_from_its_map_reduce_form(tff_worker, through_map_reduce, convex, digit_clients):
    how = IFCAParameters(num_clusters=2)
    process = build_ifca_round(convex, WHOLE, how).process({"models": draw_models(convex, how, 3)})
    population = digit_clients([31, 40, 25])
    inputs = deployed_inputs(Cohort(population, np.arange(3), (7, 1)), forced=np.full(3, -1, np.int32))
    state = process.initialize()
    direct, _ = process.next(state, inputs)
    again, _ = through_map_reduce(process.next, state, inputs)
    assert np.abs(direct["models"] - state["models"]).max() > 0.01
    np.testing.assert_allclose(again["models"], direct["models"], atol=1e-6)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"num_clusters": 0}, "num_clusters is 0; it must be a whole number from 1"),
        ({"start": "attractin"}, "did you mean 'attracting'"),
        ({"initialization": "glorrot"}, "did you mean 'glorot'"),
        (
            {"num_clusters": 4, "start": "attracting", "least_share": 0.3},
            r"least_share is 0.3; it must be above 0 and at most 1 / num_clusters, 0.25",
        ),
        ({"warm_up_rounds": 0}, "warm_up_rounds is 0"),
        ({"choose_by": "test_acuracy"}, "did you mean 'test_accuracy'"),
    ],
)
def test_bad_parameters(values, message):
    with pytest.raises(UserError, match=message):
        IFCAParameters(**values)


@pytest.mark.parametrize("start", ["independent", "warm_up"])
def test_more_models_than_the_cohort_has_clients(tff_worker, convex, digit_clients, start):
    population = digit_clients([30] * 3)
    method = build_ifca(convex, WHOLE, IFCAParameters(num_clusters=3, start=start))
    before = method.initialize(population)
    state, metrics = method.next(before, Cohort(population, np.array([0, 1]), (7, 1)))
    left = np.setdiff1d(np.arange(3), metrics.clusters)
    assert len(left) and (state.models != before.models).any(axis=1).sum() == len(set(metrics.clusters))
    np.testing.assert_array_equal(state.models[left], before.models[left])


@pytest.mark.slow
def test_what_the_finder_asks_is_traffic_of_the_first_round(tff_worker, convex, digit_clients):
    population = digit_clients([60] * 4, turns=[0, 1, 0, 1])
    found, plain = (
        build_ifca(convex, WHOLE, IFCAParameters(num_clusters=2, **start), seed=3)
        for start in ({"start": "attracting", "least_share": 0.25}, {})
    )
    cohort = Cohort(population, np.arange(4), (7, 1))
    first, second = found.initialize(population), plain.initialize(population)
    draws = 1 + next(
        draw
        for draw in range(200)
        if np.array_equal(draw_models(convex, IFCAParameters(num_clusters=2), 3 + draw), first.models)
    )
    state, metrics = found.next(first, cohort)
    _, without = plain.next(second, cohort)
    asked = draws * 4  # clients, each of which received two models and told its choice
    assert metrics.signatures.down == asked * 2 * 4 * convex.size == metrics.traffic.down - without.traffic.down
    assert metrics.signatures.up == asked * 4 == metrics.traffic.up - without.traffic.up
    _, later = found.next(state, Cohort(population, np.arange(4), (7, 2)))
    assert later.signatures.down == later.signatures.up == 0


@pytest.mark.slow
def test_a_start_from_rounds_of_fedavg(tff_worker, model, digit_clients):
    """Two rounds are FedAvg's own; then all models share what it learned but for their last layers."""
    population, cohorts = digit_clients([31, 40, 25, 50]), [(0, 1, 2, 3), (0, 2), (0, 1, 2, 3)]
    how = IFCAParameters(num_clusters=2, start="fedavg", fedavg_rounds=2)
    method, plain = build_ifca(model, TRAINING, how, seed=5), build_fedavg(model, TRAINING)
    state, one = method.initialize(population), plain.initialize(population)
    for number, clients in enumerate(cohorts[:2], 1):
        cohort = Cohort(population, np.array(clients), (7, number))
        (state, metrics), (one, same) = method.next(state, cohort), plain.next(one, cohort)
        np.testing.assert_array_equal(state.models, np.repeat(one.models, 2, axis=0))
        assert metrics.traffic == same.traffic
    told = ("for 2 rounds it is FedAvg (fedavg_rounds), and this run ended in that time",)
    assert method.views(state).notes == told
    *_, last = model.layer_slices().values()
    drawn = draw_models(model, how, 5)
    starts = np.concatenate([np.repeat(one.models[:, : last.start], 2, axis=0), drawn[:, last.start :]], axis=1)
    assert np.abs(starts[0] - starts[1]).max() > 0.01
    independent = build_ifca(model, TRAINING, IFCAParameters(num_clusters=2), seed=5)
    given = dataclasses.replace(independent.initialize(population), models=starts)
    cohort = Cohort(population, np.arange(4), (7, 3))
    (after, _), (expected, _) = method.next(state, cohort), independent.next(given, cohort)
    np.testing.assert_array_equal(after.models, expected.models)
    assert told[0] not in method.views(after).notes
    with pytest.raises(UserError, match="start 'fedavg' takes no aggregation"):
        build_ifca(model, TRAINING, how, aggregation=tff.aggregators.MeanFactory())


def test_after_rounds_of_fedavg_weights_that_were_given_differ_by_their_noise_alone():
    """What those rounds have learned of the last layer stays, too."""
    keras, rng = own_data.keras_perceptron(), np.random.default_rng(0)
    keras.set_weights([weight + 0.01 * np.arange(weight.size).reshape(weight.shape) for weight in keras.get_weights()])
    model = FlatModel.from_keras(keras, own_data.CROSS_ENTROPY, own_data.spec([30], tf.float32))
    how = IFCAParameters(num_clusters=2, start="fedavg", fedavg_rounds=1)
    learned = np.repeat(rng.normal(size=[1, model.size]).astype(np.float32), 2, axis=0)
    last, expected = list(model.layer_slices().values())[-1], learned.copy()
    expected[:, last] += (draw_models(model, how, 5) - model.initial)[:, last]
    np.testing.assert_allclose(build_ifca(model, TRAINING, how, seed=5)._apart(learned), expected, rtol=0, atol=1e-6)
    assert np.abs(expected[0] - expected[1]).max() > 0


def test_models_are_drawn_as_it_is_asked_for_a_single_one_too(model):
    """Of PACFL's code biases are standard normal; as the model's own they are no more than an eighth."""
    for count in (1, 2):
        how = [IFCAParameters(num_clusters=count, initialization=each) for each in (None, "ifca_reference")]
        own, theirs = (model.unravel(draw_models(model, each, 3)[-1])[1].numpy() for each in how)
        assert np.abs(own).max() <= 1 / 8 < 0.5 < theirs.std()


def test_sharing_needs_weights(convex):
    with pytest.raises(UserError, match="share_representation needs the weights"):
        build_ifca(convex, WHOLE, IFCAParameters(share_representation=True), aggregation=tff.aggregators.MeanFactory())
