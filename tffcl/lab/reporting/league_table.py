"""The tables of a league, each with every method on one setting and all numbers to compare; and its pictures: every
method on every setting compared with FedAvg, the groups that methods find, and the best methods over rounds and
bytes."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import scipy.stats
from matplotlib.axes import Axes

from tffcl.lab.reporting import style, targets
from tffcl.lab.reporting.number_format import (
    MISSING,
    Stat,
    decimals_of,
    show_bytes,
    show_count,
    show_number,
    show_of_seeds,
    show_reached,
    show_seconds,
    show_settings,
)
from tffcl.lab.reporting.study_results import Result, StudyResults
from tffcl.lab.reporting.style import ReportFigure
from tffcl.lab.reporting.table import Table
from tffcl.registry import PLAIN
from tffcl.runs.metrics import BY_KEY, BY_MEASURE, DOWN, ROUND, Metric
from tffcl.runs.run_files import RunNumbers

_CHANCE = 0.05  # the expected share of marked differences that are due to chance
_METRICS = ("cluster_worst_decile", "participation_gap", "clusters", "seconds", "down_bytes", "up_bytes")
HEADS = (
    "", "cluster %", "cluster − FedAvg's", "local %", "global %", "worst decile, cluster %", "took part − others",
    "ARI", "clusters", "rounds to target", "bytes to target", "bytes", "seconds", "seeds", "chosen",
)  # fmt: skip
LEGEND = (
    "cluster: the model that a method assigns to a client, before local training: its accuracy or, where the head "
    "names another metric, that, with the accuracy in the place of global. cluster − FedAvg's: the same less FedAvg's, "
    "percentages in points, seed by seed; * where it is beyond chance by a paired t test over the seeds, corrected for "
    "how many are tested: of all that are marked, on all settings together, one in twenty is expected to be by chance "
    "(Benjamini and Hochberg 1995). local: the client's own model after its last local training. global: one model "
    "on all test data. worst decile: the mean of the worst tenth of the clients. took part − others: by how much the "
    "cluster accuracy of the clients that trained is above that of those that never did. ARI: adjusted Rand index, 1 "
    "where the clusters are the true groups and 0 where they are as by chance. bytes: down and up, signatures "
    "included. seconds: of training, evaluation and clustering, the least of the seeds, as other work on the machine "
    "only adds to them. ± is the sample standard deviation over the seeds, (2 of 3) behind a number that one seed of "
    "three has not."
)


@dataclasses.dataclass(frozen=True, eq=False)
class LeagueRow:
    """One method on one setting, over the seeds.

    Attributes:
      result: The cell of the study.
      above_baseline: The compared metric, mostly cluster accuracy in points, minus FedAvg's with the same seed, over
        the seeds that both have.
      stats: The metrics "cluster_worst_decile", "participation_gap" and "clusters"; "rounds_to_target" and
        "bytes_to_target" over the seeds that reached it; "total_bytes", down and up, of all rounds; "seconds", the
        least over the seeds, because other work on the machine can only add to it.
      is_beyond_chance: Whether `above_baseline` is beyond chance, by a paired t test over the seeds, with an expected
        share of false ones of one twentieth over the league (Benjamini and Hochberg 1995).
    """

    result: Result
    above_baseline: Stat
    stats: Mapping[str, Stat]
    is_beyond_chance: bool = False


def league_rows(study: StudyResults) -> dict[str, list[LeagueRow]]:
    """Returns the rows of each column that have been run and are shown, the best by the compared metric first. Tests of
    chance are corrected over the whole league, including rows that are not shown."""
    whole = dataclasses.replace(study, results=[*study.results, *study.beside])
    found = {column: _of_column(whole, column) for column in whole.columns}
    tested = [row for rows in found.values() for row in rows if row.above_baseline.count > 1 and row.above_baseline.std]
    chances = {row: _chance(row.above_baseline) for row in tested}
    ordered = sorted(tested, key=chances.__getitem__)
    passed = [place for place, row in enumerate(ordered, 1) if chances[row] < _CHANCE * place / len(ordered)]
    marked, shown = set(ordered[: max(passed, default=0)]), set(study.results)
    return {
        column: [
            dataclasses.replace(row, is_beyond_chance=row in marked) for row in found[column] if row.result in shown
        ]
        for column in study.columns
    }


def _chance(above: Stat) -> float:
    """The p value of a paired t test over the seeds: how often chance gives such a mean difference or a larger one."""
    return 2 * float(scipy.stats.t.sf(abs(above.mean) / above.stderr, above.count - 1))


def _of_column(study: StudyResults, column: str) -> list[LeagueRow]:
    own = [result for result in study.results if result.noted["column"] == column]
    baseline = next((result.runs for result in own if result.noted["method"] == PLAIN), {})
    rows = [_row(result, baseline) for result in own]
    sign = 1 if _metric(own[0]).better == DOWN else -1

    def last_if_missing(row: LeagueRow):
        return math.isnan(row.result.here.mean), sign * row.result.here.mean

    return sorted((row for row in rows if row.result.runs), key=last_if_missing)


def _metric(result: Result) -> Metric:
    """The metric that the result's column compares."""
    return BY_MEASURE[result.noted["measure"]]


def _row(result: Result, baseline: Mapping[int, RunNumbers]) -> LeagueRow:
    noted, runs, metric = result.noted, result.runs, _metric(result)
    found = [_numbers(run, metric, noted.get("target")) for run in runs.values()]
    compared = runs.items() if noted["method"] != PLAIN else ()
    above = Stat.of(metric.of_run(run) - metric.of_run(baseline[seed]) for seed, run in compared if seed in baseline)
    stats = {name: Stat.of(each[name] for each in found) for name in (found[0] if found else ())}
    stats["seconds"] = Stat.of(sorted(each["seconds"] for each in found)[:1])
    return LeagueRow(result, above, stats)


def _numbers(run: RunNumbers, metric: Metric, target: float | None) -> dict[str, float]:
    """The numbers of one run, by the names of `LeagueRow.stats`."""
    found = {key: BY_KEY[key].of_run(run) for key in _METRICS}
    nowhere = (math.nan, math.nan, math.nan)
    number, in_rounds, beside = nowhere if target is None else targets.needed(run, metric, target)
    total = found.pop("down_bytes") + found.pop("up_bytes")
    return {**found, "rounds_to_target": number, "bytes_to_target": in_rounds + beside, "total_bytes": total}


def heads(metric: Metric) -> tuple[str, ...]:
    """Returns `HEADS`, or the heads for a column that compares another metric and also has the accuracy."""
    if metric.measure == "cluster":
        return HEADS
    name = metric.group.removesuffix(" %")
    own = f"{metric.header} {metric.group}", f"{metric.header} {name} − FedAvg's"
    local = HEADS[3] if metric.group == "accuracy %" else f"local {metric.group}"
    return ("", *own, local, HEADS[1], *HEADS[5:])


def cells(row: LeagueRow) -> list[str]:
    """A line of the table under the column's heads."""
    result, stats, target, metric = row.result, row.stats, row.result.noted.get("target"), _metric(row.result)
    found = result.accuracies
    further = result.further.get(metric.measure.replace("cluster_", "local_"), Stat.of(()))
    local = found["local"] if metric.measure in found else further
    beside = local, found["global" if metric.measure == "cluster" else "cluster"]

    accuracies = [result.shown(each, metric.digits) for each in (result.here, beside[0])] + [result.shown(beside[1], 2)]
    needed = stats["rounds_to_target"]
    rounds = show_reached(show_count(needed), needed.count, result.seeds - needed.count) if target else MISSING
    return [
        result.noted["row"], accuracies[0], _show_difference(row), *accuracies[1:],
        result.shown(stats["cluster_worst_decile"], 1), _with_minus(result.shown(stats["participation_gap"], 1)),
        _with_minus(result.shown(result.ari, 2)), show_count(stats["clusters"]), rounds,
        show_bytes(stats["bytes_to_target"]), show_bytes(stats["total_bytes"]), show_seconds(stats["seconds"]),
        str(result.seeds), show_settings(result.noted.get("tuned", {})) or MISSING,
    ]  # fmt: skip


def _show_difference(row: LeagueRow) -> str:
    """A difference with its sign, and with a mark if it is beyond chance."""
    above = row.above_baseline
    if not above.count:
        return MISSING
    metric = _metric(row.result)
    # It has as many decimals as the number from which it is computed.
    small = metric.digits == "number" and abs(row.result.here.mean) < 0.001
    digits = 1 if metric.unit == "%" else metric.digits if small else decimals_of(above, metric.digits)
    shown = _with_minus(show_number(above, digits))
    marked = f"{'+' * (above.mean > 0)}{shown}{'*' * row.is_beyond_chance}"
    return show_of_seeds(marked, above.count, row.result.seeds)


def _with_minus(shown: str) -> str:
    """A number with a typographic minus sign, and without one before a zero."""
    negative, digits = shown.startswith("-"), shown.removeprefix("-")
    is_zero = not digits.split(" ")[0].strip("0.")
    return f"−{digits}" if negative and not is_zero else digits


def heading(study: StudyResults, column: str) -> str:
    """The heading of a column: its name, task and target."""
    own = [result.noted for result in study.results if result.noted["column"] == column]
    targets = sorted({each["target"] for each in own if each.get("target")})
    name, percent, unit = heads(BY_MEASURE[own[0]["measure"]])[1].partition(" %")
    target = f"; target: {name} {targets[0]:g}{percent}{unit}" if targets else ""
    return f"{column} ({', '.join(dict.fromkeys(each['task'] for each in own if each['task']))}{target})"


def to_tables(study: StudyResults) -> dict[str, Table]:
    """Makes the table of each column of the league, with notes on failures below it."""
    return {
        column: Table.of(
            heads(_metric(rows[0].result)) if rows else HEADS, list(map(cells, rows)), notes=study.notes(column)
        )
        for column, rows in league_rows(study).items()
    }


PANELS = {"cluster": "cluster %", "local": "local %", "groups": "adjusted Rand index"}
_RANGE = 30.0  # points at which a colour has full strength
_LEAST_WIDTH = 9.7  # inches, so that the settings' names have room
_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def accuracy_grid(study: StudyResults, kind: str) -> tuple[list[str], list[str], np.ndarray]:
    """Returns methods, settings and mean accuracies in percent, [methods, settings]; NaN if nothing has been run."""
    return _grid(study, lambda result: result.accuracies[kind])


def _grid(study: StudyResults, stat: Callable, part: str = "mean") -> tuple[list[str], list[str], np.ndarray]:
    """Like `accuracy_grid`, for a part of any statistic of each result."""
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
    """Returns the number of seeds of each mean in `accuracy_grid`, int [methods, settings]; 0 if none has ended."""
    return np.nan_to_num(_grid(study, lambda result: result.accuracies["cluster"], "count")[2]).astype(int)


def groups_grid(study: StudyResults) -> tuple[list[str], np.ndarray]:
    """Returns the settings in which clusters were formed and true groups are known, and their adjusted Rand index.

    The index is [methods, settings], NaN for methods that form no clusters, which are those with an index of 0 in all
    settings: they have one model for all clients, or one for each client.
    """
    _, settings, grid = _grid(study, lambda result: result.ari)
    grid[~(np.abs(np.nan_to_num(grid)) > 1e-9).any(axis=1)] = np.nan
    grouped = np.isfinite(grid).any(axis=0)
    return [setting for setting, there in zip(settings, grouped, strict=True) if there], grid[:, grouped]


def ranked(grid: np.ndarray) -> np.ndarray:
    """Returns the rows of a grid, ordered by their mean rank over the columns in which they have a value."""
    ranks = np.full(grid.shape, np.nan)
    for column in range(grid.shape[1]):
        there = np.flatnonzero(np.isfinite(grid[:, column]))
        ranks[there, column] = scipy.stats.rankdata(-grid[there, column])  # equal accuracies share a rank
    have = np.isfinite(ranks).any(axis=1)
    means = np.full(len(grid), np.inf)
    means[have] = np.nanmean(ranks[have], axis=1)
    return np.argsort(means, kind="stable")


def league_figure(study: StudyResults, panels: Sequence[str] = tuple(PANELS)) -> ReportFigure:
    """Draws cluster and local accuracies and, if there are groups, the adjusted Rand index.

    Rows are methods, columns are settings; the method with the best mean rank of cluster accuracy comes first. Numbers
    are means over the seeds, with accuracies in percent. Colours show by how many points an accuracy is above (blue) or
    below (red) that of FedAvg on the same setting. If fewer seeds have ended than the study has, because others
    diverged or have not been run, a superscript shows their number.

    Args:
      study: The league.
      panels: The `PANELS` to draw; "groups" is drawn only if there are groups.
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
        if len(panels) > 1:  # a single panel has a heading on its page
            axes.set_title(PANELS[each], fontsize=11)
        if each == "groups":
            image = _draw(axes, index[order], index[order], ".2f", grouped, few[:, np.isin(settings, grouped)])
            _add_scale(figure, axes, image, "1: the true groups, 0: as by chance", ["−1", "0", "1"])
            continue
        grid = accuracy_grid(study, each)[2]
        strength = (grid - _baseline(study, methods, grid))[order] / _RANGE
        image = _draw(axes, grid[order], strength, ".1f", settings, few)
        ends = [f"−{_RANGE:g}", "0", f"+{_RANGE:g}"]
        label = f"points above FedAvg's {PANELS[each].removesuffix(' %')} accuracy"
        _add_scale(figure, axes, image, label, ends)
    if widths:
        drawn[0].set_yticks(range(len(order)), [methods[row] for row in order], fontsize=9)
    return figure


def _baseline(study: StudyResults, methods: list[str], grid: np.ndarray) -> np.ndarray:
    """FedAvg's row of a grid; the mean of all methods if FedAvg is not in the league, or has no such accuracy."""
    plain = {each.noted["row"] for each in study.results if each.noted["method"] == PLAIN}
    rows = [row for row, name in enumerate(methods) if name in plain]
    there = np.isfinite(grid).any(axis=0)
    means = np.full(grid.shape[1], np.nan)
    means[there] = np.nanmean(grid[:, there], axis=0)
    return np.where(np.isfinite(grid[rows[0]]), grid[rows[0]], means) if rows else means


def _add_scale(figure: ReportFigure, axes: Axes, image, label: str, names: list[str]):
    """Draws the scale of colours beside a panel, with names for its ends and its middle."""
    bar = figure.colorbar(image, ax=axes, location="right", aspect=45, pad=0.01, ticks=[-1, 0, 1])
    bar.ax.set_yticklabels(names, fontsize=8)
    bar.set_label(label, fontsize=8)
    bar.outline.set_visible(False)


def _draw(axes: Axes, grid: np.ndarray, strength: np.ndarray, form: str, settings: list[str], few: np.ndarray):
    """Draws numbers on colours, with full strength at 1 and -1, and numbers of seeds where `few` is not 0.

    Returns the image.
    """
    axes.patch.set(hatch="////", edgecolor="0.85", facecolor="white")  # for entries without a number
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


OVER = {"rounds": "rounds", "bytes": "megabytes, down and up"}


def leaders_figure(study: StudyResults, over: str) -> ReportFigure:
    """Draws, for each setting, the methods that have the best value so far at some number of rounds or bytes.

    A line is the mean over the seeds of the compared metric, at the evaluations that all seeds have. Methods come in
    the order in which they first lead. Grey lines are FedAvg and, dotted, methods with known groups, which do not lead.

    Args:
      study: The league.
      over: One of `OVER`. Bytes include signatures; a method that sends nothing has no line over bytes.
    """
    curves: dict[str, dict[Result, np.ndarray]] = {}
    for result in study.results:
        if (curve := _curve(result, over)).size:
            curves.setdefault(result.noted["column"], {})[result] = curve
    figure = style.new_panels(len(curves), 3.3, width=4.3)
    for axes, (column, own) in zip(figure.panels, curves.items()):
        metric = _metric(next(iter(own)))
        known = [each for each in own if next(iter(each.runs.values())).has_given_groups]
        leading = _leading({each: own[each] for each in own if each not in known}, metric)
        looks = {each: style.line_style(number) for number, each in enumerate(leading)}
        plain = [each for each in own if each.noted["method"] == PLAIN and each not in looks]
        looks |= {each: {"color": style.GREY} for each in plain}
        looks |= {each: {"color": style.GREY, "linestyle": ":", "label": "known groups"} for each in known}
        for each, look in looks.items():
            axes.plot(*own[each], linewidth=1.6, **{"label": each.noted["row"], **look})
        axes.set(title=column, xlabel=OVER[over], ylabel=metric.axis)
        if over == "bytes":
            ends = [own[each][0, end] for each in looks for end in (0, -1)]
            style.tick_ratios(axes.xaxis, min(ends), max(ends))
        axes.legend(fontsize=8, edgecolor="none", framealpha=0.7, borderpad=0.1)
        style.tidy(axes)
    return figure


def _curve(result: Result, over: str) -> np.ndarray:
    """Rounds, or megabytes sent so far, and the compared metric, float [2, evaluations], as means over the seeds."""
    metric, found = _metric(result), []
    for run in result.runs.values():
        exchanged, before = run.exchanged()
        places = run.rounds[ROUND] if over == "rounds" else 1e-6 * (before + np.cumsum(exchanged))
        found.append([places, metric.scale * run.rounds.get(metric.column, np.full(len(places), np.nan))])
    ended = min((len(places) for places, _ in found), default=0)
    curve = np.mean([[each[:ended] for each in run] for run in found], axis=0) if ended else np.empty((2, 0))
    return curve[:, np.isfinite(curve[1]) & (curve[0] > 0)]


def _leading(curves: Mapping[Result, np.ndarray], metric: Metric) -> list[Result]:
    """The results that have the best value so far at some place, in the order of the places."""
    sign, best, found = (1 if metric.better == DOWN else -1), math.inf, {}
    points = [(place, sign * value, each) for each, curve in curves.items() for place, value in curve.T]
    for _, value, each in sorted(points, key=lambda point: point[:2]):
        if value < best:
            best, found[each] = value, None
    return list(found)
