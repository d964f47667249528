"""Tables from files."""

import pathlib

from tffcl.errors import UserError

_GIVE_IT = "makes a DataFrame to give in its place"


def read_table_file(path: pathlib.Path, client: str):
    """Returns the table of a CSV file, or of a Parquet file by its ending; UserError if it cannot be read.

    In a CSV file clients are numbers only where all of them are written as numbers are, which 007 is not, and whole
    numbers stay whole beside missing ones.
    """
    import pandas

    try:
        if path.suffix in (".parquet", ".pq"):
            return pandas.read_parquet(path)
        # Types of columns may not depend on how long a file is, as those of parts do.
        frame = pandas.read_csv(path, low_memory=False, dtype_backend="numpy_nullable")
        names = pandas.read_csv(path, header=None, nrows=1, dtype=str).iloc[0].dropna()
        if names.duplicated().any():  # pandas would call the second NAME.1, and a label may be a feature then
            raise ValueError(f"it has two columns {names[names.duplicated()].iloc[0]}; their names must be different")
        if len(frame.columns) == 1 and ";" in frame.columns[0]:
            raise ValueError(f'its columns are separated by ";": pandas.read_csv(path, sep=";") {_GIVE_IT}')
        if not isinstance(frame.index, pandas.RangeIndex) and frame.iloc[:, -1].isna().all():
            raise ValueError(f"its lines end in a comma: pandas.read_csv(path, index_col=False) {_GIVE_IT}")
        if client in frame and pandas.api.types.is_integer_dtype(frame[client]):
            written = pandas.read_csv(path, dtype={client: str}, usecols=[client])[client]
            if (written.str.strip() != frame[client].astype(str)).any():
                frame[client] = written
        return frame
    except FileNotFoundError:
        raise UserError(f"there is no table {path.absolute()}") from None
    except UnicodeDecodeError as error:
        cure = f'pandas.read_csv(path, encoding="cp1252"), or whatever it is in, {_GIVE_IT}'
        raise UserError(f"{path} is not in UTF-8 ({error.reason}): {cure}") from None
    except Exception as error:  # pandas', the parsers' and the file system's errors are of a dozen types
        raise UserError(f"{path} cannot be read as a table: {' '.join(str(error).split())[:200]}") from None


def check_form(frame):
    """Raises UserError for what is no table, or one whose columns no single name tells apart."""
    if not (hasattr(frame, "columns") and hasattr(frame, "groupby")):
        kind = type(frame).__name__
        raise UserError(f"the table is of {kind}; it must be a pandas.DataFrame, or a path of a CSV file")
    if frame.columns.nlevels > 1:
        raise UserError(
            f"the table's columns have names of {frame.columns.nlevels} parts, {frame.columns[0]}; "
            'frame.columns = ["_".join(map(str, each)) for each in frame.columns] makes one of them'
        )
    twice = frame.columns[frame.columns.duplicated()]
    if len(twice):
        raise UserError(f"the table has two columns {twice[0]}; their names must be different")
