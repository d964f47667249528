"""Arrays by name in a file that `numpy.load` reads."""

import pathlib
import zipfile
from collections.abc import Mapping

import numpy as np


def write_arrays(path: pathlib.Path, arrays: Mapping[str, np.ndarray]):
    """Writes arrays as `numpy.savez` does, of which a full disk would leave an open archive and a traceback behind.

    Raises:
      OSError: If the file cannot be written; what there is of it is removed.
      ValueError: If an array holds Python objects.
    """
    try:
        with zipfile.ZipFile(path, "w") as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
