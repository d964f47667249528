"""Metrics of a model's answers on whole sets of examples, by name or as a user's own functions.

Imports no TensorFlow, and scikit-learn only when a metric is computed.
"""

import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence

import numpy as np

from tffcl.errors import UserError, unknown

UP, DOWN = "up", "down"
_BINS = 15  # of the calibration error


@dataclasses.dataclass(frozen=True, eq=False)
class Answers:
    """A model's answers on n examples, without the labels that do not count.

    Attributes:
      labels: `[n]`, or `[n, L]` for several labels or numbers; in sequences, every label is an example.
      predictions: Of the same shape, the most likely labels, or the numbers that the model predicts.
      outputs: Probabilities `[n, classes]`, or `[n, L]` for several labels; for numbers, the predictions.
    """

    labels: np.ndarray
    predictions: np.ndarray
    outputs: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def joined(cls, parts: Sequence["Answers"]) -> "Answers":
        """Returns the answers of several sets together."""
        names = ("labels", "predictions", "outputs")
        return cls(*(np.concatenate([getattr(each, name) for each in parts]) for name in names))


def _sklearn(name: str, **options) -> Callable[[Answers], float]:
    """Returns a metric of scikit-learn that takes labels and predictions."""

    def compute(answers: Answers) -> float:
        from sklearn import metrics

        return getattr(metrics, name)(answers.labels, answers.predictions, **options)

    return compute


def _accuracy(answers: Answers) -> float:
    return float(np.mean(answers.labels == answers.predictions))


def _balanced_accuracy(answers: Answers) -> float:
    """The mean recall of the classes that occur among the labels."""
    known, place = np.unique(answers.labels, return_inverse=True)
    if len(known) < 2:
        return math.nan
    right = np.bincount(place, weights=answers.labels == answers.predictions)
    return float(np.mean(right / np.bincount(place)))


def _averaged(name: str, average: str | None = None) -> Callable[[Answers], float]:
    """Returns scikit-learn's F1, precision or recall.

    Args:
      name: The name of its function.
      average: As there; None: of class 1 if there are two classes, else the mean over the classes.
    """

    def compute(answers: Answers) -> float:
        from sklearn import metrics

        several = answers.labels.ndim > 1 or answers.outputs.shape[1] > 2
        how = average or ("macro" if several else "binary")
        return getattr(metrics, name)(answers.labels, answers.predictions, average=how, zero_division=np.nan)

    return compute


def _auc(answers: Answers) -> float:
    """The area under the ROC curve: of class 1 if there are two classes, else the mean over the classes, each against
    all others, or over several labels. The mean is over those with examples of both kinds."""
    from sklearn.metrics import roc_auc_score

    if answers.labels.ndim > 1:
        pairs = zip(answers.labels.T, answers.outputs.T)
    elif answers.outputs.shape[1] == 2:
        pairs = [(answers.labels == 1, answers.outputs[:, 1])]
    else:
        pairs = ((answers.labels == each, scores) for each, scores in enumerate(answers.outputs.T))
    areas = [roc_auc_score(own, scores) for own, scores in pairs if 0 < np.count_nonzero(own) < len(own)]
    return float(np.mean(areas)) if areas else math.nan


def _log_loss(answers: Answers) -> float:
    from sklearn.metrics import log_loss

    if answers.labels.ndim > 1:
        columns = zip(answers.labels.T, answers.outputs.T)
        return float(np.mean([log_loss(own, scores, labels=[0, 1]) for own, scores in columns]))
    total = answers.outputs.sum(axis=1, keepdims=True, dtype=float)  # 1 up to rounding, of which scikit-learn warns
    return log_loss(answers.labels, answers.outputs / total, labels=np.arange(answers.outputs.shape[1]))


def _perplexity(answers: Answers) -> float:
    """The number of equally likely answers that would leave the model as undecided: e to the power of the log loss."""
    return math.exp(_log_loss(answers))


def _calibration_error(answers: Answers) -> float:
    """How much the confidence in predictions differs from the share of right ones: the mean over 15 bins of equal
    width, weighted by their numbers of examples (ECE; Guo et al., ICML 2017, arXiv:1706.04599)."""
    if answers.labels.ndim > 1:
        confidence = np.maximum(answers.outputs, 1 - answers.outputs).ravel()
    else:
        confidence = answers.outputs.max(axis=1)
    right = (answers.labels == answers.predictions).ravel()
    bins = np.clip(np.ceil(confidence * _BINS).astype(int) - 1, 0, _BINS - 1)  # (0, 1/15], (1/15, 2/15], ...
    gaps = np.bincount(bins, weights=right - confidence.astype(float), minlength=_BINS)
    return float(np.abs(gaps).sum() / max(len(right), 1))


def _r2(answers: Answers) -> float:
    from sklearn.metrics import r2_score

    if len(answers) < 2 or np.any(np.ptp(answers.labels, axis=0) == 0):
        return math.nan
    return r2_score(answers.labels, answers.predictions)


@dataclasses.dataclass(frozen=True)
class AnswerMetric:
    """A metric of answers.

    Attributes:
      name: Its name.
      title: Its name in tables and figures.
      compute: `(Answers) -> float`; NaN if it is not defined.
      of: What labels must be: "classes", "labels" (several), or "numbers".
      better: `UP` or `DOWN`.
      is_share: Whether it is from 0 to 1, and shown in percent.
      limits: The least and the greatest value that it can have; None for no limit.
      function: The user's own function; None for a metric of this module.
    """

    name: str
    title: str
    compute: Callable[[Answers], float]
    of: tuple[str, ...] = ("classes", "labels")
    better: str = UP
    is_share: bool = False
    limits: tuple[float | None, float | None] = (None, None)
    function: Callable | None = None


_NUMBERS = {"of": ("numbers",)}
METRICS = {
    each.name: each
    for each in (
        AnswerMetric("accuracy", "accuracy", _accuracy, is_share=True),
        AnswerMetric("balanced_accuracy", "balanced accuracy", _balanced_accuracy, of=("classes",), is_share=True),
        AnswerMetric("f1", "F1", _averaged("f1_score", "macro"), is_share=True),
        AnswerMetric("f1_micro", "F1, micro", _averaged("f1_score", "micro"), is_share=True),
        AnswerMetric("precision", "precision", _averaged("precision_score"), is_share=True),
        AnswerMetric("recall", "recall", _averaged("recall_score"), is_share=True),
        AnswerMetric("auc", "AUC", _auc, limits=(0, 1)),
        AnswerMetric("log_loss", "log loss", _log_loss, better=DOWN, limits=(0, None)),
        AnswerMetric("perplexity", "perplexity", _perplexity, of=("classes",), better=DOWN, limits=(1, None)),
        AnswerMetric("calibration_error", "calibration error", _calibration_error, better=DOWN, is_share=True),
        AnswerMetric("mae", "MAE", _sklearn("mean_absolute_error"), better=DOWN, limits=(0, None), **_NUMBERS),
        AnswerMetric("mse", "MSE", _sklearn("mean_squared_error"), better=DOWN, limits=(0, None), **_NUMBERS),
        AnswerMetric("r2", "R²", _r2, limits=(None, 1), **_NUMBERS),
    )
}
ACCURACY = METRICS["accuracy"]
OF_NUMBERS = ("mae", "mse", "r2")


def better_of(name: str) -> str:
    """Returns whether a metric is better `UP` or `DOWN`. For a user's own this follows from its name, by scikit-learn's
    rule: `DOWN` if it ends with "error", "loss", "deviance" or "distance"."""
    if name in METRICS:
        return METRICS[name].better
    return DOWN if name.endswith(("error", "loss", "deviance", "distance")) else UP


def chosen(metrics: Sequence[str | Callable], kind: str) -> tuple[AnswerMetric, ...]:
    """Returns the metrics that a user asks for.

    Args:
      metrics: Names, or functions `(labels, outputs) -> float` of whole sets, see `Answers`; the metric of a function
        has the function's name.
      kind: What labels are: "classes", "labels" or "numbers".

    Raises:
      UserError: If a name is unknown, occurs twice, or belongs to a metric for other labels.
    """
    if isinstance(metrics, str) or callable(metrics):
        metrics = (metrics,)
    found: dict[str, AnswerMetric] = {}
    for given in metrics:
        own = _of_function(given, kind) if callable(given) else None
        if own is None and given not in METRICS:
            raise unknown("metric", given, METRICS, besides="a function (labels, outputs) -> float")
        each = own or METRICS[given]
        if each.name in found or own and each.name in METRICS:
            raise UserError(f"metrics have {each.name} twice; give a function another name")
        if kind not in each.of:
            others = ", ".join(name for name, metric in METRICS.items() if kind in metric.of)
            own = "several, each 0 or 1" if kind == "labels" else kind
            raise UserError(f"metric {each.name} is not defined for labels that are {own}; allowed are: {others}")
        found[each.name] = each
    return tuple(found.values())


def _of_function(function: Callable, kind: str) -> AnswerMetric:
    if isinstance(function, type) or hasattr(function, "update_state"):
        raise UserError(
            f"{getattr(function, '__name__', type(function).__name__)} adds up what it is given, as Keras metrics do; "
            "a metric is a name or a function (labels, outputs) -> float of a client's whole test set"
        )
    name = _name_of(function)
    return AnswerMetric(name, name, _users(function), (kind,), better_of(name), function=function)


def _name_of(function: Callable) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    if not name.isidentifier():
        raise UserError(f"a metric's function is called {name}; it must have a name: def NAME(labels, outputs)")
    return name


def _users(function: Callable) -> Callable[[Answers], float]:
    def compute(answers: Answers) -> float:
        name = _name_of(function)
        try:
            value = function(answers.labels.copy(), answers.outputs.copy())  # since it may change them
        except Exception as error:  # whatever the user's own function raises
            raise UserError(f"the metric {name} failed: {type(error).__name__}: {error}") from error
        if isinstance(value, np.ndarray) and not value.ndim:
            value = value[()]
        if not isinstance(value, (bool, int, float, np.integer, np.floating, np.bool_)):
            raise UserError(f"the metric {name} gave {value!r:.60}; it must give one number, NaN where it has none")
        return float(value)

    return compute


def compute(metric: AnswerMetric, answers: Answers) -> float:
    """Returns a metric of answers, computed on all of them at once; NaN if it is not defined, as for no answers."""
    if not len(answers):
        return math.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn's warnings of classes without examples
        value = float(metric.compute(answers))
    return value if math.isfinite(value) else math.nan
