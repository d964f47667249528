"""Metrics of answers against scikit-learn's, and where there is no value."""

import math

import numpy as np
import pytest
from sklearn import metrics as sklearn

from tffcl.errors import UserError
from tffcl.models.metrics import METRICS, Answers, better_of, chosen, compute

rng = np.random.default_rng(3)
TWO, THREE, SEVERAL, NUMBERS = "two", "three", "several", "numbers"


def softmax(scores):
    return np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)


def answers(kind, n=60):
    """Answers that are right more often than not."""
    if kind in (TWO, THREE):
        classes = 2 if kind == TWO else 3
        y = rng.integers(0, classes, n)
        outputs = softmax(rng.normal(size=(n, classes)) + 1.5 * np.eye(classes)[y]).astype(np.float32)
        return Answers(y, outputs.argmax(1), outputs)
    if kind == SEVERAL:
        y = rng.integers(0, 2, [n, 4])
        outputs = np.clip(0.5 + 0.3 * (2 * y - 1) + 0.3 * rng.normal(size=y.shape), 0.01, 0.99)
        return Answers(y, (outputs > 0.5).astype(int), outputs)
    y = rng.normal(size=[n, 2])
    given = y + rng.normal(size=y.shape)
    return Answers(y, given, given)


def average(name, **options):
    return lambda a: getattr(sklearn, name)(a.labels, a.predictions, **options)


def areas(a, **options):
    return sklearn.roc_auc_score(a.labels, a.outputs, **options)


SAME = [
    ("accuracy", THREE, average("accuracy_score")),
    ("accuracy", SEVERAL, lambda a: 1 - sklearn.hamming_loss(a.labels, a.predictions)),
    ("balanced_accuracy", THREE, average("balanced_accuracy_score")),
    ("f1", TWO, average("f1_score", average="macro")),
    ("f1", THREE, average("f1_score", average="macro")),
    ("f1", SEVERAL, average("f1_score", average="macro")),
    ("f1_micro", SEVERAL, average("f1_score", average="micro")),
    ("precision", TWO, average("precision_score")),
    ("precision", THREE, average("precision_score", average="macro")),
    ("recall", TWO, average("recall_score")),
    ("recall", SEVERAL, average("recall_score", average="macro")),
    ("auc", TWO, lambda a: sklearn.roc_auc_score(a.labels, a.outputs[:, 1])),
    ("auc", THREE, lambda a: areas(a, multi_class="ovr", average="macro")),
    ("auc", SEVERAL, lambda a: areas(a, average="macro")),
    ("log_loss", THREE, lambda a: sklearn.log_loss(a.labels, a.outputs)),
    ("log_loss", SEVERAL, lambda a: np.mean([sklearn.log_loss(y, p) for y, p in zip(a.labels.T, a.outputs.T)])),
    ("mae", NUMBERS, average("mean_absolute_error")),
    ("mse", NUMBERS, average("mean_squared_error")),
    ("r2", NUMBERS, average("r2_score")),
]


@pytest.mark.parametrize("name, kind, theirs", SAME)
def test_a_metric_is_that_of_scikit_learn(name, kind, theirs):
    given = answers(kind)
    assert compute(METRICS[name], given) == pytest.approx(theirs(given), abs=1e-6)


@pytest.mark.parametrize("kind", [TWO, THREE, SEVERAL])
def test_the_calibration_error_is_the_mean_gap_of_fifteen_bins(kind):
    given = answers(kind, 300)
    confidence = np.maximum(given.outputs, 1 - given.outputs).ravel() if kind == SEVERAL else given.outputs.max(1)
    right, expected = (given.labels == given.predictions).ravel(), 0.0
    for low in np.arange(15) / 15:
        own = (confidence > low) & (confidence <= low + 1 / 15)
        if own.any():
            expected += own.mean() * abs(right[own].mean() - confidence[own].mean())
    assert compute(METRICS["calibration_error"], given) == pytest.approx(expected, abs=1e-6)


def test_a_confidence_at_the_end_of_a_bin_is_in_it():
    """The bins are (0, 1/15], (1/15, 2/15], ..., each of its own up to the last."""
    confidence = np.array([0.6, 0.62, 0.9, 0.99])  # nine fifteenths, and more
    given = Answers(np.array([0, 1, 0, 1]), np.zeros(4, int), np.stack([confidence, 1 - confidence], axis=1))
    assert compute(METRICS["calibration_error"], given) == pytest.approx((0.4 + 0.62 + 0.1 + 0.99) / 4)


def test_labels_that_say_nothing_do_not_count_in_a_mean_over_labels():
    """A label that nobody has and nobody is said to have; one that all have; and a number that is always the same."""
    given = answers(SEVERAL)
    y, predicted = given.labels.copy(), given.predictions.copy()
    y[:, 0], predicted[:, 0], y[:, 1] = 0, 0, 1
    some = Answers(y, predicted, given.outputs)
    for name, rule in (("f1", sklearn.f1_score), ("recall", sklearn.recall_score)):
        assert compute(METRICS[name], some) == pytest.approx(rule(y[:, 1:], predicted[:, 1:], average="macro"))
    assert compute(METRICS["auc"], some) == pytest.approx(sklearn.roc_auc_score(y[:, 2:], some.outputs[:, 2:]))
    numbers = answers(NUMBERS)
    numbers.labels[:, 0] = 7
    assert math.isnan(compute(METRICS["r2"], numbers)) and compute(METRICS["mae"], numbers) > 1


def test_directions_and_ends_of_the_metrics():
    down = {"log_loss", "perplexity", "calibration_error", "mae", "mse"}
    assert {name for name in METRICS if better_of(name) == "down"} == down
    ends = {"auc": (0, 1), "log_loss": (0, None), "perplexity": (1, None), "mae": (0, None), "mse": (0, None)}
    assert {name: METRICS[name].limits for name in ends} == ends and METRICS["r2"].limits == (None, 1)
    given = answers(THREE)
    assert compute(METRICS["perplexity"], given) == pytest.approx(math.exp(compute(METRICS["log_loss"], given)))


@pytest.mark.parametrize("name", ["auc", "balanced_accuracy"])
def test_of_one_class_alone_it_is_not_defined(name):
    given = answers(TWO)
    ones = given.labels == 1
    only = Answers(given.labels[ones], given.predictions[ones], given.outputs[ones])
    assert math.isnan(compute(METRICS[name], only))
    assert np.isfinite(compute(METRICS["f1"], only)) and np.isfinite(compute(METRICS["log_loss"], only))
    assert math.isnan(compute(METRICS[name], Answers(*(each[:0] for each in (ones, ones, given.outputs)))))


def test_classes_that_nobody_has_do_not_count_in_the_area():
    given = answers(THREE)
    two = given.labels < 2
    some = Answers(given.labels[two], given.predictions[two], given.outputs[two])
    each = [sklearn.roc_auc_score(some.labels == label, some.outputs[:, label]) for label in (0, 1)]
    assert compute(METRICS["auc"], some) == pytest.approx(np.mean(each))


def test_the_direction_of_a_users_metric_follows_from_its_name():
    def brier_loss(y, p):
        return float(np.mean((p[:, 1] - y) ** 2))

    (own,) = chosen((brier_loss,), "classes")
    given = answers(TWO)
    assert (own.name, own.better) == ("brier_loss", "down") and better_of("brier") == "up"
    assert {better_of(f"mean_poisson_{end}") for end in ("deviance", "error", "loss", "distance")} == {"down"}
    assert compute(own, given) == pytest.approx(sklearn.brier_score_loss(given.labels, given.outputs[:, 1]))


def fails(y, p):
    raise ZeroDivisionError("nothing")


def rows(y, p):
    return p


def text(y, p):
    return np.array("0.5")


def nothing(y, p):
    pass


def root(y, p):
    return np.complex64(1j)


def spoils(y, p):
    y[:] = 0
    p.sort(axis=0)
    return np.array(0.5)


def test_a_users_metric_may_change_what_it_is_given():
    given = answers(TWO)
    before = [each.copy() for each in (given.labels, given.outputs)]
    assert compute(chosen((spoils,), "classes")[0], given) == 0.5
    np.testing.assert_array_equal(given.labels, before[0])
    np.testing.assert_array_equal(given.outputs, before[1])


@pytest.mark.parametrize(
    "metrics, kind, message",
    [
        (("aucc",), "classes", "unknown metric 'aucc'; did you mean 'auc'"),
        (("mse",), "classes", "metric mse is not defined for labels that are classes; allowed are: accuracy, "),
        (("auc",), "numbers", "metric auc is not defined for labels that are numbers; allowed are: mae, mse, r2"),
        (("mae",), "labels", "metric mae is not defined for labels that are several, each 0 or 1; allowed are: "),
        (("f1", "f1"), "classes", "metrics have f1 twice"),
        ((lambda y, p: 0,), "classes", "it must have a name"),
        ((fails,), "classes", "the metric fails failed: ZeroDivisionError: nothing"),
        ((rows,), "classes", "the metric rows gave .*; it must give one number"),
        ((text,), "classes", "the metric text gave '0.5'; it must give one number"),
        ((nothing,), "classes", "the metric nothing gave None; it must give one number"),
        ((root,), "classes", "the metric root gave .*1j.*; it must give one number"),
    ],
)
def test_a_wrong_metric_is_told_in_one_line(metrics, kind, message):
    with pytest.raises(UserError, match=message):
        compute(chosen(metrics, kind)[0], answers(TWO))
