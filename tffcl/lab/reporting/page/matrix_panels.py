"""Panels of matrices: which labels clients hold, how far apart they are, who is related to whom."""

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import to_rgb
from scipy.cluster import hierarchy

from tffcl.lab.reporting import ordering, style
from tffcl.lab.reporting.clustering_figures import is_similarity, value_range
from tffcl.lab.reporting.data_figures import label_order
from tffcl.lab.reporting.page import panels, rasters
from tffcl.lab.reporting.page.panels import Axis, Panel, Scale, client_name
from tffcl.runs.run_files import Clustering, RunFiles

_MOST_ROWS, _MOST_PAIRS, _MOST_RELATED = 400, 200, 250  # clients that a raster tells apart
_ROOM = 14  # pixels between names of clusters
_RELATED, _LOST = (70, 120, 180), (160, 160, 160)


def labels_panel(run: RunFiles) -> Panel:
    """The share of each label in the data of each client, ordered by cluster, with the true groups at the side."""
    clients = run.clients
    truth = clients.true_cluster if np.any(clients.true_cluster != "") else None
    counts = clients.label_counts.astype(float)
    order = label_order(counts, clients.cluster, truth)
    shares = 100 * counts[order] / np.maximum(counts[order].sum(axis=1, keepdims=True), 1)
    shares[shares == 0] = np.nan
    greatest = float(np.nanmax(shares)) if np.any(~np.isnan(shares)) else 100.0
    count, classes = shares.shape
    shown, starts = rasters.pooled(shares, _MOST_ROWS)
    names = [
        f"{client_name(clients.client_id[order[start]])}, cluster {ordering.cluster_name(clients.cluster[order[start]])}"
        for start in starts
    ]
    height = int(np.clip(48 + 5 * count, 150, 420))
    stretches = ordering.blocks(clients.cluster[order])
    y = _block_axis(stretches, count, height, "cluster (clients)")
    x = Axis("label", -0.5, classes - 0.5, [(each, str(each)) for each in range(0, classes, max(1, -(-classes // 12)))])
    panel = Panel("", x, y, height=height, grid="", left=18 + 7 * max((len(text) for _, text in y.ticks), default=0))
    columns = [f"label {each}" for each in range(classes)]
    raster = rasters.of_matrix(shown, names, columns, low=0, high=greatest, unit="%", dark_is_low=False)
    panel.draw_raster(raster, Scale("0 %", f"{greatest:.0f} % of the client's examples", rasters.ramp(False), inverted=True))
    for block in stretches[1:] if len(stretches) < count else []:
        panel.segments([-0.5, classes - 0.5], [block.start - 0.5] * 2, "border")
    if truth is not None:
        places = ordering.ranks(truth)[order]
        for block in ordering.blocks(places):
            top, bottom = panel.down([block.start - 0.5, block.stop - 0.5])
            said = f"true group {ordering.cluster_name(truth[order[block.start]])}: {block.size} clients"
            at = {"x": panel.left - 8, "y": float(top), "width": 5, "height": float(bottom - top)}
            panel.add("rect", f"bar {panels.shade(places[block.start])}", at, title=said)
    return panel


def proximity_panel(found: Clustering) -> Panel:
    """The matrix between clients, ordered by cluster; frames are the clusters."""
    order = ordering.by_cluster(found.labels, found.merges)
    low, high = value_range(found.proximity)
    shown, starts = rasters.pooled(found.proximity[np.ix_(order, order)], _MOST_PAIRS)
    shown = rasters.pooled(shown.T, _MOST_PAIRS)[0].T
    names = [client_name(found.client_ids[order[start]]) for start in starts]
    unit = f" {found.unit}" if found.unit else ""
    panel = _square(found.labels[order], title=f"{len(order):,} clients")
    dark_is_low = not is_similarity(found.proximity)
    alike = (" (alike)", "") if dark_is_low else ("", " (alike)")
    scale = Scale(f"{panels.show(low)}{alike[0]}", f"{panels.show(high)}{unit}{alike[1]}", rasters.ramp(dark_is_low))
    raster = rasters.of_matrix(shown, names, names, low=low, high=high, unit=unit, dark_is_low=dark_is_low)
    panel.draw_raster(raster, scale)
    _frame(panel, ordering.blocks(found.labels[order]), len(order))
    return panel


def relatedness_panels(found: Clustering) -> list[Panel]:
    """The relatedness as it came, ordered by the tree, and flattened to clusters (FLT Fig. 3); none of many clients."""
    related, labels = np.asarray(found.relatedness) != 0, np.asarray(found.labels)
    count = len(related)
    if count > _MOST_RELATED:
        return []
    order = hierarchy.leaves_list(found.merges) if len(found.merges) else np.arange(count)
    says = ["not related", "related"]
    as_it_came = _square(None, count=count, title="As they came")
    names = [client_name(each) for each in found.client_ids]
    as_it_came.draw_raster(rasters.of_kinds(related, [None, _RELATED], names, says))
    ordered, flat = _square(labels[order], title="Ordered by the tree"), _square(labels[order], title="Flattened to clusters")
    sorted_names, sorted_related = [names[each] for each in order], related[np.ix_(order, order)]
    ordered.draw_raster(rasters.of_kinds(sorted_related, [None, _RELATED], sorted_names, says))
    flat.draw_raster(_flattened(sorted_related, labels[order], ordering.ranks(labels)[order], sorted_names))
    for panel in (ordered, flat):
        _frame(panel, ordering.blocks(labels[order]), count)
    return [as_it_came, ordered, flat]


def _flattened(related: np.ndarray, labels: np.ndarray, places: np.ndarray, names: Sequence[str]) -> rasters.Raster:
    """Relations kept in the colour of their cluster, new ones in a pale one, those lost in grey."""
    together = labels[:, None] == labels
    colors = len(style.COLORS)
    full = [tuple(round(255 * part) for part in to_rgb(style.color(each))) for each in range(colors)]
    pale = [tuple((part + 2 * 255) // 3 for part in color) for color in full]
    kinds = np.where(related, 1, 0)
    kinds = np.where(together, 2 + (places % colors)[:, None] + np.where(related, 0, colors), kinds)
    says = [
        "not related",
        "related, but parted by the clusters",
        *["related, in one cluster"] * colors,
        *["in one cluster"] * colors,
    ]
    return rasters.of_kinds(kinds, [None, _LOST, *full, *pale], names, says)


def _square(labels: np.ndarray | None, *, count: int = 0, title: str) -> Panel:
    """A square panel of clients by clients, with the names of the clusters at its sides."""
    count = count or len(labels)
    stretches = [] if labels is None else ordering.blocks(labels)
    y = _block_axis(stretches, count, 300, "cluster" if stretches else "", sizes=False)
    x = Axis("", -0.5, count - 0.5, y.ticks)
    panel = Panel(title, x, y, grid="")
    panel.height = panel.top + (panel.right - panel.left) + 22
    panel.bottom = panel.height - 22
    return panel


def _block_axis(stretches: Sequence[ordering.Block], count: int, height: int, label: str, *, sizes: bool = True) -> Axis:
    """A y axis of clients from top to bottom, which names the clusters that have room."""
    kept = style.spread([each.middle for each in stretches], [each.size for each in stretches], count * _ROOM / height)
    ticks = []
    for each in kept:
        block = stretches[each]
        name = style.shorten(ordering.cluster_name(block.name))
        ticks.append((block.middle, f"{name} ({block.size})" if sizes else name))
    return Axis(label, count - 0.5, -0.5, ticks)


def _frame(panel: Panel, stretches: Sequence[ordering.Block], count: int) -> None:
    for block in stretches if 1 < len(stretches) < count else []:
        start, stop = block.start - 0.5, block.stop - 0.5
        panel.box(start, stop, start, stop, "frame")
