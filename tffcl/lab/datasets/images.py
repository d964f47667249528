"""Labelled images; their transforms (rotations, tints, other grey values or labels), and their mean and deviation."""

import dataclasses

import numpy as np

from tffcl.display import Shown, counted
from tffcl.errors import UserError

_SHOWN = 10  # changes of labels in the description of a transform
_BLOCK = 4096  # images that are measured at once

# ANDA's three colours set one of a picture's three channels to its greatest value. A single channel has no hue: there,
# the first of three tones is the unchanged picture, and the others change brightness and contrast.
COLOUR_TONES = ("red", "blue", "green")
GREY_TONES = ("", "negative", "faint")

_CHANNEL = {"red": 0, "green": 1, "blue": 2}


@dataclasses.dataclass(frozen=True, eq=False)
class Images(Shown):
    """Labelled images, or other examples.

    Attributes:
      x: Images uint8 [n, height, width, channels], 0 to 255; other examples uint8, int32 or float32 [n, ...].
      y: Labels: int32 [n], classes from 0; int32 [n, L], several for each example; or float32 [n, ...], numbers.
      owner: int32 [n], the natural client of each example (e.g. FEMNIST's writer), or None.
      source: int32 [n], the number of the data set that each example is from, if several are joined, or None.
      attributes: bool [n, attributes], yes-or-no attributes of each example (CelebA), or None.
      row: int64 [n], the row of a table that each example is, or None.
    """

    x: np.ndarray
    y: np.ndarray
    owner: np.ndarray | None = None
    source: np.ndarray | None = None
    attributes: np.ndarray | None = None
    row: np.ndarray | None = None

    def __post_init__(self):
        """Raises UserError if an array has a wrong type, rank or length, or is not finite."""
        if np.issubdtype(self.x.dtype, np.floating) and not np.isfinite(self.x).all():
            finite = np.isfinite(self.x).reshape(len(self.x), -1).all(axis=1)
            raise UserError(f"image {finite.argmin()} has a pixel that is not finite")
        if self.x.dtype not in (np.uint8, np.int32, np.float32) or not self.x.ndim:
            raise UserError(
                f"examples are {self.x.dtype} of rank {self.x.ndim}; they must be uint8, int32 or float32 [n, ...]"
            )
        if self.y.dtype not in (np.int32, np.float32) or not self.y.ndim:
            raise UserError(f"labels are {self.y.dtype} of rank {self.y.ndim}; they must be int32 or float32 [n, ...]")
        if len(self.x) != len(self.y):
            there = f"{counted(len(self.x), 'image')} and {counted(len(self.y), 'label')}"
            raise UserError(f"there are {there}; there must be as many of both")
        if self.y.dtype == np.int32 and self.y.size and self.y.min() < 0:
            image = int(self.y.argmin()) * len(self.y) // self.y.size
            raise UserError(f"label {self.y.min()} of image {image} is negative; labels count from 0")

    def __len__(self) -> int:
        return len(self.y)

    def facts(self):
        """The number of examples, and their type and shape."""
        return {"examples": f"{len(self):,}", "of": f"{self.x.dtype} {list(self.x.shape[1:])}"}

    @property
    def strata(self) -> np.ndarray:
        """int32 [n], the class of each example, for stratified draws; all 0 if examples have no single class."""
        return self.y if self.y.dtype == np.int32 and self.y.ndim == 1 else np.zeros(len(self), np.int32)

    @property
    def are_images(self) -> bool:
        """Whether these are images, which can be shown, turned and normalised by channel."""
        return self.x.dtype == np.uint8 and self.x.ndim == 4

    def take(self, index: np.ndarray) -> "Images":
        """Returns the images at `index`, in its order."""
        columns = (getattr(self, field.name) for field in dataclasses.fields(self))
        return Images(*(None if column is None else column[index] for column in columns))


@dataclasses.dataclass(frozen=True)
class Transform:
    """The change of a client's images and labels when it receives them.

    Attributes:
      degrees: The angle by which images are turned counter-clockwise, see `turned`.
      label_shift: Added to the label, modulo the number of classes, before `labels` applies.
      tone: The change of the image's colours or grey values, see `toned`.
      labels: Label y becomes `labels[y]`, one entry per class; empty for no change.
      classes: Only images of these classes, before labels change, are changed; None for all classes.
      gains: The factor of each feature of a table, before `offsets` are added; empty for no change.
      offsets: The offset of each feature, as many as `gains`.
    """

    degrees: int = 0
    label_shift: int = 0
    tone: str = ""
    labels: tuple[int, ...] = ()
    classes: tuple[int, ...] | None = None
    gains: tuple[float, ...] = ()
    offsets: tuple[float, ...] = ()

    @property
    def is_of_classes(self) -> bool:
        """Whether the transform changes labels, or only the examples of some classes."""
        return bool(self.label_shift or self.labels or self.classes is not None)

    def apply(self, images: Images, num_classes: int) -> Images:
        """Returns the images after the transform (the same object if it changes nothing).

        Args:
          images: Any number of images.
          num_classes: The number of labels.

        Raises:
          UserError: If examples that are not images would be turned or toned, or images would get `gains`.
        """
        if self == Transform():
            return images
        if self.classes is None:
            return Images(self._changed(images), self._relabelled(images.y, num_classes))
        x, which = images.x.copy(), np.flatnonzero(np.isin(images.y, self.classes))
        x[which] = self._changed(images.take(which))
        return Images(x, self._relabelled(images.y, num_classes))

    def of_class(self, label: int, num_classes: int) -> "Transform":
        """Returns the change of the examples of one class, as a transform without `labels` and `classes`.

        Transforms that change a class in the same way give equal results here, whatever they do to other classes.
        """
        to = int(self._relabelled(np.array([label], np.int32), num_classes)[0])
        if self.classes is not None and label not in self.classes:
            return Transform(label_shift=(to - label) % num_classes)
        return dataclasses.replace(self, label_shift=(to - label) % num_classes, labels=(), classes=None)

    def in_words(self) -> str:
        """Describes the change, e.g. "images of classes 2, 7 turned by 90 degrees"; "" for no change."""
        degrees = self.degrees % 360
        done = [f"turned by {degrees} degrees"] if degrees else []
        done += [f"made {self.tone}"] if self.tone else []
        done += ["measured by a device of their own"] if self.gains else []
        which = "examples" if self.gains else "images"
        which += "" if self.classes is None else f" of classes {', '.join(map(str, self.classes))}"
        words = [f"{which} {' and '.join(done)}"] if done else []
        words += [f"labels shifted by {self.label_shift}"] if self.label_shift else []
        moved = [f"{label} to {to}" for label, to in enumerate(self.labels) if label != to]
        words += (
            [f"labels changed: {', '.join(moved[:_SHOWN])}{' ...' if len(moved) > _SHOWN else ''}"] if moved else []
        )
        return "; ".join(words)

    def _changed(self, images: Images) -> np.ndarray:
        x, degrees = images.x, self.degrees
        if not images.are_images and (degrees % 360 or self.tone):
            raise UserError(f"examples of {x.dtype} {list(x.shape[1:])} are no images, which could be turned or tinted")
        if self.gains and (x.dtype != np.float32 or x.shape[1:] != (len(self.gains),)):
            raise UserError(f"examples of {x.dtype} {list(x.shape[1:])} are no {len(self.gains)} measured numbers")
        if self.gains:
            return x * np.float32(self.gains) + np.float32(self.offsets)
        if degrees % 360:
            x = turned(x, degrees)
        return toned(x, self.tone)

    def _relabelled(self, y: np.ndarray, num_classes: int) -> np.ndarray:
        if self.label_shift:
            y = ((y + self.label_shift) % num_classes).astype(np.int32)
        return np.asarray(self.labels, np.int32)[y] if self.labels else y


def turned(x: np.ndarray, degrees: int) -> np.ndarray:
    """Turns pictures about their centre, counter-clockwise; pixels that the turn leaves empty are black.

    Square pictures are turned exactly by multiples of 90 degrees. All other turns take the nearest pixel, as Pillow
    does by default, so no new grey values occur.

    Args:
      x: uint8 [n, height, width, channels].
      degrees: The angle.

    Returns:
      uint8 of the same shape, a new array.
    """
    height, width, channels = x.shape[1:]
    quarters, rest = divmod(degrees % 360, 90)
    if not rest and (height == width or quarters % 2 == 0):
        return np.ascontiguousarray(np.rot90(x, quarters, axes=(1, 2)))
    place, inside = _sources(height, width, degrees)
    pixels = x.reshape(len(x), height * width, channels)[:, place]
    pixels[:, ~inside] = 0
    return pixels.reshape(x.shape)


def _sources(height: int, width: int, degrees: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the source of each pixel of a turned picture, int64 [height * width], and whether it is inside, bool."""
    middle = np.array([(height - 1) / 2, (width - 1) / 2])
    down, right = (each.ravel() - at for each, at in zip(np.indices((height, width)), middle, strict=True))
    sine, cosine = np.sin(np.deg2rad(degrees)), np.cos(np.deg2rad(degrees))
    exact = np.stack([down * cosine + right * sine, right * cosine - down * sine]) + middle[:, None]
    # Rounded twice, so that the last bit of the sine does not decide between two pixels.
    row, column = np.floor(np.round(exact, 6) + 0.5).astype(np.int64)
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    return np.where(inside, row * width + column, 0), inside


def toned(x: np.ndarray, tone: str) -> np.ndarray:
    """Changes the colours or the grey values of pictures.

    Args:
      x: uint8 [n, height, width, channels].
      tone: "" for no change; "red", "green" or "blue": this channel of three becomes 255 everywhere (ANDA's colours);
        "negative": 255 minus the value; "faint": half the contrast, from 64 to 191.

    Returns:
      uint8 of the same shape; `x` itself for "".

    Raises:
      ValueError: For another tone, or a colour where there are not three channels.
    """
    if not tone:
        return x
    if tone == "negative":
        return 255 - x
    if tone == "faint":
        return 64 + x // 2
    if tone not in _CHANNEL or x.shape[-1] != 3:
        raise ValueError(f"pictures of {x.shape[-1]} channels have no tone {tone!r}")
    tinted = x.copy()
    tinted[..., _CHANNEL[tone]] = 255
    return tinted


def measured(x: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns mean and standard deviation of each channel of uint8 images [n, h, w, c], on the scale 0 to 1.

    Sums are whole numbers, which are exact, and are taken in blocks, because a float copy of a large data set would
    have eight times its size. A constant channel gets deviation 1.
    """
    total, squares = np.zeros(x.shape[-1], np.uint64), np.zeros(x.shape[-1], np.uint64)
    for start in range(0, len(x), _BLOCK):
        block = x[start : start + _BLOCK]
        total += block.sum(axis=(0, 1, 2), dtype=np.uint64)
        # 255 x 255 just fits in uint16.
        squares += np.square(block, dtype=np.uint16).sum(axis=(0, 1, 2), dtype=np.uint64)
    pixels = x.size // x.shape[-1]
    mean = total / pixels
    variance = np.maximum(squares / pixels - mean**2, 0.0)
    std = np.where(variance > 0, np.sqrt(variance) / 255, 1.0)
    return tuple((mean / 255).tolist()), tuple(std.tolist())
