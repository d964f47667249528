"""Figures of runs over the rounds: accuracies, clusters and loss, and traffic."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from tffcl.lab.reporting import style
from tffcl.lab.reporting.number_format import Stat
from tffcl.lab.reporting.style import ReportFigure
from tffcl.runs.metrics import ROUND, Metric, find, is_further, of_panel
from tffcl.runs.run_files import RunFiles, by_method

_MOST_MARKED = 16
_SENT, _FAR = "MB sent", 50  # a column, and the ratio of its ends from which its axis is logarithmic
_HEIGHT = 3.1  # of a panel, inches
_ROOM = 0.04  # share of the axis beyond the last marker, which would otherwise be cut in half


def accuracy_figure(runs: Sequence[RunFiles]) -> ReportFigure:
    """Draws the three accuracies over the rounds, with a panel for each that is known.

    A line is the mean over the seeds of a method, and its band is the sample standard deviation, as in the table.
    """
    return _panels(runs, of_panel("accuracy"), sharey=True)


def metrics_figure(runs: Sequence[RunFiles]) -> ReportFigure | None:
    """Draws further metrics over the rounds, as `accuracy_figure` does for accuracies; None if there are none."""
    columns = dict.fromkeys(column for run in runs for column in run.rounds if is_further(column))
    return _panels(runs, [find(each, columns) for each in columns]) if columns else None


def progress_figure(runs: Sequence[RunFiles]) -> ReportFigure:
    """Draws training loss, clusters, agreement with the true groups and privacy spent, if they are known.

    Dotted lines mark rounds in which clusters were formed anew.
    """
    return _panels(runs, (*of_panel("progress"), *of_panel("privacy")))


def merging_figure(runs: Sequence[RunFiles], methods: Sequence[str] | None = None) -> ReportFigure:
    """Draws how clusters merge over the rounds, and the clustering objective (StoCFL Fig. 6b, Eq. 2).

    Args:
      runs: Runs of methods that merge clusters.
      methods: All methods of a comparison, so that colours are the same as in its other figures; default the methods of
        `runs`.
    """
    return _panels(runs, of_panel("merging"), methods)


def traffic_figure(runs: Sequence[RunFiles]) -> ReportFigure | None:
    """Draws the three accuracies over the bytes sent so far, down and up, with signatures; None if no run sent any.

    Bytes and accuracies are means over the seeds of a method; a method that sends nothing has no line. If bytes differ
    much, their axis is logarithmic.
    """
    drawn, ends = [], []
    for run in runs:
        exchanged, before = run.exchanged()
        sent = before + np.cumsum(exchanged)
        sent[sent == 0] = np.nan  # no client was drawn in the first rounds
        if np.isfinite(sent).any():
            ends += [np.nanmin(sent), sent[-1]]
            drawn.append(dataclasses.replace(run, rounds={**run.rounds, _SENT: 1e-6 * sent}))
    if not drawn:
        return None
    methods = list(by_method(runs))
    figure = _panels(drawn, of_panel("accuracy"), methods, sharey=True, over=_SENT)
    for axes in figure.panels if max(ends) >= _FAR * min(ends) else []:
        style.tick_ratios(axes.xaxis, min(ends), max(ends))
    return figure


def formed_anew(run: RunFiles) -> set[int]:
    """Rounds in which the clusters were formed anew, before or after training; none if they are too many to mark."""
    anew = run.rounds.get("formed_anew")
    numbers = set() if anew is None else {int(number) for number in run.rounds["round"][anew > 0]}
    return numbers if len(numbers) <= _MOST_MARKED else set()


def over_seeds(runs: Sequence[RunFiles], column: str, where: str = "") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns rounds, means and sample standard deviations (ddof=1, NaN for one run) over the runs of one method.

    Only rounds that all seeds have are used, because a mean over fewer seeds would jump. If there is no such round,
    rounds that any seed has are used. With `where`, only rounds with a value in this column count.
    """
    series = []
    for run in runs:
        present = ~np.isnan(run.rounds[where or column])
        values = dict(zip(run.rounds["round"][present].tolist(), run.rounds[column][present].tolist(), strict=True))
        series += [values] if values else []
    if not series:
        return tuple(np.empty(0) for _ in range(3))
    rounds = sorted(set.intersection(*map(set, series))) or sorted(set.union(*map(set, series)))
    stats = [Stat.of(each[number] for each in series if number in each) for number in rounds]
    return np.array(rounds), np.array([stat.mean for stat in stats]), np.array([stat.std for stat in stats])


def draw_methods(axes: Axes, metric: Metric, series: Mapping[int, tuple], methods: Sequence[str]) -> None:
    """Draws a panel of a metric, with a line for each method's number, from places, means and deviations [n]."""
    for number, (places, mean, std) in series.items():
        run = number if len(methods) > 1 else None
        style.draw_line(axes, places, mean, std, name=methods[number], number=number, run=run)
    axes.set_title(metric.title, fontsize=11)
    axes.set_ylabel(metric.axis)
    style.tidy(axes)


def set_range(axes: Axes, metric: Metric) -> None:
    """Sets the ends of a metric's axis, after all panels that share it are drawn."""
    values = np.concatenate([line.points[:, 1] for line in axes.figure.lines[axes]])
    (low, high), most = axes.get_ylim(), metric.limits[1]
    if metric.unit == "%":
        axes.set_ylim(max(low, 0), min(high, most + 0.5))
    elif most is not None:
        axes.set_ylim(min(-0.05, low, values.min() - _ROOM * (most - values.min())), most + 0.05)
    elif metric.digits == "count" and values.max() >= 20 and values.min() >= 1:
        # On a linear axis, a method with one cluster per client would hide all others.
        style.tick_ratios(axes.yaxis, 1, values.max())
        axes.set_ylim(0.9, 1.1 * values.max())
    elif metric.digits == "count":
        axes.set_ylim(0, np.ceil(high) + 0.5)
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    elif values.min() >= 0:
        axes.set_ylim(0, max(high, (1 + _ROOM) * values.max()))


def name_methods(figure: ReportFigure, methods: Sequence[str], drawn: Sequence[str], title: str = "") -> None:
    """Draws the legend of the drawn methods."""
    lines = [Line2D([], [], linewidth=2, **style.line_style(methods.index(name))) for name in drawn]
    style.legend_below(figure, min(len(drawn), 5), handles=lines, labels=list(drawn), title=title or None)


def _panels(
    runs: Sequence[RunFiles],
    metrics: Sequence[Metric],
    methods: Sequence[str] | None = None,
    *,
    sharey: bool = False,
    over: str = ROUND,
) -> ReportFigure:
    """Draws a panel over a column for each metric that a run has; `methods` are all methods of the page."""
    drawn = list(by_method(runs))
    methods = methods or drawn
    series = {each.key: _series(runs, each, methods, over) for each in metrics}
    known = [each for each in metrics if series[each.key]]
    below = 0.35 + 0.25 * ((len(drawn) - 1) // 5)
    figure = style.new_panels(max(1, len(known)), _HEIGHT, below=below, sharey=sharey)
    if not known:
        style.say_empty(figure.panels[0], "not measured")
    for axes, metric in zip(figure.panels, known):
        draw_methods(axes, metric, series[metric.key], methods)
        axes.set_xlabel(over)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=over == ROUND, min_n_ticks=1))  # also for a single round
        axes.tick_params(labelleft=True)
        for number in sorted(set().union(*map(formed_anew, runs))) if metric.key in ("clusters", "ari") else []:
            rule = axes.axvline(number, color=style.GREY, linestyle=":", linewidth=1, zorder=0)
            style.say(rule, f"clusters formed anew in round {number}")
    for axes, metric in zip(figure.panels, known):
        set_range(axes, metric)
    name_methods(figure, methods, drawn)
    return figure


def _series(runs: Sequence[RunFiles], metric: Metric, methods: Sequence[str], over: str) -> dict[int, tuple]:
    """Places, means and deviations of each method with a metric, by its number; infinite values are left out."""
    found = {}
    for number, name in enumerate(methods):
        own = [run for run in runs if run.method == name and metric.column in run.rounds]
        rounds, mean, std = over_seeds(own, metric.column)
        finite = np.isfinite(mean)
        if over != ROUND:
            _, rounds, _ = over_seeds(own, over, where=metric.column)
            finite &= np.isfinite(rounds)
        if finite.any():
            found[number] = rounds[finite], metric.scale * mean[finite], metric.scale * std[finite]
    return found
