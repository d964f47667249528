"""Settings of a study's methods, chosen by accuracy on validation examples, with the same number of trials for each cell."""

import dataclasses
import functools
import hashlib
import itertools
import json
import math
import pathlib
import shutil
from collections.abc import Callable, Mapping

from tffcl.errors import UserError
from tffcl.json_files import read_json, telling_damage, write_json
from tffcl.lab.batches import sweep
from tffcl.lab.batches.study_files import Cell, Tuning, slug
from tffcl.lab.batches.study_plan import RESULTS, RUNS, StudyPlan, StudyRun, plan, resolve, settings_of
from tffcl.lab.tasks import task_file
from tffcl.lab.tasks.resolve import method_key
from tffcl.runs.run_directory import RunDirectory

TUNED = "tuned.json"
_TRIALS = "trials"


@dataclasses.dataclass(frozen=True, eq=False)
class _Trial:
    """One point of a cell: its values by key, and its run."""

    values: Mapping
    run: StudyRun


def tuned(planned: StudyPlan, out: pathlib.Path, run_trials: Callable[[StudyPlan], int]) -> StudyPlan:
    """Chooses the settings of the cells that say over which values.

    Each point of a cell is run once, with the seed and the share of the rounds of `Study.tuning`; the best accuracy on
    validation examples wins, the first of equal ones. Test examples decide nothing. What was chosen, and every point's
    accuracy, is kept in `OUT/results/tuned.json`, so that nothing is run twice, also where another machine goes on.

    Args:
      planned: The study.
      out: Its directory.
      run_trials: Runs all runs of a plan, returns how many have no summary.

    Returns:
      The study with the chosen values among the cells' own. A cell all of whose points diverge is missing, and says so.

    Raises:
      UserError: If a cell's runs hold no validation examples out, or a value is wrong.
    """
    file = out / RESULTS / TUNED
    known = read_json(file) if file.is_file() else {}
    trials = {cell.name: _trials(cell, planned) for cell in planned.cells if cell.tune and not cell.missing}
    marks = {name: _mark(own) for name, own in trials.items()}
    with telling_damage(file):
        wanted = [name for name in trials if known.get(name, {}).get("mark") != marks[name]]
    if wanted:
        runs = tuple(trial.run for name in wanted for trial in trials[name])
        run_trials(dataclasses.replace(planned, cells=(), places=(), seeds=(planned.study.tuning.seed,), runs=runs))
        for name in wanted:
            known[name] = {"mark": marks[name], "points": _points(trials[name], planned.study.tuning, out)}
        write_json(file, known, sort_keys=True)
        shutil.rmtree(out / RESULTS / _TRIALS, ignore_errors=True)  # the one file says what a reader wants to know of them
    with telling_damage(file):
        cells = tuple(
            _with_best(cell, known[cell.name]["points"]) if cell.name in trials else cell for cell in planned.study.cells
        )
    names = [cell.name for cell in planned.cells]
    changed = dataclasses.replace(planned.study, cells=cells)
    return plan(changed, only=names, seeds=planned.seeds, rounds=planned.rounds, overrides=planned.overrides)


def points(cell: Cell) -> list[dict]:
    """Returns the settings among which a cell's are chosen: all combinations of its values, by their keys with section.

    Raises:
      UserError: For a key that is none of the method's or of [train].
    """
    keys = [method_key(key, cell.method) for key in cell.tune]
    return [dict(zip(keys, values, strict=True)) for values in itertools.product(*cell.tune.values())]


def _trials(cell: Cell, planned: StudyPlan) -> list[_Trial]:
    tuning, found = planned.study.tuning, []
    for number, chosen in enumerate(points(cell)):
        overrides = task_file.merged(planned.overrides, _nested(chosen))
        config = resolve(cell, tuning.seed, planned.rounds, overrides)
        if not config.dataset.get("validation"):
            raise UserError(f"{cell.name} is tuned, which needs validation examples, e.g. set.dataset.validation = 0.1")
        rounds = max(1, math.ceil(config.train.rounds * tuning.rounds - 1e-9))
        every = dataclasses.replace(config.evaluation, every=rounds)  # its end alone decides
        config = dataclasses.replace(config, train=dataclasses.replace(config.train, rounds=rounds), evaluation=every)
        title = f"{cell.column} / {cell.row}, trial {', '.join(f'{key} = {value}' for key, value in chosen.items())}"
        place = pathlib.PurePath(_TRIALS, slug(cell.column), slug(cell.row), str(number))
        found.append(_Trial(chosen, StudyRun(place, config, title, newcomers=False)))
    return found


def _nested(values: Mapping) -> Mapping:
    return functools.reduce(task_file.merged, (sweep.nested(key, value) for key, value in values.items()), {})


def _mark(trials: list[_Trial]) -> str:
    """What trials were of: their settings, as one short text."""
    settings = [settings_of(trial.run.config) for trial in trials]
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _points(trials: list[_Trial], tuning: Tuning, out: pathlib.Path) -> list[dict]:
    points = []
    for trial in trials:
        summary = RunDirectory(out / RUNS / trial.run.directory).summary()
        score = summary["validation"][tuning.select] if summary else {}
        points.append({"values": dict(trial.values), "validation": score.get("mean")})
    return points


def _with_best(cell: Cell, points: list[dict]) -> Cell:
    able = [point for point in points if point["validation"] is not None]
    if not able:
        return dataclasses.replace(cell, tune={}, missing=f"all {len(points)} settings that were tried failed or diverged")
    best = max(able, key=lambda point: point["validation"])
    return dataclasses.replace(
        cell, tune={}, tuned=best["values"], overrides=task_file.merged(cell.overrides, _nested(best["values"]))
    )
