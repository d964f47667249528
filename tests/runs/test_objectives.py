"""Runs of every objective: what they report, through a resume and an export; and against tff.learning."""

import json

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from sklearn import metrics as sklearn

import tffcl
from tests import own_objectives
from tests.own_objectives import X, labels_of
from tests.runs.finished_runs import without_times
from tffcl.export.writer import save_models
from tffcl.runs.population_changes import taken_by

A = tffcl.algorithms
TRAINING = tffcl.LocalTraining(epochs=2, batch_size=10, learning_rate=0.1)
METHODS = {
    "fedavg": lambda model: A.build_fedavg(model, TRAINING),
    "pacfl": lambda model: A.build_pacfl(model, TRAINING, A.PACFLParameters(num_clusters=2)),
    "ifca": lambda model: A.build_ifca(model, TRAINING, A.IFCAParameters(num_clusters=2)),
}


# Examples that are given again; labels are in every other file, and the others are slow.
QUICK = [("reconstruction", "fedavg")]
OTHERS = [("binary", "pacfl"), *((name, "ifca") for name in ("several numbers", "one-hot", "class weights"))]


def run(name, method, out, *, model=None, **options):
    population = tffcl.Population.from_arrays(*own_objectives.examples(name))
    how = {"rounds": 2, "clients_per_round": 4, "show_progress": False} | options
    return tffcl.train(METHODS[method](model or own_objectives.model(name)), population, out=out, **how)


@pytest.mark.parametrize("name, method", [*QUICK, *(pytest.param(*each, marks=pytest.mark.slow) for each in OTHERS)])
def test_a_run_of_an_objective_reports_what_its_models_predict(tff_worker, name, method, tmp_path):
    result = run(name, method, tmp_path)
    tests, summary = own_objectives.examples(name)[1], result.summary
    answers = {client: result.predict(client, x) for client, (x, _) in tests.items()}
    if own_objectives.model(name).objective.has_accuracy:
        right = [np.mean(answers[client] == y) for client, (_, y) in tests.items()]
        np.testing.assert_allclose(result.clients["cluster_accuracy"], right, atol=1e-6)
        assert summary["accuracy"]["cluster"]["mean"] == pytest.approx(np.mean(right)) and "metrics" not in summary
        return
    # Where labels are numbers there is no accuracy, and never 0.
    assert all(summary["accuracy"][kind]["mean"] is None for kind in ("cluster", "local", "global"))
    assert np.isnan(result.clients["cluster_accuracy"]).all() and np.isnan(result.rounds["local_accuracy"]).all()
    assert list(summary["metrics"]) == ["mae", "mse", "r2"] and "mae" in repr(result)
    for client, (x, y) in tests.items():
        truth = x if name == "reconstruction" else y
        own = result.clients[result.clients["client_id"] == client]
        assert float(own["cluster_mse"].iloc[0]) == pytest.approx(
            sklearn.mean_squared_error(truth, answers[client]), abs=2e-6
        )
        assert float(own["cluster_r2"].iloc[0]) == pytest.approx(sklearn.r2_score(truth, answers[client]), abs=2e-6)


@pytest.mark.parametrize(
    "name, labels, message",
    [
        ("numbers", ["low", "high", "low"], r"labels are names \(high, low, ...\); the model takes numbers"),
        ("labels", [[0, 1, 2]] * 3, "has the label 2; the model knows the classes 0 to 1"),
        ("binary", [0, 1, 2], "has the label 2; the model knows the classes 0 to 1"),
    ],
)
def test_labels_that_are_not_the_models_are_told_in_one_line(name, labels, message, tmp_path):
    population = tffcl.Population.from_arrays({"a": (np.zeros([3, 4]), np.array(labels))})
    method = METHODS["fedavg"](own_objectives.model(name))
    with pytest.raises(tffcl.UserError, match=message):
        tffcl.train(method, population, rounds=1, clients_per_round=1, out=tmp_path, show_progress=False)


def test_labels_of_clients_that_are_read_when_they_are_needed_are_looked_through():
    """Of 70 some are read before a run, and c1 is none of them: what was counted tells of it, or reading it does."""
    model = own_objectives.model("binary")

    def held(label):
        return {f"c{each}": (np.zeros([3, 4]), np.array([0, 1, label if each == 1 else 0])) for each in range(70)}

    for train, test in ((2, 0), (0, 2), (10_000, 0)):
        with pytest.raises(
            tffcl.UserError, match=f"client c1 has the label {train or test}; the model knows the classes"
        ):
            taken = taken_by(model, tffcl.Population.from_arrays(held(train), held(test), lazy=True))
            assert train != 2 and taken.train("c0") and taken.pooled_tests and taken.train("c1")


@pytest.mark.slow  # a run on own data goes on in test_own_data
@pytest.mark.parametrize("name", ["binary", "numbers"])
def test_a_resumed_run_of_an_objective_is_the_whole_one(tff_worker, name, tmp_path):
    whole = run(name, "ifca", tmp_path / "whole")
    assert run(name, "ifca", tmp_path / "parts", until=1) is None
    again = own_objectives.build(name)  # as another process has it
    parts = run(name, "ifca", tmp_path / "parts", resume=True, model=again)
    assert json.dumps(without_times(whole.summary)) == json.dumps(without_times(parts.summary))
    np.testing.assert_array_equal(whole.model_of("c0"), parts.model_of("c0"))
    train = {client: (x, 1 * y) for client, (x, y) in own_objectives.examples(name)[0].items()}
    known, (x, y) = tffcl.Population.from_arrays(train), train["c1"]
    joined = parts.admit(tffcl.Population.from_arrays({"new": (x, y)}, known=known))
    np.testing.assert_array_equal(joined.model_of("new"), parts.model_of("c1"))
    if name == "binary":
        with pytest.raises(tffcl.UserError, match="client new has the label 2; the model knows the classes 0 to 1"):
            parts.admit(tffcl.Population.from_arrays({"new": (x, np.full(len(y), 2))}, known=known))


def test_a_reconstruction_needs_no_test_examples(tff_worker, tmp_path):
    method = METHODS["fedavg"](own_objectives.model("reconstruction"))
    train = own_objectives.examples("reconstruction")[0]
    for tests in ({"c0": train["c0"]}, None):
        population = tffcl.Population.from_arrays(train, tests)
        out = tmp_path / str(tests is None)
        result = tffcl.train(method, population, rounds=1, clients_per_round=2, out=out, show_progress=False)
        assert np.isfinite(result.clients["cluster_mse"]).sum() == (tests is not None)


@pytest.mark.slow  # of labels it is so always in test_own_data
@pytest.mark.parametrize("name", ["binary", "several numbers"])
def test_a_saved_model_answers_as_the_result(tff_worker, name, tmp_path):
    result = run(name, "fedavg", tmp_path / "run")
    save_models(tmp_path / "saved", own_objectives.model(name), result.model_of("c0")[np.newaxis])
    x = own_objectives.examples(name)[1]["c0"][0]
    serve = tf.saved_model.load(str(tmp_path / "saved")).signatures["serving_default"]
    served = serve(images=tf.constant(x), cluster=tf.constant(0))
    key = "numbers" if "numbers" in name else "labels"
    np.testing.assert_allclose(served[key], result.predict("c0", x), atol=1e-6)
    if key == "labels":
        np.testing.assert_allclose(served["probabilities"], result.predict("c0", x, probabilities=True), atol=1e-6)
    keras = result.keras_model_of("c0")
    found = result.predict("c0", x) if key == "numbers" else keras(x)
    np.testing.assert_allclose(keras(x), found, atol=1e-6)


@pytest.mark.slow  # of classes it is so always
def test_fedavg_of_numbers_is_that_of_tff_learning(tff_worker, tmp_path):
    """On full batches of one step, so that the order of examples plays no part."""
    keras, examples = own_objectives.keras(1), own_objectives.examples("numbers")[0]
    spec = X, labels_of((1,), tf.float32)
    model = tffcl.FlatModel.from_keras(keras, tf.keras.losses.MeanSquaredError(), spec)
    training = tffcl.LocalTraining(epochs=1, batch_size=0, learning_rate=0.1)
    population = tffcl.Population.from_arrays(examples)
    result = tffcl.train(
        A.build_fedavg(model, training), population, rounds=2, clients_per_round=4, out=tmp_path, show_progress=False
    )
    functional = tff.learning.models.functional_model_from_keras(keras, tf.keras.losses.MeanSquaredError(), spec)
    process = tff.learning.algorithms.build_weighted_fed_avg(
        functional,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
        server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
    )
    data = [tf.data.Dataset.from_tensors((x, y[:, None])) for x, y in examples.values()]
    state = process.initialize()
    for _ in range(2):
        state = process.next(state, data).state
    theirs = model.ravel(process.get_model_weights(state).trainable)
    np.testing.assert_allclose(result.model_of("c0"), theirs, atol=1e-6)
    clustered = tffcl.learning.build_clustered_fed_avg(model, 1, training)
    state = clustered.initialize()
    for _ in range(2):
        state = clustered.next(state, data).state
    np.testing.assert_allclose(state.global_model_weights[0], theirs, atol=1e-6)
