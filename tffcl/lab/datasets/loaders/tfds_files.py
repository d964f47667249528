"""Reading a TFDS data set into arrays, once: later readings come from the cache and import no TensorFlow."""

import os
import pathlib
from collections.abc import Callable, Mapping

import numpy as np

from tffcl.errors import UserError
from tffcl.lab.datasets import storage

_BATCH = 4096
# TFDS looks for the prepared set here before it goes to the source.
_MIRROR = "https://storage.googleapis.com"


def prepared(directory: pathlib.Path, builder: str) -> pathlib.Path | None:
    """Returns where the newest version of a TFDS data set, e.g. "emnist/letters", is; None if nowhere."""

    def version(path):
        return [int(part) if part.isdigit() else -1 for part in path.name.split(".")]

    infos = directory.glob(f"{builder}/[0-9]*.*.*/dataset_info.json")
    return max((path.parent for path in infos), key=version, default=None)


def read_arrays(
    name: str,
    builder: str,
    url: str,
    directory: pathlib.Path,
    decode: Callable[[object, str], Mapping[str, np.ndarray]],
    *,
    key: str | None = None,
) -> Mapping[str, np.ndarray]:
    """Returns the arrays of a TFDS data set, which is downloaded if it is not there.

    Args:
      name: Its name in the catalog, for messages.
      builder: Its name in TFDS, e.g. "emnist/letters".
      url: The server that TFDS downloads it from, to see if it can be reached.
      directory: The directory of data sets.
      decode: From a TFDS builder and a split to arrays; their names get the split added: "x" -> "x_train".
      key: Name in the cache; `name` if None.

    Raises:
      UserError: If it is neither there nor can be downloaded, or cannot be read.
    """
    if prepared(directory, builder) is None:
        _download(name, builder, url, directory)
    version = prepared(directory, builder)
    if version is None:
        raise UserError(f"{name} is not in {directory} although TFDS has downloaded it")

    def build():
        try:
            found = _tfds().builder_from_directory(version)
            splits = {split: decode(found, split) for split in ("train", "test")}
        except Exception as error:  # TFDS raises many kinds; the user gets the reason
            raise UserError(f"{name} in {version} cannot be read ({storage.first_line(error)})") from error
        return {f"{key}_{split}": value for split, arrays in splits.items() for key, value in arrays.items()}

    files = [path for path in version.iterdir() if path.is_file()]
    return storage.cached(directory, key or name, files, build)


def _tfds():
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow_datasets as tfds

    return tfds


def _download(name: str, builder: str, url: str, directory: pathlib.Path):
    if not storage.reachable(url) and not storage.reachable(_MIRROR):
        raise storage.missing(name, directory, f"no answer from {url}")
    try:
        _tfds().builder(builder, data_dir=directory).download_and_prepare()
    except Exception as error:  # as above
        raise storage.missing(name, directory, storage.first_line(error)) from error


def read_split(builder, split: str, convert: Callable | None = None) -> dict[str, np.ndarray]:
    """Reads one split in the order of its files.

    Args:
      builder: A prepared TFDS builder.
      split: "train" or "test".
      convert: From one example of TFDS to a dict of tensors; its image as "x" and its label as "y" if None.

    Returns:
      One array per tensor, examples along the first axis.
    """
    import tensorflow as tf
    import tensorflow_datasets as tfds

    convert = convert or (lambda example: {"x": example["image"], "y": tf.cast(example["label"], tf.int32)})
    examples = builder.as_dataset(split=split, read_config=tfds.ReadConfig(try_autocache=False))
    batches = list(examples.map(convert, num_parallel_calls=2).batch(_BATCH).as_numpy_iterator())
    return {key: np.concatenate([batch[key] for batch in batches]) for key in batches[0]}
