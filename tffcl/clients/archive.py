"""Arrays by name in a file that `numpy.load` reads."""

import pathlib
import zipfile
from collections.abc import Mapping

import numpy as np

from tffcl.regular_files import replacing


def write_arrays(path: pathlib.Path, arrays: Mapping[str, np.ndarray]):
    """Writes arrays as `numpy.savez` does, of which a full disk would leave an open archive and a traceback behind.

    The file is whole or not there, and its owner's alone: it holds models and values of clients.

    Raises:
      OSError: If the file cannot be written.
      ValueError: If an array holds Python objects.
    """
    with replacing(path, private=True) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
