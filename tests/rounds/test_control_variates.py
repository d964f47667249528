"""A client work with a second upload and a kept state: toy control variates, composed, run, resumed,
exported, counted.
"""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.short_runs import deployed_inputs
from tffcl.aggregators.clustered_mean import ClusteredMeanFactory
from tffcl.algorithms.clustered_training import ClusteredTraining
from tffcl.algorithms.fedavg import OneModel
from tffcl.client_work.client_work import ClientResult, ClientWork, keyed, stack
from tffcl.clients.cohort import Cohort
from tffcl.export import deployment_forms
from tffcl.models.classifiers import build_mlp
from tffcl.models.flat import mean_cross_entropy
from tffcl.rounds.composer import Server, compose, uniform
from tffcl.rounds.server import models_type, move_rows
from tffcl.runs import checkpoints

# As SCAFFOLD is in tests/algorithms/test_corrected_averaging.py and in the conformance suite.
pytestmark = pytest.mark.slow
RATE, STEPS = 0.5, 3
COHORTS = [[0, 1, 2], [1, 3], [0, 2, 3]]


def build_toy(model):
    """SCAFFOLD, Option II, with a few full-batch steps: `w <- w - η (g - c_i + c)`; the server's c stands in a row
    by model.
    """

    def gradient(vector, data):
        with tf.GradientTape() as tape:
            tape.watch(vector)
            logits = model.logits(model.unravel(vector), model.preprocess(data["x"]), None)
            loss = mean_cross_entropy(logits, data["y"])
        return tape.gradient(loss, vector), loss

    def compute(received, client):
        data, start = stack(client["examples"]), received["model"]
        vector, own, everyones = start, client["kept"], received["control"]
        for _ in range(STEPS):
            found, loss = gradient(vector, data)
            vector -= RATE * (found - own + everyones)
        renewed = own - everyones + (start - vector) / (STEPS * RATE)
        report = collections.OrderedDict(
            examples=tf.size(data["y"]), loss=loss, finite=tf.reduce_all(tf.math.is_finite(vector))
        )
        if "test_examples" in client:
            report.update(test_correct=tf.constant(0), test_examples=tf.constant(0))
        uploads = {"update": keyed(client["key"], vector - start), "control": keyed(client["key"], renewed - own)}
        return ClientResult(uploads, report, renewed)

    def receive(values, client):
        return collections.OrderedDict(model=values["models"][client["key"]], control=values["controls"][client["key"]])

    def step(state, results, measurements):
        moved = move_rows(state, results, measurements)
        # Of four clients, as many as took part have told their difference.
        share = measurements["control"]["clients"][0] / 4
        return {**moved, "controls": state["controls"] + tf.cast(share, tf.float32) * results["control"]}

    work = ClientWork(model.example_spec, compute, {"key": np.int32}, tff.TensorType(np.float32, [model.size]))
    uploads = {name: ClusteredMeanFactory() for name in ("update", "control")}
    values = {"models": models_type(model.size), "controls": models_type(model.size)}
    composed = compose(work, uploads, Server(values, receive, step), weighting=uniform)
    nothing = np.zeros(model.size, np.float32)
    engine = ClusteredTraining(
        model, composed, rows=lambda count: {"controls": np.repeat(nothing[np.newaxis], count, 0)}, kept=nothing
    )
    return OneModel("toy", engine)


@pytest.fixture(scope="module")
def softmax():
    return build_mlp((8, 8, 1), 10, hidden=8, normalization=(0.3, 0.4), seed=5)


@pytest.fixture(scope="module")
def toy(softmax):
    return build_toy(softmax)


@pytest.fixture(scope="module")
def clients(digit_clients):
    return digit_clients([30, 20, 25, 40])


def run(method, clients, cohorts, state=None, first=1):
    state = state or method.initialize(clients)
    for number, ids in enumerate(cohorts, first):
        state, metrics = method.next(state, Cohort(clients, np.array(ids), (3, number)))
    return state, metrics


def by_hand(model, clients, cohorts):
    """The same with NumPy's sums and one gradient function."""

    @tf.function
    def gradient(vector, x, y):
        with tf.GradientTape() as tape:
            tape.watch(vector)
            loss = mean_cross_entropy(model.logits(model.unravel(vector), model.preprocess(x), None), y)
        return tape.gradient(loss, vector)

    w, c, own = model.initial.astype(np.float64), np.zeros(model.size), np.zeros([4, model.size])
    for ids in cohorts:
        moves, changes = [], []
        for client in ids:
            data = next(iter(clients.train(client).dataset.batch(1000)))
            y = w.copy()
            for _ in range(STEPS):
                y -= RATE * (gradient(y.astype(np.float32), data["x"], data["y"]).numpy() - own[client] + c)
            renewed = own[client] - c + (w - y) / (STEPS * RATE)
            moves.append(y - w)
            changes.append(renewed - own[client])
            own[client] = renewed
        w, c = w + np.mean(moves, axis=0), c + np.sum(changes, axis=0) / 4
    return w, c, own


def test_the_composed_round_is_scaffold_by_hand(tff_worker, softmax, toy, clients):
    state, _ = run(toy, clients, COHORTS)
    w, c, own = by_hand(softmax, clients, COHORTS)
    np.testing.assert_allclose(state.models[0], w, rtol=0, atol=1e-5)
    np.testing.assert_allclose(state.server["controls"][0], c, rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.stack(state.kept.of(range(4))), own, rtol=0, atol=1e-5)
    assert np.abs(c).max() > 1e-3 and np.abs(state.models[0] - softmax.initial).max() > 0.05


def test_a_resumed_run_ends_as_the_uninterrupted_one(tff_worker, toy, clients):
    whole, _ = run(toy, clients, COHORTS)
    half, _ = run(toy, clients, COHORTS[:2])
    arrays, named = checkpoints.pack({"state": half})
    assert {client for client, _ in named} == {0, 1, 2, 3}
    again = checkpoints.unpack(arrays, {"state": toy.state_class})["state"]
    again = dataclasses.replace(again, kept=half.kept)  # its files are in the store of the run that was interrupted
    resumed, _ = run(toy, clients, COHORTS[2:], again, 3)
    np.testing.assert_array_equal(resumed.models, whole.models)
    np.testing.assert_array_equal(resumed.server["controls"], whole.server["controls"])
    np.testing.assert_array_equal(np.stack(resumed.kept.of(range(4))), np.stack(whole.kept.of(range(4))))


def test_traffic_is_two_vectors_each_way_and_never_what_is_kept(tff_worker, softmax, toy, clients):
    _, metrics = run(toy, clients, COHORTS[:1])
    vector, number = 4 * softmax.size, 4
    # Two keyed uploads, a weight for each mean, the client's ID, and its report: examples, loss and a flag.
    up = 2 * (number + vector) + 2 * number + number + (number + number + 1)
    assert (metrics.traffic.down, metrics.traffic.up) == (3 * 2 * vector, 3 * up)


def test_exported_it_has_the_form_that_devices_run_and_the_one_with_what_they_keep(
    tff_worker, through_map_reduce, toy, clients, tmp_path
):
    computations = toy.exports().build()
    assert set(computations) == {"initialize", "training", "training_with_kept"}
    state, _ = run(toy, clients, COHORTS[:1])
    cohort = Cohort(clients, np.array([0, 3]), (3, 2))
    inputs = deployed_inputs(cohort, key=np.zeros(2, np.int32), kept=state.kept.of([0, 3]))
    server = collections.OrderedDict(
        models=state.models, controls=state.server["controls"], aggregators=state.aggregators
    )
    deployment_forms.write_computation(tmp_path / "training.pb", computations["training"])
    loaded = deployment_forms.read_computation(tmp_path / "training.pb")
    expected = toy.next(state, cohort)[0]
    found, _ = loaded(server, inputs)
    np.testing.assert_allclose(found["models"], expected.models, rtol=0, atol=1e-6)
    rebuilt, _ = through_map_reduce(computations["training"], server, inputs)
    np.testing.assert_allclose(rebuilt["controls"], expected.server["controls"], rtol=0, atol=1e-6)
    *_, kept = computations["training_with_kept"](server, inputs)
    kept = {int(each["client_id"]): each["kept"] for each in kept}
    np.testing.assert_allclose(kept[3], expected.kept.of([3])[0], rtol=0, atol=1e-6)


def test_newcomers_keep_nothing_until_they_train(tff_worker, toy, clients):
    few = clients.restricted([0, 1])
    state, _ = run(toy, few, [[0, 1]])
    joined = toy.admit(state, clients.restricted([2, 3]))
    assert joined.kept.has([0, 1, 2, 3]).tolist() == [True, True, False, False]
    later, _ = run(toy, clients, [[2, 3]], joined, 2)
    assert later.kept.has([2, 3]).all()
