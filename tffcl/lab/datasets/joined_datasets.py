"""Several data sets as one, each image marked with where it is from."""

from collections.abc import Sequence

import numpy as np

from tffcl.errors import UserError
from tffcl.lab.datasets.core import Dataset, Images
from tffcl.validation import one_of, validated

LABELS = ("common", "apart")


@validated
def mixture(datasets: Sequence[Dataset], *, labels: one_of(LABELS)) -> Dataset:
    """Puts data sets together.

    Labels in common: the sets must have images of one shape and as many classes; label y means one thing here
    and another there (StoCFL's hybrid). Labels apart: smaller images get a black frame, grey ones three equal
    channels, and the labels of each set come after those of the one before (PACFL's MIX-4: FMNIST framed by
    2, USPS by 8; 40 labels).

    A model has one mean and deviation, so those of the sets are averaged channel by channel; PACFL's code
    normalises each set with its own. With "unit" and "half" there is no difference.

    Args:
      datasets: Two or more.
      labels: "common" or "apart".

    Raises:
      UserError: If labels are in common and shapes or numbers of classes differ, or numbers of channels do
        not fit.
    """
    if labels == "common":
        _check_alike(datasets)
        offsets, num_classes = [0] * len(datasets), datasets[0].num_classes
    else:
        *offsets, num_classes = np.cumsum([0] + [each.num_classes for each in datasets]).tolist()
    shape = tuple(max(each.train.x.shape[axis] for each in datasets) for axis in (1, 2, 3))
    for each in datasets:
        if each.train.x.shape[3] not in (1, shape[2]):
            raise UserError(f"{each.name} has {each.train.x.shape[3]} channels; beside {shape[2]} it must have 1")
    parts = {}
    for split in ("train", "test"):
        images = [getattr(each, split) for each in datasets]
        x = np.concatenate([framed(each.x, shape) for each in images])
        y = np.concatenate([each.y + np.int32(offset) for each, offset in zip(images, offsets, strict=True)])
        parts[split] = Images(x, y)
        parts[f"{split}_source"] = np.repeat(np.arange(len(images), dtype=np.int32), [len(each) for each in images])
    mean, std = ([_per_channel(getattr(each, what), shape[2]) for each in datasets] for what in ("mean", "std"))
    return Dataset(
        name="+".join(each.name for each in datasets),
        num_classes=num_classes,
        mean=tuple(np.mean(mean, axis=0).tolist()),
        std=tuple(np.mean(std, axis=0).tolist()),
        class_names=_names(datasets, labels),
        note="; ".join(each.note for each in datasets if each.note),
        source_names=tuple(each.name for each in datasets),
        **parts,
    )


def _check_alike(datasets):
    first = datasets[0]
    for each in datasets[1:]:
        for what, ours, theirs in (
            ("images", first.train.x.shape[1:], each.train.x.shape[1:]),
            ("classes", first.num_classes, each.num_classes),
        ):
            if ours != theirs:
                raise UserError(f"{what} of {first.name} are {ours} and of {each.name} {theirs}; hybrid needs them equal")


def framed(x: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray:
    """Returns images [n, h, w, c] in the middle of black ones of `shape`; grey ones get equal channels."""
    height, width, channels = shape
    down, right = height - x.shape[1], width - x.shape[2]
    x = np.pad(x, ((0, 0), (down // 2, down - down // 2), (right // 2, right - right // 2), (0, 0)))
    return x if x.shape[3] == channels else np.repeat(x, channels, axis=3)


def _per_channel(values, channels: int) -> np.ndarray:
    return np.broadcast_to(np.asarray(values, float), (channels,))


def _names(datasets, labels):
    if any(each.class_names is None for each in datasets):
        return None
    if labels == "apart":
        return tuple(f"{each.name} {name}" for each in datasets for name in each.class_names)
    return tuple(" / ".join(dict.fromkeys(names)) for names in zip(*(each.class_names for each in datasets), strict=True))
