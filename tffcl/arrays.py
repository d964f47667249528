"""Arrays as users bring them, of NumPy, pandas or lists: what a model can't take is refused, with the line that
mends it."""

import numpy as np

from tffcl.errors import UserError


def as_array(given, what: str) -> np.ndarray:
    """Returns `np.asarray(given)`.

    Args:
      given: An array, a pandas frame or series, nested lists.
      what: Names it in messages, e.g. "the labels of client a".

    Raises:
      UserError: If lists are of unequal lengths, or entries of a masked array are masked: NumPy would take what is
        under the mask.
    """
    if np.ma.is_masked(given):
        masked = int(np.ma.count_masked(given))
        raise UserError(
            f"{what} are a masked array with {masked} entries masked; fill them, x.filled(...), or leave their rows out"
        )
    try:
        return np.asarray(given)
    except ValueError:
        raise UserError(f"{what} have unequal shapes; they must be all alike") from None


def numbers_of(given, what: str) -> np.ndarray:
    """Returns examples `[n, ...]` of any type of numbers; UserError for other types, masked and unequal ones."""
    x = as_array(given, what)
    if x.dtype.kind not in "biuf" or not x.ndim:
        raise UserError(f"{what} are {x.dtype} {list(x.shape)}; they must be numbers [n, ...]{_to_numbers(given, x)}")
    return x


def _to_numbers(given, x: np.ndarray) -> str:
    """What makes numbers of an array of objects, which pandas has where columns are of several types."""
    if x.dtype.kind in "US":
        return ""
    if x.dtype.kind != "O" or not x.ndim:
        return ': .astype("float32")' if x.ndim else ""
    columns = zip(getattr(given, "columns", range(x.shape[-1])), np.moveaxis(x, -1, 0)) if x.ndim == 2 else []
    texts = [str(name) for name, column in columns if any(isinstance(each, str) for each in column.flat)]
    if texts:
        return f': column {texts[0]} holds text, of which pandas.get_dummies(frame, dtype="float32") makes numbers'
    return ': .astype("float32") makes them so'


def check_finite(x: np.ndarray, what: str, given=None):
    """Checks that no number is NaN or infinite.

    Args:
      x: Numbers `[n, ...]`.
      what: Names them in messages.
      given: What they were before, which may know the columns' names.

    Raises:
      UserError: If one is; says in how many rows, and where the first is.
    """
    if x.dtype.kind != "f" or np.isfinite(x).all():
        return
    wrong = ~np.isfinite(x)
    first, rows = np.argwhere(wrong)[0], int(wrong.reshape(len(x), -1).any(axis=1).sum())
    where = f"row {first[0]}"
    if x.ndim == 2:
        where += f", column {getattr(given, 'columns', range(x.shape[1]))[first[1]]}"
    raise UserError(f"{what} have NaN or infinite entries in {rows} of {len(x)} rows, first in {where}")
