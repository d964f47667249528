"""A data set, a partition of it, and both combined; also checks of the arrays of a data set."""

import dataclasses

import numpy as np

from tffcl.clients import arrays
from tffcl.clients.tables import Table
from tffcl.display import Shown, sizes_of
from tffcl.errors import UserError
from tffcl.lab.datasets.images import Images, Transform, measured
from tffcl.validation import check_kind

_MOST_CLASSES = 100_000  # label counts of each client and a model's last layer have an entry for each class


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset(Shown):
    """A data set before it is partitioned among clients.

    Attributes:
      name: The name of the data set, e.g. in the catalog.
      train: The training images.
      test: The test images.
      num_classes: The number of labels, which are 0 to num_classes - 1; None if labels are numbers to predict.
      mean: Subtracted from pixels on the scale 0 to 1; one value for each channel.
      std: Divides pixels after that; one value for each channel.
      class_names: The name of each label, or None.
      note: What a reader of results should know, e.g. that this is only a part of the data set; else "".
      source_names: The names of joined data sets, which `Images.source` indexes; else empty.
      attribute_names: The names of the columns of `Images.attributes`; else empty.
      owner_names: The name of each natural client, which `Images.owner` indexes; empty if they have numbers only.
      owner_groups: int32, the true group of each natural client, or None.
      group_names: The name of each true group, by its number; None if groups have numbers only.
      measured_noise: As in `clients.population.Population`; None for sets whose constants are public.
      table: The table whose rows are the examples, see `Images.row`; else None.
    """

    name: str
    train: Images
    test: Images
    num_classes: int | None
    mean: tuple[float, ...] | float
    std: tuple[float, ...] | float
    class_names: tuple[str, ...] | None = None
    note: str = ""
    source_names: tuple[str, ...] = ()
    attribute_names: tuple[str, ...] = ()
    owner_names: tuple[str, ...] = ()
    owner_groups: np.ndarray | None = None
    group_names: tuple[str, ...] | None = None
    measured_noise: float | None = None
    table: Table | None = None

    def facts(self):
        """The numbers of examples and classes."""
        return {
            "name": self.name,
            "training examples": f"{len(self.train):,}",
            "test examples": f"{len(self.test):,}",
            "of": f"{self.train.x.dtype} {list(self.train.x.shape[1:])}",
            "classes": "none, numbers" if self.num_classes is None else self.num_classes,
        }

    @property
    def label_shape(self) -> tuple[int, ...]:
        """Shape of one example's labels."""
        return self.train.y.shape[1:]

    @property
    def num_strata(self) -> int:
        """The number of different values of `Images.strata`."""
        return 1 if self.num_classes is None or self.label_shape else self.num_classes

    def classes_for(self, part: str) -> int:
        """Returns the number of classes. If an example has no single class, raises UserError, which says that `part`
        needs classes."""
        if self.num_classes is None or self.label_shape:
            have = "numbers to predict" if self.num_classes is None else f"{self.label_shape[0]} labels an example"
            raise UserError(f"{part} needs one class for each example; {self.name} has {have}")
        return self.num_classes

    def __post_init__(self):
        """Raises UserError if there is no training image, a label is out of range or lengths differ."""
        if not len(self.train):
            raise UserError(f"{self.name}: there are no training images")
        if self.train.x.shape[1:] != self.test.x.shape[1:]:
            shapes = f"{self.train.x.shape[1:]} and test images {self.test.x.shape[1:]}"
            raise UserError(f"{self.name}: training images are {shapes}; the shapes must be equal")
        if self.train.y.shape[1:] != self.test.y.shape[1:] or self.train.y.dtype != self.test.y.dtype:
            kinds = " and of test ".join(f"{each.y.dtype}{list(each.y.shape[1:])}" for each in (self.train, self.test))
            raise UserError(f"{self.name}: the labels of train are {kinds}; they must be alike")
        if (self.num_classes is None) != (self.train.y.dtype == np.float32):
            raise UserError(f"{self.name}: {self.num_classes} classes and labels of {self.train.y.dtype} do not fit")
        if self.num_classes is not None and self.num_classes > _MOST_CLASSES:
            raise UserError(
                f"{self.name}: there are labels up to {self.num_classes - 1}; "
                f"at most {_MOST_CLASSES} classes are allowed, from 0"
            )
        for split, images in (("train", self.train), ("test", self.test)):
            if self.num_classes is not None and images.y.max(initial=0) >= self.num_classes:
                wrong, last = images.y.max(), self.num_classes - 1
                raise UserError(f"{self.name}: a {split} label is {wrong}; labels are 0 to {last}")
            for kind in ("owner", "source", "attributes", "row"):
                array = getattr(images, kind)
                if array is not None and len(array) != len(images):
                    raise UserError(f"{self.name}: {len(images)} {split} images have {len(array)} entries of {kind}")

    @classmethod
    def from_arrays(cls, name: str, train, test, *, clients=None, num_classes: int | None = None) -> "Dataset":
        """Makes a data set from your own arrays, e.g. in a function that a task names as `[dataset] builder`.

        Args:
          name: The name for titles.
          train: `(x [n, ...], y [n])`. x of uint8 and rank 4 are images, whose mean and deviation are measured. Other
            x reach the model unchanged: whole numbers as int32 (uint8 stays uint8), other numbers as float32. Labels y
            are classes, whole numbers from 0, `[n]` or several for each example `[n, L]`; or floats `[n, ...]` to
            predict.
          test: The same for the test examples.
          clients: For natural clients, `(train [n], test [n])`: the client of each example, as names or whole numbers.
            These become the clients' names, and their order.
          num_classes: The number of classes; default one more than the largest label, and None for floats.

        Raises:
          UserError: For arrays of other types or lengths, values that are not finite, labels out of range.
        """
        for split, pair in (("train", train), ("test", test)):
            check_kind(f"{name}: {split}", pair, (tuple, list), "a pair (x, y)")
        train, test = (
            Images(numbers_of(x, f"{name}: x of {split}"), labels_of(y, f"{name}: y of {split}"))
            for split, (x, y) in (("train", train), ("test", test))
        )
        names: tuple[str, ...] = ()
        if clients is not None:
            of_train, of_test = map(np.asarray, clients)
            *owners, names = owners_of(of_train, of_test, (f"{name}: clients of train", f"{name}: clients of test"))
            train, test = (
                dataclasses.replace(each, owner=own) for each, own in zip((train, test), owners, strict=True)
            )
        if num_classes is None:
            num_classes = class_count(train.y, test.y)
        data = cls(name, train, test, num_classes, mean=0.0, std=1.0, owner_names=names)
        if not (train.are_images and len(train)):
            return data
        mean, std = measured(train.x)
        return dataclasses.replace(data, mean=mean, std=std, measured_noise=0.0)

    def measured_on(self, rows: np.ndarray) -> "Dataset":
        """Returns the data set with means and deviations that are measured only on the training examples at `rows`,
        `int [m]`; unchanged if constants are public, or if a builder has measured its numbers itself."""
        if self.measured_noise is None or (self.table is None and not self.train.are_images):
            return self
        if self.table is None:
            mean, std = measured(self.train.x[rows])
            return dataclasses.replace(self, mean=mean, std=std)
        measured_table = self.table.measured_on(self.train.row[rows])  # type: ignore[index]
        made = dataclasses.replace(self, table=measured_table)
        return dataclasses.replace(made, train=made.featured(self.train), test=made.featured(self.test))

    def featured(self, examples: Images) -> Images:
        """Returns examples with the features of their rows in the table; unchanged if there is no table."""
        if self.table is None:
            return examples
        x = self.table.x[examples.row]  # type: ignore[index]
        return dataclasses.replace(examples, x=numbers_of(x, f"{self.name}: the examples"))

    def take(self, train: np.ndarray, test: np.ndarray) -> "Dataset":
        """Returns the data set with only the training images at `train` and the test images at `test`."""
        return dataclasses.replace(self, train=self.train.take(train), test=self.test.take(test))


@dataclasses.dataclass(frozen=True, eq=False)
class Partition(Shown):
    """Which of N clients holds which examples of a data set.

    Attributes:
      train: One int64 array of indices into the training images per client; an index may occur several times.
      test: One int64 array of indices into the test images per client; clients may share an array.
      groups: int32 [N], the true group of each client, or None if there are no true groups.
      transforms: The change of each client's examples, or None for no changes.
      names: The name of each client, all different, or None: they are counted from 0.
      group_names: The name of each group, by its number, or None.
      note: What a reader of results should know, e.g. which owners of the data set are not clients; else "".
    """

    train: tuple[np.ndarray, ...]
    test: tuple[np.ndarray, ...]
    groups: np.ndarray | None = None
    transforms: tuple[Transform, ...] | None = None
    names: tuple[str, ...] | None = None
    group_names: tuple[str, ...] | None = None
    note: str = ""

    def facts(self):
        """The number of clients, and how many examples and groups they have."""
        groups = {} if self.groups is None else {"true groups": len(np.unique(self.groups))}
        sizes = sizes_of(list(map(len, self.train))) if self.train else "none"
        return {"clients": len(self.train), "training examples each": sizes, **groups}

    def __post_init__(self):
        """Raises ValueError if the parts have different numbers of clients."""
        parts = (self.train, self.test, self.groups, self.transforms, self.names)
        lengths = {len(part) for part in parts if part is not None}
        if len(lengths) != 1:
            raise ValueError(f"the parts of a partition are of {sorted(lengths)} clients")


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class FederatedDataset(Dataset):
    """A data set with the examples that each of N clients holds; the pools `train` and `test` contain each distinct
    image, after transforms, once.

    Attributes:
      train_indices: One int64 array of indices into `train` per client.
      test_indices: One int64 array of indices into `test` per client; clients may share an array.
      true_groups: int32 [N], the true group of each client, or None if there are no true groups.
      server: The server's own images, without any client's transform, or None. Methods may use only the pictures; the
        labels serve to check the balance of classes.
      transforms: The changes that each client's examples have had, for reports; None for no changes.
      validation_indices: One int64 array of indices into `train` per client, which are not in `train_indices`: examples
        for the choice of hyper-parameters. None if none are held out.
      client_names: The name of each client, or None if clients have numbers only.
    """

    train_indices: tuple[np.ndarray, ...]
    test_indices: tuple[np.ndarray, ...]
    true_groups: np.ndarray | None
    server: Images | None = None
    transforms: tuple[Transform, ...] | None = None
    validation_indices: tuple[np.ndarray, ...] | None = None
    client_names: tuple[str, ...] | None = None

    @property
    def shown_groups(self) -> np.ndarray | None:
        """The name, or else the number, of each client's true group; None if there are no true groups."""
        return arrays.called(self.true_groups, self.group_names)

    @property
    def num_clients(self) -> int:
        return len(self.train_indices)

    def facts(self):
        """The number of clients, and the sizes of what they hold."""
        groups = {} if self.true_groups is None else {"true groups": len(np.unique(self.true_groups))}
        return {
            "name": self.name,
            "clients": self.num_clients,
            "training examples each": sizes_of(list(map(len, self.train_indices))),
            "test examples each": sizes_of(list(map(len, self.test_indices))),
            "classes": "none, numbers" if self.num_classes is None else self.num_classes,
            **groups,
        }

    def label_counts(self) -> np.ndarray | None:
        """Returns int64 [N, num_classes]: the count of each label in each client's training examples; None if labels
        are numbers to predict."""
        if self.num_classes is None:
            return None
        rows = [np.bincount(self.train.y[index].ravel(), minlength=self.num_classes) for index in self.train_indices]
        return np.stack(rows).astype(np.int64)


def numbers_of(x, where: str) -> np.ndarray:
    """Returns examples as uint8, int32 or float32; `where` names them in errors."""
    given, x = x, arrays.numbers_of(x, where)
    if x.dtype == np.uint8:
        return x
    if x.dtype.kind == "f":
        arrays.check_finite(x, where, given)
        return x.astype(np.float32)
    if x.size and not -(2**31) <= x.min() <= x.max() < 2**31:
        raise UserError(
            f"{where} is {x.dtype} of shape {x.shape}; it must be numbers of shape [n, ...], whole ones of 32 bits"
        )
    return x.astype(np.int32)


def labels_of(y, where: str) -> np.ndarray:
    """Returns labels as int32 `[n]` or `[n, L]`, or as float32 `[n, ...]`; `where` names them in errors."""
    y = arrays.checked_labels(y, where)
    if y.dtype.kind == "U":
        raise UserError(f"{where} is {y.dtype} of shape {y.shape}; it must be integers or numbers, [n, ...]")
    if y.dtype.kind != "f" and y.size and not 0 <= y.min() <= y.max() < 2**31:
        raise UserError(f"{where} has labels {y.min()} to {y.max()}; they count from 0")
    return y.astype(np.float32 if y.dtype.kind == "f" else np.int32)


def class_count(*labels: np.ndarray) -> int | None:
    """Returns one more than the largest label of several arrays; None if labels are numbers to predict."""
    if labels[0].dtype.kind == "f":
        return None
    return 1 + int(max(each.max(initial=-1) for each in labels))


def owners_of(train: np.ndarray, test: np.ndarray, places: tuple[str, str]) -> tuple[np.ndarray, np.ndarray, tuple]:
    """Returns the owner of each training and test example as int32 indices, and the owners' names in sorted order; no
    names if these are 0, 1, 2, ... anyway. `places` name the two arrays in errors."""
    # pandas keeps texts as objects.
    train, test = (
        each.astype(str) if each.dtype == object and all(isinstance(name, str) for name in each.flat) else each
        for each in (train, test)
    )
    for array, where in zip((train, test), places, strict=True):
        if array.ndim != 1 or array.dtype.kind not in "iuUS":
            raise UserError(f"{where} is {array.dtype} of shape {array.shape}; it must be names or integers, [n]")
    if train.dtype.kind in "US" and test.dtype.kind in "US":
        names = np.concatenate([train, test])
    elif train.dtype.kind in "iu" and test.dtype.kind in "iu":
        names = np.concatenate([train.astype(np.int64), test.astype(np.int64)])
    else:
        raise UserError(f"{places[0]} and {places[1]} must both be names or both integers")
    called, numbers = np.unique(names, return_inverse=True)
    numbers = numbers.reshape(-1).astype(np.int32)
    counted = called.dtype.kind == "i" and np.array_equal(called, np.arange(len(called)))
    return numbers[: len(train)], numbers[len(train) :], () if counted else tuple(called.astype(str).tolist())
