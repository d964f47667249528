"""Which client was in which cluster after which round, in `OUT/history/`: a file for every round that changed something."""

import pathlib
import re

import numpy as np

from tffcl.errors import OVERWRITE, UserError
from tffcl.regular_files import make_directory, opened, replacing


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
        make_directory(self._directory)
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
            path = self._directory / f"{round_number:06}.npy"
            with replacing(path) as file:
                np.save(file, now)
            self._last = now


def _read(path: pathlib.Path) -> np.ndarray:
    try:
        with opened(path) as file:
            found = np.load(file, allow_pickle=False)
    except Exception as error:  # NumPy's, zipfile's and the tokenizer's errors for damaged files are of a dozen types
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path} is damaged: {reason}; {OVERWRITE} starts anew") from None
    if not isinstance(found, np.ndarray) or found.ndim != 2 or len(found) != 2:
        raise UserError(f"{path} is damaged: it does not hold clients and their clusters; {OVERWRITE} starts anew")
    return found
