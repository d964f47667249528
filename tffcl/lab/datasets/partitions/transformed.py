"""Groups of clients whose images are turned, or whose labels are shifted (IFCA; StoCFL, appendix A.1); for tables,
groups of clients whose devices measure in other ways."""

import functools
from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np

from tffcl.errors import UserError
from tffcl.lab.datasets.core import Dataset, Partition
from tffcl.lab.datasets.images import Transform
from tffcl.lab.datasets.partitions.splitting import (
    Domains,
    Rule,
    block_groups,
    enough,
    equal_parts,
    joined,
    power_parts,
    with_tests,
)
from tffcl.validation import Count, NonNegative, Whole, check_value, validated, wrong

_OF_DEVICES = 0xDE71CE  # a separate random stream, so that clients get the same examples with any devices

# The number of equal parts of a full turn, or the angles.
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
    dataset: Dataset,
    *,
    seed: Whole,
    clients: Count,
    rotations: Rotations = 4,
    reuse: bool = True,
    power: NonNegative = 0,
    test: Rule = "share",
) -> Partition:
    """Makes equal blocks of clients whose images are turned: by 0, 90, 180 and 270 degrees, or by other angles.

    Args:
      seed: Decides which images each client gets.
      clients: How many clients; a multiple of the number of rotations.
      rotations: The number of true groups, whose images are turned by equal parts of a full turn: 2 means 0 and 180
        degrees, 10 is StoCFL's Fig. 2 (b). Or the angles in degrees, counter-clockwise, e.g. [0, 15, 30].
      reuse: True: each block has all images, split among its clients, as in IFCA and StoCFL. False: each image goes to
        only one client.
      power: 0: clients hold equally many images. Otherwise each client first gets ten images, and the rest follows a
        power law, as in `quantity_skew`; within each block, or without `reuse` among all clients.
      test: A client's test images: all of its "classes", "all" of its domain, or a "share" of these. They are
        turned like its training images.

    Raises:
      UserError: If the clients do not divide equally, there are too few examples, or images that are not square would
        be turned by other angles than 180 degrees.
    """
    turns = turned(dataset, rotations)
    cut = functools.partial(power_parts, power=power) if power else equal_parts
    return _grouped(dataset, turns, "rotations", seed=seed, clients=clients, reuse=reuse, test=test, cut=cut)


def turned(dataset: Dataset, rotations: int | Sequence[int]) -> list[Transform]:
    """Returns the transforms that turn images by these angles, or by this number of equal parts of a full turn.

    Raises:
      UserError: If an angle occurs twice, the examples are not images, or images that are not square would be turned by
        other angles than 180 degrees.
    """
    many = isinstance(rotations, int)
    angles = [360 * number // rotations for number in range(rotations)] if many else list(rotations)
    if len(set(angles)) < len(angles):
        raise wrong("rotations", rotations, "it must be different whole degrees from 0 to 359, e.g. [0, 36, 72]")
    if any(angles) and not dataset.train.are_images:
        raise UserError(f"the examples of {dataset.name} are no images, which could be turned; devices shifts numbers")
    skew = [angle for angle in angles if angle % 180]
    if skew and dataset.train.x.shape[1] != dataset.train.x.shape[2]:
        height, width = dataset.train.x.shape[1:3]
        raise UserError(
            f"{dataset.name}'s images are {height}x{width}: only square ones turn by {skew[0]} degrees; use 2"
        )
    return [Transform(degrees=angle) for angle in angles]


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
      seed: Decides which examples each client gets.
      clients: How many clients; a multiple of the number of shifts.
      shifts: One shift for each true group, all different.
      reuse: As in `rotated`.
      examples_per_client: The number of random examples that a client keeps of its part; default all. StoCFL's Table 2
        has 9,600 of 12,000, for 20 clients of MNIST.
      test: A client's test images: all of its "classes", "all" of its domain, or a "share" of these. Their
        labels are shifted like its training labels.

    Raises:
      UserError: If the clients do not divide equally, there are too few examples, or a shift is out of range.
    """
    if len(set(shifts)) < len(shifts):
        raise UserError(f"shifts is {shifts!r}; it must be different whole numbers, e.g. [0, 3, 6, 9]")
    classes = dataset.classes_for("shifted")
    for shift in shifts:
        check_value("a shift", shift, Annotated[int, msgspec.Meta(ge=0, le=classes - 1)])
    moves = [Transform(label_shift=shift) for shift in shifts]
    return _grouped(
        dataset, moves, "shifts", seed=seed, clients=clients, reuse=reuse, test=test, each=examples_per_client
    )


@validated
def devices(
    dataset: Dataset,
    *,
    seed: Whole,
    clients: Count,
    devices: Count = 3,
    shift: NonNegative = 0.5,
    reuse: bool = False,
    test: Rule = "share",
) -> Partition:
    """Makes equal blocks of clients whose numbers are measured by differently calibrated devices: a shift of P(X) for
    tables.

    The first device measures correctly. Each other device shows gain * x + offset for a feature x. It has its own gain
    and offset for each feature, drawn uniformly: the logarithm of the gain from -`shift` to `shift`, and the offset
    from -`shift` to `shift` times the feature's deviation over the training examples.

    Args:
      dataset: The data set, of float32 examples `[n, features]`.
      seed: Decides the devices, and which examples each client gets.
      clients: How many clients; a multiple of the number of devices.
      devices: The number of true groups.
      shift: How much the devices differ; 0: they all measure the same.
      reuse: As in `rotated`.
      test: A client's test examples: all of its "classes", "all" of its domain, or a "share" of these. The
        client's device measures them, too.

    Raises:
      UserError: If the examples are not such numbers, the clients do not divide equally, or there are too few examples.
    """
    x = dataset.train.x
    if x.dtype != np.float32 or x.ndim != 2:
        raise UserError(
            f"devices needs numbers that are measured, float32 [n, features]; the examples of {dataset.name} are "
            f"{x.dtype} of shape {list(x.shape)}"
        )
    rng = np.random.default_rng([seed, _OF_DEVICES])
    readings = [Transform()]
    for _ in range(devices - 1):
        gains, offsets = rng.uniform(-shift, shift, (2, x.shape[1]))
        gains, offsets = np.exp(gains), offsets * x.std(axis=0)
        readings.append(Transform(gains=tuple(gains.tolist()), offsets=tuple(offsets.tolist())))
    return _grouped(dataset, readings, "devices", seed=seed, clients=clients, reuse=reuse, test=test)


def _grouped(dataset, transforms, what, *, seed, clients, reuse, test, each=None, cut=equal_parts):
    groups = block_groups(clients, len(transforms), what)
    rng = np.random.default_rng(seed)
    everything = np.arange(len(dataset.train))
    if reuse:
        block = clients // len(transforms)
        enough(block, len(everything))
        parts = [part for _ in transforms for part in cut(everything, block, rng)]
    else:
        enough(clients, len(everything))
        parts = cut(everything, clients, rng)
    least = min(len(part) for part in parts)
    if each is not None and each > least:
        raise UserError(f"examples_per_client is {each}; a client's part has {least}, and it must be at most that")
    # With reuse, every group has all test images; without it, each test image is used only once, too.
    of_client = groups if reuse else np.zeros(clients, int)
    domains = Domains(of_client, [np.arange(len(dataset.test))] * (len(transforms) if reuse else 1))
    few = parts if each is None else [rng.permutation(part)[:each] for part in parts]  # parts are in the data's order
    train = [joined([part]) for part in few]
    of_each = [transforms[group] for group in groups]
    return with_tests(dataset, train, test=test, seed=seed, groups=groups, transforms=of_each, domains=domains)
