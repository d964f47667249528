"""The check of who holds what: a partition may be a user's own."""

from collections.abc import Sequence

import numpy as np

from tffcl.errors import UserError


def checked_indices(held: Sequence, count: int, kind: str, where: str) -> tuple[np.ndarray, ...]:
    """Returns what each client holds as int64 indices; clients that shared an array share one again.

    Args:
      held: Per client, indices into examples, or a mask that says of each example whether the client holds it. The same
        example may be there several times.
      count: How many examples there are.
      kind: Of examples, for messages.
      where: The partition, for messages.

    Raises:
      UserError: If something else is there, by client.
    """
    known: dict[int, np.ndarray] = {}
    for client, index in enumerate(held):
        if id(index) not in known:
            known[id(index)] = _checked(index, count, f"{where}: the {kind} indices of client {client}")
    return tuple(known[id(index)] for index in held)


def _checked(index, count: int, what: str) -> np.ndarray:
    try:
        array = np.asarray(index)
    except ValueError:  # lists of unequal lengths
        array = np.empty([0, 0], object)
    if array.dtype == bool and array.shape == (count,):
        return np.flatnonzero(array)
    if array.ndim == 1 and not len(array):
        return np.zeros(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        kind = f"{array.dtype} of rank {array.ndim}"
        raise UserError(f"{what} are {kind}; they must be integers of rank 1, or a mask of {count} entries")
    lowest, highest = int(array.min()), int(array.max())
    if lowest < 0 or highest >= count:
        wrong = lowest if lowest < 0 else highest
        raise UserError(f"{what} have {wrong}; there are {count} examples, from 0 to {count - 1}")
    return array.astype(np.int64, copy=False)


def checked_groups(groups, where: str) -> np.ndarray | None:
    """Returns the true groups as int32 [N], or None for none; UserError if they are no integers."""
    if groups is None:
        return None
    array = np.asarray(groups)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise UserError(f"{where}: the groups are {array.dtype} of rank {array.ndim}; they must be integers, one a client")
    return array.astype(np.int32)
