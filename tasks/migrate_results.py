"""Brings kept results of studies to the files of today.

    python tasks/migrate_results.py [DIRECTORY]    # default: tasks/results

A change of what a run or a study writes adds a step below. Steps find nothing to do where they have been done.
"""

import json
import pathlib
import sys
import tomllib

import tomli_w

from tffcl.lab.batches import study_file, study_plan
from tffcl.lab.reporting.batch_index import INDEX, write_index
from tffcl.lab.tasks.resolve import load_run_config


def all_settings(results: pathlib.Path):
    """A run's config.toml has every setting, those that are as by default too."""
    for file in sorted(results.rglob("config.toml")):
        values = tomllib.loads(file.read_text(encoding="utf-8"))
        settings = load_run_config(file.parent).as_dict()
        file.write_text(tomli_w.dumps({**settings, "versions": values["versions"]}), encoding="utf-8")


def one_index(results: pathlib.Path):
    """What `study.json` and `tuned.json` said, `batch.json` says."""
    for file in sorted(results.glob("*/study.json")):
        noted = json.loads(file.read_text(encoding="utf-8"))
        chosen, tuned = file.parent / "tuned.json", {}
        if chosen.is_file():
            planned = study_plan.plan(
                study_file.load_study(noted["study"]), seeds=noted["seeds"], rounds=noted["rounds"]
            )
            known = json.loads(chosen.read_text(encoding="utf-8"))
            cells = {cell.name: cell for cell in planned.cells}
            # A choice is of what the study says today, or its cell is gone.
            tuned = {
                name: {"mark": study_plan.mark(cells[name], planned), "points": each["points"]}
                for name, each in known.items()
                if name in cells
            }
            chosen.unlink()
        write_index(file.parent, "study", {**noted, "tuned": tuned})
        file.unlink()
        print(f"{file} is {INDEX} now")


STEPS = (all_settings, one_index)

if __name__ == "__main__":
    directory = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "results"
    for step in STEPS:
        step(directory)
