"""A picture of angles between a few data sets, with the numbers in it."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.image import AxesImage

from tffcl.lab.reporting import style
from tffcl.lab.reporting.style import ReportFigure


def angles_figure(matrices: Mapping[str, np.ndarray], names: Sequence[str]) -> ReportFigure:
    """Draws matrices of angles side by side, on one scale from 0 to 90 degrees; dark stands for alike.

    Args:
      matrices: By title, each [N, N], degrees.
      names: Of the N sets.
    """
    side = float(np.clip(1.4 + 0.75 * len(names), 3.2, 8))
    figure = style.new_figure(len(matrices) * side + 1.6, side + 0.6)
    panels = figure.subplots(1, len(matrices), sharey=True, squeeze=False)[0]
    for axes, (title, matrix) in zip(panels, matrices.items(), strict=True):
        image = _draw(axes, np.asarray(matrix, float), names)
        axes.set_title(title, fontsize=11)
    figure.colorbar(image, ax=list(panels), label="degrees", ticks=range(0, 91, 15), shrink=0.85)
    return figure


def _draw(axes: Axes, matrix: np.ndarray, names: Sequence[str]) -> AxesImage:
    image = axes.imshow(matrix, cmap="viridis", vmin=0, vmax=90)
    shown = [style.shorten(name, 16) for name in names]
    axes.set_xticks(range(len(names)), shown, rotation=30, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(names)), shown)
    axes.tick_params(length=0)
    size = 10 if len(names) <= 8 else 7
    for (row, column), value in np.ndenumerate(matrix):
        # White on the dark half of the scale, black on the light one.
        shade = "black" if value > 55 else "white"
        text = "0" if row == column else f"{value:.1f}"
        axes.text(column, row, text, ha="center", va="center", color=shade, fontsize=size)
    return image
