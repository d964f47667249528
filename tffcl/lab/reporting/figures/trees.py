"""Figures of trees: the merges of clients with their heights, and the splits of clusters over the rounds."""

import collections
import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from scipy.cluster import hierarchy

from tffcl.display import counted
from tffcl.lab.reporting import ordering, style
from tffcl.lab.reporting.style import ReportFigure
from tffcl.runs.run_files import RunFiles

_MOST_LEAVES = 150  # leaves that are drawn
_MOST_NAMED_LEAVES = 64
_CHANCE_IS_1 = "self-distances"  # the unit in which equal clients have distance 1 by chance
_MOST_GROUPS = 3  # groups that are named beside a cluster


def dendrogram_figure(
    merges: np.ndarray,
    threshold: float | None = None,
    *,
    labels: Sequence[int] | None = None,
    client_ids: Sequence | None = None,
    unit: str = "",
    linkage: str = "",
    suggestion: str = "",
) -> ReportFigure:
    """Draws the tree of merges from left to right, with a line at the cut.

    Branches within one cluster have the colour of the cluster. If there are many clients, only the upper part is drawn.
    In self-distances, a dotted line marks the distance that chance gives.

    Args:
      merges: SciPy linkage matrix [N-1, 4].
      threshold: The height of the cut; None draws no line.
      labels: [N], the cluster of each client; default the clusters of the cut.
      client_ids: [N], names, written if there are few clients.
      unit: The unit of the heights.
      linkage: The name of the linkage.
      suggestion: A sentence for the title that gives the reason for this threshold.
    """
    merges = np.asarray(merges, float).reshape(-1, 4)
    count = len(merges) + 1
    if labels is None and threshold is not None and count > 1:
        labels = hierarchy.fcluster(merges, threshold, "distance") - 1
    shown = count
    if count > _MOST_LEAVES:  # enough for each cluster, but few enough to read the sizes
        shown = int(np.clip(2 * (0 if labels is None else len(np.unique(labels))), 40, _MOST_LEAVES))
    named = shown < count or shown <= _MOST_NAMED_LEAVES
    figure = style.new_figure(style.WIDTH, 1.6 + max(0.8, shown * (0.16 if named else 0.045)))
    axes = figure.subplots()
    title = textwrap.fill(suggestion or "Which clients merge at which distance", 54)
    axes.set_title(title, fontsize=10, pad=22 if threshold is not None else 6)
    if count < 2:
        style.say_empty(axes, "One client: there is nothing to merge.")
        return figure
    _draw_tree(axes, merges, labels, client_ids, shown, named, unit)
    if unit == _CHANCE_IS_1:
        chance = axes.axvline(1, color=style.GREY, linestyle=":", linewidth=1.2, zorder=0)
        style.say(chance, "as far from each other as chance alone puts clients")
    if threshold is not None:
        cut = f"cut at {threshold:.4g} {unit}".rstrip()
        rule = axes.axvline(threshold, color="black", linestyle="--", linewidth=1.2, label="cut")
        style.say(rule, cut)
        axes.annotate(
            cut, (threshold, 1), xytext=(0, 4), textcoords="offset points", xycoords=axes.get_xaxis_transform(),
            ha="center", fontsize=9, annotation_clip=False,
        )  # fmt: skip
    axes.set_xlim(*_height_range(merges, shown, threshold))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    heights = " ".join(filter(None, [linkage, "linkage: height of the merge", f"({unit})" if unit else ""]))
    note = counted(count, "client") + f"; (n) stands for n, the upper {shown} branches are shown" * (shown < count)
    axes.set_xlabel("\n".join(textwrap.fill(each, 50) for each in (heights, note)))
    style.tidy(axes, grid=None)
    axes.spines["left"].set_visible(False)
    return figure


def splits_figure(run: RunFiles) -> ReportFigure:
    """Draws the tree of splits: a line for each cluster, from the round in which it was founded to the last.

    Args:
      run: A run of a method that splits clusters; its `splits` are int[S, 3], rows `(round, cluster, founded cluster)`.

    Returns:
      The figure; beside each line are the number of clients at the end and, if known, the true groups of these clients.
    """
    splits = run.splits
    last = int(max(run.rounds["round"], default=splits[:, 0].max(initial=1)))
    lanes = lanes_of(splits)
    figure = style.new_figure(style.WIDTH, 1.0 + 0.3 * len(lanes))
    axes = figure.subplots()
    founded = {0: 0, **{int(new): int(number) for number, _, new in splits}}
    for cluster, lane in lanes.items():
        look = {"color": style.color(cluster), "linewidth": 2.5, "solid_capstyle": "round"}
        (line,) = axes.plot([founded[cluster], last], [lane, lane], **look)
        style.say(line, ", ".join(filter(None, [_members(run, cluster), _groups(run, cluster)])))
        words, place = style.shorten(_groups(run, cluster), 22), {"xytext": (6, 0), "textcoords": "offset points"}
        axes.annotate(words, (last, lane), va="center", fontsize=9, annotation_clip=False, **place)
    for number, cluster, new in splits.tolist():
        label = f"round {number}: cluster {new} leaves cluster {cluster}"
        (branch,) = axes.plot([number, number], [lanes[cluster], lanes[new]], color=style.color(new), linewidth=1.5)
        (dot,) = axes.plot([number], [lanes[cluster]], "o", color=style.color(cluster), markersize=6)
        style.say(branch, label)
        style.say(dot, label)
    axes.set(xlim=(0, last), ylim=(-len(lanes) + 0.5, 0.5), xlabel="round")
    axes.set_yticks(list(lanes.values()), [_members(run, cluster) for cluster in lanes], fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    style.tidy(axes, grid="x")
    axes.spines["left"].set_visible(False)
    axes.set_title(f"{counted(len(splits), 'split')} in {counted(last, 'round')}", fontsize=11)
    return figure


def lanes_of(splits: np.ndarray) -> dict[int, int]:
    """Returns the height of each cluster's line; the cluster that a cluster founded last is next to it."""
    children = collections.defaultdict(list)
    for _, cluster, new in splits.tolist():
        children[cluster].append(new)
    order, waiting = [], [0]
    while waiting:
        cluster = waiting.pop()
        order.append(cluster)
        waiting += children[cluster]
    return {cluster: -place for place, cluster in enumerate(order)}


def _members(run: RunFiles, cluster: int) -> str:
    return f"cluster {cluster}: {counted(np.sum(run.clients.cluster == cluster), 'client')}"


def _groups(run: RunFiles, cluster: int) -> str:
    """The true groups of a cluster's clients, the largest first; "" if they are unknown."""
    groups = collections.Counter(run.clients.true_cluster[run.clients.cluster == cluster].tolist())
    if "" in groups:
        return ""
    named = [
        f"group {group}{f' ({count})' if len(groups) > 1 else ''}" for group, count in groups.most_common(_MOST_GROUPS)
    ]
    return f"{', '.join(named)}{', ...' if len(groups) > _MOST_GROUPS else ''}"


def _draw_tree(axes: Axes, merges: np.ndarray, labels, client_ids, shown: int, named: bool, unit: str) -> None:
    count = len(merges) + 1
    clusters = [-1] * (2 * count - 1) if labels is None else ordering.node_clusters(merges, labels)
    tree = hierarchy.dendrogram(
        merges,
        no_plot=True,
        truncate_mode="lastp" if shown < count else None,
        p=shown,
        link_color_func=lambda node: style.color(clusters[node]),
    )
    lines = [np.column_stack(corners) for corners in zip(tree["dcoord"], tree["icoord"], strict=True)]
    branches = LineCollection(lines, colors=tree["color_list"], linewidths=1.3)
    axes.add_collection(branches)
    style.say(branches, *(f"merge at {style.show(tops[1])} {unit}".rstrip() for tops in tree["dcoord"]))
    leaves = tree["leaves"]
    axes.set_ylim(10 * len(leaves), 0)
    names = [_leaf_name(leaf, merges, client_ids) for leaf in leaves] if named else []
    axes.set_yticks([5 + 10 * each for each in range(len(names))], names, fontsize=9)
    axes.tick_params(axis="y", length=0)
    for tick, leaf in zip(axes.get_yticklabels(), leaves):
        tick.set_color(style.color(clusters[leaf]) if labels is not None else "black")
    _draw_legend(axes, labels)


def _leaf_name(leaf: int, merges: np.ndarray, client_ids) -> str:
    """The name of a leaf: that of a client, or "(12)" for a hidden branch of twelve clients."""
    count = len(merges) + 1
    if leaf >= count:
        return f"({int(merges[leaf - count, 3])})"
    return style.shorten(leaf if client_ids is None else client_ids[leaf])


def _draw_legend(axes: Axes, labels) -> None:
    groups = [] if labels is None else ordering.blocks(np.asarray(labels)[ordering.by_group(labels)])
    if 1 < len(groups) <= len(style.COLORS):
        lines = [Line2D([], [], color=style.color(place), linewidth=3) for place in range(len(groups))]
        names = [f"cluster {ordering.cluster_name(each.name)} ({each.size})" for each in groups]
        style.legend_below(axes.figure, min(len(groups), 3), handles=lines, labels=names, fontsize=9)


def _height_range(merges: np.ndarray, shown: int, threshold: float | None) -> tuple[float, float]:
    """The ends of the axis of heights, without the space below the lowest merge if that would compress the tree."""
    heights = np.sort(merges[:, 2])[-(shown - 1) :]
    heights = heights if threshold is None else np.append(heights, threshold)
    low, high = float(heights.min()), float(heights.max())
    margin = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    bottom = low - 2 * margin
    return bottom if low >= 0.4 * high and bottom > 0 else min(0.0, low), high + margin
