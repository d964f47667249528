"""FLIS (DC) and FLIS (HC) on digits in three rotations."""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.own_data import CROSS_ENTROPY, sequential
from tests.short_runs import deployed_inputs, split
from tffcl.algorithms.each_round_parameters import FLISDCParameters
from tffcl.algorithms.flis_dc import build_flis_dc, build_joint_round
from tffcl.algorithms.parameters import FLISHCParameters
from tffcl.algorithms.presets import build_flis_hc, group_flis_hc
from tffcl.client_work.client_work import stack
from tffcl.client_work.evaluation import build_count_correct, build_mean_loss
from tffcl.client_work.local_sgd import LocalTraining, build_local_sgd
from tffcl.clients.cohort import Cohort
from tffcl.clustering.vector_distances import inference_similarity
from tffcl.errors import UserError
from tffcl.models.classifiers import build_mlp
from tffcl.models.flat import FlatModel
from tffcl.rounds.client_queries import build_collection
from tffcl.rounds.traffic import Traffic, type_bytes
from tffcl.signatures.predictions import build_answer, build_inference, related

TRAINING = LocalTraining(epochs=10, batch_size=10, learning_rate=0.1)
TURNS = [0, 1, 0, 1, 2, 2, 0, 1]


@pytest.fixture(scope="module")
def model():
    return build_mlp((8, 8, 1), 10, hidden=64, normalization=(0.3, 0.4), seed=3)


@pytest.fixture(scope="module")
def images(digits):
    return digits[0][1300:1500]


@pytest.fixture(scope="module")
def population(digit_clients):
    return digit_clients([150] * 8, turns=TURNS)


@pytest.fixture(scope="module")
def hc(model, images):
    return build_flis_hc(model, TRAINING, FLISHCParameters(num_clusters=3), server_images=images)


def of_groups(labels):
    return len({(turn, int(label)) for turn, label in zip(TURNS, labels)}) == len(set(labels)) == 3


def test_a_pair_at_exactly_the_threshold_is_in_one_cluster(model, images):
    """As with FLIS (DC); 1 - β of float64 may be below 1 - similarity of float32, and there the square of the root of 6
    is above 6."""
    for count, share in [(count, share) for count in (6, 10) for share in range(1, count)]:
        answers = np.zeros((2, count), np.int32)
        answers[1, share:] = 1  # so many of all are equal
        how = FLISHCParameters(threshold=share / count)
        clustering = group_flis_hc(model, TRAINING, how, server_images=images)
        proximity = clustering.distances({"value": answers}, None)
        assert clustering.group(proximity)[0].tolist() == [0, 0], (count, share)
        assert related(tf.constant(answers), share / count, "agreement", 2).numpy().all(), (count, share)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("form", ["agreement", "frobenius"])
def test_relation_on_the_aggregator_is_the_servers_similarity(soft, form, missing):
    rng = np.random.default_rng(0)
    answers = rng.integers(0, 3, (6, 40)).astype(np.int32)
    if soft:
        answers = rng.dirichlet(np.full(3, 0.1), (6, 40)).astype(np.float32)
    if missing:  # of outputs that are not finite
        answers[0, 5:], answers[1] = (np.nan, np.nan) if soft else (-1, -1)
    similarity = inference_similarity(answers, form=form)
    for beta in np.quantile(similarity, [0.2, 0.5, 0.8]):
        beta = float(beta) + 1e-4
        expected = (similarity >= beta) | np.eye(6, dtype=bool)
        np.testing.assert_array_equal(related(tf.constant(answers), beta, form, 3), expected)


@pytest.mark.slow
def test_the_signature_is_what_the_trained_model_answers(tff_worker, model, images, population):
    signature = build_inference(model, TRAINING, images, seed=4)
    client = collections.OrderedDict(examples=population.train(0).dataset, client_id=np.int32(0))
    _, collected = build_collection(signature)(signature.context, [client])
    local = stack(population.train(0).dataset)
    own = tf.random.experimental.stateless_fold_in(tf.constant([4, 0]), 0)  # with the client's ID
    trained, _ = build_local_sgd(model, TRAINING)(model.initial, local["x"], local["y"], own)
    expected = model.logits(model.unravel(trained), model.preprocess(images), None).numpy().argmax(axis=1)
    np.testing.assert_array_equal(collected["value"][0], expected)
    soft = build_answer(model, soft=True)(trained, images).numpy()
    np.testing.assert_array_equal(soft.argmax(axis=1), expected)
    np.testing.assert_allclose(soft.sum(axis=1), 1, rtol=1e-5)


@pytest.mark.slow
def test_clients_of_the_same_examples_warm_up_in_orders_of_their_own(tff_worker, model, images, population):
    signature = build_inference(model, TRAINING, images, soft=True, seed=4)
    clients = [
        collections.OrderedDict(examples=population.train(0).dataset, client_id=np.int32(each)) for each in (0, 1)
    ]
    first, second = build_collection(signature)(signature.context, clients)[1]["value"]
    assert np.abs(first - second).max() > 1e-4


@pytest.mark.parametrize("soft", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_hc_finds_the_rotations(tff_worker, model, images, population, hc, soft):
    how = FLISHCParameters(num_clusters=3, soft=True)
    by_count = build_flis_hc(model, TRAINING, how, server_images=images) if soft else hc
    state = by_count.initialize(population)
    assert of_groups(state.assignment)
    np.testing.assert_array_equal(state.models, [model.initial] * 3)
    threshold = 1 - float(state.threshold)
    again = build_flis_hc(model, TRAINING, FLISHCParameters(threshold=threshold, soft=soft), server_images=images)
    np.testing.assert_array_equal(again.initialize(population).assignment, state.assignment)


def test_hc_newcomers_join_by_their_answers(tff_worker, population, hc):
    known, newcomers = split(population, [3, 4])
    state = hc.initialize(known)
    admitted = hc.admit(state, newcomers)
    assert of_groups(admitted.assignment)
    np.testing.assert_array_equal(admitted.clusters(known.client_ids), state.assignment)


@pytest.mark.slow  # a round by hand is below
def test_dc_finds_the_rotations_in_every_round(tff_worker, model, images, population, hc):
    beta = 1 - float(hc.initialize(population).threshold)
    method = build_flis_dc(model, TRAINING, FLISDCParameters(threshold=beta), server_images=images)
    state = method.initialize(population)
    for number in (1, 2):
        state, metrics = method.next(state, Cohort(population, np.arange(8), (3, number)))
        assert metrics.relatedness.shape == (8, 8)
        assert (np.diag(metrics.relatedness) == 1).all()
    assert of_groups(method.choose(state, population).assignment)


def test_a_round_of_dc_by_hand(tff_worker, model, images, population):
    """Choice, joint clusters and means of one round, from the uploaded models alone (FLIS Alg. 1 and 2 in NumPy)."""
    beta, clients = 0.35, np.array([0, 2, 3, 5])
    method = build_flis_dc(model, TRAINING, FLISDCParameters(threshold=beta), server_images=images)
    state = method.initialize(population)
    state, _ = method.next(state, Cohort(population, clients, (3, 1)))
    assert len(state.models) > 1
    cohort = Cohort(population, np.array([1, 2, 6]), (3, 2))
    after, metrics = method.next(state, cohort)
    sgd, mean_loss, answer = build_local_sgd(model, TRAINING), build_mean_loss(model), build_answer(model)
    trained, chosen = [], []
    for client in cohort.client_ids:
        local = stack(population.train(client).dataset)
        chosen.append(int(np.argmin([mean_loss(row, local["x"], local["y"]) for row in state.models])))
        trained.append(sgd(state.models[chosen[-1]], local["x"], local["y"], cohort.client_seed(client))[0].numpy())
    np.testing.assert_array_equal(metrics.clusters, chosen)
    answers = np.stack([answer(vector, images) for vector in trained])
    related_to = inference_similarity(answers) >= beta
    np.testing.assert_array_equal(metrics.relatedness, related_to)
    rows = np.unique(related_to, axis=0)
    assert len(after.models) == len(rows)
    expected = [np.mean([trained[j] for j in np.flatnonzero(row)], axis=0) for row in rows]
    np.testing.assert_allclose(
        np.sort(after.models.sum(axis=1)), np.sort(np.sum(expected, axis=1)), rtol=1e-3, atol=1e-3
    )
    for mean in expected:
        assert np.abs(after.models - mean).max(axis=1).min() < 1e-5
    # Whose newest model is known: the founders', which are in the clusters that they founded; and everybody's when
    # asked.
    shown = method.views(after).clusters
    assert (np.delete(shown, cohort.client_ids) == -1).all()
    for client, row in zip(cohort.client_ids, related_to):
        mine = np.mean([trained[j] for j in np.flatnonzero(row)], axis=0)
        # Members of different sizes weigh as their examples; these clients are alike.
        assert np.abs(after.models - mine).max(axis=1).argmin() == shown[client]
    assert method.views(method.choose(after, population)).clusters.min() >= 0


@pytest.mark.slow
def test_answers_at_the_server_give_the_same_models(tff_worker, model, images, population):
    results = []
    for where in ("clients", "server"):
        method = build_flis_dc(
            model, TRAINING, FLISDCParameters(threshold=0.4, answered_by=where), server_images=images
        )
        state = method.initialize(population)
        for number in (1, 2):
            state, metrics = method.next(state, Cohort(population, np.array([0, 1, 4, 6]), (3, number)))
        results.append((state.models, metrics))
    np.testing.assert_allclose(results[0][0], results[1][0], atol=1e-6)
    np.testing.assert_array_equal(results[0][1].relatedness, results[1][1].relatedness)
    assert results[0][1].traffic.up - results[1][1].traffic.up == 4 * 4 * len(images)


def test_dc_newcomers_take_the_best_model(tff_worker, model, images, population):
    known, newcomers = split(population, [3, 4])
    method = build_flis_dc(model, TRAINING, FLISDCParameters(threshold=0.5), server_images=images)
    state = method.initialize(known)
    for number in (1, 2):
        state, _ = method.next(state, Cohort(known, known.client_ids, (3, number)))
    state = method.choose(state, known)
    admitted = method.admit(state, newcomers)
    assert admitted.clusters([3])[0] == state.clusters([1])[0]
    assert admitted.clusters([4])[0] == state.clusters([5])[0]


@pytest.mark.slow  # every method's is in the conformance checks
def test_traffic(tff_worker, model, images, population, hc):
    method = build_flis_dc(model, TRAINING, FLISDCParameters(threshold=1.0), server_images=images)
    state = method.initialize(population)
    state, first = method.next(state, Cohort(population, np.arange(4), (3, 1)))
    state, second = method.next(state, Cohort(population, np.arange(3), (3, 2)))
    assert first.traffic.down == 4 * 4 * model.size  # one model to each of four
    assert (
        second.traffic.down == 3 * len(np.unique(first.relatedness, axis=0)) * 4 * model.size == 3 * 4 * 4 * model.size
    )
    assert method.joining == Traffic(down=images.size)
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(method.exports().build()["training"])
    assert second.traffic.up == 3 * type_bytes(form.work.type_signature.result)
    assert hc.engine.round.transfer.down_bytes() == 4 * model.size
    assert hc.joining == Traffic(down=4 * model.size + images.size + 8, up=4 * len(images))


@pytest.mark.parametrize("answered_by", ["clients", "server"])
def test_methods_that_differ_in_beta_share_one_round_and_each_exports_its_own_beta(
    tff_worker, model, images, answered_by
):
    exported = []
    for threshold in (0.3, 0.6):
        how = FLISDCParameters(threshold=threshold, answered_by=answered_by)
        exported.append(build_flis_dc(model, TRAINING, how, server_images=images).exports().build())
    assert exported[0]["training"] is exported[1]["training"]
    held = [each["initialize"]()["aggregators"]["trained"] for each in exported]
    assert [each if answered_by == "clients" else each["threshold"] for each in held] == [0.3, 0.6]


@pytest.mark.slow
def test_the_round_rebuilt_from_its_map_reduce_form(tff_worker, through_map_reduce, model, images, population):
    composed = build_joint_round(model, TRAINING, FLISDCParameters(threshold=0.4), images)
    process = composed.process({"models": model.initial[np.newaxis], "images": images})
    cohort = Cohort(population, np.arange(3), (7, 1))
    inputs = deployed_inputs(cohort, forced=np.full(3, -1, np.int32), key=np.arange(3, dtype=np.int32))
    state = process.initialize()
    direct, _ = process.next(state, inputs)
    again, _ = through_map_reduce(process.next, state, inputs)
    assert np.abs(direct["models"] - model.initial).max(axis=1).min() > 0.01
    np.testing.assert_allclose(again["models"], direct["models"], atol=1e-6)
    np.testing.assert_array_equal(again["images"], images)


@pytest.mark.parametrize(
    "cls, values, message",
    [
        (FLISDCParameters, {"threshold": 1.01}, "threshold is 1.01; it must be a similarity, from 0 to 1"),
        (FLISDCParameters, {"metric": "agree"}, "did you mean 'agreement'"),
        (FLISDCParameters, {"answered_by": "client"}, "did you mean 'clients'"),
        (FLISDCParameters, {"choose_by": "train"}, "did you mean 'train_loss'"),
        (FLISHCParameters, {"threshold": 0.5, "num_clusters": 2}, "give threshold or num_clusters, not both"),
        (FLISHCParameters, {"linkage": "ward"}, "unknown linkage 'ward'"),
    ],
)
def test_bad_parameters(cls, values, message):
    with pytest.raises(UserError, match=message):
        cls(**values)


@pytest.mark.parametrize("build", [build_flis_dc, build_flis_hc])
def test_bad_server_data(model, digits, build):
    with pytest.raises(UserError, match="the server has no data to compare models on; give server_images="):
        build(model, TRAINING, server_images=None)
    with pytest.raises(
        UserError,
        match=r"the server's images are uint8 of shape \[5, 4, 8, 1\]; they must be uint8 of shape \[n, 8, 8, 1\]",
    ):
        build(model, TRAINING, server_images=digits[0][:5, :4])
    with pytest.raises(UserError, match="float32"):
        build(model, TRAINING, server_images=digits[0][:5].astype(np.float32))


def test_a_threshold_that_no_pair_reaches(model, images):
    with pytest.raises(UserError, match="at most 0.0707"):
        build_flis_dc(model, TRAINING, FLISDCParameters(threshold=0.3, metric="frobenius"), server_images=images)
    with pytest.raises(UserError, match="at most 0.0707"):
        build_flis_hc(model, TRAINING, FLISHCParameters(threshold=0.3, metric="frobenius"), server_images=images)


@pytest.mark.slow
def test_of_sequences_each_label_is_an_answer():
    """Two clients whose models answer the same to 4 texts of 5 labels are 1 / sqrt(20) alike."""
    tokens = tf.TensorSpec([None, 5], tf.int32)
    stack_of = sequential(tf.keras.layers.Embedding(7, 3, input_length=5), tf.keras.layers.Dense(4))
    model = FlatModel.from_keras(stack_of, CROSS_ENTROPY, (tokens, tokens))
    how = {"threshold": 0.3, "metric": "frobenius"}  # for 4 answers it would be at most 0.5
    for build, parameters in ((build_flis_dc, FLISDCParameters(**how)), (build_flis_hc, FLISHCParameters(**how))):
        with pytest.raises(UserError, match="of 20 one-hot answers it must be at most 0.2236"):
            build(model, TRAINING, parameters, server_images=np.zeros([4, 5], np.int32))


@pytest.mark.slow
def test_the_authors_way_chooses_by_accuracy_on_test_examples_and_needs_them(tff_worker, model, images, population):
    nobody = dataclasses.replace(
        population, test_examples={client: population.test(client).nothing for client in population.client_ids}
    )
    method = build_flis_dc(model, TRAINING, FLISDCParameters(choose_by="test_accuracy"), server_images=images)
    with pytest.raises(UserError, match="client 0 has no test examples; choose_by 'test_accuracy'"):
        method.initialize(nobody)
    state, _ = method.next(method.initialize(population), Cohort(population, np.array([0, 1, 4]), (3, 1)))
    assert len(state.models) > 1
    right = build_count_correct(model)
    tests = [next(iter(population.test(client).dataset.batch(100))) for client in range(8)]
    best = [int(np.argmax([right(row, test["x"], test["y"])[0] for row in state.models])) for test in tests]
    assert len(set(best)) > 1
    np.testing.assert_array_equal(method.choose(state, population).assignment, best)
    with pytest.raises(UserError, match="client 0 has no test examples"):  # as they may be of those of a later round
        method.choose(state, nobody)
    cohort = Cohort(population, np.array([0, 1, 4]), (3, 2), np.array([True, True, False]))
    _, metrics = method.next(state, cohort)
    np.testing.assert_array_equal(metrics.clusters, np.array(best)[[0, 1, 4]])
    assert metrics.test_examples.tolist() == [50, 50, 0]  # whose models are tested is another question
