"""Metrics of a run beside the accuracy: of each client, cluster and all, against scikit-learn on what it predicts."""

import collections
import json
import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from sklearn import metrics as sklearn

import tffcl
from tests import own_data, own_objectives
from tffcl.errors import Diverged
from tffcl.models.metrics import METRICS, compute
from tffcl.runs import summary
from tffcl.runs.evaluator import answers_of

NAMES = ("accuracy", "auc", "f1", "log_loss")
TRAINING = tffcl.LocalTraining(epochs=2, batch_size=10, learning_rate=0.1)


def far_off_error(y, p):
    """A user's own."""
    return float(np.mean(np.abs(y - p[:, 1])))


@pytest.fixture(scope="module")
def clients():
    """The clinics, of which the first has tests of one class alone."""
    train, test = own_data.clinics()
    x, y = test["clinic_0"]
    return train, {**test, "clinic_0": (x[y == 1], y[y == 1])}


@pytest.fixture(scope="module")
def model():
    return own_data.perceptron().with_metrics((*NAMES, far_off_error))


def run(method, clients, out, **options):
    population = tffcl.Population.from_arrays(*clients)
    how = {"rounds": 2, "clients_per_round": 6, "show_progress": False} | options
    return tffcl.train(method, population, out=out, **how)


def by_hand(y, p):
    """What scikit-learn has for labels and probabilities."""
    area = sklearn.roc_auc_score(y, p[:, 1]) if 0 < y.sum() < len(y) else np.nan
    right = p.argmax(1)
    return {
        "accuracy": sklearn.accuracy_score(y, right),
        "auc": area,
        "f1": sklearn.f1_score(y, right, average="macro"),
        "log_loss": sklearn.log_loss(y, p / p.sum(1, keepdims=True, dtype=float), labels=[0, 1]),
        "far_off_error": far_off_error(y, p),
    }


def test_answers_that_are_not_finite_are_told_and_large_ones_have_their_error():
    model, labels = own_objectives.model("numbers"), np.array([0.0, 1.0], np.float32)
    answers = answers_of(model, labels, np.array([[0.0], [1e30]], np.float32))
    errors = {each.name: compute(each, answers) for each in model.metrics}
    assert errors["mse"] == pytest.approx(5e59) and errors["mae"] == pytest.approx(5e29) and errors["r2"] < -1e59
    for wrong in (np.inf, np.nan):
        with pytest.raises(Diverged, match="answers with numbers that are not finite"):
            answers_of(model, labels, np.array([[0.0], [wrong]], np.float32))


@pytest.mark.parametrize("kind", ["binary logits", "labels"])
def test_the_log_loss_of_sure_answers_is_that_of_their_logits(kind):
    """Also where float32 leaves nothing to the other answer."""
    model, sure = own_objectives.model(kind), np.array([20.0, 3.0, -3.0, -20.0], np.float32)
    shape = [4, *model.objective.outputs]
    outputs = np.broadcast_to(sure.reshape([4] + [1] * (len(shape) - 1)), shape).astype(np.float32)
    for label, signs in ((0, 1), (1, -1)):
        labels = np.full([4, *model.label_shape], label, np.int32)
        found = compute(METRICS["log_loss"], answers_of(model, labels, outputs))
        assert found == pytest.approx(np.log1p(np.exp(signs * sure.astype(float))).mean(), rel=1e-6)


@pytest.mark.slow
def test_a_users_own_probabilities_are_given_what_they_were_tried_with():
    """A function with a constant of its own takes float32 alone."""
    prior = np.array([0.5, 0.3, 0.2], np.float32)
    rng, x, y = np.random.default_rng(0), tf.TensorSpec([None, 4]), tf.TensorSpec([None], tf.int32)
    network, loss = own_objectives.keras(3), tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    functional = tff.learning.models.functional_model_from_keras(network, loss, collections.OrderedDict(x=x, y=y))
    model = tffcl.FlatModel.from_functional(
        functional, probabilities=lambda logits: tf.nn.softmax(logits + tf.math.log(prior)), metrics=["log_loss"]
    )
    outputs, labels = rng.normal(size=(9, 3)).astype(np.float32), rng.integers(0, 3, 9).astype(np.int32)
    scores = np.exp(outputs) * prior
    expected = sklearn.log_loss(labels, scores / scores.sum(1, keepdims=True), labels=range(3))
    assert compute(METRICS["log_loss"], answers_of(model, labels, outputs)) == pytest.approx(expected, rel=1e-5)


def test_the_spread_over_clients_by_hand():
    found = summary.spread(np.array([0.0, 2.0, np.nan, 4.0]))
    assert (found["mean"], found["worst_decile"]) == (2, 0)
    assert found["variance"] == pytest.approx(8 / 3)  # of all clients that there are, as the papers have it
    assert found["std"] == pytest.approx((8 / 3) ** 0.5) and found["stderr"] == pytest.approx(2 / 3**0.5)
    eleven = np.arange(11.0)  # a tenth of them, rounded up, are two
    assert [summary.spread(eleven, better)["worst_decile"] for better in ("up", "down")] == [0.5, 9.5]
    assert summary.spread(eleven[:1])["stderr"] is None


def test_a_metric_of_numbers_says_of_how_many_clients_it_is():
    """Of which none is right or wrong; the third client has one test example, the last none."""
    accuracy = {"labels": np.zeros(4), "metrics": {"r2": {"cluster": np.array([0.5, 0.1, np.nan, np.nan])}}}
    notes = summary._undefined(accuracy, np.array([5, 4, 1, 0]))
    assert notes == ["r2 is defined for 2 of 3 clients: its mean is of these"]


def test_the_worst_tenth_of_validation_examples_is_that_of_the_largest_losses():
    losses = np.arange(20.0)
    accuracy = {"cluster": losses / 20, "global": None, "metrics": {"log_loss": {"cluster": losses, "global": None}}}
    found = summary._validation(accuracy)
    assert found["metrics"]["log_loss"]["cluster"]["worst_decile"] == 18.5
    assert found["cluster"]["worst_decile"] == pytest.approx(0.5 / 20)


def test_each_client_cluster_and_all_have_the_metrics_of_scikit_learn(tff_worker, model, clients, tmp_path):
    how = tffcl.algorithms.PACFLParameters(num_clusters=2)
    result = run(tffcl.algorithms.build_pacfl(model, TRAINING, how), clients, tmp_path)
    test, table, found = clients[1], result.clients, result.summary["metrics"]
    assert list(found) == [*NAMES, "far_off_error"] and result.summary["clusters"]["count"] == 2
    answers = {name: (y, result.predict(name, x, probabilities=True)) for name, (x, y) in test.items()}
    each = [by_hand(*answers[name]) for name in table["client_id"]]
    for metric in found:
        own = np.array([expected[metric] for expected in each])
        np.testing.assert_allclose(table[f"cluster_{metric}"], own, atol=2e-6)
        assert found[metric]["cluster"]["mean"] == pytest.approx(np.nanmean(own), abs=1e-6)
        worst = np.nanmax(own) if metric in ("log_loss", "far_off_error") else np.nanmin(own)  # of six clients
        assert found[metric]["cluster"]["worst_decile"] == pytest.approx(worst, abs=1e-6)
        assert result.rounds[f"cluster_{metric}"][1] == pytest.approx(np.nanmean(own), abs=1e-6)
    assert np.isnan(table["cluster_auc"][0]) and np.isfinite(table["cluster_auc"][1:]).all()
    for cluster in np.unique(table["cluster"]):
        members = [answers[name] for name in np.asarray(table["client_id"])[np.asarray(table["cluster"]) == cluster]]
        together = by_hand(*(np.concatenate(parts) for parts in zip(*members)))
        for metric in found:
            assert found[metric]["clusters"][str(cluster)] == pytest.approx(together[metric], abs=1e-6)
    assert found["auc"]["global"]["mean"] is None and found["log_loss"]["better"] == "down"
    assert json.loads((tmp_path / "summary.json").read_text())["metrics"] == found


@pytest.mark.slow
def test_the_one_model_of_all_is_measured_on_all_test_data(tff_worker, model, clients, tmp_path):
    result = run(tffcl.algorithms.build_fedavg(model, TRAINING), clients, tmp_path)
    x, y = (np.concatenate(parts) for parts in zip(*clients[1].values()))
    together = by_hand(y, result.predict("clinic_1", x, probabilities=True))
    for metric, found in result.summary["metrics"].items():
        assert found["global"]["mean"] == pytest.approx(together[metric], abs=1e-6)


@pytest.mark.slow
def test_a_clients_own_model_is_measured_after_its_training(tff_worker, model, clients, tmp_path):
    """Where each client has a model of its own that is the assigned one; and through a resumed run."""
    solo = tffcl.algorithms.build_solo(model, TRAINING)
    half = run(solo, clients, tmp_path, until=1)
    assert half is None
    result = run(solo, clients, tmp_path, resume=True)
    for metric in (*NAMES, "far_off_error"):
        np.testing.assert_array_equal(result.clients[f"local_{metric}"], result.clients[f"cluster_{metric}"])
        own = result.summary["metrics"][metric]
        assert own["local"] == own["cluster"]


def test_accuracy_alone_costs_no_outputs(model):
    plain = own_data.perceptron()
    assert plain.metrics_of_outputs == () and len(model.metrics_of_outputs) == 5


def fails(y, p):
    raise ZeroDivisionError("no such thing")


def never(y, p):
    return float("nan")


def share(y, p):
    return 0.5


def of_both(y, p):
    """Infinite for the client whose tests are of one class."""
    return len(np.unique(y)) / 2 if len(np.unique(y)) > 1 else float("inf")


def test_a_users_metric_that_fails_is_told_before_any_round_and_one_that_is_never_defined_is_noted(
    tff_worker, model, clients, tmp_path
):
    fedavg = tffcl.algorithms.build_fedavg(model.with_metrics([fails]), TRAINING)
    with pytest.raises(tffcl.UserError, match="the metric fails failed: ZeroDivisionError: no such thing"):
        run(fedavg, clients, tmp_path / "a")
    assert not (tmp_path / "a").exists()
    with pytest.raises(tffcl.UserError, match="called share, and its column local_share is another's"):
        run(tffcl.algorithms.build_fedavg(model.with_metrics([share]), TRAINING), clients, tmp_path / "a")
    result = run(tffcl.algorithms.build_fedavg(model.with_metrics([never, of_both]), TRAINING), clients, tmp_path / "b")
    assert result.summary["metrics"]["never"]["cluster"]["mean"] is None
    assert "defined for no client's test examples: never" in result.summary["notes"]
    assert "of_both is defined for 5 of 6 clients: its mean is of these" in result.summary["notes"]


@pytest.mark.slow
def test_early_stopping_may_choose_by_any_metric_of_the_model(tff_worker, model, clients, tmp_path):
    fedavg = tffcl.algorithms.build_fedavg(model, TRAINING)
    stopping = tffcl.EarlyStopping("cluster_log_loss", 1, 10.0)
    result = run(fedavg, clients, tmp_path / "a", rounds=5, evaluate_every=1, callbacks=[stopping])
    assert "cluster_log_loss has not become better than its" in result.summary["stopped"]
    with pytest.raises(tffcl.UserError, match="unknown metric of this run 'cluster_f2'; did you mean 'cluster_f1'"):
        run(fedavg, clients, tmp_path / "b", callbacks=[tffcl.EarlyStopping("cluster_f2", 1)])


@pytest.mark.slow
def test_early_stopping_of_a_model_of_numbers_has_no_accuracy_to_choose_by(tff_worker, tmp_path):
    method = tffcl.algorithms.build_fedavg(own_objectives.build("numbers"), TRAINING)
    with pytest.raises(tffcl.UserError, match="unknown metric of this run 'cluster_accuracy'.*cluster_mae") as raised:
        run(
            method, own_objectives.examples("numbers"), tmp_path / "a",
            clients_per_round=4, callbacks=[tffcl.EarlyStopping("cluster_accuracy", 1)],
        )  # fmt: skip
    nearest = re.search(r"nearest of \d+: (.*)\)", str(raised.value))[1].split(", ")
    assert len({*nearest}) == len(nearest)
