"""What clients keep between rounds: a personal model, a control variate, local layers.

On a device such a value stays on the device. In simulation the coordinator keeps it for the client, in memory up to a
size and on disk beyond it. It never counts as traffic.
"""

import dataclasses
import itertools
import pathlib
import re
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tffcl.clients.simulation_context import current
from tffcl.errors import UserError, one_line
from tffcl.files import entries, opened, replacing

_NAME = re.compile(r"(\d+)\.(\d+)\.npz")
_RUN = "run"  # the run that wrote a file
_CLIENT = "client"  # the client that kept the value
_VERSION = "version"  # which of the client's values it is
MEMORY_BYTES = 2**30  # of kept values that stay in memory; later ones are written to disk at once


def bytes_of(value) -> int:
    """Returns the bytes of all arrays in a structure."""
    return sum(np.asarray(leaf).nbytes for leaf in tf.nest.flatten(value))


class KeptStore:
    """A directory with a file for each kept value, `<client>.<version>.npz`; files are written once and never changed.

    A checkpoint names the versions that belong to it. A process that is killed leaves files that no checkpoint names;
    the next checkpoint removes them.
    """

    def __init__(self, directory: pathlib.Path | None = None, memory_bytes: int = MEMORY_BYTES, run: str = ""):
        """Makes a store.

        Args:
          directory: Where files go; default a temporary directory, made when it is first needed.
          memory_bytes: Values are kept in memory up to so many bytes in all.
          run: The name of the run; files of another run are refused. Without a name, no file is refused.
        """
        self._directory, self.memory_bytes, self._run = directory, memory_bytes, run
        self._temporary = None
        held = [version for _, version in self.files()] if directory else []
        self._versions = itertools.count(max(held, default=0) + 1)

    @property
    def directory(self) -> pathlib.Path:
        if self._directory is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="tffcl-kept-")
            self._directory = pathlib.Path(self._temporary.name)
        return self._directory

    def files(self) -> list[tuple[int, int]]:
        """Returns `(client, version)` of every file; raises UserError if the directory cannot be read."""
        names = (_NAME.fullmatch(path.name) for path in entries(self.directory))
        return [(int(name[1]), int(name[2])) for name in names if name]

    def write(self, client: int, value) -> tuple[int, int]:
        """Writes a value; returns its version."""
        version = next(self._versions)
        self.directory.mkdir(parents=True, exist_ok=True)
        leaves = {f"arr_{place}": leaf for place, leaf in enumerate(tf.nest.flatten(value))}
        whose = {_RUN: np.array(self._run), _CLIENT: np.array(client), _VERSION: np.array(version)}
        write_arrays(self._path(client, version), {**whose, **leaves})
        return version

    def read(self, client: int, version: int, like):
        """Reads a value of the structure, shapes and types of `like`.

        Args:
          client: The client that kept it.
          version: Its version.
          like: Another value of the same kind.

        Raises:
          UserError: If the file is missing or damaged, or is another file of the same name.
        """
        path = self._path(client, version)
        try:
            with opened(path) as file, np.load(file, allow_pickle=False) as saved:
                arrays = dict(saved)
            run, owner = str(arrays.pop(_RUN, self._run)), int(arrays.pop(_CLIENT, client))  # earlier files have none
            if self._run and run != self._run:
                raise ValueError("it is of another run, which was written there since; a directory for each keeps both")
            if owner != client:
                raise ValueError(f"it is of client {owner}")
            if (held := int(arrays.pop(_VERSION, version))) != version:  # earlier files have none
                raise ValueError(f"it is version {held} of what the client kept")
            leaves = [arrays[f"arr_{place}"] for place in range(len(arrays))]
            found = tf.nest.pack_sequence_as(like, leaves)
            tf.nest.map_structure(_check_alike, found, like)
            return found
        except Exception as error:  # NumPy's and zipfile's errors for damaged files are of a dozen types
            raise UserError(f"{path}, what client {client} kept, cannot be read ({one_line(error)})") from None

    def remove_all_but(self, named: Iterable[tuple[int, int]]):
        """Removes the files of versions that are not named."""
        wanted = set(named)
        for client, version in self.files():
            if (client, version) not in wanted:
                self._path(client, version).unlink(missing_ok=True)

    def _path(self, client: int, version: int) -> pathlib.Path:
        return self.directory / f"{client}.{version}.npz"


def _check_alike(found: np.ndarray, like: np.ndarray):
    # If a header says fewer rows than there are, bytes stay unread and their checksum unchecked.
    if (found.shape, found.dtype) != (like.shape, like.dtype):
        raise ValueError(f"{found.dtype} {list(found.shape)} where {like.dtype} {list(like.shape)} was kept")


@dataclasses.dataclass(frozen=True)
class _Entry:
    """A kept value: in memory, on disk, or both. `version` is None until it is on disk."""

    value: object = None
    version: int | None = None


class KeptStates:
    """A kept value for each client that has one. The object does not change: `updated` returns another one.

    A client without a value of its own has the initial one, so newcomers need no entry.
    """

    def __init__(self, initial, entries: Mapping[int, _Entry] | None = None, store: KeptStore | None = None):
        """Makes kept values; with the defaults no client has one.

        Args:
          initial: The value of a client that has kept nothing yet, a structure of arrays.
          entries: The entries of the clients that have kept a value.
          store: Where values beyond a size are written; default the simulation's, or a temporary one.
        """
        self.initial = tf.nest.map_structure(np.asarray, initial)
        self._entries = dict(entries or {})
        self._store = store or current().client_states or KeptStore()

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"KeptStates({len(self)} clients, {self._bytes_each:,} bytes each)"

    @property
    def _bytes_each(self) -> int:
        return bytes_of(self.initial)

    def has(self, client_ids) -> np.ndarray:
        """Returns `bool [n]`, which clients have a value of their own."""
        return np.array([int(client) in self._entries for client in client_ids], bool)

    def of(self, client_ids) -> "KeptValues":
        """Returns the value of each client, the initial one for clients that have none."""
        return KeptValues(self, client_ids)

    def value(self, client: int):
        """Returns the value of a client."""
        entry = self._entries.get(client)
        if entry is None:
            return self.initial
        return self._store.read(client, entry.version, self.initial) if entry.value is None else entry.value

    def updated(self, client_ids, values: Sequence) -> "KeptStates":
        """Returns kept values with new ones for some clients."""
        entries = dict(self._entries)
        in_memory = sum(entry.value is not None for entry in entries.values()) * self._bytes_each
        for client, value in zip(client_ids, values, strict=True):
            client = int(client)
            held = client in entries and entries[client].value is not None
            if held or in_memory + self._bytes_each <= self._store.memory_bytes:
                in_memory += 0 if held else self._bytes_each
                entries[client] = _Entry(tf.nest.map_structure(np.asarray, value))
            else:
                entries[client] = _Entry(None, self._store.write(client, value))
        return KeptStates(self.initial, entries, self._store)

    def saved(self) -> tuple[np.ndarray, np.ndarray]:
        """Writes the values that are only in memory.

        Returns:
          The clients `int32 [M]` and the versions `int64 [M]` that a checkpoint names.
        """
        for client, entry in self._entries.items():
            if entry.version is None:
                self._entries[client] = _Entry(entry.value, self._store.write(client, entry.value))
        clients = sorted(self._entries)
        return np.array(clients, np.int32), np.array([self._entries[client].version for client in clients], np.int64)

    @classmethod
    def loaded(cls, clients: np.ndarray, versions: np.ndarray, initial) -> "KeptStates":
        """The inverse of `saved`, with the simulation's store; values are read when they are needed."""
        named = zip(clients.tolist(), versions.tolist(), strict=True)
        return cls(initial, {client: _Entry(None, version) for client, version in named})


class KeptValues(Sequence):
    """The values of some clients in order, each read when it is needed."""

    def __init__(self, states: KeptStates, client_ids):
        self._states, self._client_ids = states, [int(client) for client in client_ids]

    def __len__(self) -> int:
        return len(self._client_ids)

    def __getitem__(self, place):
        if isinstance(place, slice):
            return KeptValues(self._states, self._client_ids[place])
        return self._states.value(self._client_ids[place])


def write_arrays(path: pathlib.Path, arrays: Mapping[str, np.ndarray], *, shipped: bool = False):
    """Writes arrays in the form of `numpy.savez`, which on a full disk would leave an open archive and a traceback.

    The file is written whole or not at all. Only its owner can read it, since it holds models and values of clients.

    Args:
      path: The path of the file.
      arrays: The arrays by name.
      shipped: Whether the file is for others, too: it is compressed, and readable as the umask says.

    Raises:
      OSError: If the file cannot be written.
      ValueError: If an array holds Python objects.
    """
    how = zipfile.ZIP_DEFLATED if shipped else zipfile.ZIP_STORED
    with replacing(path, private=not shipped) as file, zipfile.ZipFile(file, "w", how) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
