"""The marker of a run, `run.json`: that a directory is a run's, of which data, and which files are its result."""

import hashlib
import json
import pathlib
import re
import tomllib

from tffcl.errors import UserError

MARKER = "run.json"
_ANEW = "put a copy of then there, or run it anew with --overwrite"


def read_marker(out: pathlib.Path) -> dict | None:
    """Reads the marker in a directory; None if there is none.

    Raises:
      UserError: If it is damaged, or something else of the same name.
    """
    file = out / MARKER
    if not file.exists():
        return None
    try:
        marker = json.loads(file.read_text(encoding="utf-8"))
        if not (isinstance(marker, dict) and isinstance(marker["tffcl run"], str)):
            raise ValueError("it does not name a run")
        for name, digest in dict(marker.get("files", {})).items():
            if not isinstance(digest, str) or pathlib.PurePosixPath(name).is_absolute() or ".." in name.split("/"):
                raise ValueError("its files are not those of a run")
    except IsADirectoryError:
        raise UserError(f"{file} is a directory; it must be a file") from None
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
        if only and not re.fullmatch(only, name) or not (missing or file.exists()):
            continue
        if not file.exists():
            raise UserError(f"{file} is missing; {_ANEW}")
        if not file.is_file() or digest_of(file.read_bytes()) != digest:
            raise UserError(f"{file} is not as the run has written it; {_ANEW}")


def check_summary(out: pathlib.Path) -> dict | None:
    """Reads the result of the run in a directory; None if it has none.

    Raises:
      UserError: If summary.json is damaged, or is not what this run has written.
    """
    file = out / "summary.json"
    if not file.exists():
        return None
    try:
        contents = file.read_bytes()
        summary = json.loads(contents)
        if not isinstance(summary, dict):
            raise ValueError("it is not a table of names and values")
    except IsADirectoryError:
        raise UserError(f"{file} is a directory; it must be a file") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is damaged: {error}; without it, --resume makes it again") from None
    marker = read_marker(out)
    if marker is not None:
        if marker.get("summary") != digest_of(contents):
            raise UserError(f"{file} is not the result of the run in this directory; without it, --resume goes on with the run")
    elif differs := _other_run(out, summary):
        raise UserError(f"{file} is the result of another run: {differs}; without it, --resume goes on with the run")
    return summary


def _other_run(out: pathlib.Path, summary: dict) -> str:
    """What a summary says otherwise than the config.toml beside it; "" if nothing, or if there is no config.toml."""
    try:
        settings = tomllib.loads((out / "config.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    for key in ("task", "algorithm", "seed"):
        if key in settings and key in summary and summary[key] != settings[key]:
            return f"its {key} is {summary[key]!r}, not {settings[key]!r}"
    return ""
