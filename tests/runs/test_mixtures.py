"""Methods whose clients use mixtures of models: what evaluations, results, tables and exports make of the weights."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from sklearn.metrics import roc_auc_score

import tffcl
from tests.own_data import clinics, perceptron
from tests.runs.finished_runs import rows_of, without_times
from tffcl.algorithms.clustered_training import EngineMethod, build_clustered_training
from tffcl.algorithms.method import ClusteredState
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.errors import UserError
from tffcl.models.classifiers import build_mlp
from tffcl.models.model_rows import assigned
from tffcl.runs import evaluator

MIXTURES = np.array([[0.25, 0.75], [1, 0], [0.5, 0.5], [0, 1], [0.875, 0.125], [0.625, 0.375]], np.float32)


class Blend(EngineMethod):
    """A stranger's method: clients train one of two models, and answer by mixtures of both."""

    mixtures = MIXTURES

    def initialize(self, population):
        return ClusteredState(**self.engine.start(population, (population.client_ids % 2).astype(np.int32)))

    def models_for(self, state, client_ids):
        return state.models, self.mixtures[state.index(client_ids)]

    views = tffcl.algorithms.Method.views


@pytest.fixture(scope="module")
def model():
    return perceptron().with_metrics(("accuracy", "auc", "log_loss"))


@pytest.fixture(scope="module")
def population():
    return tffcl.Population.from_arrays(*clinics())


def blend(model, mixtures=MIXTURES):
    method = Blend("blend", build_clustered_training(model, LocalTraining(epochs=2, batch_size=10, learning_rate=0.1)))
    method.mixtures = mixtures
    return method


def train(method, population, out):
    return tffcl.train(method, population, rounds=2, clients_per_round=6, out=out, seed=1, show_progress=False)


@pytest.fixture(scope="module")
def run(model, population, tmp_path_factory):
    return train(blend(model), population, tmp_path_factory.mktemp("blend") / "run")


def softmax(models, x):
    """What two perceptrons answer, in NumPy, `[K, n, 2]`."""
    answers = []
    for vector in models:
        first, bias, second, last = np.split(vector, np.cumsum([180, 6, 12]))
        hidden = np.maximum(x @ first.reshape(30, 6) + bias, 0)
        logits = hidden @ second.reshape(6, 2) + last
        answers.append(np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True))
    return np.array(answers)


def mixed(run, client, x):
    return np.tensordot(MIXTURES[client], softmax(run.trained.state.models, x), 1)


def test_a_mixture_answers_by_the_weighted_mean_of_probabilities(run, population):
    found = []
    for client, name in enumerate(population.shown_ids):
        x, y = population.test(client).x, population.test(client).y
        expected = mixed(run, client, x)
        np.testing.assert_allclose(run.predict(name, x, probabilities=True), expected, atol=1e-6)
        np.testing.assert_array_equal(run.predict(name, x), expected.argmax(axis=1))
        losses = -np.log(expected[np.arange(len(y)), y])
        found.append((np.mean(expected.argmax(axis=1) == y), losses.mean(), roc_auc_score(y, expected[:, 1])))
    accuracies, losses, areas = np.array(found).T
    np.testing.assert_allclose(run.clients["cluster_accuracy"], accuracies, atol=1e-6)
    np.testing.assert_allclose(run.clients["cluster_log_loss"], losses, atol=1e-5)
    np.testing.assert_allclose(run.clients["cluster_auc"], areas, atol=1e-6)
    assert run.summary["accuracy"]["global"]["mean"] is None
    confusion = np.load(run.out / "confusion.npz")
    assert confusion["counts"].sum() == population.test_sizes.sum()


def test_files_and_pictures_show_the_mixtures(run):
    rows = rows_of(run.out / "clients.csv")
    np.testing.assert_allclose([[float(row["weight_0"]), float(row["weight_1"])] for row in rows], MIXTURES)
    assert [int(row["cluster"]) for row in rows] == MIXTURES.argmax(axis=1).tolist()
    page = tffcl.write_report(run.out).read_text()
    assert 'data-name="mixtures"' in page and (run.out / "figures" / "mixtures.png").is_file()


def test_each_model_is_asked_about_the_distinct_examples_once(run, model, population, monkeypatch):
    asked, real = [], evaluator.chosen
    monkeypatch.setattr(evaluator, "chosen", lambda x, index: asked.append(len(index)) or real(x, index))
    evaluator.Evaluator(model, population).cluster_accuracy(run.trained.state.models, MIXTURES)
    sizes = population.test_sizes
    assert sum(asked) == sizes[MIXTURES[:, 0] > 0].sum() + sizes[MIXTURES[:, 1] > 0].sum()


def test_the_keras_model_of_a_mixture_is_an_ensemble_without_tffcl(run, population, tmp_path):
    made, x = run.keras_model_of("clinic_0"), population.test(0).x
    made.save(tmp_path / "mixture.keras")
    again = tf.keras.models.load_model(tmp_path / "mixture.keras")
    np.testing.assert_allclose(again(x).numpy(), mixed(run, 0, x), atol=1e-6)
    single = run.keras_model_of("clinic_1")  # whose mixture is one model
    np.testing.assert_allclose(tf.nn.softmax(single(x)).numpy(), mixed(run, 1, x), atol=1e-6)
    np.testing.assert_array_equal(run.model_of("clinic_1"), run.trained.state.models[0])
    with pytest.raises(UserError, match="client clinic_0 uses a mixture of 2 models, with the weights 0.25, 0.75, whi"):
        run.model_of("clinic_0")
    np.testing.assert_array_equal(run.mixture_of("clinic_0")[1], MIXTURES[0])


def test_the_keras_model_of_a_mixture_is_as_exact_as_predict_whatever_policy_new_layers_have(run, population):
    x = population.test(0).x
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        made = run.keras_model_of("clinic_0")
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    np.testing.assert_allclose(made(x), mixed(run, 0, x), atol=1e-6)


@pytest.mark.slow
def test_an_export_has_the_weights_and_serves_mixtures(run, population, tmp_path, without_forms):
    tffcl.export_result(run, tmp_path / "export")
    rows = rows_of(tmp_path / "export" / "clustering" / "assignments.csv")
    np.testing.assert_allclose([[float(row["weight_0"]), float(row["weight_1"])] for row in rows], MIXTURES)
    served = tf.saved_model.load(str(tmp_path / "export" / "saved_model"))
    x = population.test(0).x
    answered = served.signatures["mixture"](images=tf.constant(x), weights=tf.constant(MIXTURES[0]))
    np.testing.assert_allclose(answered["probabilities"].numpy(), mixed(run, 0, x), atol=1e-6)


@pytest.mark.slow
def test_weights_of_one_model_are_rows(run, model, population, tmp_path):
    rows = np.array([1, 0, 1, 0, 0, 1])
    hard, soft = (train(blend(model, each), population, tmp_path / str(np.ndim(each)))
                  for each in (rows, np.eye(2, dtype=np.float32)[rows]))  # fmt: skip
    assert without_times(hard.summary) == without_times(soft.summary)
    assert assigned(np.ones([3, 1], np.float32)).weights is None and assigned(MIXTURES).weights is MIXTURES


@pytest.mark.parametrize(
    "mixtures, message",
    [
        (MIXTURES * np.float32(0.9), r"gives the weights 0.225, 0.675 in row 0, which sum to 0.9; a client's weights"),
        (MIXTURES - np.float32([[0.5, -0.5]]), r"gives the weights -0.25, 1.25 in row 0, which sum to 1"),
        (MIXTURES * np.float32(np.nan), "gives the weights nan, nan in row 0"),
        (MIXTURES.astype(float), r"gives weights float64 \[6, 2\]; they must be float32 \[6, 2\]"),
        (MIXTURES[:, :1], r"gives weights float32 \[6, 1\]; they must be float32 \[6, 2\]"),
    ],
)
def test_a_mixture_that_is_none_is_told_in_one_line(model, population, tmp_path, mixtures, message):
    with pytest.raises(UserError, match=message) as raised:
        train(blend(model, mixtures), population, tmp_path / "run")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("loss", ["logits", pytest.param("sigmoid", marks=pytest.mark.slow), "numbers", "tffcl's own"])
def test_mixtures_of_other_outputs(loss, population):
    kinds = {
        "logits": (None, tf.keras.losses.BinaryCrossentropy(from_logits=True), tf.int32),
        "sigmoid": ("sigmoid", tf.keras.losses.BinaryCrossentropy(), tf.int32),
        "numbers": (None, tf.keras.losses.MeanSquaredError(), tf.float32),
    }
    if loss in kinds:
        activation, given, label = kinds[loss]
        keras = tf.keras.Sequential([tf.keras.layers.Dense(1, activation, input_shape=(30,))])
        made = tffcl.FlatModel.from_keras(keras, given, (tf.TensorSpec([None, 30]), tf.TensorSpec([None], label)))
    else:
        activation, made = None, build_mlp((30,), None, hidden=2, normalization=None)
    outputs = np.random.default_rng(1).normal(size=[2, 5, 1]).astype(np.float32)
    outputs = tf.sigmoid(outputs).numpy() if activation else outputs
    means = made.objective.probabilities or (lambda each: each)
    expected = sum(w * np.asarray(means(tf.constant(each))) for w, each in zip(MIXTURES[0], outputs, strict=True))
    np.testing.assert_allclose(means(made.objective.mixed(tf.constant(outputs), MIXTURES[0])), expected, atol=1e-6)


def test_probabilities_of_ones_own_cannot_be_mixed(model):
    own = dataclasses.replace(model.objective, activation=lambda outputs: tf.nn.softmax(2 * outputs))
    with pytest.raises(UserError, match="a mixture of models needs outputs that are logits or probabilities"):
        own.mixed(tf.zeros([2, 1, 2]), tf.constant([0.5, 0.5]))
