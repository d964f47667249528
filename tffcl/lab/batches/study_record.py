"""`study.json`: what the results of a study mean, and whose they are."""

import json
import pathlib
from collections.abc import Mapping

from tffcl.csv_files import read_text
from tffcl.errors import UserError
from tffcl.json_files import write_json
from tffcl.lab.batches.study_plan import RESULTS, RUNS, SMALL_FILES, StudyPlan, plain
from tffcl.lab.reporting.settings import flatten
from tffcl.lab.reporting.study_table import CONTENTS
from tffcl.lab.tasks import resolve as configs
from tffcl.runs.run_directory import RunDirectory, check_no_run, place_in

_UNCHANGING = ("evaluation.", "checkpoint.")  # settings that change nothing of what is trained


def claim(planned: StudyPlan, out: pathlib.Path, overwrite: bool):
    """Checks that the directory is this study's, and writes what its results mean."""
    file = out / RESULTS / CONTENTS
    before = _read_before(file)
    if not file.exists():
        check_no_run(out / RESULTS, "a study", CONTENTS, [], ["table.csv", "table.md"])
    if before and before["study"] != planned.study.name:
        raise UserError(f"{out} holds the study {before['study']}, not {planned.study.name}; give another --out")
    if overwrite:
        for each in planned.runs:
            RunDirectory(out / RUNS / each.directory).clear()
            for name in SMALL_FILES:
                (out / RESULTS / each.directory / name).unlink(missing_ok=True)
    undecided = {place for cell, place in zip(planned.cells, planned.places, strict=True) if cell.tune}
    for each in planned.runs:
        if each.place in undecided:  # its settings are not chosen yet; it is checked as soon as they are
            continue
        place_in(out, RESULTS, *each.directory.parts)
        RunDirectory(place_in(out, RUNS, *each.directory.parts)).check_claim(each.config.as_dict(), resume=True, overwrite=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    contents = _contents(planned)
    if before:  # cells and seeds of an earlier --only or --seeds stay
        told = {(cell["column"], cell["row"]): cell for cell in before["cells"]}
        waiting = {(cell.column, cell.row) for cell in planned.cells if cell.tune}
        contents["cells"] = [told.get(_name(cell), cell) if _name(cell) in waiting else cell for cell in contents["cells"]]
        names = set(map(_name, contents["cells"]))
        contents["cells"] += [cell for name, cell in told.items() if name not in names]
        order = [(cell.column, cell.row) for cell in planned.study.cells]
        contents["cells"].sort(key=lambda cell: order.index(_name(cell)))
        contents["seeds"] = sorted({*contents["seeds"], *before["seeds"]})
    write_json(file, contents)


def _name(cell: Mapping) -> tuple[str, str]:
    return cell["column"], cell["row"]


def _read_before(file: pathlib.Path) -> dict | None:
    """What an earlier call has noted of this study; None if there was none."""
    if not file.exists():
        return None
    contents = read_text(file)
    try:
        before = json.loads(contents)
        [(cell["column"], cell["row"]) for cell in before["cells"]], before["study"], {*before["seeds"]}
        return before
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{file} is damaged: {type(error).__name__} {error}; without it, the runs are still there") from None


def _contents(planned: StudyPlan) -> dict:
    study = planned.study
    # A run's task with all of its rounds, for "50 of 200".
    whole = {}
    for cell, place in zip(planned.cells, planned.places, strict=True):
        if place is not None and place not in whole:
            whole[place] = configs.resolve(cell.task, cell.method, overrides=cell.overrides).train.rounds
    return {
        "study": study.name,
        "title": study.title,
        "paper": study.paper,
        "table": study.table,
        "page": study.page,
        "note": study.note,
        "published_is": study.published_is,
        "layout": study.layout,
        "about": dict(study.about),
        "rounds": planned.rounds,
        "seeds": list(planned.seeds),
        "cells": [
            {
                "column": cell.column,
                "row": cell.row,
                "task": pathlib.Path(cell.task).stem,
                "method": cell.method,
                "measure": cell.measure,
                "accuracy": cell.accuracy,
                "target": cell.target,
                "megabits_a_round": cell.megabits_a_round,
                "published": list(cell.published),
                "missing": cell.missing,
                "directory": None if place is None else place.as_posix(),
                "paper_rounds": whole.get(place),
                "set": plain(cell.overrides),
                "changed": [key for key in sorted(flatten(planned.overrides)) if not key.startswith(_UNCHANGING)],
                "tuned": dict(cell.tuned),
            }
            for cell, place in zip(planned.cells, planned.places, strict=True)
        ],
    }
