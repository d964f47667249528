"""Panels of trees and maps: which clients merge at which height, which cluster was split when, clients as points."""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.cluster import hierarchy

from tffcl.lab.reporting import clustering_figures, ordering, splits_figure
from tffcl.lab.reporting.page import panels
from tffcl.lab.reporting.page.panels import Axis, Panel, client_name
from tffcl.lab.reporting.representation_figure import clusters_at, crowded, matched, shown_rounds
from tffcl.runs.run_files import Clustering, RunFiles

_MOST_LEAVES, _MOST_NAMED = 150, 64


def dendrogram_panel(found: Clustering) -> Panel | None:
    """The tree of merges from left to right, with the line where it is cut; None for one client."""
    merges, labels = found.merges, found.labels
    count = len(merges) + 1
    if count < 2:
        return None
    shown = count if count <= _MOST_LEAVES else clustering_figures.upper_leaves(labels, _MOST_LEAVES)
    clusters = clustering_figures.node_clusters(merges, labels)
    tree = hierarchy.dendrogram(
        merges,
        no_plot=True,
        truncate_mode="lastp" if shown < count else None,
        p=shown,
        link_color_func=lambda node: str(clusters[node]),
    )
    leaves = tree["leaves"]
    named = shown < count or shown <= _MOST_NAMED
    ticks = [
        (5 + 10 * place, clustering_figures.leaf_name(leaf, merges, found.client_ids)) for place, leaf in enumerate(leaves)
    ]
    low, high = clustering_figures.height_range(merges, shown, found.threshold)
    unit = f" ({found.tree_unit})" if found.tree_unit else ""
    x = panels.number_axis(f"height of the merge{unit}", [low, high], low=low, high=high)
    y = Axis("", 10 * len(leaves), 0, ticks if named else [])
    height = 52 + round(len(leaves) * (13 if len(leaves) <= 32 and named else 11 if named else 3))
    note = f"{count:,} clients" + (f"; (n) stands for n, the upper {len(leaves)} branches are shown" if shown < count else "")
    panel = Panel(note, x, y, height=height, grid="")
    for corners, tops, color in zip(tree["icoord"], tree["dcoord"], tree["color_list"], strict=True):
        said = f"merge at {panels.show(tops[1])} {found.tree_unit}".rstrip()
        panel.segments(np.maximum(tops, x.low), corners, f"branch {panels.shade(int(color))}", title=said)
    if found.threshold is not None:
        cut = f"cut at {found.threshold:.4g} {found.tree_unit}".rstrip()
        panel.segments([found.threshold] * 2, [0, 10 * len(leaves)], "rule strong", title=cut)
    return panel


def splits_panel(run: RunFiles) -> Panel:
    """A line for each cluster from the round in which it was founded, a dot for each split."""
    splits = run.splits
    last = int(max(run.rounds["round"], default=splits[:, 0].max(initial=1)))
    lanes = splits_figure.lanes_of(splits)
    founded = {0: 0, **{int(new): int(number) for number, _, new in splits}}
    sizes = {cluster: int(np.sum(run.clients.cluster == cluster)) for cluster in lanes}
    ticks = [(lane, f"{cluster} ({sizes[cluster]})") for cluster, lane in lanes.items()]
    y = Axis("cluster (clients)", -len(lanes) + 0.5, 0.5, ticks)
    panel = Panel(
        f"{len(splits)} split{'s' * (len(splits) != 1)} in {last} rounds", panels.number_axis("round", [0, last], low=0, high=last, whole=True),
        y, height=70 + 22 * len(lanes), grid="x",
    )  # fmt: skip
    for cluster, lane in lanes.items():
        panel.segments(
            [founded[cluster], last], [lane] * 2, f"lane {panels.shade(cluster)}", title=splits_figure.told(run, cluster)
        )
    for number, cluster, new in splits.tolist():
        said = f"round {number}: cluster {new} leaves cluster {cluster}"
        panel.segments([number, number], [lanes[cluster], lanes[new]], f"branch {panels.shade(new)}", title=said)
        panel.scatter([number], [lanes[cluster]], panels.shade(cluster), radius=4, titles=[said])
    return panel


def history_panels(run: RunFiles) -> list[Panel]:
    """The map of what clients sent, in the colours of the true groups and of the clusters after some rounds."""
    last = int(max(run.rounds["round"], default=max(run.history)))
    drawn = [(f"after round {each}", run.representations, clusters_at(run.history, each)) for each in shown_rounds(last)]
    return _maps(drawn, run.clients.true_cluster, run.clients.client_id)


def settings_panels(runs: Mapping[str, RunFiles]) -> list[Panel]:
    """The same for several runs, by title, after their last round."""
    drawn = [(title, run.representations, run.history[max(run.history)]) for title, run in runs.items()]
    first = next(iter(runs.values())).clients
    return _maps(drawn, first.true_cluster, first.client_id)


def _maps(drawn: Sequence[tuple], truth: np.ndarray, ids: np.ndarray) -> list[Panel]:
    """Panels of title, map and clusters [N]; first the true groups, where they are known."""
    known = bool(np.any(truth != ""))
    groups = ordering.ranks(truth if known else crowded(drawn[-1][2]))
    found, made = drawn[0][1], []
    if known:
        names = [f"true group {ordering.cluster_name(each)}" for each in truth]
        made.append(
            _map(
                f"{len(np.unique(truth))} true groups",
                found.points,
                groups[found.places],
                np.take(names, found.places),
                ids[found.places],
            )
        )
    for title, own, labels in drawn:
        together = crowded(labels)
        names = np.array([f"cluster {ordering.cluster_name(each)}" for each in labels])
        number, alone = len(np.unique(together[together >= 0])), int(np.sum(together < 0))
        told = f"{title}: {number} cluster{'s' * (number != 1)}{f', {alone} alone' if alone else ''}"
        made.append(_map(told, own.points, matched(together, groups)[own.places], names[own.places], ids[own.places]))
    return made


def centre_panels(found: Clustering, truth: np.ndarray) -> list[Panel]:
    """The centres of all clients in UMAP's map, in the colours of their clusters and of the true groups."""
    points, mask = np.asarray(found.points, float), np.asarray(found.mask, bool)
    plane = np.zeros((mask.sum(), 2))
    plane[:, : points.shape[2]] = points[mask][:, :2]
    owner = np.nonzero(mask)[0]
    kinds = [("cluster", np.asarray(found.labels))] + ([("true group", truth)] if np.any(truth != "") else [])
    drawn = []
    for kind, names in kinds:
        said = np.array([f"{kind} {ordering.cluster_name(each)}" for each in names])
        number = len(np.unique(names))
        title = f"{number:,} {kind}{'s' * (number != 1)}"
        drawn.append(_map(title, plane, ordering.ranks(names)[owner], said[owner], found.client_ids[owner]))
    return drawn


def _map(title: str, points: np.ndarray, colors: np.ndarray, names: Sequence[str], ids: Sequence[str]) -> Panel:
    """Points in the plane, of one scale; each says its client and its group, or together they say the group."""
    low, high = points.min(axis=0), points.max(axis=0)
    half = 0.54 * float((high - low).max()) or 1.0
    (left, bottom), (right, top) = (low + high) / 2 - half, (low + high) / 2 + half
    panel = Panel(title, Axis("", left, right), Axis("", bottom, top), height=348, grid="")
    radius = float(np.clip(40 / np.sqrt(len(points)), 1.5, 4))
    for color in np.unique(colors):
        own = np.flatnonzero(colors == color)
        titles = [f"{client_name(ids[each])}, {names[each]}" for each in own]
        group = names[own[0]] if len({names[each] for each in own}) == 1 else "alone in their clusters"
        panel.scatter(*points[own].T, panels.shade(int(color)), radius=radius, titles=titles, title=f"{group}: {len(own):,}")
    return panel
