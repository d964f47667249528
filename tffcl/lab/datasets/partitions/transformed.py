"""Groups of clients whose images are turned, or whose labels are shifted (IFCA; StoCFL, appendix A.1)."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np

from tffcl.errors import UserError
from tffcl.lab.datasets.core import Dataset, Partition
from tffcl.lab.datasets.images import Transform
from tffcl.lab.datasets.partitions.local_tests import Domains, Rule, with_tests
from tffcl.lab.datasets.partitions.splitting import block_groups, enough, equal_parts, joined
from tffcl.validation import Count, Whole, check_value, validated, wrong

# How many equal parts a full turn has, or which angles there are.
Rotations = (
    Annotated[int, msgspec.Meta(ge=1, le=360)]
    | Annotated[
        Sequence[Annotated[int, msgspec.Meta(ge=0, le=359)]],
        msgspec.Meta(min_length=1, description="different whole degrees from 0 to 359, e.g. [0, 36, 72]"),
    ]
)
_Shifts = Annotated[
    Sequence[Whole], msgspec.Meta(min_length=1, description="different whole numbers, e.g. [0, 3, 6, 9]")
]


@validated
def rotated(
    dataset: Dataset, *, seed: Whole, clients: Count, rotations: Rotations = 4, reuse: bool = True, test: Rule = "share"
) -> Partition:
    """Makes equal blocks of clients whose images are turned: by 0, 90, 180 and 270 degrees, or by other angles.

    Args:
      dataset: The data set.
      seed: Decides who gets what.
      clients: How many clients; a multiple of the number of rotations.
      rotations: The number of true groups, whose images are turned by equal parts of a full turn: 2 are 0 and 180
        degrees, 10 are those of StoCFL's Fig. 2 (b). Or the angles in degrees, counter-clockwise, e.g. [0, 15, 30].
      reuse: True: each block has all images, shared out among its clients, as in IFCA and StoCFL. False: each
        image is with one client only.
      test: Which test images a client has: all of its "classes", "all" of its domain, a "share" of these, or its "own";
        a client's test images are turned as its training images are.

    Raises:
      UserError: If the clients do not divide, there are too few examples, or images to be turned otherwise than by 180
        degrees are not square.
    """
    turns = turned(dataset, rotations)
    return _grouped(dataset, turns, "rotations", seed=seed, clients=clients, reuse=reuse, test=test)


def turned(dataset: Dataset, rotations: int | Sequence[int]) -> list[Transform]:
    """Returns the transforms that turn images by these degrees, or by as many equal parts of a full turn.

    Raises:
      UserError: If an angle is there twice, or images to be turned otherwise than by 180 degrees are not square.
    """
    many = isinstance(rotations, int)
    angles = [360 * number // rotations for number in range(rotations)] if many else list(rotations)
    if len(set(angles)) < len(angles):
        raise wrong("rotations", rotations, "it must be different whole degrees from 0 to 359, e.g. [0, 36, 72]")
    height, width = dataset.train.x.shape[1:3]
    skew = [angle for angle in angles if angle % 180]
    if skew and height != width:
        raise UserError(
            f"{dataset.name}'s images are {height}x{width}: only square ones turn by {skew[0]} degrees; use 2"
        )
    return [Transform(quarter_turns=angle // 90, degrees=angle % 90) for angle in angles]


@validated
def shifted(
    dataset: Dataset,
    *,
    seed: Whole,
    clients: Count,
    shifts: _Shifts = (0, 3, 6, 9),
    reuse: bool = True,
    examples_per_client: Count | None = None,
    test: Rule = "share",
) -> Partition:
    """Makes equal blocks of clients whose labels y become (y + shift) modulo the number of classes.

    Args:
      dataset: The data set.
      seed: Decides who gets what.
      clients: How many clients; a multiple of the number of shifts.
      shifts: One per true group, all different.
      reuse: As in `rotated`.
      examples_per_client: Only so many of a client's part, at random; default all of it. Of 20 clients of MNIST 9,600
        of 12,000 in StoCFL's Table 2.
      test: Which test images a client has: all of its "classes", "all" of its domain, a "share" of these, or its "own";
        a client's test labels are shifted as its training labels are.

    Raises:
      UserError: If the clients do not divide, there are too few examples, or a shift is not one.
    """
    if len(set(shifts)) < len(shifts):
        raise UserError(f"shifts is {shifts!r}; it must be different whole numbers, e.g. [0, 3, 6, 9]")
    for shift in shifts:
        check_value("a shift", shift, Annotated[int, msgspec.Meta(ge=0, le=dataset.num_classes - 1)])
    moves = [Transform(label_shift=shift) for shift in shifts]
    return _grouped(
        dataset, moves, "shifts", seed=seed, clients=clients, reuse=reuse, test=test, each=examples_per_client
    )


def _grouped(dataset, transforms, what, *, seed, clients, reuse, test, each=None):
    groups = block_groups(clients, len(transforms), what)
    rng = np.random.default_rng(seed)
    everything = np.arange(len(dataset.train))
    if reuse:
        block = clients // len(transforms)
        enough(block, len(everything))
        parts = [part for _ in transforms for part in equal_parts(everything, block, rng)]
    else:
        enough(clients, len(everything))
        parts = equal_parts(everything, clients, rng)
    least = min(len(part) for part in parts)
    if each is not None and each > least:
        raise UserError(f"examples_per_client is {each}; a client's part has {least}, and it must be at most that")
    # With reuse every group has the test images to itself; without, a test image too is used once.
    of_client = groups if reuse else np.zeros(clients, int)
    domains = Domains(of_client, [np.arange(len(dataset.test))] * (len(transforms) if reuse else 1))
    train = [joined([part[:each]]) for part in parts]
    of_each = [transforms[group] for group in groups]
    return with_tests(dataset, train, test=test, seed=seed, groups=groups, transforms=of_each, domains=domains)
