"""The small steps of which partitions are made, and the rules for the test images of each client.

There are three rules. "classes": all test images of the classes that the client trains on (PACFL's and FLIS's code);
clients share test images, and a class counts as much as any other even if the client holds few examples of it. "all":
all test images of the client's domain (StoCFL). "share": a part of them that no other client gets, with the client's
own mix of labels as far as rounding allows. The partition by owner has a fourth rule, "own": the owner's test images.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from tffcl.display import counted
from tffcl.errors import UserError
from tffcl.lab.datasets.core import Dataset, Partition
from tffcl.lab.datasets.images import Transform
from tffcl.validation import check_value, one_of


def equal_parts(examples: np.ndarray, parts: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Shuffles `examples` and cuts them into near-equal parts (sizes differ by at most one), each ascending."""
    return list(map(np.sort, np.array_split(rng.permutation(examples), parts)))


def power_parts(
    examples: np.ndarray, parts: int, rng: np.random.Generator, *, power: float, min_size: int = 10
) -> list[np.ndarray]:
    """Shuffles `examples` and cuts them into `parts`, each ascending, whose sizes follow a power law.

    Each part first gets `min_size` examples. Of the rest, the part of rank r (from 1) gets a number that is
    proportional to r to the -`power`. Ranks are assigned at random.

    Raises:
      UserError: If there are fewer examples than `min_size` for each part.
    """
    enough(parts, len(examples), each=min_size)
    weights = np.arange(1, parts + 1) ** -float(power)
    rest = len(examples) - parts * min_size
    bounds = np.round(np.cumsum(rng.permutation(weights)) / weights.sum() * rest).astype(int)
    sizes = min_size + np.diff(bounds, prepend=0)
    return list(map(np.sort, np.split(rng.permutation(examples), np.cumsum(sizes)[:-1])))


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
      examples: The examples of each class.
      owners: The clients that own each class; a class without owners is left out.
      clients: How many clients.
      rng: Shuffles each class.

    Returns:
      The examples of each client, ascending.
    """
    pieces = [[] for _ in range(clients)]
    for index, holders in zip(examples, owners, strict=True):
        if len(holders):
            for client, part in zip(holders, equal_parts(index, len(holders), rng), strict=True):
                pieces[client].append(part)
    return [joined(each) for each in pieces]


def block_groups(clients: int, groups: int, what: str) -> np.ndarray:
    """Returns int32 [clients]: the group of each client, in equal blocks of consecutive clients.

    Raises:
      UserError: If the clients do not divide equally into the groups; `what` names these, e.g. "rotations".
    """
    if clients % groups:
        raise UserError(f"clients is {clients}; it must be a multiple of {groups}, the number of {what}")
    return np.repeat(np.arange(groups, dtype=np.int32), clients // groups)


def near_blocks(clients: int, groups: int) -> np.ndarray:
    """Returns int32 [clients]: each client's group, in consecutive blocks whose sizes differ by at most one."""
    return (np.arange(clients) * groups // clients).astype(np.int32)


def enough(clients: int, examples: int, what: str = "training examples", each: int = 1):
    """Raises UserError if `clients` clients cannot have `each` of `examples` examples."""
    if clients * each > examples:
        needed = f"{each} each need {clients * each}" if each > 1 else "each needs one"
        raise UserError(f"{clients} clients and only {examples} {what}: {needed}")


RULES = ("classes", "share", "all")
Rule = one_of(RULES)


@dataclasses.dataclass(frozen=True, eq=False)
class Domains:
    """The test images that each client may get.

    Attributes:
      of_client: int [N], the domain of each client.
      tests: For each domain, int64 indices of its test images. Domains may have the same images (each turned or
        relabelled in another way); "share" splits the images within each domain.
    """

    of_client: np.ndarray
    tests: Sequence[np.ndarray]


def with_tests(
    dataset: Dataset,
    train: Sequence[np.ndarray],
    *,
    test: str,
    seed: int,
    groups: np.ndarray | None = None,
    transforms: Sequence[Transform] | None = None,
    domains: Domains | None = None,
) -> Partition:
    """Completes a partition with the clients' test sets.

    Args:
      train: The training examples of each client.
      test: The rule, see the module's docstring.
      seed: Decides the shares.
      groups: As in `Partition`.
      transforms: As in `Partition`.
      domains: The test images that each client may get; None: all test images for every client.

    Raises:
      UserError: If the rule has another name, or leaves a client without a test image under "share".
    """
    check_value("test", test, Rule)
    if domains is None:
        domains = Domains(np.zeros(len(train), int), [np.arange(len(dataset.test))])
    tests = _RULES[test](dataset, train, domains, np.random.default_rng([seed, 0x7E57]))
    return Partition(tuple(train), tuple(tests), groups, None if transforms is None else tuple(transforms))


def _all(dataset, train, domains, rng):
    del dataset, train, rng
    return [domains.tests[domain] for domain in domains.of_client]


def _classes(dataset, train, domains, rng):
    del rng
    dataset.classes_for("test = 'classes'")
    made = {}  # one array per domain and set of classes, which clients share
    for domain, index in zip(domains.of_client, train, strict=True):
        classes = np.unique(dataset.train.y[index])
        key = int(domain), tuple(classes)
        if key not in made:
            candidates = domains.tests[domain]
            made[key] = candidates[np.isin(dataset.test.y[candidates], classes)]
        yield made[key]


def _share(dataset, train, domains, rng):
    result = [None] * len(train)
    counts = np.stack([np.bincount(dataset.train.strata[index], minlength=dataset.num_strata) for index in train])
    for domain, candidates in enumerate(domains.tests):
        clients = np.flatnonzero(domains.of_client == domain)
        pieces = _stratified(dataset.test.strata[candidates], counts[clients], rng)
        for client, piece in zip(clients, pieces, strict=True):
            if not len(piece):
                raise UserError(
                    f"test = 'share' leaves client {client} without a test image: {counted(len(clients), 'client')} "
                    f"for {counted(len(candidates), 'test image')}; use fewer clients or test = 'classes'"
                )
            result[client] = candidates[piece]
    return result


def _stratified(y: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Splits test images among clients, each class in proportion to the clients' training examples of it.

    Args:
      y: int [m], labels of the test images.
      counts: int [clients, classes], counts of training examples.
      rng: Shuffles each class.

    Returns:
      For each client, positions in `y`. Nobody gets images of classes that nobody trains on.
    """
    pieces = [[] for _ in counts]
    owed = np.zeros(len(counts))  # what rounding has kept from each client so far; the largest comes first
    for label, index in enumerate(by_class(y, counts.shape[1])):
        total = counts[:, label].sum()
        if not total or not len(index):
            continue
        # Computed in whole numbers: a client's fair number of images is sizes + parts / total.
        sizes, parts = np.divmod(counts[:, label] * len(index), total)
        owed += parts / total
        candidates = np.flatnonzero(parts)
        first = candidates[np.argsort(-owed[candidates], kind="stable")][: len(index) - sizes.sum()]
        sizes[first] += 1
        owed[first] -= 1
        for client, part in enumerate(np.split(rng.permutation(index), np.cumsum(sizes)[:-1])):
            pieces[client].append(part)
    return [joined(each) for each in pieces]


_RULES = {"all": _all, "classes": _classes, "share": _share}
