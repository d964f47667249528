"""What all figures share: their class, colours and small manners of drawing."""

import io
import pathlib
from collections.abc import Hashable, Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Text

from tffcl.errors import printable
from tffcl.regular_files import write_bytes

DPI = 120
GREY = "#8a8a8a"
# Okabe and Ito's colours, which the colour-blind tell apart; Tol's wine for their yellow, which is faint on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#882255")
_DASHES = ("-", "--", ":", "-.")


class ReportFigure(Figure):
    """A figure that shows itself in a notebook, whether or not pyplot was imported there."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        FigureCanvasAgg(self)

    def _repr_png_(self) -> bytes:
        return to_png(self)


def new_figure(width: float, height: float) -> ReportFigure:
    """Returns an empty figure of a size in inches, which lays its parts out without overlaps."""
    return ReportFigure(figsize=(width, height), dpi=DPI, layout=ConstrainedLayoutEngine(w_pad=0.06, wspace=0.01))


def to_png(figure: Figure) -> bytes:
    """Returns the picture of a figure."""
    data = io.BytesIO()
    _take_literally(figure)
    # Without the metadata the same files give the same bytes, whatever matplotlib's version.
    figure.savefig(data, format="png", dpi=DPI, bbox_inches="tight", pad_inches=0.1, metadata={"Software": None})
    return data.getvalue()


def _take_literally(figure: Figure):
    """Names of clients and methods are no formulas, whatever dollar signs are in them."""
    for text in figure.findobj(Text):
        text.set_parse_math(False)


def to_bytes(figure: Figure, format: str) -> bytes:
    """Returns a figure as "svg" or "pdf", the same bytes each time."""
    data, dated = io.BytesIO(), {"svg": "Date", "pdf": "CreationDate"}[format]
    _take_literally(figure)
    with matplotlib.rc_context({"svg.hashsalt": "tffcl"}):
        figure.savefig(data, format=format, bbox_inches="tight", pad_inches=0.1, metadata={dated: None})
    return data.getvalue()


def save(figure: Figure, path: pathlib.Path) -> pathlib.Path:
    """Writes a figure as PNG, with the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, to_png(figure))
    return path


def color(index: int) -> str:
    """Returns the colour of the cluster, group or method with this number; they come again after eight."""
    return COLORS[index % len(COLORS)] if index >= 0 else GREY


def line_styles(names: Sequence[Hashable]) -> dict:
    """Returns keyword arguments for the line of each name; all different for 32 of them."""
    # The dash changes with the colour, so that a line which lies on another lets it be seen.
    return {
        name: {"color": color(index), "linestyle": _DASHES[(index + index // len(COLORS)) % len(_DASHES)]}
        for index, name in enumerate(names)
    }


def tidy(axes: Axes, grid: str | None = "y") -> None:
    """Takes the frame off where it says nothing, and draws a faint grid along one axis or "both"."""
    axes.spines[["top", "right"]].set_visible(False)
    if grid:
        axes.grid(axis=grid, color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)


def legend_below(figure: Figure, most: int, **look) -> None:
    """Writes the legend of a figure under its panels, in as many columns as there is room for, `most` at most."""
    for columns in range(most, 0, -1):
        legend = figure.legend(loc="outside lower center", ncols=columns, frameon=False, **look)
        if columns == 1 or legend.get_window_extent(figure.canvas.get_renderer()).width <= figure.bbox.width:
            return
        legend.remove()


def say_empty(axes: Axes, why: str) -> None:
    """Writes in an empty panel why it is empty."""
    axes.text(0.5, 0.5, why, ha="center", va="center", color=GREY, transform=axes.transAxes, wrap=True)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def shorten(text: object, length: int = 14) -> str:
    """Returns a name that fits an axis."""
    text = printable(str(text))
    return text if len(text) <= length else text[: length - 1] + "…"


def spread(positions: Sequence[float], sizes: Sequence[float], least: float) -> list[int]:
    """Returns which of the positions can carry a label, `least` apart at least; the largest come first."""
    kept: list[int] = []
    for index in sorted(range(len(positions)), key=lambda index: -sizes[index]):
        if all(abs(positions[index] - positions[other]) >= least for other in kept):
            kept.append(index)
    return sorted(kept)
