"""The list of the files of an export with their checksums, so that a damaged or foreign file is refused by name."""

import hashlib
import json
import pathlib

from tffcl.errors import UserError

FORMAT = "tffcl export 1"  # must change if the meaning of files changes
NAME = "manifest.json"
_PLACES = ("file", "directory", "input", "output")  # keys of the manifest whose values are places in the export


def _sha256(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()


def _own_checksum(contents: dict) -> str:
    rest = {key: value for key, value in contents.items() if key != "sha256"}
    return _sha256(json.dumps(rest, sort_keys=True).encode())


def _files(directory: pathlib.Path) -> dict[str, pathlib.Path]:
    found = {}
    for path in sorted(directory.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise UserError(f"{path} is a link, pipe or device; an export holds plain files and directories only")
        if path.is_file():
            found[path.relative_to(directory).as_posix()] = path
    found.pop(NAME, None)
    return found


def write_manifest(directory: pathlib.Path, contents: dict):
    """Writes manifest.json with all files in the directory.

    Args:
      directory: The directory of the export.
      contents: Its contents beside `format`, `files` (`bytes` and `sha256` by path) and its own `sha256`.
    """
    files = {}
    for name, path in _files(directory).items():
        data = path.read_bytes()
        files[name] = {"bytes": len(data), "sha256": _sha256(data)}
    contents = {"format": FORMAT, **contents, "files": files}
    contents["sha256"] = _own_checksum(contents)
    (directory / NAME).write_text(json.dumps(contents, indent=2) + "\n", encoding="utf-8")


def read_manifest(directory: pathlib.Path) -> dict:
    """Reads manifest.json and checks that the directory holds exactly the listed files, unchanged.

    Raises:
      UserError: If a file is missing, damaged, foreign or of another version; the message names it.
    """
    path = directory / NAME
    if not path.is_file():
        raise UserError(f"{directory} holds no export: there is no {NAME} in it")
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
        kind, listed, own = contents["format"], dict(contents["files"]), contents["sha256"]
        checksums = {name: about["sha256"] for name, about in listed.items()}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"{path} is damaged, or no manifest of tffcl") from None
    if kind != FORMAT:
        raise UserError(f"{path} is of the format {kind!r}; this tffcl reads {FORMAT!r}")
    if own != _own_checksum(contents):
        raise UserError(f"{path} is damaged: it is not what tffcl export wrote")
    _check_places(contents, checksums, path)
    found = _files(directory)
    for name in listed:
        if name not in found:
            raise UserError(f"{directory / name} is missing")
        if _sha256(found[name].read_bytes()) != checksums[name]:
            raise UserError(f"{found[name]} is damaged: its SHA-256 is not the manifest's")
    for name in found:
        if name not in listed:
            raise UserError(f"{found[name]} is foreign: the manifest does not list it")
    return contents


def _is_described(table) -> bool:
    """Whether a table of the manifest has the entries of a file that are read."""
    if not (isinstance(table, dict) and {"file", "type"} <= set(table)):
        return False
    forms, check = table.get("forms", {}), table.get("check", {"input": "", "output": ""})
    inner = isinstance(check, dict) and {"input", "output"} <= set(check) and isinstance(forms, dict)
    return inner and all(isinstance(each, dict) for each in forms.values())


def _check_places(contents: dict, listed: dict, manifest: pathlib.Path):
    """Checks that tables are tables, and that every place in the manifest is one of its listed files, or a directory of
    such files."""
    described = {section: contents.get(section, {}) for section in ("values", "computations")}
    for section, tables in described.items():
        if not isinstance(tables, dict) or not all(_is_described(each) for each in tables.values()):
            raise UserError(f"{manifest} is damaged: {section} must be tables with file and type")
    if not isinstance(contents.get("versions", {}), dict):
        raise UserError(f"{manifest} is damaged: versions must be a table")
    if not described["computations"]:
        raise UserError(f"{manifest} is damaged: it names no computations")
    left = [(described, "")]
    while left:
        value, key = left.pop()
        if isinstance(value, dict):
            left += [(each, name) for name, each in value.items()]
        elif key in _PLACES:
            inside = isinstance(value, str) and any(name == value or name.startswith(f"{value}/") for name in listed)
            if not inside or ".." in value.split("/"):
                raise UserError(f"{manifest} is damaged: {key} is {value!r}; it must be one of the export's own files")
