"""Figures of clients: their accuracies and their numbers of examples."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tffcl.display import counted, sizes_of
from tffcl.lab.reporting import style
from tffcl.lab.reporting.style import ReportFigure
from tffcl.runs.run_files import RunFiles, by_method

KINDS = (("cluster_accuracy", "cluster accuracy"), ("local_accuracy", "local accuracy"))
_MOST_DOTS, _MOST_NAMED = 300, 600  # clients that are drawn for a method, and that have names in a panel


def client_accuracy_figure(runs: Sequence[RunFiles]) -> ReportFigure:
    """Draws how the accuracy is spread over clients: a box, the clients as dots and the mean, for each method.

    The clients of all seeds of a method are pooled. If there are very many, only some are dots, from the worst to the
    best.
    """
    methods = by_method(runs)
    figure = style.new_panels(2, max(2.1, 0.9 + 0.5 * len(methods)))
    low = _lower_end(runs)
    for axes, (column, title) in zip(figure.panels, KINDS, strict=True):
        named = sum(min(len(run.clients), _MOST_DOTS) for run in runs) <= _MOST_NAMED
        for place, (name, own) in enumerate(methods.items()):
            run = place if len(methods) > 1 else None
            values = 100 * np.concatenate([getattr(each.clients, column) for each in own])
            known = ~np.isnan(values)
            words = style.shorten(name, 40) if known.any() else f"{style.shorten(name, 40)}: not measured"
            text = axes.text(low, place - 0.27, words, fontsize=9.5, fontweight="bold", va="bottom")
            style.say(text, run=run)
            if known.any():
                whose = [who for who, has in zip(_names(own), known, strict=True) if has] if named else []
                _draw_spread(axes, values[known], place, whose, run)
        axes.set_title(title, fontsize=11)
        axes.set(
            xlabel="accuracy of a client (%)",
            xlim=(low - (100 - low) / 50, 100 + (100 - low) / 50),
            ylim=(len(methods) - 0.6, -0.75),
            yticks=[],
        )
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
        style.tidy(axes, grid="x")
        axes.spines["left"].set_visible(False)
    return figure


def client_sizes_figure(examples: Sequence[int]) -> ReportFigure:
    """Draws a histogram of clients by their number of training examples.

    Args:
      examples: [N], the number of training examples of each client.
    """
    examples = np.asarray(examples)
    figure = style.new_figure(style.WIDTH, 3.2)
    axes = figure.subplots()
    edges, logarithmic = _size_bins(examples)
    counts, _, bars = axes.hist(examples, bins=edges, color=style.COLORS[0], edgecolor="white", linewidth=0.6)
    stops = [*np.ceil(edges[1:-1]), examples.max() + 1]  # the last bin includes its upper end
    for count, start, stop, bar in zip(counts.astype(int), np.ceil(edges), stops, bars, strict=False):
        held = sizes_of([int(start), int(max(start, stop - 1))], "example")
        style.say(bar, f"{counted(count, 'client')} with {held}")
    if logarithmic:
        style.tick_ratios(axes.xaxis, edges[0], edges[-1])
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
    median = float(np.median(examples))
    rule = axes.axvline(median, color=style.COLORS[1], linestyle="--", linewidth=1.5)
    style.say(rule, f"median: {counted(round(median), 'example')}")
    title = f"{counted(len(examples), 'client')}, {sizes_of(examples.astype(int), 'example')}"
    axes.set_title(f"{title}, median {median:,.0f}", fontsize=10)
    axes.set(xlabel="training examples of a client", ylabel="clients")
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    style.tidy(axes)
    return figure


def _lower_end(runs: Sequence[RunFiles]) -> float:
    """The lower end of the axis of accuracies, in percent: a round number below the least accuracy."""
    values = np.concatenate([getattr(run.clients, column) for run in runs for column, _ in KINDS])
    values = values[~np.isnan(values)]
    return min(80.0, float(np.floor(10 * values.min()) * 10)) if values.size else 0.0


def _names(runs: Sequence[RunFiles]) -> list[str]:
    """The names of the clients in the runs of a method."""
    return [
        f"{style.client_name(client)}, seed {run.seed}" if len(runs) > 1 else style.client_name(client)
        for run in runs
        for client in run.clients.client_id
    ]


def _draw_spread(axes: Axes, values: np.ndarray, place: int, whose: Sequence[str], run: int | None) -> None:
    order = np.argsort(values, kind="stable")
    if len(order) > _MOST_DOTS:  # evenly from the worst to the best, which both stay
        order = order[np.linspace(0, len(order) - 1, _MOST_DOTS).astype(int)]
    lower, median, upper = np.percentile(values, [25, 50, 75])
    clients = counted(len(values), "client")
    words = f"{clients}: mean {values.mean():.2f} %, median {median:.2f} %, half of them {lower:.2f} to {upper:.2f} %"
    # Dots move up and down at random, so that equal accuracies can be counted, but in the same way in every report.
    shifts = np.random.default_rng(0).uniform(-0.2, 0.2, len(values))[order]
    opacity = float(np.clip(40 / len(order), 0.25, 0.7))
    dots = axes.scatter(
        values[order], place + shifts, s=14, color=style.color(place), alpha=opacity, linewidths=0, zorder=2
    )
    style.say(dots, *([f"{whose[each]}: {values[each]:.2f} %" for each in order] if whose else [words]), run=run)
    if values.size > 2:
        box = axes.boxplot(
            values, positions=[place], vert=False, widths=0.48, showfliers=False, manage_ticks=False, whis=(10, 90),
            medianprops={"color": "black", "linewidth": 1.6}, zorder=3,
        )  # fmt: skip
        for name, parts in box.items():
            for part in parts:
                style.say(part, *([words] if name == "boxes" else []), run=run)
    mean = axes.scatter(values.mean(), place, marker="D", s=38, color="white", edgecolors="black", zorder=4)
    style.say(mean, f"mean of {clients}: {values.mean():.2f} %", run=run)


def _size_bins(examples: np.ndarray) -> tuple[np.ndarray, bool]:
    """Returns the edges of bins for numbers of examples, and whether the axis is logarithmic."""
    least, greatest = int(examples.min()), int(examples.max())
    if least == greatest:
        return np.array([least - 0.5, least + 0.5]), False
    count = int(np.clip(np.sqrt(len(examples)) * 2, 4, 40))
    # LEAF's clients differ by orders of magnitude; equal bins would put almost all clients into the first one.
    if least > 0 and greatest >= 50 * least:
        return np.geomspace(least, greatest, count + 1), True
    # Edges are at halves and bins at least one example wide, because narrower bins would sometimes be empty.
    step = max(1, int(np.ceil((greatest - least + 1) / count)))
    return np.arange(least - 0.5, greatest + step, step), False
