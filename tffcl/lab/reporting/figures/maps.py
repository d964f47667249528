"""Maps of clients as points, placed by what they sent or by their similarity, in the colours of their clusters."""

from collections.abc import Mapping, Sequence

import numpy as np
import scipy.optimize
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from tffcl.display import counted
from tffcl.lab.reporting import ordering, style
from tffcl.lab.reporting.style import ReportFigure
from tffcl.runs.run_files import NO_CLUSTER, Representations, RunFiles

_ROUNDS = (5, 10, 40)  # the rounds in StoCFL's Fig. 6
_ACROSS, _MOST_PANELS = 4, 12
_MOST_NAMED = 80  # points with names beside them
_MOST_TITLED = 600  # points of a panel with client names on the page
_MOST_NAMED_GROUPS = 16
_MARKERS = ("o", "^", "s", "D")


def projection_figure(
    points: np.ndarray, labels: Sequence | None = None, *, client_ids: Sequence | None = None, title: str = ""
) -> ReportFigure:
    """Draws clients as points, in the colours of their clusters.

    Args:
      points: [N, 2], e.g. from `clustering.projection.project`.
      labels: [N], the cluster of each client; None before there are clusters.
      client_ids: [N], names, written beside the points when there are not too many.
      title: The title of the figure.
    """
    points = np.asarray(points, float)
    groups = np.zeros(len(points), int) if labels is None else np.asarray(labels)
    figure = style.new_figure(7.0, 5.5)
    axes = figure.subplots()
    _draw_points(
        axes, points, ordering.ranks(groups), [f"cluster {ordering.cluster_name(each)}" for each in groups], client_ids
    )
    if client_ids is not None and len(points) <= _MOST_NAMED:
        for point, client in zip(points, client_ids, strict=True):
            name, look = style.shorten(client), {"fontsize": 7, "color": style.GREY}
            axes.annotate(name, point, xytext=(4, 3), textcoords="offset points", **look)
    if labels is not None and len(np.unique(groups)) <= len(style.COLORS):
        style.legend_below(figure, 4, handles=_keys(groups, "cluster"))
    axes.set_title(title)
    return figure


def shown_rounds(last: int) -> list[int]:
    """Returns the rounds whose clusters are drawn, at most three, ascending: StoCFL's, or evenly spaced rounds."""
    if last >= _ROUNDS[-1]:
        return list(_ROUNDS)
    return sorted({1, (1 + last) // 2, last} - {0})


def clusters_at(history: Mapping[int, np.ndarray], round_number: int) -> np.ndarray:
    """Returns the clusters [N] after a round; the history has the rounds that changed them."""
    return history[max((each for each in history if each <= round_number), default=min(history))]


def representations_figure(
    found: Representations,
    history: Mapping[int, np.ndarray],
    last: int,
    truth: Sequence | None = None,
    *,
    client_ids: Sequence | None = None,
) -> ReportFigure:
    """Draws the same map several times: in the colours of the true groups, and of the clusters after some rounds.

    Clusters of one client are grey, e.g. those of clients that have not taken part by then.

    Args:
      found: The map.
      history: Maps rounds to clusters int [N].
      last: The number of the last round.
      truth: str [N], the true groups; None if they are unknown.
      client_ids: [N], names.
    """
    panels = [(f"after round {each}", found, clusters_at(history, each)) for each in shown_rounds(last)]
    return _panels(panels, crowded(panels[-1][2]) if truth is None else truth, truth, client_ids)


def settings_figure(runs: Mapping[str, RunFiles], truth: Sequence | None = None) -> ReportFigure:
    """Draws the clusters after the last round of several runs, with a panel for each run (StoCFL Fig. 7).

    Args:
      runs: Maps titles to runs with representations and history; the first twelve are drawn.
      truth: str [N], the true groups; None if they are unknown.
    """
    shown = list(runs.items())[:_MOST_PANELS]
    panels = [(title, run.representations, run.history[max(run.history)]) for title, run in shown]
    ids = shown[0][1].clients.client_id
    return _panels(panels, crowded(panels[0][2]) if truth is None else truth, truth, ids)


def centres_figure(
    points: np.ndarray,
    mask: np.ndarray,
    labels: Sequence,
    true_groups: Sequence | None = None,
    *,
    client_ids: Sequence | None = None,
) -> ReportFigure:
    """Draws the centres of all clients in UMAP's map, in the colours of their clients' clusters.

    Args:
      points: [N, k, u], see `clustering.taskonomy.fit_map`; only the first two dimensions are drawn.
      mask: Bool [N, k], which centres exist.
      labels: [N], the cluster of each client.
      true_groups: [N], the true group of each client, for a second panel; None if unknown.
      client_ids: [N], names.
    """
    points, mask = np.asarray(points, float), np.asarray(mask, bool)
    plane = np.zeros((mask.sum(), 2))
    plane[:, : points.shape[2]] = points[mask][:, :2]
    owner = np.nonzero(mask)[0]
    kinds = [("cluster", np.asarray(labels))]
    kinds += [] if true_groups is None else [("group", np.asarray(true_groups))]
    ids = np.arange(len(points)) if client_ids is None else np.asarray(client_ids)
    figure = style.new_panels(len(kinds), 4.6, below=0.3)
    for axes, (kind, names) in zip(figure.panels, kinds, strict=True):
        words = np.array([f"{kind} {ordering.cluster_name(each)}" for each in names])
        _draw_points(axes, plane, ordering.ranks(names)[owner], words[owner], ids[owner], markers=True)
        groups = len(np.unique(names))
        if groups <= _MOST_NAMED_GROUPS:
            look = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.01), "ncols": 3, "frameon": False, "fontsize": 9}
            axes.legend(handles=_keys(names, kind, markers=True), **look)
        title = counted(groups, kind)
        axes.set_title(title if kind == "cluster" else f"{title} that clients really belong to", fontsize=11)
    figure.suptitle(f"{len(plane):,} centres of {len(points):,} clients in UMAP's map", fontsize=12)
    return figure


def crowded(labels: np.ndarray) -> np.ndarray:
    """Returns each client's cluster [N] if it has more than one client; -1 for others."""
    _, which, counts = np.unique(labels, return_inverse=True, return_counts=True)
    return np.where((counts[which] > 1) & (labels != NO_CLUSTER), labels, -1)


def matched(crowded: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Returns colours [N] of clusters: each gets that of the group 0, 1, ... with which it shares most clients; groups
    are used once.

    Clusters are matched by their clients, because numbers change when clusters merge, and differ from run to run.
    """
    clusters = np.unique(crowded[crowded >= 0])
    common = np.zeros([len(clusters), reference.max() + 1], np.int64)
    grouped = crowded >= 0
    np.add.at(common, (np.searchsorted(clusters, crowded[grouped]), reference[grouped]), 1)
    rows, columns = scipy.optimize.linear_sum_assignment(common, maximize=True)
    meeting = common[rows, columns] > 0
    colours = np.full(len(clusters), -1)
    colours[rows[meeting]] = columns[meeting]
    others = colours < 0
    colours[others] = common.shape[1] + np.arange(others.sum())
    colour_of = dict(zip(clusters.tolist(), colours.tolist(), strict=True))
    return np.array([colour_of.get(cluster, -1) for cluster in crowded.tolist()])


def _panels(
    panels: Sequence[tuple], reference: Sequence, truth: Sequence | None, client_ids: Sequence | None
) -> ReportFigure:
    """Draws panels of (title, map, clusters [N]) in the colours of `reference` [N]; the true groups come first."""
    found, groups = panels[0][1], ordering.ranks(reference)
    count = len(panels) + (truth is not None)
    ids = np.arange(len(groups)) if client_ids is None else np.asarray(client_ids)
    figure = style.new_panels(count, 3.2, width=3.3, across=_ACROSS, below=0.4)
    if truth is not None:
        names = np.array([f"true group {ordering.cluster_name(each)}" for each in truth])
        _draw_points(figure.panels[0], found.points, groups[found.places], names[found.places], ids[found.places])
        figure.panels[0].set_title(counted(len(np.unique(truth)), "true group"), fontsize=10)
    for axes, (title, own, labels) in zip(figure.panels[count - len(panels) :], panels, strict=True):
        together = crowded(labels)
        names = np.array([f"cluster {ordering.cluster_name(each)}" for each in labels])
        _draw_points(axes, own.points, matched(together, groups)[own.places], names[own.places], ids[own.places])
        alone, number = int(np.sum(together < 0)), len(np.unique(together[together >= 0]))
        axes.set_title(f"{title}: {counted(number, 'cluster')}{f', {alone} alone' if alone else ''}", fontsize=10)
    figure.suptitle(f"{len(found.points):,} clients by what they sent of their data, laid out by t-SNE", fontsize=12)
    return figure


def _draw_points(
    axes: Axes,
    points: np.ndarray,
    numbers: np.ndarray,
    names: Sequence[str],
    ids: Sequence | None,
    *,
    markers: bool = False,
) -> None:
    """Draws points in the plane, with equal scales because distances have a meaning; equal numbers have one colour.

    Args:
      points: [n, 2].
      numbers: int [n], the numbers of colours; negative ones are grey.
      names: [n], the groups' names.
      ids: [n], the clients' names.
      markers: Whether to change the marker when the colours repeat, for up to 32 different groups.
    """
    size = float(np.clip(6_000 / max(1, len(points)), 5, 36))
    titled = len(points) <= _MOST_TITLED and ids is not None
    for number in np.unique(numbers):
        own = np.flatnonzero(numbers == number)
        alpha = 0.4 if number < 0 else 0.85
        marker = _look(number)[1] if markers else "o"
        dots = axes.scatter(*points[own].T, s=size, color=style.color(number), linewidths=0, alpha=alpha, marker=marker)
        group = names[own[0]] if len({names[each] for each in own}) == 1 else "alone in their clusters"
        words = (
            [f"{style.client_name(ids[each])}, {names[each]}" for each in own] if titled else [f"{group}: {len(own):,}"]
        )
        style.say(dots, *words)
    low, high = (points.min(axis=0), points.max(axis=0)) if len(points) else (np.zeros(2), np.zeros(2))
    half = 0.56 * float((high - low).max()) or 1.0
    (left, right), (bottom, top) = ((middle - half, middle + half) for middle in (low + high) / 2)
    axes.set(xlim=(left, right), ylim=(bottom, top), xticks=[], yticks=[], aspect="equal")


def _look(number: int) -> tuple[str, str]:
    """Returns the colour and the marker of a group; 32 groups look different."""
    return style.color(number), _MARKERS[number // len(style.COLORS) % len(_MARKERS)]


def _keys(names: np.ndarray, kind: str, *, markers: bool = False) -> list[Line2D]:
    """The legend's entries, one for each group."""
    keys = []
    for number, block in enumerate(ordering.blocks(names[ordering.by_group(names)])):
        shade, marker = _look(number)
        words = style.shorten(f"{kind} {ordering.cluster_name(block.name)} ({block.size})", 24)
        keys.append(Line2D([], [], color=shade, marker=marker if markers else "o", linestyle="", label=words))
    return keys
