"""Which of a client's examples are for training, for tests and for validation. Never imports TensorFlow."""

import zlib

import numpy as np

from tffcl.errors import UserError
from tffcl.validation import Whole, check_value


def split(ids: np.ndarray, test: float | np.ndarray, validation: float, seed: int) -> dict[str, dict]:
    """Draws which rows are for training, tests and validation. Other clients and their rows do not change a client's.

    Args:
      ids: The client of each row, texts or whole numbers `[n]`.
      test: The share of each client's rows for tests, rounded; or `bool [n]`, which rows are for tests.
      validation: The share of the other rows for validation; at least one of these is for training.
      seed: Decides which rows are drawn.

    Returns:
      As `Table.parts`.

    Raises:
      UserError: If a share gives no client a row. The test share may do so if every client has a single row.
    """
    order = np.argsort(ids, kind="stable")
    clients, starts = np.unique(ids[order], return_index=True)
    parts: dict[str, dict] = {"training": {}, "test": {}, "validation": {}}
    for client, rows in zip(clients.tolist(), np.split(order, starts[1:]), strict=True):
        random = random_of(client, seed)
        if isinstance(test, np.ndarray):
            tested, rest = rows[test[rows]], rows[~test[rows]]
        else:
            tested, rest = drawn(rows, test, random)
        parts["validation"][client], parts["training"][client] = drawn(rest, validation, random)
        parts["test"][client] = tested
    shares = {"test": test if len(clients) < len(ids) else 0, "validation": validation}
    for kind, share in shares.items():
        if not isinstance(share, np.ndarray) and share and not any(map(len, parts[kind].values())):
            raise UserError(f"{kind} is {share:g}, which is no row of any client; give a larger share, or 0")
    return parts


def random_of(client: str | int, seed: int) -> np.random.Generator:
    """Returns the generator that draws a client's rows, the same whatever other clients there are."""
    check_value("seed", seed, Whole)
    return np.random.default_rng([seed, zlib.crc32(str(client).encode())])


def drawn(rows: np.ndarray, share: float, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Returns a random share of the rows, rounded, and the others, at least one; both are in the rows' order."""
    chosen = np.zeros(len(rows), bool)
    chosen[random.permutation(len(rows))[: min(round(share * len(rows)), max(len(rows) - 1, 0))]] = True
    return rows[chosen], rows[~chosen]
