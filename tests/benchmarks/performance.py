"""Runs benchmarks and writes their tables into tasks/results/PERFORMANCE.md, between marks; all else stays as it is.

    uv run python tests/benchmarks/performance.py [NAME ...] [--list] [--pfl-python PYTHON] [--torch-python PYTHON]
        [--flower-python PYTHON] [--fedjax-python PYTHON]

Without names all that are listed run, one after the other; peers take part whose Python is given. Every table stands
below its command and the machine that it was measured on, so that the next one can be compared with it. A mark that the
file does not have yet is added at its end.
"""

import argparse
import importlib.metadata
import os
import pathlib
import platform
import re
import shlex
import subprocess
import sys

FOLDER = pathlib.Path(__file__).parent
TABLES = FOLDER.parents[1] / "tasks" / "results" / "PERFORMANCE.md"
ROUNDS = "memory.py pacfl_fmnist_label_skew_20 {} --rounds 500 --every 50"
BENCHMARKS = {
    "ten-large-clients": "rounds.py {torch} {flower} {pfl} {fedjax}",
    "500-small-clients": "small_clients.py --repeats 3 {pfl} {fedjax}",
    "50-clients-of-2000": "small_clients.py --clients 50 --examples 2000 --model mlp --repeats 3 {pfl} {fedjax}",
    "clients-by-number": "small_clients.py --clients 50 500 5000 50000 --methods fedavg --repeats 1",
    "500-rounds-fedavg": ROUNDS.format("fedavg"),
    "500-rounds-pacfl": ROUNDS.format("pacfl"),
    "steps": "local_steps.py {torch}",
    "many-clients": "many_clients.py",
    "signatures": "signatures.py",
}


def machine() -> str:
    """The processor and the versions that a table was measured with."""
    info = pathlib.Path("/proc/cpuinfo").read_text()
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("tensorflow", "numpy"))
    name = re.search(r"model name\s*: (.*)", info)[1]
    return f"{len(os.sched_getaffinity(0))} cores of {name}, Python {platform.python_version()}, {versions}"


def measured(command: str) -> str:
    """Runs a benchmark; returns its command, the machine and what it printed."""
    script, *arguments = shlex.split(command)
    told = subprocess.run(
        [sys.executable, str(FOLDER / script), *arguments], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()
    shown = re.sub(r"(--\w+-python) \S+", r"\1 PYTHON", f"tests/benchmarks/{command}")
    table = told if "|---" in told else f"```\n{told}\n```"
    return f"`{shown}`, {machine()}:\n\n{table}"


def put(text: str, name: str, table: str) -> str:
    """Returns the text with a table between the marks of its name."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    whole = f"{begin}\n{table}\n{end}"
    if begin not in text:
        return f"{text.rstrip()}\n\n{whole}\n"
    before, _, rest = text.partition(begin)
    return before + whole + rest.partition(end)[2]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[*BENCHMARKS, []], default=[])
    parser.add_argument("--list", action="store_true", help="prints the names and commands")
    peers = ("pfl", "torch", "flower", "fedjax")
    for peer in peers:
        parser.add_argument(f"--{peer}-python")
    options = parser.parse_args()
    given = {peer: getattr(options, f"{peer}_python") for peer in peers}
    flags = {peer: f"--{peer}-python {shlex.quote(python)}" if python else "" for peer, python in given.items()}
    for name in options.names or BENCHMARKS:
        command = " ".join(BENCHMARKS[name].format(**flags).split())
        if options.list:
            print(f"{name}: {command}")
        else:
            TABLES.write_text(put(TABLES.read_text(), name, measured(command)))
            print(f"{name} is written", flush=True)


if __name__ == "__main__":
    main()
