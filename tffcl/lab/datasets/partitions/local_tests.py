"""Which test images each client gets, under one of four rules.

"classes": all test images of the classes that the client trains on (PACFL's and FLIS's code); clients
overlap, and a class counts as much as any other, however little of it the client holds. "all": all test
images of the client's domain (StoCFL). "share": a part of them that no other client gets, with the client's
own mix of labels as far as rounding allows. "own": those of the client's natural owner; the partition by
owner gives these itself.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from tffcl.errors import UserError
from tffcl.lab.datasets.core import Dataset, Partition
from tffcl.lab.datasets.images import Transform
from tffcl.lab.datasets.partitions.splitting import by_class, joined
from tffcl.validation import check_value, one_of

RULES = ("classes", "share", "all", "own")
Rule = one_of(RULES)


@dataclasses.dataclass(frozen=True, eq=False)
class Domains:
    """Who may be tested on what.

    Attributes:
      of_client: int [N], the domain of each client.
      tests: Per domain, int64 indices of the test images that belong to it. Domains may have the same images
        (turned or relabelled in another way each): "share" shares them out within each domain.
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
      train: Per client, its training examples.
      test: The rule, see the head of this file.
      seed: Decides the shares.
      groups: As in `Partition`.
      transforms: As in `Partition`.
      domains: Who may be tested on what; None: everybody on everything.

    Raises:
      UserError: If the rule has another name, needs owners, or leaves a client without a test image under
        "share".
    """
    check_value("test", test, Rule)
    if test == "own":
        raise UserError("test = 'own' is for the partition by_owner; allowed here: classes, share, all")
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
    made = {}  # one array per domain and set of classes, however many clients have it
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
                    f"test = 'share' leaves client {client} without a test image: {len(clients)} clients "
                    f"share {len(candidates)} test images; use fewer clients or test = 'classes'"
                )
            result[client] = candidates[piece]
    return result


def _stratified(y: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Shares test images out, each class in proportion to how much of it the clients train on.

    Args:
      y: int [m], labels of the test images.
      counts: int [clients, classes], training examples.
      rng: Shuffles each class.

    Returns:
      Per client, positions in `y`. Images of classes that nobody trains on are given to nobody.
    """
    pieces = [[] for _ in counts]
    owed = np.zeros(len(counts))  # what rounding has kept from each client so far: it comes first next time
    for label, index in enumerate(by_class(y, counts.shape[1])):
        total = counts[:, label].sum()
        if not total or not len(index):
            continue
        # In whole numbers: a client's fair number of images is sizes + parts / total.
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
