"""Figures of matrices between clients: proximities, relatedness (FLT Fig. 2, 3), confusions, histograms of pairs."""

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from scipy.cluster import hierarchy

from tffcl.display import counted
from tffcl.lab.reporting import ordering, style
from tffcl.lab.reporting.style import ReportFigure

_RELATED, _LOST = "#4678b4", "#a0a0a0"
_MOST_NAMED_CLIENTS = 32
_MOST_WRITTEN = 10  # clients whose values are written into the matrix
_NOTHING = (255, 255, 255, 0)  # transparent
_BINS = 80
_MOST_CONFUSED, _MOST_NAMED_CLASSES = 6, 20  # clusters whose confusions are drawn, and classes that are named


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

    Dark means similar, both for distances and for similarities. If there are few clients, the values are written.

    Args:
      proximity: [N, N].
      labels: [N], the cluster of each client; None before there are clusters.
      client_ids: [N], names, written if there are few clients.
      unit: The unit of the values.
      measure: The name of the proximity measure.
      merges: SciPy linkage matrix; orders the clients within a cluster.
    """
    proximity = np.asarray(proximity, float)
    count = len(proximity)
    groups = np.zeros(count, int) if labels is None else np.asarray(labels)
    order = ordering.by_cluster(groups, merges)
    figure = style.new_figure(style.WIDTH, 4.6)
    axes = figure.subplots()
    low, high = _value_range(proximity)
    shades = colormaps["viridis" if not _is_similarity(proximity) else "viridis_r"]
    image = axes.imshow(
        proximity[np.ix_(order, order)], cmap=shades.with_extremes(bad=(1, 1, 1, 0)), vmin=low, vmax=high
    )
    names = [style.client_name(each if client_ids is None else client_ids[each]) for each in order]
    figure.matrices[image] = style.Matrix(names, names, f" {unit}" if unit else "")
    label = textwrap.fill(f"{measure.replace('_', ' ')}{f' ({unit})' if unit else ''}; dark is alike", 48)
    figure.colorbar(image, ax=axes, location="bottom", shrink=0.7, aspect=30, label=label)
    stretches = ordering.blocks(groups[order])
    if labels is not None and 1 < len(stretches) < count:
        _draw_borders(axes, stretches, [style.COLORS[1]] * len(stretches))
    _name_axes(axes, stretches if labels is not None else [], client_ids, order)
    if count <= _MOST_WRITTEN:
        _write_values(axes, image)
    axes.set_title(_proximity_title(measure, count, len(stretches) if labels is not None else None), fontsize=10)
    return figure


def relatedness_figure(
    relatedness: np.ndarray, labels: Sequence[int], merges: np.ndarray, *, client_ids: Sequence | None = None
) -> ReportFigure:
    """Draws the relatedness matrix in the clients' order, ordered by the tree, and flattened to clusters (FLT Fig. 3).

    The third panel compares relations with clusters. Relations within a cluster have its full colour, members that are
    not related have a pale colour, and relations that are lost, between clusters, are grey.

    Args:
      relatedness: [N, N], 0 and 1; see `clustering.taskonomy.relate`.
      labels: [N], the cluster of each client.
      merges: SciPy linkage matrix [N-1, 4], see `clustering.taskonomy.flatten`.
      client_ids: [N], names, written if there are few clients.
    """
    related = np.asarray(relatedness) != 0
    labels, merges = np.asarray(labels), np.asarray(merges, float).reshape(-1, 4)
    count = len(related)
    order = hierarchy.leaves_list(merges) if len(merges) else np.arange(count)
    figure = style.new_panels(3, 5.4)
    raw, ordered, flat = figure.panels
    sorted_related = related[np.ix_(order, order)]
    stretches = ordering.blocks(labels[order])
    places = ordering.ranks(labels)
    shades = [style.color(places[order[block.start]]) for block in stretches]
    together = labels[order][:, None] == labels[order]
    names = [style.client_name(each if client_ids is None else client_ids[each]) for each in range(count)]
    kinds = {_RELATED: "related"}
    _draw_matrix(raw, np.where(related[..., None], _bytes(_RELATED), _NOTHING), kinds, names)
    names = [names[each] for each in order]
    _draw_matrix(ordered, np.where(sorted_related[..., None], _bytes(_RELATED), _NOTHING), kinds, names)
    _draw_matrix(flat, *_flattened(sorted_related, together, places[order]), names)
    for axes in (ordered, flat):
        _draw_borders(axes, stretches, shades)
    _draw_tree(ordered.inset_axes((0, 1.02, 1, 0.3)), merges, order, places)
    _name_clients(raw, np.arange(count), client_ids)
    _name_clients(ordered, order, client_ids)
    _name_clusters(flat, stretches, count)
    off = ~np.eye(count, dtype=bool)
    clusters = len(np.unique(labels))
    raw.set_xlabel(f"(a) as they came: {counted(count, 'client')},\n{_share(related, off)} of all pairs related")
    ordered.set_xlabel("(b) ordered by the tree of Ward's method\non the rows")
    flat.set_xlabel(
        f"(c) flattened to {counted(clusters, 'cluster')}: {_share(~sorted_related, together & off)} of "
        f"the pairs\nwithin are new, {_share(~together, sorted_related & off)} of the relations are lost"
    )
    return figure


def confusion_figure(counts: Mapping[int, np.ndarray], names: Sequence[str] = ()) -> ReportFigure:
    """Draws the confusion matrix of each cluster in a panel, as shares of the examples of each label.

    Args:
      counts: Maps clusters to int [C, C], the test examples of a label (row) by the answered label (column).
      names: The names of the classes; default their numbers.
    """
    drawn = list(counts.items())[:_MOST_CONFUSED]
    figure = style.new_panels(len(drawn), 3.4)
    for axes, (cluster, found) in zip(figure.panels, drawn):
        shares = found / np.maximum(found.sum(axis=1, keepdims=True), 1)
        classes = list(map(str, names if len(names) == len(found) else range(len(found))))
        image = axes.imshow(100 * shares, cmap="Blues", vmin=0, vmax=100)
        figure.matrices[image] = style.Matrix(
            [f"label {each}" for each in classes], [f"answered {each}" for each in classes], " %"
        )
        places = range(0, len(found), -(-len(found) // _MOST_NAMED_CLASSES))
        shown = [style.shorten(classes[each], 8) for each in places]
        axes.set_xticks(places, shown, fontsize=8, rotation=90 if max(map(len, shown)) > 2 else 0)
        axes.set_yticks(places, shown, fontsize=8)
        right = np.trace(found) / max(found.sum(), 1)
        axes.set_title(f"cluster {ordering.cluster_name(cluster)}: {100 * right:.1f} % right", fontsize=10)
        axes.set(xlabel="answered", ylabel="label")
    return figure


def pairs_figure(
    proximity: np.ndarray,
    truth: Sequence | np.ndarray | None = None,
    *,
    threshold: float | None = None,
    unit: str = "",
    measure: str = "",
) -> ReportFigure:
    """Draws the histogram of the proximities of all pairs of clients.

    If the two colours do not overlap, a threshold between them finds the true groups.

    Args:
      proximity: [N, N].
      truth: [N], the true groups; None if they are unknown.
      threshold: Drawn as a line.
      unit: The unit of the proximity; "1 - cosine" has a second axis with the cosines.
      measure: The name of the proximity measure.
    """
    above = np.triu_indices(len(proximity), 1)
    pairs = np.asarray(proximity)[above]
    parts = [("all pairs", np.ones(len(pairs), bool), style.GREY)]
    if truth is not None:
        same = np.equal.outer(np.asarray(truth), np.asarray(truth))[above]
        parts = [("within true groups", same, style.color(0)), ("across true groups", ~same, style.color(1))]
    figure = style.new_figure(7.0, 4.0)
    axes = figure.subplots()
    edges = np.histogram_bin_edges(pairs, _BINS) if len(pairs) else np.linspace(0, 1, _BINS)
    for name, chosen, shade in parts:
        # Shares, because there are more pairs across groups than within groups.
        shares = np.full(np.count_nonzero(chosen), 100 / max(1, np.count_nonzero(chosen)))
        axes.hist(pairs[chosen], edges, weights=shares, color=shade, alpha=0.6, label=f"{name} ({len(shares):,})")
    if threshold is not None:
        axes.axvline(threshold, color="black", linestyle="--", linewidth=1.2, label=f"threshold {threshold:.4g}")
    axes.set(xlabel=f"{measure} ({unit})" if unit else measure, ylabel="% of the pairs of a kind")
    if unit == "1 - cosine":
        axes.secondary_xaxis("top", functions=(_complement, _complement)).set_xlabel("cosine")
    style.legend_below(figure, 3)
    style.tidy(axes)
    return figure


def _value_range(proximity: np.ndarray) -> tuple[float, float]:
    """The range of the values between different clients; with the diagonal, there would be too little contrast."""
    different = ~np.eye(len(proximity), dtype=bool)
    for values in (proximity[different], proximity):
        values = values[np.isfinite(values)]
        if values.size and values.min() < values.max():
            return float(values.min()), float(values.max())
    return 0.0, 1.0


def _is_similarity(proximity: np.ndarray) -> bool:
    """Whether a matrix between clients holds similarities rather than distances."""
    between = proximity[~np.eye(len(proximity), dtype=bool)]
    return bool(between.size) and np.nanmean(np.diag(proximity)) > np.nanmean(between)


def _flattened(related: np.ndarray, together: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, dict]:
    """The third panel, uint8 [N, N, 4], and the meaning of its colours; `numbers` [N] are those of clients' colours."""
    image = np.where(related[..., None], _bytes(_LOST), _NOTHING)
    kinds = {_LOST: "related, but parted by the clusters"}
    for number in np.unique(numbers):
        own = together & (numbers == number)[:, None]
        full = _bytes(style.color(number))
        pale = (*((part + 2 * 255) // 3 for part in full[:3]), 255)
        image[own & related], image[own & ~related] = full, pale
        kinds |= {
            style.color(number): "related, in one cluster",
            f"#{bytes(pale[:3]).hex()}": "in one cluster, but not related",
        }
    return image, kinds


def _bytes(color: str) -> tuple[int, int, int, int]:
    return tuple(round(255 * part) for part in to_rgba(color))


def _draw_matrix(axes: Axes, image: np.ndarray, kinds: Mapping[str, str], names: Sequence[str]) -> None:
    # Colours mix if clients are smaller than pixels; otherwise the size would decide which single relations are seen.
    drawn = axes.imshow(image.astype(np.uint8), interpolation="antialiased", interpolation_stage="rgba")
    axes.figure.matrices[drawn] = style.Matrix(names, names, kinds=kinds, nothing="not related")
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_color(style.GREY)


def _draw_borders(axes: Axes, stretches: Sequence[ordering.Block], shades: Sequence[str]) -> None:
    width = 1.6 if len(stretches) <= 30 else 0.8
    for block, shade in zip(stretches, shades, strict=True):
        corner = (block.start - 0.5, block.start - 0.5)
        frame = Rectangle(corner, block.size, block.size, fill=False, color=shade, linewidth=width, clip_on=False)
        axes.add_patch(frame)


def _draw_tree(axes: Axes, merges: np.ndarray, order: np.ndarray, places: np.ndarray) -> None:
    """Draws the merges above the columns of the matrix below; branches within a cluster have its colour.

    SciPy's `dendrogram` is not used, because it recurses as deep as the tree, which equal clients can make 1,000 deep.
    """
    count = len(order)
    across, height, lines = np.empty(2 * count - 1), np.zeros(2 * count - 1), []
    across[order] = np.arange(count)
    for node, (left, right, top, _) in enumerate(merges, start=count):
        left, right = int(left), int(right)
        start, stop = across[left], across[right]
        lines.append([(start, height[left]), (start, top), (stop, top), (stop, height[right])])
        across[node], height[node] = (start + stop) / 2, top
    shades = [style.color(cluster) for cluster in ordering.node_clusters(merges, places)[count:]]
    axes.add_collection(LineCollection(lines, colors=shades, linewidths=1.3 if count <= 100 else 0.9))
    axes.set(xlim=(-0.5, count - 0.5), ylim=(0, 1.05 * height.max() or 1), xticks=[])
    axes.set_ylabel("height", fontsize=9)
    axes.tick_params(labelsize=9)
    axes.locator_params(axis="y", nbins=4)
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def _name_clients(axes: Axes, order: np.ndarray, client_ids: Sequence | None) -> None:
    if len(order) > _MOST_NAMED_CLIENTS:
        return
    names = [style.shorten(each if client_ids is None else client_ids[each], 10) for each in order]
    axes.set_yticks(range(len(order)), names, fontsize=9)
    axes.tick_params(length=0)


def _name_clusters(axes: Axes, stretches: Sequence[ordering.Block], count: int) -> None:
    kept = _named(stretches, count)
    names = [f"{ordering.cluster_name(stretches[each].name)} ({stretches[each].size})" for each in kept]
    axes.yaxis.tick_right()
    axes.set_yticks([stretches[each].middle for each in kept], names, fontsize=9)
    axes.tick_params(length=0)
    axes.set_title("clusters (clients)", loc="right", fontsize=9)


def _share(what: np.ndarray, among: np.ndarray) -> str:
    """The percentage of the entries in `among` that are also in `what`."""
    total = np.count_nonzero(among)
    return f"{100 * np.count_nonzero(what & among) / total:.3g}%" if total else "0%"


def _write_values(axes: Axes, image: AxesImage) -> None:
    for (row, column), value in np.ndenumerate(np.asarray(image.get_array())):
        red, green, blue, _ = image.cmap(image.norm(value))
        dark = 0.3 * red + 0.6 * green + 0.1 * blue < 0.5
        axes.text(column, row, f"{value:.3g}", ha="center", va="center", color="white" if dark else "black", fontsize=9)


def _name_axes(axes: Axes, stretches: Sequence[ordering.Block], client_ids, order: np.ndarray) -> None:
    count = len(order)
    kept = [stretches[each] for each in _named(stretches, count)]
    places, names = [block.middle for block in kept], [ordering.cluster_name(block.name) for block in kept]
    axes.set_xticks(places, names, rotation=90 if max(map(len, names), default=0) > 3 else 0)
    axes.set_xlabel("cluster" if stretches else "clients")
    if client_ids is not None and count <= _MOST_NAMED_CLIENTS:
        axes.set_yticks(range(count), [style.shorten(client_ids[each]) for each in order], fontsize=9)
        axes.set_ylabel("client")
    else:
        axes.set_yticks(places, names)
        axes.set_ylabel("cluster" if stretches else "clients")
    axes.tick_params(length=0)


def _named(stretches: Sequence[ordering.Block], count: int) -> list[int]:
    """The stretches that have room for a name on an axis of `count` clients."""
    return style.spread([each.middle for each in stretches], [each.size for each in stretches], count / 20)


def _proximity_title(measure: str, clients: int, clusters: int | None) -> str:
    between = f"{measure[:1].upper()}{measure[1:]} between {counted(clients, 'client')}".replace("_", " ")
    found = "" if clusters is None else f", {counted(clusters, 'cluster')}"
    return textwrap.fill(between + found, 54)


def _complement(values):
    return 1 - np.asarray(values)
