"""Turns the examples and labels that users give, from NumPy, pandas or lists, into arrays. Imports no TensorFlow.

Values that a model cannot take are refused, and the message says how to mend them. The same rule turns labels into
numbers for every source of clients:

| given | becomes |
|---|---|
| whole numbers from 0, `[n]` or sequences `[n, L]` | int32: label k is class k, even if some classes have no examples |
| text | int32: their place among the sorted texts of all clients, which are remembered as names |
| pandas' categories, as a column of a table | int32: their place in the column's order, remembered as names |
| pandas' categories, as an array of a client | as plain text or numbers: clients' categories may differ in order |
| bools | int32: False is 0, True is 1 |
| other numbers, `[n, ...]` | float32; whole ones become classes if the model takes classes |
| any of these, `[n, 1]` | the same, `[n]` |
"""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tffcl.display import counted
from tffcl.errors import UserError


def as_array(given, what: str) -> np.ndarray:
    """Returns `np.asarray(given)`.

    Args:
      given: An array, a pandas frame or series, or nested lists.
      what: Its name in messages, e.g. "the labels of client a".

    Raises:
      UserError: If lists have unequal lengths, if NumPy cannot read it as an array, such as a sparse or ragged one, or
        if entries of a masked array are masked, since NumPy would use the values under the mask.
    """
    if np.ma.is_masked(given):
        masked = int(np.ma.count_masked(given))
        raise UserError(
            f"{what} are a masked array with {masked} entries masked; fill them, x.filled(...), or leave their rows out"
        )
    try:
        x = np.asarray(given)
    except ValueError:
        raise UserError(f"{what} have unequal shapes; they must be all alike") from None
    if x.dtype.kind == "O" and (not x.ndim or (x.size and hasattr(x.flat[0], "toarray"))):
        kind = type(x.flat[0]).__name__
        cures = {"RaggedTensor": "x.to_tensor()", "SparseTensor": "tf.sparse.to_dense(x)"}
        cure = cures.get(kind, "x.toarray()" if hasattr(x.flat[0], "toarray") else "")
        raise UserError(f"{what} are of {kind}, which is no array{cure and f'; {cure} makes one'}")
    return x


def numbers_of(given, what: str) -> np.ndarray:
    """Returns examples `[n, ...]` of any numeric type; raises UserError for other types, and where `as_array` does."""
    x = as_array(given, what)
    if x.dtype.kind not in "biuf" or not x.ndim:
        raise UserError(f"{what} are {x.dtype} {list(x.shape)}; they must be numbers [n, ...]{_to_numbers(given, x)}")
    return x


def _to_numbers(given, x: np.ndarray) -> str:
    """Says how to make numbers of texts, or of an array of objects, which pandas has for columns of several types."""
    if x.dtype.kind in "US" or (x.dtype.kind == "O" and x.ndim == 1 and all(isinstance(e, (str, bytes)) for e in x)):
        return (
            ": tf.keras.layers.TextVectorization, adapted to public texts, makes numbers of texts, "
            "layer(texts).numpy(), and the model begins with an Embedding"
        )
    if x.dtype.kind != "O" or not x.ndim:
        return ': .astype("float32")' if x.ndim else ""
    columns = zip(getattr(given, "columns", range(x.shape[-1])), np.moveaxis(x, -1, 0)) if x.ndim == 2 else []
    texts = [str(name) for name, column in columns if any(isinstance(each, str) for each in column.flat)]
    if texts:
        return f': column {texts[0]} holds text, of which pandas.get_dummies(frame, dtype="float32") makes numbers'
    return ': .astype("float32") makes them so'


def check_finite(x: np.ndarray, what: str, given=None):
    """Checks that no number is NaN or infinite, or would be infinite in float32.

    Args:
      x: Numbers `[n, ...]`.
      what: Their name in messages.
      given: What `x` was made from, which may have names for the columns.

    Raises:
      UserError: If one is; the message says in how many rows, and where the first is.
    """
    if x.dtype.kind != "f":
        return
    if np.isfinite(x).all():
        if x.dtype.itemsize > 4 and x.size and np.abs(x).max() > np.finfo(np.float32).max:
            raise UserError(f"{what} have entries beyond what float32 holds, 3.4e38")
        return
    wrong = ~np.isfinite(x)
    first, rows = np.argwhere(wrong)[0], int(wrong.reshape(len(x), -1).any(axis=1).sum())
    where = f"row {first[0]}"
    if x.ndim == 2:
        where += f", column {getattr(given, 'columns', range(x.shape[1]))[first[1]]}"
    raise UserError(f"{what} have NaN or infinite entries in {rows} of {counted(len(x), 'row')}, first in {where}")


WHOLE_IN_FLOAT32 = 2**24  # up to here float32 holds every whole number


def one_in_float32(x: np.ndarray) -> tuple[float, float] | None:
    """Returns the first two whole numbers of `x` that are equal in float32, as times in seconds may be. Returns None if
    there are none, or if some numbers have fractions, as measured ones do."""
    if not x.size or np.abs(x).max() <= WHOLE_IN_FLOAT32:
        return None
    different = np.unique(x)
    gone = np.flatnonzero(np.diff(different.astype(np.float32)) == 0)
    if not gone.size or not np.array_equal(different, np.round(different)):
        return None
    return different[gone[0]], different[gone[0] + 1]


BOOLS = ("False", "True")
_CURE = (
    ": y.astype(str) makes names of them, y.astype(float) numbers to predict, and padding is a class that the loss "
    "leaves out (ignore_class=)"
)
_MOST_NAMED = 12  # names of labels that a message lists


def checked_labels(given, what: str) -> np.ndarray:
    """Returns labels as whole numbers, floats, bools or text, `[n, ...]`.

    Args:
      given: An array, a pandas series, or a list.
      what: Their name in messages, e.g. "the labels of client a".

    Raises:
      UserError: If they are of another type or shape, or a value is missing.
    """
    y = as_array(given, what)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.dtype.kind in "OS" and y.ndim:
        y = _of_objects(y, what)
    flat = y.ndim in (1, 2) or (y.ndim > 2 and y.dtype.kind == "f")
    if y.dtype.kind not in "biufU" or not flat:
        cure = ': y.astype("int64") makes them so' if y.dtype.kind == "O" and y.ndim else ""
        raise UserError(f"{what} are {y.dtype} {list(y.shape)}; they must be integers, numbers or text, [n, ...]{cure}")
    check_finite(y, what)
    return y


def _of_objects(y: np.ndarray, what: str) -> np.ndarray:
    """Returns labels that pandas or TensorFlow hold as objects, as text or bools if they are such."""
    if y.dtype.kind == "S" or all(isinstance(each, bytes) for each in y.flat):
        return np.char.decode(y.astype(bytes), "utf-8")
    kinds = {type(each) for each in y.flat}
    if not kinds or not any(issubclass(kind, (str, bool, np.bool_)) for kind in kinds):
        return y
    if all(issubclass(kind, str) for kind in kinds):
        return y.astype(str)
    if all(issubclass(kind, (bool, np.bool_)) for kind in kinds):
        return y.astype(bool)
    first = next(place for place, each in enumerate(y.flat) if not isinstance(each, (str, bool, np.bool_)))
    raise UserError(
        f"{what} are of {', '.join(sorted(kind.__name__ for kind in kinds))}, {y.flat[first]} in row {first}"
    )


def names_of_labels(parts: Iterable[np.ndarray]) -> tuple[str, ...] | None:
    """Returns the names of labels in the order of their classes; None for numbers.

    Args:
      parts: The labels, or the distinct ones, of each client.

    Raises:
      UserError: As `check_apart`.
    """
    texts, bools = set(), False
    for part in parts:
        if part.dtype.kind == "U":
            texts.update(np.unique(part).tolist())
        bools = bools or part.dtype.kind == "b"
    check_apart(texts, "the labels")
    return tuple(sorted(texts)) or (BOOLS if bools else None)


def check_apart(texts: Iterable[str], what: str):
    """Raises UserError if two texts differ only by blanks around them, or by the encoding of accents, as file names
    from another system may: they would count as two, but mean the same."""
    first: dict[str, str] = {}
    for each in sorted(texts):
        other = first.setdefault(unicodedata.normalize("NFC", each).strip(), each)
        if other == each or not each.strip():  # blanks alone may be characters
            continue
        if other.strip() == each.strip():
            told = f"{other!r} and {each!r} differ by blanks around them only; .strip()"
        else:
            told = f"{other!a} and {each!a} are both written {each}; unicodedata.normalize('NFC', ...)"
        raise UserError(f"{what} {told} makes one of them")


def written(category) -> str:
    """Returns a category as text: 1.0 as 1, since pandas turns whole numbers into floats if some are missing."""
    return str(int(category) if isinstance(category, (float, np.floating)) and category.is_integer() else category)


def in_order(names: Iterable[str]) -> list[str]:
    """Returns names sorted, as numbers if all are whole numbers: 10 comes after 9."""
    return sorted(names, key=int if all(map(str.isdecimal, names)) else None)


def index_of(known: np.ndarray, client_ids) -> np.ndarray:
    """Returns the positions of `client_ids` in the ascending `known`; raises UserError if one is missing."""
    wanted = np.atleast_1d(np.asarray(client_ids))
    rows = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    if not np.array_equal(known[rows], wanted):
        missing = wanted[known[rows] != wanted][0]
        raise UserError(f"client {missing} is not known; there are {len(known)} clients, {known[0]} to {known[-1]}")
    return rows


def numbered(called: Sequence[str], known: Sequence[str] = ()) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns the number of each name, int32, and all names by number: known ones first, then new ones in order."""
    names = (*known, *in_order(set(called) - set(known)))
    numbers = {name: number for number, name in enumerate(names)}
    return np.array([numbers[name] for name in called], np.int32), names


def check_grouped(clients: Iterable, groups: Mapping):
    """Raises UserError if one of the clients has no group."""
    missing = [client for client in clients if client not in groups]
    if missing:
        more = f", and {len(missing) - 1} more have none" if len(missing) > 1 else ""
        raise UserError(f"client {missing[0]} has no group in groups{more}; each must have one", key="groups")


def called(numbers: np.ndarray | None, names: Sequence[str] | None) -> np.ndarray | None:
    """Returns the name of each number, or the numbers themselves if there are no names."""
    return numbers if numbers is None or not names else np.array(names)[numbers]


def check_label_names(parts: Iterable[np.ndarray], names: Sequence[str] | None):
    """Raises UserError if a label is a whole number that is also the name of another class, or if labels are bools and
    the classes have other names.

    Args:
      parts: The distinct labels of each client.
      names: The names of the known classes, if they have names.
    """
    parts = list(parts)
    if names not in (None, BOOLS) and any(part.dtype.kind == "b" for part in parts):
        known = ", ".join(names[:3])
        raise UserError(f"the labels are bools, and those of the known clients are called {known}, ...; give texts")
    for each in np.unique(np.concatenate([np.zeros(0, int), *(part for part in parts if part.dtype.kind in "iu")])):
        if str(each) in (names or ()) and names[each % len(names)] != str(each):
            raise UserError(
                f"the label {each} could be the class of this number or that which is called {str(each)!r}, as the "
                "known clients' labels are texts; give texts"
            )


def coded_labels(y: np.ndarray, whose: str, names: Sequence[str] | None) -> np.ndarray:
    """Returns labels as int32, or as float32 if they are numbers to be predicted.

    Args:
      y: From `checked_labels`.
      whose: The name of their owner in messages, e.g. "client a".
      names: The names of the classes, if they have names.

    Raises:
      UserError: If a label is not a class: below 0, too large, or none of `names`.
    """
    if y.dtype.kind == "f":
        return y.astype(np.float32)
    if y.dtype.kind == "U":
        numbers = {name: number for number, name in enumerate(names or ())}
        distinct, places = np.unique(y, return_inverse=True)
        for each in distinct.tolist():
            if each not in numbers:
                known = ", ".join(list(numbers)[:_MOST_NAMED]) + (", ..." if len(numbers) > _MOST_NAMED else "")
                raise UserError(
                    f"{whose} has the label {each!r}, which is none of those known ({known or 'numbers'}); "
                    "the first population can name more, by label_names= of arrays, by pandas' categories of a table"
                )
        found = np.array([numbers[each] for each in distinct.tolist()], np.int32)
        return found[places].reshape(y.shape) if y.size else np.zeros(y.shape, np.int32)
    end = len(names) if names else 2**31 - 1
    if y.size and (y.min() < 0 or y.max() >= end):
        wrong = y.min() if y.min() < 0 else y.max()
        rule = f"labels count from 0{_CURE}" if wrong < 0 else f"there are {end} label_names"
        large = "so large a number is no class: y.astype(float) makes numbers to predict"
        raise UserError(f"{whose} has the label {wrong}; {rule if wrong < 0 or names else large}")
    return y.astype(np.int32)


def label_hint(y: np.ndarray, classes: bool) -> str:
    """Returns how to mend labels `[n, ...]` that a model does not take, for messages; "" if there is no known way.

    Args:
      y: From `coded_labels`.
      classes: Whether the model takes one class for each example.
    """
    if not classes:
        return ""
    if y.ndim == 2 and y.shape[1] > 1 and bool(np.isin(y, (0, 1)).all() and (y.sum(axis=-1) == 1).all()):
        return "; of one-hot rows y.argmax(axis=1) makes labels"
    return "; numbers become classes by np.digitize(y, edges)" if y.dtype.kind == "f" and y.ndim == 1 else ""
