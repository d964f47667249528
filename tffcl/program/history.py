"""Which client was in which cluster after which round, in `OUT/history/`: a file for every round that changed something."""

import pathlib

import numpy as np


class ClusterHistory:
    """Writes `history/<round>.npy`, int32 [N] in the order of the client IDs, when it is not as in the round before."""

    def __init__(self, out: pathlib.Path, first: int):
        """Opens the history of a run.

        Args:
          out: The directory of the run.
          first: The first round that will be written; later ones of an interrupted run are dropped.
        """
        self._directory = out / "history"
        self._directory.mkdir(exist_ok=True)
        self._last = None
        for path in sorted(self._directory.glob("*.npy")):
            if int(path.stem) >= first:
                path.unlink()
            else:
                self._last = np.load(path)

    def save(self, round_number: int, assignment: np.ndarray):
        """Saves the clusters after a round."""
        if self._last is None or not np.array_equal(self._last, assignment):
            np.save(self._directory / f"{round_number:06}.npy", np.asarray(assignment, np.int32))
            self._last = np.array(assignment)
