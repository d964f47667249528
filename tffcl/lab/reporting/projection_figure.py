"""A picture of clients as points."""

from collections.abc import Sequence

import numpy as np

from tffcl.lab.reporting import ordering, style
from tffcl.lab.reporting.style import ReportFigure

_MOST_NAMED = 80


def projection_figure(
    points: np.ndarray, labels: Sequence | None = None, *, client_ids: Sequence | None = None, title: str = ""
) -> ReportFigure:
    """Draws clients as points, in the colours of their clusters.

    Args:
      points: [N, 2], e.g. from `clustering.projection.project`.
      labels: [N], the cluster of each client; None before there are clusters.
      client_ids: [N], names, written beside the points when there are not too many.
      title: What is drawn.
    """
    points = np.asarray(points, float)
    groups = np.zeros(len(points), int) if labels is None else np.asarray(labels)
    places = ordering.ranks(groups)
    figure = style.new_figure(7.0, 5.5)
    axes = figure.subplots()
    for block in ordering.blocks(groups[ordering.by_group(groups)]):
        own = groups == block.name
        name = f"cluster {ordering.cluster_name(block.name)} ({block.size})"
        axes.scatter(*points[own].T, s=36, color=style.color(places[own][0]), label=name, linewidths=0)
    if client_ids is not None and len(points) <= _MOST_NAMED:
        for point, client in zip(points, client_ids, strict=True):
            name, look = style.shorten(client), {"fontsize": 7, "color": style.GREY}
            axes.annotate(name, point, xytext=(4, 3), textcoords="offset points", **look)
    if labels is not None and len(np.unique(groups)) <= len(style.COLORS):
        style.legend_below(figure, 4)
    axes.set(xticks=[], yticks=[], title=title)
    axes.margins(0.06)
    return figure
