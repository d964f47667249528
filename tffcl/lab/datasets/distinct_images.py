"""From a data set and who holds what of it to pools of images in which each distinct one is stored once."""

from collections.abc import Sequence

import numpy as np

from tffcl.lab.datasets.core import Images, Transform


def pool(
    images: Images, held: Sequence[np.ndarray], transforms: Sequence[Transform] | None, num_classes: int
) -> tuple[Images, tuple[np.ndarray, ...]]:
    """Gathers what clients hold, after their transforms.

    Args:
      images: All images.
      held: Per client, int64 indices into `images`.
      transforms: Per client, or None for nothing.
      num_classes: For changes of labels.

    Returns:
      The pool, and per client int64 indices into it. Images that nobody holds are left out. An image with which the
      transforms of two clients do the same, by its class, is there once. Clients that shared an array of indices share one
      again.
    """
    transforms = transforms or [Transform()] * len(held)
    numbers, of_class = _by_class(transforms, num_classes)
    arrays = {(transform, id(index)): index for index, transform in zip(held, transforms, strict=True)}
    used = np.zeros((len(numbers), len(images)), bool)
    for (transform, _), index in arrays.items():
        used[of_class[transform][images.y[index]], index] = True
    # The pool has the used pairs of transform and image in this order.
    place = np.cumsum(used).reshape(used.shape) - 1
    moved = {
        (transform, key): place[of_class[transform][images.y[index]], index].astype(np.int64)
        for (transform, key), index in arrays.items()
    }
    together = _filled(images, list(numbers), used, num_classes)
    return together, tuple(moved[transform, id(index)] for index, transform in zip(held, transforms, strict=True))


def _by_class(transforms: Sequence[Transform], num_classes: int) -> tuple[dict[Transform, int], dict[Transform, np.ndarray]]:
    """Returns numbers of all that is done to the examples of a class, and for each transform the number of each class."""
    numbers: dict[Transform, int] = {}
    of_class = {}
    for transform in dict.fromkeys(transforms):
        plain = [transform.of_class(label, num_classes) for label in range(num_classes)]
        of_class[transform] = np.array([numbers.setdefault(each, len(numbers)) for each in plain])
    return numbers, of_class


def _filled(images: Images, plain: Sequence[Transform], used: np.ndarray, num_classes: int) -> Images:
    """Applies each of `plain` to the images of its row of `used`; beside the result only one of the pieces is in memory."""
    rows = np.flatnonzero(used.any(axis=1))
    if len(rows) == 1 and used[rows[0]].all():
        return plain[rows[0]].apply(images, num_classes)
    x = np.empty((int(used.sum()), *images.x.shape[1:]), images.x.dtype)
    y = np.empty(len(x), np.int32)
    start = 0
    for row in rows:
        piece = plain[row].apply(images.take(np.flatnonzero(used[row])), num_classes)
        x[start : start + len(piece)], y[start : start + len(piece)] = piece.x, piece.y
        start += len(piece)
    return Images(x, y)
