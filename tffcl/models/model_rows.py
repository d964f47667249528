"""Models of many clients as the rows of a matrix of which nobody holds all."""

from collections.abc import Callable

import numpy as np


class ModelRows:
    """What looks like `float32 [K, P]` where it is read row by row, and reads a row when it is asked for.

    A method whose clients have a model each returns one from `models_for`: with thousands of clients the matrix itself
    would not fit into memory. NumPy makes the whole matrix of it where it must.
    """

    ndim, dtype = 2, np.dtype(np.float32)

    def __init__(self, count: int, size: int, read: Callable[[int], np.ndarray]):
        """Makes the rows.

        Args:
          count: K.
          size: P.
          read: Row number to `float32 [P]`.
        """
        self.shape, self._read = (count, size), read

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows):
        if isinstance(rows, tuple):
            rows, *columns = rows
            return self[rows][(..., *columns)]
        if np.ndim(rows) == 0 and not isinstance(rows, slice):
            if not -len(self) <= rows < len(self):
                raise IndexError(f"row {rows} of {len(self)}")
            return self._read(int(rows) % len(self))
        wanted = np.arange(len(self))[rows]
        found = np.empty((len(wanted), self.shape[1]), np.float32)
        for place, row in enumerate(wanted):
            found[place] = self._read(int(row))
        return found

    def __array__(self, dtype=None) -> np.ndarray:
        found = self[:]
        return found if dtype is None else found.astype(dtype)


def rows_with_own(shared: np.ndarray, own) -> ModelRows:
    """Returns the rows of `shared float32 [K, P]`, and after them those of `own`, a sequence of `float32 [P]`."""
    first = len(shared)
    return ModelRows(first + len(own), shared.shape[1], lambda row: shared[row] if row < first else own[row - first])
