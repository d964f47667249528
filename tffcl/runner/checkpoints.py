"""A run's files that are written while it runs: checkpoints, rounds.csv, TensorBoard, through `tff.program`."""

import asyncio
import collections
import concurrent.futures
import logging
import pathlib

import numpy as np
import tensorflow_federated as tff

from tffcl.algorithms.contracts import Algorithm, State
from tffcl.errors import UserError

# In a notebook TensorFlow would tell of every checkpoint that it writes, in the middle of the progress bar.
logging.getLogger("tensorflow").addFilter(lambda record: "Assets written to" not in record.getMessage())


def wait(coroutine):
    """Runs a coroutine to its end, also where an event loop runs already (a notebook)."""
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        return executor.submit(asyncio.run, coroutine).result()


# What a run keeps beside the method's state: per client, and totals.
PROGRESS_KEYS = ("rounds_trained", "local_correct", "local_total", "down_bytes", "up_bytes", "signature_bytes", "seconds")


class Checkpoints:
    """Checkpoints of a run, through `tff.program.FileProgramStateManager`; the version is the round."""

    def __init__(self, directory: pathlib.Path, keep: int):
        self._manager = tff.program.FileProgramStateManager(directory, keep_total=keep, keep_first=False)

    def latest(self) -> int | None:
        """The newest saved round, or None."""
        versions = wait(self._manager.get_versions())
        return versions[-1] if versions else None

    def save(self, round_number: int, state: State, progress: dict):
        """Saves everything that a resumed run needs; a round that is saved already is left alone."""
        if round_number in (wait(self._manager.get_versions()) or []):
            return
        wait(self._manager.save(_structure(state, progress), round_number))

    def load(self, round_number: int, algorithm: Algorithm) -> tuple[State, dict]:
        """Loads a saved round: the method's state and the run's progress.

        Args:
          round_number: Which.
          algorithm: Whose state it is.

        Raises:
          UserError: If the checkpoint is damaged, or another method's or another version's.
        """
        nothing = np.zeros(0)
        initialize = algorithm.computations().get("initialize")
        aggregator = initialize()["aggregator"] if initialize else ()
        extra = {key: nothing for key in algorithm.extra_keys}
        template = _structure(State(nothing, nothing, nothing, aggregator, extra), dict.fromkeys(PROGRESS_KEYS, nothing))
        try:
            loaded = wait(self._manager.load(round_number, template))
        except Exception as error:
            reason = str(error).splitlines()[0]
            raise UserError(
                f"the checkpoint of round {round_number} cannot be read ({reason}); --overwrite starts anew"
            ) from None
        return State.from_structure(loaded["state"]), dict(loaded["progress"])


def _structure(state: State, progress: dict):
    ordered = collections.OrderedDict((key, np.asarray(progress[key])) for key in PROGRESS_KEYS)
    return collections.OrderedDict(state=state.as_structure(), progress=ordered)


class Metrics:
    """A row a round in rounds.csv and in TensorBoard; a resumed run first drops the rows after its checkpoint."""

    def __init__(self, out: pathlib.Path):
        self._csv = tff.program.CSVFileReleaseManager(
            out / "rounds.csv", save_mode=tff.program.CSVSaveMode.APPEND, key_fieldname="round"
        )
        self._tensorboard = tff.program.TensorBoardReleaseManager(out / "tensorboard")

    def release(self, round_number: int, row: dict):
        """Writes a round's row; None stands for "not taken in this round"."""

        async def write():
            written = collections.OrderedDict((key, "" if value is None else value) for key, value in row.items())
            await self._csv.release(written, round_number)
            await self._tensorboard.release({key: value for key, value in row.items() if value is not None}, round_number)

        wait(write())
