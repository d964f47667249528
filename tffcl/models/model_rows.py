"""Models of many clients as the rows of a matrix that is never wholly in memory, and which client uses which row."""

import dataclasses
from collections.abc import Callable

import numpy as np


class ModelRows:
    """Looks like a matrix `float32 [K, P]`, of which each row is read only when it is needed.

    A method with a model for each client returns one from `models_for`: with thousands of clients, the matrix itself
    would not fit into memory. NumPy functions that need the whole matrix do read all of it.
    """

    ndim, dtype = 2, np.dtype(np.float32)

    def __init__(self, count: int, size: int, read: Callable[[int], np.ndarray]):
        """Makes the rows.

        Args:
          count: K, the number of rows.
          size: P, the size of a row.
          read: Maps a row number to `float32 [P]`.
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


@dataclasses.dataclass(frozen=True, eq=False)
class Assigned:
    """Which of K models each of n clients uses, see `assigned`.

    Attributes:
      rows: `int [n]`, the row of each client's model; in a mixture, of the model with the largest weight.
      weights: `float32 [n, K]`, the mixture of models that each client uses, which sums to one; None if each client
        uses one model.
    """

    rows: np.ndarray
    weights: np.ndarray | None

    def of(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rows `int [k]` of the models that the client at this place uses, and their weights
        `float32 [k]`."""
        if self.weights is None:
            return self.rows[client : client + 1], np.ones(1, np.float32)
        used = np.flatnonzero(self.weights[client] > 0)
        return used, self.weights[client, used]


def assigned(given: np.ndarray) -> Assigned:
    """Reads the second value of `Method.models_for`: rows `int [n]`, or weights `float32 [n, K]`.

    Weights that give each client a single model become rows.
    """
    given = np.asarray(given)
    if given.ndim == 1:
        return Assigned(given, None)
    rows = given.argmax(axis=1)
    return Assigned(rows, None if np.all(given.max(axis=1) == 1) else given)


def rows_with_own(shared: np.ndarray, own) -> ModelRows:
    """Returns the rows of `shared float32 [K, P]`, and after them those of `own`, a sequence of `float32 [P]`."""
    first = len(shared)
    return ModelRows(first + len(own), shared.shape[1], lambda row: shared[row] if row < first else own[row - first])
