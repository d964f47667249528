"""The picture of a sweep: accuracy and clusters against the values of a setting."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, NullFormatter
from matplotlib.transforms import ScaledTranslation

from tffcl.lab.reporting import style
from tffcl.lab.reporting.number_format import show_value
from tffcl.lab.reporting.style import ReportFigure
from tffcl.lab.reporting.sweeps import Point, Sweep

# Key of the column, name, and how its line is drawn.
_ACCURACIES = (
    ("cluster_accuracy_percent", "cluster", {"linestyle": "-", "marker": "o"}),
    ("local_accuracy_percent", "local", {"linestyle": "--", "marker": "s", "markerfacecolor": "white"}),
    ("global_accuracy_percent", "global", {"linestyle": ":", "marker": "^"}),
)
_CLUSTERS = ("clusters", "clusters", {"linestyle": "-", "marker": "o"})
_ARI = ("ari", "adjusted Rand index (right)", {"linestyle": "--", "marker": "s", "markerfacecolor": "white"})
_ERROR = "clustering_error"
_LOGARITHMIC = 50  # from this ratio of the greatest to the least value on
_LONGEST = 14  # letters at a tick
_APART, _BROADEST = (
    3.0,
    15.0,
)  # points of 1/72 inch: between the marks of two lines at one value, between the outermost


@dataclasses.dataclass(frozen=True)
class Line:
    """The points with one value of the second setting.

    Attributes:
      name: What the legend calls it; "" without a second setting.
      color: Of all that belongs to it.
      points: From left to right.
      x: Where they stand.
    """

    name: str
    color: str
    points: Sequence[Point]
    x: np.ndarray


def sweep_figure(sweep: Sweep) -> ReportFigure:
    """Draws the accuracies against the values of a sweep's first setting, and beside them the clusters.

    Each value of the second setting has a line in its own colour. With several seeds a mark is their mean and
    its whiskers are their standard deviation. Of the clusters the clustering error is drawn, with whiskers
    for its deviation over the rounds; where no run knows it, the number of clusters and the adjusted Rand index.
    """
    values = in_order([point.values[0] for point in sweep.points])
    lines = value_lines(sweep, values)
    legend_rows = -(-len(lines) // 5) if len(sweep.labels) == 2 else 0
    figure = style.new_figure(10.5, 4.2 + 0.25 * legend_rows)
    left, right = figure.subplots(1, 2)
    _draw_accuracies(left, lines)
    if _has(lines, _ERROR):
        _draw_errors(right, lines)
        panels = [left, right]
    else:
        panels = [left, right, *_draw_clusters(right, lines)]
    for axes in panels:
        _set_scale(axes, values, sweep.labels[0])
    if legend_rows:
        handles = [Line2D([], [], linewidth=2.5, color=line.color, label=line.name) for line in lines]
        style.legend_below(figure, min(len(lines), 5), handles=handles, title=sweep.labels[1])
    return figure


def lines_of(sweep: Sweep) -> list[Line]:
    """Returns the lines of a sweep over the values of its first setting."""
    return value_lines(sweep, in_order([point.values[0] for point in sweep.points]))


def is_number(value: object) -> bool:
    """Says whether a value has a place on an axis of numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def in_order(values: Sequence) -> list:
    """Returns the different values as they stand on the axis: numbers ascending, all else as they were given."""
    different = [value for place, value in enumerate(values) if value not in values[:place]]
    return sorted(different) if all(map(is_number, different)) else different


def value_lines(sweep: Sweep, values: Sequence) -> list[Line]:
    """Returns a line for each value of the second setting, or one, over the `values` of the first as `in_order` has them."""
    seconds = [()] if len(sweep.labels) == 1 else [(value,) for value in in_order([p.values[1] for p in sweep.points])]
    lines = []
    for index, second in enumerate(seconds):
        own = [point for value in values for point in sweep.points if point.values == (value, *second)]
        places = [values.index(point.values[0]) for point in own]
        x = np.array([values[place] for place in places] if all(map(is_number, values)) else places, float)
        lines.append(Line(" ".join(map(show_value, second)), style.color(index), own, x))
    return lines


def _has(lines: Sequence[Line], key: str, least: int = 1) -> bool:
    """Whether a line knows the number at `least` of its values."""
    return any(sum(point.stats[key].count > 0 for point in line.points) >= least for line in lines)


def _draw_accuracies(axes: Axes, lines: Sequence[Line]) -> None:
    # A method may have a global model at one end only, where its clusters are one: that is no line.
    drawn = [each for each in _ACCURACIES if each[0] != "global_accuracy_percent" or _has(lines, each[0], 2)]
    for key, _, look in drawn:
        for place in range(len(lines)):
            _draw(axes, place, lines, key, look)
    _finish(axes, "accuracy", "accuracy (%)", drawn)
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, 0), min(high, 100.5))


def _draw_errors(axes: Axes, lines: Sequence[Line]) -> None:
    for place in range(len(lines)):
        _draw(axes, place, lines, _ERROR, {"linestyle": "-", "marker": "o"}, f"{_ERROR}_over_rounds")
    whisker = {"linestyle": "", "marker": "|", "markersize": 10}
    shown = [(_ERROR, "mean over the rounds", {"marker": "o"}), (_ERROR, "standard deviation", whisker)]
    _finish(axes, "clustering error", "wrongly joined or parted clients", shown)


def _draw_clusters(axes: Axes, lines: Sequence[Line]) -> list[Axes]:
    """Draws the number of clusters and the agreement; returns the axes of the latter, if it is known."""
    drawn = [(axes, _CLUSTERS)]
    if _has(lines, "ari"):
        key, name, look = _CLUSTERS
        drawn = [(axes, (key, f"{name} (left)", look)), (axes.twinx(), _ARI)]
    for own, (key, _, look) in drawn:
        for place in range(len(lines)):
            _draw(own, place, lines, key, look)
    _finish(axes, "clusters", "number of clusters", [each for _, each in drawn])
    low, high = axes.get_ylim()
    axes.set_ylim(min(0.5, low), math.ceil(high) + 0.5)
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    for other, _ in drawn[1:]:
        other.set_ylabel("adjusted Rand index")
        other.set_ylim(min(-0.05, other.get_ylim()[0]), 1.05)
        other.spines[["top", "left"]].set_visible(False)
    return [other for other, _ in drawn[1:]]


def _draw(axes: Axes, place: int, lines: Sequence[Line], key: str, look: dict, spread_key: str = "") -> None:
    """Draws a column of a line; whiskers are its deviation over the seeds, or the mean of `spread_key`."""
    line = lines[place]
    y = np.array([point.stats[key].mean for point in line.points])
    spread = np.array([(point.stats[spread_key].mean if spread_key else point.stats[key].std) for point in line.points])
    known = ~np.isnan(y)
    x, y, spread = line.x[known], y[known], spread[known]
    # A little beside each other, or lines with the same values would hide one another, and whiskers anyway.
    points = (place - (len(lines) - 1) / 2) * min(_APART, _BROADEST / len(lines))
    moved = axes.transData + ScaledTranslation(points / 72, 0, axes.figure.dpi_scale_trans)
    axes.plot(x, y, linewidth=1.8, markersize=5, color=line.color, transform=moved, **look)
    reach = np.nan_to_num(spread)
    if reach.any():
        whiskers = {
            "ecolor": line.color,
            "elinewidth": 1.1,
            "capsize": 2.5,
            "transform": moved,
            "zorder": 1.9,
        }
        axes.errorbar(x, y, yerr=reach, fmt="none", **whiskers)
    axes.update_datalim(np.concatenate([np.stack([x, y - reach], axis=1), np.stack([x, y + reach], axis=1)]))
    axes.autoscale_view()


def _finish(axes: Axes, title: str, unit: str, drawn: Sequence[tuple]) -> None:
    """Sets titles, and says between title and panel which line is what."""
    axes.set_title(title, fontsize=11, pad=26)
    axes.set_ylabel(unit)
    style.tidy(axes)
    handles = [Line2D([], [], label=name, **({"color": "#444444", "markersize": 5} | look)) for _, name, look in drawn]
    place = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": len(drawn)}
    axes.legend(handles=handles, frameon=False, fontsize=9, **place)


def _set_scale(axes: Axes, values: Sequence, label: str) -> None:
    """Makes the x axis: of numbers with a tick at each value that has room, or of names."""
    axes.set_xlabel(label)
    texts = [style.shorten(show_value(value), _LONGEST) for value in values]
    if not all(map(is_number, values)):
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
    kept = with_room(places, texts)
    axes.set_xticks([values[place] for place in kept], [texts[place] for place in kept])
    # Where a number has no room, its tick stays.
    axes.xaxis.set_minor_locator(FixedLocator(values))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", which="both", length=3.5, width=0.8)


def with_room(places: np.ndarray, texts: Sequence[str]) -> list[int]:
    """Returns which texts fit on an axis from 0 to 1: the ends, then from the left what overlaps no other."""
    widths = [0.02 * len(text) + 0.02 for text in texts]
    kept: list[int] = []
    for index in dict.fromkeys([0, len(texts) - 1, *range(len(texts))]):
        if all(abs(places[index] - places[other]) >= (widths[index] + widths[other]) / 2 for other in kept):
            kept.append(index)
    return sorted(kept)


def _set_spacing(axes: Axes, values: Sequence[float]) -> None:
    """Values that span decades stand on a logarithmic axis; 0 is at its end, about a decade lower."""
    positive = [value for value in values if value > 0]
    if values[0] < 0 or len(positive) < 2 or positive[-1] / positive[0] < _LOGARITHMIC:
        return
    if len(positive) == len(values):
        axes.set_xscale("log")
    else:
        axes.set_xscale("symlog", linthresh=positive[0], linscale=0.9)
