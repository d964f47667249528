"""From a data set and who holds what of it to pools of images in which each distinct one is stored once."""

from collections.abc import Sequence

import numpy as np

from tffcl.datasets.core import Images, Transform


def pool(
    images: Images, held: Sequence[np.ndarray], transforms: Sequence[Transform] | None, num_classes: int
) -> tuple[Images, tuple[np.ndarray, ...]]:
    """Gathers what clients hold, after their transforms.

    Args:
      images: All images.
      held: Per client, int64 indices into `images`.
      transforms: Per client, or None for nothing.
      num_classes: For shifts of labels.

    Returns:
      The pool, and per client int64 indices into it. Images that nobody holds are left out. Clients that
      shared an array of indices share one again.
    """
    transforms = transforms or [Transform()] * len(held)
    pieces, moved, start = [], {}, 0
    for transform in dict.fromkeys(transforms):
        arrays = {id(index): index for index, each in zip(held, transforms, strict=True) if each == transform}
        used = np.zeros(len(images), bool)
        for index in arrays.values():
            used[index] = True
        place = start + np.cumsum(used) - 1
        for key, index in arrays.items():
            moved[transform, key] = place[index].astype(np.int64)
        chosen = images if used.all() else images.take(np.flatnonzero(used))
        pieces.append(transform.apply(chosen, num_classes))
        start += len(chosen)
    indices = tuple(moved[transform, id(index)] for index, transform in zip(held, transforms, strict=True))
    if len(pieces) == 1:
        return pieces[0], indices
    joined = Images(np.concatenate([each.x for each in pieces]), np.concatenate([each.y for each in pieces]))
    return joined, indices
