"""What all figures share: their class, colours, what they say on the page, and small manners of drawing."""

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
WIDTH = 4.4  # of a panel, inches: its letters can be read on a phone
MOST_DOTS = 16  # of a line
GREY, GRID = "#8a8a8a", "#dddddd"
# Okabe and Ito's colours, which the colour-blind tell apart; Tol's wine for their yellow, which is faint on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#882255")
_DASHES = ("-", "--", ":", "-.")


@dataclasses.dataclass(frozen=True)
class Mark:
    """What the page says of an artist.

    Attributes:
      words: What it says where it is pointed at: nothing, one text for all of it, or one for each of its parts.
      run: Number of the method it belongs to, by which the page switches it on and off; None for all.
      line: Whether it is a line, of which the page says the values of all lines together.
    """

    words: Sequence[str] = ()
    run: int | None = None
    line: bool = False


@dataclasses.dataclass(frozen=True)
class Matrix:
    """What the page says of an image.

    Attributes:
      rows: Names of the rows.
      columns: Names of the columns; "" for one that needs none.
      unit: What stands behind a value.
      kinds: What an entry of each colour "#rrggbb" is, where the colours are no numbers.
      nothing: What an entry without a colour is.
    """

    rows: Sequence[str]
    columns: Sequence[str]
    unit: str = ""
    kinds: Mapping[str, str] = dataclasses.field(default_factory=dict)
    nothing: str = "none"


@dataclasses.dataclass(frozen=True)
class Line:
    """What the page says of a line at each of its places.

    Attributes:
      name: Of the line.
      color: The number of its colour.
      run: As of `Mark`.
      points: float[n, 3]: place, value, deviation.
    """

    name: str
    color: int
    run: int | None
    points: np.ndarray


class ReportFigure(Figure):
    """A figure that shows itself in a notebook, whether or not pyplot was imported there.

    Attributes:
      panels: Axes that stand beside each other, and below each other where the page is narrow; without any, the whole
        figure is one panel.
      marks: What artists say on the page.
      matrices: What images say there.
      lines: What the lines of each panel say there.
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
    """Returns an empty figure of a size in inches, which lays its parts out without overlaps."""
    return ReportFigure(figsize=(width, height), dpi=DPI, layout=ConstrainedLayoutEngine(w_pad=0.06, wspace=0.01))


def new_panels(
    count: int, height: float, *, width: float = WIDTH, across: int = 3, below: float = 0.0, **look
) -> ReportFigure:
    """Returns a figure of panels that the page may place anew.

    Args:
      count: How many there are.
      height: Of a panel, inches.
      width: Of a panel, inches.
      across: How many stand beside each other at most.
      below: Room under the panels, for a legend, inches.
      **look: As of `Figure.subplots`.
    """
    rows, columns = -(-count // across), min(count, across)
    figure = new_figure(width * columns, height * rows + below)
    figure.panels = list(figure.subplots(rows, columns, squeeze=False, **look).ravel())
    for axes in figure.panels[count:]:
        axes.remove()
    del figure.panels[count:]
    return figure


def say(artist: Artist, *words: str, run: int | None = None) -> None:
    """Lets an artist say something on the page where it is pointed at; see `Mark`."""
    artist.figure.marks[artist] = Mark(words, run)


def draw_line(
    axes: Axes, xs: np.ndarray, ys: np.ndarray, stds: np.ndarray, *, name: str, number: int, run: int | None = None
) -> None:
    """Draws a line through means, with a band of deviations around it, and dots where there are few.

    Args:
      xs: [n], places.
      ys: [n], means.
      stds: [n], deviations; NaN is none.
      name: Of the line.
      number: By which it has its colour and dashes.
      run: As of `Mark`.
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
    """Returns a number as the page says it."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def client_name(client: object) -> str:
    """Returns what the page calls a client: its name, or "client 17" for a number."""
    return f"client {client}" if str(client).isdigit() else str(client)


@contextlib.contextmanager
def letters_as_boxes():
    """Lets a letter that the font lacks be a box in a picture, without a warning; tables and the page have it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        yield


@letters_as_boxes()
def to_png(figure: Figure) -> bytes:
    """Returns the picture of a figure."""
    data = io.BytesIO()
    take_literally(figure)
    # Without the metadata the same files give the same bytes, whatever matplotlib's version.
    figure.savefig(data, format="png", dpi=DPI, bbox_inches="tight", pad_inches=0.1, metadata={"Software": None})
    return data.getvalue()


def take_literally(figure: Figure):
    """Lets texts be as they are: names of clients and methods are no formulas, whatever dollar signs are in them."""
    for text in figure.findobj(Text):
        text.set_parse_math(False)


@letters_as_boxes()
def to_bytes(figure: Figure, format: str) -> bytes:
    """Returns a figure as "svg", whose texts stay texts, or "pdf", the same bytes each time."""
    data, dated = io.BytesIO(), {"svg": "Date", "pdf": "CreationDate"}[format]
    take_literally(figure)
    look = {"svg.hashsalt": "tffcl", "svg.fonttype": "none"}
    if format == "svg":  # each text names its fonts there; a browser finds others for letters that the first lacks
        look["font.sans-serif"] = [matplotlib.rcParams["font.sans-serif"][0], "sans-serif"]
    with matplotlib.rc_context(look):
        figure.savefig(data, format=format, bbox_inches="tight", pad_inches=0.1, metadata={dated: None})
    return _shortened(data.getvalue()) if format == "svg" else data.getvalue()


def _shortened(svg: bytes) -> bytes:
    """Leaves out a quarter of what Matplotlib writes: beyond two decimals of a point, turns by nothing, indentation."""
    svg = re.sub(rb' (?:d|x|y|width|height)="[^"]*"', lambda found: re.sub(rb"(\.\d\d)\d+", rb"\1", found[0]), svg)
    return re.sub(rb"\n +", b"\n", re.sub(rb' transform="rotate\(-0 [^"]*\)"', b"", svg))


def save(figure: Figure, path: pathlib.Path) -> pathlib.Path:
    """Writes a figure as PNG, with the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, to_png(figure))
    return path


def color(index: int) -> str:
    """Returns the colour of the cluster, group or method with this number; they come again after eight."""
    return COLORS[index % len(COLORS)] if index >= 0 else GREY


def line_style(number: int) -> dict:
    """Returns keyword arguments for the line of the method with this number; 32 are different."""
    # The dash changes with the colour, so that a line which lies on another lets it be seen.
    return {"color": color(number), "linestyle": _DASHES[dash(number)]}


def dash(number: int) -> int:
    """Returns which dashes the line of the method with this number has."""
    return (number + number // len(COLORS)) % len(_DASHES)


def tidy(axes: Axes, grid: str | None = "y") -> None:
    """Takes the frame off where it says nothing, and draws a faint grid along one axis, or none."""
    axes.spines[["top", "right"]].set_visible(False)
    if grid:
        axes.grid(axis=grid, color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)


def tick_ratios(axis: Axis, low: float, high: float) -> None:
    """Makes an axis logarithmic, with numbers at its ticks and none between them: the usual ones are formulas."""
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_locator(LogLocator(10, subs=(1, 2, 5) if high < 100 * low else (1,)))
    axis.set_major_formatter("{x:,.4g}")
    axis.set_minor_formatter(NullFormatter())


@letters_as_boxes()
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


def beside(images: np.ndarray, most: int) -> np.ndarray:
    """Puts pictures uint8 [n, h, w, 1 or 3] side by side as RGBA, a see-through line between them, and nothing where
    there are fewer than `most`."""
    _, height, width, _ = images.shape
    canvas = np.zeros([height, most * (width + 1) - 1, 4], np.uint8)
    for number, image in enumerate(images):
        place = canvas[:, number * (width + 1) :][:, :width]
        place[..., :3], place[..., 3] = image, 255
    return canvas


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
