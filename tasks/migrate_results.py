"""Brings kept results of studies to the files of today.

    python tasks/migrate_results.py [DIRECTORY]    # default: tasks/results

A change of what a run or a study writes adds a step below. Steps find nothing to do where they have been done.
"""

import pathlib
import sys
import tomllib

import tomli_w

from tffcl.files import read_json, read_table, write_json, write_small_json, write_small_numbers
from tffcl.lab.reporting.batch_index import INDEX
from tffcl.lab.tasks.resolve import load_run_config


def all_settings(results: pathlib.Path):
    """A run's config.toml has every setting, those that are as by default too."""
    for file in sorted(results.rglob("config.toml")):
        values = tomllib.loads(file.read_text(encoding="utf-8"))
        settings = load_run_config(file.parent).as_dict()
        file.write_text(tomli_w.dumps({**settings, "versions": values["versions"]}), encoding="utf-8")


def small_json(results: pathlib.Path):
    """A kept run's JSON has no line breaks or spaces, which are a third of its characters, and five digits of a
    fraction; the index of a study has all its digits, and no settings, which are in each run's config.toml."""
    for name in ("summary.json", "newcomers.json", "failed.json"):
        for file in sorted(results.rglob(name)):
            write_small_json(file, read_json(file))
    for file in sorted(results.rglob(INDEX)):
        index = read_json(file)
        for cell in index.get("cells", ()):
            cell.pop("set", None)
        write_json(file, index, indent=None)


def small_rounds(results: pathlib.Path):
    """A kept run's rounds have five digits of a fraction."""
    for file in sorted(results.rglob("rounds.csv")):
        write_small_numbers(file, read_table(file, ["round"]))


def few_deciles(results: pathlib.Path):
    """Deciles are those of the clients' test accuracies and metrics, by cluster and after local training."""
    for name in ("summary.json", "newcomers.json"):
        for file in sorted(results.rglob(name)):
            found = read_json(file)
            _drop_deciles(found, everywhere=name == "newcomers.json")
            write_small_json(file, found)


def _drop_deciles(found: dict, everywhere: bool):
    if everywhere:
        found.pop("deciles", None)
    for key, value in found.items():
        if isinstance(value, dict):
            _drop_deciles(value, everywhere or key in ("participants", "all", "validation"))


STEPS = (all_settings, small_json, small_rounds, few_deciles)

if __name__ == "__main__":
    directory = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "results"
    for step in STEPS:
        step(directory)
