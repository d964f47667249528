"""Tables from files."""

import pathlib

from tffcl.errors import UserError

_GIVE_IT = "makes a DataFrame to give in its place"


def read_table_file(path: pathlib.Path, client: str):
    """Returns the table of a CSV file, or of a Parquet file by its ending; UserError if it cannot be read.

    In a CSV file clients are numbers only where all of them are written as numbers are, which 007 is not.
    """
    import pandas

    try:
        if path.suffix in (".parquet", ".pq"):
            return pandas.read_parquet(path)
        frame = pandas.read_csv(path)
        if len(frame.columns) == 1 and ";" in frame.columns[0]:
            raise ValueError(f'its columns are separated by ";": pandas.read_csv(path, sep=";") {_GIVE_IT}')
        if client in frame and pandas.api.types.is_integer_dtype(frame[client]):
            written = pandas.read_csv(path, dtype={client: str}, usecols=[client])[client]
            if (written != frame[client].astype(str)).any():
                frame[client] = written
        return frame
    except FileNotFoundError:
        raise UserError(f"there is no table {path.absolute()}") from None
    except UnicodeDecodeError as error:
        cure = f'pandas.read_csv(path, encoding="cp1252"), or whatever it is in, {_GIVE_IT}'
        raise UserError(f"{path} is not in UTF-8 ({error.reason}): {cure}") from None
    except Exception as error:  # pandas', the parsers' and the file system's errors are of a dozen types
        raise UserError(f"{path} cannot be read as a table: {' '.join(str(error).split())[:200]}") from None
