"""Folders of pictures, client/label/picture.png, and the arrays that they become. Imports Pillow only when one is read,
and never TensorFlow."""

import os
import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

from tffcl.clients import arrays
from tffcl.clients.splits import split
from tffcl.clients.tables import Table
from tffcl.errors import UserError
from tffcl.validation import Fraction, check_kind, check_value

_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
_GREY = ("1", "L", "LA", "I", "I;16", "F")  # modes of Pillow
_FORM = "the pictures of a client are in folders of labels, ROOT/CLIENT/LABEL/NAME.png"


def read_folders(
    root,
    *,
    image_size: int | Sequence[int] | None = None,
    channels: int | None = None,
    test: float = 0.3,
    validation: float = 0.0,
    seed: int = 0,
) -> Table:
    """Makes examples of folders of pictures; for the arguments see `Population.from_folders`.

    Raises:
      UserError: As in `Population.from_folders`.
    """
    check_kind("root", root, (str, os.PathLike), "the path of a folder with ROOT/CLIENT/LABEL/NAME.png")
    root = pathlib.Path(root).expanduser()
    check_value("validation", validation, Fraction)
    test = check_value("test", test, Fraction)
    paths, others = _pictures(root)
    size = None if image_size is None else _size(image_size)
    if channels not in (None, 1, 3):
        raise UserError(f"channels is {channels!r}; it must be 1 for grey or 3 for colours")
    channels = channels or (1 if all(_read(path, lambda image: image.mode) in _GREY for path in paths) else 3)
    mode, x = {1: "L", 3: "RGB"}[channels], None
    for row, path in enumerate(paths):
        # Pillow has width before height.
        picture = _read(path, lambda image: _pixels(image, mode, size))
        x = np.empty([len(paths), *picture.shape[:2], channels], np.uint8) if x is None else x
        if picture.shape[:2] != x.shape[1:3]:
            sizes = [f"{height} x {width}" for height, width in (picture.shape[:2], x.shape[1:3])]
            raise UserError(
                f"{path} is of {sizes[0]} pixels, {paths[0]} of {sizes[1]}; "
                f"image_size={list(x.shape[1:3])} makes all so"
            )
        x[row] = picture.reshape(x.shape[1:])
    clients, names = (np.array([path.parts[place] for path in paths]) for place in (-3, -2))
    labels = {label.name for client in _folders(root) for label in _folders(client)}
    arrays.check_apart(labels, "the labels")
    parts = split(clients, test, validation, seed)
    return Table(x, names, parts, None, None, tuple(arrays.in_order(labels)), _left_out(others))


def _pictures(root: pathlib.Path) -> tuple[list[pathlib.Path], list[pathlib.Path]]:
    """Returns the files of all pictures, in the order of client, label and name, and all other files beside them."""
    clients = _folders(root)
    if not clients:
        raise UserError(f"{root} {'has no folders' if root.is_dir() else 'is no folder'}; {_FORM}")
    paths, others = [], []
    for client in clients:
        files = [path for label in _folders(client) for path in sorted(label.iterdir())]
        own = [path for path in files if _is_picture(path)]
        if not own:
            raise UserError(f"client {client.name} has no pictures; {_FORM}, ending in {', '.join(_ENDINGS)}")
        paths += own
        others += [path for path in files if not _is_picture(path)]
    for path in _beside_labels(root, clients):
        if _is_picture(path):
            raise UserError(f"{path} would be left out; {_FORM}")
    return paths, others


def _beside_labels(root: pathlib.Path, clients: list[pathlib.Path]) -> Iterator[pathlib.Path]:
    """Yields what is beside or above the folders of labels, or in folders inside them."""
    yield from root.iterdir()
    for client in clients:
        yield from client.iterdir()
        for label in _folders(client):
            for below in _folders(label):
                yield from below.rglob("*")


def _left_out(others: list[pathlib.Path]) -> str:
    """Returns a note for readers of results on files beside the pictures, which may be pictures in other formats."""
    others = [path for path in others if not path.name.startswith(".") and path.is_file()]
    endings = ", ".join(sorted({path.suffix.lower() or path.name for path in others}))
    what = (
        "1 file is no picture by its name"
        if len(others) == 1
        else f"{len(others)} files are no pictures by their names"
    )
    return f"{what}, and left out: {endings}" if others else ""


def _is_picture(path: pathlib.Path) -> bool:
    """Whether a file is a picture by its name; hidden files are not, such as ._NAME.png from other systems."""
    return path.suffix.lower() in _ENDINGS and not path.name.startswith(".")


def _folders(of: pathlib.Path) -> list[pathlib.Path]:
    inside = sorted(of.iterdir()) if of.is_dir() else []
    return [each for each in inside if each.is_dir() and not each.name.startswith(".")]


def _size(given: int | Sequence[int]) -> tuple[int, int]:
    size = (given, given) if isinstance(given, int) else tuple(given)
    if len(size) != 2 or not all(isinstance(each, int) and each > 0 for each in size):
        raise UserError(f"image_size is {given!r}; it must be height and width, [28, 28], or one number for both")
    return size


def _pixels(image, mode: str, size: tuple[int, int] | None) -> np.ndarray:
    """Returns a picture the right way up, `uint8 [height, width]` or `[height, width, 3]`.

    Grey values of 16 bits are scaled; Pillow's conversion would cut them off at 255.
    """
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):
        image = Image.fromarray(np.round(np.asarray(image, np.float64) / 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise OSError(f"its values are of mode {image.mode}, of no known range; 8 or 16 bits are read")
    return np.asarray(image.convert(mode).resize((size or image.size[::-1])[::-1]))


def _read(path: pathlib.Path, function):
    """Returns the result of a function of a picture; raises UserError if the picture cannot be read."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            return function(image)
    except Exception as error:  # Pillow's and the decoders' errors for damaged files are of a dozen types
        raise UserError(f"{path} cannot be read as a picture: {str(error)[:200]}") from None
