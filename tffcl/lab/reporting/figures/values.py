"""Figures of results over values: those of a sweep's setting, and those of epsilon in a study of privacy."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, LogFormatter, NullFormatter

from tffcl.lab.reporting import style
from tffcl.lab.reporting.figures.rounds import draw_methods, name_methods, set_range
from tffcl.lab.reporting.number_format import show_value
from tffcl.lab.reporting.study_results import EPSILONS, Result, StudyResults
from tffcl.lab.reporting.style import ReportFigure
from tffcl.lab.reporting.sweeps import Point, Sweep
from tffcl.lab.reporting.verdict import measure_of
from tffcl.runs.metrics import ACCURACIES, BY_KEY, Metric, rows_of

_ACCURACIES = [BY_KEY[f"{kind}_accuracy"] for kind in ACCURACIES]
_ERROR, _CLUSTERS = [BY_KEY["clustering_error"]], [BY_KEY["clusters"], BY_KEY["ari"]]
_BANDS = {"clustering_error": "clustering_error_over_rounds"}  # bands that are not deviations over seeds
_LOGARITHMIC = 50  # ratio of the greatest to the least value from which an axis is logarithmic
_LONGEST = 14  # letters at a tick
_OPEN = 4.0  # the place of "no noise", as a multiple of the largest epsilon


def sweep_figure(sweep: Sweep) -> ReportFigure:
    """Draws accuracies and clusters of a sweep over the values of its first setting, with a panel for each that is
    known. If runs are compared by another metric, its panels come first.

    Each value of the second setting has a line in its own colour. With several seeds, a line shows their means, and its
    band their standard deviation. For clusters, the clustering error is drawn, and its band is its deviation over the
    rounds. If no run has it, the number of clusters and the adjusted Rand index are drawn.
    """
    values, names = _in_order([point.values[0] for point in sweep.points]), line_names(sweep)
    lines = _lines(sweep, values)
    several = len(sweep.labels) == 2
    known = []
    has_errors = any(point.row.stats["clustering_error"].count for point in sweep.points)
    measured = measure_of(sweep.runs)
    first = rows_of(measured.source[1])[:3] if measured is not None and measured not in _ACCURACIES else ()
    for metric in (*first, *_ACCURACIES, *(_ERROR if has_errors else _CLUSTERS)):
        series = {number: _series(*line, metric) for number, line in enumerate(lines)}
        series = {number: each for number, each in series.items() if len(each[0])}
        # A method may have a global model only at one end, where it has one cluster; that makes no line.
        least = 2 if metric.column.startswith("global_") and len(values) > 1 else 1
        if any(len(places) >= least for places, _, _ in series.values()):
            known.append((metric, series))
    figure = style.new_panels(max(1, len(known)), 3.2, below=0.5 + 0.25 * ((len(lines) - 1) // 5) if several else 0)
    for axes, (metric, series) in zip(figure.panels, known):
        draw_methods(axes, metric, series, names if several else [metric.title])
        set_range(axes, metric)
        _set_scale(axes, values, sweep.labels[0])
    if several:
        name_methods(figure, names, names, title=sweep.labels[1])
    return figure


def line_names(sweep: Sweep) -> list[str]:
    """Returns the names of a sweep's lines: the values of its second setting, or "" without one."""
    return [" ".join(map(show_value, second)) for second in _seconds(sweep)]


def privacy_figure(study: StudyResults) -> ReportFigure:
    """Draws the results of a study whose cells measure epsilon: a line for each of its columns, with means over seeds.

    If the whole run is private, the accuracy of the clusters' models and the adjusted Rand index of the clusters are
    drawn. If only some releases have noise, only the index is drawn. Runs without any noise are at the right edge.
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
            _draw_epsilons(axes, own, value, largest, {"color": style.color(index), "label": column})
        axes.set_ylabel(unit)
        _set_epsilons(axes, cells, largest)
        style.tidy(axes)
    # A column without true groups is only in the first panel.
    named = {name: handle for axes in figure.axes for handle, name in zip(*axes.get_legend_handles_labels())}
    style.legend_below(figure, min(len(columns), 4), handles=list(named.values()))
    return figure


def _is_number(value: object) -> bool:
    """Whether a value is a finite number, which has a place on an axis."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _in_order(values: Sequence) -> list:
    """The different values in the order of the axis: numbers ascending, other values in the given order."""
    different = [value for place, value in enumerate(values) if value not in values[:place]]
    return sorted(different) if all(map(_is_number, different)) else different


def _seconds(sweep: Sweep) -> list[tuple]:
    """The values of the second setting, each in a tuple; one empty tuple without a second setting."""
    if len(sweep.labels) == 1:
        return [()]
    return [(value,) for value in _in_order([point.values[1] for point in sweep.points])]


def _lines(sweep: Sweep, values: Sequence) -> list[tuple[np.ndarray, list[Point]]]:
    """For each value of the second setting, the places of its points from left to right, and the points."""
    numbers, lines = all(map(_is_number, values)), []
    for second in _seconds(sweep):
        own = [point for value in values for point in sweep.points if point.values == (value, *second)]
        places = [values.index(point.values[0]) for point in own]
        lines.append((np.array([values[place] for place in places] if numbers else places, float), own))
    return lines


def _series(places: np.ndarray, points: Sequence[Point], metric: Metric) -> tuple[np.ndarray, ...]:
    """The places, means and deviations of a line's points that have a metric."""
    stats = [(x, point.row.stats) for x, point in zip(places, points, strict=True)]
    known = [(x, own) for x, own in stats if metric.name in own and own[metric.name].count]
    band = _BANDS.get(metric.key)
    rows = [(x, own[metric.name].mean, own[band].mean if band else own[metric.name].std) for x, own in known]
    return tuple(np.array(rows, float).reshape(-1, 3).T)


def _set_scale(axes: Axes, values: Sequence, label: str) -> None:
    """Makes the x axis: of numbers, labelled where there is room, or of names."""
    axes.set_xlabel(label)
    texts = [style.shorten(show_value(value), _LONGEST) for value in values]
    if not all(map(_is_number, values)):
        turned = sum(map(len, texts)) > 40
        axes.set_xticks(range(len(values)), texts, rotation=30 if turned else 0, ha="right" if turned else "center")
        axes.set_xlim(-0.5, len(values) - 0.5)
        return
    _set_spacing(axes, values)
    scale = axes.xaxis.get_transform()
    places = scale.transform(np.array(values, float))
    margin = 0.05 * (places[-1] - places[0])
    axes.set_xlim(*scale.inverted().transform([places[0] - margin, places[-1] + margin]))
    places = (places - places[0]) / (places[-1] - places[0])
    kept = _with_room(places, texts)
    axes.set_xticks([values[place] for place in kept], [texts[place] for place in kept])
    # If a number has no room, only its tick is drawn.
    axes.xaxis.set_minor_locator(FixedLocator(values))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", which="both", length=3.5, width=0.8)


def _with_room(places: np.ndarray, texts: Sequence[str]) -> list[int]:
    """Which texts fit on an axis from 0 to 1: both ends, then, from the left, texts that overlap no other."""
    widths = [0.027 * len(text) + 0.03 for text in texts]
    kept: list[int] = []
    for index in dict.fromkeys([0, len(texts) - 1, *range(len(texts))]):
        if all(abs(places[index] - places[other]) >= (widths[index] + widths[other]) / 2 for other in kept):
            kept.append(index)
    return sorted(kept)


def _set_spacing(axes: Axes, values: Sequence[float]) -> None:
    """Makes the axis logarithmic if values span decades; 0 is at its end, about a decade below the least value."""
    positive = [value for value in values if value > 0]
    if values[0] < 0 or len(positive) < 2 or positive[-1] / positive[0] < _LOGARITHMIC:
        return
    if len(positive) == len(values):
        axes.set_xscale("log")
    else:
        axes.set_xscale("symlog", linthresh=positive[0], linscale=0.9)


def _place(each: Result, largest: float) -> float:
    return each.here.mean if math.isfinite(each.here.mean) else _OPEN * largest


def _draw_epsilons(axes: Axes, cells: list[Result], value, largest: float, look: dict):
    known = [each for each in cells if value(each).count]
    if not known:
        return  # e.g. a method without clusters has no index
    x, y = [_place(each, largest) for each in known], [value(each).mean for each in known]
    spread = np.nan_to_num([value(each).std for each in known])
    axes.errorbar(
        x, y, yerr=spread if spread.any() else None, marker="o", markersize=5, linewidth=1.8, capsize=2.5, **look
    )


def _set_epsilons(axes: Axes, cells: list[Result], largest: float):
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(LogFormatter())  # the default writes formulas, which figures do not show
    axes.xaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1, 0.4)))
    axes.set_xlabel("epsilon")
    if any(not math.isfinite(each.here.mean) for each in cells):
        axes.axvline(2 * largest, color=style.GREY, linewidth=0.8, linestyle=":")
        axes.annotate(
            "no noise", (_OPEN * largest, 0.02), xycoords=("data", "axes fraction"), ha="center", fontsize=8,
            color=style.GREY,
        )  # fmt: skip
