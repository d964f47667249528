"""A paper's table or figure, run: each cell's method on its task for each seed, resumable at any point, cheapest first."""

import dataclasses
import json
import math
import pathlib
import shutil
import sys
import tomllib
import traceback
from collections.abc import Mapping, Sequence

import tomli_w

from tffcl import runtime
from tffcl.errors import UserError
from tffcl.experiments import compare, joining, tasks
from tffcl.experiments import config as configs
from tffcl.experiments.clock import Clock, Job, ended
from tffcl.experiments.config import RunConfig
from tffcl.experiments.study_files import Cell, Study, chosen, slug
from tffcl.reporting.study_table import CONTENTS
from tffcl.runner.directory import CHECKPOINTS, FAILED, KEPT, check_claim, clear
from tffcl.runner.lock import locked
from tffcl.runner.train import Interrupted

RUNS, RESULTS, TRIALS = "runs", "results", "trials.json"
_SMALL_FILES = ("rounds.csv", "summary.json", "config.toml", "newcomers.json", FAILED)
_NEWCOMERS = ("unseen_cluster", "unseen_local")


@dataclasses.dataclass(frozen=True, eq=False)
class StudyRun:
    """One method on one task with one seed, which gives a number to one cell or more.

    Attributes:
      place: Its directory in those of all runs and of all results, without the seed's.
      config: What is run.
      title: What progress calls it.
      newcomers: Whether held-out clients join it at its end.
    """

    place: pathlib.PurePath
    config: RunConfig
    title: str
    newcomers: bool

    @property
    def directory(self) -> pathlib.PurePath:
        """Of the run, in that of all runs and of all results."""
        return self.place / f"seed-{self.config.seed}"


@dataclasses.dataclass(frozen=True)
class StudyPlan:
    """A study before it runs.

    Attributes:
      study: What it is.
      cells: Those that were asked for.
      places: For each of them where its runs are; None where it cannot be run.
      seeds: Of the runs.
      rounds: What was asked for: a share of each task's rounds, or their number.
      runs: All of them, without their order.
    """

    study: Study
    cells: tuple[Cell, ...]
    places: tuple[pathlib.PurePath | None, ...]
    seeds: tuple[int, ...]
    rounds: float
    runs: tuple[StudyRun, ...]

    @property
    def missing(self) -> dict[str, list[str]]:
        """The cells that cannot be run, by why."""
        reasons: dict[str, list[str]] = {}
        for cell in self.cells:
            if cell.missing:
                reasons.setdefault(cell.missing, []).append(cell.name)
        return reasons


def plan(
    study: Study, *, only: Sequence[str] = (), seeds: Sequence[int] = (), rounds: float = 1, overrides: Mapping | None = None
) -> StudyPlan:
    """Puts the configurations of all runs together, so that a wrong value is refused before anything runs.

    Args:
      study: What `study_files.load_study` gave.
      only: Which cells, see `study_files.chosen`; default all.
      seeds: Default the study's.
      rounds: Up to 1 a share of each task's rounds, from 2 on their number.
      overrides: Nested tables that replace the tasks' values, for all runs.

    Raises:
      UserError: For a pattern that fits no cell, a wrong number of rounds, or as `config.resolve`.
    """
    if not (0 < rounds <= 1 or (rounds >= 2 and float(rounds).is_integer())):
        raise UserError(f"--rounds {rounds:g} must be a share of each task's rounds, above 0 to 1, or a whole number from 2")
    seeds = tuple(seeds) or study.seeds
    if len(set(seeds)) < len(seeds):
        raise UserError("--seeds names a seed twice; give each once")
    cells, places, runs, known = chosen(study, only), [], {}, {}
    for cell in cells:
        if cell.missing:
            places.append(None)
            continue
        resolved = [_resolve(cell, seed, rounds, overrides or {}) for seed in seeds]
        # Cells of one setting, as an accuracy and its variance, are of the same runs.
        place = known.setdefault(_identity(resolved[0]), _free(pathlib.PurePath(slug(cell.column), slug(cell.row)), known))
        places.append(place)
        for config in resolved:
            joins = cell.measure in _NEWCOMERS or (place, config.seed) in runs and runs[place, config.seed].newcomers
            title = f"{cell.column} / {cell.row}, seed {config.seed}"
            before = runs.get((place, config.seed))
            runs[place, config.seed] = StudyRun(place, config, before.title if before else title, joins)
    return StudyPlan(study, tuple(cells), tuple(places), seeds, rounds, tuple(runs.values()))


def _free(place: pathlib.PurePath, known: Mapping[str, pathlib.PurePath]) -> pathlib.PurePath:
    """The place, with a number behind it if cells of other settings have a name that directories cannot tell from this one's."""
    same = sum(
        each == place or each.name.startswith(f"{place.name}~") and each.parent == place.parent for each in known.values()
    )
    return place.with_name(f"{place.name}~{same + 1}") if same else place


def _identity(config: RunConfig) -> str:
    return json.dumps(config.as_dict(), sort_keys=True, default=str)


def _resolve(cell: Cell, seed: int, rounds: float, overrides: Mapping) -> RunConfig:
    changed = tasks.merged(cell.overrides, overrides)
    config = configs.resolve(cell.task, cell.method, seed=seed, overrides=changed)
    if rounds == 1:
        return config
    fewer = int(rounds) if rounds >= 2 else max(1, math.ceil(config.train.rounds * rounds - 1e-9))
    train = dataclasses.replace(config.train, rounds=fewer)
    # Where fewer rounds are run than lie between two evaluations there is one at the end.
    return dataclasses.replace(config, train=train)


def run_study(
    planned: StudyPlan,
    out: str | pathlib.Path,
    *,
    data_dir: str | None = None,
    overwrite: bool = False,
    keep_checkpoints: bool = False,
    show_progress: bool = True,
    workers: runtime.RemoteWorkers | None = None,
) -> int:
    """Runs what a study lacks. The same call goes on wherever an earlier one was ended.

    `OUT/results/` has the small files of every run and `study.json`; it can be copied to `tasks/results/NAME`. `OUT/runs/` has
    the rest.

    Args:
      planned: What to run.
      out: Directory of the study.
      data_dir: Where data sets are.
      overwrite: Runs that are there are deleted.
      keep_checkpoints: Keep what only resuming and exporting need of finished runs, too.
      show_progress: Estimates, a line and a bar a run on standard error.
      workers: As in `run.run`; estimates are of this machine's own worker.

    Returns:
      How many runs failed; the others went on.

    Raises:
      UserError: If `out` holds another study, or this one with other settings.
    """
    out = pathlib.Path(out)
    with locked(out):
        return _run_all(planned, out, data_dir, overwrite, keep_checkpoints, show_progress, workers)


def _run_all(
    planned: StudyPlan, out: pathlib.Path, data_dir, overwrite: bool, keep_checkpoints: bool, show_progress: bool, workers
) -> int:
    """The runs of a study, in a directory whose lock is held; returns how many failed."""
    _claim(planned, out, overwrite)
    clock, order = _timed(planned, out, data_dir, show_progress)
    failed, ran = 0, False
    for each, job in order:
        state = ended(job.place)
        clock.announce(job, state)
        if state != "diverged":
            if ran and not state and not workers:
                runtime.renew_local_worker()
            failure = _run(each, out, data_dir, show_progress, workers)
            ran |= not state
            if failure:
                print(f"tffcl: {each.title} failed: {failure}", file=sys.stderr)
        _keep(each, out, keep_checkpoints)
        failed += not (out / RESULTS / each.directory / "summary.json").is_file()
        clock.finished(job)
    return failed


def _timed(planned: StudyPlan, out: pathlib.Path, data_dir: str | None, show: bool) -> tuple[Clock, list[tuple[StudyRun, Job]]]:
    """The runs seed by seed, the cheapest of each seed first, and the clock that has said what they will take."""
    jobs = [Job(each.title, each.config, out / RUNS / each.directory) for each in planned.runs]
    places = [tasks.task_directory() / "results", out / RESULTS]
    clock = Clock(jobs, places, show=show)
    clock.try_unknown(data_dir, out / TRIALS, patient=True)
    pairs = list(zip(planned.runs, jobs, strict=True))
    order = sorted(pairs, key=lambda pair: (planned.seeds.index(pair[0].config.seed), clock.estimate(pair[1])))
    for reason, names in planned.missing.items():
        clock.say(f"not available: {', '.join(names)}: {reason}")
    clock.begin([job for _, job in order])
    return clock, order


def _run(each: StudyRun, out: pathlib.Path, data_dir: str | None, show_progress: bool, workers=None) -> str:
    """Runs one run to its end, newcomers included; returns why it failed, "" if it has not."""
    place = out / RUNS / each.directory
    try:
        if not ended(place):
            how = {"data_dir": data_dir, "show_progress": show_progress, "workers": workers}
            compare.run_or_note(each.config, place, resume=True, **how)
        joins = each.newcomers and ended(place) == "finished"
        if joins and not (place / "newcomers.json").is_file():
            joining.join_newcomers(place, data_dir=data_dir, show_progress=show_progress)
    except Interrupted:
        raise Interrupted(f"stopped in {each.title}; the same command goes on") from None
    except UserError as error:  # of one run, as data that are not there; the study's others go on
        return _note(each, out, str(error))
    except Exception as error:  # a fault of ours in one cell must not cost a night: the others go on, and it is told in full
        traceback.print_exc()
        return _note(each, out, f"{type(error).__name__}: {error}")
    return ""


def _note(each: StudyRun, out: pathlib.Path, reason: str) -> str:
    """Writes into the results why a run failed; the same command tries it again. Returns the reason."""
    results = out / RESULTS / each.directory
    results.mkdir(parents=True, exist_ok=True)
    about = {"algorithm": each.config.algorithm, "seed": each.config.seed, "reason": reason}
    (results / FAILED).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    return reason


def _keep(each: StudyRun, out: pathlib.Path, keep_checkpoints: bool):
    """Copies the small files of a run that has ended to the results, and gives the room of the others back."""
    place, results = out / RUNS / each.directory, out / RESULTS / each.directory
    if not ended(place):
        return
    results.mkdir(parents=True, exist_ok=True)
    for name in _SMALL_FILES:
        if (place / name).is_file():
            shutil.copyfile(place / name, results / f"{name}.partial")
            (results / f"{name}.partial").replace(results / name)
    if (results / "summary.json").is_file():
        (results / FAILED).unlink(missing_ok=True)
    if not keep_checkpoints:
        for name in (CHECKPOINTS, KEPT):
            shutil.rmtree(place / name, ignore_errors=True)


def _claim(planned: StudyPlan, out: pathlib.Path, overwrite: bool):
    """Checks that the directory is this study's, and writes what its results mean."""
    file = out / RESULTS / CONTENTS
    before = _read_before(file)
    if before and before["study"] != planned.study.name:
        raise UserError(f"{out} holds the study {before['study']}, not {planned.study.name}; give another --out")
    if overwrite:
        for each in planned.runs:
            clear(out / RUNS / each.directory)
            for name in _SMALL_FILES:
                (out / RESULTS / each.directory / name).unlink(missing_ok=True)
    for each in planned.runs:
        check_claim(out / RUNS / each.directory, each.config.as_dict(), resume=True, overwrite=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    contents = _contents(planned)
    if before:  # cells and seeds of an earlier --only or --seeds stay
        names = {(cell["column"], cell["row"]) for cell in contents["cells"]}
        contents["cells"] += [cell for cell in before["cells"] if (cell["column"], cell["row"]) not in names]
        order = [(cell.column, cell.row) for cell in planned.study.cells]
        contents["cells"].sort(key=lambda cell: order.index((cell["column"], cell["row"])))
        contents["seeds"] = sorted({*contents["seeds"], *before["seeds"]})
    partial = file.with_name(f"{CONTENTS}.partial")
    partial.write_text(json.dumps(contents, indent=1) + "\n", encoding="utf-8")
    partial.replace(file)


def _read_before(file: pathlib.Path) -> dict | None:
    """What an earlier call has noted of this study; None if there was none."""
    if not file.exists():
        return None
    try:
        before = json.loads(file.read_text(encoding="utf-8"))
        [(cell["column"], cell["row"]) for cell in before["cells"]], before["study"], {*before["seeds"]}
        return before
    except (OSError, ValueError, KeyError, TypeError) as error:
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
                "set": _plain(cell.overrides),
            }
            for cell, place in zip(planned.cells, planned.places, strict=True)
        ],
    }


def _plain(overrides: Mapping) -> dict:
    return tomllib.loads(tomli_w.dumps(overrides)) if overrides else {}
