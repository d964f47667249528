"""Partitions by the labels and the number of examples that clients hold.

`iid` and `quantity_skew` give all clients the same mix of labels. `label_skew` is NIID-Bench's "#label" partition (Li
et al. 2022), which PACFL and FLIS use for label skew 20 % and 30 %. `dirichlet` is NIID-Bench's Dirichlet partition,
which they use as Dir(0.1). `label_groups` makes groups of clients that hold groups of classes: StoCFL's pathological
setting and FLT's scenarios 1 and 2. `structured` is FLT's scenario 4, "structured non-IID FEMNIST", with different
sizes within each group.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np

from tffcl.display import counted
from tffcl.errors import UserError
from tffcl.lab.datasets.core import Dataset, Partition
from tffcl.lab.datasets.images import Transform
from tffcl.lab.datasets.partitions.splitting import (
    Domains,
    Rule,
    block_groups,
    by_class,
    enough,
    equal_parts,
    joined,
    power_parts,
    share_classes,
    with_tests,
)
from tffcl.lab.datasets.partitions.transformed import Rotations, turned
from tffcl.validation import Count, Positive, Whole, check_value, one_of, validated


@validated
def iid(dataset: Dataset, *, seed: Whole, clients: Count, test: Rule = "share") -> Partition:
    """Shuffles all training examples and cuts them into near-equal parts; there is one true group.

    Args:
      seed: Decides which examples each client gets.
      clients: How many clients.
      test: A client's test images: all of its "classes", "all" of its domain, or a "share" of these.

    Raises:
      UserError: If there are more clients than examples.
    """
    enough(clients, len(dataset.train))
    train = equal_parts(np.arange(len(dataset.train)), clients, np.random.default_rng(seed))
    return with_tests(dataset, train, test=test, seed=seed, groups=np.zeros(clients, np.int32))


@validated
def quantity_skew(
    dataset: Dataset, *, seed: Whole, clients: Count, power: Positive = 1.0, min_size: Count = 10, test: Rule = "share"
) -> Partition:
    """Gives clients random examples; their numbers follow a power law: rank r (from 1) to the -`power`.

    Every client first gets `min_size` examples; the rest follows the power law. Ranks are assigned at random. All
    examples are used; there is one true group.

    Args:
      seed: Decides which examples each client gets.
      clients: How many clients.
      power: The exponent; a larger one gives more unequal sizes.
      min_size: The least number of examples of a client.
      test: A client's test images: all of its "classes", "all" of its domain, or a "share" of these.

    Raises:
      UserError: If there are too few examples.
    """
    rng = np.random.default_rng(seed)
    train = power_parts(np.arange(len(dataset.train)), clients, rng, power=power, min_size=min_size)
    return with_tests(dataset, train, test=test, seed=seed, groups=np.zeros(clients, np.int32))


@validated
def label_skew(
    dataset: Dataset, *, seed: Whole, clients: Count, classes_per_client: Count, test: Rule = "classes"
) -> Partition:
    """Gives each client a few classes: client i always gets class i mod K, then other distinct classes at random.

    Each class is shuffled and cut into near-equal parts for the clients that hold it, in their order, so the sizes of
    clients differ. There are no true groups. 20 % of 10 classes are 2 classes, 30 % are 3.

    Args:
      dataset: The data set, K classes.
      seed: Decides which examples each client gets.
      clients: How many clients.
      classes_per_client: The number of classes that each client holds.
      test: A client's test images: all of its "classes", "all" of its domain, or a "share" of these.

    Raises:
      UserError: If there are fewer classes than that, or a client gets none of the examples of its classes.
    """
    classes = dataset.classes_for("label_skew")
    if classes_per_client > classes:
        raise UserError(f"classes_per_client is {classes_per_client}; {dataset.name} has {classes} classes")
    rng = np.random.default_rng(seed)
    owners = [[] for _ in range(classes)]
    for client in range(clients):
        first = client % classes
        others = rng.permutation(np.delete(np.arange(classes), first))[: classes_per_client - 1]
        for label in (first, *others):
            owners[label].append(client)
    examples = by_class(dataset.train.y, classes)
    train = share_classes(examples, owners, clients, rng)
    for client, index in enumerate(train):
        if not len(index):
            held = [label for label in range(classes) if client in owners[label]]
            counts = ", ".join(
                f"class {label}: {len(examples[label])} for {counted(len(owners[label]), 'client')}" for label in held
            )
            raise UserError(f"label_skew leaves client {client} without examples ({counts}); use fewer clients")
    return with_tests(dataset, train, test=test, seed=seed)


_ATTEMPTS = 5000
_Alpha = Annotated[float, msgspec.Meta(ge=0.001)]  # NumPy's sampler never returns for smaller ones


@validated
def dirichlet(
    dataset: Dataset, *, seed: Whole, clients: Count, alpha: _Alpha, min_size: Count = 10, test: Rule = "classes"
) -> Partition:
    """Splits each class in proportions that are drawn from a symmetric Dirichlet distribution.

    Classes are split one after the other. A client that already holds an equal share of the whole data set, or more,
    gets nothing of the class, and the proportions of the other clients are scaled to sum to 1. All is drawn again until
    every client has `min_size` examples. All examples are used; there are no true groups.

    Args:
      seed: Decides which examples each client gets.
      clients: How many clients.
      alpha: The distribution's parameter; a smaller one gives more unequal shares.
      min_size: The least number of examples of a client.
      test: A client's test images: all of its "classes", "all" of its domain, or a "share" of these.

    Raises:
      UserError: If there are too few examples, or no draw gives everybody `min_size`.
    """
    classes = dataset.classes_for("dirichlet")
    enough(clients, len(dataset.train), each=min_size)
    rng = np.random.default_rng(seed)
    examples = by_class(dataset.train.y, classes)
    cuts = _cuts([len(index) for index in examples], clients, alpha, min_size, rng)
    pieces = [[] for _ in range(clients)]
    for index, bounds in zip(examples, cuts, strict=True):
        for client, part in enumerate(np.split(rng.permutation(index), bounds)):
            pieces[client].append(part)
    return with_tests(dataset, [joined(each) for each in pieces], test=test, seed=seed)


def _cuts(counts: list[int], clients: Count, alpha: _Alpha, min_size: int, rng) -> list[np.ndarray]:
    """Returns the places at which each class is cut, int [clients - 1]. Only sizes are drawn, so attempts are fast."""
    best = 0
    for _ in range(_ATTEMPTS):
        drawn = _draw(counts, clients, alpha, rng)
        if drawn is None:
            continue
        cuts, sizes = drawn
        if sizes.min() >= min_size:
            return cuts
        best = max(best, int(sizes.min()))
    raise UserError(
        f"dirichlet with alpha = {alpha:g} and {clients} clients did not reach min_size = {min_size} in "
        f"{_ATTEMPTS} draws (at best the smallest client had {best} examples); "
        "use fewer clients, a larger alpha or a smaller min_size"
    )


def _draw(counts, clients, alpha, rng):
    """Draws once; None if, for some class, only full clients have a proportion above 0, as with a tiny alpha."""
    sizes = np.zeros(clients, int)
    fair = sum(counts) / clients
    cuts = []
    for count in counts:
        proportions = rng.dirichlet(np.full(clients, alpha)) * (sizes < fair)
        cumulated = np.cumsum(proportions)
        if not cumulated[-1] > 0:
            return None
        # Divided by its own end, it ends at exactly 1, so rounding gives nothing to full clients at the end.
        bounds = (cumulated / cumulated[-1] * count).astype(int)[:-1]
        sizes += np.diff(bounds, prepend=0, append=count)
        cuts.append(bounds)
    return cuts, sizes


SCHEMES = ("flt1", "flt2", "stocfl")
_Scheme = one_of(SCHEMES)
_Groups = Annotated[
    Sequence[Annotated[Sequence[Whole], msgspec.Meta(min_length=1)]],
    msgspec.Meta(min_length=1, description="lists of classes, e.g. [[0, 1], [2, 3]]"),
]
_STOCFL = ((0, 1, 2), (3, 4), (5, 6), (7, 8, 9))


def scheme_groups(scheme: str, num_classes: int, rng: np.random.Generator) -> list[list[int]]:
    """Returns the groups of classes of a published scheme, which is for 10 classes.

    "stocfl": {0,1,2}, {3,4}, {5,6}, {7,8,9} (StoCFL, appendix A.1). "flt1": five random pairs (FLT, scenario 1).
    "flt2": five triples along a ring of the classes in random order, each with one class in common with the next (FLT,
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

    A class of one group is split among the clients of the group. A class of several groups is split among the clients
    of all these groups; with `share`, it is split anew in each group, so clients of different groups hold the same
    examples, as in FLT's code. Classes of no group are not used. The true groups are the blocks.

    With `rotations`, this is done once for each rotation, each time with all examples. With 2 and the scheme "stocfl",
    the result has the eight true groups of StoCFL's Fig. 7.

    Args:
      seed: Decides which examples each client gets.
      clients: How many clients; a multiple of the number of groups.
      groups: The groups of classes.
      scheme: Instead of `groups`, a published scheme for 10 classes: "stocfl" (0 to 2, 3 and 4, 5 and 6, 7 to 9),
        "flt1" (five random pairs), or "flt2" (five triples in a ring, each with one class in common with the next).
      share: Whether the examples of a class of several groups are given to each of these groups.
      rotations: As in `rotated`; 1 for none. Each rotation has an equal block of consecutive clients.
      test: A client's test images: all of its "classes", "all" of its domain, or a "share" of these.

    Raises:
      UserError: If neither or both of `groups` and `scheme` are given, a class does not exist, the clients do not
        divide equally into the groups, or there are too few examples.
    """
    turns, classes = turned(dataset, rotations), dataset.classes_for("label_groups")
    if (groups is None) == (scheme is None):
        raise UserError(f"label_groups needs either groups = [[...], ...] or scheme (one of {', '.join(SCHEMES)})")
    rng = np.random.default_rng(seed)
    chosen = _checked(groups, classes) if scheme is None else scheme_groups(scheme, classes, rng)
    of_client = block_groups(clients, len(chosen) * len(turns), "groups")
    once = of_client[: clients // len(turns)]
    examples = by_class(dataset.train.y, classes)
    for group in chosen:
        enough(len(once) // len(chosen), sum(len(examples[label]) for label in group), f"examples of classes {group}")
    give = _shared if share else _once
    train = [part for _ in turns for part in give(examples, chosen, once, rng)]
    turn_of = of_client // len(chosen)
    # Every rotation has all test images.
    domains = Domains(turn_of, [np.arange(len(dataset.test))] * len(turns))
    transforms = [turns[each] for each in turn_of] if len(turns) > 1 or turns[0] != Transform() else None
    return with_tests(dataset, train, test=test, seed=seed, groups=of_client, transforms=transforms, domains=domains)


def _once(examples, chosen, of_client, rng):
    owners = [
        [client for client, group in enumerate(of_client) if label in chosen[group]] for label in range(len(examples))
    ]
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


def growing_sizes(total: int, clients: int) -> np.ndarray:
    """Returns int [clients], ascending, with sum `total`: half of it in equal parts, half in growing parts.

    Client i (from 1) gets floor(F + exp(a i^2)), where F = floor(total / 2 / clients) and `a` is such that the sizes
    before rounding sum to `total`. The paper mentions a power law; this is the rule of its code, except for the rest
    that rounding leaves. Here each of the largest clients gets one more. The code gives the whole rest to the first
    client, which thus becomes a large one.
    """
    flat = total // 2 // clients
    target = total - flat * clients
    squares = np.arange(1, clients + 1) ** 2.0

    def grown(rate):
        return np.exp(np.minimum(rate * squares, 700.0))  # exp overflows beyond

    low, high = -50.0, np.log(target + 1.0)
    for _ in range(200):
        rate = (low + high) / 2
        low, high = (rate, high) if grown(rate).sum() < target else (low, rate)
    sizes = np.floor(flat + grown(low)).astype(int)
    left = total - sizes.sum()  # less than one per client
    sizes[clients - left :] += 1
    return sizes


@validated
def structured(
    dataset: Dataset, *, seed: Whole, clients: Count, classes_per_group: Count = 5, test: Rule = "all"
) -> Partition:
    """Gives each block of clients a group of consecutive classes, in parts of growing size (`growing_sizes`).

    The last group has the classes that are left: the 47 classes of EMNIST balanced make nine groups of 5 and one of 2.
    The examples of a group are shuffled, so small clients miss some of its classes. All examples are used; the groups
    are the true groups. FLT has 2,400 clients, or 600.

    Args:
      seed: Decides which examples each client gets.
      clients: How many clients; a multiple of the number of groups.
      classes_per_group: The number of classes in a group.
      test: A client's test images: all of its "classes", "all" of its domain, or a "share" of these. The domain
        has all test images of the group's classes; "all" is FLT's rule.

    Raises:
      UserError: If the clients do not divide equally into the groups, or a group has fewer than two examples per
        client.
    """
    classes = dataset.classes_for("structured")
    check_value("classes_per_group", classes_per_group, Annotated[int, msgspec.Meta(ge=1, le=classes)])
    group_of_class = np.arange(classes) // classes_per_group
    number = int(group_of_class[-1]) + 1
    groups = block_groups(clients, number, "groups of classes")
    rng = np.random.default_rng(seed)
    tests = [np.flatnonzero(group_of_class[dataset.test.y] == group) for group in range(number)]
    train = []
    for group in range(number):
        held = np.flatnonzero(group_of_class[dataset.train.y] == group)
        block = clients // number
        if len(held) < 2 * block:
            raise UserError(
                f"group {group} has {counted(len(held), 'example')}; structured needs {2 * block}, two for each client"
            )
        sizes = growing_sizes(len(held), block)
        train += map(np.sort, np.split(rng.permutation(held), np.cumsum(sizes)[:-1]))
    return with_tests(dataset, train, test=test, seed=seed, groups=groups, domains=Domains(groups, tests))
