"""Loads the federated data set that a task file describes: a data set and its partition."""

import collections
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from tffcl.display import counted
from tffcl.errors import UserError
from tffcl.lab.datasets import catalog
from tffcl.lab.datasets.core import Dataset, FederatedDataset, Partition
from tffcl.lab.datasets.images import Images, Transform
from tffcl.lab.datasets.partitions.mixed import mixture
from tffcl.lab.datasets.preparation import hold_out_server, hold_out_validation, normalized, reduced
from tffcl.registry import add, find_in_table, given, made_by
from tffcl.validation import Whole, check_options, check_value, keys_of

add("datasets", lambda: catalog.DATASETS, given=("data_dir",))
add("partitions", lambda: catalog.PARTITIONS, given=("seed",))

# Partitions of several data sets, and how these are joined into one.
_MIXTURES = {"hybrid": {"labels": "common"}, "mix4": {"labels": "apart"}, "by_dataset": {"labels": "apart"}}

# Every data set has the options of these functions, beside those of its loader.
_OF_EVERY_SET = (normalized, reduced)
_AFTERWARDS = (hold_out_server, hold_out_validation)


def load_federated(
    dataset: Mapping,
    partition: Mapping,
    *,
    seed: int,
    data_dir: str | None = None,
    participants: Callable[[int], np.ndarray] = np.arange,
) -> FederatedDataset:
    """Loads a data set and partitions it among clients.

    Args:
      dataset: `name` (see `tffcl list datasets`), or `builder = "module:function"` that makes a `tffcl.Dataset`, and
        options: `normalization` ("pacfl", "unit", "half"), `subset` and `test_subset` (how many examples to keep),
        `server_examples` (how many of these only the server has, equally many of each class; 0 by default),
        `server_split` ("train": training images, which no client has then; "test": copies of test images), `validation`
        (the share of each client's training examples that is held out of training) and those of its loader. The
        partitions hybrid, mix4 and by_dataset take several data sets, `names` instead of `name`. Options then apply to
        each data set, but `server_examples` and `server_split` to all together.
      partition: `name` (see `catalog.PARTITIONS`), or `builder = "module:function"` of `(dataset, *, seed, ...)` that
        makes a `core.Partition`, and the options of its function.
      seed: Decides the subset, the server's images and the partition.
      data_dir: Where data sets are; see `storage.resolve`.
      participants: Maps the number of clients to those that are there from the first round on. Means and deviations
        are measured on the training examples of these clients.

    Raises:
      UserError: For errors that a user can correct: unknown names and options, impossible values, missing or damaged
        data, a client without training examples.
    """
    check_value("seed", seed, Whole)
    name, row, rule = find_in_table("partitions", _mapping("partition", partition))
    function = row.builder()
    # Checked before the data are read, so that a mistyped option is reported at once.
    rule = check_options(f"partition {name}", function, rule, given=given("partitions"))
    settings = dict(_mapping("dataset", dataset))
    for_server, for_validation = (_taken(settings, function) for function in _AFTERWARDS)
    mixing, also = _MIXTURES.get(name), [key for function in _AFTERWARDS for key in _options_of(function)]
    whole = load_dataset(settings, seed=seed, data_dir=data_dir, mixing=mixing, partition=name, also=also)
    whole, server = hold_out_server(whole, seed=seed, **for_server)
    split = made_by("partitions", name, function, Partition, whole, seed=seed, **rule)
    return federated(whole, split, name, server, seed=seed, participants=participants, **for_validation)


def check_settings(dataset: Mapping, partition: Mapping):
    """Checks names, options and values as `load_federated` does, but without reading data; the options of a user's own
    function are not checked.

    Raises:
      UserError: As in `load_federated`, except for errors that only the data show.
    """
    settings, name = dict(_mapping("dataset", dataset)), "this partition"
    for function in (*_AFTERWARDS, *_OF_EVERY_SET):
        _taken(settings, function)
    if "builder" not in _mapping("partition", partition):
        name, row, rule = find_in_table("partitions", partition)
        if not row.foreign:
            check_options(f"partition {name}", row.builder(), rule, given=given("partitions"), also=("name",))
    names = settings.pop("names", None) if name in _MIXTURES else None
    if "builder" in settings or name in _MIXTURES and not isinstance(names, list):
        return
    common = [key for function in (*_AFTERWARDS, *_OF_EVERY_SET) for key in _options_of(function)]
    for table in [{**settings, "name": each} for each in names] if names else [settings]:
        found, row, rest = find_in_table("datasets", table)
        if not row.foreign:
            check_options(f"dataset {found}", row.builder(), rest, given=given("datasets"), also=("name", *common))


def load_dataset(
    dataset: Mapping,
    *,
    seed: int,
    data_dir: str | None = None,
    mixing: Mapping | None = None,
    partition: str = "this partition",
    also: Collection[str] = (),
) -> Dataset:
    """Loads one data set, or several that are joined into one.

    Args:
      dataset: As in `load_federated`, without the options of the server's images.
      seed: Decides the subset.
      data_dir: As in `load_federated`.
      mixing: How several data sets are joined (keywords of `mixture`); None if there must be only one.
      partition: The use of the data, for messages.
      also: Options that the caller has read itself, for messages.

    Raises:
      UserError: As in `load_federated`.
    """
    settings = dict(_mapping("dataset", dataset))
    names = settings.pop("names", None)
    if mixing is None:
        if names is not None:
            raise UserError(f"{partition} is of one data set: name = '...' ({', '.join(_MIXTURES)} take names = [...])")
        return _load_one(settings, seed=seed, data_dir=data_dir, also=also)
    listed = isinstance(names, list | tuple) and all(isinstance(each, str) for each in names)
    if {"name", "builder"} & set(settings) or not listed or not 2 <= len(names) == len(set(names)):
        raise UserError(f"{partition} is of several data sets: dataset needs different names = ['...', '...'], no name")
    sets = [_load_one({**settings, "name": each}, seed=seed, data_dir=data_dir, also=also) for each in names]
    return mixture(sets, **mixing)


def _load_one(settings: Mapping, *, seed, data_dir, also) -> Dataset:
    name, row, rest = find_in_table("datasets", settings)
    load = row.builder()
    convention, size = (_taken(rest, function) for function in _OF_EVERY_SET)
    common = [key for function in _OF_EVERY_SET for key in _options_of(function)]
    own = check_options(f"dataset {name}", load, rest, given=given("datasets"), also=(*common, *also))
    loaded = made_by("datasets", name, load, Dataset, data_dir=data_dir, **own)
    return reduced(normalized(loaded, **convention), seed=seed, **size)


def _options_of(function: Callable) -> list[str]:
    return [key for key in keys_of(function) if key != "seed"]


def _taken(settings: dict, function: Callable) -> dict:
    """Takes the options of a function out of the user's settings, and checks them."""
    taken = {key: settings.pop(key) for key in _options_of(function) if key in settings}
    return check_options("dataset", function, taken, given=("seed",))


def _mapping(kind, section):
    if not isinstance(section, Mapping):
        raise UserError(f"{kind} is {section!r}; it must have a name and options, e.g. {{name = '...'}}")
    return section


def federated(
    dataset: Dataset,
    partition: Partition,
    name: str,
    server: Images | None = None,
    *,
    seed: int = 0,
    validation: float = 0.0,
    participants: Callable[[int], np.ndarray] = np.arange,
) -> FederatedDataset:
    """Combines a data set with a partition of it.

    Args:
      partition: Which client holds which examples.
      name: The partition's name.
      server: The server's own images, or None.
      seed: Decides the validation examples.
      validation: As in `hold_out_validation`.
      participants: As in `load_federated`.

    Raises:
      UserError: If a client has no training examples, or the partition has examples that do not exist.
    """
    where = f"partition {name} of {dataset.name}"
    groups = checked_groups(partition.groups, partition.group_names, where)
    _check_clients(partition, where)
    if any(each.is_of_classes for each in partition.transforms or ()):
        dataset.classes_for(where)
    for_training = checked_indices(partition.train, len(dataset.train), "training", where)
    for_tests = checked_indices(partition.test, len(dataset.test), "test", where)
    for client, index in enumerate(for_training):
        if not len(index):
            called = client if partition.names is None else partition.names[client]
            raise UserError(f"client {called} has no training examples under {where}")
    for_training, for_validation = hold_out_validation(for_training, seed=seed, validation=validation)
    training = [for_training[client] for client in participants(len(for_training))]
    dataset = dataset.measured_on(np.concatenate(training))
    transforms = partition.transforms or [Transform()] * len(for_training)
    held = [(*for_training, *for_validation), (*transforms, *transforms[: len(for_validation)])]
    train, held_indices = pool(dataset.train, *held, dataset.num_strata)
    train_indices, validation_indices = held_indices[: len(transforms)], held_indices[len(transforms) :]
    test, test_indices = pool(dataset.test, for_tests, partition.transforms, dataset.num_strata)
    noise = dataset.measured_noise
    if noise and partition.names is None:  # noise hides one owner of the table, but clients hold several owners' rows
        noise = 0.0
    return FederatedDataset(
        name=f"{dataset.name}/{name}", train=train, test=test, num_classes=dataset.num_classes, mean=dataset.mean,
        std=dataset.std, train_indices=train_indices, test_indices=test_indices, true_groups=groups,
        class_names=dataset.class_names, note="; ".join(filter(None, [dataset.note, partition.note])),
        measured_noise=noise,
        server=server and dataset.featured(server), transforms=partition.transforms, client_names=partition.names,
        group_names=partition.group_names,
        table=None if partition.transforms else dataset.table, validation_indices=validation_indices or None,
    )  # fmt: skip


def checked_indices(held: Sequence, count: int, kind: str, where: str) -> tuple[np.ndarray, ...]:
    """Returns the examples of each client as int64 indices; clients that shared an array share one again.

    Args:
      held: For each client, indices of examples, or a mask with an entry for every example. An index may occur several
        times.
      count: The number of examples.
      kind: The kind of examples, for messages.
      where: The partition, for messages.

    Raises:
      UserError: If a client has anything else; the message names the client.
    """
    known: dict[int, np.ndarray] = {}
    for client, index in enumerate(held):
        if id(index) not in known:
            known[id(index)] = _checked(index, count, f"{where}: the {kind} indices of client {client}")
    return tuple(known[id(index)] for index in held)


def _checked(index, count: int, what: str) -> np.ndarray:
    try:
        array = np.asarray(index)
    except ValueError:  # lists of unequal lengths
        array = np.empty([0, 0], object)
    if array.dtype == bool and array.shape == (count,):
        return np.flatnonzero(array)
    if array.ndim == 1 and not len(array):
        return np.zeros(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        kind = f"{array.dtype} of rank {array.ndim}"
        raise UserError(f"{what} are {kind}; they must be integers of rank 1, or a mask of {count} entries")
    lowest, highest = int(array.min()), int(array.max())
    if lowest < 0 or highest >= count:
        wrong = lowest if lowest < 0 else highest
        raise UserError(f"{what} have {wrong}; there are {count} examples, from 0 to {count - 1}")
    return array.astype(np.int64, copy=False)


def checked_groups(groups, names: Sequence[str] | None, where: str) -> np.ndarray | None:
    """Returns the true groups as int32 [N], or None for none; raises UserError if they are not integers, or if `names`
    lacks one of the groups."""
    if groups is None:
        return None
    array = np.asarray(groups)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise UserError(
            f"{where}: the groups are {array.dtype} of rank {array.ndim}; they must be integers, one a client"
        )
    if names and not 0 <= array.min() <= array.max() < len(names):
        numbers = f"{array.min()} to {array.max()}"
        raise UserError(f"{where}: the groups are {numbers}; group_names has those of 0 to {len(names) - 1}")
    return array.astype(np.int32)


def _check_clients(partition: Partition, where: str):
    """Raises UserError if there are no clients, or two have the same name."""
    if not len(partition.train):
        raise UserError(f"{where} has no clients; at least 1 is needed")
    for name, count in collections.Counter(() if partition.names is None else partition.names).items():
        if count > 1 or not isinstance(name, str):
            told = f"{name!r:.100} is the name of {counted(count, 'client')}"
            raise UserError(f"{where}: {told}; names must be texts, all different")


def pool(
    images: Images, held: Sequence[np.ndarray], transforms: Sequence[Transform] | None, num_classes: int
) -> tuple[Images, tuple[np.ndarray, ...]]:
    """Gathers the clients' examples, after their transforms, in one pool.

    Args:
      images: All images.
      held: For each client, int64 indices into `images`.
      transforms: The transform of each client, or None for no changes.
      num_classes: The number of classes, for changes of labels; 1 if no example has a single class.

    Returns:
      The pool, and for each client int64 indices into it. Images that nobody holds are left out. An image occurs once
      for all clients whose transforms change its class in the same way. Clients that shared an array of indices share
      one again.
    """
    transforms = transforms or [Transform()] * len(held)
    numbers, of_class = _by_class(transforms, num_classes)
    arrays = {(transform, id(index)): index for index, transform in zip(held, transforms, strict=True)}
    used = np.zeros((len(numbers), len(images)), bool)
    for (transform, _), index in arrays.items():
        used[of_class[transform][images.strata[index]], index] = True
    # This is the order of the used pairs of transform and image in the pool.
    place = np.cumsum(used).reshape(used.shape) - 1
    moved = {
        (transform, key): place[of_class[transform][images.strata[index]], index].astype(np.int64)
        for (transform, key), index in arrays.items()
    }
    together = _filled(images, list(numbers), used, num_classes)
    return together, tuple(moved[transform, id(index)] for index, transform in zip(held, transforms, strict=True))


def _by_class(
    transforms: Sequence[Transform], num_classes: int
) -> tuple[dict[Transform, int], dict[Transform, np.ndarray]]:
    """Numbers the distinct changes that transforms make to a class; also returns each transform's number per class."""
    numbers: dict[Transform, int] = {}
    of_class = {}
    for transform in dict.fromkeys(transforms):
        plain = [transform.of_class(label, num_classes) for label in range(num_classes)]
        of_class[transform] = np.array([numbers.setdefault(each, len(numbers)) for each in plain])
    return numbers, of_class


def _filled(images: Images, plain: Sequence[Transform], used: np.ndarray, num_classes: int) -> Images:
    """Applies each of `plain` to the images of its row of `used`, one at a time, which needs the least memory."""
    rows = np.flatnonzero(used.any(axis=1))
    if len(rows) == 1 and used[rows[0]].all():
        return plain[rows[0]].apply(images, num_classes)
    x = np.empty((int(used.sum()), *images.x.shape[1:]), images.x.dtype)
    y = np.empty((len(x), *images.y.shape[1:]), images.y.dtype)
    start = 0
    for row in rows:
        piece = plain[row].apply(images.take(np.flatnonzero(used[row])), num_classes)
        x[start : start + len(piece)], y[start : start + len(piece)] = piece.x, piece.y
        start += len(piece)
    return Images(x, y)
