"""A panel of the page: axes and marks, from the units of the data to the coordinates of an SVG picture.

A panel has no colours: each mark has classes, and the page's style says what they look like by light and by dark.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from matplotlib.ticker import LogLocator, MaxNLocator

from tffcl.lab.reporting.page.rasters import Raster
from tffcl.lab.reporting.style import COLORS

WIDTH = 360  # in units of the picture, which are pixels on a phone
_LETTER = 6.4  # width of a letter of an axis, about
_MOST_TITLED = 600  # marks of a panel that say what they are; more are drawn as one


def shade(index: int | None) -> str:
    """Returns the class of the colour of the cluster, group or method with this number; grey for a negative one."""
    return "grey" if index is None or index < 0 else f"c{index % len(COLORS)}"


def show(value: float) -> str:
    """Returns a number as axes and titles have it."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def client_name(client: object) -> str:
    """Returns what titles call a client: its name, or "client 17" for a number."""
    return f"client {client}" if str(client).isdigit() else str(client)


@dataclasses.dataclass(frozen=True)
class Axis:
    """An axis.

    Attributes:
      label: What it measures, unit included.
      low: Its beginning.
      high: Its end.
      ticks: Places and what is written there.
      logarithmic: Whether equal distances are equal ratios.
    """

    label: str
    low: float
    high: float
    ticks: Sequence[tuple[float, str]] = ()
    logarithmic: bool = False

    def share(self, values) -> np.ndarray:
        """Returns where values are on the axis, 0 at its beginning and 1 at its end."""
        values, low, high = np.asarray(values, float), self.low, self.high
        if self.logarithmic:
            values, low, high = np.log(values), math.log(low), math.log(high)
        return (values - low) / ((high - low) or 1.0)


def number_axis(
    label: str, values, *, low: float | None = None, high: float | None = None, whole: bool = False, tight: bool = False
) -> Axis:
    """Makes an axis for numbers, with round ones at its ticks.

    Args:
      label: What it measures.
      values: What must be on it; NaN is left out.
      low: Where it begins; default a round number below the values.
      high: Where it ends; default a round number above them.
      whole: Whether ticks are whole numbers.
      tight: Whether it begins and ends with the values instead.
    """
    values = np.asarray(values, float)
    values = values[np.isfinite(values)]
    least, most = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    least, most = least if low is None else low, most if high is None else high
    if most <= least:
        least, most = (least - 0.5, least + 0.5) if low is None else (least, least + 1)
    places = MaxNLocator(5, integer=whole, steps=[1, 2, 2.5, 5, 10]).tick_values(least, most)
    if not tight:
        least, most = (places[0] if low is None else low), (places[-1] if high is None else high)
    margin = 1e-9 * (most - least)
    return Axis(label, least, most, [(each, show(each)) for each in places if least - margin <= each <= most + margin])


def ratio_axis(label: str, low: float, high: float) -> Axis:
    """Makes a logarithmic axis between two positive numbers."""
    places = LogLocator(10, subs=(1, 2, 5) if high < 1000 * low else (1,)).tick_values(low, high)
    kept = [each for each in places if low <= each <= high] or [low, high]
    return Axis(label, low, high, [(each, show(each)) for each in kept], logarithmic=True)


@dataclasses.dataclass(frozen=True)
class Shape:
    """An element of SVG.

    Attributes:
      tag: Its name.
      look: Its classes.
      attributes: Its geometry.
      title: What it says when it is pointed at; "" for nothing.
      text: What a text says.
      run: Which run it belongs to, where runs are switched on and off.
    """

    tag: str
    look: str
    attributes: dict
    title: str = ""
    text: str = ""
    run: int | None = None


@dataclasses.dataclass(frozen=True)
class Scale:
    """What the colours of a raster mean.

    Attributes:
      low: The words at its beginning.
      high: The words at its end.
      address: Its picture.
      inverted: Whether light and dark are exchanged where the page is dark, so that nothing is near its background.
    """

    low: str
    high: str
    address: str
    inverted: bool = False


class Panel:
    """A panel. Marks are added in the order in which they are drawn; their places are in the units of the axes."""

    def __init__(self, title: str, x: Axis, y: Axis, *, height: int = 230, grid: str = "y", left: int | None = None):
        """Makes a panel without marks.

        Args:
          title: What it shows.
          x: The axis below.
          y: The axis at the left; its low end is at the bottom, or at the top if `low` is larger than `high`.
          height: Of the picture.
          grid: Along which axes there are faint lines: "x", "y" or "".
          left: Width of what is at the left of the marks; default by the ticks.
        """
        self.title, self.x, self.y, self.grid = title, x, y, grid
        self.width, self.height = WIDTH, height
        widest = max((len(text) for _, text in y.ticks), default=0)
        self.left = left if left is not None else 12 + math.ceil(_LETTER * widest)
        self.right, self.top = WIDTH - 14, 26 if y.label else 8
        self.bottom = height - (40 if x.label else 22 if x.ticks else 8)
        self.shapes: list[Shape] = []
        self.lines: list[dict] = []
        self.raster: Raster | None = None
        self.scale: Scale | None = None
        self.titled = 0

    def across(self, values) -> np.ndarray:
        """From units of the x axis to coordinates."""
        return self.left + (self.right - self.left) * self.x.share(values)

    def down(self, values) -> np.ndarray:
        """From units of the y axis to coordinates."""
        return self.bottom - (self.bottom - self.top) * self.y.share(values)

    @property
    def hover(self) -> dict | None:
        """What the page's script needs to say the values under the pointer: of lines, or of a raster."""
        if self.raster is not None:
            return {"raster": self.raster.told, "box": self._box}
        if not self.lines:
            return None
        ends = [math.log(self.x.low), math.log(self.x.high)] if self.x.logarithmic else [self.x.low, self.x.high]
        return {
            "lines": self.lines,
            "box": self._box,
            "x": [*map(brief, ends), int(self.x.logarithmic)],
            "label": self.x.label,
            "unit": self.y.label,
            "decimals": 2 if "%" in self.y.label else None,
        }

    @property
    def _box(self) -> list[int]:
        return [self.left, self.top, self.right, self.bottom]

    def add(self, tag: str, look: str, attributes: dict, *, title: str = "", text: str = "", run: int | None = None) -> None:
        """Adds an element; its coordinates are written briefly."""
        written = {name: place(value) if isinstance(value, int | float) else value for name, value in attributes.items()}
        self.shapes.append(Shape(tag, look, written, title, text, run))

    def line(self, xs, ys, color: str, *, name: str, stds=None, run: int | None = None, dashed: int = 0) -> None:
        """Draws a line through points, with dots where there are few, and a band of `stds` around it."""
        xs, ys = np.asarray(xs, float), np.asarray(ys, float)
        stds = np.full(len(ys), np.nan) if stds is None else np.asarray(stds, float)
        across, mean = self.across(xs), self.down(ys)
        if np.any(stds > 0):
            reach = np.nan_to_num(stds)
            edges = [self.down(np.clip(ys + sign * reach, *sorted((self.y.low, self.y.high)))) for sign in (1, -1)]
            outline = path([*zip(across, edges[0], strict=True), *zip(across[::-1], edges[1][::-1], strict=True)])
            self.add("path", f"band {color}", {"d": f"{outline}Z"}, run=run)
        last = f"{name}: {show(ys[-1])}{f' ± {show(stds[-1])}' if stds[-1] > 0 else ''} at {self.x.label} {show(xs[-1])}"
        points = list(zip(across, mean, strict=True))
        self.add("path", f"line {color} dash{dashed}", {"d": path(points)}, title=last, run=run)
        if len(points) <= 16:
            self.add("path", f"dots {color}", {"d": dots(points), "stroke-width": 6}, run=run)
        told = [[brief(x), brief(y), *([brief(std)] if std > 0 else [])] for x, y, std in zip(xs, ys, stds, strict=True)]
        self.lines.append({"name": name, "run": run, "color": color, "points": told})

    def scatter(
        self, xs, ys, color: str, *, radius: float, titles: Sequence[str] = (), title: str = "", run: int | None = None
    ) -> None:
        """Draws dots; each says its own title where there are not too many in the panel, else all of them say `title`."""
        points = list(zip(self.across(xs), self.down(ys), strict=True))
        if titles and self.titled + len(points) <= _MOST_TITLED:
            self.titled += len(points)
            for (x, y), own in zip(points, titles, strict=True):
                self.add("circle", f"dot {color}", {"cx": x, "cy": y, "r": radius}, title=own, run=run)
        elif points:
            look = {"d": dots(points), "stroke-width": 2 * radius}
            self.add("path", f"dots faint {color}", look, title=title, run=run)

    def box(self, x0: float, x1: float, y0: float, y1: float, look: str, *, title: str = "", run: int | None = None) -> None:
        """Draws a rectangle between two places of each axis."""
        (left, right), (top, bottom) = sorted(self.across([x0, x1])), sorted(self.down([y0, y1]))
        self.add("rect", look, {"x": left, "y": top, "width": right - left, "height": bottom - top}, title=title, run=run)

    def segments(self, xs, ys, look: str, *, title: str = "", run: int | None = None) -> None:
        """Draws an open line without values of its own, such as a branch of a tree."""
        points = zip(self.across(xs), self.down(ys), strict=True)
        self.add("path", look, {"d": path(list(points))}, title=title, run=run)

    def text(self, x: float, y: float, words: str, *, look: str = "", move: tuple[float, float] = (0, 0), run=None) -> None:
        """Writes words at a place, moved by some units of the picture."""
        at = {"x": float(self.across(x)) + move[0], "y": float(self.down(y)) + move[1]}
        self.add("text", look, at, text=words, run=run)

    def draw_raster(self, raster: Raster, scale: "Scale | None" = None) -> None:
        """Fills the panel with a raster, and says below it what its colours mean."""
        self.raster, self.scale = raster, scale
        at = {"x": self.left, "y": self.top, "width": self.right - self.left, "height": self.bottom - self.top}
        self.add(
            "image",
            f"raster{' inverted' if scale and scale.inverted else ''}",
            {**at, "href": raster.address, "preserveAspectRatio": "none"},
        )


def place(value: float) -> str:
    """Returns a coordinate, to a tenth."""
    return f"{value:.1f}".removesuffix(".0")


def brief(value: float) -> float:
    """Returns a number with five digits, as hovering says it."""
    return float(f"{value:.5g}")


def path(points: Sequence[tuple[float, float]]) -> str:
    """Returns the path through points."""
    return "M" + " ".join(f"{place(x)},{place(y)}" for x, y in points)


def dots(points: Sequence[tuple[float, float]]) -> str:
    """Returns a path of dots: lines of no length, which round ends make visible."""
    return "".join(f"M{place(x)},{place(y)}h0" for x, y in points)
