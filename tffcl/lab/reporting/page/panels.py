"""Turns a figure into panels of the page: matplotlib's SVG, made small, with the page's colours and with hover texts.

Colours become variables of the page, which have other values on a dark page. The texts of `style.Mark`, `style.Line`
and `style.Matrix` are stored with their elements. Each panel is a separate SVG, so that the page can place it freely.
"""

import base64
import dataclasses
import io
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree
from xml.etree.ElementTree import Element
from xml.sax.saxutils import escape

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from PIL import Image

from tffcl.lab.reporting import style
from tffcl.lab.reporting.style import Mark, ReportFigure

_POINTS, _IMAGE_DPI = 72, 144  # per inch: of the picture, and of images whose pixels are not a matrix's entries
_GAP = 4  # points around a panel
# The most rows of a matrix on the page, and the most clients if they are rows and columns.
_MOST_ROWS, _MOST_PAIRS = 400, 200
_FEW = 4  # from this number of elements on, shared attributes go to their group
_PAINTS = {color.lower(): f"var(--c{number})" for number, color in enumerate(style.COLORS)} | {
    "#000000": "var(--ink)", "#ffffff": "var(--paper)", style.GRID: "var(--line)", style.GREY: "var(--grey)",
}  # fmt: skip
_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
# Attributes that the page's own style sets, or that make no difference.
_LEFT_OUT = ("font-family", "stroke-dashoffset", "stroke-linejoin", "image-rendering")
_USUAL = ("font-size:10px", "stroke-linecap:square", "stroke-width:1", "text-anchor:start")
_RECT = ("x", "y", "width", "height")


@dataclasses.dataclass(frozen=True)
class Panel:
    """A panel.

    Attributes:
      title: The title of the panel; "" if the figure's title is enough.
      box: The view box of its `svg`.
      content: The contents of its `svg`.
      hover: The data from which the page's script shows the values of lines; None without lines.
      inverted: Whether light and dark are exchanged in its images on a dark page, so that small values are close to the
        background's colour.
    """

    title: str
    box: str
    content: Markup
    hover: Mapping | None = None
    inverted: bool = False


def scale_colors() -> str:
    """Returns the colours of the number scale from dark to light, "rrggbb" each; the page decodes images with them."""
    return "".join(bytes(color[:3]).hex() for color in colormaps["viridis"](range(256), bytes=True))


@style.letters_as_boxes()
def panels_of(name: str, figure: ReportFigure) -> list[Panel]:
    """Returns the panels of a figure. This changes the figure, so other pictures of it must be made before.

    Args:
      name: The name of the figure, unique on the page.
      figure: A figure from the functions of `lab.reporting.figures`.
    """
    inverted = any(np.ma.is_masked(image.get_array()) for image in figure.matrices)
    _prepare(figure)
    figure.get_layout_engine().execute(figure)
    figure.set_layout_engine(None)  # parts keep their places, and are drawn once
    drawn = _Drawn(name, figure)
    if not figure.panels:
        left, top, width, height = _box(figure, figure.get_tightbbox().padded(_GAP / _POINTS), _POINTS)
        left, width = min(left, 0.0), max(width, figure.bbox.width)
        return [Panel("", _view(left, top, width, height), drawn.content(), inverted=inverted)]
    boxes = [_box(figure, axes.get_tightbbox().padded(_GAP)) for axes in figure.panels]
    width = max(box[2] for box in boxes)  # the same for all panels, so that they have one scale
    return [
        Panel(
            axes.get_title() or axes.get_xlabel(),
            _view(*box[:2], width, box[3]),
            drawn.content(number),
            _hover(axes, figure),
        )
        for number, (axes, box) in enumerate(zip(figure.panels, boxes, strict=True))
    ]


def _box(figure: ReportFigure, box, scale: float = 1.0) -> tuple[float, float, float, float]:
    """Left end, top, width and height in the picture's units, measured from the top."""
    return scale * box.x0, figure.bbox.height - scale * box.y1, scale * box.width, scale * box.height


def _view(*numbers: float) -> str:
    return " ".join(f"{number:.0f}" for number in numbers)


def _prepare(figure: ReportFigure) -> None:
    """Removes backgrounds, names elements that have hover texts, and draws one pixel per matrix entry in images."""
    style.take_literally(figure)
    figure.set_dpi(_POINTS)
    figure.patch.set_visible(False)
    for axes in figure.findobj(Axes):
        axes.patch.set_visible(False)
    for kind, artists in (("panel", figure.panels), ("mark", figure.marks), ("matrix", figure.matrices)):
        for number, artist in enumerate(artists):
            artist.set_gid(f"{kind}-{number}")
    for image, matrix in list(figure.matrices.items()):
        entries = image.get_array()
        most = _MOST_PAIRS if len(matrix.rows) == len(matrix.columns) else _MOST_ROWS
        if entries.ndim == 3 and len(entries) > most:
            continue  # entries are too small to point at
        image.set_interpolation("none")
        if entries.ndim == 2 and len(entries) > most:
            extent, entries = image.get_extent(), np.ma.filled(entries.astype(float), np.nan)
            entries, rows = pooled(entries, most)
            columns = range(len(matrix.columns))
            if most == _MOST_PAIRS:
                entries, columns = pooled(entries.T, most)[0].T, rows
            image.set_data(entries)
            image.set_extent(extent)
            names = {
                "rows": [matrix.rows[each] for each in rows],
                "columns": [matrix.columns[each] for each in columns],
            }
            figure.matrices[image] = dataclasses.replace(matrix, **names)


def pooled(matrix: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Reduces a matrix to at most `most` rows, which are means of neighbouring rows without their NaN.

    Returns:
      The matrix, and for each of its rows the first original row.
    """
    starts = np.arange(0, len(matrix), -(-len(matrix) // most))
    known = ~np.isnan(matrix)
    counts = np.add.reduceat(known, starts, axis=0)
    sums = np.add.reduceat(np.where(known, matrix, 0), starts, axis=0)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan), starts


def _hover(axes: Axes, figure: ReportFigure) -> dict | None:
    """The hover data of a panel's lines: the values of all lines at each place."""
    lines = figure.lines.get(axes)
    if not lines:
        return None
    values = np.unique(np.concatenate([line.points[:, 0] for line in lines]))
    places = axes.transData.transform(np.stack([values, np.full(len(values), axes.get_ylim()[1])], axis=1))[:, 0]
    left, top, width, height = _box(figure, axes.get_window_extent())
    return {
        "label": axes.get_xlabel(), "unit": axes.get_ylabel(), "decimals": 2 if "%" in axes.get_ylabel() else None,
        "box": [round(each, 1) for each in (left, top, left + width, top + height)],
        "places": [[_brief(value), round(place, 1)] for value, place in zip(values, places, strict=True)],
        "lines": [
            {
                "name": line.name, "run": line.run, "color": f"c{line.color % len(style.COLORS)}",
                "points": [[_brief(each) for each in (x, y, *([std] if std > 0 else []))] for x, y, std in line.points],
            }
            for line in lines
        ],
    }  # fmt: skip


def _brief(number: float) -> float:
    return float(f"{number:.5g}")


class _Drawn:
    """A figure as matplotlib writes it, and its contents for the page."""

    def __init__(self, name: str, figure: ReportFigure):
        data = io.BytesIO()
        with matplotlib.rc_context({"svg.hashsalt": "tffcl", "svg.fonttype": "none"}):
            figure.savefig(data, format="svg", dpi=_IMAGE_DPI, metadata={"Date": None})
        root = ElementTree.fromstring(data.getvalue())
        self._all = root.find(f"{_SVG}g")
        self._clips = {each.get("id"): each[0].attrib for each in root.iter(f"{_SVG}clipPath")}
        self._markers = {each.get("id"): each for defs in root.iter(f"{_SVG}defs") for each in defs}
        self._marks = dict(enumerate(figure.marks.values()))
        self._matrices = dict(enumerate(figure.matrices.items()))
        self._prefix = f"{zlib.crc32(name.encode()) % 2**20:x}-"
        self._used: dict[str, str] = {}

    def content(self, panel: int | None = None) -> Markup:
        """Returns the contents of a panel's `svg`; default those of the whole figure."""
        self._used = {}
        found = self._all if panel is None else next(each for each in self._all if each.get("id") == f"panel-{panel}")
        parts = [part for each in found for part in self._small(each, titled=False)]
        clips = []
        for clip, ours in self._used.items():
            clips.append(Element("clipPath", {"id": ours}))
            clips[-1].append(Element("rect", {key: _rounded(value) for key, value in self._clips[clip].items()}))
        return Markup("\n".join(map(_written, [*clips, *parts])))

    def _small(self, source: Element, titled: bool) -> list[Element]:
        """One element for one of matplotlib's, or the parts of a group without attributes; `titled` parts have their
        own titles.
        """
        tag, (kind, _, number) = source.tag.removeprefix(_SVG), source.get("id", "").partition("-")
        if tag == "defs":
            return []
        element = Element(tag, self._attributes(source))
        element.text = source.text if tag == "text" else None
        if tag == "use":
            return [self._marker(source)]
        if tag == "image":
            element.set("href", _recolored(source.get(_LINK)))
            element.set("preserveAspectRatio", "none")
            if kind == "matrix":
                element.set("data-hover", _hover_text(*self._matrices[int(number)]))
            return [element]
        if tag != "g":
            return [element]
        mark = self._marks[int(number)] if kind == "mark" else None
        titled = titled or mark is not None and len(mark.words) > 1
        parts = [part for each in source for part in self._small(each, titled)]
        parts = parts if titled else _as_one(parts)
        _share(element, parts)
        element.extend(parts)
        if mark:
            _say(element, mark)
        return [element] if element.attrib or mark else parts

    def _attributes(self, source: Element) -> dict[str, str]:
        found = {key: _rounded(source.get(key)) for key in ("d", "x", "y", "width", "height") if key in source.attrib}
        style_of = _style(source.get("style", ""))
        if style_of:
            found["style"] = style_of
        clip = source.get("clip-path", "")[5:-1]
        if clip and not self._is_within(source, clip):
            found["clip-path"] = f"url(#{self._used.setdefault(clip, self._prefix + clip[1:5])})"
        moved = source.get("transform", "")
        if moved and not moved.startswith(("rotate(-0 ", "rotate(0 ")):
            found["transform"] = moved if moved.startswith("matrix") else _rounded(moved)
        return found

    def _is_within(self, source: Element, clip: str) -> bool:
        """Whether a path is completely inside its clip region, so that it need not be clipped."""
        if "d" not in source.attrib or "transform" in source.attrib:
            return False
        (x, y, width, height), points = (float(self._clips[clip][key]) for key in _RECT), _points(source.get("d"))
        corner = np.array([x, y])
        return bool(np.all(points >= corner - 1) and np.all(points <= corner + [width + 1, height + 1]))

    def _marker(self, source: Element) -> Element:
        """The element that `use` refers to, in its place, because other figures on the page have the same names."""
        marker = self._markers[source.get(_LINK)[1:]]
        found = {"style": _style(f"{marker.get('style', '')};{source.get('style', '')}")}
        x, y = (float(source.get(key)) for key in ("x", "y"))
        path = marker.get("d")
        if path.count("C") == 8 and path.startswith("M 0 "):  # a circle
            found |= {"cx": f"{x:.1f}", "cy": f"{y:.1f}", "r": _rounded(path.split()[2])}
            return Element("circle", found)
        pair = r"(-?[\d.]+) (-?[\d.]+)"
        moved = re.sub(pair, lambda each: f"{float(each[1]) + x:.2f} {float(each[2]) + y:.2f}", path)
        return Element("path", {"d": _rounded(moved), **found})


def _points(path: str) -> np.ndarray:
    """The corners of a path, [n, 2]; matplotlib's coordinates are all absolute."""
    return np.array(re.findall(r"-?\d+(?:\.\d+)?", path), float).reshape(-1, 2)


def _style(text: str) -> str:
    """A style with the page's colours, without default values."""
    looks = dict(each.strip().split(":", 1) for each in text.split(";") if each.strip())
    looks = {
        key: value.strip()
        for key, value in looks.items()
        if key not in _LEFT_OUT and f"{key}:{value.strip()}" not in _USUAL
    }
    return ";".join(f"{key}:{_PAINTS.get(value, _rounded(value, 2))}" for key, value in looks.items())


def _rounded(text: str, digits: int = 1) -> str:
    """Rounds numbers, by default to tenths, which are enough for geometry; paths lose needless blanks."""
    text = re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.{digits}f}".rstrip("0").rstrip("."), text)
    return re.sub(r"\s*([A-Za-z])\s*", r"\1", text).strip() if text[:1] == "M" else text


def _share(group: Element, parts: Sequence[Element]) -> None:
    """Moves the style and the clipping that all parts of a group share to the group."""
    for key in ("style", "clip-path") if len(parts) >= _FEW else ():
        values = {part.get(key) for part in parts}
        if len(values) == 1 and None not in values and key not in group.attrib:
            group.set(key, values.pop())
            for part in parts:
                del part.attrib[key]


def _as_one(parts: list[Element]) -> list[Element]:
    """Joins equal circles into one path of dots, which are lines of zero length with round ends."""
    looks = {(part.tag, part.get("r"), part.get("style")) for part in parts}
    if len(parts) < _FEW or len(looks) > 1 or parts[0].tag != "circle":
        return parts
    look = dict(each.split(":") for each in parts[0].get("style").split(";"))
    width, opacity = 2 * float(parts[0].get("r")), look.get("fill-opacity", look.get("opacity", "1"))
    style_of = f"fill:none;stroke:{look['fill']};stroke-opacity:{opacity};stroke-width:{width:.1f};stroke-linecap:round"
    return [
        Element("path", {"d": "".join(f"M{each.get('cx')} {each.get('cy')}h0" for each in parts), "style": style_of})
    ]


def _say(group: Element, mark: Mark) -> None:
    """Puts the texts of a mark into its group, or into each of the group's parts."""
    names = ["line"] * mark.line + ([] if mark.run is None else [f"run-{mark.run}"])
    if names:
        group.set("class", " ".join(names))
    leaves = [each for each in group.iter() if each.tag != "g"]
    if len(mark.words) == len(leaves) > 1:
        for leaf, words in zip(leaves, mark.words, strict=True):
            leaf.append(_title(words))
    elif mark.words:
        group.append(_title(mark.words[0]))


def _title(words: str) -> Element:
    title = Element("title")
    title.text = words
    return title


def _hover_text(image: AxesImage, matrix: style.Matrix) -> str:
    """The hover data of a matrix; the page decodes its entries from the colours of the image."""
    values = {"rows": list(matrix.rows), "nothing": matrix.nothing}
    if matrix.columns != matrix.rows:
        values["columns"] = list(matrix.columns)
    if matrix.kinds:
        values["kinds"] = {color[1:].lower(): words for color, words in matrix.kinds.items()}
    else:
        low, high = image.get_clim()
        values |= {
            "ends": [float(f"{end:.6g}") for end in ((high, low) if image.cmap.name.endswith("_r") else (low, high))]
        }
        values["unit"] = matrix.unit
    return json.dumps(values, ensure_ascii=False, separators=(",", ":"))


def _recolored(address: str) -> str:
    """Compresses an image with a palette, exactly if it has no more colours than a palette holds."""
    image = Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))).convert("RGBA")
    pixels = np.asarray(image)
    colors, places = np.unique(pixels.reshape(-1, 4), axis=0, return_inverse=True)
    if len(colors) > 256:
        return png_address(image.quantize(256, Image.Quantize.FASTOCTREE))
    small = Image.fromarray(places.reshape(pixels.shape[:2]).astype(np.uint8), "L").copy()
    small.putpalette(colors[:, :3].ravel().tolist())
    return png_address(small, transparency=bytes(colors[:, 3].tolist()))


def png_address(image: Image.Image, **options) -> str:
    """Returns a picture as a data URL."""
    data = io.BytesIO()
    image.save(data, "PNG", **options)
    return f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode('ascii')}"


def _written(element: Element) -> str:
    """An element as text; single quotes need fewer characters for attributes with double quotes in them."""
    attributes = "".join(f" {key}='{escape(value, {chr(39): '&#39;'})}'" for key, value in element.attrib.items())
    inner = escape(element.text or "") + "".join(map(_written, element))
    return f"<{element.tag}{attributes}>{inner}</{element.tag}>" if inner else f"<{element.tag}{attributes}/>"
