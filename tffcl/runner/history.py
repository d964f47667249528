"""Which client was in which cluster after which round, in `OUT/history/`: a file for every round that changed something."""

import pathlib
import re

import numpy as np

from tffcl.errors import UserError


class ClusterHistory:
    """Writes `history/<round>.npy`, `[2, N]`, client IDs and their clusters, when it is not as in the round before."""

    def __init__(self, out: pathlib.Path, first: int):
        """Opens the history of a run.

        Args:
          out: The directory of the run.
          first: The first round that will be written; later ones of an interrupted run are dropped.

        Raises:
          UserError: If a file of an earlier round is damaged.
        """
        self._directory = out / "history"
        self._directory.mkdir(exist_ok=True)
        self._last = None
        for path in sorted(each for each in self._directory.glob("*.npy") if re.fullmatch(r"\d{6,}", each.stem)):
            if int(path.stem) >= first:
                path.unlink()
            else:
                self._last = _read(path)

    def save(self, round_number: int, client_ids: np.ndarray, assignment: np.ndarray):
        """Saves the clusters after a round; of clients with names all is text."""
        now = np.stack([client_ids, assignment])
        now = now if now.dtype.kind == "U" else now.astype(np.int32)
        if self._last is None or not np.array_equal(self._last, now):
            np.save(self._directory / f"{round_number:06}.npy", now)
            self._last = now


def _read(path: pathlib.Path) -> np.ndarray:
    try:
        found = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise UserError(f"{path} is damaged: {str(error).splitlines()[0]}; --overwrite starts anew") from None
    if not isinstance(found, np.ndarray) or found.ndim != 2 or len(found) != 2:
        raise UserError(f"{path} is damaged: it does not hold clients and their clusters; --overwrite starts anew")
    return found
