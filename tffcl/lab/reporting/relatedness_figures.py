"""Pictures of what FLT groups the clients by: who is related to whom (FLT Fig. 2, 3), and the centres in UMAP's map."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from scipy.cluster import hierarchy

from tffcl.lab.reporting import ordering, style
from tffcl.lab.reporting.style import ReportFigure

_RELATED, _UNRELATED = "#2b3a55", "#ffffff"
_LOST = "#c4c4c4"
_MARKERS = ("o", "^", "s", "D")
_MOST_NAMED_CLIENTS = 32
_MOST_NAMED_GROUPS = 16


def relatedness_figure(
    relatedness: np.ndarray,
    labels: Sequence[int],
    merges: np.ndarray,
    *,
    client_ids: Sequence | None = None,
) -> ReportFigure:
    """Draws the relatedness matrix as it came, ordered by the tree, and flattened to clusters (FLT Fig. 3).

    The third panel shows what the clusters make of the relations: those kept have the full colour of their cluster,
    those between members that were not related a pale one, and those lost, between clusters, are grey.

    Args:
      relatedness: [N, N], 0 and 1; see `clustering.taskonomy.relate`.
      labels: [N], the cluster of each client.
      merges: SciPy linkage matrix [N-1, 4], see `clustering.taskonomy.flatten`.
      client_ids: [N], names, written when there are few.
    """
    related = np.asarray(relatedness) != 0
    labels, merges = np.asarray(labels), np.asarray(merges, float).reshape(-1, 4)
    count = len(related)
    order = hierarchy.leaves_list(merges) if len(merges) else np.arange(count)
    figure = style.new_figure(13.0, 5.6)
    raw, ordered, flat = figure.subplots(1, 3)
    sorted_related = related[np.ix_(order, order)]
    stretches = ordering.blocks(labels[order])
    places = ordering.ranks(labels)
    shades = [style.color(places[order[block.start]]) for block in stretches]
    together = labels[order][:, None] == labels[order]
    _draw_matrix(raw, np.where(related[..., None], to_rgb(_RELATED), to_rgb(_UNRELATED)))
    _draw_matrix(ordered, np.where(sorted_related[..., None], to_rgb(_RELATED), to_rgb(_UNRELATED)))
    _draw_matrix(flat, _flattened(sorted_related, together, style_of=places[order]))
    for axes in (ordered, flat):
        _draw_borders(axes, stretches, shades)
    _draw_tree(ordered.inset_axes((0, 1.02, 1, 0.3)), merges, order, places)
    _name_clients(raw, np.arange(count), client_ids)
    _name_clients(ordered, order, client_ids)
    _name_clusters(flat, stretches, count)
    off = ~np.eye(count, dtype=bool)
    clusters = len(np.unique(labels))
    raw.set_xlabel(f"(a) as they came: {count:,} clients,\n{_share(related, off)} of all pairs related")
    ordered.set_xlabel("(b) ordered by the tree of Ward's method\non the rows")
    flat.set_xlabel(
        f"(c) flattened to {clusters:,} cluster{'s' * (clusters != 1)}: {_share(~sorted_related, together & off)} of "
        f"the pairs\nwithin are new, {_share(~together, sorted_related & off)} of the relations are lost"
    )
    return figure


def centres_figure(
    points: np.ndarray,
    mask: np.ndarray,
    labels: Sequence,
    true_groups: Sequence | None = None,
) -> ReportFigure:
    """Draws the centres of all clients in UMAP's map, in the colours of their clients' clusters.

    Args:
      points: [N, k, u], see `clustering.taskonomy.fit_map`; of more than two dimensions the first two are drawn.
      mask: Bool [N, k], which centres exist.
      labels: [N], the cluster of each client.
      true_groups: [N], the group that each client really belongs to, for a second panel; None if unknown.
    """
    points, mask = np.asarray(points, float), np.asarray(mask, bool)
    plane = np.zeros((mask.sum(), 2))
    plane[:, : points.shape[2]] = points[mask][:, :2]
    owner = np.nonzero(mask)[0]
    panels = [("cluster", np.asarray(labels))]
    panels += [] if true_groups is None else [("group", np.asarray(true_groups))]
    figure = style.new_figure(0.4 + 5.4 * len(panels), 6.2)
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    limits = _square(plane)
    for axes, (kind, names) in zip(all_axes, panels, strict=True):
        _draw_points(axes, plane, names[owner])
        _draw_key(axes, names, kind)
        number = len(np.unique(names))
        title = f"{number:,} {kind}{'s' * (number != 1)}"
        axes.set_title(title if kind == "cluster" else f"{title} that clients really belong to", fontsize=11)
        # A square of one scale: distances have a meaning in the map.
        axes.set(xlim=limits[0], ylim=limits[1], xticks=[], yticks=[], aspect="equal")
    figure.suptitle(f"{len(plane):,} centres of {len(points):,} clients in UMAP's map", fontsize=12)
    return figure


def _flattened(related: np.ndarray, together: np.ndarray, style_of: np.ndarray) -> np.ndarray:
    """Returns the picture [N, N, 3] of the third panel; `style_of` [N] are the numbers of the clients' colours."""
    full = np.array([to_rgb(style.color(each)) for each in style_of])
    image = np.ones((*related.shape, 3))
    image[related] = to_rgb(_LOST)
    rows, columns = np.nonzero(together)
    strength = np.where(related[rows, columns], 1.0, 0.45)[:, None]
    image[rows, columns] = strength * full[rows] + (1 - strength)
    return image


def _draw_matrix(axes: Axes, image: np.ndarray) -> None:
    # Colours are mixed where clients are finer than pixels; without this, single relations come and go with the size.
    axes.imshow(image, interpolation="antialiased", interpolation_stage="rgba")
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

    Not by SciPy's `dendrogram`, which recurses as deep as the tree: 1,000 alike clients can be a tree 1,000 deep.
    """
    count = len(order)
    across, height, cluster = np.empty(2 * count - 1), np.zeros(2 * count - 1), np.full(2 * count - 1, -1)
    across[order] = np.arange(count)
    cluster[:count] = places
    lines, shades = [], []
    for node, (left, right, top, _) in enumerate(merges, start=count):
        left, right = int(left), int(right)
        start, stop = across[left], across[right]
        lines.append([(start, height[left]), (start, top), (stop, top), (stop, height[right])])
        across[node], height[node] = (start + stop) / 2, top
        cluster[node] = cluster[left] if cluster[left] == cluster[right] else -1
        shades.append(style.color(cluster[node]))
    axes.add_collection(LineCollection(lines, colors=shades, linewidths=1.3 if count <= 100 else 0.9))
    axes.set(xlim=(-0.5, count - 0.5), ylim=(0, 1.05 * height.max() or 1), xticks=[])
    axes.set_ylabel("height", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.locator_params(axis="y", nbins=4)
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def _name_clients(axes: Axes, order: np.ndarray, client_ids: Sequence | None) -> None:
    if len(order) > _MOST_NAMED_CLIENTS:
        return
    names = [style.shorten(each if client_ids is None else client_ids[each], 10) for each in order]
    axes.set_yticks(range(len(order)), names, fontsize=7)
    axes.tick_params(length=0)


def _name_clusters(axes: Axes, stretches: Sequence[ordering.Block], count: int) -> None:
    kept = style.spread([each.middle for each in stretches], [each.size for each in stretches], count / 24)
    names = [f"{ordering.cluster_name(stretches[each].name)} ({stretches[each].size})" for each in kept]
    axes.yaxis.tick_right()
    axes.set_yticks([stretches[each].middle for each in kept], names, fontsize=8)
    axes.tick_params(length=0)
    axes.set_title("clusters (clients)", loc="right", fontsize=8)


def _share(what: np.ndarray, among: np.ndarray) -> str:
    """Says which percentage of the entries `among` has the property."""
    total = np.count_nonzero(among)
    return f"{100 * np.count_nonzero(what & among) / total:.3g}%" if total else "0%"


def _look(place: int) -> tuple[str, str]:
    """Returns colour and marker of a group; 32 are different."""
    return style.color(place), _MARKERS[place // len(style.COLORS) % len(_MARKERS)]


def _draw_points(axes: Axes, plane: np.ndarray, names: np.ndarray) -> None:
    places = ordering.ranks(names)
    colors = np.array([to_rgb(_look(place)[0]) for place in places]).reshape(-1, 3)
    markers = np.array([_look(place)[1] for place in places])
    size = float(np.clip(25_000 / max(1, len(plane)), 7, 40))
    # Mixed, so that no group covers another where they lie on one place.
    mixed = np.random.default_rng(0).permutation(len(plane))
    for marker in _MARKERS:
        some = mixed[markers[mixed] == marker]
        if len(some):
            axes.scatter(*plane[some].T, s=size, c=colors[some], marker=marker, alpha=0.75, linewidths=0)


def _draw_key(axes: Axes, names: np.ndarray, kind: str) -> None:
    groups = ordering.blocks(names[ordering.by_group(names)])
    if len(groups) > _MOST_NAMED_GROUPS:
        return
    entries = []
    for place, block in enumerate(groups):
        shade, marker = _look(place)
        words = f"{kind} {ordering.cluster_name(block.name)} ({block.size})"
        entries.append(Line2D([], [], color=shade, marker=marker, linestyle="", label=style.shorten(words, 24)))
    axes.legend(handles=entries, loc="upper center", bbox_to_anchor=(0.5, -0.01), ncols=4, frameon=False, fontsize=8)


def _square(plane: np.ndarray) -> list[tuple[float, float]]:
    """Returns the limits of x and y of the least square around the points, and a margin."""
    low, high = (plane.min(axis=0), plane.max(axis=0)) if len(plane) else (np.zeros(2), np.zeros(2))
    half = 0.56 * float((high - low).max()) or 1.0
    return [(middle - half, middle + half) for middle in (low + high) / 2]
