"""Progress bars, for a terminal, a log file and a notebook."""

import contextlib
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tffcl.runs.callbacks import Callback

with warnings.catch_warnings():
    # In a notebook without ipywidgets tqdm says so at length; its bar of text does as well.
    warnings.simplefilter("ignore")
    from tqdm.auto import tqdm

if TYPE_CHECKING:
    from tffcl.runs.run import Run


def progress_bar(total: int, title: str, unit: str, *, show: bool = True) -> tqdm:
    """Returns a bar on standard error.

    Args:
      total: How many units there are.
      title: What stands before it.
      unit: What is counted.
      show: False for none.
    """
    return tqdm(
        total=total, desc=title, unit=unit, disable=not show, dynamic_ncols=True, mininterval=_interval(),
        maxinterval=_interval(),
    )  # fmt: skip


@contextlib.contextmanager
def waiting(title: str, *, show: bool = True) -> Iterator[None]:
    """Says on a terminal what is waited for while its block runs, where nobody knows how long."""
    hidden = None if show else True  # None: where standard error is no terminal
    with tqdm(desc=title, bar_format="{desc} ({elapsed})", disable=hidden, leave=False, dynamic_ncols=True):
        yield


def _interval() -> float:
    """Seconds between updates: in a log file a line every ten seconds does; on a terminal the bar moves."""
    if sys.stderr.isatty():
        return 0.1
    # In a notebook IPython's kernel puts an object of its own in the place of standard error.
    return 1.0 if type(sys.stderr).__module__.startswith("ipykernel") else 10.0


class Progress(Callback):
    """The bar of a run, inside a `with` block, and the lines above it.

    Attributes:
      bar: The bar.
    """

    def __init__(self, rounds: int, title: str, *, show: bool = True):
        self._rounds, self._title, self._show = rounds, title, show
        self._shown, self._said = {}, set()

    def __enter__(self) -> "Progress":
        self.bar = progress_bar(self._rounds, self._title, "round", show=self._show)
        return self

    def __exit__(self, *_):
        self.bar.close()

    def begin(self, run: "Run"):
        """Says that rounds were done before: they are no part of the rate and of the time that is left."""
        self.bar.initial = self.bar.n = self.bar.last_print_n = run.round_number
        self.bar.unpause()
        self.bar.refresh()

    def after_round(self, run: "Run"):
        """Moves the bar on; the last accuracies stay until the next evaluation."""
        if run.metrics["train_loss"] is not None:
            self._shown["loss"] = f"{run.metrics['train_loss']:.3f}"
        for key in ("cluster", "local", "global"):
            if run.metrics[f"{key}_accuracy"] is not None:
                self._shown[key] = f"{100 * run.metrics[f'{key}_accuracy']:.2f}%"
        self.bar.set_postfix(self._shown, refresh=False)
        self.bar.update(1)

    @contextlib.contextmanager
    def titled(self, more: str) -> Iterator[None]:
        """Says more before the bar while its block runs."""
        self.bar.set_description(f"{self._title}{more}")
        yield
        self.bar.set_description(self._title)

    def say(self, line: str):
        """Writes a line above the bar, or where it would be."""
        self.bar.write(line, file=sys.stderr)

    def say_once(self, line: str):
        """Writes a line above the bar, unless there is none or the line stands there."""
        if line not in self._said and not self.bar.disable:
            self.say(line)
        self._said.add(line)

    def show_clients(self, done: int, clients: int):
        """Says how far a long round has come."""
        if self.bar.disable:
            return
        title = self.bar.desc.split(" (")[0].removesuffix(": ")
        self.bar.set_description(title if done == clients else f"{title} ({done}/{clients} clients)")
