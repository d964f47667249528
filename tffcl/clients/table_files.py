"""Tables as they are given, from files and others, and what in them means the same."""

import functools
import pathlib
import re
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np

from tffcl.errors import UserError

_GIVE_IT = "makes a DataFrame to give in its place"
FEW = 5  # so many texts that are numbers may be categories that somebody has numbered
_MONTH = r"(\d{1,2}|(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*)"
_DATE = re.compile(
    rf"(\d{{4}}([-/.]){_MONTH}\2\d{{1,2}}|\d{{1,2}}([-/. ]){_MONTH}\5(\d{{4}}|\d{{2}}))([T ].*)?", re.IGNORECASE
)
_COMMAS_OF_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?")
_POINTS_OF_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(\.\d{3})+,\d+")


def read_table_file(path: pathlib.Path, client: str):
    """Returns the table of a CSV file, or of a Parquet file by its ending; UserError if it cannot be read.

    Whole numbers stay whole beside missing ones. In a CSV file clients are numbers only where all of them are written
    as whole numbers are, which 007 and 1e3 are not.
    """
    import pandas

    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            return pandas.read_parquet(path, dtype_backend="numpy_nullable")
        # Types of columns may not depend on how long a file is, as those of parts do.
        # Blanks after a comma would make a text of a number that is missing.
        read_csv = functools.partial(pandas.read_csv, path, skipinitialspace=True)
        frame = read_csv(low_memory=False, dtype_backend="numpy_nullable")
        names = read_csv(header=None, nrows=1, dtype=str).iloc[0].dropna()
        if names.duplicated().any():  # pandas would call the second NAME.1, and a label may be a feature then
            raise ValueError(f"it has two columns {names[names.duplicated()].iloc[0]}; their names must be different")
        if len(frame.columns) == 1 and ";" in frame.columns[0]:
            raise ValueError(f'its columns are separated by ";": pandas.read_csv(path, sep=";") {_GIVE_IT}')
        if not isinstance(frame.index, pandas.RangeIndex) and frame.iloc[:, -1].isna().all():
            raise ValueError(f"its lines end in a comma: pandas.read_csv(path, index_col=False) {_GIVE_IT}")
        if client in frame and frame[client].dtype.kind in "iuf":
            written = read_csv(dtype={client: str}, usecols=[client])[client]
            if not written.str.strip().str.fullmatch(r"-?(0|[1-9]\d*)(\.0)?", na=True).all():
                frame[client] = written
        return frame
    except FileNotFoundError:
        raise UserError(f"there is no table {path.absolute()}") from None
    except UnicodeDecodeError as error:
        cure = f'pandas.read_csv(path, encoding="cp1252"), or whatever it is in, {_GIVE_IT}'
        raise UserError(f"{path} is not in UTF-8 ({error.reason}): {cure}") from None
    except Exception as error:  # pandas', the parsers' and the file system's errors are of a dozen types
        raise UserError(f"{path} cannot be read as a table: {' '.join(str(error).split())[:200]}") from None


def check_form(frame, others: str = ""):
    """Raises UserError for what is no table, or one whose columns no single name tells apart; `others` are named as
    allowed, too."""
    if not (hasattr(frame, "columns") and hasattr(frame, "groupby")):
        raise UserError(f"the table is of {type(frame).__name__}; it must be a pandas.DataFrame{others}")
    if frame.columns.nlevels > 1:
        raise UserError(
            f"the table's columns have names of {frame.columns.nlevels} parts, {frame.columns[0]}; "
            'frame.columns = ["_".join(map(str, each)) for each in frame.columns] makes one of them'
        )
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise UserError(f"the table has two columns {twice[0]}; their names must be different")


def tidied(frame, names: Iterable[str]) -> tuple:
    """Returns a table in whose columns of these names texts have no blanks around them and accents of one encoding,
    and blank ones and NaN are missing in every type of column, as in a CSV file; and notes of texts that become one."""
    import pandas
    from pandas.api import types

    frame, notes = frame.copy(deep=False), []
    for name in names:
        column = frame[name]
        if isinstance(column.dtype, pandas.CategoricalDtype):
            frame[name] = _tidied_categories(column)
        elif types.is_float_dtype(column.dtype):
            if types.is_extension_array_dtype(column.dtype):  # which holds NaN beside what is missing
                frame[name] = column.to_numpy(np.float64, na_value=np.nan)
        elif types.is_object_dtype(column.dtype) or types.is_string_dtype(column.dtype):
            texts = {each for each in column if isinstance(each, str)}
            if any(each != _tidied(each) for each in texts):
                frame[name] = pandas.Series([_tidied(each) for each in column], frame.index, object)
            first: dict[str | None, str] = {None: ""}
            for each in sorted(texts):
                if (other := first.setdefault(_tidied(each), each)) not in ("", each):
                    notes.append(
                        f"{other!r} and {each!r} of column {name} are one: blanks around texts do not count, nor how "
                        "accents are encoded"
                    )
                    break
    return frame, notes


def _tidied(value):
    return unicodedata.normalize("NFC", value).strip() or None if isinstance(value, str) else value


def _tidied_categories(column):
    given = column.cat.categories
    names = [_tidied(each) for each in given]
    if names == given.tolist():
        return column
    kept = column.cat.remove_categories([each for each, name in zip(given, names) if name is None])
    try:
        return kept.cat.rename_categories([name for name in names if name is not None])
    except ValueError:
        raise UserError(
            f"column {column.name} has two categories of which only blanks around them or encodings of accents differ"
        ) from None


def numbers_in_texts(name: str, texts: Sequence[str]) -> str:
    """Says how many of a column's different texts are dates or numbers, and what makes numbers of them, as a part of a
    sentence; "" where they are few."""
    column, most = f"frame[{name!r}]", max(FEW, len(texts) / 2)
    dates = [each for each in texts if _DATE.fullmatch(each)]
    if len(dates) > most:
        which = "" if all(each[:4].isdecimal() for each in dates) else ", format=..."  # or days may be taken for months
        cure = f"(pandas.to_datetime({column}{which}) - pandas.Timestamp('2000')).dt.days makes numbers of them"
        return f"and {len(dates)} of the {len(texts)} different ones are dates; {cure}"
    numbers = [each for each in texts if _is_number(each)]
    if len(numbers) <= most:
        return ""
    if any("%" in each for each in numbers):
        column += ".str.rstrip('% ')"
    commas = [each.rstrip("% ") for each in numbers if "," in each]
    if commas and all(map(_COMMAS_OF_THOUSANDS.fullmatch, commas)):
        column += ".str.replace(',', '')"
    elif commas:
        column += ".str.replace('.', '')" * any("." in each for each in commas) + ".str.replace(',', '.')"
    cure = f"pandas.to_numeric({column}, errors='coerce') makes numbers of them"
    return f"and {len(numbers)} of the {len(texts)} different ones are numbers; {cure}"


def label_notes(outputs: list[str], y: np.ndarray) -> list[str]:
    """What a reader of results should know of labels `[n]` or `[n, L]`."""
    found = []
    for name, own in zip(outputs, y.reshape(len(y), -1).T):
        different = np.unique(own).tolist()
        if own.dtype.kind == "U" and (told := numbers_in_texts(name, different)):
            found.append(f"the labels of column {name} are texts, each of which is a class, {told}")
        # pandas makes floats of classes beside missing ones, and writes them so.
        if own.dtype.kind == "f" and y.ndim == 1 and different == list(range(len(different))) and len(different) > 1:
            found.append(
                f"the labels of column {name} are floats, 0 to {different[-1]:.0f}, which are to be predicted unless "
                f"the model takes classes; frame[{name!r}].astype(int) makes classes of them"
            )
    return found


def _is_number(text: str) -> bool:
    text = text.rstrip("% ")
    try:
        return bool(np.isfinite(float(text.replace(",", "."))))
    except ValueError:
        return bool(_COMMAS_OF_THOUSANDS.fullmatch(text) or _POINTS_OF_THOUSANDS.fullmatch(text))
