"""Progress bars, for a terminal, a log file and a notebook."""

import sys
import warnings

with warnings.catch_warnings():
    # In a notebook without ipywidgets tqdm says so at length; its bar of text does as well.
    warnings.simplefilter("ignore")
    from tqdm.auto import tqdm


def progress_bar(total: int, title: str, unit: str, *, show: bool = True) -> tqdm:
    """Returns a bar on standard error.

    Args:
      total: How many units there are.
      title: What stands before it.
      unit: What is counted.
      show: False for none.
    """
    return tqdm(
        total=total,
        desc=title,
        unit=unit,
        disable=not show,
        dynamic_ncols=True,
        mininterval=_interval(),
        maxinterval=_interval(),
    )


def _interval() -> float:
    """Seconds between updates: in a log file a line every ten seconds does; on a terminal the bar moves."""
    if sys.stderr.isatty():
        return 0.1
    return 1.0 if _in_notebook() else 10.0


def _in_notebook() -> bool:
    # IPython's kernel puts an object of its own in the place of standard error.
    return type(sys.stderr).__module__.startswith("ipykernel")


def go_on_from(bar, done: int):
    """Says that so many units were done before: they are no part of the rate and of the time that is left."""
    bar.initial = bar.n = bar.last_print_n = done
    bar.unpause()
    bar.refresh()


def say_once(bar, line: str, told: set):
    """Writes a line above the bar, unless it was told before."""
    if line not in told and not bar.disable:
        bar.write(line, file=sys.stderr)
    told.add(line)


def show_clients(bar, done: int, clients: int):
    """Says how far a long round has come."""
    if bar.disable:
        return
    title = bar.desc.split(" (")[0].removesuffix(": ")
    bar.set_description(title if done == clients else f"{title} ({done}/{clients} clients)")


def show(bar, row: dict, shown: dict):
    """Moves the bar on; `shown` keeps the last accuracies until the next evaluation."""
    if row["train_loss"] is not None:
        shown["loss"] = f"{row['train_loss']:.3f}"
    for key in ("cluster", "local", "global"):
        if row[f"{key}_accuracy"] is not None:
            shown[key] = f"{100 * row[f'{key}_accuracy']:.2f}%"
    bar.set_postfix(shown, refresh=False)
    bar.update(1)
