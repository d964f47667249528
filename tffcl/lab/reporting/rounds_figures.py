"""Pictures of how runs went over the rounds: accuracies, and what lies behind them."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from tffcl.lab.reporting import style
from tffcl.lab.reporting.number_format import Stat
from tffcl.lab.reporting.style import ReportFigure
from tffcl.runs.metrics import of_panel
from tffcl.runs.run_files import RunFiles

# Column of rounds.csv, title, unit on the axis, factor.
ACCURACIES, PROGRESS, MERGING, PRIVACY = (
    tuple((each.column, each.title, each.axis, each.scale) for each in of_panel(figure))
    for figure in ("accuracy", "progress", "merging", "privacy")
)
_MOST_MARKED = 16


def accuracy_figure(runs: Sequence[RunFiles]) -> ReportFigure:
    """Draws the three accuracies over the rounds, a panel each.

    A line is the mean over the seeds of a method, its band is their sample standard deviation, as in the table.
    """
    figure = _panels(runs, ACCURACIES, share_y=True)
    axes = figure.axes[0]
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, 0), min(high, 100.5))
    return figure


def progress_figure(runs: Sequence[RunFiles]) -> ReportFigure:
    """Draws training loss, number of clusters and agreement with the true groups over the rounds.

    Dotted lines stand where clusters were formed anew.
    """
    figure = _panels(runs, PROGRESS, share_y=False)
    _, clusters, agreement = figure.axes
    for number in sorted(set().union(*map(formed_anew, runs))):
        for axes in (clusters, agreement):
            axes.axvline(number, color=style.GREY, linestyle=":", linewidth=1, zorder=0)
    clusters.set_ylim(min(0.5, clusters.get_ylim()[0]), np.ceil(clusters.get_ylim()[1]) + 0.5)
    _count_on(clusters)
    agreement.set_ylim(min(-0.05, agreement.get_ylim()[0]), 1.05)
    return figure


def _count_on(axes: Axes):
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))


def formed_anew(run: RunFiles) -> set[int]:
    """Rounds after which the clusters were formed anew, the rare ones that a line can mark."""
    anew = run.rounds.get("formed_anew")
    numbers = set() if anew is None else {int(number) for number in run.rounds["round"][anew > 0]}
    return numbers if len(numbers) <= _MOST_MARKED else set()


def merging_figure(runs: Sequence[RunFiles], methods: Sequence[str] | None = None) -> ReportFigure:
    """Draws how clusters merge over the rounds, and the clustering objective (StoCFL Fig. 6b, Eq. 2).

    Args:
      runs: Of methods that merge clusters.
      methods: All of a comparison, so that these have the colours that they have in its other figures; default those of the
        runs.
    """
    figure = _panels(runs, MERGING, share_y=False, everyone=methods)
    for axes in figure.axes[:2]:
        axes.set_ylim(0, np.ceil(axes.get_ylim()[1]))
        _count_on(axes)
    return figure


def over_seeds(runs: Sequence[RunFiles], column: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns rounds, means and sample standard deviations (ddof=1, NaN of one) over the runs of one method.

    Only rounds that all seeds have are used: a mean over fewer of them would jump. Where there is no such round,
    those that any seed has.
    """
    series = []
    for run in runs:
        present = ~np.isnan(run.rounds[column])
        values = dict(zip(run.rounds["round"][present].tolist(), run.rounds[column][present].tolist(), strict=True))
        series += [values] if values else []
    if not series:
        return tuple(np.empty(0) for _ in range(3))
    rounds = sorted(set.intersection(*map(set, series))) or sorted(set.union(*map(set, series)))
    stats = [Stat.of(each[number] for each in series if number in each) for number in rounds]
    return np.array(rounds), np.array([stat.mean for stat in stats]), np.array([stat.std for stat in stats])


def _panels(runs: Sequence[RunFiles], panels, share_y: bool, everyone: Sequence[str] | None = None) -> ReportFigure:
    methods: dict[str, list[RunFiles]] = {}
    for run in runs:
        methods.setdefault(run.method, []).append(run)
    looks = style.line_styles(everyone or list(methods))
    figure = style.new_figure(10.5, 3.6 + 0.25 * ((len(methods) - 1) // 5))
    all_axes = figure.subplots(1, len(panels), sharey=share_y)
    for axes, (column, title, unit, factor) in zip(all_axes, panels, strict=True):
        axes.set_title(title, fontsize=11)
        drawn = [_draw_method(axes, own, column, factor, looks[name]) for name, own in methods.items()]
        if any(drawn):
            axes.set(xlabel="round", ylabel="" if share_y and axes is not all_axes[0] else unit)
            axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))  # also of a single round
            axes.tick_params(labelleft=True)
            style.tidy(axes)
        else:
            _leave_empty(axes)
    lines = [Line2D([], [], linewidth=2, **looks[name]) for name in methods]
    style.legend_below(figure, min(len(methods), 5), handles=lines, labels=list(methods))
    return figure


def _draw_method(axes: Axes, runs: Sequence[RunFiles], column: str, factor: float, look: dict) -> bool:
    rounds, mean, std = over_seeds(runs, column)
    if not rounds.size:
        return False
    marker = "o" if rounds.size <= _MOST_MARKED else None
    axes.plot(rounds, mean * factor, marker=marker, markersize=4, linewidth=1.8, **look)
    if np.any(std > 0):
        low, high = mean - np.nan_to_num(std), mean + np.nan_to_num(std)
        axes.fill_between(rounds, low * factor, high * factor, color=look["color"], alpha=0.15, linewidth=0)
    return True


def _leave_empty(axes: Axes) -> None:
    axes.text(0.5, 0.5, "not measured", ha="center", va="center", color=style.GREY, transform=axes.transAxes)
    axes.spines[:].set_visible(False)
    axes.xaxis.set_visible(False)
    # Shared ticks must stay for the panels beside this one, so only the axis of this one is hidden.
    axes.yaxis.set_visible(False)
