"""Tables as users give them, in files or as frames, and which of their values mean the same."""

import functools
import json
import pathlib
import re
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np

from tffcl.errors import UserError, did_you_mean

_GIVE_IT = "makes a DataFrame to give in its place"
FEW = 5  # up to so many texts that are numbers may be numbered categories
_MONTH = r"(\d{1,2}|(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*)"
_DATE = re.compile(
    rf"(\d{{4}}([-/.]){_MONTH}\2\d{{1,2}}|\d{{1,2}}([-/. ]){_MONTH}\5(\d{{4}}|\d{{2}}))([T ].*)?", re.IGNORECASE
)
_CODE = re.compile(r"0\d+")
_PARQUET = (".parquet", ".pq")
_COMMAS_OF_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?")
_POINTS_OF_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(\.\d{3})+,\d+")


def read_table_file(path: pathlib.Path, client: str, group: str | None = None, labels: Sequence[str] = ()):
    """Returns the table of a CSV file, or of a Parquet file by its ending; raises UserError if it cannot be read.

    Whole numbers stay whole even if some are missing. In a CSV file, clients and groups are numbers only if all of them
    are written as whole numbers, which 007 and 1e3 are not. Labels that would become one number, as 01 and 1, are
    refused. Missing values are those of `pandas.read_csv`: nothing, NA, None, null, nan and the like.
    """
    import pandas

    try:
        if path.suffix.lower() in _PARQUET:
            return pandas.read_parquet(path, dtype_backend="numpy_nullable")
        # With low_memory, pandas finds types part by part, so that they depend on the length of the file.
        # A blank after a comma would turn a missing number into text.
        read_csv = functools.partial(pandas.read_csv, path, skipinitialspace=True)
        frame = read_csv(low_memory=False, dtype_backend="numpy_nullable")
        names = read_csv(header=None, nrows=1, dtype=str).iloc[0].dropna()
        if names.duplicated().any():  # pandas would call the second NAME.1, and a label could become a feature
            raise ValueError(f"it has two columns {names[names.duplicated()].iloc[0]}; their names must be different")
        if client not in frame and (separator := _separator(frame.columns, client)):
            shown = json.dumps(separator)
            raise ValueError(f"its columns are separated by {shown}: pandas.read_csv(path, sep={shown}) {_GIVE_IT}")
        if not isinstance(frame.index, pandas.RangeIndex) and frame.iloc[:, -1].isna().all():
            raise ValueError(f"its lines end in a comma: pandas.read_csv(path, index_col=False) {_GIVE_IT}")
        named = [
            each
            for each in dict.fromkeys([client, group, *labels])
            if each in frame and frame[each].dtype.kind in "iuf"
        ]
        written = read_csv(dtype=dict.fromkeys(named, str), usecols=named) if named else {}
        for name in named:
            if name in (client, group):
                if not written[name].str.strip().str.fullmatch(r"-?(0|[1-9]\d*)(\.0)?", na=True).all():
                    frame[name] = written[name]
            elif codes := _one_number(written[name].dropna().str.strip().unique()):
                raise ValueError(
                    f"its column {name} holds the labels {codes[0]} and {codes[1]}, which are one number: "
                    f"pandas.read_csv(path, dtype={{{name!r}: str}}) {_GIVE_IT}"
                )
        return frame
    except FileNotFoundError:
        raise UserError(f"there is no table {path.absolute()}") from None
    except UnicodeDecodeError as error:
        cure = f'pandas.read_csv(path, encoding="cp1252"), or whatever it is in, {_GIVE_IT}'
        raise UserError(f"{path} is not in UTF-8 ({error.reason}): {cure}") from None
    except Exception as error:  # pandas', the parsers' and the file system's errors are of a dozen types
        raise UserError(f"{path} cannot be read as a table: {' '.join(str(error).split())[:300]}") from None


def check_codes(given, frame, columns: Iterable[str]):
    """Raises UserError if one of these columns of a CSV file, which pandas has read as whole numbers, has leading
    zeros, as postal codes do: 01 and 1 would be one number, and the distance between codes means nothing.

    Args:
      given: The path of the file; a DataFrame is not checked, since its user has chosen the types.
      frame: The table that was read from it.
      columns: The features.
    """
    import pandas

    whole = [name for name in columns if frame[name].dtype.kind in "iu"]
    if not whole or not isinstance(given, (str, pathlib.Path)):
        return
    path = pathlib.Path(given).expanduser()
    if path.suffix.lower() in _PARQUET:
        return
    written = pandas.read_csv(path, skipinitialspace=True, dtype=str, usecols=whole)
    for name in whole:
        for code in filter(_CODE.fullmatch, map(str.strip, written[name].dropna().unique())):
            raise UserError(
                f"column {name} of {path} holds {code}, as codes are written: "
                f"pandas.read_csv(path, dtype={{{name!r}: str}}) {_GIVE_IT}, in which they are categories; "
                "pandas.read_csv(path) one in which they are numbers; a task takes it as Parquet, .to_parquet(...)"
            )


def kept_as_texts(column) -> str:
    """Returns a part of a message: how to read texts that pandas takes for missing values; "" for other columns."""
    cure = "pandas.read_csv(path, keep_default_na=False, na_values=['']) reads NA, nan and null as texts"
    return f"; of a CSV file {cure}" if column.dtype.kind == "O" else ""


def _separator(names, client: str) -> str | None:
    """Returns the separator in a file's header if it is not a comma, found by the column of clients; else None."""
    header = ",".join(map(str, names))
    for each in ";\t|":
        if each in header and (len(names) == 1 or client in map(str.strip, header.split(each))):
            return each
    return None


def _one_number(texts: Sequence[str]) -> list[str] | None:
    """Returns the first texts that are the same number, if one of them has leading zeros; None if there are none."""
    if not any(_CODE.fullmatch(each) for each in texts):
        return None
    by_number: dict[float, list[str]] = {}
    for each in texts:
        by_number.setdefault(float(each), []).append(each)
    return next((own for own in by_number.values() if len(own) > 1 and any(map(_CODE.fullmatch, own))), None)


def check_form(frame, others: str = ""):
    """Raises UserError if this is not a table, or one whose columns do not have single, different names. The message
    names `others` as allowed, too."""
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


def check_there(frame, names: Iterable[str]):
    """Raises UserError if a table lacks a column of the known clients' features, which the call does not name."""
    lacking = next((name for name in names if name not in frame.columns), None)
    if lacking is not None:
        known = "which the known clients' features are made of"
        raise UserError(f"the table lacks column {lacking!r}, {known}{did_you_mean(lacking, map(str, frame.columns))}")


def is_categorical(column) -> bool:
    """Whether a column holds pandas' categories."""
    import pandas

    return isinstance(column.dtype, pandas.CategoricalDtype)


def is_bool(column) -> bool:
    """Whether a column's values are bools, whatever its type; these are 0 and 1, and by default not standardised."""
    from pandas.api import types

    return types.is_bool_dtype(column.dtype) or types.infer_dtype(column) == "boolean"


def tidied(frame, names: Iterable[str]) -> tuple:
    """Returns a table with columns of these names tidied, and notes on texts that become one. Texts have no blanks
    around them and one encoding of accents; blank texts and NaN are missing in any type of column, as in CSV files."""
    import pandas
    from pandas.api import types

    frame, notes = frame.copy(deep=False), []
    for name in names:
        column = frame[name]
        if is_categorical(column):
            frame[name] = _tidied_categories(column)
        elif types.is_float_dtype(column.dtype):
            if types.is_extension_array_dtype(column.dtype):  # it has both NaN and missing values
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
    """Returns a part of a message: how many of a column's different texts are dates or numbers, and how to make numbers
    of them; "" if only a few are."""
    column, most = f"frame[{name!r}]", max(FEW, len(texts) / 2)
    dates = [each for each in texts if _DATE.fullmatch(each)]
    if len(dates) > most:
        which = "" if all(each[:4].isdecimal() for each in dates) else ", format=..."  # or days could be read as months
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
    """Returns notes for readers of results on labels `[n]` or `[n, L]`."""
    found = []
    for name, own in zip(outputs, y.reshape(len(y), -1).T):
        different = np.unique(own).tolist()
        if own.dtype.kind == "U" and (told := numbers_in_texts(name, different)):
            found.append(f"the labels of column {name} are texts, each of which is a class, {told}")
        # pandas turns classes into floats if some are missing, and writes them as floats.
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
