"""Partitions of several data sets at once: a client holds images of one of them."""

from collections.abc import Sequence

import numpy as np

from tffcl.errors import UserError
from tffcl.lab.datasets.core import Dataset, Partition
from tffcl.lab.datasets.partitions.local_tests import Domains, Rule, with_tests
from tffcl.lab.datasets.partitions.splitting import block_groups, by_class, enough, equal_parts, joined
from tffcl.validation import Count, Whole, one_of, validated

# Clients of each set. PACFL's text; it says 100 clients, and these are 97. PACFL's code has 100.
MIX4_COUNTS = {
    "paper": {"usps": 14, "cifar10": 31, "svhn_cropped": 25, "fashion_mnist": 27},
    "code": {"usps": 14, "cifar10": 32, "svhn_cropped": 26, "fashion_mnist": 28},
}


def _sources(dataset: Dataset, rule: str) -> list[np.ndarray]:
    """Returns, per source, the indices of its training images."""
    if dataset.train_source is None:
        raise UserError(f"{rule} is of several data sets: dataset needs names = ['...', '...']")
    return by_class(dataset.train_source, len(dataset.source_names))


def _domains(dataset: Dataset, groups: np.ndarray) -> Domains:
    return Domains(groups, by_class(dataset.test_source, len(dataset.source_names)))


@validated
def hybrid(dataset: Dataset, *, seed: Whole, clients: Count, test: Rule = "share") -> Partition:
    """Gives each data set to an equal block of clients, in random near-equal parts (StoCFL's Hybrid MNIST).

    The same label means another thing in each of them. The true groups are the data sets.

    Args:
      dataset: Sets with labels in common, see `mixture`.
      seed: Decides who gets what.
      clients: How many clients; a multiple of the number of sets.
      test: As in `local_tests`, on the test images of the client's set. StoCFL: "all".

    Raises:
      UserError: If the clients do not divide or there are too few examples.
    """
    sources = _sources(dataset, "hybrid")
    groups = block_groups(clients, len(sources), "data sets")
    rng = np.random.default_rng(seed)
    train = []
    for name, held in zip(dataset.source_names, sources, strict=True):
        enough(clients // len(sources), len(held), f"examples of {name}")
        train += [joined([part]) for part in equal_parts(held, clients // len(sources), rng)]
    return with_tests(dataset, train, test=test, seed=seed, groups=groups, domains=_domains(dataset, groups))


@validated
def mix4(
    dataset: Dataset,
    *,
    seed: Whole,
    counts: one_of(MIX4_COUNTS) | Sequence[Count] = "paper",
    per_class: Count = 50,
    share: bool = False,
    test: Rule = "all",
) -> Partition:
    """Gives each client `per_class` images of every class of one data set (PACFL, "Mixture of 4 Datasets").

    USPS has no class with 14 x 50 images but three, so what the paper says cannot be had without giving
    images twice. If a class is short, either the other classes of the set make up for it (every client still
    gets as many images, none twice), or, with `share`, each client draws its images anew and some are with
    several clients. The true groups are the data sets. Images that nobody gets are not used.

    Args:
      dataset: Sets with labels apart, see `mixture`; PACFL's are usps, cifar10, svhn_cropped, fashion_mnist.
      seed: Decides who gets what.
      counts: Clients of each set: "paper" (14, 31, 25, 27 of the sets above: 97 in all), "code" (14, 32, 26,
        28), or numbers in the order of the sets.
      per_class: Images of each class that a client gets.
      share: If an image may be with several clients.
      test: As in `local_tests`, on the test images of the client's set.

    Raises:
      UserError: If a set has too few images, or `counts` does not fit the sets.
    """
    sources = _sources(dataset, "mix4")
    counts = _counts(counts, dataset.source_names)
    groups = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    rng = np.random.default_rng(seed)
    train = []
    for name, held, block in zip(dataset.source_names, sources, counts, strict=True):
        labels = dataset.train.y[held]
        examples = [held[labels == label] for label in np.unique(labels)]
        deal = _draw_each if share else _deal_once
        train += deal(examples, block, per_class, name, rng)
    return with_tests(dataset, train, test=test, seed=seed, groups=groups, domains=_domains(dataset, groups))


def _counts(counts, names) -> list[int]:
    if isinstance(counts, str):
        table = MIX4_COUNTS[counts]
        if set(names) != set(table):
            raise UserError(f"counts = {counts!r} is for {', '.join(table)}, not {', '.join(names)}; give numbers instead")
        return [table[name] for name in names]
    if len(counts) != len(names):
        raise UserError(f"counts is {counts!r}; it must be 'paper', 'code' or {len(names)} numbers, one per data set")
    return counts


def _deal_once(examples, block, per_class, name, rng) -> list[np.ndarray]:
    """Deals class by class, round and round: equal sizes, shares of a class that differ by one at most."""
    each = per_class * len(examples)
    available = np.array([len(index) for index in examples])
    if available.sum() < each * block:
        most = available.sum() // (len(examples) * block)
        raise UserError(
            f"{name} has {available.sum()} training images; {block} clients with {per_class} of each "
            f"class need {each * block}; use per_class = {most} or less, fewer clients, or share = true"
        )
    wanted = np.minimum(available, per_class * block)
    for _ in range(each * block - wanted.sum()):
        wanted[np.argmax(available - wanted)] += 1
    dealt = np.concatenate([rng.permutation(index)[:count] for index, count in zip(examples, wanted, strict=True)])
    return [joined([dealt[client::block]]) for client in range(block)]


def _draw_each(examples, block, per_class, name, rng) -> list[np.ndarray]:
    for label, index in enumerate(examples):
        enough(1, len(index), f"images of class {label} of {name}", each=per_class)
    return [joined([rng.permutation(index)[:per_class] for index in examples]) for _ in range(block)]
