"""Matrices with a row for each of many clients, which should only partly be in memory at a time."""

import math
import mmap
import tempfile
from collections.abc import Iterable, Iterator

import numpy as np

from tffcl.clients.simulation_context import current
from tffcl.errors import UserError

MEMORY_BYTES = 2**28  # the most for a matrix in memory; a larger one is in a file, and `let_go` frees what was read
_ROWS, _FEW_ROWS = 64, 8  # the most rows that are made at a time, and the least, however large they are
_BYTES = 2**28  # of the rows that are made at a time


def slices(count: int, row_bytes: int = 0) -> Iterator[slice]:
    """Cuts `count` rows into slices of a few rows, with fewer rows in each if they are large."""
    at_a_time = min(_ROWS, max(_FEW_ROWS, _BYTES // max(row_bytes, 1)))
    for start in range(0, count, at_a_time):
        yield slice(start, min(start + at_a_time, count))


def joined(
    parts: Iterable[np.ndarray], shape: tuple[int, ...], dtype=np.float32, what: str = "models of clients"
) -> np.ndarray:
    """Joins the parts of a matrix, which come one after the other.

    A large matrix is a read-only file mapped into memory, in the directory of the simulation's client states. The file
    has no name: it disappears with the last array that refers to it, even if the process is killed.

    Args:
      parts: Rows `[b, ...]`, from the first to the last.
      shape: The shape of the matrix, `[n, ...]`.
      dtype: The type of the matrix.
      what: What the rows are, for messages.

    Raises:
      UserError: If the disk has no room for it.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size <= MEMORY_BYTES:
        found, done = np.empty(shape, dtype), 0
        for part in parts:
            found[done : done + len(part)] = part
            done += len(part)
        return found
    states = current().client_states
    directory = None if states is None else states.directory
    try:
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as file:
            for part in parts:
                file.write(np.ascontiguousarray(part, dtype).data)
            return np.asarray(np.memmap(file, dtype, "r", shape=shape))
    except OSError as error:
        where = directory or tempfile.gettempdir()
        raise UserError(f"{shape[0]:,} {what} need {size:,} bytes in {where}: {error.strerror}") from None


def let_go(matrix: np.ndarray):
    """Frees the memory of what was read of a matrix in a file; it is read again when it is needed."""
    while isinstance(matrix, np.ndarray):
        matrix = matrix.base
    if isinstance(matrix, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        matrix.madvise(mmap.MADV_DONTNEED)
