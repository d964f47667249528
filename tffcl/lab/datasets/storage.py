"""The directory of data sets, the error for a missing data set, and a cache of decoded images."""

import contextlib
import hashlib
import os
import pathlib
import ssl
import tempfile
import threading
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from tffcl.errors import Option, UserError

_CACHE_FORMAT = "1"  # change this when loaders store something else
_SECONDS = 8.0  # the time in which a server must answer


def resolve(data_dir: str | os.PathLike | None) -> pathlib.Path:
    """Returns the directory of data sets: `data_dir`, else $TFFCL_DATA_DIR, else TFDS's own default.

    TFDS's rule ($TFDS_DATA_DIR, else ~/tensorflow_datasets) is repeated here, because importing TFDS takes seconds.
    """
    chosen = data_dir or os.environ.get("TFFCL_DATA_DIR") or os.environ.get("TFDS_DATA_DIR")
    return expanded(chosen or "~/tensorflow_datasets").absolute()


def expanded(path: str | os.PathLike) -> pathlib.Path:
    """Returns a path in which ~ or ~user is replaced by that user's home directory.

    Raises:
      UserError: If there is no such user.
    """
    try:
        return pathlib.Path(path).expanduser()
    except RuntimeError:
        raise UserError(f"{path} begins with the home of a user who is not known here") from None


def missing(name: str, directory: pathlib.Path, problem: str) -> UserError:
    """Returns the error for a data set that is not in `directory` and cannot be downloaded."""
    return UserError(
        f"{name} is not in {directory} and cannot be downloaded ({problem}): connect once so that it is "
        f"downloaded, or put it there: {Option('--data-dir DIR', 'data_dir=DIR')} or TFFCL_DATA_DIR=DIR"
    )


def first_line(error: BaseException) -> str:
    """Returns the type of an error and the first line of its message, shortened."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:200]


def reachable(url: str) -> bool:
    """Returns whether a server gives any answer soon; uses the environment's proxies.

    TFDS and scikit-learn retry for minutes if a host cannot be resolved, so this is checked first.
    """
    answered = threading.Event()

    def ask():
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=_SECONDS):
                answered.set()
        except urllib.error.HTTPError:
            answered.set()  # an error is an answer, too
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLError):
                answered.set()  # the server is there; the downloader reports what is wrong
        except (OSError, ValueError):
            pass

    # In a thread, because resolving a name has no timeout.
    asking = threading.Thread(target=ask, name="tffcl-reachable", daemon=True)
    asking.start()
    asking.join(_SECONDS)
    return answered.is_set()


def _fingerprint(sources: Iterable[pathlib.Path]) -> str:
    parts = [_CACHE_FORMAT]
    for path in sorted(sources):
        status = path.stat()
        parts.append(f"{path.name}:{status.st_size}:{status.st_mtime_ns}")
    return hashlib.sha256("|".join(parts).encode()).hexdigest()


def _read(path: pathlib.Path, fingerprint: str) -> dict[str, np.ndarray] | None:
    try:
        with np.load(path, allow_pickle=False) as file:
            if str(file["fingerprint"]) != fingerprint:
                return None
            return {key: file[key] for key in file.files if key != "fingerprint"}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None  # a file that is absent or damaged is made again


def write_npz(path: pathlib.Path, arrays: Mapping[str, np.ndarray]):
    """Writes an .npz file atomically: readers find the whole file or none; raises OSError if it cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.stem, suffix=".partial", delete=False) as file:
        try:
            np.savez(file, **arrays)
            file.close()
            os.replace(file.name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(file.name)
            raise


def cached(
    directory: pathlib.Path, key: str, sources: Iterable[pathlib.Path], build: Callable[[], Mapping[str, np.ndarray]]
) -> Mapping[str, np.ndarray]:
    """Returns the arrays that `build` makes from `sources`, or reads them from `directory`/.tffcl if they are there.

    Decoding takes seconds, and importing the decoder takes longer; the cache saves both.

    Args:
      directory: The directory of data sets. If it cannot be written, nothing is kept.
      key: The name of the file in the cache.
      sources: The files from which the arrays are made; if one of them changes, the arrays are made again.
      build: Makes the arrays (no object arrays).
    """
    fingerprint = _fingerprint(sources)
    path = directory / ".tffcl" / f"{key}.npz"
    found = _read(path, fingerprint)
    if found is not None:
        return found
    arrays = build()
    with contextlib.suppress(OSError):
        write_npz(path, {**arrays, "fingerprint": np.array(fingerprint)})
    return arrays
