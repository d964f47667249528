"""Joins several data sets into one, and partitions it such that each client holds images of one of them."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from tffcl.errors import UserError
from tffcl.lab.datasets.core import Dataset, Partition
from tffcl.lab.datasets.images import Images
from tffcl.lab.datasets.partitions.splitting import (
    Domains,
    Rule,
    block_groups,
    by_class,
    enough,
    equal_parts,
    joined,
    with_tests,
)
from tffcl.validation import Count, Whole, one_of, validated

LABELS = ("common", "apart")


@validated
def mixture(datasets: Sequence[Dataset], *, labels: one_of(LABELS)) -> Dataset:
    """Joins data sets into one.

    Labels in common: the data sets must have images of one shape and equally many classes; label y means something else
    in each of them (StoCFL's hybrid). Labels apart: smaller images get a black frame, grey images get three equal
    channels, and the labels of each data set follow those of the data set before it (PACFL's MIX-4: FMNIST framed by 2,
    USPS by 8; 40 labels).

    A model has one mean and deviation, so those of the data sets are averaged channel by channel. PACFL's code
    normalises each data set with its own. With "unit" and "half" there is no difference.

    Args:
      datasets: Two or more data sets.
      labels: "common" or "apart".

    Raises:
      UserError: If labels are in common and shapes or numbers of classes differ, or if numbers of channels do not fit.
    """
    for each in datasets:
        each.classes_for("a partition of several data sets")
        if not each.train.are_images:
            raise UserError(f"a partition of several data sets needs images, and the examples of {each.name} are none")
    if labels == "common":
        _check_alike(datasets)
        offsets, num_classes = [0] * len(datasets), datasets[0].num_classes
    else:
        *offsets, num_classes = np.cumsum([0] + [each.num_classes for each in datasets]).tolist()
    shape = tuple(max(each.train.x.shape[axis] for each in datasets) for axis in (1, 2, 3))
    for each in datasets:
        if each.train.x.shape[3] not in (1, shape[2]):
            raise UserError(f"{each.name} has {each.train.x.shape[3]} channels; beside {shape[2]} it must have 1")
    parts = {}
    for split in ("train", "test"):
        images = [getattr(each, split) for each in datasets]
        x = np.concatenate([framed(each.x, shape) for each in images])
        y = np.concatenate([each.y + np.int32(offset) for each, offset in zip(images, offsets, strict=True)])
        source = np.repeat(np.arange(len(images), dtype=np.int32), [len(each) for each in images])
        parts[split] = Images(x, y, source=source)
    mean, std = ([np.broadcast_to(getattr(each, key), shape[2:]) for each in datasets] for key in ("mean", "std"))
    return Dataset(
        name="+".join(each.name for each in datasets), num_classes=num_classes,
        mean=tuple(np.mean(mean, axis=0).tolist()), std=tuple(np.mean(std, axis=0).tolist()),
        class_names=_names(datasets, labels), note="; ".join(each.note for each in datasets if each.note),
        source_names=tuple(each.name for each in datasets),
        measured_noise=None if all(each.measured_noise is None for each in datasets) else 0.0, **parts,
    )  # fmt: skip


def _check_alike(datasets):
    first = datasets[0]
    for each in datasets[1:]:
        for what, ours, theirs in (
            ("images", first.train.x.shape[1:], each.train.x.shape[1:]),
            ("classes", first.num_classes, each.num_classes),
        ):
            if ours != theirs:
                raise UserError(
                    f"{what} of {first.name} are {ours} and of {each.name} {theirs}; hybrid needs them equal"
                )


def framed(x: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray:
    """Returns images [n, h, w, c] in a black frame of size `shape`; grey images get equal channels."""
    height, width, channels = shape
    down, right = height - x.shape[1], width - x.shape[2]
    x = np.pad(x, ((0, 0), (down // 2, down - down // 2), (right // 2, right - right // 2), (0, 0)))
    return x if x.shape[3] == channels else np.repeat(x, channels, axis=3)


def _names(datasets, labels):
    if any(each.class_names is None for each in datasets):
        return None
    if labels == "apart":
        return tuple(f"{each.name} {name}" for each in datasets for name in each.class_names)
    return tuple(
        " / ".join(dict.fromkeys(names)) for names in zip(*(each.class_names for each in datasets), strict=True)
    )


# Clients of each data set. The numbers in PACFL's text sum to 97, although it says 100 clients; PACFL's code has 100.
MIX4_COUNTS = {
    "paper": {"usps": 14, "cifar10": 31, "svhn_cropped": 25, "fashion_mnist": 27},
    "code": {"usps": 14, "cifar10": 32, "svhn_cropped": 26, "fashion_mnist": 28},
}


def _sources(dataset: Dataset, rule: str) -> list[np.ndarray]:
    """Returns the indices of the training images of each source."""
    if dataset.train.source is None:
        raise UserError(f"{rule} is of several data sets: dataset needs names = ['...', '...']")
    return by_class(dataset.train.source, len(dataset.source_names))


def _domains(dataset: Dataset, groups: np.ndarray) -> Domains:
    return Domains(groups, by_class(dataset.test.source, len(dataset.source_names)))


@validated
def hybrid(dataset: Dataset, *, seed: Whole, clients: Count, test: Rule = "share") -> Partition:
    """Gives each data set to an equal block of clients, in random near-equal parts (StoCFL's Hybrid MNIST).

    The same label means something else in each data set. The true groups are the data sets.

    Args:
      dataset: Joined data sets with labels in common.
      seed: Decides which images each client gets.
      clients: How many clients; a multiple of the number of data sets.
      test: A client's test images: all of its "classes", "all" of its domain, or a "share" of these. The domain
        has the test images of the client's data set. StoCFL: "all".

    Raises:
      UserError: If the clients do not divide equally, or there are too few examples.
    """
    sources = _sources(dataset, "hybrid")
    groups = block_groups(clients, len(sources), "data sets")
    rng = np.random.default_rng(seed)
    train = []
    for name, held in zip(dataset.source_names, sources, strict=True):
        enough(clients // len(sources), len(held), f"examples of {name}")
        train += equal_parts(held, clients // len(sources), rng)
    return _completed(dataset, train, test, seed, groups)


@validated
def by_dataset(dataset: Dataset, *, seed: Whole, test: Rule = "all") -> Partition:
    """Makes one client from each data set, with the data set's name (PACFL Table 1: distances between data sets).

    Args:
      dataset: Joined data sets with labels apart.
      seed: Decides the shares of test images.
      test: A client's test images: all of its "classes", "all" of its data set, or a "share" of its data set's.
    """
    train = _sources(dataset, "by_dataset")
    partition = with_tests(dataset, train, test=test, seed=seed, domains=_domains(dataset, np.arange(len(train))))
    return dataclasses.replace(partition, names=dataset.source_names)


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

    Only three classes of USPS have 14 x 50 images, so the paper's numbers are impossible without giving images twice.
    If a class has too few images, the other classes of the data set make up for it: every client still gets equally
    many images, none twice. With `share`, each client draws its images anew instead, and several clients may have the
    same image. The true groups are the data sets. Images that nobody gets are not used.

    Args:
      dataset: Joined data sets with labels apart; PACFL's are usps, cifar10, svhn_cropped, fashion_mnist.
      seed: Decides which images each client gets.
      counts: The clients of each data set: "paper" (14, 31, 25, 27 of the data sets above: 97 in all), "code" (14, 32,
        26, 28), or numbers in the order of the data sets.
      per_class: The number of images of each class that a client gets.
      share: Whether several clients may have the same image.
      test: A client's test images: all of its "classes", "all" of its domain, or a "share" of these. The domain
        has the test images of the client's data set.

    Raises:
      UserError: If a data set has too few images, or `counts` does not fit the data sets.
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
    return _completed(dataset, train, test, seed, groups)


def _completed(dataset: Dataset, train: list[np.ndarray], test: str, seed: int, groups: np.ndarray) -> Partition:
    """Makes the partition whose true groups are the data sets."""
    partition = with_tests(dataset, train, test=test, seed=seed, groups=groups, domains=_domains(dataset, groups))
    return dataclasses.replace(partition, group_names=dataset.source_names)


def _counts(counts, names) -> list[int]:
    if isinstance(counts, str):
        table = MIX4_COUNTS[counts]
        if set(names) != set(table):
            raise UserError(
                f"counts = {counts!r} is for {', '.join(table)}, not {', '.join(names)}; give numbers instead"
            )
        return [table[name] for name in names]
    if len(counts) != len(names):
        raise UserError(f"counts is {counts!r}; it must be 'paper', 'code' or {len(names)} numbers, one per data set")
    return counts


def _deal_once(examples, block, per_class, name, rng) -> list[np.ndarray]:
    """Distributes images class by class, to one client after the other: sizes are equal, and a class's shares differ by
    at most one."""
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
