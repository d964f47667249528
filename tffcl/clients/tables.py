"""A user's own tables, as pandas has them, and the arrays that they become. Imports pandas only when one is read, and
never TensorFlow."""

import collections
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from tffcl.clients import arrays
from tffcl.clients.noised_means import deviation, noised_means, pair_of
from tffcl.clients.splits import split
from tffcl.clients.table_files import (
    FEW,
    check_codes,
    check_form,
    check_there,
    is_bool,
    is_categorical,
    kept_as_texts,
    label_notes,
    numbers_in_texts,
    read_table_file,
    tidied,
)
from tffcl.display import counted, listed
from tffcl.errors import UserError, unknown
from tffcl.validation import Fraction, check_kind, check_value, one_of

MISSING = ("refuse", "mean", "drop")
_STANDARDISED = "features are standardised by means and deviations of the training clients' training examples"
_NOISED = ", which have noise of a multiplier of {:g} against any one client"
_MOST_CATEGORIES = 1000  # in a column; each becomes a feature


@dataclasses.dataclass(frozen=True)
class Column:
    """How a column becomes features: `(value - mean) / std`, or one feature for each category, which is 1 in its rows
    and 0 in others. `fill` first takes the place of a missing number."""

    mean: float = 0.0
    std: float = 1.0
    fill: float = 0.0
    categories: tuple[str, ...] | None = None

    def features(self, name: str) -> list[str]:
        """The names of its features."""
        return [name] if self.categories is None else [f"{name}={each}" for each in self.categories]


@dataclasses.dataclass(frozen=True, eq=False)
class TableRules:
    """How a table becomes examples; the tables of clients that join later are read by the rules of the known clients.

    Attributes:
      inputs: Maps the name of a model's input to its columns; the name is "" if there is only one.
      columns: How each column becomes features.
      missing: What happens to missing values, see `Population.from_frame`.
      groups: The name of each true group, by its number.
      measured_noise: As in `clients.population.Population`.
    """

    inputs: Mapping[str, tuple[str, ...]]
    columns: Mapping[str, Column]
    missing: str
    groups: tuple[str, ...] = ()
    measured_noise: float | None = None

    @property
    def feature_names(self) -> tuple[str, ...] | dict[str, tuple[str, ...]]:
        """The names of the features in their order, by input if there are several."""
        names = {
            key: tuple(name for column in own for name in self.columns[column].features(column))
            for key, own in self.inputs.items()
        }
        return names.get("", names)

    def described(self) -> list[dict] | dict[str, list[dict]]:
        """Returns plain values that say, in order, how each column becomes features: `(value - mean) / std` of a
        number, or a 0 or 1 for each category of a text. They are by input if there are several."""

        def of(name: str) -> dict:
            column, filled = self.columns[name], self.missing == "mean"
            if column.categories is not None:
                return {"column": name, "categories": list(column.categories)}
            missing = {"missing": column.fill} if filled else {}
            return {"column": name, "mean": column.mean, "std": column.std, **missing}

        found = {key: [of(name) for name in own] for key, own in self.inputs.items()}
        return found.get("", found)

    def features(self, values: Mapping[str, np.ndarray]) -> np.ndarray | dict[str, np.ndarray]:
        """Returns the examples, float32 `[n, features]`, by input if there are several. An input stays whole numbers if
        all its columns are, none is standardised, and missing values are not filled.

        Args:
          values: Maps a column to its values: float64 with NaN, integers, or texts, where "" is missing.
        """
        found = {}
        for key, own in self.inputs.items():
            x = np.concatenate([self._of(name, values[name]) for name in own], axis=1)
            # The type must not depend on which clients lack a value.
            if x.dtype.kind != "i" or self.missing == "mean":
                self._check_held(own, values)
                x = x.astype(np.float32)
            found[key] = x
            arrays.check_finite(found[key], "the features of the table")
        return found.get("", found)

    def _check_held(self, names: Iterable[str], values: Mapping[str, np.ndarray]):
        """Raises UserError if a column that is not standardised has whole numbers that are equal in float32, as times
        in seconds may be."""
        for name in names:
            rule, own = self.columns[name], values[name]
            if rule.categories is None and (rule.mean, rule.std) == (0, 1):
                held = own[np.isfinite(own)]
                if one := arrays.one_in_float32(held):
                    raise UserError(
                        f"column {name} holds {one[0]:.0f} and {one[1]:.0f}, which are one number in float32, as "
                        f"features are: standardize it, or subtract a number, frame[{name!r}] - {held.min():.0f}"
                    )

    def read(self, frame) -> np.ndarray | dict[str, np.ndarray]:
        """Returns the examples of a table's rows, see `Population.features_of`."""
        check_form(frame)
        check_there(frame, self.columns)
        values, (frame, _) = {}, tidied(frame, self.columns)
        for name in self.columns:
            none = frame[name].isna().to_numpy()
            if none.any() and self.missing != "mean":
                where = f"{none.sum()} of {counted(len(frame), 'row')}, first in row {none.argmax()}"
                raise UserError(f"column {name} has no value in {where}")
            values[name] = _values(frame[name], None)
        return self.features(self.of_kinds(values))

    def of_kinds(self, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the columns; one without any value gets the kind of the known column. Raises UserError if a column
        holds numbers and the known one text, or the other way round."""
        found = dict(values)
        for name, column in self.columns.items():
            own, is_text = values[name], values[name].dtype.kind == "U"
            if (column.categories is None) != is_text:
                continue
            none = own == "" if is_text else np.isnan(own.astype(np.float64))
            if not none.all():
                kinds = ("text", "numbers") if is_text else ("numbers", "text")
                raise UserError(f"column {name} holds {kinds[0]}; that of the known clients holds {kinds[1]}")
            found[name] = np.full(len(own), np.nan if is_text else "")
        return found

    def _of(self, name: str, values: np.ndarray) -> np.ndarray:
        rule = self.columns[name]
        if rule.categories is not None:
            return (values[:, np.newaxis] == np.array(rule.categories)[np.newaxis]).astype(np.float32)
        if values.dtype.kind in "iu" and (rule.mean, rule.std) == (0, 1):
            return values[:, np.newaxis]
        filled = np.where(np.isnan(values), rule.fill, values) if values.dtype.kind == "f" else values
        return ((filled - rule.mean) / rule.std)[:, np.newaxis]


@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """A table that has become examples.

    Attributes:
      x: `[n, features]`, by input if there are several.
      y: Labels `[n, ...]`, see `clients.arrays`.
      parts: Maps "training", "test" and "validation" to the rows of each client, by ID; "training" has every client.
      groups: The true group of each client by ID; None if there are none.
      rules: How the columns became features; None for pictures.
      label_names: The name of each class, if the labels are categories or folders; else None.
      note: A note for readers of results.
      values: The columns of `x` as they were read, `[n]` each; empty for pictures.
      measure: Maps rows to the rules that are measured on these; None if nothing is measured.
    """

    x: np.ndarray | dict[str, np.ndarray]
    y: np.ndarray
    parts: Mapping[str, Mapping[str | int, np.ndarray]]
    groups: Mapping[str | int, int] | None
    rules: TableRules | None
    label_names: tuple[str, ...] | None
    note: str
    values: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    measure: Callable[[np.ndarray], TableRules] | None = None

    def measured_on(self, rows: np.ndarray) -> "Table":
        """Returns the table with features by rules that are measured on these rows alone, `int [m]`."""
        if self.measure is None:
            return self
        rules = dataclasses.replace(self.measure(rows), groups=self.rules.groups)
        return dataclasses.replace(self, x=rules.features(self.values), rules=rules)


def read_table(
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
    bounds: Mapping[str, Sequence[float]] | None = None,
    noise_multiplier: float | None = None,
    known: TableRules | None = None,
) -> Table:
    """Makes examples of a table; for the arguments see `Population.from_frame`.

    Args:
      known: The rules of the clients so far.

    Raises:
      UserError: If a column is missing or holds neither numbers nor texts, or a value is missing.
    """
    check_kind("client", client, str, "the name of a column")
    check_kind("label", label, (str, list, tuple, type(None)), "the name of a column, or a list of several")
    outputs = [] if label is None else [label] if isinstance(label, str) else list(label)
    given, frame = frame, _as_frame(frame, client, group, outputs)
    if known is not None and any(each is not None for each in (features, missing, standardize, bounds)):
        raise UserError("features, missing, standardize and bounds are those of the known clients; leave them out")
    noised = noised_means(bounds, noise_multiplier, seed)
    rule = known.missing if known else check_value("missing", missing or MISSING[0], one_of(MISSING))
    check_value("validation", validation, Fraction)
    roles = [client, *outputs, *([group] if group else []), *([test] if isinstance(test, str) else [])]
    _check_named_once([name for name in roles if name != group], "the client, the labels and the test")
    inputs = known.inputs if known else _inputs(frame, features, roles)
    columns = list(dict.fromkeys(name for own in inputs.values() for name in own))
    for name in roles if known else (*roles, *columns):
        if name not in frame.columns:
            raise unknown("column", name, map(str, frame.columns))
    check_there(frame, columns)
    check_codes(given, frame, columns)
    frame, notes = tidied(frame, dict.fromkeys([*roles, *columns]))
    ids = _client_ids(frame[client], client)
    kept = _without_missing(frame, ids, columns, outputs, rule)
    gone, ids, frame = np.setdiff1d(ids, ids[kept]), ids[kept], frame[kept]
    if lost := len(kept) - len(frame):
        whose = f", and with them all of client{'s' * (len(gone) > 1)} {listed(gone)}" if len(gone) else ""
        notes.append(f"{counted(lost, 'row')} with missing values {'are' if lost > 1 else 'is'} left out{whose}")
    values = {name: _values(frame[name], ids) for name in columns}
    if isinstance(test, str) and not frame[test].isin([0, 1]).all():
        raise UserError(f"column {test} must hold bools: True where a row is for tests")
    tested = frame[test].to_numpy(bool) if isinstance(test, str) else check_value("test", test, Fraction)
    parts = split(ids, tested, validation, seed)
    training = np.concatenate([*parts["training"].values(), np.zeros(0, int)]).astype(int)
    measure = functools.partial(_measured, frame, ids, values, inputs, rule, standardize, noised)
    rules = known or measure(training)
    x = rules.features(rules.of_kinds(values))
    if label is None and isinstance(x, Mapping):
        raise UserError("label is None, and features are of several inputs; only those of one can be given again")
    # Whole numbers that a model reconstructs are numbers to be predicted, not classes.
    y, names = (np.float32(x), None) if label is None else _labels(frame, outputs, isinstance(label, str))
    if not known:
        notes = [*_notes(frame, rules), *([] if names else label_notes(outputs, y)), *notes]
    groups = group and _groups(frame[group], ids, group)
    if groups:
        numbers, names_of_groups = arrays.numbered(list(groups.values()), rules.groups)
        rules = dataclasses.replace(rules, groups=names_of_groups)
        groups = dict(zip(groups, numbers.tolist(), strict=True))
    return Table(x, y, parts, groups, rules, names, "; ".join(notes), values, None if known else measure)


def _notes(frame, rules: TableRules) -> list[str]:
    """Returns notes for readers of results on the rules."""
    nameless = [name for name in frame.columns if _is_nameless(name) and name not in rules.columns]
    found = [f"column {name} has no name in its file, and is no feature" for name in nameless]
    if any(column.categories is None and (column.mean, column.std) != (0, 1) for column in rules.columns.values()):
        found.append(_STANDARDISED + (_NOISED.format(rules.measured_noise) if rules.measured_noise else ""))
    for name, column in rules.columns.items():
        texts = () if column.categories is None or is_categorical(frame[name]) else column.categories
        if told := numbers_in_texts(name, texts):
            found.append(f"column {name} holds texts, each of which is a category, {told}")
        elif len(texts) > max(FEW, len(frame) / 2):
            found.append(f"column {name} has {len(texts)} categories in {len(frame)} rows, and new ones are of none")
    return found


def _is_nameless(column) -> bool:
    """Whether pandas made up the name of a file's column, as it does for an index that it has written."""
    return str(column).startswith("Unnamed: ")


def _as_frame(frame, client: str, group: str | None, labels: Sequence[str]):
    if isinstance(frame, (str, pathlib.Path)):
        frame = read_table_file(pathlib.Path(frame).expanduser(), client, group, labels)
    check_form(frame, ", or a path of a CSV file")
    if not len(frame):
        raise UserError("the table has no rows")
    return frame.reset_index(drop=True)


def _inputs(frame, features, roles) -> dict[str, tuple[str, ...]]:
    """Returns the columns of each input of a model."""
    if features is None:
        features = [name for name in frame.columns if name not in roles and not _is_nameless(name)]
    inputs = features if isinstance(features, Mapping) else {"": features}
    if inputs is features and not (inputs and all(isinstance(key, str) and key for key in inputs)):
        raise UserError(f"the inputs of features are {list(inputs)}; they must be the names of a model's inputs")
    inputs = {key: (own,) if isinstance(own, str) else tuple(own) for key, own in inputs.items()}
    for key, own in inputs.items():
        if not own:
            raise UserError(f"there are no features{f' of input {key}' if key else ''}; name one column or more")
        also = next((name for name in own if name in roles), None)
        if also is not None:
            raise UserError(f"column {also} cannot be a feature: it says the client, the label, the group or the test")
        _check_named_once(own, f"the features{f' of input {key}' if key else ''}")
    return inputs


def _check_named_once(columns: Sequence[str], what: str):
    if (twice := _twice(columns)) is not None:
        raise UserError(f"column {twice} is named twice among {what}; once is enough, and each is another column")


def _client_ids(column, name: str) -> np.ndarray:
    """Returns the client of each row, texts or whole numbers."""
    if (none := column.isna()).any():
        raise UserError(
            f"column {name} names no client in {none.sum()} of {len(column)} rows, first in row {none.argmax()}; "
            f"frame.replace(r'^\\s*$', pandas.NA, regex=True).dropna(subset=[{name!r}]) leaves them out"
            f"{kept_as_texts(column)}"
        )
    ids = np.array(column.tolist(), object)
    if all(isinstance(each, str) for each in ids):
        return ids.astype(str)
    # pandas has floats if one was missing.
    if all(isinstance(each, int) and not isinstance(each, bool) for each in ids) or all(
        isinstance(each, float) and each.is_integer() for each in ids
    ):
        if abs(ids).max() >= 2**63:
            raise UserError(f"column {name} has the client ID {max(ids, key=abs)}, which is too large; use text")
        return ids.astype(np.int64)
    kinds = ", ".join(sorted({type(each).__name__ for each in ids}))
    raise UserError(f"column {name} holds {kinds}; client IDs must be all text or all whole numbers: .astype(str)")


def _without_missing(frame, ids: np.ndarray, columns, outputs, rule: str) -> np.ndarray:
    """Returns which rows stay, `bool [n]`; raises UserError if a value is missing that must not be."""
    kept = np.ones(len(frame), bool)
    for name in (*columns, *outputs):
        none = frame[name].isna().to_numpy()
        if rule == "drop":
            kept &= ~none
        elif none.any() and (rule == "refuse" or name in outputs):
            row, cure = none.argmax(), 'missing="drop" leaves such rows out'
            fills = "" if name in outputs else 'missing="mean" fills them by the mean of training examples, '
            raise UserError(
                f"column {name} has no value in {none.sum()} of {len(frame)} rows, first of client {ids[row]} in row "
                f"{row}; {fills}{cure}{kept_as_texts(frame[name])}"
            )
    if not kept.any():
        raise UserError("every row of the table has a missing value; features= can leave columns out")
    return kept


def _values(column, ids: np.ndarray | None) -> np.ndarray:
    """Returns a column as float64 with NaN, integers, or texts, where "" is missing; raises UserError for other types.
    `ids` are the rows' clients, for messages; None if they have none."""
    from pandas.api import types

    name, kind = column.name, column.dtype
    if types.is_bool_dtype(kind) or types.is_integer_dtype(kind):
        whole = None if column.isna().any() else column.to_numpy(np.int64)
        if whole is not None and not (types.is_unsigned_integer_dtype(kind) and (whole < 0).any()):  # beyond int64
            return whole
        return column.to_numpy(np.float64, na_value=np.nan)
    is_float = types.is_float_dtype(kind)
    found = set() if is_float else {type(each) for each in column.dropna()}
    if not is_float and (is_categorical(column) or all(issubclass(each, str) for each in found)):
        return column.astype(object).map(arrays.written, na_action="ignore").fillna("").to_numpy(str)
    if all(issubclass(each, (int, float, np.number, bool)) for each in found):
        values = column.to_numpy(np.float64, na_value=np.nan)
        if (infinite := np.isinf(values)).any():
            row = infinite.argmax()
            where = f"in row {row}" if ids is None else f"of client {ids[row]} in row {column.index[row]}"
            raise UserError(f"column {name} has an infinite value {where}")
        return values
    kinds = (
        f"{kind} ({', '.join(sorted(each.__name__ for each in found))})" if types.is_object_dtype(kind) else str(kind)
    )
    cure = "frame[column].astype(str) makes categories, pandas.to_numeric(frame[column], errors='coerce') numbers"
    if types.is_datetime64_any_dtype(kind):
        cure = "(frame[column] - pandas.Timestamp('2000')).dt.days makes numbers"  # the same for newcomers
    raise UserError(f"column {name} holds {kinds}; features are numbers, bools, texts or categories: {cure}")


def _measured(frame, ids, values: Mapping[str, np.ndarray], inputs, missing: str, standardize, noised, rows):
    """Returns the rules that are measured on the training examples, those at `rows`. `values` has the columns of all
    rows, `ids` their clients `[n]`; `noised` is a `NoisedMeans`, or None for means and deviations without noise."""
    training = {name: own[rows] for name, own in values.items()}
    numeric = [name for name, values in training.items() if values.dtype.kind != "U"]
    given = standardize if isinstance(standardize, Mapping) else {}
    if standardize is None or isinstance(standardize, bool):
        wanted = [] if standardize is False else [name for name in numeric if not is_bool(frame[name])]
    elif not isinstance(standardize, Iterable):
        raise UserError(f"standardize is {standardize!r:.80}; it must be True, False, columns, or a mapping of them")
    else:
        wanted = [standardize] if isinstance(standardize, str) else list(standardize)
    for name in wanted:
        if name not in numeric:
            raise unknown("column of numbers to standardise", name, numeric)
    for name in numeric:
        if np.isnan(training[name].astype(np.float64)).all():
            raise UserError(f"column {name} has no value in any training example; leave it out, features=[...]")
    measured = [name for name in numeric if name not in given and (name in wanted or missing == "mean")]
    found = {name: pair_of(each) for name, each in given.items()}
    for name, pair in found.items():
        if pair is None or pair[1] < 0:
            raise UserError(f"standardize of column {name} is {given[name]!r:.80}; it must be a mean and a deviation")
    if noised:
        read = [name for name in training if name not in numeric]
        found |= noised.of({name: training[name] for name in measured}, ids[rows])
    else:
        read = [name for name in training if name not in numeric and not is_categorical(frame[name])]
        found |= {name: (float(np.nanmean(training[name])), deviation(training[name])) for name in measured}
    rules = {}
    for name, values in training.items():
        if name not in numeric:
            if noised and not is_categorical(frame[name]):
                raise UserError(
                    f"column {name} holds texts, and which there are would be read without noise; say it, "
                    f"frame[{name!r}].astype(pandas.CategoricalDtype([...])), or leave the column out, features=[...]"
                )
            rules[name] = Column(categories=_categories(frame[name], values))
            continue
        mean, std = found.get(name, (0.0, 1.0))
        rules[name] = Column(*((mean, std or 1.0) if name in wanted else (0.0, 1.0)), fill=mean)
    noise = noised.noise_multiplier if noised else 0.0
    return TableRules(inputs, rules, missing, measured_noise=noise if measured or read else None)


def _categories(column, training: np.ndarray) -> tuple[str, ...]:
    if is_categorical(column):
        found = _names_of(column, column.dtype.categories)
    else:
        found = np.unique(training).tolist()
    found = tuple(each for each in found if each)  # "" is missing
    if not 0 < len(found) <= _MOST_CATEGORIES:
        told = numbers_in_texts(column.name, found).replace("and ", "; ", 1)
        raise UserError(
            f"column {column.name} holds {len(found):,} different texts in training examples; from 1 to "
            f"{_MOST_CATEGORIES} become features: leave it out, features=[...]{told}"
        )
    return found


def _names_of(column, values, what: str = "categories") -> tuple[str, ...]:
    """Returns the names of a column's different values; raises UserError if two have the same name, as 1 and "1"."""
    names = tuple(map(arrays.written, values))
    if (twice := _twice(names)) is not None:
        raise UserError(f"column {column.name} has two {what} that are written {twice!r}")
    return names


def _twice(names: Sequence[str]) -> str | None:
    return next((name for name, count in collections.Counter(names).items() if count > 1), None)


def _labels(frame, outputs: list[str], single: bool) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Returns labels, `[n]` of one column or `[n, L]` of several, and the names of the classes if pandas has them."""
    names = None
    if not outputs:
        raise UserError("label is an empty list; it must be the name of a column, or a list of several")
    if single and is_categorical(frame[outputs[0]]):
        names = _names_of(frame[outputs[0]], frame[outputs[0]].dtype.categories)
        texts = frame[outputs[0]].astype(object).map(arrays.written).to_numpy(object)
        return arrays.checked_labels(texts, f"column {outputs[0]}"), names
    columns = []
    for name in outputs:
        column = frame[name]
        numeric = getattr(column.dtype, "numpy_dtype", None)  # of pandas' own types, in which values can be missing
        given = column.to_numpy() if numeric is None else column.to_numpy(numeric)
        columns.append(arrays.checked_labels(given, f"the labels of column {name}"))
    if len({each.dtype.kind == "U" for each in columns}) > 1:
        given = ", ".join(map(str, outputs))
        raise UserError(f"the columns {given} are labels of which some are text; they must be alike")
    return columns[0] if single else np.stack(columns, axis=1), names


def _groups(column, ids: np.ndarray, name: str) -> dict:
    """Returns the name of each client's true group."""
    missing = column.isna().to_numpy()
    if missing.any():
        of = f"{ids[missing][0]}; every client is of one group{kept_as_texts(column)}"
        raise UserError(f"column {name} has no value of client {of}")
    _names_of(column, column.unique(), "groups")
    found = column.groupby(ids).unique().to_dict()
    for client, groups in found.items():
        if len(groups) != 1:
            raise UserError(
                f"column {name} has {len(groups)} values of client {client}, e.g. {groups[0]} and {groups[1]}; "
                "a client is of one group"
            )
    return {client: arrays.written(groups[0]) for client, groups in found.items()}
