"""A picture of clusters that were split, round by round: who came of whom, and what became of each."""

import collections

import numpy as np
from matplotlib.axes import Axes

from tffcl.lab.reporting import style
from tffcl.lab.reporting.style import ReportFigure
from tffcl.runs.run_files import RunFiles

_MOST_GROUPS = 3  # that are named beside a cluster


def splits_figure(run: RunFiles) -> ReportFigure:
    """Draws the tree of splits: a line for each cluster, from the round in which it was founded to the last.

    Args:
      run: Of a method whose clusters are split; its `splits` are int[S, 3], rows `(round, cluster, founded cluster)`.

    Returns:
      The figure; beside each line stand the number of clients at the end and, where they are known, the true groups that these
      are of.
    """
    splits = run.splits
    last = int(max(run.rounds["round"], default=splits[:, 0].max(initial=1)))
    lanes = lanes_of(splits)
    figure = style.new_figure(9.0, 1.2 + 0.34 * len(lanes))
    axes = figure.subplots()
    founded = {0: 0, **{int(new): int(number) for number, _, new in splits}}
    for cluster, lane in lanes.items():
        axes.plot([founded[cluster], last], [lane, lane], color=style.color(cluster), linewidth=2.5, solid_capstyle="round")
        axes.annotate(
            told(run, cluster), (last, lane), xytext=(8, 0), textcoords="offset points", va="center", fontsize=9, clip_on=False
        )
    for number, cluster, new in splits.tolist():
        axes.plot([number, number], [lanes[cluster], lanes[new]], color=style.color(new), linewidth=1.5)
        axes.plot([number], [lanes[cluster]], "o", color=style.color(cluster), markersize=6)
    _dress(axes, last, len(lanes))
    axes.set_title(f"{len(splits)} split{'s' * (len(splits) != 1)} in {last} rounds", fontsize=12)
    return figure


def lanes_of(splits: np.ndarray) -> dict[int, int]:
    """Returns the height of each cluster: that which a cluster founds last stands next to it."""
    children = collections.defaultdict(list)
    for _, cluster, new in splits.tolist():
        children[cluster].append(new)
    order, waiting = [], [0]
    while waiting:
        cluster = waiting.pop()
        order.append(cluster)
        waiting += children[cluster]
    return {cluster: -place for place, cluster in enumerate(order)}


def told(run: RunFiles, cluster: int) -> str:
    """Returns what is said of a cluster: its clients at the end, and the true groups that these are of."""
    members = run.clients.cluster == cluster
    said = f"cluster {cluster}: {members.sum()} client{'s' * (members.sum() != 1)}"
    groups = collections.Counter(run.clients.true_cluster[members].tolist())
    if "" in groups or not groups:
        return said
    named = [f"group {group}{f' ({count})' if len(groups) > 1 else ''}" for group, count in groups.most_common(_MOST_GROUPS)]
    return f"{said}, {', '.join(named)}{', ...' if len(groups) > _MOST_GROUPS else ''}"


def _dress(axes: Axes, last: int, lanes: int) -> None:
    axes.set(xlim=(0, last), ylim=(-lanes + 0.5, 0.5), yticks=[], xlabel="round")
    axes.xaxis.get_major_locator().set_params(integer=True)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="x", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
