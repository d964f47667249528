"""Pictures of what the server grouped the clients by: the proximity matrix and the tree of merges."""

import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from scipy.cluster import hierarchy

from tffcl.lab.reporting import ordering, style
from tffcl.lab.reporting.style import ReportFigure

_MOST_NAMED_CLIENTS = 32
_MOST_NAMED_LEAVES = 64


def proximity_figure(
    proximity: np.ndarray,
    labels: Sequence | None = None,
    *,
    client_ids: Sequence | None = None,
    unit: str = "",
    measure: str = "proximity",
    merges: np.ndarray | None = None,
) -> ReportFigure:
    """Draws the matrix between clients, ordered by cluster, with the borders of the clusters.

    Dark stands for alike, whether the matrix holds distances or similarities.

    Args:
      proximity: [N, N].
      labels: [N], the cluster of each client; None before there are clusters.
      client_ids: [N], names, written when there are few.
      unit: Of the values.
      measure: What the values are.
      merges: SciPy linkage matrix; orders the clients within a cluster.
    """
    proximity = np.asarray(proximity, float)
    count = len(proximity)
    groups = np.zeros(count, int) if labels is None else np.asarray(labels)
    order = ordering.by_cluster(groups, merges)
    figure = style.new_figure(7.0, 6.0)
    axes = figure.subplots()
    low, high = value_range(proximity)
    shades = colormaps["viridis" if not is_similarity(proximity) else "viridis_r"]
    image = axes.imshow(proximity[np.ix_(order, order)], cmap=shades.with_extremes(bad="white"), vmin=low, vmax=high)
    unit = f" ({unit})" if unit else ""
    figure.colorbar(image, ax=axes, shrink=0.85, label=f"{measure}{unit}")
    stretches = ordering.blocks(groups[order])
    if labels is not None:
        _draw_borders(axes, stretches, count)
    _name_axes(axes, stretches if labels is not None else [], client_ids, order)
    axes.set_title(_proximity_title(measure, count, len(stretches) if labels is not None else None))
    return figure


def dendrogram_figure(
    merges: np.ndarray,
    threshold: float | None = None,
    *,
    labels: Sequence[int] | None = None,
    client_ids: Sequence | None = None,
    unit: str = "",
    linkage: str = "",
    suggestion: str = "",
    max_leaves: int = 150,
) -> ReportFigure:
    """Draws the tree of merges, with the line where it is cut.

    Branches within one cluster have the colour of the cluster.

    Args:
      merges: SciPy linkage matrix [N-1, 4].
      threshold: Height of the cut; None draws no line.
      labels: [N], the cluster of each client; those of the cut if not given.
      client_ids: [N], names, written when there are few.
      unit: Of the heights.
      linkage: Name of the linkage.
      suggestion: A sentence for the title: why this threshold.
      max_leaves: With more clients, only the upper part of the tree is drawn.
    """
    merges = np.asarray(merges, float).reshape(-1, 4)
    count = len(merges) + 1
    if labels is None and threshold is not None and count > 1:
        labels = hierarchy.fcluster(merges, threshold, "distance") - 1
    shown = count if count <= max_leaves else upper_leaves(labels, max_leaves)
    figure = style.new_figure(float(np.clip(3.5 + 0.11 * shown, 7, 11)), 5.0)
    axes = figure.subplots()
    axes.set_title(textwrap.fill(suggestion or "Which clients merge at which distance", 80), fontsize=11)
    if count < 2:
        style.say_empty(axes, "One client: there is nothing to merge.")
        return figure
    _draw_tree(axes, merges, labels, client_ids, shown)
    if threshold is not None:
        _draw_cut(axes, threshold, unit)
    axes.set_ylim(*height_range(merges, shown, threshold))
    axes.set_ylabel(" ".join(filter(None, [linkage, "linkage: height of the merge", f"({unit})" if unit else ""])))
    style.tidy(axes, grid=None)
    return figure


def value_range(proximity: np.ndarray) -> tuple[float, float]:
    """Returns the range of the values between different clients: the diagonal would take all contrast away."""
    different = ~np.eye(len(proximity), dtype=bool)
    for values in (proximity[different], proximity):
        values = values[np.isfinite(values)]
        if values.size and values.min() < values.max():
            return float(values.min()), float(values.max())
    return 0.0, 1.0


def is_similarity(proximity: np.ndarray) -> bool:
    """Says whether a matrix between clients holds similarities, and not distances."""
    between = proximity[~np.eye(len(proximity), dtype=bool)]
    return bool(between.size) and np.nanmean(np.diag(proximity)) > np.nanmean(between)


def _draw_borders(axes: Axes, stretches: Sequence[ordering.Block], count: int) -> None:
    width = 1.8 if len(stretches) <= 30 else 0.8
    for block in stretches if 1 < len(stretches) < count else []:
        corner = (block.start - 0.5, block.start - 0.5)
        axes.add_patch(Rectangle(corner, block.size, block.size, fill=False, color="#D55E00", linewidth=width))


def _name_axes(axes: Axes, stretches: Sequence[ordering.Block], client_ids, order: np.ndarray) -> None:
    count = len(order)
    kept = [stretches[each] for each in _named(stretches, count / 24)]
    places, names = [block.middle for block in kept], [ordering.cluster_name(block.name) for block in kept]
    axes.set_xticks(places, names, rotation=90 if max(map(len, names), default=0) > 3 else 0)
    axes.set_xlabel("cluster" if stretches else "clients")
    if client_ids is not None and count <= _MOST_NAMED_CLIENTS:
        axes.set_yticks(range(count), [style.shorten(client_ids[each]) for each in order], fontsize=8)
        axes.set_ylabel("client")
    else:
        axes.set_yticks(places, names)
        axes.set_ylabel("cluster" if stretches else "clients")
    axes.tick_params(length=0)


def _named(stretches: Sequence[ordering.Block], least: float) -> list[int]:
    return style.spread([each.middle for each in stretches], [each.size for each in stretches], least)


def _proximity_title(measure: str, clients: int, clusters: int | None) -> str:
    between = f"{measure[:1].upper()}{measure[1:]} between {clients:,} clients"
    found = "" if clusters is None else f", {clusters} cluster{'s' * (clusters != 1)}"
    return textwrap.fill(between + found, 64)


def upper_leaves(labels: Sequence[int] | None, most: int) -> int:
    """Returns how many leaves to draw of a large tree: enough for each cluster, few enough to read their sizes."""
    clusters = 0 if labels is None else len(np.unique(labels))
    return int(np.clip(2 * clusters, 40, most))


def node_clusters(merges: np.ndarray, labels: Sequence[int]) -> list[int]:
    """Returns for each node of the tree its cluster, or -1 where it joins several."""
    places = ordering.ranks(labels)
    clusters = places.tolist()
    for left, right in merges[:, :2].astype(int):
        clusters.append(clusters[left] if clusters[left] == clusters[right] else -1)
    return clusters


def _draw_tree(axes: Axes, merges: np.ndarray, labels, client_ids, shown: int) -> None:
    count = len(merges) + 1
    clusters = [-1] * (2 * count - 1) if labels is None else node_clusters(merges, labels)
    tree = hierarchy.dendrogram(
        merges,
        no_plot=True,
        truncate_mode="lastp" if shown < count else None,
        p=shown,
        link_color_func=lambda node: style.color(clusters[node]),
    )
    lines = [np.column_stack(corners) for corners in zip(tree["icoord"], tree["dcoord"], strict=True)]
    axes.add_collection(LineCollection(lines, colors=tree["color_list"], linewidths=1.3))
    leaves = tree["leaves"]
    axes.set_xlim(0, 10 * len(leaves))
    if shown < count or shown <= _MOST_NAMED_LEAVES:
        names = [leaf_name(leaf, merges, client_ids) for leaf in leaves]
        size = 9 if len(leaves) <= 40 else 7
        axes.set_xticks([5 + 10 * each for each in range(len(leaves))], names, rotation=90, fontsize=size)
        for tick, leaf in zip(axes.get_xticklabels(), leaves, strict=True):
            tick.set_color(style.color(clusters[leaf]) if labels is not None else "black")
    else:
        axes.set_xticks([])
    note = f"; (n) stands for n clients, the upper {len(leaves)} branches are shown" if shown < count else ""
    axes.set_xlabel(f"{count:,} clients{note}")
    _draw_legend(axes, labels)


def leaf_name(leaf: int, merges: np.ndarray, client_ids) -> str:
    """Returns what a leaf of a tree is called: a client, or "(12)" for a branch of twelve that is not shown."""
    count = len(merges) + 1
    if leaf >= count:
        return f"({int(merges[leaf - count, 3])})"
    return style.shorten(leaf if client_ids is None else client_ids[leaf])


def _draw_legend(axes: Axes, labels) -> None:
    groups = [] if labels is None else ordering.blocks(np.asarray(labels)[ordering.by_group(labels)])
    if 1 < len(groups) <= len(style.COLORS):
        lines = [Line2D([], [], color=style.color(place), linewidth=3) for place in range(len(groups))]
        names = [f"cluster {ordering.cluster_name(each.name)} ({each.size})" for each in groups]
        style.legend_below(axes.figure, min(len(groups), 4), handles=lines, labels=names, fontsize=9)


def _draw_cut(axes: Axes, threshold: float, unit: str) -> None:
    axes.axhline(threshold, color="black", linestyle="--", linewidth=1.2, label="cut")
    axes.annotate(
        f"cut at\n{threshold:.4g} {unit}".rstrip(), (1, threshold), xytext=(5, 0), textcoords="offset points",
        xycoords=axes.get_yaxis_transform(), va="center", fontsize=9, annotation_clip=False,
    )  # fmt: skip


def height_range(merges: np.ndarray, shown: int, threshold: float | None) -> tuple[float, float]:
    """Returns the ends of the axis of heights, without the empty space below the lowest merge where that would press the tree together."""
    heights = np.sort(merges[:, 2])[-(shown - 1) :]
    heights = heights if threshold is None else np.append(heights, threshold)
    low, high = float(heights.min()), float(heights.max())
    margin = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    bottom = low - 2 * margin
    return bottom if low >= 0.4 * high and bottom > 0 else min(0.0, low), high + margin
