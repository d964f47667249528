"""Checkpoints of a run: the method's state and what it has counted, as arrays in one file a round.

A file is written whole or not at all. It holds arrays and a description of how they are nested (`pack`), nothing that
is executed when it is read. What clients keep between rounds is in files of its own, see `clients.client_state`; a
checkpoint names the versions that belong to it. A large array, too, is in a file of its own, which is named by the
digest of its contents. So an array that does not change, such as the distances of all pairs of clients, is written
once.
"""

import collections
import dataclasses
import hashlib
import json
import pathlib
import re
import types
import typing
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from tffcl.clients.client_state import KeptStates, KeptStore, write_arrays
from tffcl.errors import OVERWRITE, RESUME, Option, UserError, short_path, tell
from tffcl.files import entries, make_directory, opened, replacing
from tffcl.runs.run import Totals

STRUCTURE = "structure"


def pack(values: Mapping, *, with_client_states: bool = True) -> tuple[dict[str, np.ndarray], list[tuple[int, int]]]:
    """Turns named values into arrays.

    Args:
      values: Dataclasses, mappings, lists and tuples of arrays, numbers, text, bytes and None, by name. A dataclass in
        another one must be of the class that its field is declared as; the keys of mappings are text or whole numbers.
      with_client_states: Whether client states are named; if not, they are packed as if no client had one.

    Returns:
      The arrays by name, with the description under `STRUCTURE`, and `(client, version)` of every client state.

    Raises:
      UserError: If a value is anything else, which `unpack` could not restore.
    """
    arrays, named = {}, []
    described = {
        name: _packed(value, name, type(value), arrays, named, with_client_states) for name, value in values.items()
    }
    return {STRUCTURE: np.array(json.dumps(described)), **arrays}, named


def _packed(value, place: str, kind, arrays: dict, named: list, with_client_states: bool):
    """Describes a value whose field is declared as `kind`; `kind` is None in a mapping, a list or a tuple."""

    def inner(name, each, kind=None):
        return _packed(each, f"{place}.{name}", kind, arrays, named, with_client_states)

    if isinstance(value, _PLAIN) and type(value) not in (*_PLAIN, collections.OrderedDict, np.str_):
        plain = next(each.__name__ for each in _PLAIN if isinstance(value, each))
        raise _unsaved(place, value, f"it would come back as a plain {plain}")
    if value is None or isinstance(value, str | bool):
        return {"plain": value}
    if isinstance(value, bytes):  # a text from TensorFlow; as NumPy's bytes it would lose zeros at its end
        return {"bytes": inner("bytes", np.frombuffer(value, np.uint8))}
    if isinstance(value, KeptStates):
        nobody = np.zeros(0, np.int32), np.zeros(0, np.int64)
        clients, versions = value.saved() if with_client_states else nobody
        named += zip(clients.tolist(), versions.tolist(), strict=True)
        parts = {"clients": clients, "versions": versions, "initial": value.initial}
        return {"kept": [inner(name, each) for name, each in parts.items()]}
    if dataclasses.is_dataclass(value):
        if type(value) is not _declared(kind):
            here = "its field must be declared as that" if kind else "a dataclass may stand in a field of its own alone"
            raise _unsaved(place, value, here)
        hints = typing.get_type_hints(type(value))
        names = [field.name for field in dataclasses.fields(value)]
        return {"fields": {name: inner(name, getattr(value, name), hints[name]) for name in names}}
    if isinstance(value, Mapping):
        # Client IDs are NumPy numbers, which JSON does not know; they are equal to Python's.
        names = [name.item() if isinstance(name, np.integer) else name for name in value]
        if not all(isinstance(name, str | int) for name in names):
            raise _unsaved(place, value, "its names must be text or whole numbers")
        return {"mapping": [[name, inner(name, each)] for name, each in zip(names, value.values(), strict=True)]}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [inner(number, each) for number, each in enumerate(value)]}
    # Other objects that NumPy can convert, such as a pandas table, would come back without their names or mask.
    if not isinstance(value, _ARRAYS) and not tf.is_tensor(value) or isinstance(value, np.ma.MaskedArray):
        raise _unsaved(place, value)
    array = np.asarray(value)
    if array.dtype.hasobject:
        raise _unsaved(place, value)
    if array.dtype.isbuiltin == 2:  # a type of another package, such as TensorFlow's bfloat16
        raise _unsaved(place, value, f"NumPy's files do not know {array.dtype}")
    while place in arrays:  # e.g. for the keys 1 and "1"
        place += "'"
    arrays[place] = array
    return {"array": place}


_PLAIN = (str, list, tuple, dict)  # subclasses are refused, such as a NamedTuple or a defaultdict
_ARRAYS = (np.ndarray, np.generic, int, float, complex)


def _unsaved(place: str, value, why: str = "") -> UserError:
    """The error for a part of a state that a checkpoint cannot hold."""
    return UserError(
        f"a state must be of arrays, numbers and text, or checkpoints could not hold it; {place} is a "
        f"{type(value).__name__}{why and '; '}{why}"
    )


def unpack(arrays: Mapping[str, np.ndarray], kinds: Mapping[str, type]) -> dict:
    """The inverse of `pack`.

    Args:
      arrays: What `pack` returned, or the open file that holds it.
      kinds: The dataclass of each value that is one, by name.

    Raises:
      ValueError: If a dataclass has other fields than were packed.
      KeyError: If an array is missing.
    """
    described = json.loads(str(arrays[STRUCTURE]))
    return {name: _unpacked(value, arrays, kinds.get(name)) for name, value in described.items()}


def _unpacked(described: Mapping, arrays: Mapping, kind):
    """Rebuilds a value; a dataclass in it is of the class that the field of `kind` is declared as."""
    ((form, content),) = described.items()
    if form == "plain":
        return content
    if form == "kept":
        return KeptStates.loaded(*(_unpacked(each, arrays, None) for each in content))
    if form == "fields":
        return _dataclass(content, arrays, kind)
    if form == "mapping":
        return collections.OrderedDict((name, _unpacked(each, arrays, None)) for name, each in content)
    if form == "bytes":
        return _unpacked(content, arrays, None).tobytes()
    if form in ("list", "tuple"):
        items = [_unpacked(each, arrays, None) for each in content]
        return items if form == "list" else tuple(items)
    array = arrays[content]
    return array if array.ndim else array[()]


def _dataclass(content: Mapping, arrays: Mapping, kind):
    found = _declared(kind)
    fields = [] if found is None else dataclasses.fields(found)
    wanted = [field.name for field in fields]
    if sorted(wanted) != sorted(content):
        expected = f"{', '.join(sorted(wanted))} of {found.__name__}" if wanted else "no such values"
        raise _OtherFields(f"it holds {', '.join(sorted(content))}; {expected} are expected")
    hints = typing.get_type_hints(found)
    return found(**{name: _unpacked(each, arrays, hints[name]) for name, each in content.items()})


def _declared(kind) -> type | None:
    """The dataclass that a field is declared as, also where it is optional; None if it is no dataclass."""
    kinds = typing.get_args(kind) if typing.get_origin(kind) in (types.UnionType, typing.Union) else (kind,)
    return next((each for each in kinds if dataclasses.is_dataclass(each)), None)


_VERSIONS = "kept versions"  # of client states, `int64 [n, 2]`: client and version
_RUN = "run"  # the name of the run
_ROUND = "round"  # after which round the state was saved
_LARGE = "large arrays"  # the name of each array and of its file, in JSON
LARGE_BYTES = 2**22  # an array of so many bytes or more has a file of its own
ANEW = Option("; --overwrite starts anew", "; overwrite=True starts anew")
_NAME = re.compile(r"round_(\d+)\.npz")
_LARGE_NAME = re.compile(r"[0-9a-f]{32}\.npy")


class _OtherFields(ValueError):
    """What was packed is not a dataclass, or has other fields."""


class Foreign(UserError):
    """A checkpoint is of another run, or of another class of states, e.g. after an edit; the file itself is whole."""


class Checkpoints:
    """The checkpoints in a directory, of which the newest are kept."""

    def __init__(self, directory: pathlib.Path, keep: int = 2, client_states: KeptStore | None = None, run: str = ""):
        """Opens a directory of checkpoints; it need not exist.

        Args:
          directory: Where the files are.
          keep: How many of the newest are kept.
          client_states: The store of client states; its files that no checkpoint names are removed.
          run: The name of the run; a checkpoint of another run is refused. Without a name, none is refused.
        """
        self._directory, self._keep, self._store, self._run = directory, keep, client_states, run

    def rounds(self) -> list[int]:
        """Returns the saved rounds, ascending."""
        names = (_NAME.fullmatch(path.name) for path in entries(self._directory))
        return sorted(int(name[1]) for name in names if name)

    def latest(self) -> int | None:
        """Returns the newest saved round, or None."""
        return max(self.rounds(), default=None)

    def save(self, round_number: int, state, totals: Totals):
        """Saves everything that a resumed run needs, and removes the oldest checkpoints."""
        make_directory(self._directory)
        arrays, named = pack({"state": state, "totals": totals})
        described = arrays.pop(STRUCTURE)
        large = {name: self._write_large(array) for name, array in arrays.items() if array.nbytes >= LARGE_BYTES}
        others = {name: array for name, array in arrays.items() if name not in large}
        about = {
            _VERSIONS: np.array(named, np.int64).reshape(-1, 2),
            _RUN: np.array(self._run),
            _ROUND: np.array(round_number),
            _LARGE: np.array(json.dumps(large)),
            STRUCTURE: described,
        }
        write_arrays(self._path(round_number), {**about, **others})
        self._remove_oldest()

    def _write_large(self, array: np.ndarray) -> str:
        """Writes an array into a file of its own, unless it is there; returns the file's name."""
        path = self._directory / f"{_digest(array)}.npy"
        if not path.exists():
            with replacing(path, private=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
        return path.name

    def _read_large(self, saved) -> dict[str, np.ndarray]:
        """Returns the large arrays that an open checkpoint names."""
        found = {}
        for name, file in self._large_in(saved).items():
            try:
                with opened(self._directory / file) as large:
                    found[name] = np.load(large, allow_pickle=False)
            except Exception as error:  # as in `load`
                raise ValueError(f"{file}: {error}") from None
            if f"{_digest(found[name])}.npy" != file:
                raise ValueError(f"{file}, which holds {name}, is damaged")
        return found

    @staticmethod
    def _large_in(saved) -> dict[str, str]:
        named = json.loads(str(saved[_LARGE]))
        if not all(map(_LARGE_NAME.fullmatch, named.values())):
            raise ValueError("it names files that are no checkpoint's")
        return named

    def _remove_oldest(self):
        for old in self.rounds()[: -self._keep]:
            self._path(old).unlink()
        named = [self._named_by(number) for number in self.rounds()]
        if None in named:  # a disk that cannot be read now may be readable later
            return
        if self._store is not None and self._store.files():
            self._store.remove_all_but(pair for states, _ in named for pair in states)
        wanted = {file for _, large in named for file in large}
        for path in self._directory.glob("*.npy"):
            if _LARGE_NAME.fullmatch(path.name) and path.name not in wanted:
                path.unlink()

    def load(self, round_number: int, state_class: type):
        """Loads a saved round.

        Args:
          round_number: The round.
          state_class: The dataclass of the method's state.

        Returns:
          The method's state and what the run had counted.

        Raises:
          UserError: If the file is damaged, or of another method or another version.
        """
        try:
            with opened(self._path(round_number)) as file, np.load(file, allow_pickle=False) as saved:
                # NumPy checks a checksum only where it reads to the end, which a damaged header can keep it from.
                if damaged := saved.zip.testzip():
                    raise ValueError(f"{damaged} is damaged")
                if self._run and str(saved[_RUN]) != self._run:
                    raise Foreign(f"{self._path(round_number)} is of another run; move it, or give another directory")
                if _ROUND in saved and int(saved[_ROUND]) != round_number:  # earlier versions saved none
                    raise ValueError(f"it is of round {saved[_ROUND]}")
                self._check_client_states(saved[_VERSIONS].tolist())
                loaded = unpack(
                    collections.ChainMap(self._read_large(saved), saved), {"state": state_class, "totals": Totals}
                )
            return loaded["state"], loaded["totals"]
        except Foreign:
            raise
        except Exception as error:  # for damaged files NumPy, zipfile and json raise a dozen types
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            kind = Foreign if isinstance(error, _OtherFields) else UserError
            raise kind(f"the checkpoint of round {round_number} cannot be read ({reason}){ANEW}") from None

    def load_newest(self, state_class: type, last_round: int):
        """Loads the newest checkpoint that can be read. Damaged ones after it are reported on standard error and
        removed; so are those that are older than the ones to keep.

        Args:
          state_class: The dataclass of the method's state.
          last_round: The last round of the run.

        Returns:
          Its round, the method's state and what the run had counted.

        Raises:
          UserError: If none can be read, or one is of another run or of a round after the last; then all files stay.
        """
        first, damaged = None, []
        for number in reversed(self.rounds()):
            if number > last_round:
                raise UserError(
                    f"{self._path(number)} is of a round after the run's last, {last_round}; {OVERWRITE} starts anew"
                )
            try:
                loaded = self.load(number, state_class)
            except Foreign:
                raise
            except UserError as error:
                first, damaged = first or error, [*damaged, number]
                continue
            for each in damaged:
                self._path(each).unlink()
            if damaged:
                tell(f"{str(first).removesuffix(str(ANEW))}; the run goes on from round {number}")
            self._remove_oldest()  # a process that ended after writing one and before this left one too many
            return number, *loaded
        raise first

    def _check_client_states(self, named):
        missing = set(map(tuple, named)) - set(self._store.files()) if self._store is not None and named else None
        if missing:
            raise ValueError(f"the state of client {min(missing)[0]} is missing")

    def _path(self, round_number: int) -> pathlib.Path:
        return self._directory / f"round_{round_number:06}.npz"

    def _named_by(self, round_number: int) -> tuple[list[tuple[int, int]], list[str]] | None:
        """The client states and the files of large arrays that a checkpoint names; None if it cannot be read."""
        try:
            with opened(self._path(round_number)) as file, np.load(file, allow_pickle=False) as saved:
                return [tuple(pair) for pair in saved[_VERSIONS].tolist()], [*self._large_in(saved).values()]
        except Exception:  # as in `load`
            return None


def _digest(array: np.ndarray) -> str:
    found = hashlib.blake2b(f"{array.dtype.str} {array.shape}".encode(), digest_size=16)
    found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def unwritten(error: OSError, out: pathlib.Path, checkpoints: Checkpoints) -> UserError:
    """Returns the error for a run whose files cannot be written: which file, why, and what of the run is saved."""
    place = short_path(error.filename or out)
    try:
        saved = checkpoints.latest()
    except (OSError, UserError):
        saved = None
    there = "nothing of the run is saved"
    if saved is not None:
        rounds = f"what was done up to round {saved} is saved, later rounds are lost" if saved else "no round is saved"
        there = f"{rounds}; {RESUME} goes on when it can be written"
    return UserError(f"{place} cannot be written: {error.strerror or error} ({there})")
