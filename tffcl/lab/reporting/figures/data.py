"""Figures of data: the labels that clients hold, examples of their data, and a model's answers to them."""

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter

from tffcl.display import counted
from tffcl.lab.reporting import ordering, style
from tffcl.lab.reporting.style import ReportFigure
from tffcl.runs.run_files import RunFiles


def labels_figure(run: RunFiles) -> ReportFigure:
    """Draws the labels that clients hold, ordered by the clusters found, with the true groups at the side."""
    clients = run.clients
    return label_map(
        clients.label_counts, clients.cluster, true_groups=clients.true_groups, client_ids=clients.client_id,
        label_names=run.label_names,
    )  # fmt: skip


def mixtures_figure(run: RunFiles) -> ReportFigure | None:
    """Draws the mixture of models that each client uses, ordered by the model with the largest weight; None if each
    client uses a single model."""
    clients = run.clients
    if not clients.mixture.shape[1]:
        return None
    models = [str(row) for row in range(clients.mixture.shape[1])]
    most = clients.mixture.argmax(axis=1)  # with soft groups, this may differ from the client's cluster
    return label_map(
        clients.mixture, most, true_groups=clients.true_groups, client_ids=clients.client_id, label_names=models,
        group_title="model", column_title="model", share_of="weight in the client's mixture",
    )  # fmt: skip


def label_histograms(
    label_counts: np.ndarray, groups: Sequence | None = None, **named: Sequence | None
) -> ReportFigure:
    """Draws the labels that clients hold, with the totals of labels above and of clients at the right.

    Args:
      label_counts: [N, C], the number of examples of each client and class.
      groups: [N], the groups by which clients are ordered; default by their most frequent label.
      **named: `client_ids` and `label_names`, as in `label_map`.
    """
    return label_map(label_counts, groups, group_title="group", margins=True, **named)


def label_map(
    label_counts: np.ndarray,
    groups: Sequence | None = None,
    *,
    true_groups: Sequence | None = None,
    client_ids: Sequence | None = None,
    label_names: Sequence[str] | None = None,
    group_title: str = "cluster",
    margins: bool = False,
    column_title: str = "label",
    share_of: str = "share of the client's examples",
) -> ReportFigure:
    """Draws the share of each label in the data of each client, or of each model in its mixture.

    Args:
      label_counts: [N, C], the number of examples of each client and class.
      groups: [N], the groups by which clients are ordered first.
      true_groups: [N], drawn at the side in colours.
      client_ids: [N], names; default numbers.
      label_names: [C], names of the labels; default numbers.
      group_title: The name of the kind of `groups`.
      margins: Whether to draw the totals above and at the right.
      column_title: The title of the columns.
      share_of: The meaning of the colours.
    """
    counts = np.asarray(label_counts, float)
    order = _label_order(counts, groups, true_groups)
    figure, panels = _lay_out(counts.shape, true_groups is not None, margins)
    main, right = panels["main"], panels.get("right")
    names = list(map(str, label_names or range(counts.shape[1])))
    image = _draw_shares(main, counts[order], names)
    main.set_xlabel(column_title)
    columns = [f"{column_title} {each}" for each in names]
    figure.matrices[image] = style.Matrix(_row_names(order, client_ids, groups, group_title), columns, " %")
    figure.colorbar(
        image, ax=list(panels.values()), location="bottom", shrink=0.7, aspect=30, format=PercentFormatter(decimals=0),
        label=share_of + "; empty: 0" * bool((counts == 0).any()),
    )  # fmt: skip
    if right is not None:
        _draw_totals(panels["above"], right, counts[order])
    left = main
    if true_groups is not None:
        left = panels["strip"]
        _draw_strip(left, np.asarray(true_groups)[order])
    if groups is not None:
        _draw_groups(main, left, np.asarray(groups)[order], group_title)
    else:
        left.set_ylabel("clients")
    return figure


def sample_pictures(
    images: Sequence[np.ndarray], row_titles: Sequence[str], labels: Sequence[Sequence] | None = None
) -> ReportFigure:
    """Draws rows of pictures.

    Args:
      images: For each row, uint8 [m, h, w, c] with c = 1 or 3; rows may differ in m, h and w.
      row_titles: The title beside each row.
      labels: For each row, the m texts below its pictures; None for no texts.
    """
    most = max(len(row) for row in images)
    figure = style.new_figure(1.5 + 0.85 * max(most, 4), 0.3 + (0.9 if labels is None else 1.1) * len(images))
    all_axes = figure.subplots(len(images), 1, squeeze=False)[:, 0]
    below = [[]] * len(images) if labels is None else labels
    for axes, row, title, words in zip(all_axes, images, row_titles, below, strict=True):
        axes.imshow(style.beside(np.asarray(row), most), interpolation="nearest")
        width = np.shape(row)[2]
        axes.set(yticks=[])
        axes.set_xticks([place * (width + 1) + (width - 1) / 2 for place in range(len(words))], list(map(str, words)))
        axes.tick_params(axis="x", length=0, pad=1)
        axes.spines[:].set_visible(False)
        axes.set_ylabel(style.shorten(title, 24), rotation=0, ha="right", va="center", labelpad=6)
    return figure


def titled_pictures(
    images: np.ndarray, titles: Sequence[str], *, colors: Sequence[str] | None = None, columns: int = 12
) -> ReportFigure:
    """Draws pictures in rows, each with its title above it.

    Args:
      images: uint8 [n, h, w, c] with c = 1 or 3.
      titles: One title for each picture.
      colors: The colours of the titles; default black.
      columns: The number of pictures in a row.
    """
    images = np.asarray(images)
    columns = max(1, min(columns, len(images)))
    rows = max(1, -(-len(images) // columns))
    figure = style.new_figure(0.85 * columns, 1.15 * rows)
    all_axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in all_axes:
        axes.set_axis_off()
    shades = colors if colors is not None else ["black"] * len(images)
    for axes, image, title, shade in zip(all_axes, images, titles, shades):
        axes.imshow(image.squeeze(-1) if image.shape[-1] == 1 else image, cmap="gray", vmin=0, vmax=255)
        axes.set_title(title, fontsize=10, color=shade, pad=3)
    return figure


def answers_figure(
    images: np.ndarray,
    answers: Sequence[int],
    labels: Sequence[int],
    class_names: Sequence[str] | None = None,
    *,
    columns: int = 12,
) -> ReportFigure:
    """Draws pictures with a model's answers; wrong answers have another colour and show the true label, too.

    Args:
      images: uint8 [n, h, w, c].
      answers: [n], the model's labels.
      labels: [n], the true labels.
      class_names: The name of each label; default its number.
      columns: The number of pictures in a row.
    """
    answers, labels = np.asarray(answers), np.asarray(labels)

    def name(label):
        return str(label) if class_names is None else class_names[label]

    titles = [
        name(answer) if answer == label else f"{name(answer)} (is {name(label)})"
        for answer, label in zip(answers, labels, strict=True)
    ]
    colors = [style.color(2) if right else style.color(1) for right in answers == labels]
    return titled_pictures(images, titles, colors=colors, columns=columns)


def _label_order(counts: np.ndarray, groups, true_groups) -> np.ndarray:
    """The order of clients by group, then true group, then their most frequent label; both groups may be None."""
    given = [ordering.ranks(each) for each in (groups, true_groups) if each is not None]
    main = counts.argmax(axis=1)
    share = counts.max(axis=1) / np.maximum(counts.sum(axis=1), 1)
    return np.lexsort((-share, main, *reversed(given)))


def _row_names(order: np.ndarray, client_ids: Sequence | None, groups: Sequence | None, group_title: str) -> list[str]:
    names = [style.client_name(each if client_ids is None else client_ids[each]) for each in order]
    if groups is None:
        return names
    return [
        f"{name}, {group_title} {ordering.cluster_name(groups[each])}" for name, each in zip(names, order, strict=True)
    ]


def _lay_out(shape: tuple[int, int], strip: bool, margins: bool) -> tuple[ReportFigure, dict[str, Axes]]:
    """Returns a figure with the axes "main" and, if requested, "strip" at its left, "above" and "right"."""
    clients, classes = shape
    height = float(np.clip(2.6 + 0.09 * clients, 3.6, 7)) + (0.9 if margins else 0)
    width = float(np.clip(5.5 + 0.09 * classes, 6.5, 10.5)) + 1.2 if margins else style.WIDTH
    figure = style.new_figure(width, height)
    widths = {"strip": 0.3} if strip else {}
    widths |= {"main": 8} | ({"right": 1.8} if margins else {})
    grid = figure.add_gridspec(
        1 + margins, len(widths), width_ratios=list(widths.values()), height_ratios=[1, 5] if margins else None
    )
    panels = {name: figure.add_subplot(grid[-1, place]) for place, name in enumerate(widths)}
    if margins:
        panels["above"] = figure.add_subplot(grid[0, list(widths).index("main")])
    return figure, panels


def _draw_shares(axes: Axes, counts: np.ndarray, names: Sequence[str]) -> AxesImage:
    totals = counts.sum(axis=1, keepdims=True)
    shares = np.ma.masked_equal(100 * counts / np.maximum(totals, 1), 0)
    # Labels that a client does not hold are transparent, so that even the smallest share differs from none.
    shades = colormaps["viridis_r"].with_extremes(bad=(1, 1, 1, 0))
    greatest = float(shares.max()) if shares.count() else 100.0
    image = axes.imshow(shares, cmap=shades, aspect="auto", vmin=0, vmax=greatest, interpolation="nearest")
    axes.set(yticks=[])
    places = range(0, len(names), max(1, -(-len(names) // 12)))
    shown = [style.shorten(names[each], 8) for each in places]
    axes.set_xticks(places, shown, rotation=90 if max(map(len, shown), default=0) > 3 else 0)
    return image


def _draw_strip(axes: Axes, names: np.ndarray) -> None:
    """Draws the true groups as colours, with a legend if there are enough colours for all groups."""
    places = ordering.ranks(names)
    shades = {}
    for block in ordering.blocks(places):
        name = ordering.cluster_name(names[block.start])
        shades[block.name] = name, style.GREY if name == "none" else style.color(block.name)
        (bar,) = axes.barh(block.middle, 1, block.size, color=shades[block.name][1])
        style.say(bar, f"true group {name}: {counted(np.sum(places == block.name), 'client')}")
    axes.set(xticks=[], yticks=[], xlim=(0, 1), ylim=(len(names) - 0.5, -0.5))
    axes.spines[:].set_visible(False)
    if len(shades) <= len(style.COLORS):
        patches = [Patch(color=shade, label=style.shorten(name)) for _, (name, shade) in sorted(shades.items())]
        title = "true group (colours at the left)"
        style.legend_below(axes.figure, min(len(patches), 6), handles=patches, title=title)
    else:
        axes.set_xticks([0.5], ["true group"], rotation=90)
        axes.tick_params(length=0)


def _draw_groups(main: Axes, left: Axes, names: np.ndarray, title: str) -> None:
    """Draws lines between the groups, and names them at the left."""
    stretches = ordering.blocks(names)
    for block in stretches[1:] if len(stretches) < len(names) else []:
        main.axhline(block.start - 0.5, color="black", linewidth=1.2 if len(stretches) <= 30 else 0.5)
    places = [each.middle for each in stretches]
    kept = style.spread(places, [each.size for each in stretches], len(names) / 30)
    texts = [f"{style.shorten(ordering.cluster_name(stretches[each].name))} ({stretches[each].size})" for each in kept]
    left.set_yticks([places[each] for each in kept], texts, fontsize=9)
    left.tick_params(axis="y", length=0)
    left.set_ylabel(f"{title} (clients)")


def _draw_totals(above: Axes, right: Axes, counts: np.ndarray) -> None:
    clients, classes = counts.shape
    above.bar(range(classes), counts.sum(axis=0), color=style.GREY, width=0.85)
    above.set(ylabel="examples", xlim=(-0.5, classes - 0.5), xticks=[])
    right.stairs(
        counts.sum(axis=1), np.arange(clients + 1) - 0.5, orientation="horizontal", fill=True, color=style.GREY
    )
    right.set(xlabel="examples\nof the client", ylim=(clients - 0.5, -0.5), yticks=[])
    right.xaxis.set_major_locator(MaxNLocator(2))
    style.tidy(above, grid=None)
    style.tidy(right, grid=None)
