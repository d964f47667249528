"""The picture of what privacy costs: accuracy and agreement of the clusters against epsilon."""

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogFormatter

from tffcl.lab.reporting import style
from tffcl.lab.reporting.study_results import EPSILONS, Result, StudyResults
from tffcl.lab.reporting.style import ReportFigure

_OPEN = 4.0  # how many times the largest epsilon lie to the left of "no noise"


def privacy_figure(study: StudyResults) -> ReportFigure:
    """Draws the results of a study whose cells measure epsilon: a line for each of its columns, with means over seeds.

    Where the whole run is private, the accuracy of the clusters' models stands beside the adjusted Rand index of the clusters;
    of releases that have noise beside others without, the index alone. What has no noise at all stands at the right edge.
    """
    cells = [each for each in study.results if each.noted["measure"] in EPSILONS and each.here.count]
    whole = any(each.noted["measure"] == "epsilon" for each in cells)
    largest = max((each.here.mean for each in cells if math.isfinite(each.here.mean)), default=1.0)
    panels = [("adjusted Rand index", lambda each: each.ari)]
    if whole:
        panels.insert(0, ("cluster accuracy (%)", lambda each: each.accuracies["cluster"]))
    figure = style.new_figure(5.4 * len(panels), 4.3)
    columns = [name for name in study.columns if any(each.noted["column"] == name for each in cells)]
    for axes, (unit, value) in zip(np.atleast_1d(figure.subplots(1, len(panels))), panels):
        for index, column in enumerate(columns):
            own = sorted((each for each in cells if each.noted["column"] == column), key=lambda each: each.here.mean)
            _draw(axes, own, value, largest, {"color": style.color(index), "label": column})
        axes.set_ylabel(unit)
        _set_scale(axes, cells, largest)
        style.tidy(axes)
    handles, _ = axes.get_legend_handles_labels()
    style.legend_below(figure, min(len(columns), 4), handles=handles)
    return figure


def _place(each: Result, largest: float) -> float:
    return each.here.mean if math.isfinite(each.here.mean) else _OPEN * largest


def _draw(axes: Axes, cells: list[Result], value, largest: float, look: dict):
    known = [each for each in cells if value(each).count]
    if not known:
        return  # a method without clusters has no index
    x, y = [_place(each, largest) for each in known], [value(each).mean for each in known]
    spread = np.nan_to_num([value(each).std for each in known])
    axes.errorbar(x, y, yerr=spread if spread.any() else None, marker="o", markersize=5, linewidth=1.8, capsize=2.5, **look)


def _set_scale(axes: Axes, cells: list[Result], largest: float):
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(LogFormatter())  # the usual one makes formulas, which figures do not show
    axes.xaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.4)))
    axes.set_xlabel("epsilon")
    if any(not math.isfinite(each.here.mean) for each in cells):
        axes.axvline(2 * largest, color=style.GREY, linewidth=0.8, linestyle=":")
        axes.annotate(
            "no noise", (_OPEN * largest, 0.02), xycoords=("data", "axes fraction"), ha="center", fontsize=8, color=style.GREY
        )
