"""Matrices with a row for each of many clients, of which only a part should be in memory at a time."""

import math
import mmap
import tempfile
from collections.abc import Iterable, Iterator

import numpy as np

from tffcl.clients.simulation_context import current
from tffcl.errors import UserError

MEMORY_BYTES = 2**28  # of a matrix that is in memory; a larger one is in a file, and what is read of it can be let go
_ROWS, _FEW_ROWS = 64, 8  # that are made at a time, at most, and however large they are
_BYTES = 2**28  # of them


def slices(count: int, row_bytes: int = 0) -> Iterator[slice]:
    """Cuts so many rows into a few at a time, fewer of large ones."""
    at_a_time = min(_ROWS, max(_FEW_ROWS, _BYTES // max(row_bytes, 1)))
    for start in range(0, count, at_a_time):
        yield slice(start, min(start + at_a_time, count))


def joined(
    parts: Iterable[np.ndarray], shape: tuple[int, ...], dtype=np.float32, what: str = "models of clients"
) -> np.ndarray:
    """Makes a matrix of its parts, which come one after the other.

    A large one is a file that is mapped into memory, read-only, where the simulation's client states have theirs. The
    file has no name: it ends with the last array that refers to it, also when the process is killed.

    Args:
      parts: Rows `[b, ...]`, from the first to the last.
      shape: Of the matrix, `[n, ...]`.
      dtype: Of the matrix.
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
    """Takes what was read of a matrix in a file out of this process' memory; it is there again when it is asked for."""
    while isinstance(matrix, np.ndarray):
        matrix = matrix.base
    if isinstance(matrix, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        matrix.madvise(mmap.MADV_DONTNEED)
