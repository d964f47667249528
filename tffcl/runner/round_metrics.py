"""rounds.csv and TensorBoard of a run, a row a round, through `tff.program`."""

import asyncio
import collections
import concurrent.futures
import logging
import pathlib

import tensorflow_federated as tff

# In a notebook TensorFlow would tell of every model that it writes, in the middle of the progress bar.
logging.getLogger("tensorflow").addFilter(lambda record: "Assets written to" not in record.getMessage())


def _wait(coroutine):
    """Runs a coroutine to its end, also where an event loop runs already (a notebook)."""
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        return executor.submit(asyncio.run, coroutine).result()


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

        _wait(write())
