"""The population of clients: who they are, and what examples each of them holds."""

import collections
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tffcl.clients import arrays, client_examples, sources, splits
from tffcl.clients.client_examples import ClientExamples, CountedExamples, CountedField, PooledExamples, held, pooled
from tffcl.clients.folders import read_folders
from tffcl.clients.simulation_context import current
from tffcl.clients.tables import TableRules, read_table
from tffcl.display import Shown, counted, sizes_of
from tffcl.errors import VALIDATION, UserError, unknown
from tffcl.validation import Fraction, check_value, wrong

_MOST_NAMED = 20  # clients that a message lists


@dataclasses.dataclass(frozen=True, eq=False)
class Population(Shown):
    """The clients of a federation, with their examples. Row i of every array is `client_ids[i]`.

    Where a method itself reads examples or labels in a simulation, outside of rounds and queries, this counts as a
    release without noise.

    Attributes:
      client_ids: `int32 [N]`, ascending.
      train_examples: Maps a client ID to the client's training examples. A dict holds them in memory; another mapping
        reads them when they are needed. `train` returns those of one client.
      test_examples: The same for test examples, of which a client may have none; see `test`.
      validation_examples: The same for examples that are used neither to train nor to test, but to choose
        hyper-parameters; None where there are none.
      sizes: `int32 [N]`, the number of training examples of each client; by default they are counted. None for more
        than 10,000 clients that are read when they are needed; `sizes_of` reads some of them.
      versions: `int32 [N]`, how often each client's training data have changed; default: `later` of `train` counts it.
      label_counts: `int64 [N, C]`, each client's training examples of each label; None where that is not known.
      groups: `int32 [N]`, the true group of each client, to compare clusters with; None where there are none.
      group_names: The name of each true group, by its number; None where groups have numbers only.
      note: What a reader of results should know of the data; else "".
      names: The name of each client in files and messages, where that is not its ID.
      label_names: The name of each class, where labels were texts or bools; else None.
      table: How the columns of a table became features, see `from_frame`; else None.
      measured_noise: The noise multiplier of what was measured on all clients to make features: 0 for no noise, None
        if nothing was measured.
      signed_as: For malicious clients in simulations, maps a client's ID to that of the client whose examples it signs
        instead of its own.
    """

    client_ids: np.ndarray
    train_examples: Mapping[int, ClientExamples]
    test_examples: Mapping[int, ClientExamples]
    validation_examples: Mapping[int, ClientExamples] | None = None
    sizes: np.ndarray = None  # type: ignore[assignment]  # counted below
    versions: np.ndarray | None = None
    label_counts: np.ndarray | None = CountedField()  # type: ignore[assignment]  # which gives an array or None
    groups: np.ndarray | None = None
    group_names: tuple[str, ...] | None = None
    note: str = ""
    names: np.ndarray | None = None
    label_names: tuple[str, ...] | None = None
    table: TableRules | None = None
    measured_noise: float | None = None
    signed_as: Mapping[int, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        for name in ("train_examples", "test_examples", "validation_examples"):
            held = getattr(self, name)
            if held is not None and not isinstance(held, CountedExamples):
                object.__setattr__(self, name, CountedExamples(held))
        if self.sizes is None and not client_examples.too_many(self.train_examples.held):
            object.__setattr__(self, "sizes", self.sizes_of(self.client_ids))
        if self.versions is None:
            object.__setattr__(self, "versions", np.zeros(len(self.client_ids), np.int32))
        if not len(self.client_ids):
            raise UserError("the population has no clients; at least 1 is needed")
        sizes = np.ones(len(self.client_ids)) if self.sizes is None else np.asarray(self.sizes)
        if np.any(np.diff(self.client_ids) <= 0) or len(sizes) != len(self.client_ids):
            raise UserError("client IDs must be ascending and distinct, with one size each")
        if np.any(sizes < 1):
            empty = self.shown_ids[np.flatnonzero(sizes < 1)[0]]
            raise UserError(f"client {empty} has no training examples; every client needs at least 1")

    def __len__(self) -> int:
        return len(self.client_ids)

    def facts(self):
        """How many clients there are and how many examples they hold."""
        groups = {} if self.groups is None else {"true groups": len(np.unique(self.groups))}
        if self.sizes is None:
            return {"clients": len(self), "training examples": "read when they are needed", **groups}
        total = f"{int(np.sum(self.sizes)):,}"
        return {"clients": len(self), "training examples": total, "each": sizes_of(self.sizes), **groups}

    def __repr__(self) -> str:
        groups = "" if self.groups is None else f", {counted(len(np.unique(self.groups)), 'true group')}"
        total = "" if self.sizes is None else f", {counted(int(np.sum(self.sizes)), 'training example')}"
        return f"Population({counted(len(self), 'client')}{total}{groups})"

    def index(self, client_ids) -> np.ndarray:
        """Returns the rows of the given clients, by ID or by name.

        Raises:
          UserError: If one is not in this population.
        """
        if self.names is None or not any(isinstance(each, str) for each in np.atleast_1d(client_ids).tolist()):
            return arrays.index_of(self.client_ids, client_ids)
        rows = {name: row for row, name in enumerate(self.names.tolist())}
        try:
            return np.array([rows[name] for name in np.atleast_1d(client_ids).tolist()])
        except KeyError as error:
            if len(self) > _MOST_NAMED:
                known = f"there are {len(self)} clients, {self.names[0]} to {self.names[-1]}"
                raise UserError(f"client {error.args[0]} is not known; {known}") from None
            raise unknown("client", error.args[0], rows) from None

    def id_of(self, client) -> int:
        """Returns the ID of a client that a user gives as files do: by its name where there are names, else by its ID.

        Raises:
          UserError: If it is not in this population, or is given in the other way: where there are names, a number
            would be a row.
        """
        if not np.isscalar(client) or isinstance(client, str) == (self.names is None):
            how = "whole numbers" if self.names is None else "text"
            how += ", e.g." if np.isscalar(client) else ", given one by one, e.g."
            raise UserError(f"client {client!r:.80} is not known; client IDs are {how} {self.shown_ids.tolist()[0]!r}")
        return int(self.client_ids[self.index([client])[0]])

    def name_of(self, client_id: int) -> str:
        """Returns the name of a client in files and messages."""
        return str(client_id) if self.names is None else str(self.names[self.index([client_id])[0]])

    @property
    def shown_ids(self) -> np.ndarray:
        """The clients' names, or their IDs where they have no names."""
        return self.client_ids if self.names is None else self.names

    @property
    def shown_groups(self) -> np.ndarray | None:
        """The name of each client's true group, or its number where groups have no names; None without groups."""
        return arrays.called(self.groups, self.group_names)

    def _number(self, client: int | str) -> int:
        """The ID of a client that is given by its ID or by its name."""
        return int(client) if np.isscalar(client) and not isinstance(client, str) else self.id_of(client)

    def train(self, client: int | str) -> ClientExamples:
        """Returns the training examples of a client, given by its ID or its name."""
        return self.train_examples[self._number(client)]

    def test(self, client: int | str) -> ClientExamples:
        """Returns a client's test examples; it may have none."""
        return self.test_examples[self._number(client)]

    def validation(self, client: int | str) -> ClientExamples:
        """Returns a client's validation examples; UserError if it has none."""
        number = self._number(client)
        found = (self.validation_examples or {}).get(number)
        if not found:
            raise UserError(
                f"client {self.name_of(number)} has no validation examples; {VALIDATION} holds out a tenth of those "
                "that clients train on"
            )
        return found

    def sizes_of(self, client_ids) -> np.ndarray:
        """Returns `int32 [n]`, the number of training examples of the given clients, which are read where `sizes` is
        None."""
        if self.sizes is not None:
            return self.sizes[self.index(client_ids)]
        examples = held(self.train_examples)
        return np.array([len(examples[int(client)]) for client in client_ids], np.int32)

    @functools.cached_property
    def read_before(self) -> list[int]:
        """The clients whose training examples are checked before a run: all, or a few where they must be read."""
        clients = self.client_ids.tolist()
        return clients if isinstance(held(self.train_examples), dict) else client_examples.few_of(clients)

    @functools.cached_property
    def evaluated(self) -> "Population":
        """The clients whose accuracies are taken: all, or, of more than 10,000 that are read when they are needed,
        10,000 drawn at random, always the same ones."""
        every = not client_examples.too_many(held(self.test_examples))
        few = self.client_ids if every else client_examples.most_of(self.client_ids)
        return self if len(few) == len(self) else self.restricted(few)

    @functools.cached_property
    def test_sizes(self) -> np.ndarray:
        """`int [N]`, the number of test examples of each client; 0 for clients that are not `evaluated`."""
        found, tested = np.zeros(len(self), int), self.evaluated.client_ids
        found[self.index(tested)] = [len(held(self.test_examples)[int(client)]) for client in tested]
        return found

    @property
    def pooled_tests(self) -> PooledExamples:
        """The test examples of all clients."""
        current().on_reading()
        return self._pools[0]

    @property
    def pooled_validation(self) -> PooledExamples | None:
        """The validation examples of all clients; None where there are none."""
        current().on_reading()
        return self._pools[1]

    @functools.cached_property
    def _pools(self) -> tuple[PooledExamples, PooledExamples | None]:
        """The test and the validation examples of all clients."""
        clients, tests, validation = self.client_ids.tolist(), self.test_examples, self.validation_examples
        return pooled(held(tests), clients), None if validation is None else pooled(held(validation), clients)

    @property
    def feature_names(self) -> tuple[str, ...] | dict[str, tuple[str, ...]] | None:
        """The name of each feature of a table, by input where there are several inputs; None without a table."""
        return None if self.table is None else self.table.feature_names

    def features_of(self, frame) -> np.ndarray | dict[str, np.ndarray]:
        """Returns rows of a table as examples `[n, features]` to predict, by input where there are several inputs.

            result.predict("clinic 3", clients.features_of(patients))

        Columns become features by the rules of this population's own table, means and deviations included.

        Args:
          frame: A DataFrame with the columns of the features; labels and other columns are ignored.

        Raises:
          UserError: If the population was not made from a table, a column is missing or of another kind, or a value is
            missing and the rule does not fill it.
        """
        if self.table is None:
            raise UserError("these clients are of no table; features_of is of those that from_frame has made")
        return self.table.read(frame)

    @functools.cached_property
    def example_spec(self) -> collections.OrderedDict:
        """`<x, y>` of `tf.TensorSpec`, the spec of one example that a model must take, as `FlatModel.example_spec`."""
        return held(self.train_examples)[int(self.client_ids[0])].spec

    @classmethod
    def from_arrays(
        cls,
        examples: Mapping[str | int, Any],
        test: Mapping[str | int, Any] | None = None,
        *,
        lazy: bool = False,
        known: "Population | None" = None,
        label_names: Sequence[str] | None = None,
    ) -> "Population":
        """Makes a population from arrays or `tf.data` data sets.

        Args:
          examples: Maps each client ID (text, or a whole number from 0) to the client's training examples `(x [n, ...],
            y)`. x is an array of any numbers, or a dict of such arrays for a model of several inputs. y are whole
            numbers, text, bools or other numbers; `clients.arrays` says what they become. Instead of a pair of arrays a
            client may have a data set of such pairs, in batches or not; elements whose first dimension has no fixed
            size are batches. Shapes, except for n, and types are the same for all clients, and so is the order of the
            columns of frames.
          test: The same for test examples. A client that is not in it has none.
          lazy: Whether examples are read when they are needed, as described in `from_client_data`. For this, give a
            `collections.abc.Mapping` of your own whose `__getitem__` reads or makes the examples of one client, the
            same ones each time.
          known: All clients so far, if those of `examples` join them or are all the clients of a later round. Clients
            keep their numbers, and labels their names.
          label_names: The name of each class, by its number; default the sorted texts, where labels are texts.

        Raises:
          UserError: If there are no clients, a client has no examples, or arrays do not fit each other.
        """
        return cls(**sources.from_arrays(examples, test, lazy=lazy, known=known, label_names=label_names))

    @classmethod
    def from_client_data(
        cls,
        train,
        test=None,
        *,
        clients: Iterable[str] | None = None,
        lazy: bool = False,
        known: "Population | None" = None,
        label_names: Sequence[str] | None = None,
    ) -> "Population":
        """Makes a population from `tff.simulation.datasets.ClientData`.

        Args:
          train: Training examples by client, `(x, y)` or `{"x": ..., "y": ...}`, in batches or not;
            `train.preprocess(...)` puts others in this form.
          test: Test examples by client; None for none. Clients without training examples are passed over.
          clients: The clients to take; the others are not read. Default: all.
          lazy: Whether examples are read when they are needed, the same each time. Then memory holds the clients of a
            round and about 256 MB of recent ones. Up to 10,000 clients are each read once at first, to be checked and
            counted. Of more clients, about 60 are read at first and the others when they are drawn: their `sizes` are
            unknown, accuracies and choices at an evaluation cover 10,000 clients, and labels that are texts need
            `label_names`, or all clients are read.
          known: As in `from_arrays`.
          label_names: As in `from_arrays`.

        Raises:
          UserError: As in `from_arrays`, or if examples have another form.
        """
        return cls(
            **sources.from_client_data(train, test, clients=clients, lazy=lazy, known=known, label_names=label_names)
        )

    @classmethod
    def from_frame(
        cls,
        frame,
        *,
        client: str,
        label: str | Sequence[str] | None,
        features: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
        test: float | str = 0.3,
        validation: float = 0.0,
        seed: int = 0,
        group: str | None = None,
        missing: str | None = None,
        standardize: bool | Sequence[str] | Mapping[str, tuple[float, float]] | None = None,
        bounds: Mapping[str, tuple[float, float]] | None = None,
        noise_multiplier: float | None = None,
        known: "Population | None" = None,
    ) -> "Population":
        """Makes a population from a table with a row for each example.

        A column of numbers or bools becomes a feature. A column of texts or categories becomes one feature for each
        category in the training examples, which is 1 where the row has this category and 0 elsewhere; an unknown
        category is 0 in all of them. What is measured on all clients for this is a release that counts in a run's
        epsilon. Categories of pandas and the means that `standardize` gives are not measured.

        Args:
          frame: A `pandas.DataFrame`, or the path of a Parquet or a CSV file. In a CSV file NA is a missing value, and
            007 is text.
          client: The column that names the client of each row, by text or whole numbers.
          label: The column of labels; `clients.arrays` says what they become. For several numbers per example, a list
            of columns. For an autoencoder, None: its labels are the features.
          features: The columns that the model takes; default all other columns with a name. For a model of several
            inputs, a dict of their names to columns.
          test: The share of each client's rows that is kept for tests, or a column of bools that marks the test rows.
          validation: The share of each client's other rows that is used neither to train nor to test.
          seed: Decides which rows are for tests and validation. A client's split does not depend on the other clients
            in the table, but a client with more rows than in an earlier table is split anew. To keep its test rows
            apart over time, give a column of bools as `test`.
          group: A column with the true group of each client, which files and pictures show by this name.
          missing: What happens to rows with missing values: "refuse" (default) raises UserError, "drop" leaves them
            out, "mean" fills in the column's mean for a number and no category for a category.
          standardize: Which columns of numbers get mean 0 and deviation 1 on the training examples: True (all, the
            default), False (none), or a list of them. Or a mapping of columns to a mean and a deviation of your own.
          bounds: The lowest and highest value of each measured column, which must be known without the data. With
            bounds, the means are noised and all clients count the same: see `clients.noised_means`.
          noise_multiplier: The noise multiplier of these means, against any one client.
          known: All clients so far, from `from_frame`, if those of `frame` join them or are all the clients of a later
            round. Columns become features, and labels numbers, as theirs did.

        Raises:
          UserError: As in `from_arrays`, and if a column is missing or of another type, or a value is missing.
        """
        if known is not None and getattr(known, "table", None) is None:
            raise UserError("the known clients are of no table; known= of from_frame is a population that it has made")
        table = read_table(
            frame, client=client, label=label, features=features, test=test, validation=validation, seed=seed,
            group=group, missing=missing, standardize=standardize, bounds=bounds, noise_multiplier=noise_multiplier,
            known=None if known is None else known.table,
        )  # fmt: skip
        return cls(**sources.from_table(table, known))

    @classmethod
    def from_folders(
        cls,
        root,
        *,
        image_size: int | Sequence[int] | None = None,
        channels: int | None = None,
        test: float = 0.3,
        validation: float = 0.0,
        seed: int = 0,
        known: "Population | None" = None,
    ) -> "Population":
        """Makes a population from folders of pictures, `ROOT/CLIENT/LABEL/NAME.png` (or .jpg, .bmp, .gif, .webp, .tif).

        Examples are uint8 `[n, height, width, channels]`. Every folder of a client names a label, even an empty folder,
        because newcomers may have this label.

        Args:
          root: The folder that has a folder for each client.
          image_size: Height and width to scale pictures to, or one number for both. By default pictures are not scaled,
            and must all have one size.
          channels: 1 for grey, 3 for colours; default 1 where all are grey.
          test: A share, as in `from_frame`.
          validation: As in `from_frame`.
          seed: As in `from_frame`.
          known: As in `from_arrays`.

        Raises:
          UserError: If a client has no pictures, one cannot be read or lies elsewhere, or they are of two sizes.
        """
        read = read_folders(root, image_size=image_size, channels=channels, test=test, validation=validation, seed=seed)
        return cls(**sources.from_table(read, known))

    def map(self, function: Callable) -> "Population":
        """Returns the population with each client's examples transformed by a function of your own.

        Args:
          function: Takes a client's examples as arrays `(x [n, ...], y [n, ...])` and returns such a pair, always the
            same pair for the same examples. It is applied to training, test and validation examples alike, now or
            whenever they are read. Classes keep their names if all labels come back unchanged. Labels that it returns
            as texts are names; `np.array(clients.label_names)[y]` turns numbers back into texts.

        Raises:
          UserError: As in `from_arrays`, for what the function returns.
        """

        unchanged: set[bool] = set()

        def of(kind: str, examples: Mapping[int, ClientExamples]) -> Mapping[int, ClientExamples]:
            def made(client: int, each: ClientExamples) -> ClientExamples:
                new = sources.applied(function, each, self.name_of(client), kind) if len(each) else each
                unchanged.add(new.y.dtype.kind in "iu" and np.array_equal(new.y, each.y))
                return new

            return client_examples.mapped(examples, made)

        current().on_reading()  # by the function
        train, test, validation = self.train_examples, self.test_examples, self.validation_examples
        found = sources.fields(
            self.shown_ids.tolist(), of("training", held(train)), of("test", held(test)),
            validation and of("validation", held(validation)),
        )  # fmt: skip
        if unchanged == {True}:
            found["label_names"] = self.label_names
        found["table"] = None  # whose rules do not make these features
        return dataclasses.replace(self, **found)

    def with_validation(self, share: float, *, seed: int = 0) -> "Population":
        """Returns the population with a share of each client's training examples held out, to choose settings by.

        Args:
          share: The share to hold out, rounded for each client; at least one example is left for training.
          seed: Decides which examples are held out, whoever else is in the population.

        Raises:
          UserError: If there are validation examples already, or if the share gives no client an example.
        """
        check_value("share", share, Fraction)
        if self.validation_examples is not None:
            raise UserError("the clients hold validation examples already")

        def part(place: int) -> Mapping[int, ClientExamples]:
            def of(client: int, each: ClientExamples) -> ClientExamples:
                rows = splits.drawn(np.arange(len(each)), share, splits.random_of(self.name_of(client), seed))[place]
                return ClientExamples(*each.pool, rows if each.rows is None else each.rows[rows], each.columns)

            return client_examples.mapped(held(self.train_examples), of)

        validation = part(0)
        if not any(map(len, validation.values())):
            raise UserError(f"share is {share:g}, which is no example of any client; give a larger one")
        found = sources.fields(self.shown_ids.tolist(), part(1), held(self.test_examples), validation)
        found["label_names"] = self.label_names
        if self.table and self.measured_noise is not None:
            found["note"] = f"{self.note}; what is measured is of validation examples, too".lstrip("; ")
        return dataclasses.replace(self, **found)

    def with_groups(self, groups: Mapping[int | str, int | str], *, known: "Population | None" = None) -> "Population":
        """Returns the population with true groups, which clusters are compared with.

        Args:
          groups: Maps each client's name, or its ID, to the name of its group, a text or a whole number.
          known: All clients so far, if these join them or are all the clients of a later round; groups keep their
            numbers.

        Raises:
          UserError: If a client has no group, or a client is not in this population.
        """
        values = list(groups.values()) if isinstance(groups, Mapping) else [None]
        if not any(all(isinstance(each, kind) for each in values) for kind in (str, (int, np.integer))):
            raise wrong("groups", groups, "it must be a mapping of clients to texts, or to whole numbers")
        shown = self.shown_ids.tolist()
        for client in groups.keys() - set(shown):
            self.id_of(client)  # which refuses it
        arrays.check_grouped(shown, groups)
        before = () if known is None or known.groups is None else known.group_names
        if before is None:  # they are called by their numbers
            before = tuple(map(str, range(known.groups.max() + 1)))  # type: ignore[union-attr]
        numbers, names = arrays.numbered([str(groups[client]) for client in shown], before)
        return dataclasses.replace(self, groups=numbers, group_names=names)

    def restricted(self, client_ids) -> "Population":
        """Returns the population of these clients only, ascending; UserError if one is not in this population."""
        rows = np.sort(self.index(client_ids))
        by_row = ("client_ids", "sizes", "versions", "label_counts", "groups", "names")
        fields: dict[str, Any] = {name: None if vars(self)[name] is None else vars(self)[name][rows] for name in by_row}
        return dataclasses.replace(self, **fields)
