"""What a redesign leaves as it is: numbers of short runs of every method, lists, tables, the page, RESULTS.md.

    python -m tests.oracles.golden make DIR       # before the first step
    python -m tests.oracles.golden compare DIR    # after each; prints what differs, exits with 1 if something does

Everything goes through the command line, so that no module's name is needed. Seconds and versions are left out.
"""

import argparse
import difflib
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import numpy as np

ROOT = pathlib.Path(__file__).parents[2]
TASK = f"""
extends = "{ROOT / "tests/conformance/digits.toml"}"
train.rounds = 3

[algorithms.flux]
warm_up_rounds = 1
[algorithms.ifca]
num_clusters = 2
[algorithms.clove]
num_clusters = 2
[algorithms.fedsem]
num_clusters = 2
[algorithms.flis_dc]
threshold = 0.7
[algorithms.stocfl]
projection = 256
[algorithms.flt]
encoder = "digits"
encoder_epochs = 1
encoder_examples = 200
fine_tune_epochs = 1
num_neighbors = 3
"""
LISTS = """
import contextlib, io, json, runpy, sys
KINDS = "algorithms datasets partitions models signatures trainings aggregations encoders".split()
def said(*arguments):
    sys.argv = ["tffcl", "list", *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
        runpy.run_module("tffcl", run_name="__main__")
    return text.getvalue()
found = {"all": said()}
for kind in KINDS:
    for line in said(kind).splitlines():
        if line.startswith("  ") and line.split():
            found[f"{kind}/{line.split()[0]}"] = said(kind, line.split()[0])
json.dump(found, sys.stdout)
"""
# Kept in no golden file: they differ from run to run, say which installation ran, or are newer than files that were
# made before.
CHANGING = re.compile(r"second|version|started|host|created|largest_cluster", re.IGNORECASE)


def tffcl(*arguments) -> str:
    """Runs a command of the checkout's package; returns what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "160"}
    command = [sys.executable, "-m", "tffcl", *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-2000:]}")
    return done.stdout


def steady(value):
    """Leaves out of nested containers what changes from run to run."""
    if isinstance(value, dict):
        return {key: steady(item) for key, item in value.items() if not CHANGING.search(key)}
    return [steady(item) for item in value] if isinstance(value, list) else value


def steady_rows(path: pathlib.Path) -> str:
    """A CSV file without the columns that change from run to run."""
    rows = [line.split(",") for line in path.read_text(encoding="utf-8").splitlines()]
    stays = [place for place, name in enumerate(rows[0]) if not CHANGING.search(name)]
    return "\n".join(",".join(row[place] for place in stays if place < len(row)) for row in rows) + "\n"


def models_of(run: pathlib.Path) -> str:
    """A digest of each array of models in a run's newest checkpoint."""
    newest = max((run / "checkpoints").glob("round_*.npz"))
    with np.load(newest) as arrays:
        names = sorted(name for name in arrays.files if "models" in name)
        return "".join(f"{hashlib.sha256(arrays[name].tobytes()).hexdigest()} {arrays[name].shape}\n" for name in names)


def put(path: pathlib.Path, text: str):
    """Writes a file and the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def lists(to: pathlib.Path):
    """`tffcl list`, and what it says of every name, by one process."""
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder) / "lists.py"
        put(script, LISTS)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "160"}
        found = json.loads(
            subprocess.run([sys.executable, script], env=environment, stdout=subprocess.PIPE, check=True).stdout
        )
    for name, text in found.items():
        put(to / "list" / f"{name}.txt", text)


def numbers(to: pathlib.Path, kept: pathlib.Path):
    """Two seeds of every method; the comparison is left in `kept` for its report."""
    with tempfile.TemporaryDirectory() as folder:
        task = pathlib.Path(folder) / "golden.toml"
        put(task, TASK)
        algorithms = (line.split()[0] for line in tffcl("list", "algorithms").splitlines() if line.startswith("  "))
        tffcl("compare", task, "--algorithms", ",".join(algorithms), "--seeds", "0,1", "--out", kept)
    for summary in sorted(kept.glob("*/seed-*/summary.json")):
        run, place = summary.parent, to / "numbers" / summary.parent.relative_to(kept)
        put(
            place / "summary.json", json.dumps(steady(json.loads(summary.read_text())), indent=1, sort_keys=True) + "\n"
        )
        for name in ("rounds.csv", "clients.csv"):
            put(place / name, steady_rows(run / name))
        put(place / "models.txt", models_of(run))


def reports(to: pathlib.Path, kept: pathlib.Path):
    """The tables in all formats and the page of a kept comparison."""
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "kept"
        shutil.copytree(kept, copy)
        put(to / "report.txt", tffcl("report", copy, "--format", "csv,md,latex").replace(folder, ""))
        for path in [*copy.glob("table.*"), copy / "report.html"]:
            put(to / "report" / path.name, path.read_text(encoding="utf-8").replace(folder, ""))


def results(to: pathlib.Path):
    """RESULTS.md and the league's page of the committed runs."""
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "results"
        shutil.copytree(ROOT / "tasks/results", copy)
        tffcl("results", copy)
        put(
            to / "RESULTS.md",
            (copy.parent / "RESULTS.md").read_text(encoding="utf-8").replace(pathlib.Path(folder).name, ""),
        )
        put(to / "league.html", (copy / "league.html").read_text(encoding="utf-8"))


def make(to: pathlib.Path, kept: pathlib.Path):
    """Writes everything below `to`; `kept` is a comparison that is there, or where one is made."""
    results(to)
    lists(to)
    fresh = kept if not kept.exists() else to.parent / "fresh"
    numbers(to, fresh)
    reports(to, kept)


def compare(golden: pathlib.Path) -> int:
    """Makes everything anew and prints what differs."""
    with tempfile.TemporaryDirectory() as folder:
        now = pathlib.Path(folder) / "golden"
        make(now, golden.parent / "kept")
        names = sorted({path.relative_to(base) for base in (golden, now) for path in base.rglob("*") if path.is_file()})
        wrong = 0
        for name in names:
            texts = [
                (base / name).read_text(encoding="utf-8") if (base / name).is_file() else "" for base in (golden, now)
            ]
            if texts[0] != texts[1]:
                wrong += 1
                lines = difflib.unified_diff(*(text.splitlines() for text in texts), "before", "now", lineterm="", n=0)
                print(name, *(f"  {line[:200]}" for line in list(lines)[2:8]), sep="\n")
        print(f"{len(names)} files compared, {wrong} differ")
    return int(bool(wrong))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("make", "compare"))
    parser.add_argument("directory", type=pathlib.Path)
    options = parser.parse_args()
    if options.what == "compare":
        sys.exit(compare(options.directory / "golden"))
    make(options.directory / "golden", options.directory / "kept")
