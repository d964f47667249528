"""Callbacks: objects that a run calls after each of its rounds, among them the progress bar. Imports no TensorFlow."""

import contextlib
import dataclasses
import functools
import json
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from tffcl.display import counted
from tffcl.errors import VALIDATION, UserError, tell, unknown
from tffcl.runs.metrics import ACCURACIES, DOWN, OF_ROUNDS, measured, of_column
from tffcl.validation import Count, NonNegative, Parameters

if TYPE_CHECKING:
    from tffcl.runs.run import Run


class Callback:
    """Base class of objects that a run calls before its first round, after each round and at its end; does nothing.

    A resumed run starts in the middle, so keep in `run.callback_states` what a callback must know of earlier rounds.

    Attributes:
      stops_between_evaluations: Whether the callback may end the run in a round without an evaluation. If so, every
        client of a cohort tests its own model in every round, which takes time. Set it to False for a callback that
        never ends a run.
    """

    stops_between_evaluations = True

    def begin(self, run: "Run") -> str | None:
        """Is called once, with the state before the first round, or with the state of the checkpoint it resumes from.

        Args:
          run: What is known of the run. Read it, but do not change it.

        Returns:
          A reason to train no round at all, or None.
        """

    def after_round(self, run: "Run") -> str | None:
        """Is called after each round, when its row is in rounds.csv.

        Returns:
          A reason to end the run with this round, or None.
        """

    def after_late_evaluation(self, run: "Run", found: Mapping[str, float | None]) -> None:
        """Is called after the evaluation that is made up for when a run was stopped in a round without one.

        Args:
          run: As in `begin`.
          found: What the evaluation measured, by column of rounds.csv; `run.metrics` has it, too.
        """

    def end(self, run: "Run") -> None:
        """Is called when no round follows, also after an error or Ctrl-C has ended the run."""


@dataclasses.dataclass(frozen=True)
class EarlyStopping(Parameters, Callback):
    """Ends a run whose metric no longer improves. The run returns the model after its last round, not the best one.

    Accuracies are measured on validation examples where clients have some, because a result that is chosen on test
    data looks better than it is.

    Attributes:
      metric: A column of rounds.csv, e.g. "cluster_accuracy", "train_loss" or, where the model has the metric f1,
        "cluster_f1".
      patience: How many values in a row may fail to improve on the best one so far.
      min_delta: By how much a value must exceed the best to count as better, in the unit of rounds.csv (a share for
        accuracies).
    """

    metric: str
    patience: Count
    min_delta: NonNegative = 0.0

    def check(self):
        """Raises UserError if no column has this name, or if its values cannot be better or worse."""
        found = of_column(self.metric)
        if found is None or not found.better:
            raise unknown("metric", self.metric, self._with_better(OF_ROUNDS), key="metric")

    @property
    def stops_between_evaluations(self) -> bool:
        """Whether the metric has values between evaluations."""
        return not self._is_of_evaluation

    @property
    def _is_of_evaluation(self) -> bool:
        """Whether only evaluations measure the metric, as they do accuracies and further metrics of answers."""
        return of_column(self.metric).source[:1] in (("accuracy",), ("validation",), ("metrics",))

    @staticmethod
    def _with_better(columns: Iterable[str]) -> list[str]:
        return [column for column in columns if (metric := of_column(column)) is not None and metric.better]

    def _column(self, run: "Run") -> str:
        """The column that is watched."""
        return self._twin if self._twin and run.stage.validator is not None else self.metric

    @property
    def _twin(self) -> str:
        """The column of the same metric on validation examples; "" if there is none."""
        name = f"validation_{self.metric}"
        return name if of_column(name) is not None else ""

    def check_measured(self, run: "Run"):
        """Checks before a run that the metric can be measured.

        Raises:
          UserError: If the metric needs validation examples and clients have none, or have them in some rounds only;
            or if the model has no such metric.
        """
        if self.metric.startswith("validation_") and run.stage.validator is None:
            raise UserError(
                f"early stopping chooses by {self.metric}, and clients have no validation examples; "
                f"{VALIDATION} holds some out, or choose by {self.metric.removeprefix('validation_')}"
            )
        stages = zip(run.stages.starts, run.stages.populations, strict=True)
        without = [start for start, each in stages if each.validation_examples is None]
        column = self.metric if self.metric.startswith("validation_") else self._twin
        if column and 0 < len(without) < len(run.stages.starts):
            since = f"from round {without[0]} on" if without[0] else "in the first rounds"
            raise UserError(
                f"early stopping chooses by {column}, and clients have no validation examples {since}, while they "
                f"have some in others; {VALIDATION} holds some out, of each population"
            )
        model = run.method.model
        known = measured([each.name for each in model.metrics], has_accuracy=model.objective.has_accuracy)
        if self.metric not in known:
            raise unknown("metric of this run", self.metric, self._with_better(known), key="metric")

    def begin(self, run: "Run") -> str | None:
        """Tells the user if the metric is measured on test data; goes on from the state in the checkpoint."""
        column = self._column(run)
        if self._is_of_evaluation and not column.startswith("validation_"):
            hint = f"; {VALIDATION} holds out validation data to choose by" if self._twin else ""
            run.progress.say(
                f"tffcl: early stopping chooses by {column}, which is of test data, so that this looks better than it "
                f"is{hint}"
            )
        known = run.callback_states.get(self._key(column), {})
        # Stop only by a value of this round: between evaluations not all clients have tested their models.
        return self._reason(run, column) if known.get("last") == run.round_number else None

    def after_round(self, run: "Run") -> str | None:
        """Compares this round's value, if there is one, with the best so far.

        Raises:
          UserError: If the run does not measure the metric.
        """
        column = self._column(run)
        if column not in run.metrics:
            raise unknown("metric of this run", column, run.metrics)
        value = run.metrics[column]
        if value is None:
            if run.evaluation is not None and run.round_number <= run.protocol.evaluate_every:  # the first one
                run.progress.say(f"tffcl: {column} has no value here, and while that is so early stopping ends nothing")
            return None
        known = run.callback_states.get(self._key(column))
        if known is not None and known["last"] == run.round_number:
            return self._reason(run, column)  # another early stopping with the same key has counted this value
        sign = -1 if of_column(column).better == DOWN else 1
        if known is None or sign * (value - known["best"]) > self.min_delta:
            known = {"best": value, "round": run.round_number, "since": 0}
        else:
            known = {**known, "since": known["since"] + 1}
        run.callback_states[self._key(column)] = {**known, "last": run.round_number}
        return self._reason(run, column)

    def _key(self, column: str) -> str:
        """The name of its state in a checkpoint; another early stopping of the run has another name."""
        return f"early stopping by {column}, min_delta {self.min_delta:g}"

    def _reason(self, run: "Run", column: str) -> str | None:
        known = run.callback_states.get(self._key(column))
        if known is None or known["since"] < self.patience:
            return None
        metric = of_column(column)
        best = f"{metric.scale * known['best']:.4g}{f' {metric.unit}' if metric.unit else ''}"
        return (
            f"{column} has not become better than its {best} of round {known['round']} in "
            f"{counted(known['since'], 'value')} since; the result is the model of the last round"
        )


class CallbackFailed(UserError):
    """A user's callback has raised an error."""


class UsersCallback(Callback):
    """Wraps a user's callback. Whatever it raises becomes a CallbackFailed; at the end of a run, when nothing is left
    to stop, it becomes a line on standard error."""

    def __init__(self, callback: Callback):
        self._callback = callback
        self.begin = functools.partial(self._call, "begin")
        self.after_round = functools.partial(self._call, "after_round")

    def after_late_evaluation(self, run: "Run", found: Mapping[str, float | None]) -> None:
        """See `Callback`."""
        self._tell_failure("after_late_evaluation", run, found)

    def end(self, run: "Run") -> None:
        """See `Callback`."""
        self._tell_failure("end", run)

    def _tell_failure(self, hook: str, run: "Run", *more):
        try:
            self._call(hook, run, *more)
        except CallbackFailed as error:
            tell(str(error))

    def _call(self, hook: str, run: "Run", *more) -> str | None:
        name, before = f"the callback {type(self._callback).__name__}", json.dumps(run.callback_states)
        try:
            reason = getattr(self._callback, hook)(run, *more)
        except KeyboardInterrupt:  # not now: the callbacks after this one must see the round
            run.interrupts.requested, reason = True, None
        except UserError as error:
            raise CallbackFailed(str(error)) from error
        except Exception as error:
            raise CallbackFailed(f"{name} failed in {hook}: {type(error).__name__}: {error}") from error
        finally:
            unsaved = _restored(run, before)
        if unsaved:
            raise CallbackFailed(f"{name} left in run.callback_states in {hook} what is no JSON value: {unsaved}")
        if reason is not None and not isinstance(reason, str):
            raise CallbackFailed(
                f"{name} returned {reason!r:.100} from {hook}; it must be a reason to stop, in words, or None"
            )
        return reason


def _restored(run: "Run", before: str) -> str:
    """Restores the earlier callback states if a checkpoint cannot hold the current ones.

    Returns:
      Why a checkpoint cannot hold them; "" if it can.
    """
    try:
        if not isinstance(run.callback_states, dict):
            raise TypeError(f"{type(run.callback_states).__name__} in place of a dict")
        json.dumps(run.callback_states)
    except (TypeError, ValueError, RecursionError) as error:
        run.callback_states = json.loads(before)
        return str(error)
    return ""


with warnings.catch_warnings():
    # In a notebook without ipywidgets tqdm warns at length, although its text bar works as well.
    warnings.simplefilter("ignore")
    from tqdm.auto import tqdm


def progress_bar(total: int, title: str, unit: str, *, show: bool = True) -> tqdm:
    """Returns a bar on standard error.

    Args:
      total: How many units there are.
      title: The text before the bar.
      unit: What is counted.
      show: Whether to show the bar at all.
    """
    return tqdm(
        total=total, desc=title, unit=unit, disable=not show, dynamic_ncols=True, mininterval=_interval(),
        maxinterval=_interval(),
    )  # fmt: skip


@contextlib.contextmanager
def waiting(title: str, *, show: bool = True) -> Iterator[None]:
    """Shows on a terminal what the program waits for while the block runs; nobody knows how long that takes."""
    hidden = None if show else True  # None hides it if standard error is not a terminal
    with tqdm(desc=title, bar_format="{desc} ({elapsed})", disable=hidden, leave=False, dynamic_ncols=True):
        yield


def _interval() -> float:
    """The seconds between updates of the bar: 0.1 on a terminal, ten in a log file, where each update is a line."""
    if sys.stderr.isatty():
        return 0.1
    # In a notebook IPython's kernel replaces standard error by an object of its own.
    return 1.0 if type(sys.stderr).__module__.startswith("ipykernel") else 10.0


class Progress(Callback):
    """The bar of a run, inside a `with` block, and the lines above it.

    Attributes:
      bar: The bar.
    """

    def __init__(self, rounds: int, title: str, *, show: bool = True):
        self._rounds, self._title, self._show = rounds, title, show
        self._shown, self._printed = {}, set()

    def __enter__(self) -> "Progress":
        self.bar = progress_bar(self._rounds, self._title, "round", show=self._show)
        return self

    def __exit__(self, *_):
        self.bar.close()

    def begin(self, run: "Run"):
        """Tells the bar how many rounds were done before; they do not count for the rate and the time left."""
        self.bar.initial = self.bar.n = self.bar.last_print_n = run.round_number
        self.bar.unpause()
        self.bar.refresh()

    def after_round(self, run: "Run"):
        """Moves the bar on; the last accuracies stay until the next evaluation."""
        if run.metrics["train_loss"] is not None:
            self._shown["loss"] = f"{run.metrics['train_loss']:.3f}"
        for key in ACCURACIES:
            if run.metrics[f"{key}_accuracy"] is not None:
                self._shown[key] = f"{100 * run.metrics[f'{key}_accuracy']:.2f}%"
        self.bar.set_postfix(self._shown, refresh=False)
        self.bar.update(1)

    @contextlib.contextmanager
    def titled(self, more: str) -> Iterator[None]:
        """Shows a longer title before the bar while the block runs."""
        self.bar.set_description(f"{self._title}{more}")
        yield
        self.bar.set_description(self._title)

    def say(self, line: str):
        """Writes a line above the bar, or in its place if it is not shown."""
        self.bar.write(line, file=sys.stderr)

    def say_once(self, line: str):
        """Writes a line above the bar, unless the bar is not shown or the line was written before."""
        if line not in self._printed and not self.bar.disable:
            self.say(line)
        self._printed.add(line)

    def show_clients(self, done: int, clients: int):
        """Shows how many clients of a long round are done."""
        if self.bar.disable:
            return
        title = self.bar.desc.split(" (")[0].removesuffix(": ")
        self.bar.set_description(title if done == clients else f"{title} ({done}/{clients} clients)")
