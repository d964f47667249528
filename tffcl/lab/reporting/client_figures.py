"""Pictures of clients: their accuracies and how much data they have."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from tffcl.lab.reporting import style
from tffcl.lab.reporting.style import ReportFigure
from tffcl.runs.run_files import RunFiles

KINDS = (("cluster_accuracy", "cluster accuracy"), ("local_accuracy", "local accuracy"))


def client_accuracy_figure(runs: Sequence[RunFiles]) -> ReportFigure:
    """Draws how the accuracy is spread over clients: a box, the clients as dots and the mean, for each method.

    The clients of all seeds of a method are put together.
    """
    methods: dict[str, list[RunFiles]] = {}
    for run in runs:
        methods.setdefault(run.method, []).append(run)
    figure = style.new_figure(10.5, float(np.clip(1.3 + 0.5 * len(methods), 2.2, 12)))
    low = lower_end(runs)
    for axes, (column, title) in zip(figure.subplots(1, 2, sharey=True), KINDS, strict=True):
        for place, own in enumerate(methods.values()):
            values = np.concatenate([getattr(run.clients, column) for run in own])
            _draw_spread(axes, 100 * values[~np.isnan(values)], place)
        axes.set_title(title, fontsize=11)
        axes.set(
            xlabel="accuracy of a client (%)",
            xlim=(low - (100 - low) / 50, 100 + (100 - low) / 50),
            ylim=(len(methods) - 0.4, -0.6),
        )
        axes.set_yticks(range(len(methods)), [style.shorten(name, 24) for name in methods])
        axes.tick_params(axis="y", length=0)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
        style.tidy(axes, grid="x")
    return figure


def client_sizes_figure(examples: Sequence[int]) -> ReportFigure:
    """Draws how many clients have how many training examples.

    Args:
      examples: [N].
    """
    examples = np.asarray(examples)
    figure = style.new_figure(6.0, 3.4)
    axes = figure.subplots()
    least, greatest = int(examples.min()), int(examples.max())
    edges, logarithmic = size_bins(examples)
    axes.hist(examples, bins=edges, color=style.COLORS[0], edgecolor="white", linewidth=0.6)
    if logarithmic:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:,.0f}")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(7, integer=True, steps=[1, 2, 5, 10]))
    median = float(np.median(examples))
    axes.axvline(median, color=style.COLORS[1], linestyle="--", linewidth=1.5)
    axes.set_title(f"{len(examples):,} clients, {least:,} to {greatest:,} examples, median {median:,.0f}", fontsize=11)
    axes.set(xlabel="training examples of a client", ylabel="clients")
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    style.tidy(axes)
    return figure


def lower_end(runs: Sequence[RunFiles]) -> float:
    """Where the axis of accuracies begins, in percent: a round number below the least of them."""
    values = np.concatenate([getattr(run.clients, column) for run in runs for column, _ in KINDS])
    values = values[~np.isnan(values)]
    return min(80.0, float(np.floor(10 * values.min()) * 10)) if values.size else 0.0


def _draw_spread(axes: Axes, values: np.ndarray, place: int) -> None:
    if not values.size:
        axes.text(
            0.5,
            place,
            "not measured",
            transform=axes.get_yaxis_transform(),
            ha="center",
            va="center",
            color=style.GREY,
            fontsize=9,
        )
        return
    # The dots are moved up and down at random so that equal accuracies can be counted; the same in every report.
    shifts = np.random.default_rng(0).uniform(-0.27, 0.27, values.size)
    opacity = float(np.clip(40 / values.size, 0.08, 0.7))
    axes.scatter(values, place + shifts, s=14, color=style.color(place), alpha=opacity, linewidths=0, zorder=2)
    if values.size > 2:
        axes.boxplot(
            values, positions=[place], vert=False, widths=0.6, showfliers=False, manage_ticks=False, whis=(10, 90),
            medianprops={"color": "black", "linewidth": 1.6}, zorder=3,
        )  # fmt: skip
    axes.scatter(values.mean(), place, marker="D", s=38, color="white", edgecolors="black", zorder=4)


def size_bins(examples: np.ndarray) -> tuple[np.ndarray, bool]:
    """Returns the edges of bins for numbers of examples, and whether they are those of a logarithmic axis."""
    # LEAF's clients differ by orders of magnitude; equal bins would put all but a few into the first.
    logarithmic = int(examples.min()) > 0 and int(examples.max()) >= 50 * int(examples.min())
    return _bins(examples, logarithmic), logarithmic


def _bins(examples: np.ndarray, logarithmic: bool) -> np.ndarray:
    least, greatest = int(examples.min()), int(examples.max())
    if least == greatest:
        return np.array([least - 0.5, least + 0.5])
    count = int(np.clip(np.sqrt(len(examples)) * 2, 4, 40))
    if logarithmic:
        return np.geomspace(least, greatest, count + 1)
    # Whole bins from half to half: a bin that is narrower than one example would be empty now and then.
    step = max(1, int(np.ceil((greatest - least + 1) / count)))
    return np.arange(least - 0.5, greatest + step, step)
