"""Pictures one by one, each with words above it: labels, or what a model answered."""

from collections.abc import Sequence

import numpy as np

from tffcl.lab.reporting import style
from tffcl.lab.reporting.style import ReportFigure

_RIGHT, _WRONG = style.color(2), style.color(1)


def titled_pictures(
    images: np.ndarray, titles: Sequence[str], *, colors: Sequence[str] | None = None, columns: int = 12
) -> ReportFigure:
    """Draws pictures in rows, each with its title above it.

    Args:
      images: uint8 [n, h, w, c] with c = 1 or 3.
      titles: One a picture.
      colors: Of the titles; default black.
      columns: How many pictures stand in a row.
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
    """Draws pictures with what a model takes them for, and in another colour what they are where it is wrong.

    Args:
      images: uint8 [n, h, w, c].
      answers: [n], the model's labels.
      labels: [n], the true labels.
      class_names: Name of each label; default its number.
      columns: How many pictures stand in a row.
    """
    answers, labels = np.asarray(answers), np.asarray(labels)

    def name(label):
        return str(label) if class_names is None else class_names[label]

    titles = [
        name(answer) if answer == label else f"{name(answer)} (is {name(label)})"
        for answer, label in zip(answers, labels, strict=True)
    ]
    colors = [_RIGHT if right else _WRONG for right in answers == labels]
    return titled_pictures(images, titles, colors=colors, columns=columns)
