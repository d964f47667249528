"""Groups of clients that hold groups of classes: StoCFL's pathological setting, FLT's scenarios 1 and 2."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np

from tffcl.errors import UserError
from tffcl.lab.datasets.core import Dataset, Partition, Transform
from tffcl.lab.datasets.partitions.local_tests import Domains, Rule, with_tests
from tffcl.lab.datasets.partitions.splitting import block_groups, by_class, enough, share_classes
from tffcl.lab.datasets.partitions.transformed import Rotations, turned
from tffcl.validation import Count, Whole, check_value, one_of, validated

SCHEMES = ("flt1", "flt2", "stocfl")
_Scheme = one_of(SCHEMES)
_Groups = Annotated[
    Sequence[Annotated[Sequence[Whole], msgspec.Meta(min_length=1)]],
    msgspec.Meta(min_length=1, description="lists of classes, e.g. [[0, 1], [2, 3]]"),
]
_STOCFL = ((0, 1, 2), (3, 4), (5, 6), (7, 8, 9))


def scheme_groups(scheme: str, num_classes: int, rng: np.random.Generator) -> list[list[int]]:
    """Returns the groups of classes of a published scheme, which is for 10 classes.

    "stocfl": {0,1,2}, {3,4}, {5,6}, {7,8,9} (StoCFL, appendix A.1). "flt1": five random pairs (FLT, scenario
    1). "flt2": five triples of a random order, in a ring, each with one class in common with the next (FLT,
    scenario 2).
    """
    check_value("scheme", scheme, _Scheme)
    if num_classes != 10:
        raise UserError(f"scheme {scheme!r} is for 10 classes, not {num_classes}; give groups = [[...], ...]")
    if scheme == "stocfl":
        return [list(group) for group in _STOCFL]
    order = rng.permutation(10)
    width = 2 if scheme == "flt1" else 3
    return [[int(order[(start + step) % 10]) for step in range(width)] for start in range(0, 10, 2)]


def _checked(groups: list[list[int]], num_classes: int) -> list[list[int]]:
    for group in groups:
        if len(set(group)) < len(group):
            raise UserError(f"groups has {group!r}; each must be a list of different classes")
        for label in group:
            check_value("a class in groups", label, Annotated[int, msgspec.Meta(ge=0, le=num_classes - 1)])
    return groups


@validated
def label_groups(
    dataset: Dataset,
    *,
    seed: Whole,
    clients: Count,
    groups: _Groups | None = None,
    scheme: _Scheme | None = None,
    share: bool = False,
    rotations: Rotations = 1,
    test: Rule = "classes",
) -> Partition:
    """Gives each group of classes to an equal block of clients, each class in near-equal parts.

    A class of one group is shared out among its clients. A class of several groups is shared out among the
    clients of all of them, or, with `share`, in each of them anew: clients of different groups then hold the
    same examples, as in FLT's code. Classes of no group are not used. The true groups are the blocks.

    With `rotations`, all of that is done once for each rotation, of all examples: with 2 and the scheme "stocfl" there are
    the eight true groups of StoCFL's Fig. 7.

    Args:
      dataset: The data set.
      seed: Decides who gets what.
      clients: How many clients; a multiple of the number of groups.
      groups: The groups of classes.
      scheme: Instead of `groups`, a published scheme for 10 classes: "stocfl" (0 to 2, 3 and 4, 5 and 6, 7 to 9), "flt1" (five
        random pairs), or "flt2" (five triples in a ring, each with one class in common with the next).
      share: If examples of a class of several groups are given once for each of them.
      rotations: As in `rotated`, 1 for none; equal blocks of clients, all of a rotation side by side.
      test: As in `local_tests`.

    Raises:
      UserError: If not one of `groups` and `scheme` is given, a class does not exist, the clients do not
        divide into the groups, or there are too few examples.
    """
    turns = turned(dataset, rotations)
    if (groups is None) == (scheme is None):
        raise UserError(f"label_groups needs either groups = [[...], ...] or scheme (one of {', '.join(SCHEMES)})")
    rng = np.random.default_rng(seed)
    chosen = _checked(groups, dataset.num_classes) if scheme is None else scheme_groups(scheme, dataset.num_classes, rng)
    of_client = block_groups(clients, len(chosen) * len(turns), "groups")
    once = of_client[: clients // len(turns)]
    examples = by_class(dataset.train.y, dataset.num_classes)
    for group in chosen:
        enough(
            len(once) // len(chosen),
            sum(len(examples[label]) for label in group),
            f"examples of classes {group}",
        )
    give = _shared if share else _once
    train = [part for _ in turns for part in give(examples, chosen, once, rng)]
    turn_of = of_client // len(chosen)
    # Every rotation has the test images to itself.
    domains = Domains(turn_of, [np.arange(len(dataset.test))] * len(turns))
    transforms = [turns[each] for each in turn_of] if len(turns) > 1 or turns[0] != Transform() else None
    return with_tests(dataset, train, test=test, seed=seed, groups=of_client, transforms=transforms, domains=domains)


def _once(examples, chosen, of_client, rng):
    owners = [[client for client, group in enumerate(of_client) if label in chosen[group]] for label in range(len(examples))]
    return share_classes(examples, owners, len(of_client), rng)


def _shared(examples, chosen, of_client, rng):
    train = [None] * len(of_client)
    for number, group in enumerate(chosen):
        members = np.flatnonzero(of_client == number)
        everyone = range(len(members))
        parts = share_classes([examples[label] for label in group], [everyone] * len(group), len(members), rng)
        for client, part in zip(members, parts, strict=True):
            train[client] = part
    return train
