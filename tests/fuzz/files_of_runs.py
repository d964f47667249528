"""Damaged files of runs and of exports, and whether what was read of them is what was written."""

import contextlib
import dataclasses
import io
import json
import pathlib
import random
import shutil
from collections.abc import Mapping

import numpy as np

import tffcl
from tests.fuzz import command
from tests.fuzz.command import Case
from tffcl.clients.client_state import KeptStates
from tffcl.export import manifest
from tffcl.lab.reporting import report
from tffcl.lab.tasks import resolve
from tffcl.runs import run_files
from tffcl.runs.run_directory import CONFUSION, SAMPLES

_SETTINGS = {
    "train": {"rounds": 3, "clients_per_round": 3, "local_epochs": 1},
    "partition": {"clients": 8},
    "model": {"hidden": 4},
    "evaluation": {"every": 1},
    "checkpoint": {"every": 1},
}


_NEWEST = "checkpoints/round_000002.npz"  # of those that were stopped


_NO_CHECKSUM = (".csv", ".json", ".toml")


def resolved(method: str):
    return resolve.resolve("demo_digits", method, overrides=_SETTINGS)


def make_runs(place: pathlib.Path) -> dict[str, pathlib.Path]:
    """Makes a run with a tree and one whose clients keep something, each finished and stopped before; returns their
    directories.
    """
    found = {}
    for method in ("pacfl", "ditto"):
        stopped, finished = place / f"{method}-stopped", place / method
        tffcl.run(resolved(method), stopped, show_progress=False, until=2)
        shutil.copytree(stopped, finished)
        tffcl.run(resolved(method), finished, resume=True, show_progress=False)
        found |= {method: finished, stopped.name: stopped}
    return found


def damage(path: pathlib.Path, rng: random.Random) -> str:
    """Does something to a file; says what."""
    data = bytearray(path.read_bytes())
    kind = rng.choice(
        ["bits", "bits", "bits", "cut", "cut", "empty", "lost", "zeros", "garbage", "directory", "line", "longer"]
    )
    if kind in ("bits", "cut", "zeros", "line") and not data:
        kind = "longer"
    if kind == "bits":
        places = [
            rng.randrange(len(data) if rng.random() < 0.5 else min(len(data), 300))
            for _ in range(rng.choice([1, 1, 4]))
        ]
        bits = [1 << rng.randrange(8) for _ in places]
        for place, bit in zip(places, bits, strict=True):
            data[place] ^= bit
        kind = f"bits {bits} at {places}"
    elif kind == "cut":
        data = data[: rng.randrange(len(data))]
        kind = f"cut to {len(data)}"
    elif kind == "empty":
        data = b""
    elif kind == "zeros":
        start = rng.randrange(len(data))
        data[start : start + 512] = bytes(len(data[start : start + 512]))
        kind = f"zeros from {start}"
    elif kind == "garbage":
        data = rng.choice(
            [b"{", b"[]", b"null", b"{}", b"\xff\xfe", b"a,b\n1,2\n", b"[" * 5000, b"PK\x03\x04", b"\x93NUMPY\x01\x00"]
        )
        kind = f"garbage {data[:20]!r}"
    elif kind == "line":
        lines = bytes(data).splitlines(keepends=True)
        lines.insert(rng.randrange(len(lines)), rng.choice(lines))
        data = b"".join(lines)
        kind = "a line twice"
    elif kind == "longer":
        data += b"\0\1\2"
    path.unlink()
    if kind == "directory":
        path.mkdir()
    elif kind != "lost":
        path.write_bytes(bytes(data))
    return kind


def equal(found, expected) -> bool:
    """Whether two values are the same, whatever they are nested in; directories and times do not count."""
    if dataclasses.is_dataclass(expected):
        names = [field.name for field in dataclasses.fields(expected) if field.name != "path"]
        return type(found) is type(expected) and all(
            equal(getattr(found, name), getattr(expected, name)) for name in names
        )
    if isinstance(expected, Mapping):
        return (
            isinstance(found, Mapping)
            and set(found) == set(expected)
            and all(equal(found[key], expected[key]) for key in found)
        )
    if isinstance(expected, (list, tuple)):
        return isinstance(found, (list, tuple)) and len(found) == len(expected) and all(map(equal, found, expected))
    if isinstance(expected, np.ndarray):
        numbers = expected.dtype.kind == "f"
        return (
            found is not None and found.dtype == expected.dtype and np.array_equal(found, expected, equal_nan=numbers)
        )
    return found == expected or expected != expected and found != found


# --- What reads a run ---


def _read(out, method):
    with contextlib.redirect_stdout(io.StringIO()):
        return run_files.read_run(out), report.plain_table(out).to_csv()


def _load(out, method):
    found = tffcl.load_run(out)
    return found.round_number, _Plain(found.state)


class _Plain:
    """A state whose kept values are read at once."""

    def __init__(self, state):
        # What clients keep is read when it is asked for, and the directory will be gone.
        self.values = {field.name: _whole(getattr(state, field.name)) for field in dataclasses.fields(state)}


def _whole(value):
    return [*value.of(range(8))] if isinstance(value, KeptStates) else value


def _resume(out, method):
    found = tffcl.run(resolved(method.removesuffix("-stopped")), out, resume=True, show_progress=False)
    on_disk = json.loads((out / "summary.json").read_text())
    return [
        {key: each[key] for key in ("accuracy", "clusters", "traffic", "notes", "rounds")}
        for each in (found.summary, on_disk)
    ]


_COMMANDS = {"report": _read, "load": _load, "resume": _resume}


def _commands(run: str) -> dict:
    """What reads a run; of one that was stopped there is no report."""
    return {name: call for name, call in _COMMANDS.items() if name != "report" or not run.endswith("-stopped")}


def run_cases(runs: Mapping[str, pathlib.Path], scratch: pathlib.Path, count: int, seed: int):
    """Yields what came of damaged files of finished runs."""
    rng, whole = random.Random(seed), {}
    for method, directory in runs.items():
        for name, call in _commands(method).items():
            shutil.copytree(directory, scratch / "run")
            whole[method, name] = call(scratch / "run", method)
            shutil.rmtree(scratch / "run")
        if method.endswith("-stopped"):
            shutil.copytree(directory, scratch / "run")
            (scratch / "run" / _NEWEST).unlink()
            whole[method, "earlier"] = _load(scratch / "run", method)
            shutil.rmtree(scratch / "run")
    for _ in range(count):
        method = rng.choice(list(runs))
        name = rng.choice(list(_commands(method)))
        out = shutil.copytree(runs[method], scratch / "run")
        paths = sorted(path for path in out.rglob("*") if path.is_file() and path.parent.name != "figures")
        kinds = sorted({(path.parent.name if path.parent != out else path.name) for path in paths})
        chosen = rng.choice(kinds)  # each file of the run as often as all of a directory together
        path = rng.choice([path for path in paths if chosen in (path.name, path.parent.name)])
        done = damage(path, rng)
        ended = command.reading(lambda: _COMMANDS[name](out, method))
        reason = _reason(ended, whole[method, name])
        if not reason and (name, done, path) == ("load", "lost", out / _NEWEST):
            reason = _reason(ended, whole[method, "earlier"]) and "an earlier round"
        if not reason and ended.kind == "accepted" and (path.suffix in _NO_CHECKSUM or path.parent.name == "history"):
            reason = "as written"
        if not reason and ended.kind == "accepted" and done == "lost" and path.name in (CONFUSION, SAMPLES):
            reason = "left out"
        yield Case(f"run directories, {name}", f"{method} {path.relative_to(out)}: {done}", ended, reason)
        shutil.rmtree(out)


def _reason(ended: command.Outcome, expected) -> str:
    if ended.kind != "accepted":
        return ""
    found = ended.value
    if isinstance(expected, tuple) and isinstance(expected[1], _Plain):
        found, expected = (found[0], found[1].values), (expected[0], expected[1].values)
    return "same" if equal(found, expected) else ""


# --- What reads an export ---


def export_cases(export: pathlib.Path, scratch: pathlib.Path, count: int, seed: int):
    """Yields what came of damaged files of an export, whose manifest is read before anything of it is loaded."""
    rng, whole = random.Random(seed), manifest.read_manifest(export)
    for _ in range(count):
        out = shutil.copytree(export, scratch / "export")
        paths = sorted(path for path in out.rglob("*") if path.is_file())
        path = out / manifest.NAME if rng.random() < 0.4 else rng.choice(paths)
        done = damage(path, rng)
        if rng.random() < 0.1:
            (out / "foreign.pb").write_bytes(b"")
            done += ", and a foreign file"
        ended = command.reading(lambda: manifest.read_manifest(out))
        reason = "same" if ended.kind == "accepted" and ended.value == whole else ""
        yield Case("exports", f"{path.relative_to(out)}: {done}", ended, reason)
        shutil.rmtree(out)
