"""The directory of a run: the names of its files, its state, and whose it is.

A directory is a run's if it has the marker `run.json`, which is written before everything else and removed after it.
Here are the names of the files that a run itself writes; the marker lists those made from it, such as pictures.
"""

import datetime
import enum
import hashlib
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Mapping, Sequence

import tomli_w

from tffcl.display import counted
from tffcl.errors import OVERWRITE, RESUME, UserError, argument, short_path, tell
from tffcl.files import (
    Table,
    check_no_link,
    check_replaceable,
    damaged,
    entries,
    nearest_existing,
    parse_toml,
    read_json,
    read_table,
    read_text,
    text_of_file,
    write_json,
    write_text,
)
from tffcl.runs.directory_lock import LOCK, check_unlocked
from tffcl.validation import check_kind

MARKER = "run.json"
CONFIG, ROUNDS, CLIENTS, SUMMARY = "config.toml", "rounds.csv", "clients.csv", "summary.json"
CLUSTERING, REPRESENTATIONS, SPLITS = "clustering.npz", "representations.npz", "splits.csv"
SPLIT_COLUMNS = ("round", "cluster", "founded")
CONFUSION = "confusion.npz"  # for each cluster, which labels its model takes for which; may be deleted
SAMPLES = "samples.npz"  # examples of clients; may be deleted
LEDGER = "ledger.json"  # releases of the clients' data whose noise no seed repeats
FAILED = "failed.json"  # why one of several runs diverged
REPORT = "report.html"
CHECKPOINTS, CLIENT_STATES, HISTORY, TENSORBOARD, FIGURES = "checkpoints", "kept", "history", "tensorboard", "figures"
BUILT_FROM = "built_from"  # the table of what a method from Python was built from, as far as that is known
CURES = {f"{BUILT_FROM}.model.initial_weights": "build it after tf.keras.utils.set_random_seed(1)"}

_OF_THE_END = (CLIENTS, SUMMARY, CLUSTERING, CONFUSION, REPRESENTATIONS, SAMPLES, SPLITS)  # of a run that has ended
_FILES = (CONFIG, ROUNDS, LEDGER, FAILED, REPORT, *_OF_THE_END)
# The names of a run's files in its directories; in figures these are only the ones that the marker lists.
_DIRECTORIES = {
    CHECKPOINTS: r"round_\d{6,}\.npz|[0-9a-f]{32}\.npy",
    CLIENT_STATES: r"\d+\.\d+\.npz",
    TENSORBOARD: r"events\.out\.tfevents\..+",
    HISTORY: r"\d{6,}\.npy",
    FIGURES: "",
}
_ELSEWHERE = ("dataset", "directory", "versions")  # tables that name places, and one that is no setting
# Other directories of this package, by a file in them; a run would replace their report by its own.
_OTHERS = {"batch.json": "several runs", "results/batch.json": "a study", "manifest.json": "an export"}


class State(enum.Enum):
    """How far the run in a directory has come."""

    EMPTY = ""  # there is no run, or it has saved and released nothing
    BEGUN = "begun"
    DIVERGED = "diverged"
    FINISHED = "finished"


class RunDirectory(os.PathLike):
    """The directory of one run; it need not exist.

    Attributes:
      path: Where it is; `directory / name` is the path of a file in it.
    """

    def __init__(self, path: str | os.PathLike):
        check_kind("the path", path, (str, os.PathLike), "the directory of a run, e.g. result.out")
        self.path = pathlib.Path(path)
        self._extended = ""  # config.toml of a run that goes on to more rounds than the present result has

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def __truediv__(self, name: str) -> pathlib.Path:
        return self.path / name

    @property
    def state(self) -> State:
        """How far its run has come, judged by the files."""
        if (self / SUMMARY).exists():
            return State.FINISHED
        if (self / FAILED).exists():
            return State.DIVERGED
        begun = (self / LEDGER).exists() or any((self / CHECKPOINTS).glob("round_*.npz"))
        return State.BEGUN if begun else State.EMPTY

    @property
    def ended(self) -> str:
        """How its run has ended: "finished" or "diverged"; "" if it has not."""
        return self.state.value if self.state in (State.FINISHED, State.DIVERGED) else ""

    @property
    def is_run(self) -> bool:
        """Whether it is the directory of one run, and not of several."""
        return (self / CONFIG).exists() or (self / SUMMARY).exists()

    # Readers

    def marker(self) -> dict | None:
        """Reads the marker; None if there is none.

        Raises:
          UserError: If it cannot be read, is damaged, or is something else of the same name.
        """
        if not (self / MARKER).exists():
            return None
        text = text_of_file(self / MARKER)
        try:
            marker = json.loads(text)
            if not (isinstance(marker, dict) and isinstance(marker["tffcl run"], str)):
                raise ValueError("it does not name a run")
            data = marker.get("data", {})
            if not (isinstance(data, Mapping) and all(isinstance(each, str) for each in data.values())):
                raise ValueError("its data are not those of a run")
            if not isinstance(marker.get("settings", {}), Mapping):
                raise ValueError("its settings are not those of a run")
            marker["files"] = list(marker.get("files", []))
            if any(
                not isinstance(name, str) or name.startswith("/") or ".." in name.split("/") for name in marker["files"]
            ):
                raise ValueError("its files are not those of a run")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UserError(
                f"{self / MARKER} is damaged, or not a run's ({error}); remove it, or give another directory"
            ) from None
        return marker

    @property
    def run_name(self) -> str:
        """The name of its run, which is also in its checkpoints; "" if there is no run."""
        return (self.marker() or {}).get("tffcl run", "")

    def settings(self) -> dict:
        """Reads the settings in config.toml as they are.

        Raises:
          UserError: If the file is missing, cannot be read, is damaged, or was edited after the run began.
        """
        file = self / CONFIG
        if not file.exists():
            raise UserError(f"{file} is missing, so that nobody knows what was run; {OVERWRITE} starts anew")
        text = text_of_file(file)
        try:
            settings = parse_toml(text)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{file} is damaged: {error}; {OVERWRITE} starts anew") from None
        settings.pop("versions", None)
        self.check_unedited(settings)
        return settings

    def check_unedited(self, settings: Mapping):
        """Raises UserError, which names the first, if settings in config.toml differ from those noted in the marker."""
        now, before = _digests(settings), (self.marker() or {}).get("settings", {})
        edited = [name for name in {**before, **now} if before and before.get(name) != now.get(name)]
        if edited:
            raise UserError(
                f"{self / CONFIG} was edited since the run began: {edited[0]} is not what was run; undo that, or run "
                "these settings in another directory"
            )

    def _versions(self) -> dict:
        """The versions of software in config.toml."""
        found = parse_toml(read_text(self / CONFIG)).get("versions")
        return {name: str(version) for name, version in found.items()} if isinstance(found, dict) else {}

    def summary(self) -> dict | None:
        """Reads the result; None if there is none.

        Raises:
          UserError: If summary.json is damaged, or belongs to another run than config.toml.
        """
        file = self / SUMMARY
        if not file.exists():
            return None
        try:
            summary = read_json(file)
            for key, kind in (("task", str), ("algorithm", str), ("seed", int), ("rounds", int)):
                if not isinstance(summary.get(key), kind):
                    raise damaged(file, f"{key} is {summary.get(key)!r:.100}")
        except UserError as error:
            raise UserError(f"{error}; without it, {RESUME} makes it again") from None
        settings = self.settings() if (self / CONFIG).exists() else {}
        for key in ("task", "algorithm", "seed"):
            if key in settings and summary[key] != settings[key]:
                raise UserError(
                    f"{file} is the result of another run: its {key} is {summary[key]!r}, not {settings[key]!r}; "
                    f"without it, {RESUME} goes on with the run"
                )
        return summary

    def rounds(self, *required: str) -> Table:
        """Reads rounds.csv, which must have the given columns.

        Raises:
          UserError: If it is missing or damaged, or lacks one.
        """
        return read_table(self / ROUNDS, ["round", *required])

    @property
    def rounds_done(self) -> int:
        """How many rounds are in rounds.csv; those after the checkpoint are done again, with the same numbers."""
        return len(self.rounds().rows) if (self / ROUNDS).is_file() else 0

    # Whose it is

    def check_claim(
        self, settings: Mapping, *, resume: bool, overwrite: bool, locked: bool = False, longer: bool = False
    ):
        """Checks that this run may use the directory.

        Args:
          settings: Of the run.
          resume: Whether to go on with a run that is there.
          overwrite: Whether to delete a run that is there.
          locked: Whether this run holds the directory's lock already.
          longer: Whether a run that is there may go on to more rounds than it was asked for.

        Raises:
          UserError: If it is a file, if it holds a run that may not be touched, is another one or is running, or if it
            holds files of no run.
        """
        if resume and overwrite:
            raise UserError("resume goes on with the run that is there, overwrite deletes it; give one of the two")
        try:
            self._check_place(locked)
            for name, what in _OTHERS.items():
                if (self / name).is_file():
                    raise UserError(f"{self} holds {what} ({name}); a run of its own needs another directory")
            if self.marker() is None:
                for path in self._inside():
                    if self._is_ours(path, []) and path.suffix != ".partial":
                        raise UserError(
                            f"{path} is no run's, and a run would write over it; move it, or give another directory"
                        )
                return
            begun = self.state is not State.EMPTY
            if overwrite or not begun and not (resume and (self / CONFIG).is_file()):
                return
            if not resume:
                raise UserError(
                    f"{self} holds a run already; {RESUME} goes on with it, {OVERWRITE} starts anew, or give another "
                    "directory"
                )
            self.check_same(settings, longer=longer)
            self.summary()
        except OSError as error:
            place = f"{argument('out')} {short_path(self.path)}"
            raise UserError(f"{place} cannot be used: {error.strerror or error}") from None

    def _check_place(self, locked: bool):
        """Raises UserError or OSError if a run could not write there, if it would write through a link, or if another
        run writes there."""
        if "\0" in str(self):
            raise UserError(f"{str(self)!r} holds a NUL character, which no name of a file can")
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self} is a file; a run needs a directory")
        if not self.path.exists():
            place = nearest_existing(self.path)
            if place.is_dir():  # if not, making the directory raises the error
                pathlib.Path(tempfile.mkdtemp(prefix=".tffcl-", dir=place)).rmdir()
        for name in _DIRECTORIES:
            check_no_link(self / name)
            if (self / name).exists() and not (self / name).is_dir():
                raise UserError(
                    f"{self / name} is a file; a run has a directory there: move it, or give another directory"
                )
        names = [
            path.relative_to(self.path)
            for name in (CHECKPOINTS, CLIENT_STATES, HISTORY)
            for path in entries(self / name)
            if path.suffix in (".npy", ".npz")
        ]
        for name in (*_FILES, MARKER, LOCK, *names):
            check_replaceable(self.path / name)
            if (self.path / f"{name}.partial").is_dir():
                raise UserError(f"{self.path / name}.partial is not a file: move it, or give another directory")
        if not locked:
            check_unlocked(self.path)

    def _inside(self) -> list[pathlib.Path]:
        """What is in the directory, and in the directories of a run in it."""
        places = [self.path, *(self / name for name in _DIRECTORIES)]
        return [
            path
            for place in places
            if place.is_dir()
            for path in sorted(place.iterdir())
            if path.name not in _DIRECTORIES
        ]

    def _is_ours(self, path: pathlib.Path, listed: Sequence[str]) -> bool:
        """Whether a file has the name of a run's file, of one that the marker lists, or of such a file that was written
        in part."""
        name = path.name.removesuffix(".partial")
        if not path.is_file():
            return False
        if path.parent == self.path:
            return name in (*_FILES, MARKER, *listed)
        return f"{path.parent.name}/{name}" in listed or re.fullmatch(_DIRECTORIES[path.parent.name], name) is not None

    def check_same(self, settings: Mapping, *, longer: bool = False):
        """Raises UserError, which names the first, if its run has other settings; fewer rounds are fine if `longer`."""
        old, new = _without_stopping(self.settings()), _without_stopping(settings)
        if longer and 0 < _rounds_of(old) < _rounds_of(new):
            old = {**old, "train": {**old["train"], "rounds": _rounds_of(new)}}
        if difference := first_difference(old, new):
            key, before, now = difference
            if longer and key == "train.rounds" and _rounds_of(old):
                raise UserError(
                    f"{self} holds a run of {counted(before, 'round')}, not {now}; it goes on for as many or more, or "
                    f"give another directory (for a result after {counted(now, 'round')} begin with these, and resume "
                    "with more; until= stops a run before its end)"
                )
            cure = CURES.get(key if before else "", "resume with its own settings")
            raise UserError(
                f"{self} holds another run: its {key} is {before!r}, not {now!r}; {cure}, start anew with {OVERWRITE}, "
                "or give another directory"
            )

    def tell_edits(self, code: Mapping[str, str]):
        """Says on standard error which of the user's own files, given by hashes, the run has never used as they are."""
        noted = self._versions()
        for name in [each for each in code if each in noted and code[each] not in noted[each].split(" / ")]:
            tell(f"{name} was edited since the run in {self} began; it goes on with the code of now")

    # Writers

    def claim(
        self, settings: Mapping, data: Mapping[str, str], code: Mapping[str, str], *, anew: bool, resume: bool = False
    ) -> str:
        """Makes the directory this run's: writes the marker, then the settings and the versions of software in
        config.toml. If a run goes on with other versions, they are added to the earlier ones; if the user's own code
        has changed, standard error says so.

        Args:
          settings: Of the run.
          data: The fingerprint of its data.
          code: Hashes of the user's own modules, by file.
          anew: Whether to remove the files of an earlier run; files of no run stay, and are named on standard error.
          resume: Whether the run keeps its name, and earlier releases of the clients' data stay counted, even if it
            begins anew.

        Returns:
          The name of the run, which its checkpoints bear.
        """
        before, result = self.marker() or {}, None if anew else self.summary()
        if anew:
            self.clear(but=LEDGER if resume else "")
            before = {"tffcl run": before["tffcl run"]} if resume and before else {}
        elif result is None:
            for name in (FAILED, *_OF_THE_END, *before["files"]):
                (self / name).unlink(missing_ok=True)
            before["files"] = []
        begun = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
        noted = {"data": dict(data), "settings": _digests(settings)}
        marker = {"tffcl run": uuid.uuid4().hex, "begun": begun, **noted, "files": [], **before}
        write_json(self / MARKER, marker)
        for path in self._inside():
            if path.suffix == ".partial" and self._is_ours(path, marker["files"]):
                path.unlink()  # left by a process that was killed while it wrote
        packages = ("tffcl", "tensorflow-federated", "tensorflow", "numpy", "scipy", "scikit-learn")
        versions = {**{name: importlib.metadata.version(name) for name in packages}, **code}
        longer = result is not None and result["rounds"] < _rounds_of(settings)
        goes_on = not anew and (result is None or longer)
        if goes_on:
            self.tell_edits(code)
        for name, was in ({} if anew else self._versions()).items():
            known = versions.get(name, was) in was.split(" / ") or not goes_on
            versions[name] = was if known else f"{was} / {versions[name]}"  # the run has used both
        config = tomli_w.dumps({**settings, "versions": versions})
        self._extended = config if longer else ""
        if not longer:
            write_text(self / CONFIG, config)
        return marker["tffcl run"]

    def drop_result(self, done: int):
        """Once more rounds are `done` than the result has, removes the result from which a run has gone on, and what
        was made from it, and writes the settings of the longer run. Before, the directory is that of the result."""
        if self._extended and (self.summary() or {"rounds": 0})["rounds"] < done:
            marker = self.marker() or {"files": []}
            for name in (*_OF_THE_END, *marker["files"]):
                (self / name).unlink(missing_ok=True)
            write_json(self / MARKER, {**marker, "files": []})
            write_text(self / CONFIG, self._extended)
            self._extended = ""

    def clear(self, *, but: str = ""):
        """Removes the run that is there except for the file `but`; its settings and marker come last, so that after a
        kill the rest is still known as the run's. Files of no run stay, and are named on standard error."""
        marker = self.marker()
        if marker is None:
            return
        inside = sorted(self._inside(), key=lambda path: (path == self / MARKER, path == self / CONFIG))
        left = [path for path in inside if not self._is_ours(path, marker["files"]) and path.name not in (LOCK, but)]
        for path in inside:
            if path not in left and path.name not in (LOCK, but):
                path.unlink()
        for name in _DIRECTORIES:
            if (self / name).is_dir() and not any((self / name).iterdir()):
                (self / name).rmdir()
        if left:
            tell(f"not a run's, and left as they are: {', '.join(map(str, left))}")

    def drop_states(self):
        """Removes the files that are needed only to go on with the run or to export it."""
        for name in (CHECKPOINTS, CLIENT_STATES):
            shutil.rmtree(self / name, ignore_errors=True)

    def write_summary(self, summary: Mapping):
        """Writes summary.json, whole or not at all."""
        write_json(self / SUMMARY, summary, indent=2)

    def write_failure(self, about: Mapping):
        """Writes failed.json, which says why the run lacks the files of a finished one."""
        write_json(self / FAILED, about)

    def list_files(self, names: Iterable[str]):
        """Lists files that are about to be written as the run's in the marker, if there is one.

        Raises:
          UserError: If one of them exists that the marker does not list: it is the user's own.
        """
        marker = self.marker()
        if marker is None:
            return
        new = [name for name in names if name not in (*_FILES, *marker["files"])]
        for name in new:
            if (self / name).exists():
                raise UserError(f"{self / name} is not of the run, which would write over it; move it")
        if new:
            write_json(self / MARKER, {**marker, "files": [*marker["files"], *new]})

    def write_result(self, name: str, contents: Mapping):
        """Writes a JSON file beside the files of a run."""
        self.list_files([name])
        write_json(self / name, contents, indent=2)


def _rounds_of(settings: Mapping) -> int:
    """How many rounds a run was asked for; 0 if its settings are damaged."""
    train = settings.get("train")
    rounds = train.get("rounds") if isinstance(train, Mapping) else 0
    return rounds if isinstance(rounds, int) else 0


def _without_stopping(settings: Mapping) -> dict:
    """The settings without the privacy budget and early stopping, which decide only when a run ends; it may go on with
    others."""
    left = dict(settings)
    for table, key in (("privacy", "epsilon"), ("train", "early_stopping")):
        if isinstance(settings.get(table), Mapping) and key in settings[table]:
            left[table] = {name: value for name, value in settings[table].items() if name != key}
    return {name: value for name, value in left.items() if name != "privacy" or value}


def _digests(settings: Mapping) -> dict[str, str]:
    """Hashes of the settings that may not change in a run, by name. A run may stop earlier or later, and its data may
    be elsewhere, since their fingerprint is noted."""
    kept = {name: value for name, value in _without_stopping(settings).items() if name not in _ELSEWHERE}
    if isinstance(kept.get("train"), Mapping):
        kept["train"] = {name: value for name, value in kept["train"].items() if name != "rounds"}
    texts = {name: json.dumps(value, sort_keys=True, default=str) for name, value in kept.items()}
    return {name: hashlib.blake2b(text.encode(), digest_size=6).hexdigest() for name, text in texts.items()}


def first_difference(old: Mapping, new: Mapping, prefix: str = "") -> tuple[str, object, object] | None:
    """Returns the first key in which nested tables differ, with its value in each (None if one lacks it); None if they
    are equal."""
    for key in sorted({*old, *new}):
        before, now = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            inner = first_difference(before, now, f"{prefix}{key}.")
            if inner:
                return inner
        elif before != now:
            return f"{prefix}{key}", before, now
    return None
