"""The directory of a run: whose it is, and which of its files are the run's.

A directory is a run's by its marker, `run.json`, which is written before everything else and removed after it.
"""

import datetime
import importlib.metadata
import json
import pathlib
import re
import tempfile
import uuid
from collections.abc import Iterable, Mapping

import numpy as np
import tomli_w

from tffcl.errors import OVERWRITE, RESUME, UserError, tell
from tffcl.regular_files import check_replaceable, digest_of_file, opened, read_text, write_text
from tffcl.json_files import parse_toml
from tffcl.runs.run_marker import MARKER, NEWCOMERS, PUBLISHED, check_results, check_summary, digest_of, read_marker
from tffcl.runs.lock import LOCK, check_unlocked
from tffcl.validation import check_label

CHECKPOINTS, KEPT = "checkpoints", "kept"
LEDGER = "ledger.json"  # what was released of the clients, where no seed repeats its noise
FAILED = "failed.json"  # why a run of a comparison has none of the files of a finished one
_PICTURES = (
    "accuracy|progress|merging|clients|sizes|sweep|(labels|splits|representations|proximity|dendrogram|relatedness|centres).*"
)
# What a run and the commands on it leave behind: names of files in its directories, and of files beside them.
_DIRECTORIES = {
    CHECKPOINTS: r"round_\d{6,}(\.npz)?|[0-9a-f]{32}\.npy",
    KEPT: r"\d+\.\d+\.npz",
    "tensorboard": r"events\.out\.tfevents\..+",
    "figures": rf"({_PICTURES})\.(png|svg|pdf)",
    "history": r"\d{6,}\.npy",
}
_FILES = (
    "config.toml", "rounds.csv", "clients.csv", "summary.json", "clustering.npz", "report.html", "newcomers.csv",
    "newcomers.json", "representations.npz", "samples.npz", "published.json", "splits.csv", LEDGER, FAILED,
)  # fmt: skip
_RESULTS = ("config.toml", "rounds.csv", "clients.csv", "clustering.npz", "representations.npz", "samples.npz", "splits.csv")
# Of a run that has ended, and of clients that joined it then: they are not those of one that goes on.
_OF_THE_END = (
    "clients.csv", "clustering.npz", "representations.npz", "samples.npz", "splits.csv", "newcomers.csv", "newcomers.json",
)  # fmt: skip
# What other commands make of a directory; `run` there would put its own report in the place of theirs.
_OTHERS = {
    "comparison.toml": "a comparison", "sweep.toml": "a sweep", "search.json": "a search", "results/study.json": "a study",
    "manifest.json": "an export",
}  # fmt: skip


def check_claim(
    out: pathlib.Path, settings: Mapping, *, resume: bool, overwrite: bool, held: bool = False, longer: bool = False
):
    """Checks that `out` may become this run's.

    Args:
      out: The directory; it need not exist.
      settings: Of the run.
      resume: Whether a run that is there may be gone on with.
      overwrite: Whether a run that is there may be deleted.
      held: Whether this run holds the directory's lock already.
      longer: Whether a run that is there may be gone on with for more rounds than it was asked for.

    Raises:
      UserError: If it is a file, holds a run that may not be touched, is another one or runs, or holds files that are no run's.
    """
    try:
        _check_claim(out, settings, resume, overwrite, held, longer)
    except OSError as error:
        raise UserError(f"--out {shown(out)} cannot be used: {error.strerror or error}") from None


def _check_claim(out: pathlib.Path, settings: Mapping, resume: bool, overwrite: bool, held: bool, longer: bool):
    if resume and overwrite:
        raise UserError("resume goes on with the run that is there, overwrite deletes it; give one of the two")
    if "\0" in str(out):
        raise UserError(f"{str(out)!r} holds a NUL character, which no name of a file can")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; a run needs a directory")
    if not out.exists():
        _check_room_for(out)
    for name, what in _OTHERS.items():
        if (out / name).is_file():
            raise UserError(f"{out} holds {what} ({name}); a run of its own needs another directory")
    _check_kinds(out)
    if not held:
        check_unlocked(out)
    if not _is_runs(out):
        foreign = [name for name in (*_FILES, MARKER) if (out / name).exists()]
        foreign += [f"{CHECKPOINTS}/{path.name}" for path in (out / CHECKPOINTS).glob("round_*.npz")]
        if foreign:
            raise UserError(f"{out / foreign[0]} is no run's, and a run would write over it; move it, or give another directory")
        return
    begun = is_begun(out)
    if overwrite or not begun and not (resume and (out / "config.toml").is_file()):
        return
    if not resume:
        raise UserError(
            f"{out} holds a run already; {RESUME} goes on with it, {OVERWRITE} starts anew, or give another directory"
        )
    check_same(out, settings, longer=longer)
    check_summary(out)
    check_results(out, only=r"rounds\.csv|history/.*", missing=False)


def is_begun(out: pathlib.Path) -> bool:
    """Whether a run has left something in a directory, or released something; one that failed before that has not."""
    return any((out / name).is_file() for name in ("summary.json", LEDGER, FAILED)) or any(
        (out / CHECKPOINTS).glob("round_*.npz")
    )


def _check_room_for(out: pathlib.Path):
    """Raises OSError if the directory cannot be made: before anything is computed for it."""
    place = out.absolute().parent
    while not place.exists():
        place = place.parent
    if place.is_dir():  # else making the directory will say so
        pathlib.Path(tempfile.mkdtemp(prefix=".tffcl-", dir=place)).rmdir()


def place_in(out: pathlib.Path, *names: str) -> pathlib.Path:
    """Returns the directory of a run in that of several.

    Raises:
      UserError: If a name would lead out of it, or to a link: a run writes into its own directory alone.
    """
    place = out
    for name in names:
        check_label(name, "the name of a directory")
        place = place / name
        if place.is_symlink():
            raise UserError(f"{place} is a link, and runs are written through none: remove it, or give another directory")
    return place


def check_no_run(out: pathlib.Path, what: str, contents: str, keys: Iterable[str], written: Iterable[str]):
    """Checks that something of several runs may be made in a directory.

    Args:
      out: The directory; it need not exist.
      what: Shall be made, e.g. "a comparison".
      contents: Name of the file that says what is in the directory, TOML or JSON; who has written that may write the others.
      keys: That it has.
      written: Names of the other files.

    Raises:
      UserError: If the directory is a run's, or a file there is somebody else's.
    """
    try:
        if (out / MARKER).is_file() or (out / "summary.json").is_file():
            raise UserError(f"{shown(out)} holds a run; {what} needs another directory")
        foreign = [name for name in written if (out / name).exists()]
        if (out / contents).exists():
            foreign = [] if _has_keys(out / contents, keys) else [contents]
        elif any(out.glob("*/seed-*/config.toml")):  # of an earlier version, which wrote no contents
            foreign = []
    except OSError as error:
        raise UserError(f"--out {shown(out)} cannot be used: {error.strerror or error}") from None
    if foreign:
        raise UserError(f"{out / foreign[0]} is not of {what}, which would write over it; move it, or give another directory")


def _has_keys(file: pathlib.Path, keys: Iterable[str]) -> bool:
    try:
        text = read_text(file)
        found = json.loads(text) if file.suffix == ".json" else parse_toml(text)
        return isinstance(found, dict) and set(keys) <= set(found)
    except (OSError, ValueError, RecursionError):
        return False


def clear(out: pathlib.Path, *, but: str = ""):
    """Removes the run that is in a directory but for one file, and nothing else: what no run has written is named on standard
    error."""
    left = _remove(out, but) if out.is_dir() and _is_runs(out) else []
    if left:
        tell(f"not a run's, and left as they are: {', '.join(map(str, left))}")


def _check_kinds(out: pathlib.Path):
    """Raises UserError if a run's directory is a file, a file of it something else, or either is a link."""
    for name in _DIRECTORIES:
        if (out / name).is_symlink():
            raise UserError(f"{out / name} is a link, and a run writes through none: remove it, or give another directory")
        if (out / name).exists() and not (out / name).is_dir():
            raise UserError(f"{out / name} is a file; a run has a directory there: move it, or give another directory")
    names = [f"{name}/{path.name}" for name in (CHECKPOINTS, "history") for path in (out / name).glob("*.np[yz]")]
    for name in (*_FILES, MARKER, LOCK, *names):
        check_replaceable(out / name)


def _is_runs(out: pathlib.Path) -> bool:
    """Whether a run has written into the directory: there is a marker, the settings of an older run, or its checkpoints."""
    if (out / MARKER).is_file():
        return read_marker(out) is not None
    try:
        if "tffcl" in parse_toml(read_text(out / "config.toml"))["versions"]:
            return True
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return not (out / "config.toml").exists() and any(map(_is_checkpoint, (out / CHECKPOINTS).glob("round_*.npz")))


def _is_checkpoint(path: pathlib.Path) -> bool:
    try:
        with opened(path) as file, np.load(file, allow_pickle=False) as saved:
            return {"structure", "kept versions"} <= set(saved.files)
    except Exception:  # NumPy's and zipfile's errors for what is no archive are of a dozen types
        return False


def claim(
    out: pathlib.Path, settings: Mapping, data: Mapping[str, str], *, anew: bool, name: str = "", resume: bool = False
) -> str:
    """Makes `out` this run's: the marker first, then the settings and the versions of software in config.toml.

    Args:
      out: The directory, whose lock is held.
      settings: Of the run.
      data: The fingerprint of its data.
      anew: Whether what an earlier run has left is removed. What no run has written stays, and is named on standard error.
      name: Of the run, if its checkpoints or its ledger bear one and its marker is lost.
      resume: Whether what was released of the clients stays counted also where the run begins anew.

    Returns:
      The name of the run, which its checkpoints bear.
    """
    if anew:
        clear(out, but=LEDGER if resume else "")
    marker = read_marker(out) or {}
    files = marker.pop("files", {})  # those of a result that is made anew
    marker["files"] = {name: files[name] for name in (NEWCOMERS, PUBLISHED) if name in files}
    if not anew and _rounds_in_summary(out) < _rounds_of(settings):  # the result is of fewer rounds: the run has not ended
        for stale in ("summary.json", *_OF_THE_END):
            (out / stale).unlink(missing_ok=True)
            marker["files"].pop(stale, None)
        marker.pop("summary", None)
    begun = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    marker = {
        "tffcl run": name or uuid.uuid4().hex,
        "begun": begun,
        "data": dict(data),
        **marker,
        "settings": _digest(settings),
    }
    write_text(out / MARKER, json.dumps(marker, indent=1) + "\n")
    for path in [*out.iterdir(), *(path for name in _DIRECTORIES for path in (out / name).glob("*.partial"))]:
        if path.is_file() and _is_ours(path, out) and (path.suffix == ".partial" or "_temp" in path.name):
            path.unlink()  # of a process that was killed while it wrote
    packages = ("tffcl", "tensorflow-federated", "tensorflow", "numpy", "scipy", "scikit-learn")
    versions = {name: importlib.metadata.version(name) for name in packages}
    write_text(out / "config.toml", tomli_w.dumps({**settings, "versions": versions}))
    return marker["tffcl run"]


def write_summary(out: pathlib.Path, summary: Mapping):
    """Writes summary.json, whole or not at all, and into the marker, if there is one, that this and the other files are its result."""
    text = json.dumps(summary, indent=2) + "\n"
    marker = read_marker(out)
    if marker is not None:  # before the file: a process that is killed in between has no result yet
        results = [out / name for name in _RESULTS if (out / name).is_file()] + sorted((out / "history").glob("*.npy"))
        files = {path.relative_to(out).as_posix(): digest_of_file(path) for path in results}
        marker |= {"summary": digest_of(text.encode()), "files": {**marker.get("files", {}), **files}}
        write_text(out / MARKER, json.dumps(marker, indent=1) + "\n")
    write_text(out / "summary.json", text)


def write_result(out: pathlib.Path, name: str, contents: Mapping):
    """Writes a file of JSON that is made of a finished run, and into the marker, if there is one, that it is the run's."""
    text = json.dumps(contents, indent=2) + "\n"
    write_text(out / name, text)
    marker = read_marker(out)
    if marker is not None:
        marker["files"] = {**marker.get("files", {}), name: digest_of(text.encode())}
        write_text(out / MARKER, json.dumps(marker, indent=1) + "\n")


def check_unchanged_settings(out: pathlib.Path):
    """Raises UserError if config.toml says something else than the run was started with."""
    settings, marker = read_settings(out / "config.toml"), read_marker(out)
    if marker is not None and marker.get("settings", _digest(settings)) != _digest(settings):
        raise UserError(f"{out / 'config.toml'} is not as the run has written it; its results belong to other settings")


def _digest(settings: Mapping) -> str:
    return digest_of(json.dumps(settings, sort_keys=True, default=str).encode())


def _is_ours(path: pathlib.Path, out: pathlib.Path) -> bool:
    """Whether a run has such a file there."""
    name = path.name.removesuffix(".partial")
    if path.parent == out:
        return name in (*_FILES, MARKER) or re.fullmatch(r"rounds\.csv_temp\d+", name) is not None
    return re.fullmatch(_DIRECTORIES[path.parent.name], name) is not None


def _remove(out: pathlib.Path, but: str) -> list[pathlib.Path]:
    """Removes what a run has written but for one file, its marker at the end; returns what else there is in its directories."""
    left = []
    for name in _DIRECTORIES:
        if not (out / name).is_dir():
            continue
        for path in sorted((out / name).iterdir()):
            if path.is_file() and _is_ours(path, out):
                path.unlink()
            else:
                left.append(path)
        if not any((out / name).iterdir()) and not (out / name).is_symlink():
            (out / name).rmdir()
    for path in sorted(out.iterdir(), key=lambda each: each.name == MARKER):
        if path.is_file() and _is_ours(path, out) and path.name != but:
            path.unlink()
        elif path.name not in (*_DIRECTORIES, LOCK, but):
            left.append(path)
    return left


def check_same(out: pathlib.Path, settings: Mapping, *, longer: bool = False):
    """Raises UserError if the run in `out` has other settings, naming the first that differs; it may have fewer rounds if `longer`."""
    old, new = _without_budget(read_settings(out / "config.toml")), _without_budget(settings)
    if longer and 0 < _rounds_of(old) < _rounds_of(new):
        old = {**old, "train": {**old["train"], "rounds": _rounds_of(new)}}
    difference = first_difference(old, new)
    if difference:
        key, before, now = difference
        if longer and key == "train.rounds":
            raise UserError(
                f"{out} holds a run of {before} rounds, not {now}; it goes on for as many or more, or give another directory (for a result "
                f"after {now} rounds begin with these, and resume with more; until= stops a run before its end)"
            )
        raise UserError(
            f"{out} holds another run: its {key} is {before!r}, not {now!r}; resume with its own settings, "
            f"start anew with {OVERWRITE}, or give another directory"
        )


def _rounds_of(settings: Mapping) -> int:
    """How many rounds a run was asked for; 0 where its settings are damaged."""
    train = settings.get("train")
    rounds = train.get("rounds") if isinstance(train, Mapping) else 0
    return rounds if isinstance(rounds, int) else 0


def _rounds_in_summary(out: pathlib.Path) -> int:
    """How many rounds the result in a directory is of; 0 where there is none."""
    rounds = (check_summary(out) or {}).get("rounds")
    return rounds if isinstance(rounds, int) else 0


def _without_budget(settings: Mapping) -> dict:
    """The settings without the privacy budget, which decides when a run ends and nothing else: it may be raised."""
    privacy = {key: value for key, value in settings.get("privacy", {}).items() if key != "epsilon"}
    others = {key: value for key, value in settings.items() if key != "privacy"}
    return {**others, **({"privacy": privacy} if privacy else {})}


def read_settings(file: pathlib.Path) -> dict:
    """Reads the settings in a config.toml, as they stand there.

    Raises:
      UserError: If there is none, or it is damaged.
    """
    try:
        settings = parse_toml(read_text(file))
    except FileNotFoundError:
        raise UserError(f"{file} is missing, so that nobody knows what was run; {OVERWRITE} starts anew") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is damaged: {error}; {OVERWRITE} starts anew") from None
    settings.pop("versions", None)
    return settings


def shown(path: pathlib.Path) -> str:
    """Returns a path as a message can hold it: a long one shortened."""
    text = str(path)
    return text if len(text) <= 150 else f"{text[:70]}...{text[-70:]}"


def first_difference(old: Mapping, new: Mapping, prefix: str = "") -> tuple[str, object, object] | None:
    """Returns the first key in which nested tables differ, with the value in each, None where it has none; None if none does."""
    for key in sorted({*old, *new}):
        before, now = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            inner = first_difference(before, now, f"{prefix}{key}.")
            if inner:
                return inner
        elif before != now:
            return f"{prefix}{key}", before, now
    return None
