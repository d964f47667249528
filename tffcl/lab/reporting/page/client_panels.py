"""Panels of clients: how their accuracies are spread, and how much data they have."""

from collections.abc import Sequence

import numpy as np

from tffcl.lab.reporting.client_figures import size_bins
from tffcl.lab.reporting.page import panels
from tffcl.lab.reporting.page.panels import Axis, Panel, client_name
from tffcl.runs.run_files import RunFiles

_MOST_DOTS = 300  # of a method
_ROW = 46  # height of a method


def accuracy_panels(runs: Sequence[RunFiles], kinds: Sequence[tuple[str, str]], low: float) -> list[Panel]:
    """A panel for each accuracy: for each method a box, its clients as dots and their mean, those of all seeds together.

    Args:
      runs: Of one method or more.
      kinds: Columns of clients.csv and titles.
      low: Where the axis begins, in percent.
    """
    methods: dict[str, list[RunFiles]] = {}
    for run in runs:
        methods.setdefault(run.method, []).append(run)
    x = panels.number_axis("accuracy of a client (%)", [low, 100], low=low, high=100, tight=True)
    drawn = []
    for column, title in kinds:
        y = Axis("", len(methods) - 0.15, -0.55)
        panel = Panel(title, x, y, height=48 + _ROW * len(methods), grid="x", left=14)
        for number, (name, own) in enumerate(methods.items()):
            run = number if len(methods) > 1 else None
            values = 100 * np.concatenate([getattr(each.clients, column) for each in own])
            names = np.concatenate([each.clients.client_id for each in own])
            seeds = np.concatenate([np.full(len(each.clients), each.seed) for each in own])
            known = ~np.isnan(values)
            whose = [
                f"{client_name(client)}, seed {seed}" if len(own) > 1 else client_name(client)
                for client, seed in zip(names, seeds)
            ]
            panel.text(low, number - 0.42, name if known.any() else f"{name}: not measured", look="name", run=run)
            if known.any():
                _draw_spread(panel, number, values[known], [each for each, has in zip(whose, known, strict=True) if has], run)
        drawn.append(panel)
    return drawn


def _draw_spread(panel: Panel, number: int, values: np.ndarray, whose: Sequence[str], run: int | None) -> None:
    order = np.argsort(values, kind="stable")
    if len(order) > _MOST_DOTS:  # from the worst to the best, so that the ends stay
        order = order[np.linspace(0, len(order) - 1, _MOST_DOTS).astype(int)]
    # Moved up and down at random so that equal accuracies can be counted; the same in every report.
    shifts = np.random.default_rng(0).uniform(-0.2, 0.2, len(values))
    worst, lower, median, upper, best = np.percentile(values, [10, 25, 50, 75, 90])
    clients = f"{len(values):,} client{'s' * (len(values) != 1)}"
    said = f"{clients}: mean {values.mean():.2f} %, median {median:.2f} %, half of them {lower:.2f} to {upper:.2f} %"
    color = panels.shade(number)
    if len(values) > 2:
        panel.segments([worst, best], [number, number], "whisker", run=run)
        panel.box(lower, upper, number - 0.24, number + 0.24, "box", title=said, run=run)
    titles = [f"{whose[each]}: {values[each]:.2f} %" for each in order]
    panel.scatter(values[order], number + shifts[order], color, radius=2.6, titles=titles, title=said, run=run)
    if len(values) > 2:
        panel.segments([median, median], [number - 0.24, number + 0.24], "median", run=run)
    x, y = float(panel.across(values.mean())), float(panel.down(number))
    corners = f"M{x - 5:.1f},{y:.1f}l5,-5 5,5 -5,5Z"
    panel.add("path", "mean", {"d": corners}, title=f"mean of {clients}: {values.mean():.2f} %", run=run)


def sizes_panel(examples: np.ndarray) -> Panel:
    """How many clients have how many training examples.

    Args:
      examples: int [N].
    """
    edges, logarithmic = size_bins(examples)
    counts, _ = np.histogram(examples, edges)
    label = "training examples of a client"
    ends = float(edges[0]), float(edges[-1])
    x = panels.ratio_axis(label, *ends) if logarithmic else panels.number_axis(label, ends, whole=True, tight=True)
    median = float(np.median(examples))
    title = f"{len(examples):,} clients, {examples.min():,} to {examples.max():,} examples, median {median:,.0f}"
    panel = Panel(title, x, panels.number_axis("clients", counts, low=0, whole=True))
    for count, start, stop in zip(counts.tolist(), edges, edges[1:], strict=False):
        if count:
            said = f"{count:,} client{'s' * (count != 1)} with {np.ceil(start):,.0f} to {max(np.ceil(start), np.ceil(stop) - 1):,.0f} examples"
            panel.box(start, stop, 0, count, "bar c0", title=said)
    panel.segments([median, median], [0, panel.y.high], "rule strong", title=f"median: {median:,.0f} examples")
    return panel
