"""The directory of a run: whose it is, and which of its files are the run's."""

import importlib.metadata
import pathlib
import shutil
import tomllib
from collections.abc import Mapping

import tomli_w

from tffcl.errors import UserError

CHECKPOINTS, KEPT = "checkpoints", "kept"
FAILED = "failed.json"  # why a run of a comparison has none of the files of a finished one
_DIRECTORIES = (CHECKPOINTS, KEPT, "tensorboard", "figures", "history")
# What a run and the commands on it leave behind, beside directories.
_FILES = (
    "config.toml", "rounds.csv", "clients.csv", "summary.json", "clustering.npz", "report.html", "newcomers.csv",
    "newcomers.json", "representations.npz", "splits.csv", FAILED,
)  # fmt: skip


def check_claim(out: pathlib.Path, settings: Mapping, *, resume: bool, overwrite: bool):
    """Checks that `out` may become this run's.

    Raises:
      UserError: If it is a file, or holds a run that may not be touched or is another one.
    """
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; --out must be a directory")
    begun = any((out / name).is_file() for name in ("summary.json", FAILED)) or any((out / CHECKPOINTS).glob("round_*.npz"))
    if overwrite or not begun:  # one that failed before its first checkpoint has left nothing
        return
    if resume:
        check_same(out, settings)
    else:
        raise UserError(f"{out} holds a run already; --resume goes on with it, --overwrite starts anew, or give another --out")


def claim(out: pathlib.Path, settings: Mapping, *, overwrite: bool):
    """Makes `out` this run's, and writes its settings and the versions of software into config.toml."""
    file = out / "config.toml"
    if overwrite and file.is_file():
        for name in _DIRECTORIES:
            shutil.rmtree(out / name, ignore_errors=True)
        for name in _FILES:
            (out / name).unlink(missing_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    packages = ("tffcl", "tensorflow-federated", "tensorflow", "numpy", "scipy", "scikit-learn")
    versions = {name: importlib.metadata.version(name) for name in packages}
    file.write_text(tomli_w.dumps({**settings, "versions": versions}), encoding="utf-8")


def check_same(out: pathlib.Path, settings: Mapping):
    """Raises UserError if the run in `out` has other settings, naming the first that differs."""
    old = tomllib.loads((out / "config.toml").read_text(encoding="utf-8"))
    old.pop("versions", None)
    difference = _first_difference(_without_budget(old), _without_budget(settings))
    if difference:
        key, before, now = difference
        raise UserError(
            f"{out} holds another run: its {key} is {before!r}, not {now!r}; resume with its own settings, or give another --out"
        )


def _without_budget(settings: Mapping) -> dict:
    """The settings without the privacy budget, which decides when a run ends and nothing else: it may be raised."""
    privacy = {key: value for key, value in settings.get("privacy", {}).items() if key != "epsilon"}
    others = {key: value for key, value in settings.items() if key != "privacy"}
    return {**others, **({"privacy": privacy} if privacy else {})}


def _first_difference(old: Mapping, new: Mapping, prefix=""):
    for key in sorted({*old, *new}):
        before, now = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            inner = _first_difference(before, now, f"{prefix}{key}.")
            if inner:
                return inner
        elif before != now:
            return f"{prefix}{key}", before, now
    return None
