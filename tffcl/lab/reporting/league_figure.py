"""The picture of a league: what every method gives on every setting, beside FedAvg, and which groups it finds."""

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes

from tffcl.lab.reporting import style
from tffcl.lab.reporting.league_table import BASELINE
from tffcl.lab.reporting.study_results import StudyResults
from tffcl.lab.reporting.style import ReportFigure

PANELS = {"cluster": "cluster %", "local": "local %", "groups": "adjusted Rand index"}
_RANGE = 30.0  # points at which a colour is full
_LEAST_WIDTH = 9.7  # inches, so that the settings' names have room
_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def accuracy_grid(study: StudyResults, kind: str) -> tuple[list[str], list[str], np.ndarray]:
    """Returns methods, settings and mean accuracies in percent, [methods, settings], NaN where nothing has been run."""
    return _grid(study, lambda result: result.accuracies[kind])


def _grid(study: StudyResults, stat: Callable, part: str = "mean") -> tuple[list[str], list[str], np.ndarray]:
    """What `accuracy_grid` returns, of another number of each result: a part of one of its statistics."""
    ended = {each.noted["column"] for each in study.results if each.accuracies["cluster"].count}
    settings = [column for column in study.columns if column in ended]
    methods = list(dict.fromkeys(each.noted["row"] for each in study.results))
    grid = np.full((len(methods), len(settings)), np.nan)
    for each in study.results:
        if each.noted["column"] in ended and stat(each).count:
            place = methods.index(each.noted["row"]), settings.index(each.noted["column"])
            grid[place] = getattr(stat(each), part)
    return methods, settings, grid


def seeds_grid(study: StudyResults) -> np.ndarray:
    """Returns over how many seeds each mean of `accuracy_grid` is, int [methods, settings]; 0 where none has ended."""
    return np.nan_to_num(_grid(study, lambda result: result.accuracies["cluster"], "count")[2]).astype(int)


def groups_grid(study: StudyResults) -> tuple[list[str], np.ndarray]:
    """Returns the settings in which clusters were formed and true groups are known, and the adjusted Rand index there.

    The index is [methods, settings], NaN for methods that form no clusters. A method that has one model for all, or one
    for each client, has an index of 0 wherever it is run.
    """
    _, settings, grid = _grid(study, lambda result: result.ari)
    grid[~(np.abs(np.nan_to_num(grid)) > 1e-9).any(axis=1)] = np.nan
    grouped = np.isfinite(grid).any(axis=0)
    return [setting for setting, there in zip(settings, grouped, strict=True) if there], grid[:, grouped]


def ranked(grid: np.ndarray) -> np.ndarray:
    """Returns the rows of a grid by their mean rank over the columns in which they have a value, the best first."""
    ranks = np.full(grid.shape, np.nan)
    for column in range(grid.shape[1]):
        there = np.flatnonzero(np.isfinite(grid[:, column]))
        # Equal accuracies share a rank.
        values = -grid[there, column]
        ranks[there, column] = [(values < value).sum() + ((values == value).sum() + 1) / 2 for value in values]
    have = np.isfinite(ranks).any(axis=1)
    means = np.full(len(grid), np.inf)
    means[have] = np.nanmean(ranks[have], axis=1)
    return np.argsort(means, kind="stable")


def league_figure(study: StudyResults, panels: Sequence[str] = tuple(PANELS)) -> ReportFigure:
    """Draws cluster and local accuracies and, where there are groups, the adjusted Rand index.

    A row is a method, a column is a setting; the best mean rank of the cluster accuracy stands first. The number is the
    mean over the seeds, accuracies in percent; their colour says by how many points it is above (blue) or below (red)
    the same accuracy of FedAvg on the same setting. Where fewer seeds have ended than the study has, as others diverged
    or have not been run, how many is written as a superscript.

    Args:
      study: The league.
      panels: Which of `PANELS` are drawn; that of the groups only where there are any.
    """
    methods, settings, cluster = accuracy_grid(study, "cluster")
    order = ranked(cluster)
    grouped, index = groups_grid(study)
    if list(panels) == ["groups"]:
        order = order[np.isfinite(index[order]).any(axis=1)]
    seeds = seeds_grid(study)[order]
    few = np.where(seeds < len(study.noted["seeds"]), seeds, 0)
    panels = [each for each in panels if each != "groups" or grouped]
    widths = [len(grouped if each == "groups" else settings) for each in panels]
    figure = style.new_figure(max(3.0 + 0.8 * len(panels) + 0.66 * sum(widths), _LEAST_WIDTH), 2.6 + 0.3 * len(order))
    drawn = np.atleast_1d(figure.subplots(1, len(widths), sharey=True, width_ratios=widths)) if widths else []
    for axes, each in zip(drawn, panels):
        if len(panels) > 1:  # alone on a page it has a heading there
            axes.set_title(PANELS[each], fontsize=11)
        if each == "groups":
            image = _draw(axes, index[order], index[order], ".2f", grouped, few[:, np.isin(settings, grouped)])
            _add_scale(figure, axes, image, "1: the true groups, 0: as by chance", [-1, 0, 1], ["−1", "0", "1"])
            continue
        grid = accuracy_grid(study, each)[2]
        strength = (grid - _baseline(study, methods, grid))[order] / _RANGE
        image = _draw(axes, grid[order], strength, ".1f", settings, few)
        ends = [f"−{_RANGE:g}", "0", f"+{_RANGE:g}"]
        label = f"points above FedAvg's {PANELS[each].removesuffix(' %')} accuracy"
        _add_scale(figure, axes, image, label, [-1, 0, 1], ends)
    if widths:
        drawn[0].set_yticks(range(len(order)), [methods[row] for row in order], fontsize=9)
    return figure


def _baseline(study: StudyResults, methods: list[str], grid: np.ndarray) -> np.ndarray:
    """FedAvg's row of a grid; the mean of all where it is not in the league, or has no such accuracy."""
    plain = {each.noted["row"] for each in study.results if each.noted["method"] == BASELINE}
    rows = [row for row, name in enumerate(methods) if name in plain]
    there = np.isfinite(grid).any(axis=0)
    means = np.full(grid.shape[1], np.nan)
    means[there] = np.nanmean(grid[:, there], axis=0)
    return np.where(np.isfinite(grid[rows[0]]), grid[rows[0]], means) if rows else means


def _add_scale(figure: ReportFigure, axes: Axes, image, label: str, ticks: list[float], names: list[str]):
    bar = figure.colorbar(image, ax=axes, location="right", aspect=45, pad=0.01, ticks=ticks)
    bar.ax.set_yticklabels(names, fontsize=8)
    bar.set_label(label, fontsize=8)
    bar.outline.set_visible(False)


def _draw(axes: Axes, grid: np.ndarray, strength: np.ndarray, form: str, settings: list[str], few: np.ndarray):
    """Numbers on colours, full where the strength is 1 or -1; how many seeds they are of, where `few` is not 0.

    Returns the image.
    """
    axes.patch.set(hatch="////", edgecolor="0.85", facecolor="white")  # where there is no number
    image = axes.imshow(strength, cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
    for (row, column), value in np.ndenumerate(grid):
        if np.isfinite(value):
            strong = abs(strength[row, column]) > 0.65
            seeds = str(few[row, column]).translate(_SUPERSCRIPTS) if few[row, column] else ""
            axes.text(
                column, row, f"{round(value, 2) + 0.0:{form}}{seeds}", ha="center", va="center", fontsize=8,
                color="white" if strong else "black",
            )  # fmt: skip
    axes.set_xticks(range(len(settings)), settings, rotation=35, ha="right", fontsize=9)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return image
