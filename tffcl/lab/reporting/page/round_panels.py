"""Panels over the rounds: accuracies, and what lies behind them; and those of a sweep over the values of a setting."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from tffcl.lab.reporting import style, sweep_figure
from tffcl.lab.reporting.number_format import show_value
from tffcl.lab.reporting.page import panels
from tffcl.lab.reporting.page.panels import Axis, Panel
from tffcl.lab.reporting.rounds_figures import formed_anew, over_seeds
from tffcl.lab.reporting.sweeps import Sweep
from tffcl.runs.metrics import OF_ROUNDS
from tffcl.runs.run_files import RunFiles


def accuracy_panels(runs: Sequence[RunFiles], columns: Sequence[tuple], methods: Sequence[str]) -> list[Panel]:
    """Panels of accuracies, on one scale.

    Args:
      runs: One seed or more of each method.
      columns: Of rounds.csv, with title, unit and factor, as `rounds_figures` has them.
      methods: All on the page, whose places are their colours and switches.
    """
    series = {column: _series(runs, column, factor, methods) for column, _, _, factor in columns}
    ends = [end for each in series.values() for _, mean, std in each.values() for end in _reach(mean, std)]
    y = panels.number_axis(columns[0][2], np.clip(np.concatenate(ends), 0, 100) if ends else [0, 100])
    return [_panel(title, series[column], y, runs, methods) for column, title, _, _ in columns if series[column]]


def progress_panels(runs: Sequence[RunFiles], columns: Sequence[tuple], methods: Sequence[str]) -> list[Panel]:
    """Panels of what lies behind the accuracies, each on its own scale.

    Args:
      runs: As of `accuracy_panels`.
      columns: As of `accuracy_panels`; one that no run has is left out.
      methods: As of `accuracy_panels`.
    """
    drawn = []
    for column, title, unit, factor in columns:
        series = _series(runs, column, factor, methods)
        if not series:
            continue
        ends = np.concatenate([end for _, mean, std in series.values() for end in _reach(mean, std)])
        panel = _panel(title, series, _progress_axis(column, unit, ends), runs, methods)
        for number in sorted(set().union(*map(formed_anew, runs))) if column in ("clusters", "ari") else []:
            said = f"clusters formed anew after round {number}"
            panel.segments([number, number], [panel.y.low, panel.y.high], "rule", title=said)
        drawn.append(panel)
    return drawn


def _progress_axis(column: str, unit: str, values: np.ndarray) -> Axis:
    metric = OF_ROUNDS[column]
    if metric.limits[1] is not None:
        return panels.number_axis(unit, values, low=min(0.0, float(values.min())), high=metric.limits[1])
    if metric.digits == "count":
        if values.max() >= 20 and values.min() >= 1:  # a method of a cluster a client would hide all others
            return panels.ratio_axis(unit, 0.9, 1.1 * float(values.max()))
        return panels.number_axis(unit, values, low=0, high=float(np.ceil(values.max())) + 0.5, whole=True)
    return panels.number_axis(unit, values, low=0 if values.min() >= 0 else None)


def _series(runs: Sequence[RunFiles], column: str, factor: float, methods: Sequence[str]) -> dict[tuple[int, str], tuple]:
    """Rounds, means and deviations of each method that has the column, by its number and name; what is infinite is left out."""
    found = {}
    for number, name in enumerate(methods):
        rounds, mean, std = over_seeds([run for run in runs if run.method == name and column in run.rounds], column)
        finite = np.isfinite(mean)
        if finite.any():
            found[number, name] = rounds[finite], mean[finite] * factor, std[finite] * factor
    return found


def _reach(mean: np.ndarray, std: np.ndarray) -> list[np.ndarray]:
    return [mean - np.nan_to_num(std), mean + np.nan_to_num(std)]


def _panel(title: str, series: Mapping, y: Axis, runs: Sequence[RunFiles], methods: Sequence[str]) -> Panel:
    last = max(run.rounds["round"].max(initial=1) for run in runs)
    panel = Panel(title, panels.number_axis("round", [0, last], low=0, high=max(last, 1), whole=True), y)
    for (number, name), (rounds, mean, std) in series.items():
        run = number if len(methods) > 1 else None
        panel.line(rounds, mean, panels.shade(number), name=name, stds=std, run=run, dashed=dash(number))
    return panel


def dash(number: int) -> int:
    """Which of the page's dashes the line of a method has, so that one which lies on another lets it be seen."""
    return (number + number // len(style.COLORS)) % 4


def value_panels(sweep: Sweep, columns: Sequence[tuple]) -> list[Panel]:
    """Panels of a sweep: columns of its table against the values of its first setting, a line for each value of the second.

    Args:
      sweep: The sweep.
      columns: Key of the column, title, unit, and the key whose mean are the whiskers; "" for the deviation over the seeds.
    """
    values = sweep_figure.in_order([point.values[0] for point in sweep.points])
    lines, drawn = sweep_figure.value_lines(sweep, values), []
    x = _value_axis(sweep.labels[0], values)
    for key, title, unit, spread in columns:
        stats = [_of_line(line, key, spread) for line in lines]
        ends = [mean + sign * np.nan_to_num(std) for each in stats for _, mean, std in each for sign in (-1, 1)]
        if not ends:
            continue
        panel = Panel(title, x, panels.number_axis(unit, ends, low=0 if min(ends) >= 0 else None))
        for number, (line, each) in enumerate(zip(lines, stats, strict=True)):
            if each:
                xs, ys, stds = zip(*each, strict=True)
                run = number if len(lines) > 1 else None
                panel.line(xs, ys, panels.shade(number), name=line.name or title, stds=stds, run=run, dashed=dash(number))
        drawn.append(panel)
    return drawn


def _of_line(line: sweep_figure.Line, key: str, spread: str) -> list[tuple[float, float, float]]:
    """Where the points of a line are that know a column: place, mean and deviation."""
    known = [(x, point.stats) for x, point in zip(line.x, line.points, strict=True) if point.stats[key].count]
    return [(x, stats[key].mean, stats[spread].mean if spread else stats[key].std) for x, stats in known]


def _value_axis(label: str, values: Sequence) -> Axis:
    """An axis with a tick at each value that has room: logarithmic where numbers span decades, else evenly for names."""
    texts = [style.shorten(show_value(value), 14) for value in values]
    places = list(values) if all(map(sweep_figure.is_number, values)) else list(range(len(values)))
    low, high = float(places[0]), float(places[-1])
    far = low > 0 and high >= 50 * low
    margin = 0.04 * (high - low) or 0.5
    axis = Axis(label, low / 1.3, high * 1.3, logarithmic=True) if far else Axis(label, low - margin, high + margin)
    kept = sweep_figure.with_room(axis.share(places), texts)
    return dataclasses.replace(axis, ticks=[(places[each], texts[each]) for each in kept])
