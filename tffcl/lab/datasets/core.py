"""The types of this room: labelled images, a data set, a partition of it, and the two put together."""

import dataclasses
from typing import Any

import numpy as np

from tffcl.display import Shown, sizes_of
from tffcl.errors import UserError
from tffcl.lab.datasets import arrays, image_transforms

_TOLD = 10  # changes of labels that are told of a transform

_MOST_CLASSES = 100_000  # counts of labels by client and a model's last layer have an entry for each


@dataclasses.dataclass(frozen=True, eq=False)
class Images(Shown):
    """Labelled images, or other examples.

    Attributes:
      x: Images uint8 [n, height, width, channels], 0 to 255; other examples uint8, int32 or float32 [n, ...].
      y: int32 [n], labels from 0.
    """

    x: np.ndarray
    y: np.ndarray

    def __post_init__(self):
        """Raises UserError if an array has another type, rank or length, or is not finite."""
        if np.issubdtype(self.x.dtype, np.floating) and not np.isfinite(self.x).all():
            raise UserError(f"image {first_not_finite(self.x)} has a pixel that is not finite")
        if self.x.dtype not in (np.uint8, np.int32, np.float32) or not self.x.ndim:
            raise UserError(f"examples are {self.x.dtype} of rank {self.x.ndim}; they must be uint8, int32 or float32 [n, ...]")
        if self.y.dtype != np.int32 or self.y.ndim != 1:
            raise UserError(f"labels are {self.y.dtype} of rank {self.y.ndim}; they must be int32 of rank 1")
        if len(self.x) != len(self.y):
            raise UserError(f"{len(self.x)} images have {len(self.y)} labels; there must be as many of both")
        if len(self.y) and self.y.min() < 0:
            raise UserError(f"label {self.y.min()} of image {int(self.y.argmin())} is negative; labels count from 0")

    def __len__(self) -> int:
        return len(self.y)

    def facts(self):
        """How many of what."""
        return {"examples": f"{len(self):,}", "of": f"{self.x.dtype} {list(self.x.shape[1:])}"}

    @property
    def are_images(self) -> bool:
        """Whether these are images, which can be drawn, turned and normalised by channel."""
        return self.x.dtype == np.uint8 and self.x.ndim == 4

    def take(self, index: np.ndarray) -> "Images":
        """Returns the images at `index`, in its order."""
        return Images(self.x[index], self.y[index])


def first_not_finite(x: np.ndarray) -> int:
    """Returns the index along the first axis of the first value of `x` that is NaN or infinite."""
    return int(np.argmin(np.isfinite(x).reshape(len(x), -1).all(axis=1)))


@dataclasses.dataclass(frozen=True)
class Transform:
    """What happens to a client's images and labels when they are handed out.

    Attributes:
      quarter_turns: How often the image is turned by 90 degrees counter-clockwise (`np.rot90`).
      label_shift: Added to the label, modulo the number of classes, before `labels`.
      degrees: The image is turned further by this angle, counter-clockwise, see `image_transforms.turned`.
      tone: What becomes of the image's colours or grey values, see `image_transforms.toned`.
      labels: Label y becomes `labels[y]`, one entry per class; empty for no change.
      classes: The classes, before labels change, of which the images are changed; None for all.
    """

    quarter_turns: int = 0
    label_shift: int = 0
    degrees: int = 0
    tone: str = ""
    labels: tuple[int, ...] = ()
    classes: tuple[int, ...] | None = None

    def apply(self, images: Images, num_classes: int) -> Images:
        """Returns the images after the transform (the same object if it changes nothing).

        Args:
          images: Any number of them.
          num_classes: How many labels there are.

        Raises:
          UserError: If examples that are no images are to be turned or toned.
        """
        if self == Transform():
            return images
        if self.classes is None:
            return Images(self._changed(images), self._relabelled(images.y, num_classes))
        x, which = images.x.copy(), np.flatnonzero(np.isin(images.y, self.classes))
        x[which] = self._changed(images.take(which))
        return Images(x, self._relabelled(images.y, num_classes))

    def of_class(self, label: int, num_classes: int) -> "Transform":
        """Returns what happens to the examples of one class, as a transform without `labels` and `classes`.

        Transforms that do the same to a class give equal results here, whatever they do to others.
        """
        to = int(self._relabelled(np.array([label], np.int32), num_classes)[0])
        if self.classes is not None and label not in self.classes:
            return Transform(label_shift=(to - label) % num_classes)
        return Transform(self.quarter_turns, (to - label) % num_classes, self.degrees, self.tone)

    def in_words(self) -> str:
        """Says what changes, e.g. "images of classes 2, 7 turned by 90 degrees"; "" for nothing."""
        degrees = (90 * self.quarter_turns + self.degrees) % 360
        done = [f"turned by {degrees} degrees"] if degrees else []
        done += [f"made {self.tone}"] if self.tone else []
        which = "images" if self.classes is None else f"images of classes {', '.join(map(str, self.classes))}"
        words = [f"{which} {' and '.join(done)}"] if done else []
        words += [f"labels shifted by {self.label_shift}"] if self.label_shift else []
        moved = [f"{label} to {to}" for label, to in enumerate(self.labels) if label != to]
        words += [f"labels changed: {', '.join(moved[:_TOLD])}{' ...' if len(moved) > _TOLD else ''}"] if moved else []
        return "; ".join(words)

    def _changed(self, images: Images) -> np.ndarray:
        x, degrees = images.x, 90 * self.quarter_turns + self.degrees
        if not images.are_images and (degrees % 360 or self.tone):
            raise UserError(f"examples of {x.dtype} {list(x.shape[1:])} are no images, which could be turned or tinted")
        if degrees % 360:
            x = image_transforms.turned(x, degrees)
        return image_transforms.toned(x, self.tone)

    def _relabelled(self, y: np.ndarray, num_classes: int) -> np.ndarray:
        if self.label_shift:
            y = ((y + self.label_shift) % num_classes).astype(np.int32)
        return np.asarray(self.labels, np.int32)[y] if self.labels else y


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset(Shown):
    """A data set before it is handed out.

    Attributes:
      name: Its name in the catalog.
      train: The training images.
      test: The test images.
      num_classes: How many labels there are: 0 to num_classes - 1.
      mean: Subtracted from pixels on the scale 0 to 1; one value a channel.
      std: What pixels are divided by after that; one value a channel.
      class_names: Name of each label, or None.
      note: What a reader of results should know, e.g. that this is a part of the set; else "".
      train_owner: int32 [n], the natural client of each training image (e.g. FEMNIST's writer), or None.
      test_owner: The same for the test images.
      source_names: Where several sets are put together, their names; else empty.
      train_source: int32 [n], index into `source_names` for each training image, or None.
      test_source: The same for the test images.
      attribute_names: Names of yes-or-no attributes (CelebA); else empty.
      train_attributes: bool [n, attributes], or None.
      test_attributes: The same for the test images.
    """

    name: str
    train: Images
    test: Images
    num_classes: int
    mean: tuple[float, ...] | float
    std: tuple[float, ...] | float
    class_names: tuple[str, ...] | None = None
    note: str = ""
    train_owner: np.ndarray | None = None
    test_owner: np.ndarray | None = None
    source_names: tuple[str, ...] = ()
    train_source: np.ndarray | None = None
    test_source: np.ndarray | None = None
    attribute_names: tuple[str, ...] = ()
    train_attributes: np.ndarray | None = None
    test_attributes: np.ndarray | None = None

    def facts(self):
        """How much of what."""
        return {
            "name": self.name,
            "training examples": f"{len(self.train):,}",
            "test examples": f"{len(self.test):,}",
            "of": f"{self.train.x.dtype} {list(self.train.x.shape[1:])}",
            "classes": self.num_classes,
        }

    def __post_init__(self):
        """Raises UserError if there is no training image, a label is out of range or lengths differ."""
        if not len(self.train):
            raise UserError(f"{self.name}: there are no training images")
        if self.train.x.shape[1:] != self.test.x.shape[1:]:
            shapes = f"{self.train.x.shape[1:]} and test images {self.test.x.shape[1:]}"
            raise UserError(f"{self.name}: training images are {shapes}; the shapes must be equal")
        if self.num_classes > _MOST_CLASSES:
            raise UserError(
                f"{self.name}: there are labels up to {self.num_classes - 1}; at most {_MOST_CLASSES} classes are allowed, from 0"
            )
        for split, images in (("train", self.train), ("test", self.test)):
            if len(images) and images.y.max() >= self.num_classes:
                wrong, last = images.y.max(), self.num_classes - 1
                raise UserError(f"{self.name}: a {split} label is {wrong}; labels are 0 to {last}")
            for kind in ("owner", "source", "attributes"):
                array = getattr(self, f"{split}_{kind}")
                if array is not None and len(array) != len(images):
                    raise UserError(f"{self.name}: {len(images)} {split} images have {len(array)} entries of {kind}")

    @classmethod
    def from_arrays(cls, name: str, train, test, *, clients=None, num_classes: int | None = None) -> "Dataset":
        """Makes a data set of arrays of one's own, e.g. in a function that a task names as `[dataset] builder`.

        Args:
          name: For titles.
          train: `(x [n, ...], y [n])`. uint8 of rank 4 are images, whose mean and deviation are measured; other numbers reach
            the model as they are, whole ones as int32 (uint8 stays uint8), others as float32. Labels are whole numbers from 0.
          test: The same for the test examples.
          clients: For natural clients `(train [n], test [n])`, who holds each example, names or whole numbers; names become
            numbers in sorted order.
          num_classes: How many labels there are; None: one more than the largest.

        Raises:
          UserError: For arrays of other types or lengths, values that are not finite, labels out of range.
        """
        train, test = (
            Images(arrays.numbers_of(x, f"{name}: x of {split}"), arrays.labels_of(y, f"{name}: y of {split}"))
            for split, (x, y) in (("train", train), ("test", test))
        )
        largest = 1 + int(max(each.y.max(initial=-1) for each in (train, test)))
        mean: tuple[float, ...] | float = 0.0
        std: tuple[float, ...] | float = 1.0
        if train.are_images and len(train):
            mean, std = arrays.measured(train.x)
        owners: tuple[np.ndarray | None, np.ndarray | None] = (None, None)
        if clients is not None:
            of_train, of_test = map(np.asarray, clients)
            owners = arrays.owners_of(of_train, of_test, (f"{name}: clients of train", f"{name}: clients of test"))
        return cls(
            name,
            train,
            test,
            largest if num_classes is None else num_classes,
            mean,
            std,
            train_owner=owners[0],
            test_owner=owners[1],
        )

    def take(self, train: np.ndarray, test: np.ndarray) -> "Dataset":
        """Returns the data set of the training images at `train` and the test images at `test` only."""
        changes: dict[str, Any] = {"train": self.train.take(train), "test": self.test.take(test)}
        for kind in ("owner", "source", "attributes"):
            for split, index in (("train", train), ("test", test)):
                array = getattr(self, f"{split}_{kind}")
                changes[f"{split}_{kind}"] = None if array is None else array[index]
        return dataclasses.replace(self, **changes)


@dataclasses.dataclass(frozen=True, eq=False)
class Partition(Shown):
    """Who holds which examples of a data set, N clients.

    Attributes:
      train: One int64 array of indices into the training images per client; an index may be there several times.
      test: One int64 array of indices into the test images per client; clients may share an array.
      groups: int32 [N], the group each client was made in, or None where there are no true groups.
      transforms: What happens to each client's examples, or None for nothing.
    """

    train: tuple[np.ndarray, ...]
    test: tuple[np.ndarray, ...]
    groups: np.ndarray | None = None
    transforms: tuple[Transform, ...] | None = None

    def facts(self):
        """How many clients hold how much."""
        groups = {} if self.groups is None else {"true groups": len(np.unique(self.groups))}
        sizes = sizes_of(list(map(len, self.train))) if self.train else "none"
        return {"clients": len(self.train), "training examples each": sizes, **groups}

    def __post_init__(self):
        """Raises ValueError if the parts are of different numbers of clients."""
        lengths = {len(part) for part in (self.train, self.test, self.groups, self.transforms) if part is not None}
        if len(lengths) != 1:
            raise ValueError(f"the parts of a partition are of {sorted(lengths)} clients")


@dataclasses.dataclass(frozen=True, eq=False)
class FederatedDataset(Shown):
    """A data set as N clients hold it. Each distinct image after transforms is stored once, in a pool.

    Attributes:
      name: Data set and partition, e.g. "digits/rotated".
      train: Pool of training images, after transforms.
      test: Pool of test images, after transforms: the union of all clients' test sets.
      num_classes: How many labels there are.
      mean: Per channel, on the scale 0 to 1.
      std: Per channel, on the scale 0 to 1.
      train_indices: One int64 array of indices into `train` per client.
      test_indices: One int64 array of indices into `test` per client; clients may share an array.
      true_groups: int32 [N], or None where there are no true groups.
      class_names: Name of each label, or None.
      note: What a reader of results should know; else "".
      server: The server's own images, as they are before any client's transform, or None. Methods may look at
        the pictures only; the labels are for those who check the balance.
      transforms: What has been done to each client's examples, to be told to readers; None for nothing.
      validation_indices: One int64 array of indices into `train` per client, which are not in `train_indices`: examples to
        choose hyper-parameters by. None where none are held out.
    """

    name: str
    train: Images
    test: Images
    num_classes: int
    mean: tuple[float, ...] | float
    std: tuple[float, ...] | float
    train_indices: tuple[np.ndarray, ...]
    test_indices: tuple[np.ndarray, ...]
    true_groups: np.ndarray | None
    class_names: tuple[str, ...] | None = None
    note: str = ""
    server: Images | None = None
    transforms: tuple[Transform, ...] | None = None
    validation_indices: tuple[np.ndarray, ...] | None = None

    @property
    def num_clients(self) -> int:
        return len(self.train_indices)

    def facts(self):
        """Who holds how much of what."""
        groups = {} if self.true_groups is None else {"true groups": len(np.unique(self.true_groups))}
        return {
            "name": self.name,
            "clients": self.num_clients,
            "training examples each": sizes_of(list(map(len, self.train_indices))),
            "test examples each": sizes_of(list(map(len, self.test_indices))),
            "classes": self.num_classes,
            **groups,
        }

    def label_counts(self) -> np.ndarray:
        """Returns int64 [N, num_classes]: how many training examples of each label each client holds."""
        rows = [np.bincount(self.train.y[index], minlength=self.num_classes) for index in self.train_indices]
        return np.stack(rows).astype(np.int64)
