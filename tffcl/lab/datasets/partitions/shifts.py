"""The four-shift suite of clustered federated learning: P(X), P(Y), P(Y|X) and P(X|Y), each at a level from 1 to 8.

The levels come from code, not from the text of a paper. FLUX (Fenoglio et al., NeurIPS 2025, arXiv 2511.22305) compares
at heterogeneity levels 1 to 8. Its repository (github.com/dariofenoglio98/FLUX, commit 43aadbe,
public/generate_datasets.py, the static branch) turns each level into arguments of the data generator ANDA
(github.com/alfredoLimo/ANDA, split_fn.py and utils.py):

| partition | ANDA's split | what level L sets there, 10 classes |
|---|---|---|
| shift_features, P(X) | feature_skew_strict | 2, 3, 4, 5 rotations at levels 1 to 4; at 5 to 8 in three colours each |
| shift_labels, P(Y) | label_skew_strict | 11 - L classes in each of five groups |
| shift_concept, P(Y given X) | label_condition_skew | L labels are permuted among themselves |
| shift_class_features, P(X given Y) | feature_condition_skew | images of L classes are turned, by one of four angles |

Where the source leaves a choice, all four partitions here have these rules:

- Groups of clients are near-equal blocks. ANDA draws the group of each client at random, so groups may be empty.
- Each training example goes to only one client, as in ANDA; none is repeated (ANDA repeats some under label skew).
- Numbers of classes are tenths of all classes, so that the levels work for any number of classes. With 10 classes they
  are those of the source; with 100, too, for P(Y) and P(X|Y) (the comments of the source), but for P(Y|X) the source
  permutes 20 more labels.
- Different groups always differ. If a level shifts nothing (P(Y) and P(Y|X) at level 1, with 10 classes), all clients
  are in one true group: the control.
- A higher level keeps what the seed has drawn for a lower one: it changes the same classes or labels, and more.
- A client's test images are changed like its training images.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np

from tffcl.display import counted
from tffcl.errors import UserError
from tffcl.lab.datasets.core import Dataset, Partition
from tffcl.lab.datasets.images import COLOUR_TONES, GREY_TONES, Transform
from tffcl.lab.datasets.partitions.splitting import (
    Domains,
    Rule,
    by_class,
    enough,
    equal_parts,
    near_blocks,
    share_classes,
    with_tests,
)
from tffcl.validation import Count, Whole, validated, wrong

LEVELS = 8
Level = Annotated[int, msgspec.Meta(ge=1, le=LEVELS)]

# A separate random stream from the one that distributes examples, so that its draws are the same at every level.
_DRAWN = 0x5817


@validated
def shift_features(
    dataset: Dataset, *, seed: Whole, clients: Count, level: Level, groups: Count | None = None, test: Rule = "share"
) -> Partition:
    """Makes groups of clients in which all images are turned and tinted in one way: a shift of P(X).

    Levels 1 to 4 have 2, 3, 4, 5 rotations, which are equal parts of the full turn. Levels 5 to 8 have each of these in
    three tones, which makes 6, 9, 12, 15 patterns (the source: FLUX's generate_datasets.py; ANDA's
    split_feature_skew_strict). The tones of colour images are ANDA's: the red, blue or green channel has its greatest
    value. ANDA gives grey images three channels for that. Here they keep their one channel, which has no hue, and the
    tones are: unchanged, negative, and half the contrast.

    Args:
      dataset: The data set, of images.
      seed: Decides which images each client gets.
      clients: How many clients.
      level: 1 to 8.
      groups: The number of the level's patterns that are used, drawn at random; default all. Each pattern is a group.
      test: A client's test images: all of its "classes", "all" of its domain, or a "share" of these.

    Raises:
      UserError: If the examples are not images, the level has fewer patterns than `groups`, or there are too few
        clients or examples.
    """
    patterns = _patterns(dataset, "shift_features", 2 + (level - 1) % 4, tones=level > 4)
    if groups is not None:
        _at_most(groups, len(patterns), f"level {level} of shift_features has {len(patterns)} patterns")
        drawn = np.random.default_rng([seed, _DRAWN]).permutation(len(patterns))[:groups]
        patterns = [patterns[each] for each in np.sort(drawn)]
    return _dealt(dataset, patterns, seed=seed, clients=clients, test=test)


@validated
def shift_labels(
    dataset: Dataset, *, seed: Whole, clients: Count, level: Level, groups: Count | None = None, test: Rule = "share"
) -> Partition:
    """Makes groups of clients that hold only some of the classes: a shift of P(Y).

    A group holds K - (level - 1) K / 10 of K classes: 10, 9, ... 3 of ten (the source: FLUX's generate_datasets.py, 11
    - level classes and five groups; ANDA's split_label_skew_strict). ANDA draws the classes of each group at random,
    so some classes may have no group, and two groups may have the same classes. Here the classes form a ring in random
    order, and each group holds a stretch of the ring. The stretches start at equal distances, so they are all different
    and together hold all classes (if they are long enough).
    The examples of a class are split near-equally among all clients that hold the class.

    Args:
      dataset: The data set, K classes.
      seed: Decides the ring, and which examples each client gets.
      clients: How many clients.
      level: 1 to 8. If the groups hold all classes (level 1), there is one true group.
      groups: The number of groups; default five, or K if that is less.
      test: A client's test images: all of its "classes", "all" of its domain, or a "share" of these. With "all",
        the domain has all test images of the classes of the client's group.

    Raises:
      UserError: If there are more groups than classes, or too few clients or examples.
    """
    classes = dataset.classes_for("shift_labels")
    groups = min(5, classes) if groups is None else groups
    _at_most(groups, classes, f"{dataset.name} has {classes} classes")
    held = max(1, classes - _tenths(level - 1, classes))
    ring = np.random.default_rng([seed, _DRAWN]).permutation(classes)
    starts = [number * classes // groups for number in range(groups if held < classes else 1)]
    of_group = [ring[np.arange(start, start + held) % classes] for start in starts]
    of_client = _blocks(clients, len(of_group))
    rng = np.random.default_rng(seed)
    # In random order, so that the parts with one example more do not always go to the same clients.
    owners = [
        rng.permutation([client for client in range(clients) if label in of_group[of_client[client]]])
        for label in range(classes)
    ]
    train = share_classes(by_class(dataset.train.y, classes), owners, clients, rng)
    for client, index in enumerate(train):
        if not len(index):
            raise UserError(f"shift_labels leaves client {client} without examples; use fewer clients")
    # For "share", one domain has all test images, so that no two clients have the same test image.
    own = [np.flatnonzero(np.isin(dataset.test.y, group)) for group in of_group]
    domains = Domains(of_client, own) if test == "all" else None
    return with_tests(dataset, train, test=test, seed=seed, groups=of_client, domains=domains)


@validated
def shift_concept(
    dataset: Dataset, *, seed: Whole, clients: Count, level: Level, groups: Count | None = None, test: Rule = "share"
) -> Partition:
    """Makes groups of clients with different labels for the same images: a shift of P(Y|X).

    The first group keeps its labels. In each other group, level x K / 10 of the K labels are swapped (the source:
    FLUX's generate_datasets.py, a pool of `level` of ten labels; ANDA's split_label_condition_skew). The source has one
    pool for all clients, and each client permutes it at random, so some labels may stay the same. Here each group has
    its own pool, and its labels move one place along a ring, so all of them change; two labels are swapped.

    Args:
      dataset: The data set, K classes.
      seed: Decides the labels, and which examples each client gets.
      clients: How many clients.
      level: 1 to 8. If this means one label (level 1 of ten classes), nothing can be swapped, and there is one true
        group.
      groups: The number of groups, with the one of unchanged labels; default four, or the most that is possible.
      test: A client's test images: all of its "classes", "all" of its domain, or a "share" of these.

    Raises:
      UserError: If the labels cannot be swapped in that many ways, or there are too few clients or examples.
    """
    classes = dataset.classes_for("shift_concept")
    swapped = min(classes, _tenths(level, classes))
    if swapped < 2:
        return _dealt(dataset, [Transform()], seed=seed, clients=clients, test=test)
    ways = 1 + math.perm(classes, swapped) // swapped
    groups = min(4, ways) if groups is None else groups
    _at_most(
        groups,
        ways,
        f"{swapped} of {classes} labels are swapped in {counted(ways - 1, 'way')}, beside the group of unchanged ones",
    )
    maps = _label_maps(classes, swapped, groups, np.random.default_rng([seed, _DRAWN]))
    return _dealt(dataset, [Transform(labels=each) for each in maps], seed=seed, clients=clients, test=test)


@validated
def shift_class_features(
    dataset: Dataset,
    *,
    seed: Whole,
    clients: Count,
    level: Level,
    groups: Count | None = None,
    tones: bool = False,
    test: Rule = "share",
) -> Partition:
    """Makes groups of clients in which the images of some classes are turned: a shift of P(X|Y).

    The images of level x K / 10 of the K classes are changed; the classes are the same in every group, and all others
    stay the same (the source: FLUX's generate_datasets.py, `level` of ten classes, four rotations, no colours; ANDA's
    split_feature_condition_skew_strict, where a group is a rotation; FLUX's own split draws one for each client and
    class, so there are no groups). The four groups turn these images by 0, 90, 180 and 270 degrees.

    Args:
      dataset: The data set, of images, K classes.
      seed: Decides the classes, and which images each client gets.
      clients: How many clients.
      level: 1 to 8.
      groups: The number of patterns that are used, from the first on; default all: 4 without tones, 12 with tones.
      tones: Whether each rotation comes in the three tones of `shift_features`.
      test: A client's test images: all of its "classes", "all" of its domain, or a "share" of these.

    Raises:
      UserError: If the examples are not images, or there are too few patterns, clients or examples.
    """
    patterns = _patterns(dataset, "shift_class_features", 4, tones=tones)
    groups = len(patterns) if groups is None else groups
    _at_most(
        groups,
        len(patterns),
        f"{len(patterns)} patterns are what shift_class_features has with tones = {str(tones).lower()}",
    )
    classes = dataset.classes_for("shift_class_features")
    order = np.random.default_rng([seed, _DRAWN]).permutation(classes)
    changed = tuple(sorted(order[: max(1, _tenths(level, classes))].tolist()))
    chosen = [Transform(degrees=each.degrees, tone=each.tone, classes=changed) for each in patterns[:groups]]
    return _dealt(dataset, chosen, seed=seed, clients=clients, test=test)


def _tenths(number: int, classes: int) -> int:
    """Returns `number` tenths of `classes`, rounded; halves are rounded up."""
    return (number * classes + 5) // 10


def _patterns(dataset: Dataset, partition: str, rotations: int, tones: bool) -> list[Transform]:
    """Returns all pairs of a rotation and a tone (or no tone); the tones of a rotation are neighbours.

    Raises:
      UserError: If the examples of the data set are not images.
    """
    if not dataset.train.are_images:
        raise UserError(f"{partition} turns images, and the examples of {dataset.name} are none")
    known = (COLOUR_TONES if dataset.train.x.shape[-1] == 3 else GREY_TONES) if tones else ("",)
    degrees = [360 * number // rotations for number in range(rotations)]
    return [Transform(degrees=angle, tone=tone) for angle, tone in itertools.product(degrees, known)]


def _label_maps(classes: int, swapped: int, groups: int, rng: np.random.Generator) -> list[tuple[int, ...]]:
    """Returns each group's new labels: unchanged for the first group, else with `swapped` labels moved along a ring."""

    def moved(ring):
        to = np.arange(classes)
        to[ring] = np.roll(ring, -1)
        return tuple(to.tolist())

    # A longer ring takes more labels of the same draw, so that a higher level changes all that a lower level does. So a
    # draw that would make two groups equal at any level is replaced at every level, unless there are so many groups
    # that few other draws are left.
    lengths = {_tenths(level, classes) for level in range(1, LEVELS + 1)} - {0, 1}
    if 2 * (groups - 1) > math.perm(classes, min(lengths)) // min(lengths):
        lengths = {swapped}
    rings: list[np.ndarray] = []
    while len(rings) < groups - 1:
        ring = rng.permutation(classes)
        if not any(moved(ring[:length]) == moved(other[:length]) for other in rings for length in lengths):
            rings.append(ring)
    return [tuple(range(classes)), *(moved(ring[:swapped]) for ring in rings)]


def _at_most(groups: int, most: int, why: str):
    if groups > most:
        raise wrong("groups", groups, f"it must be at most {most}: {why}")


def _blocks(clients: int, groups: int) -> np.ndarray:
    if clients < groups:
        raise UserError(f"clients is {clients}; the {groups} groups need one each: use more clients, or set groups")
    return near_blocks(clients, groups)


def _dealt(dataset: Dataset, chosen: Sequence[Transform], *, seed: int, clients: int, test: str) -> Partition:
    """Splits all examples equally among the clients, and gives each block of clients its transform."""
    groups = _blocks(clients, len(chosen))
    enough(clients, len(dataset.train))
    train = equal_parts(np.arange(len(dataset.train)), clients, np.random.default_rng(seed))
    return with_tests(
        dataset, train, test=test, seed=seed, groups=groups, transforms=[chosen[group] for group in groups]
    )
