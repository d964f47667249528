"""Classes, numbers and sequences in task files: short runs in TFF's runtime, with the metrics of scikit-learn."""

import numpy as np
import pandas as pd
import pytest
from sklearn import datasets, metrics

import tffcl
from tffcl.errors import UserError
from tffcl.lab.cli.main import main
from tffcl.lab.datasets.loaders.own import load_table
from tffcl.lab.tasks.build import build_model, load_data


def run(task, label, out, **overrides):
    config = tffcl.resolve(task, label, overrides=overrides)
    result = tffcl.run(config, out, show_progress=False)
    return result, tffcl.load_run(out).federated


def expected(result, federated, score):
    """The mean over clients of a score of labels and answers."""
    scores = []
    for client, index in enumerate(federated.test_indices):
        test = federated.test.take(index)
        name = client if federated.client_names is None else federated.client_names[client]
        scores.append(score(name, test))
    return np.mean(scores)


@pytest.mark.slow
def test_clinics_with_devices_have_the_metrics_of_scikit_learn(tmp_path):
    result, held = run("clinics_cancer_small", "pacfl", tmp_path / "out")

    def auc(name, test):
        return metrics.roc_auc_score(test.y, result.predict(name, test.x, probabilities=True)[:, 1])

    def f1(name, test):
        return metrics.f1_score(test.y, result.predict(name, test.x), average="macro")

    for key, score in (("auc", auc), ("f1", f1)):
        assert result.summary["metrics"][key]["cluster"]["mean"] == pytest.approx(
            expected(result, held, score), abs=1e-5
        )
    assert result.summary["metrics"]["auc"]["cluster"]["mean"] > 0.85
    assert result.summary["clusters"]["ari"] == 1 and result.summary["label_names"] == ["benign", "malignant"]


@pytest.mark.slow  # a table of numbers is below
def test_a_task_of_numbers_trains_by_squared_error(tmp_path, capsys):
    result, held = run("clinics_diabetes_small", "ifca", tmp_path / "out", train={"rounds": 2})
    for key, score in (("mae", metrics.mean_absolute_error), ("r2", metrics.r2_score)):
        wanted = expected(result, held, lambda name, test, score=score: score(test.y, result.predict(name, test.x)))
        assert result.summary["metrics"][key]["cluster"]["mean"] == pytest.approx(wanted, abs=1e-4)
    assert 0 < result.summary["metrics"]["mae"]["cluster"]["mean"] < 0.8 and "accuracy" in result.summary
    assert result.trained.method.model.size == 10 * 16 + 16 + 16 + 1
    assert main(["show", "clinics_diabetes_small", "--out", str(tmp_path / "shown")]) == 0
    assert "labels: numbers from -1.6" in capsys.readouterr().out
    assert main(["export", str(tmp_path / "out"), "--to", str(tmp_path / "exported")]) == 0


@pytest.mark.slow
def test_a_task_of_sequences_predicts_each_next_character(tmp_path):
    short = {"train": {"rounds": 1, "local_epochs": 1}, "model": {"units": 8}}
    result, held = run("texts_next_character_small", "histogram", tmp_path / "out", **short)

    def log_loss(name, test):
        answers = result.predict(name, test.x, probabilities=True).reshape(-1, 97).astype(float)
        answers /= answers.sum(axis=1, keepdims=True)
        return metrics.log_loss(test.y.ravel(), answers, labels=np.arange(97))

    wanted = expected(result, held, log_loss)
    assert result.summary["metrics"]["log_loss"]["cluster"]["mean"] == pytest.approx(wanted, abs=1e-4)
    perplexity = expected(result, held, lambda *given: np.exp(log_loss(*given)))
    assert result.summary["metrics"]["perplexity"]["cluster"]["mean"] == pytest.approx(perplexity, rel=1e-4)
    assert wanted < np.log(97)
    right = expected(result, held, lambda name, test: np.mean(result.predict(name, test.x) == test.y))
    assert result.summary["accuracy"]["cluster"]["mean"] == pytest.approx(right, abs=1e-6)
    assert {name.split(":")[0] for name in held.client_names} == {"prose", "python", "c++"}


@pytest.mark.parametrize(
    "task, label, message",
    [
        ("clinics_diabetes_small", "flis_hc", "needs labels that are classes; a label of this model is one number"),
        pytest.param("texts_next_character_small", "flux", "label", marks=pytest.mark.slow),
    ],
)
def test_what_needs_one_class_for_each_example_says_so(task, label, message, tmp_path):
    with pytest.raises(UserError, match=message) as refused:
        run(task, label, tmp_path / "out", dataset={"server_examples": 10})
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_a_table_of_numbers_to_predict_needs_no_function(tmp_path):
    x, y = datasets.load_diabetes(return_X_y=True, as_frame=True)
    frame = x.assign(clinic=np.arange(len(x)) % 4, course=(y - y.mean()) / y.std(), again=y / 100)
    frame.to_csv(tmp_path / "t.csv", index=False)
    (tmp_path / "t.toml").write_text(
        f"""[dataset]
name = "table"
path = "{tmp_path / "t.csv"}"
client = "clinic"
label = "course"
features = ["bmi", "bp", "s5"]
[model]
name = "mlp"
hidden = 4
[train]
rounds = 1
clients_per_round = 4
[algorithms.fedavg]
"""
    )
    result, held = run(str(tmp_path / "t.toml"), "fedavg", tmp_path / "out")
    assert held.num_classes is None and set(result.summary["metrics"]) == {"mae", "mse", "r2"}
    several = load_table(path=str(tmp_path / "t.csv"), client="clinic", label=["course", "again"], features=["bmi"])
    assert several.train.y.shape[1:] == (2,) and several.num_classes is None


@pytest.mark.parametrize("task, may_be", [("clinics_diabetes", True), ("demo_digits", False)])
def test_where_labels_may_be_numbers_their_metrics_may_be_chosen_by_without_naming_them(task, may_be):
    config = tffcl.resolve(task, "fedavg", overrides={"evaluation": {"metrics": []}, "dataset": {"validation": 0.2}})
    assert ("cluster_mae" in config.measured) is ("validation_cluster_mae" in config.measured) is may_be
    assert "cluster_accuracy" in config.measured and "cluster_auc" not in config.measured


def test_a_builder_of_a_task_gets_no_classes_where_labels_are_numbers(tmp_path):
    (tmp_path / "my_net.py").write_text(
        """import tensorflow as tf, tffcl
def build_net(input_shape, num_classes, *, seed):
    assert num_classes is None
    keras = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=input_shape)])
    spec = tf.TensorSpec([None, *input_shape]), tf.TensorSpec([None])
    return tffcl.FlatModel.from_keras(keras, tf.keras.losses.Huber(), spec)
"""
    )
    (tmp_path / "own.toml").write_text('extends = "clinics_diabetes_small"\n[model]\nbuilder = "my_net:build_net"\n')
    config = tffcl.resolve(tmp_path / "own.toml", "fedavg")
    assert build_model(config, load_data(config)).objective.name == "numbers"


@pytest.mark.slow
def test_a_model_of_a_task_that_gives_its_input_again_is_joined(tmp_path):
    (tmp_path / "my_coder.py").write_text(
        """import tensorflow as tf, tffcl
def build(input_shape, num_classes, *, seed):
    tf.keras.utils.set_random_seed(seed % 2**32)
    keras = tf.keras.Sequential([tf.keras.layers.Dense(*input_shape, input_shape=input_shape)])
    spec = tf.TensorSpec([None, *input_shape]), tf.TensorSpec([None])
    return tffcl.FlatModel.from_keras(keras, tf.keras.losses.MeanSquaredError(), spec, objective="reconstruction")
"""
    )
    (tmp_path / "coder.toml").write_text(
        'extends = "clinics_diabetes_small"\n[model]\nbuilder = "my_coder:build"\n[newcomers]\nclients = 1\n'
        "[train]\nrounds = 1\nclients_per_round = 5\n"
    )
    config = tffcl.resolve(tmp_path / "coder.toml", "ifca")  # whose clients choose when a run is loaded
    tffcl.run(config, tmp_path / "run", show_progress=False)
    joined = tffcl.join_newcomers(tmp_path / "run", show_progress=False, trust_builders=True)
    assert joined["clients"][0]["local_mae"] < joined["clients"][0]["cluster_mae"]


def test_a_dataset_of_ones_own_takes_several_labels_and_numbers():
    x, rows = np.zeros((6, 3), np.float32), np.eye(3, dtype=int)[[0, 1, 2, 0, 1, 2]]
    several = tffcl.Dataset.from_arrays("several", (x, rows), (x, rows))
    assert several.train.y.shape == (6, 3) and several.num_classes == 2
    with pytest.raises(UserError, match="needs one class for each example; several has 3 labels an example"):
        several.classes_for("label_skew")
    with pytest.raises(UserError, match=r"labels of train are int32\[3\] and of test float32\[\]; they must be alike"):
        tffcl.Dataset.from_arrays("other", (x, rows), (x, pd.Series(np.linspace(0, 1, 6))))
