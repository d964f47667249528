"""Handing out examples: the small steps that the partitions are made of."""

from collections.abc import Sequence

import numpy as np

from tffcl.errors import UserError


def equal_parts(examples: np.ndarray, parts: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Shuffles `examples` and cuts them in `parts` near-equal parts (sizes differ by one at most)."""
    return np.array_split(rng.permutation(examples), parts)


def power_parts(
    examples: np.ndarray, parts: int, rng: np.random.Generator, *, power: float, min_size: int = 10
) -> list[np.ndarray]:
    """Shuffles `examples` and cuts them in `parts`, whose sizes follow a power law.

    Each has `min_size` first; of the rest the part of rank r (from 1) has a number that falls as r to the -`power`.
    Ranks are dealt at random.

    Raises:
      UserError: If there are fewer examples than `min_size` for each part.
    """
    enough(parts, len(examples), each=min_size)
    weights = np.arange(1, parts + 1) ** -float(power)
    rest = len(examples) - parts * min_size
    bounds = np.round(np.cumsum(rng.permutation(weights)) / weights.sum() * rest).astype(int)
    sizes = min_size + np.diff(bounds, prepend=0)
    return np.split(rng.permutation(examples), np.cumsum(sizes)[:-1])


def by_class(y: np.ndarray, num_classes: int) -> list[np.ndarray]:
    """Returns, for each class, the int64 indices of its examples, ascending."""
    order = np.argsort(y, kind="stable")
    return np.split(order, np.searchsorted(y[order], np.arange(1, num_classes)))


def joined(pieces: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the pieces as one ascending int64 array."""
    if not len(pieces):
        return np.zeros(0, np.int64)
    return np.sort(np.concatenate(pieces)).astype(np.int64)


def share_classes(
    examples: Sequence[np.ndarray], owners: Sequence[Sequence[int]], clients: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Splits each class near-equally among the clients that own it, in the order of the owners.

    Args:
      examples: Per class, its examples.
      owners: Per class, the clients that own it; a class of nobody is left out.
      clients: How many clients there are.
      rng: Shuffles each class.

    Returns:
      Per client, its examples, ascending.
    """
    pieces = [[] for _ in range(clients)]
    for index, holders in zip(examples, owners, strict=True):
        if len(holders):
            for client, part in zip(holders, equal_parts(index, len(holders), rng), strict=True):
                pieces[client].append(part)
    return [joined(each) for each in pieces]


def block_groups(clients: int, groups: int, what: str) -> np.ndarray:
    """Returns int32 [clients]: the group of each client, equal blocks of consecutive clients.

    Raises:
      UserError: If the clients do not divide into the groups; `what` names these, e.g. "rotations".
    """
    if clients % groups:
        raise UserError(f"{clients} clients do not divide into {groups} {what}; clients must be a multiple of {groups}")
    return np.repeat(np.arange(groups, dtype=np.int32), clients // groups)


def near_blocks(clients: int, groups: int) -> np.ndarray:
    """Returns int32 [clients]: each client's group, blocks of consecutive clients whose sizes differ by at most one."""
    return (np.arange(clients) * groups // clients).astype(np.int32)


def enough(clients: int, examples: int, what: str = "training examples", each: int = 1):
    """Raises UserError if `clients` clients cannot have `each` of `examples` examples."""
    if clients * each > examples:
        needed = f"{each} each need {clients * each}" if each > 1 else "each needs one"
        raise UserError(f"{clients} clients and only {examples} {what}: {needed}")
