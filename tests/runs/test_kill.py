"""Killed by SIGKILL at moments that a seed draws: resumed, runs, a sweep and a study end as if nothing had been."""

import csv
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time
import uuid

import pytest

SETTINGS = {
    "train": {"rounds": 4, "clients_per_round": 6, "local_epochs": 1},
    "partition": {"clients": 12},
    "model": {"hidden": 8},
    "evaluation": {"every": 2},
    "checkpoint": {"every": 2},
}
FLT = {"encoder": "digits", "encoder_examples": 200, "encoder_epochs": 1, "fine_tune_epochs": 0}
STUDY = """title = "A study"
paper = "none"
table = "none"
[columns.digits]
task = "demo_digits"
set.dataset.validation = 0.2
[tuning]
rounds = 0.5
[rows.FedAvg]
method = "fedavg"
measure = "global"
tune = {learning_rate = [0.01, 0.1]}
published = {digits = "none"}
[rows.Ditto]
method = "ditto"
measure = "cluster"
published = {digits = "none"}
"""
WORK = {
    "flt": [
        "run",
        "demo_digits",
        "--algorithm",
        "flt",
        "--shards=2",
        *(f"--set=algorithms.flt.{key}={value}" for key, value in FLT.items()),
    ],
    "search": [  # fmt: skip
        "sweep",
        "demo_digits",
        "--algorithm",
        "fedavg",
        "--over",
        "learning_rate=0.01,0.1",
        "--select",
        "cluster",
        "--halving",
        "2",
        "--fresh-seeds",
        "1",
        "--set=dataset.validation=0.2",
    ],
    "study": ["study", "own_study.toml"],
}
# A run that groups once, with files of an encoder; and several runs, which a search has as a sweep and a comparison
# have them. One whose clients keep models is killed in test_stocfl_runs.
MOMENTS = {"flt": 1, "search": 1, "study": 1}

# Ends itself as `kill -9` would, some milliseconds after it has touched a file below its OUT for the n-th time; tells
# how often it did.
KILLED = """
import functools, os, signal, sys, threading
place, moment, delay, *command = sys.argv[1:]
touched = 0

def watch(event, arguments):
    global touched
    if event in ("open", "os.rename", "os.remove", "os.mkdir") and arguments and str(arguments[0]).startswith(place):
        touched += 1
        if touched == int(moment):
            if float(delay):
                threading.Timer(float(delay), os.kill, (os.getpid(), signal.SIGKILL)).start()
            else:
                os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(watch)
from tffcl.clients import client_state
# Nothing stays in memory.
client_state.KeptStore.__init__ = functools.partialmethod(client_state.KeptStore.__init__, memory_bytes=0)
from tffcl.lab.cli.main import main
code = main(command)
print("touched", touched)
sys.exit(code)
"""


class Place:
    """A directory in which commands run, with a data directory and temporary files of their own."""

    def __init__(self, directory: pathlib.Path):
        self.directory, self.temporary, self.tag = directory, directory / "tmp", uuid.uuid4().hex
        self.temporary.mkdir()
        (directory / "own_study.toml").write_text(STUDY)
        self.environment = {
            **os.environ,
            "TMPDIR": str(self.temporary),
            "TFFCL_DATA_DIR": str(directory / "data"),
            "TAG": self.tag,
        }

    def call(self, name: str, out: str, moment: int = 0, delay: float = 0.0, again: bool = False):
        """Runs a command; returns its exit code, what it printed and what it said."""
        settings = [
            f"--set={section}.{key}={value}" for section, table in SETTINGS.items() for key, value in table.items()
        ]
        more = ["--resume"] if again and name != "study" else []
        command = [*WORK[name], *settings, "--out", str(self.directory / out), *more]
        start = [sys.executable, "-c", KILLED, str(self.directory / out), str(moment), str(delay)]
        return subprocess.run(
            [*start, *command], cwd=self.directory, env=self.environment, capture_output=True, text=True
        )

    def left_processes(self) -> list[int]:
        """Processes that a command has started and that live, after some seconds in which they may end."""
        deadline = time.monotonic() + 20
        while (found := self._processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    def _processes(self) -> list[int]:
        found = []
        for process in pathlib.Path("/proc").iterdir():
            try:
                ours = process.name.isdecimal() and f"TAG={self.tag}".encode() in (process / "environ").read_bytes()
                if ours and not re.search(r"\) [ZX] ", (process / "stat").read_text()):
                    found.append(int(process.name))
            except OSError:  # it has ended since, or is another user's
                continue
        return found


def results_of(out: pathlib.Path) -> dict:
    """All that the runs below a directory gave, by file, without times."""
    found = {}
    for path in sorted(out.rglob("*")):
        name = path.relative_to(out).as_posix()
        if path.name == "summary.json":
            found[name] = {key: value for key, value in json.loads(path.read_text()).items() if key != "seconds"}
        elif path.name in ("rounds.csv", "clients.csv", "sweep.csv"):
            with open(path, newline="") as file:
                found[name] = [{key: row[key] for key in row if "seconds" not in key} for row in csv.DictReader(file)]
        elif path.name == "batch.json":
            found[name] = json.loads(path.read_text())
        elif path.suffix == ".npy" or path.parent.name == "checkpoints":
            found[name] = path.name
    return found


def leftovers(out: pathlib.Path) -> list[pathlib.Path]:
    """Files that were half written when a process ended, and locks."""
    return [
        path for path in out.rglob("*") if "_temp" in path.name or path.suffix == ".partial" or path.name == "run.lock"
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What each command gives when nobody ends it, and how often it touches a file: `name -> (place, results,
    touched)`.
    """
    known, place = {}, Place(tmp_path_factory.mktemp("whole"))

    def run(name):
        if name not in known:
            done = place.call(name, name)
            assert done.returncode == 0, done.stderr[-2000:]
            known[name] = results_of(place.directory / name), int(done.stdout.split("touched ")[1])
        return place, *known[name]

    return run


def moments(name: str) -> list:
    rng = random.Random(name)
    return [(rng.random(), rng.choice([0.0, 0.0, 0.3 * rng.random()])) for _ in range(MOMENTS[name])]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, share, delay",
    [(name, *moment) for name in WORK for moment in moments(name)],
    ids=lambda value: f"{value:.3}",
)
def test_killed_at_any_moment_it_ends_as_if_nothing_had_been(whole, name, share, delay):
    place, expected, touched = whole(name)
    out = f"{name}-{share}-{delay}"
    moment = 1 + int(share * touched)
    killed = place.call(name, out, moment, delay)
    assert killed.returncode in (-signal.SIGKILL, 0), killed.stderr[-2000:]  # 0: at its very end it was faster
    assert not place.left_processes()
    done = place.call(name, out, again=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert results_of(place.directory / out) == expected
    assert not leftovers(place.directory / out) and not [*place.temporary.iterdir()]
    assert not place.left_processes()
