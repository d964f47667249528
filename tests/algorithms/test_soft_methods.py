"""Methods whose clients use mixtures of models: against NumPy, at their limits, and what they send."""

import dataclasses
import functools
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

import tffcl
from tests.algorithms.conftest import PULL
from tests.oracles import soft_clusters as oracle
from tests.own_data import CROSS_ENTROPY, sequential
from tests.short_runs import (
    COHORTS,
    TRAINING,
    assert_close,
    batch_rows,
    cohort_of,
    deployed_inputs,
    models_of,
    split,
    train,
)
from tffcl.algorithms.composed import build_composed
from tffcl.algorithms.each_round_parameters import FedEMParameters, FedRCParameters, FedSoftParameters
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.algorithms.fedem import build_fedem
from tffcl.algorithms.fedrc import build_fedrc
from tffcl.algorithms.fedsoft import build_fedsoft
from tffcl.algorithms.given import build_given
from tffcl.algorithms.parameters import ComposedParameters, GivenParameters
from tffcl.algorithms.soft_grouping import memberships
from tffcl.client_work.mixture import check_likelihood
from tffcl.errors import UserError
from tffcl.models.flat import FlatModel
from tffcl.rounds import blocks

FIVE = (*COHORTS, (2, 4), (0, 1, 3))
CLASSES, K = 10, 3
layers = tf.keras.layers


@pytest.fixture(scope="module")
def regression():
    """Softmax regression on the digits of the clients."""
    flat = layers.Rescaling(1 / 255, input_shape=(8, 8, 1)), layers.Flatten(), layers.Dense(CLASSES)
    spec = tf.TensorSpec([None, 8, 8, 1], tf.uint8), tf.TensorSpec([None], tf.int32)
    return FlatModel.from_keras(sequential(*flat), CROSS_ENTROPY, spec)


@pytest.fixture(scope="module")
def data(population):
    """`{client: (features, labels)}`, features as the regression has them."""
    held = {int(client): population.train(client) for client in population.client_ids}
    return {client: (own.x.reshape(-1, 64) / 255, own.y) for client, own in held.items()}


@pytest.fixture(scope="module")
def by_hand(population, data):
    """Runs an oracle on the batches that our clients visit: `(oracle, models, *more)`."""

    def batches(number, client):
        return batch_rows(population, cohort_of(population, FIVE[number - 1], number), client)

    def run(method, models, *more):
        return method(models, FIVE, data, batches, TRAINING.learning_rate, TRAINING.momentum, *more)

    return run


@functools.cache
def fedem(model, **more):
    return build_fedem(model, TRAINING, FedEMParameters(**{"num_clusters": K, **more}), seed=5)


def mixtures_of(state, population):
    """What the clients that took part keep, `[n, K]`."""
    return np.array([np.asarray(value) for value in state.kept.of(population.client_ids)])


def test_fedem_is_the_papers_in_numpy(tff_worker, regression, population, by_hand):
    method = fedem(regression)
    start = method.initialize(population)
    models, mixtures, losses = by_hand(oracle.fedem, start.models)
    state = train(method, population, FIVE[:-1])
    state, metrics = method.next(state, cohort_of(population, FIVE[-1], len(FIVE)))
    np.testing.assert_allclose(metrics.losses, [losses[client] for client in FIVE[-1]], rtol=1e-4)
    np.testing.assert_allclose(state.models, models, atol=2e-5)
    np.testing.assert_allclose(mixtures_of(state, population), [mixtures[c] for c in range(5)], atol=2e-4)
    assert np.ptp(state.mixture, axis=1).max() > 0.2  # they are no longer equal


@pytest.mark.slow
def test_what_a_bound_cuts_off_of_numbers_of_labels_is_told_later(tff_worker, regression, digit_clients):
    """Who has fewer examples than before takes more back than a secure sum lets it for each of them."""
    secure = tffcl.aggregation("secure_sum", min_cluster_size=2)
    method = build_fedrc(regression, TRAINING, FedRCParameters(num_clusters=2), seed=5, aggregation=secure)
    state = train(method, digit_clients([120] * 5), [range(5)])
    few = digit_clients([4] * 5)
    for number in range(2, 8):
        state, _ = method.next(state, cohort_of(few, range(5), number))
        told = kept_of(state, few, "labels").sum(axis=0)
        np.testing.assert_allclose(state.server["labels"], told, atol=0.02)
    np.testing.assert_allclose(told.sum(), 20, rtol=1e-3)


def kept_of(state, population, name):
    return np.array([value[name] for value in state.kept.of(population.client_ids)])


def test_fedrc_is_the_papers_in_numpy(tff_worker, regression, population, by_hand):
    method = build_fedrc(regression, TRAINING, FedRCParameters(num_clusters=K), seed=5)
    start = method.initialize(population)
    models, mixtures, labels = by_hand(oracle.fedrc, start.models, CLASSES)
    state = train(method, population, FIVE)
    np.testing.assert_allclose(state.models, models, atol=2e-5)
    np.testing.assert_allclose(state.server["labels"], labels, atol=5e-3)
    np.testing.assert_allclose(kept_of(state, population, "mixture"), [mixtures[c] for c in range(5)], atol=2e-4)


@pytest.mark.parametrize(
    "pull, every, first",
    [
        pytest.param(0.0, 1, "clusters", marks=pytest.mark.slow),
        pytest.param(0.7, 2, "clusters", marks=pytest.mark.slow),
        (0.7, 2, "own"),
    ],
)
def test_fedsoft_is_the_papers_in_numpy(tff_worker, regression, population, by_hand, pull, every, first):
    """A client that goes on with its own model is still pulled to the mean of the clusters'."""
    how = FedSoftParameters(num_clusters=K, proximal_weight=pull, estimate_every=every, smoother=0.01, start=first)
    method = build_fedsoft(regression, TRAINING, how, seed=5)
    start = method.initialize(population)
    models, importance = by_hand(oracle.fedsoft, start.models, pull, every, 0.01, first)
    state = train(method, population, FIVE)
    np.testing.assert_allclose(state.models, models, atol=2e-5)
    found = kept_of(state, population, "importance")
    np.testing.assert_allclose(found, [importance[client] for client in range(5)], atol=1e-6)
    assert len(np.unique(found)) > K


@pytest.mark.slow
def test_fedsofts_clients_may_go_on_with_their_own_models(tff_worker, regression, population):
    own, clusters = (build_fedsoft(regression, TRAINING, FedSoftParameters(start=each)) for each in ("own", "clusters"))
    first, same = (train(each, population, FIVE[:1]) for each in (own, clusters))
    np.testing.assert_array_equal(first.models, same.models)
    assert kept_of(first, population, "model").shape == (5, regression.size)
    assert np.abs(train(own, population).models - train(clusters, population).models).max() > 1e-4


@pytest.mark.slow  # as NumPy's rounds with a term
def test_a_single_cluster_with_a_term_is_fedprox(tff_worker, model, population, reference):
    method = build_fedsoft(model, TRAINING, FedSoftParameters(num_clusters=1, proximal_weight=PULL))
    assert_close(train(method, population).models[0], reference("fedprox")[1][0])


@pytest.mark.slow  # as NumPy's rounds of more models
def test_fedem_with_one_model_is_fedavg(tff_worker, model, population):
    """With whatever changes from round to round: a rate, and momentum that clients keep."""
    training = dataclasses.replace(TRAINING, optimizer_state="kept", learning_rate_decay=0.5)
    one = build_fedem(model, training, FedEMParameters(num_clusters=1), seed=5)
    found, expected = (train(each, population).models for each in (one, build_fedavg(model, training)))
    assert_close(found, expected)


@pytest.mark.slow
def test_newcomers_and_evaluations_find_the_best_mixture_of_the_models_as_they_are(
    tff_worker, regression, population, data
):
    method = fedem(regression, mixture_steps=300)
    known, newcomers = split(population, [3])
    state = train(fedem(regression), known, [(0, 1, 2, 4)] * 2)
    joined = method.admit(state, newcomers)
    x, y = data[3]
    best = np.full(K, 1 / K)
    for _ in range(3000):
        best = oracle.e_step(state.models, best, x, y).mean(axis=1)
    np.testing.assert_allclose(joined.mixture[3], best, atol=2e-3)
    chosen = method.choose(joined, population)
    np.testing.assert_allclose(chosen.mixture[3], joined.mixture[3], atol=1e-6)
    np.testing.assert_array_equal(mixtures_of(chosen, population), mixtures_of(joined, population))
    assert not np.array_equal(chosen.mixture, state.mixture)
    # A model is used by who has any weight of it, whichever weighs most.
    assert not method.views(dataclasses.replace(joined, assignment=joined.assignment * 0)).notes
    (note,) = method.views(dataclasses.replace(joined, mixture=joined.mixture * [1, 1, 0])).notes
    assert note.startswith("no client uses 1 of the 3 models")


def composed(model, **more):
    how = {"signature": "label_histogram", "metric": "euclidean", "num_clusters": 2, **more}
    return build_composed(model, TRAINING, ComposedParameters(**how))


def test_weights_are_a_softmax_of_distances_to_members():
    proximity = np.array([[0, 2, 4, 6], [2, 0, 8, 1], [4, 8, 0, 3], [6, 1, 3, 0]], float)
    found = memberships(proximity, np.array([0, 0, 1, 1]), 2.0)
    distances = np.array([[2, 5], [2, 4.5], [6, 3], [3.5, 3]])
    np.testing.assert_allclose(found, np.exp(-distances / 2) / np.exp(-distances / 2).sum(1, keepdims=True), rtol=1e-6)
    only = memberships(proximity[:3, :3], np.array([0, 0, 1]), 2.0)  # whose only member is at 0 from its own
    np.testing.assert_allclose(only[2], np.exp([-3, 0]) / np.exp([-3, 0]).sum(), rtol=1e-6)
    np.testing.assert_array_equal(memberships(proximity, np.array([0, 0, 1, 1]), 1e-9), np.eye(2)[[0, 0, 1, 1]])
    tenth = 0.1 * proximity[~np.eye(4, dtype=bool)].mean()  # of two clients, and not of one with itself
    usual = [memberships(proximity, np.array([0, 0, 1, 1]), each) for each in (None, tenth)]
    np.testing.assert_allclose(*usual, rtol=1e-6)


def test_with_one_hot_weights_a_soft_composition_is_the_hard_one_and_the_given_groups(tff_worker, model, population):
    soft, hard = composed(model, grouping="soft", temperature=1e-9), composed(model)
    groups = dict(enumerate(hard.initialize(population).assignment.tolist()))
    given = build_given(model, TRAINING, GivenParameters(groups))
    told = [
        each.next(each.initialize(population), cohort_of(population, range(5), 1))[1].losses for each in (soft, hard)
    ]
    np.testing.assert_allclose(told[0], told[1], rtol=1e-5)
    states = [train(each, population) for each in (soft, hard, given)]
    np.testing.assert_array_equal(states[0].mixture, np.eye(2)[states[1].assignment])
    models = [models_of(each, state, population) for each, state in zip((soft, hard, given), states)]
    assert_close(models[0], models[1])
    np.testing.assert_array_equal(models[1], models[2])


@pytest.mark.slow
def test_fedem_with_one_hot_mixtures_trains_the_given_groups(tff_worker, model, population):
    """They stay so, and each group's model moves by its share of a round's examples: the paper's mean is of all."""
    groups, (clients, number) = np.array([0, 1, 1, 0, 1], np.int32), ([0, 1, 2, 3], 1)
    fedem = build_fedem(model, TRAINING, FedEMParameters(num_clusters=2))
    given = build_given(model, TRAINING, GivenParameters(dict(enumerate(groups.tolist()))))
    start, apart = fedem.initialize(population), given.initialize(population)
    kept = start.kept.updated(population.client_ids, list(np.eye(2, dtype=np.float32)[groups]))
    start = dataclasses.replace(start, models=apart.models, kept=kept)
    after, moved = (each.next(state, cohort_of(population, clients, number))[0] for each, state in
                    ((fedem, start), (given, apart)))  # fmt: skip
    np.testing.assert_allclose(after.mixture[clients], np.eye(2)[groups[clients]], rtol=1e-6, atol=1e-20)
    examples = np.bincount(groups[clients], weights=population.sizes[clients])
    shares = (examples / examples.sum())[:, np.newaxis]
    assert_close(after.models - start.models, shares * (moved.models - apart.models))
    assert np.abs(moved.models - apart.models).max(axis=1).min() > 0.05


def test_a_model_whose_clients_are_not_there_stays_nearly_as_it_is(tff_worker, model, population):
    method = composed(model, grouping="soft", temperature=0.02)
    state = method.initialize(population)
    own = np.argsort(state.mixture[:, 1])[:2]
    far = state.mixture[own, 1].sum()
    assert 1e-9 < far < 0.1
    after, _ = method.next(state, cohort_of(population, own, 1))
    moved = np.abs(after.models - state.models).max(axis=1)
    assert 0 < moved[1] < 2 * far * moved[0] and moved[0] > 0.01


@pytest.mark.slow
def test_without_smoothing_a_model_that_is_nobodys_nearest_stays(tff_worker, model, population):
    method = build_fedsoft(model, TRAINING, FedSoftParameters(2, smoother=0.0))
    nines, without = model.initial.copy(), population.map(lambda x, y: (x, y % 9))
    nines[-1] += 100  # the last class's bias
    state = dataclasses.replace(method.initialize(without), models=np.stack([model.initial, nines]))
    after, _ = method.next(state, cohort_of(without, [0, 1, 3], 1))
    assert after.mixture[[0, 1, 3]].tolist() == [[1, 0]] * 3
    np.testing.assert_array_equal(after.models[1], state.models[1])
    assert np.abs(after.models[0] - state.models[0]).max() > 1e-3


@pytest.mark.slow
def test_a_soft_composition_of_one_cluster_is_fedavg(tff_worker, model, population, reference):
    method = composed(model, grouping="soft", num_clusters=1)
    assert_close(models_of(method, train(method, population), population), reference("fedavg")[1])


def test_newcomers_of_a_soft_composition_get_weights_and_change_nobodys(tff_worker, model, population):
    known, newcomers = split(population, [1, 3])
    method = composed(model, grouping="soft")
    state = train(method, known, [(0, 2, 4)])
    assert len(np.unique(state.mixture)) > 2
    joined = method.admit(state, newcomers)
    np.testing.assert_array_equal(joined.mixture[[0, 2, 4]], state.mixture)
    np.testing.assert_allclose(joined.mixture.sum(axis=1), 1, rtol=1e-6)
    one = method.admit(state, newcomers.restricted([1]))
    other = method.admit(one, newcomers.restricted([3]))  # client 1 is a member now
    np.testing.assert_array_equal(other.mixture[[0, 1, 2, 4]], one.mixture)


@pytest.mark.slow
def test_newcomers_of_a_soft_composition_found_clusters_of_which_all_keep_an_optimizer(tff_worker, model, population):
    known, newcomers = split(population, [1, 3])
    adam = dataclasses.replace(TRAINING, optimizer="adam", optimizer_state="kept", learning_rate=0.003, momentum=0)
    how = ComposedParameters(signature="label_histogram", metric="euclidean", grouping="soft", threshold=1e-6)
    founding = build_composed(model, adam, how)
    state = train(founding, known, [(0, 2)])
    joined = founding.admit(state, newcomers)
    np.testing.assert_array_equal(joined.mixture[[1, 3], 3:], np.eye(2))
    of_0, before = joined.optimizers.value(0), state.optimizers.value(0)
    assert list(of_0) == [f"model_{number}" for number in range(5)]
    tf.nest.map_structure(np.testing.assert_array_equal, {name: of_0[name] for name in before}, dict(before))
    assert joined.optimizers.has(range(5)).tolist() == [True, False, True, False, False]
    after = train(founding, population, state=joined)
    assert after.optimizers.has(range(5)).all()


@pytest.mark.parametrize("wrong, message", [
    ({"temperature": 0.5}, "temperature is 0.5; it is for grouping 'soft', and grouping is 'hierarchical'"),
    ({"grouping": "soft", "training": "ditto"}, 'grouping "soft" trains all models by "sgd"'),
    ({"grouping": "soft", "regroup_every": 2}, 'grouping "soft" is formed once, before training'),
    ({"grouping": "soft", "temperature": 0}, "temperature is 0"),
])  # fmt: skip
def test_what_a_soft_grouping_cannot_have_is_told_in_one_line(wrong, message):
    with pytest.raises(UserError, match=message):
        ComposedParameters(num_clusters=2, **wrong)


def test_a_round_sends_all_models_each_way(tff_worker, regression, population):
    method = fedem(regression)
    _, metrics = method.next(method.initialize(population), cohort_of(population, (0, 2), 1))
    size = 4 * regression.size
    reports = 4 + 4 + 1 + 4 + 4  # examples, loss, finite, weight and ID of a client
    assert (metrics.traffic.down, metrics.traffic.up) == (2 * K * size, 2 * (K * (size + 4) + reports))


# FedRC's labels are summed beside the models.
LIKE_FEDRC = [pytest.param(name, marks=pytest.mark.slow) for name in ("fedsoft", "composed")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedrc", *LIKE_FEDRC])
def test_a_sum_gives_the_models_of_the_means(tff_worker, regression, population, name):
    builders = {"fedem": build_fedem, "fedrc": build_fedrc, "fedsoft": build_fedsoft}
    method = builders[name](regression, TRAINING) if name in builders else composed(regression, grouping="soft")
    state, cohort = train(method, population, FIVE[:1]), cohort_of(population, (0, 2, 4), 2)
    after, metrics = method.next(state, cohort)
    if name in builders:
        values, work = method.values(state), method._round.work
        fields = {each: work.values(cohort)[each] for each in work.fields} | {"kept": state.kept.of(cohort.client_ids)}
    else:
        weights = state.mixture[list(cohort.client_ids)]
        moves = np.tile(np.minimum(weights.sum(axis=0), 1), (3, 1))
        values, fields = {"models": state.models}, {"weights": weights, "moves": moves}
    summed = method.exports().summed(len(state.models))
    found, told = summed(values, deployed_inputs(cohort, **fields))
    assert np.abs(after.models - state.models).max() > 1e-3
    np.testing.assert_allclose(found["models"], after.models, rtol=0, atol=2e-6)
    assert told["clients"].tolist() == [3] * len(state.models)
    assert told["loss"] == pytest.approx(np.average(metrics.losses, weights=metrics.examples), rel=1e-5)
    if name == "fedrc":
        np.testing.assert_allclose(found["labels"], after.server["labels"], atol=1e-4)


@pytest.mark.slow
def test_a_client_whose_model_is_not_finite_is_silenced_in_a_sum(tff_worker, regression, population):
    method = fedem(regression)
    state, cohort = method.initialize(population), cohort_of(population, (0, 1), 1)
    one, two = deployed_inputs(cohort, kept=state.kept.of(cohort.client_ids))
    two["kept"] = np.full(K, np.nan, np.float32)
    summed = method.exports().summed(K)
    found, told = summed(method.values(state), [one, two])
    alone, _ = summed(method.values(state), [one])
    np.testing.assert_array_equal(found["models"], alone["models"])
    assert told["clients"].tolist() == [1] * K


def test_weighted_examples_of_any_loss(regression, data):
    x, y = data[0]
    outputs, weights = np.random.default_rng(1).normal(size=[len(y), CLASSES]), np.linspace(0, 1, len(y))
    given = tf.constant(outputs, tf.float32), tf.constant(y), tf.constant(weights, tf.float32)
    logarithms = outputs - np.log(np.exp(outputs).sum(axis=1, keepdims=True))
    expected = -np.mean(weights * logarithms[np.arange(len(y)), y])
    slowly = dataclasses.replace(regression.objective, weigh=None)
    for objective in (regression.objective, slowly):
        np.testing.assert_allclose(objective.weighted_loss(*given), expected, rtol=1e-5)
    assert regression.objective.weigh and not slowly.weigh


def with_loss(loss, outputs=1, label=tf.int32, **more):
    keras = sequential(layers.Dense(outputs, input_shape=(3,)))
    shape = [None] if outputs in (1, 4) else [None, outputs]
    spec = tf.TensorSpec([None, 3]), tf.TensorSpec(shape, label)
    return FlatModel.from_keras(keras, loss, spec, **more)


keras_losses = tf.keras.losses


@pytest.mark.parametrize("make", [
    pytest.param(lambda: with_loss(keras_losses.BinaryCrossentropy(from_logits=True)), marks=pytest.mark.slow),
    lambda: with_loss(keras_losses.BinaryCrossentropy(from_logits=True), 3),
    lambda: with_loss(keras_losses.MeanSquaredError(), 2, tf.float32),
    pytest.param(lambda: with_loss(keras_losses.Huber(), 1, tf.float32), marks=pytest.mark.slow),
    pytest.param(lambda: with_loss(CROSS_ENTROPY, 4), marks=pytest.mark.slow),
])  # fmt: skip
def test_losses_that_are_likelihoods_are_taken(make):
    check_likelihood(make(), "FedEM")


@pytest.mark.parametrize("make", [
    lambda: with_loss(CROSS_ENTROPY, 4, class_weight={0: 3.0}),
    pytest.param(lambda: with_loss(keras_losses.BinaryFocalCrossentropy(from_logits=True)), marks=pytest.mark.slow),
    lambda: with_loss(keras_losses.MeanAbsolutePercentageError(), 1, tf.float32),
])  # fmt: skip
def test_losses_that_are_none_are_told_in_one_line(make):
    with pytest.raises(UserError, match="FedEM takes the loss of an example for its negative log-likelihood") as told:
        tffcl.algorithms.build_fedem(make(), TRAINING)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("name", ["FedEMParameters", "FedRCParameters", "FedSoftParameters"])
def test_there_is_one_model_at_least(name):
    with pytest.raises(UserError, match="num_clusters is 0"):
        getattr(tffcl.algorithms, name)(num_clusters=0)


@pytest.mark.parametrize("name", ["dp", "secure_sum", "robust"])
def test_a_soft_grouping_takes_means_by_weights_alone(model, name):
    how = ComposedParameters(signature="label_histogram", grouping="soft", num_clusters=2)
    with pytest.raises(UserError, match="takes means by the clients' weights"):
        build_composed(model, TRAINING, how, aggregation=tffcl.aggregation(name))


@pytest.mark.parametrize("build, kind, message", [
    (build_fedsoft, "secure_sum", "fedsoft cannot have this aggregation: a sum in which one client weighs nearly all"),
    (build_fedsoft, "dp", "fedsoft cannot have this aggregation: its clusters' models are means by the clients'"),
    (build_fedrc, "dp", "clients of this method upload 'labels' beside 'update', and this .* hides the latter only"),
])  # fmt: skip
def test_what_a_method_cannot_have_is_told_from_python_too(model, build, kind, message):
    with pytest.raises(UserError, match=message):
        build(model, TRAINING, aggregation=tffcl.aggregation(kind))


@pytest.mark.slow
@pytest.mark.parametrize("name, kind", [("fedem", "dp"), ("fedrc", "secure_sum")])
def test_noise_and_secure_sums_are_the_same_in_blocks(tff_worker, regression, population, name, kind):
    options = {"noise_multiplier": 0.3, "seed": 4} if kind == "dp" else {}
    build = {"fedem": build_fedem, "fedrc": build_fedrc}[name]
    method = build(regression, TRAINING, aggregation=tffcl.aggregation(kind, **options))
    state, cohort = method.initialize(population), cohort_of(population, (0, 1, 2, 3), 1)
    whole, _ = method.next(state, cohort)
    with mock.patch.object(blocks, "plan", lambda *given: blocks.Plan(blocks=2, in_flight=2)):
        cut, _ = method.next(state, cohort)
    assert np.abs(whole.models - state.models).max() > 0.01
    np.testing.assert_allclose(cut.models, whole.models, rtol=0, atol=3e-6)
    np.testing.assert_allclose(cut.mixture, whole.mixture, rtol=0, atol=3e-6)


SUMS = [("fedem", "dp"), ("fedrc", "secure_sum"), ("fedsoft", None)]
SUMS = [("composed", None), *(pytest.param(*each, marks=pytest.mark.slow) for each in SUMS)]


@pytest.mark.slow
@pytest.mark.parametrize("name, kind", SUMS)
def test_clients_join_leave_and_come_back_in_a_run_that_was_killed(
    tff_worker, model, regression, population, tmp_path, name, kind
):
    """With each kind of aggregation that such a method takes."""
    options = {"dp": {"noise_multiplier": 0.3, "seed": 4}, "secure_sum": {"min_cluster_size": 2}}.get(kind, {})
    aggregation = kind and tffcl.aggregation(kind, **options)
    builders = {"fedem": build_fedem, "fedrc": build_fedrc, "fedsoft": build_fedsoft}
    first, later = population.restricted([0, 1, 2, 3]), {2: population.restricted([0, 1, 4]), 3: population}

    def run(out, **more):
        method = composed(model, grouping="soft")
        if name in builders:
            method = builders[name](regression, TRAINING, aggregation=aggregation)
        return tffcl.train(
            method, first, rounds=3, clients_per_round=3, later=later, seed=1, out=tmp_path / out,
            show_progress=False, **more,
        )  # fmt: skip

    whole, _ = run("whole"), run("killed", until=2)
    again = run("killed", resume=True)
    found, expected = again.trained.state, whole.trained.state
    np.testing.assert_array_equal(found.models, expected.models)
    np.testing.assert_array_equal(found.mixture, expected.mixture)
    assert found.client_ids.tolist() == [0, 1, 2, 3, 4] and again.summary["notes"] == whole.summary["notes"]
    np.testing.assert_allclose(found.mixture.sum(axis=1), 1, rtol=1e-6)
    assert np.isfinite(found.models).all()
    assert bool(again.summary.get("privacy", {}).get("epsilon")) == (kind == "dp")
    if name in builders:  # one of a composition is exported in test_mixtures
        tffcl.export_result(again, tmp_path / "export")
