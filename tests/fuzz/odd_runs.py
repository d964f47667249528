"""Runs whose files are no files, links, or forged: what reads them ends in a line, and nothing is written elsewhere."""

import io
import json
import os
import pathlib
import random
import shutil
import socket
from collections.abc import Callable, Mapping

import numpy as np

import tffcl
from tests.fuzz import command
from tests.fuzz.command import Case
from tests.fuzz.files_of_runs import resolved
from tffcl.lab.cli.main import main

# --- What is no file ---


def pipe(path, victim):
    os.mkfifo(path)


def bound(path, victim):
    before = os.getcwd()
    os.chdir(path.parent)  # the name of a socket is short
    socket.socket(socket.AF_UNIX).bind(path.name)
    os.chdir(before)


def sparse(path, victim):
    path.touch()
    os.truncate(path, 2**31)


ODD: Mapping[str, Callable] = {
    "a pipe": pipe,
    "a socket": bound,
    "a directory": lambda path, victim: path.mkdir(),
    "a link to /dev/zero": lambda path, victim: path.symlink_to("/dev/zero"),
    "a link to /dev/full": lambda path, victim: path.symlink_to("/dev/full"),
    "a link to a file of the user": lambda path, victim: path.symlink_to(victim),
    "a link to itself": lambda path, victim: path.symlink_to(path),
    "a link to nowhere": lambda path, victim: path.symlink_to("/nowhere/at/all"),
    "another name of a file of the user": lambda path, victim: os.link(victim, path),
    "2 GiB of zeros": sparse,
    "a terminal": lambda path, victim: path.symlink_to("/dev/tty"),
}
_MADE = [
    "report.html",
    "run.lock",
    "run.json.partial",
    "summary.json.partial",
    "report.html.partial",
    "figures/accuracy.png",
    "newcomers.csv",
]
_COMMANDS = {
    "report": lambda out, method: main(["report", str(out)]),
    "newcomers": lambda out, method: main(["newcomers", str(out)]),
    "load": lambda out, method: tffcl.load_run(out) and None,
    "resume": lambda out, method: tffcl.run(resolved(method), out, resume=True, show_progress=False) and None,
    "overwrite, refused or begun": lambda out, method: tffcl.run(
        resolved(method), out, overwrite=True, show_progress=False, until=1
    ),
}


def odd_cases(runs: Mapping[str, pathlib.Path], scratch: pathlib.Path, count: int, seed: int):
    """Yields what came of finished runs of which one file is none, or leads elsewhere."""
    rng, victim = random.Random(seed), scratch / "victim"
    for _ in range(count):
        method, name = rng.choice(list(runs)), rng.choice(list(_COMMANDS))
        out = shutil.copytree(runs[method], scratch / "odd")
        victim.write_text("mine\n")
        files = [path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()]
        file = rng.choice(sorted({*files, *_MADE}))
        kind = rng.choice(list(ODD))
        (out / file).parent.mkdir(exist_ok=True)
        (out / file).unlink(missing_ok=True)
        ODD[kind](out / file, victim)
        ended = command.outcome(lambda: _COMMANDS[name](out, method))
        reason = "" if victim.read_text() == "mine\n" and _quiet(ended.said) else "written through"
        if ended.kind == "accepted" and not reason:
            reason = "untouched"  # by this command, or replaced by a new file
        elif reason:
            ended = command.Outcome("traceback", f"{reason}: {ended.said}")
        yield Case(f"what is no file, {name}", f"{method} {file}: {kind}", ended, reason)
        shutil.rmtree(out)


def _quiet(said: str) -> bool:
    return all(letter.isprintable() or letter in "\n\r" for letter in said)


# --- What is forged ---

_ODD_VALUES = [
    None,
    [],
    {},
    "",
    "=cmd|' /C calc'!A0",
    "\x1b[31m\n\u202e<svg onload=alert(1)>",
    -1,
    0,
    1e20,
    -1e308,
    float("nan"),
    float("inf"),
    10**400,
    True,
    [[[1]]],
    {"a": 1},
    "9" * 5000,
    0.5,
    [None],
    ["\x1b"],
    2**63,
]
_ODD_CELLS = ["", "nan", "inf", "-1", "1e20", "1e999", "9" * 5000, "a", "\x1b[2J", "0.5", "-0", "=1+1", "<b>", "１"]


def _leaves(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield from _leaves(each, (*path, key))


def forged_json(path: pathlib.Path, rng: random.Random) -> str:
    """Exchanges or removes a value anywhere in a file of JSON; says what."""
    contents = json.loads(path.read_text())
    at = rng.choice([each for each in _leaves(contents) if each])
    place = contents
    for key in at[:-1]:
        place = place[key]
    if rng.random() < 0.2:
        del place[at[-1]]
        done = "removed"
    else:
        place[at[-1]] = value = rng.choice(_ODD_VALUES)
        done = repr(value)[:40]
    path.write_text(json.dumps(contents))
    return f"{'.'.join(map(str, at))} {done}"


def forged_csv(path: pathlib.Path, rng: random.Random) -> str:
    """Exchanges a cell of a table."""
    lines = [line.split(",") for line in path.read_text().splitlines()]
    row = rng.randrange(len(lines))
    column = rng.randrange(len(lines[row]))
    lines[row][column] = value = rng.choice(_ODD_CELLS)
    path.write_text("\n".join(map(",".join, lines)) + "\n")
    return f"row {row}, column {column}: {value[:20]!r}"


def forged_arrays(path: pathlib.Path, rng: random.Random) -> str:
    """Exchanges, reshapes or removes an array of an archive."""
    with np.load(path) as archive:
        arrays = dict(archive)
    name = rng.choice(list(arrays))
    array = arrays[name]
    kind = rng.choice(["nan", "text", "short", "flat", "empty", "gone", "huge", "negative", "deep"])
    made = {
        "nan": lambda: np.full(array.shape, np.nan),
        "text": lambda: np.full(array.shape, "\x1b[31m"),
        "short": lambda: array[:-1],
        "flat": lambda: array.ravel(),
        "empty": lambda: np.zeros(0),
        "huge": lambda: np.full(array.shape, 1e300),
        "negative": lambda: np.full(array.shape, -7),
        "deep": lambda: array[None],
    }
    if kind == "gone":
        del arrays[name]
    elif array.ndim or kind not in ("short", "flat"):
        arrays[name] = made[kind]()
    np.savez(path, **arrays)
    return f"{name}: {kind}"


_FORGERS = {".json": forged_json, ".csv": forged_csv, ".npz": forged_arrays}


def forged_cases(runs: Mapping[str, pathlib.Path], scratch: pathlib.Path, count: int, seed: int):
    """Yields what came of reports of finished runs whose results were forged."""
    rng = random.Random(seed)
    for _ in range(count):
        method = rng.choice(list(runs))
        out = shutil.copytree(runs[method], scratch / "forged")
        kinds = [path for path in sorted(out.iterdir()) if path.suffix in _FORGERS and path.name != "run.json"]
        path = rng.choice([*kinds, out / "summary.json", out / "summary.json"])
        done = _FORGERS[path.suffix](path, rng)
        shown = io.StringIO()
        ended = command.outcome(lambda: main(["report", str(out)]), shown)
        page = (out / "report.html").read_text() if (out / "report.html").exists() else ""
        if not _quiet(ended.said + shown.getvalue()) or "\x1b" in page or "<svg onload" in page or "\u202e" in page:
            ended = command.Outcome("traceback", f"raw characters: {ended.said}{shown.getvalue()}")
        yield Case(
            "forged results", f"{method} {path.name}: {done}", ended, "forged" if ended.kind == "accepted" else ""
        )
        shutil.rmtree(out)
