"""Shows the data that each client of a task holds, in pictures and a few lines. Needs no training and no TensorFlow."""

import pathlib
import textwrap
from collections.abc import Iterator, Sequence

import numpy as np

from tffcl.clients import arrays
from tffcl.clients.cohort import stream
from tffcl.display import counted, listed, ranges
from tffcl.lab.datasets.core import FederatedDataset
from tffcl.lab.datasets.federated import load_federated
from tffcl.lab.reporting.table import Table
from tffcl.lab.tasks.resolve import RunConfig
from tffcl.runs.callbacks import waiting

_MOST_CLIENTS = 10
_MOST_GROUPS = 16
_MOST_LABELS = 12
_PICTURES = 10


def show(config: RunConfig, out: str | pathlib.Path, *, data_dir: str | None = None) -> str:
    """Draws and describes how a task's data are partitioned among clients.

    Writes into `out`: `labels.png` (the labels of each client), `sizes.png` (a histogram of clients by their number of
    examples) and, if examples are images, `samples.png` (training images of each group, or of the first clients if
    there are no groups). All show the clients' data: partitioned by the run's seed, and after all transforms.

    Args:
      config: The task; method and model do not matter.
      out: The directory for the pictures.
      data_dir: Where data sets are; see `lab.datasets.storage.resolve`.

    Returns:
      A few lines of text: clients, examples, test examples, classes and groups.

    Raises:
      UserError: As in `lab.datasets.federated.load_federated`.
    """
    from tffcl.lab.reporting import figures

    with waiting("reads and parts the data"):
        # The random stream is that of a run, so that the data are those of training.
        federated = load_federated(
            config.dataset,
            config.partition,
            seed=stream(config.seed, "partition"),
            data_dir=data_dir,
            participants=config.participants,
        )
    counts, sizes = federated.label_counts(), [len(index) for index in federated.train_indices]
    drawn = {"sizes.png": lambda: figures.client_sizes_figure(sizes)}
    if counts is not None:
        called = {"client_ids": federated.client_names, "label_names": federated.class_names}
        drawn = {"labels.png": lambda: figures.label_histograms(counts, federated.shown_groups, **called)} | drawn
    if _are_drawn(federated):
        drawn["samples.png"] = lambda: figures.sample_pictures(*_samples(federated))
    written = []
    with waiting("draws pictures"):
        for name, draw in drawn.items():
            written.append(str(figures.save(draw(), pathlib.Path(out) / name)))
    return "\n".join([*_lines(config, federated), f"written: {', '.join(written)}"])


def _are_drawn(federated: FederatedDataset) -> bool:
    """Whether the examples are pictures, in grey or colours."""
    return federated.train.are_images and federated.train.x.shape[-1] in (1, 3)


def _samples(federated: FederatedDataset) -> tuple[list[np.ndarray], list[str], list[np.ndarray]]:
    """Rows of pictures uint8 [m, h, w, c], their titles and their labels: for every group, or else for the first
    clients."""
    held, images = dict(list(_holders(federated).items())[:_MOST_GROUPS]), federated.train
    chosen = [_over_classes(index, images.strata[index]) for index in held.values()]
    return [images.x[index] for index in chosen], list(held), [images.strata[index] for index in chosen]


def _holders(federated: FederatedDataset) -> dict[str, np.ndarray]:
    """Training indices by the group's name; by the name of the first clients if there are fewer than two groups."""
    parts, members = federated.train_indices, _members(federated)
    if len(members) < 2:
        named = federated.client_names or [f"client {client}" for client in range(len(parts))]
        return dict(zip(named[:_MOST_CLIENTS], parts))
    return {name: np.unique(np.concatenate([parts[each] for each in own])) for name, own in members.items()}


def _members(federated: FederatedDataset) -> dict[str, np.ndarray]:
    """The clients of each true group, by the group's name; empty if there are no groups."""
    numbers, members = np.unique([] if federated.true_groups is None else federated.true_groups, return_inverse=True)
    named = arrays.called(numbers.astype(int), federated.group_names)
    return {f"group {name}": np.flatnonzero(members == place) for place, name in enumerate(named)}


def _over_classes(index: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Some of `index`, ascending by label: equally many of each class; if there are many classes, of some of them."""
    classes = np.unique(labels)
    if len(classes) > _PICTURES:
        classes = classes[np.linspace(0, len(classes) - 1, _PICTURES).astype(int)]
    of_class = [index[labels == each] for each in classes]
    deepest = max(map(len, of_class))
    turns = [(k, place) for k in range(deepest) for place, own in enumerate(of_class) if k < len(own)]
    return np.array([of_class[place][k] for place, k in sorted((p, k) for k, p in turns[:_PICTURES])])


def _lines(config: RunConfig, federated: FederatedDataset) -> Iterator[str]:
    counts, kind = federated.label_counts(), "images" if federated.train.are_images else "examples"
    sizes = np.array([len(index) for index in federated.train_indices])
    yield f"{config.task}, seed {config.seed}: {federated.name}, {kind} of {_shape(federated)}"
    yield f"  {counted(federated.num_clients, 'client')}, {_groups_in_words(federated.true_groups)}"
    yield f"  training examples of a client: {_spread(sizes)}; {sizes.sum():,} in all"
    tests = np.array([len(index) for index in federated.test_indices])
    yield f"  test examples of a client: {_spread(tests)}; {len(federated.test):,} different ones"
    if counts is None:
        yield f"  labels: numbers from {federated.train.y.min():g} to {federated.train.y.max():g}"
    else:
        several = "".join(f", of each of {count} labels" for count in federated.train.y.shape[1:])
        yield f"  classes of a client: {_spread((counts > 0).sum(axis=1))}; {federated.num_classes} in all{several}"
        low, middle, high = np.percentile(label_distances(counts), [0, 50, 100])
        apart = f"distance of a client's labels from everyone's {low:.2f} to {high:.2f}, median {middle:.2f}"
        yield f"  skew of labels: {apart} (0: the same, 1: disjoint)"
    deciles = ", ".join(f"{each:,.0f}" for each in np.quantile(sizes, np.arange(1, 10) / 10))
    yield f"  skew of sizes: Gini coefficient {gini(sizes):.2f}; deciles {deciles}"
    if counts is not None and not _are_drawn(federated):
        yield from _label_lines(counts, federated.client_names, federated.class_names)
    yield from _group_lines(federated, sizes, counts)
    if federated.note:
        yield f"  note: {federated.note}"


def label_distances(counts: np.ndarray) -> np.ndarray:
    """The distance of each client's labels from those of all clients together: half the sum of the absolute differences
    of the shares, 0 to 1.

    Args:
      counts: `int [N, C]`, training examples of each label.

    Returns:
      `float [N]`, total variation distances.
    """
    shares, whole = counts / counts.sum(axis=1, keepdims=True), counts.sum(axis=0) / counts.sum()
    return np.abs(shares - whole).sum(axis=1) / 2


def gini(sizes: np.ndarray) -> float:
    """Gini coefficient of the sizes `[N]`: 0 if all are equal, near 1 if one client holds all examples."""
    ordered = np.sort(sizes)
    count = len(ordered)
    return float((2 * np.arange(1, count + 1) - count - 1) @ ordered / (count * ordered.sum()))


def _shape(federated: FederatedDataset) -> str:
    return "x".join(map(str, federated.train.x.shape[1:]))


def _spread(values: np.ndarray) -> str:
    low, middle, high = np.percentile(values, [0, 50, 100])
    return f"{low:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}, median {middle:,.0f}"


def _groups_in_words(groups: np.ndarray | None) -> str:
    if groups is None:
        return "no true groups"
    sizes = np.unique(groups, return_counts=True)[1]
    return f"{len(sizes)} true groups of {_spread(sizes)} clients" if len(sizes) > 1 else "one true group"


def _group_lines(federated: FederatedDataset, sizes: np.ndarray, counts: np.ndarray | None) -> Iterator[str]:
    groups, transforms, names = _members(federated), federated.transforms, federated.class_names or ()
    named = not all(map(str.isdecimal, names))
    for name, members in list(groups.items())[:_MOST_GROUPS] if len(groups) > 1 else []:
        classes = [] if counts is None else np.flatnonzero(counts[members].sum(axis=0)).tolist()
        held = f", labels {listed([names[each] for each in classes]) if named else ranges(classes)}" if classes else ""
        # In a user's own partition, a group may have several transforms.
        changes = dict.fromkeys(transforms[client].in_words() for client in members) if transforms else {}
        change = f"; {next(iter(changes))}" if len(changes) == 1 and "" not in changes else ""
        many = f"{counted(len(members), 'client')}, {counted(sizes[members].sum(), 'training example')}"
        yield f"  {name}: {many}{held}{change}"
    if len(groups) > _MOST_GROUPS:
        yield f"  and {counted(len(groups) - _MOST_GROUPS, 'more group')}"


def _label_lines(
    counts: np.ndarray, client_names: Sequence[str] | None, class_names: Sequence[str] | None
) -> Iterator[str]:
    """A table of the first clients and labels: each client's number of training examples of each label."""
    shown = counts[:_MOST_CLIENTS, :_MOST_LABELS]
    clients, labels = client_names or range(len(counts)), class_names or range(counts.shape[1])
    rows = [[client, *(f"{count:,}" for count in row)] for client, row in zip(clients, shown)]
    yield "  training examples by client and label:"
    yield textwrap.indent(Table.of(["client", *map(str, labels[: shown.shape[1]])], rows).to_text(left=0), "    ")
    sizes = zip(counts.shape, shown.shape, ("client", "label"))
    more = [counted(size - most, f"more {what}") for size, most, what in sizes if size > most]
    if more:
        yield f"    and {', '.join(more)}"
