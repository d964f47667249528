"""Loads LEAF FEMNIST (Caldas et al. 2018) from TFF's copy, with its writers as natural clients."""

import os
import pathlib
import shutil
import string
import tempfile

import numpy as np

from tffcl.errors import UserError
from tffcl.lab.datasets import storage
from tffcl.lab.datasets.core import Dataset
from tffcl.lab.datasets.images import Images
from tffcl.lab.datasets.loaders.own import to_uint8
from tffcl.lab.datasets.preparation import constants
from tffcl.validation import validated

_FILE = "emnist_all.sqlite"
_URL = "https://storage.googleapis.com"
_CHARACTERS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
_COMPLETE = {False: (671585, 77483), True: (341873, 40832)}
_BATCH = 4096


@validated
def load_femnist(*, only_digits: bool = False, data_dir=None) -> Dataset:
    """Returns FEMNIST, 28x28x1; the owner of each image is its writer, numbered in the order of the writers' names.

    TFF gives floats in which 1.0 is the background. Here ink is bright, 255 for 0.0, as in MNIST.

    Args:
      only_digits: True: 10 classes; False: 62 (digits, capitals, small letters).
      data_dir: As in `storage.resolve`; TFF's file in it is `emnist_all.sqlite`.

    Raises:
      UserError: If the data set is missing and cannot be downloaded, or is damaged.
    """
    directory = storage.resolve(data_dir)
    path = directory / _FILE
    if not path.exists():
        _download(directory)
    key = "femnist_digits" if only_digits else "femnist"
    arrays = storage.cached(directory, key, [path], lambda: _read(directory, only_digits))
    train, test = (Images(*(arrays[f"{name}_{split}"] for name in ("x", "y", "owner"))) for split in ("train", "test"))
    found, complete = (len(train), len(test)), _COMPLETE[only_digits]
    writers = 1 + int(arrays["owner_train"].max())
    sizes = f"{found[0]:,} + {found[1]:,} of {complete[0]:,} + {complete[1]:,} images"
    note = f"a part: {writers:,} writers, {sizes}"
    names = _CHARACTERS[:10] if only_digits else _CHARACTERS
    return Dataset(
        "femnist", train, test, len(names), *constants("femnist", train.x), names,
        note="" if found == complete else note,
    )  # fmt: skip


def _emnist():
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow_federated as tff

    return tff.simulation.datasets.emnist


def _download(directory: pathlib.Path):
    """Downloads into a temporary directory and moves the file: TFF would take an incomplete download as complete."""
    if not storage.reachable(_URL):
        raise storage.missing("femnist", directory, f"no answer from {_URL}")
    partial = None
    try:
        directory.mkdir(parents=True, exist_ok=True)
        partial = pathlib.Path(tempfile.mkdtemp(dir=directory, prefix="femnist-", suffix=".partial"))
        _emnist().load_data(cache_dir=str(partial))
        os.replace(partial / _FILE, directory / _FILE)
    except Exception as error:  # the network and the disk fail in many ways; the user gets the reason
        raise storage.missing("femnist", directory, storage.first_line(error)) from error
    finally:
        if partial:
            shutil.rmtree(partial, ignore_errors=True)


def _read(directory: pathlib.Path, only_digits: bool) -> dict[str, np.ndarray]:
    try:
        train, test = _emnist().load_data(only_digits=only_digits, cache_dir=str(directory))
        writers = sorted(set(train.client_ids) | set(test.client_ids))
        splits = {"train": _split(train, writers, "train"), "test": _split(test, writers, "test")}
    except UserError:
        raise
    except Exception as error:  # SQLite, TensorFlow and TFF each raise their own types
        raise UserError(f"femnist's {directory / _FILE} cannot be read ({storage.first_line(error)})") from error
    return {f"{key}_{split}": value for split, arrays in splits.items() for key, value in arrays.items()}


def _split(clients, writers: list[str], name: str) -> dict[str, np.ndarray]:
    """Reads all images of a `ClientData` as one data set over all clients; one per client would take minutes."""
    import tensorflow as tf

    ids = list(clients.client_ids)
    numbers = np.searchsorted(writers, ids).astype(np.int32)

    def one_client(number, client_id):
        return clients.serializable_dataset_fn(client_id).map(lambda each: (number, each["pixels"], each["label"]))

    examples = tf.data.Dataset.from_tensor_slices((numbers, ids)).flat_map(one_client)
    batches = []
    for owner, pixels, labels in examples.batch(_BATCH).prefetch(2).as_numpy_iterator():
        where = f"femnist: {name} images of writers {writers[owner[0]]} to {writers[owner[-1]]}"
        batches.append((owner, to_uint8(1 - pixels, where), labels))
    owner, x, y = (np.concatenate(column) for column in zip(*batches, strict=True))
    return {"owner": owner, "x": x, "y": y.astype(np.int32)}
