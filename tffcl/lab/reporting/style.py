"""What all figures share: their class, colours, hover texts on the page, and small drawing functions."""

import contextlib
import dataclasses
import io
import pathlib
import re
import warnings
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Text
from matplotlib.ticker import LogLocator, NullFormatter

from tffcl.errors import printable
from tffcl.files import write_bytes

DPI = 120
WIDTH = 4.4  # width of a panel in inches, so that its letters can be read on a phone
MOST_DOTS = 16  # most dots on a line
GREY, GRID = "#8a8a8a", "#dddddd"
# Okabe and Ito's colours for colour-blind readers, with Tol's wine instead of yellow, which is faint on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#882255")
_DASHES = ("-", "--", ":", "-.")


@dataclasses.dataclass(frozen=True)
class Mark:
    """What the page shows about an artist.

    Attributes:
      words: The hover texts: none, one for the whole artist, or one for each of its parts.
      run: The number of its method, with which the page shows or hides it; None for all methods.
      line: Whether it is a line; the page shows the values of all lines together.
    """

    words: Sequence[str] = ()
    run: int | None = None
    line: bool = False


@dataclasses.dataclass(frozen=True)
class Matrix:
    """What the page shows about an image of a matrix.

    Attributes:
      rows: The names of the rows.
      columns: The names of the columns; "" for a column that needs none.
      unit: The unit after a value.
      kinds: The meaning of each colour "#rrggbb", if colours are not numbers.
      nothing: The meaning of an entry without a colour.
    """

    rows: Sequence[str]
    columns: Sequence[str]
    unit: str = ""
    kinds: Mapping[str, str] = dataclasses.field(default_factory=dict)
    nothing: str = "none"


@dataclasses.dataclass(frozen=True)
class Line:
    """What the page shows about a line at each of its places.

    Attributes:
      name: The name of the line.
      color: The number of its colour.
      run: As in `Mark`.
      points: float[n, 3]: place, value, deviation.
    """

    name: str
    color: int
    run: int | None
    points: np.ndarray


class ReportFigure(Figure):
    """A figure that shows itself in a notebook, whether or not pyplot was imported there.

    Attributes:
      panels: Axes that the page shows side by side, or below each other if it is narrow; if empty, the whole figure is
        one panel.
      marks: What the page shows about artists.
      matrices: What the page shows about images of matrices.
      lines: What the page shows about the lines of each panel.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        FigureCanvasAgg(self)
        self.panels: list[Axes] = []
        self.marks: dict[Artist, Mark] = {}
        self.matrices: dict[AxesImage, Matrix] = {}
        self.lines: dict[Axes, list[Line]] = {}

    def _repr_png_(self) -> bytes:
        return to_png(self)


def new_figure(width: float, height: float) -> ReportFigure:
    """Returns an empty figure of a size in inches, whose layout avoids overlaps."""
    return ReportFigure(figsize=(width, height), dpi=DPI, layout=ConstrainedLayoutEngine(w_pad=0.06, wspace=0.01))


def new_panels(
    count: int, height: float, *, width: float = WIDTH, across: int = 3, below: float = 0.0, **look
) -> ReportFigure:
    """Returns a figure of panels that the page may rearrange.

    Args:
      count: The number of panels.
      height: The height of a panel, in inches.
      width: The width of a panel, in inches.
      across: The most panels side by side.
      below: The room for a legend under the panels, in inches.
      **look: As in `Figure.subplots`.
    """
    rows, columns = -(-count // across), min(count, across)
    figure = new_figure(width * columns, height * rows + below)
    figure.panels = list(figure.subplots(rows, columns, squeeze=False, **look).ravel())
    for axes in figure.panels[count:]:
        axes.remove()
    del figure.panels[count:]
    return figure


def say(artist: Artist, *words: str, run: int | None = None) -> None:
    """Gives an artist hover texts on the page; see `Mark`."""
    artist.figure.marks[artist] = Mark(words, run)


def draw_line(
    axes: Axes, xs: np.ndarray, ys: np.ndarray, stds: np.ndarray, *, name: str, number: int, run: int | None = None
) -> None:
    """Draws a line through means, with a band of deviations around it, and with dots if it has few points.

    Args:
      xs: [n], places.
      ys: [n], means.
      stds: [n], deviations; NaN for no deviation.
      name: The name of the line.
      number: The number that decides its colour and dashes.
      run: As in `Mark`.
    """
    look = line_style(number)
    (line,) = axes.plot(xs, ys, marker="o" if len(xs) <= MOST_DOTS else None, markersize=4, linewidth=1.8, **look)
    reach = np.nan_to_num(stds)
    if np.any(reach > 0):
        band = axes.fill_between(xs, ys - reach, ys + reach, color=look["color"], alpha=0.15, linewidth=0)
        say(band, run=run)
    last = f"{show(ys[-1])}{f' ± {show(stds[-1])}' if stds[-1] > 0 else ''}"
    words = f"{name}: {last} at {show(xs[-1])}"
    axes.figure.marks[line] = Mark([words], run, line=True)
    points = np.stack([np.asarray(each, float) for each in (xs, ys, stds)], axis=1)
    axes.figure.lines.setdefault(axes, []).append(Line(name, number, run, points))


def show(value: float) -> str:
    """Returns a number in the page's format."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def client_name(client: object) -> str:
    """Returns the name of a client on the page; "client 17" for a number."""
    return f"client {client}" if str(client).isdigit() else str(client)


@contextlib.contextmanager
def letters_as_boxes():
    """Draws letters that the font lacks as boxes, without a warning; tables and the page have the letters."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        yield


@letters_as_boxes()
def to_png(figure: Figure) -> bytes:
    """Returns the picture of a figure as PNG."""
    data = io.BytesIO()
    take_literally(figure)
    # Without this metadata, equal figures give equal bytes with every version of matplotlib.
    figure.savefig(data, format="png", dpi=DPI, bbox_inches="tight", pad_inches=0.1, metadata={"Software": None})
    return data.getvalue()


def take_literally(figure: Figure):
    """Turns off formulas in texts, because names of clients and methods may contain dollar signs."""
    for text in figure.findobj(Text):
        text.set_parse_math(False)


@letters_as_boxes()
def to_bytes(figure: Figure, format: str) -> bytes:
    """Returns a figure as "svg", in which texts stay texts, or as "pdf"; the bytes are the same each time."""
    data, dated = io.BytesIO(), {"svg": "Date", "pdf": "CreationDate"}[format]
    take_literally(figure)
    look = {"svg.hashsalt": "tffcl", "svg.fonttype": "none"}
    if format == "svg":  # name few fonts; a browser finds others for letters that the first lacks
        look["font.sans-serif"] = [matplotlib.rcParams["font.sans-serif"][0], "sans-serif"]
    with matplotlib.rc_context(look):
        figure.savefig(data, format=format, bbox_inches="tight", pad_inches=0.1, metadata={dated: None})
    return _shortened(data.getvalue()) if format == "svg" else data.getvalue()


def _shortened(svg: bytes) -> bytes:
    """Makes Matplotlib's SVG a quarter smaller: two decimals per coordinate, no rotations by 0, no indentation."""
    svg = re.sub(rb' (?:d|x|y|width|height)="[^"]*"', lambda found: re.sub(rb"(\.\d\d)\d+", rb"\1", found[0]), svg)
    return re.sub(rb"\n +", b"\n", re.sub(rb' transform="rotate\(-0 [^"]*\)"', b"", svg))


def save(figure: Figure, path: pathlib.Path) -> pathlib.Path:
    """Writes a figure as PNG, and makes the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, to_png(figure))
    return path


def color(index: int) -> str:
    """Returns the colour of the cluster, group or method with this number; colours repeat after eight."""
    return COLORS[index % len(COLORS)] if index >= 0 else GREY


def line_style(number: int) -> dict:
    """Returns keyword arguments for the line of the method with this number; 32 lines are different."""
    # The dash changes with the colour, so that a line on top of another leaves it visible.
    return {"color": color(number), "linestyle": _DASHES[dash(number)]}


def dash(number: int) -> int:
    """Returns the number of the dashes of the line of the method with this number."""
    return (number + number // len(COLORS)) % len(_DASHES)


def tidy(axes: Axes, grid: str | None = "y") -> None:
    """Removes the frame's upper and right sides, and draws a faint grid along one axis, or none."""
    axes.spines[["top", "right"]].set_visible(False)
    if grid:
        axes.grid(axis=grid, color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)


def tick_ratios(axis: Axis, low: float, high: float) -> None:
    """Makes an axis logarithmic, with plain numbers at its major ticks; matplotlib's default is formulas."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_locator(LogLocator(10, subs=(1, 2, 5) if high < 100 * low else (1,)))
    axis.set_major_formatter("{x:,.4g}")
    axis.set_minor_formatter(NullFormatter())


@letters_as_boxes()
def legend_below(figure: Figure, most: int, **look) -> None:
    """Draws the legend of a figure under its panels, in as many columns as fit, at most `most`."""
    for columns in range(most, 0, -1):
        legend = figure.legend(loc="outside lower center", ncols=columns, frameon=False, **look)
        if columns == 1 or legend.get_window_extent(figure.canvas.get_renderer()).width <= figure.bbox.width:
            return
        legend.remove()


def say_empty(axes: Axes, why: str) -> None:
    """Writes into an empty panel why it is empty."""
    axes.text(0.5, 0.5, why, ha="center", va="center", color=GREY, transform=axes.transAxes, wrap=True)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def beside(images: np.ndarray, most: int) -> np.ndarray:
    """Puts pictures uint8 [n, h, w, 1 or 3] side by side as RGBA with room for `most`; gaps and missing pictures are
    transparent."""
    _, height, width, _ = images.shape
    canvas = np.zeros([height, most * (width + 1) - 1, 4], np.uint8)
    for number, image in enumerate(images):
        place = canvas[:, number * (width + 1) :][:, :width]
        place[..., :3], place[..., 3] = image, 255
    return canvas


def shorten(text: object, length: int = 14) -> str:
    """Returns a name that is short enough for an axis."""
    text = printable(str(text))
    return text if len(text) <= length else text[: length - 1] + "…"


def spread(positions: Sequence[float], sizes: Sequence[float], least: float) -> list[int]:
    """Returns which positions get a label, at least `least` apart; those with the largest sizes are chosen first."""
    kept: list[int] = []
    for index in sorted(range(len(positions)), key=lambda index: -sizes[index]):
        if all(abs(positions[index] - positions[other]) >= least for other in kept):
            kept.append(index)
    return sorted(kept)
