"""The marker of a run, `run.json`: that a directory is a run's, of which data, and which files are its result."""

import hashlib
import json
import pathlib
import re
from collections.abc import Mapping

from tffcl import regular_files
from tffcl.errors import OVERWRITE, RESUME, UserError
from tffcl.json_files import parse_toml

MARKER = "run.json"
NEWCOMERS, PUBLISHED = "newcomers.json", "published.json"  # made of a finished run
SAMPLES = "samples.npz"  # examples of clients, which whoever has the run may delete
_ANEW = f"put the file back as it was, or run it anew with {OVERWRITE}"
_AGAIN = {NEWCOMERS: "tffcl newcomers makes it again"}


def read_marker(out: pathlib.Path) -> dict | None:
    """Reads the marker in a directory; None if there is none.

    Raises:
      UserError: If it is damaged, or something else of the same name.
    """
    file = out / MARKER
    if not file.exists():
        return None
    contents = regular_files.read_bytes(file)
    try:
        marker = json.loads(contents)
        if not (isinstance(marker, dict) and isinstance(marker["tffcl run"], str)):
            raise ValueError("it does not name a run")
        data = marker.get("data", {})
        if not (isinstance(data, Mapping) and all(isinstance(each, str) for each in data.values())):
            raise ValueError("its data are not those of a run")
        for name, digest in dict(marker.get("files", {})).items():
            if not isinstance(digest, str) or pathlib.PurePosixPath(name).is_absolute() or ".." in name.split("/"):
                raise ValueError("its files are not those of a run")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{file} is damaged, or not a run's ({error}); remove it, or give another directory") from None
    return marker


def digest_of(contents: bytes) -> str:
    """Returns what a marker notes of a file."""
    return hashlib.sha256(contents).hexdigest()


def check_results(out: pathlib.Path, *, only: str = "", missing: bool = True):
    """Checks that the files of a finished run are those that its marker notes; a run of an earlier version has noted none.

    Args:
      out: Its directory.
      only: Those whose name matches this regular expression alone; default all.
      missing: Whether they must be there.

    Raises:
      UserError: Naming one that is missing or another.
    """
    for name, digest in (read_marker(out) or {}).get("files", {}).items():
        file = out / name
        gone = not file.exists() and (not missing or name == SAMPLES)
        if only and not re.fullmatch(only, name) or gone:
            continue
        if not file.exists():
            raise UserError(f"{file} is missing; {_AGAIN.get(name, _ANEW)}")
        if regular_files.digest_of_file(file) != digest:
            raise UserError(f"{file} is not as the run has written it; {_AGAIN.get(name, _ANEW)}")


def check_summary(out: pathlib.Path) -> dict | None:
    """Reads the result of the run in a directory; None if it has none.

    Raises:
      UserError: If summary.json is damaged, or is not what this run has written.
    """
    file = out / "summary.json"
    if not file.exists():
        return None
    contents = regular_files.read_bytes(file)
    try:
        summary = json.loads(contents)
        if not isinstance(summary, dict):
            raise ValueError("it is not a table of names and values")
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is damaged: {error}; without it, {RESUME} makes it again") from None
    marker = read_marker(out)
    if marker is not None:
        if marker.get("summary") != digest_of(contents):
            raise UserError(f"{file} is not the result of the run in this directory; without it, {RESUME} goes on with the run")
    elif differs := _other_run(out, summary):
        raise UserError(f"{file} is the result of another run: {differs}; without it, {RESUME} goes on with the run")
    return summary


def _other_run(out: pathlib.Path, summary: dict) -> str:
    """What a summary says otherwise than the config.toml beside it; "" if nothing, or if there is no config.toml."""
    try:
        settings = parse_toml(regular_files.read_text(out / "config.toml"))
    except (OSError, ValueError, RecursionError):
        return ""
    for key in ("task", "algorithm", "seed"):
        if key in settings and key in summary and summary[key] != settings[key]:
            return f"its {key} is {summary[key]!r}, not {settings[key]!r}"
    return ""
