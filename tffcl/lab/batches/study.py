"""Runs a paper's table or figure: each cell's method on its task for each seed. The same command continues a study that
was stopped anywhere.
"""

import dataclasses
import pathlib
import sys
import traceback
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from tffcl import runtime
from tffcl.errors import UserError, tell
from tffcl.files import read_bytes, read_json, write_bytes, write_json, write_small_json, write_small_numbers
from tffcl.lab.batches import study_plan
from tffcl.lab.batches.batch import Batch, Job, Options, settings_of, settings_with_its_seed
from tffcl.lab.batches.study_file import RESULTS, RUNS, compare_with
from tffcl.lab.batches.study_plan import StudyPlan, plan
from tffcl.lab.reporting.batch_index import read_failure
from tffcl.lab.reporting.comparison_table import flatten
from tffcl.lab.reporting.newcomers_table import NEWCOMERS
from tffcl.lab.reporting.number_format import MISSING, show_settings
from tffcl.lab.reporting.table import Table
from tffcl.lab.tasks import resolve as configs
from tffcl.lab.tasks import task_file
from tffcl.runs.metrics import BY_KEY, Metric, rows_of
from tffcl.runs.run import Interrupted
from tffcl.runs.run_directory import CONFIG, FAILED, ROUNDS, SUMMARY, RunDirectory, State, first_difference
from tffcl.runs.run_files import RunNumbers

SMALL_FILES = (ROUNDS, SUMMARY, CONFIG, NEWCOMERS, FAILED)
# Settings that do not change what is trained and compared.
_UNCHANGING = ("evaluation.every", "evaluation.metrics", "checkpoint.")
__all__ = ["StudyPlan", "plan", "run_study"]


def run_study(
    planned: StudyPlan,
    out: str | pathlib.Path,
    *,
    data_dir: str | None = None,
    overwrite: bool = False,
    all_here: bool = False,
    keep_checkpoints: bool = False,
    show_progress: bool = True,
    workers: runtime.RemoteWorkers | None = None,
) -> int:
    """Runs all runs of a study that have not ended. The same call continues where an earlier one was stopped.

    `OUT/results/` has the small files of every run and the study's `batch.json`; it can be copied to
    `tasks/results/NAME`. `OUT/runs/` has the other files.

    Args:
      planned: The plan to run.
      out: Directory of the study.
      data_dir: Where data sets are.
      overwrite: Whether existing runs are deleted.
      all_here: Whether all runs are made here. The kept results, which must have one of the runs, then give only the
        choices of settings.
      keep_checkpoints: Whether finished runs also keep the files that only resuming and exporting need.
      show_progress: Whether to show estimates, and a line and a bar for each run, on standard error.
      workers: As in `run.run`.

    Returns:
      The number of runs, and of cells that wait for a trial, without a result; a failed run does not stop the others.

    Raises:
      UserError: If `out` holds another study, or this study with other settings.
    """
    known = task_file.results_directory() / planned.study.name
    if all_here and not any(RunDirectory(known / job.place).ended for job in planned.jobs):
        raise UserError(f"{known} has no results of these cells and seeds to compare with: OUT/results is copied there")
    options = Options(data_dir, not overwrite, overwrite, show_progress, workers)
    batch = Batch("study", out, options, index=RESULTS)
    if batch.index and batch.index["study"] != planned.study.name:
        raise UserError(f"{out} holds the study {batch.index['study']}, not {planned.study.name}; give another --out")
    anew = [cell.name for cell in planned.cells] if overwrite else ()
    contents = _contents(planned, batch.index or {}, anew)
    _check_other_seeds(planned.decided, batch)
    with batch.claimed([_below(RUNS, job) for job in planned.decided], contents):
        if overwrite:
            _clear(planned.jobs, batch)
        cleared: set[pathlib.PurePath] = set()
        while True:
            chosen = planned
            if any(cell.tune for cell in planned.cells):
                elsewhere = None if overwrite else known
                chosen = study_plan.tuned(planned, batch, elsewhere, lambda job: _run(job, batch, keep_checkpoints))
                batch.check([_below(RUNS, job) for job in chosen.jobs])  # with the chosen settings
                _check_other_seeds(chosen.jobs, batch)
                batch.note(_contents(chosen, batch.index))
            if overwrite:  # cells that shared a run may now have different settings
                _clear([job for job in chosen.jobs if job.place not in cleared], batch)
                cleared |= {job.place for job in chosen.jobs}
            elif not all_here:
                _take_over(chosen.jobs, known, batch)
            failed = _run_all(chosen, batch, keep_checkpoints, all_here)
            if all_here or not _lower(chosen, batch):
                return failed


def _check_other_seeds(jobs: Sequence[Job], batch: Batch):
    """Raises UserError if a cell has runs of other seeds with other settings than the requested runs; its mean would
    mix both."""
    asked = {job.place for job in jobs}
    for place, job in {job.place.parent: job for job in jobs}.items():
        for seed in (batch.index or {}).get("seeds", ()):
            own = dataclasses.replace(job, place=place / f"seed-{seed}")
            there = [batch.place(_below(directory, own)) for directory in (RUNS, RESULTS)]
            there = [each for each in there if (each / CONFIG).is_file()]
            if own.place in asked or not there:
                continue
            if difference := first_difference(*settings_with_its_seed(there[0], job.config)):
                key, was, now = difference
                raise UserError(
                    f"{there[0]} was run with {key} {was!r}, not {now!r}; the runs of a cell are of the same settings: "
                    "give another --out, or make all seeds anew (--overwrite with all of --seeds)"
                )


def _lower(chosen: StudyPlan, batch: Batch) -> bool:
    """Removes the settings with which a cell diverged from its choice, if gentler settings have been tried. Deletes the
    cell's runs with all seeds, so that no cell has runs with two settings.

    Returns:
      Whether there was such a cell.
    """
    diverged = {job.place.parent for job in chosen.jobs if _diverged(batch.place(_below(RESULTS, job)))}
    choices = dict(batch.index["tuned"])
    for cell, place in zip(chosen.cells, chosen.places, strict=True):
        left = place in diverged and cell.tuned and study_plan.gentler(choices[cell.name], cell.tuned)
        if left:
            choices[cell.name] = left
            batch.say(f"{cell.name} diverged with {show_settings(cell.tuned)}; it is run again with gentler settings")
            job = next(job for job in chosen.jobs if job.place.parent == place)
            _clear([dataclasses.replace(job, place=place / f"seed-{seed}") for seed in batch.index["seeds"]], batch)
    lowered = choices != batch.index["tuned"]
    if lowered:
        batch.note({**batch.index, "tuned": choices})
    return lowered


def _below(directory: str, job: Job) -> Job:
    return dataclasses.replace(job, place=directory / job.place)


def _clear(jobs: Sequence[Job], batch: Batch):
    """Deletes the runs of jobs and their results."""
    for job in jobs:
        RunDirectory(batch.place(_below(RUNS, job))).clear()
        for name in SMALL_FILES:
            (batch.place(_below(RESULTS, job)) / name).unlink(missing_ok=True)


def has_results(job: Job, results: pathlib.Path) -> bool:
    """Whether a directory of results has a run with exactly these settings that has finished or diverged."""
    place = results / job.place
    if not (place / CONFIG).is_file():
        return False
    try:
        # Keys that an earlier version did not have get their defaults.
        before = configs.load_run_config(place, trust_builders=job.config)
    except UserError:
        return False
    needed = (SUMMARY, NEWCOMERS) if job.newcomers else (SUMMARY,)
    ended = _diverged(place) or all((place / name).is_file() for name in needed)
    return settings_of(before) == settings_of(job.config) and ended


def _diverged(place: pathlib.Path) -> bool:
    """Whether the run whose results a directory has diverged, and did not fail for another reason."""
    failure = read_failure(place, "")
    return failure is not None and failure.diverged


def _take_over(jobs: Sequence[Job], known: pathlib.Path, batch: Batch):
    """Copies the results of exactly these runs from `tasks/results`, and says so; a study can thus continue what
    another machine has computed.
    """
    taken = [
        job for job in jobs if not RunDirectory(batch.place(_placed(job, batch))).ended and has_results(job, known)
    ]
    for job in taken:
        _copy(known / job.place, batch.place(_below(RESULTS, job)))
    if taken:
        line = f"{len(taken)} of {len(jobs)} runs come from the kept results in tasks/results/{known.name}"
        batch.say(f"{line}, and were not made here; --overwrite makes them here")


def _placed(job: Job, batch: Batch) -> Job:
    """The job with the directory of its run, or of its results if it was run elsewhere and only these are here."""
    made = _below(RUNS, job)
    elsewhere = not RunDirectory(batch.place(made)).ended and has_results(job, batch.out / RESULTS)
    return _below(RESULTS, job) if elsewhere else made


def _run_all(planned: StudyPlan, batch: Batch, keep_checkpoints: bool, all_here: bool) -> int:
    """Runs all runs that have not ended; returns how many runs, and cells that wait for a trial, have no result."""
    for reason, names in planned.missing.items():
        batch.say(f"not available: {', '.join(names)}: {reason}")
    jobs = [_below(RUNS, job) if all_here else _placed(job, batch) for job in planned.jobs]
    for job in jobs:  # a run may have ended before its results were copied
        _keep(job, batch, keep_checkpoints)
    batch.run(jobs, each=lambda job: _run(job, batch, keep_checkpoints), cheapest_first=True)
    lacking = sum(not (batch.place(_below(RESULTS, job)) / SUMMARY).is_file() for job in planned.jobs)
    return lacking + len(planned.missing.get(study_plan.TRIAL_FAILED, ()))


def _run(job: Job, batch: Batch, keep_checkpoints: bool):
    """Does one run to its end. If it fails, notes and reports this; the other runs go on, and the same command tries it
    again.
    """
    reason = ""
    try:
        batch.run_or_note(job)
    except Interrupted:
        raise Interrupted(f"stopped in {job.title}; the same command goes on") from None
    except UserError as error:  # of one run, e.g. missing data
        reason = str(error)
    except Exception as error:  # a bug in one cell must not stop the others, and is reported in full
        traceback.print_exc(file=sys.stderr)
        reason = f"{type(error).__name__}: {error}"
    if reason:
        tell(f"{job.title} failed: {reason}")
        results = _results_of(job, batch)
        results.mkdir(parents=True, exist_ok=True)
        about = {"algorithm": job.config.algorithm, "seed": job.config.seed, "reason": reason}
        write_json(results / FAILED, about)
    _keep(job, batch, keep_checkpoints)


def _results_of(job: Job, batch: Batch) -> pathlib.Path:
    return batch.place(dataclasses.replace(job, place=pathlib.PurePath(RESULTS, *job.place.parts[1:])))


def _keep(job: Job, batch: Batch, keep_checkpoints: bool):
    """Copies the small files of a run that has ended to the results, and deletes its large files."""
    place, results = batch.place(job), _results_of(job, batch)
    if not batch.done(job) or place == results:
        return
    _copy(place, results)
    if (results / SUMMARY).is_file():
        (results / FAILED).unlink(missing_ok=True)
    if not keep_checkpoints:
        RunDirectory(place).drop_states()


def _copy(place: pathlib.Path, results: pathlib.Path):
    """Copies the small files of a run, each atomically, with five digits for fractions."""
    results.mkdir(parents=True, exist_ok=True)
    for name in SMALL_FILES:
        if not (place / name).is_file():
            continue
        if name == ROUNDS:
            write_small_numbers(results / name, RunDirectory(place).rounds())
        elif name == CONFIG:
            write_bytes(results / name, read_bytes(place / name))
        else:
            write_small_json(results / name, read_json(place / name))


CHECKED = 1.0  # percentage points, or percent of another metric, by which a reproduced number may differ


def compared_with_kept(planned: StudyPlan, out: str | pathlib.Path) -> tuple[Table, int]:
    """Compares runs that were made anew with the kept results of the same cells and seeds.

    Args:
      planned: The plan that was run.
      out: Directory of the study.

    Returns:
      The table, and the number of runs that differ: their accuracies, or their first further metric if labels are
      numbers, differ by more than `CHECKED`, or only one of the two runs finished. On the kind of machine that made the
      kept results, all numbers of all rounds are the same, up to rounding.
    """
    known, lines, differ = task_file.results_directory() / planned.study.name, [], 0
    for job in planned.jobs:
        before, now = RunDirectory(known / job.place), RunDirectory(pathlib.Path(out) / RESULTS / job.place)
        ends = [_end(each) for each in (before, now)]
        if ends != ["finished", "finished"]:
            both = ends == ["diverged", "diverged"]
            alike = both and read_json(before / FAILED)["reason"] == read_json(now / FAILED)["reason"]
            verdict = "the same" if alike else "diverged, too" if both else "differs" if ends[0] else "not kept"
            differ += not both and (verdict == "differs" or ends[1] != "finished")
            lines.append([job.title, *(each or MISSING for each in ends), MISSING, verdict])
            continue
        metric, was, here = _compared(before, now)
        share = metric.unit == "%"
        equal, near = _same_rounds(before, now), abs(here - was) <= CHECKED * (1 if share else abs(was) / 100)
        differ += not (equal or near)
        verdict = "the same" if equal else f"within {CHECKED:g} {'point' if share else '%'}" if near else "differs"
        digits = 2 if share else 3
        numbers = f"{was:.{digits}f}", f"{here:.{digits}f}", f"{here - was:+.{digits}f}"
        lines.append([job.title, *numbers, verdict])
    return Table.of(("", "kept", "here", "difference", "numbers"), lines), differ


def _end(directory: RunDirectory) -> str:
    """How a run has ended, with "failed" if it failed without diverging; "" if it has not ended."""
    failed = directory.state is State.DIVERGED and not _diverged(directory.path)
    return "failed" if failed else directory.ended


def _compared(*directories: RunDirectory) -> tuple[Metric, float, float]:
    """The metric by which two runs are compared, and the value of each: the cluster accuracy or, without one (labels
    are numbers), the first further metric."""
    before, now = (RunNumbers(each.path) for each in directories)
    further = (rows_of(name)[0] for name in before.summary.get("metrics", {}))
    found = [(each, each.of_run(before), each.of_run(now)) for each in (BY_KEY["cluster_accuracy"], *further)]
    return next((each for each in found if not np.isnan(each[1:]).any()), found[0])


def _same_rounds(before: RunDirectory, now: RunDirectory) -> bool:
    """Whether two kept runs have the same numbers in all rounds, up to the last of five digits, in all columns that
    both have, except for times."""
    tables = before.rounds(), now.rounds()
    common = set(tables[0].names) & set(tables[1].names) - {"seconds"}
    columns = {name: [table.floats(name) for table in tables] for name in common}
    return all(
        len(was) == len(here) and np.allclose(was, here, rtol=1e-4, equal_nan=True) for was, here in columns.values()
    )


def _contents(planned: StudyPlan, before: Mapping, anew: Collection[str] = ()) -> dict:
    """The contents of a study's index. Seeds of earlier commands stay in it, and so do cells and choices that are not
    made anew.
    """
    study = planned.study
    # The rounds of each cell's own task, for "50 of 200"; with fewer rounds, cells of several tasks may share a run.
    whole = {
        cell.name: configs.resolve(cell.task, cell.method, overrides=cell.overrides).train.rounds
        for cell, place in zip(planned.cells, planned.places, strict=True)
        if place is not None
    }
    changed = [key for key in sorted(flatten(planned.overrides)) if not key.startswith(_UNCHANGING)]
    cells = {cell.name: cell for cell in planned.cells}
    noted = {f"{each['column']}/{each['row']}": each for each in before.get("cells", ())}
    compare_with(study, noted.values())
    made = {job.place.parent.as_posix(): job.config for job in planned.jobs}
    for cell in study.cells:
        config = made.get(noted[cell.name]["directory"]) if cell.name in noted else None
        if config and cell.name not in cells and not cell.tune:  # it shared a run, which may now be another one
            own = study_plan.resolve(cell, config.seed, planned.rounds, planned.overrides)
            noted[cell.name] |= {} if settings_of(own) == settings_of(config) else {"directory": None}
    for (name, cell), place in zip(cells.items(), planned.places, strict=True):
        if not (cell.tune and name in noted):  # otherwise its settings are not chosen yet
            noted[name] = {
                "column": cell.column,
                "row": cell.row,
                "task": pathlib.Path(cell.task).stem,
                "method": cell.method,
                **cell.compared_with(),
                "missing": cell.missing,
                "directory": None if place is None else place.as_posix(),
                "paper_rounds": whole.get(name),
                "changed": changed,
                "tuned": dict(cell.tuned),
            }
    order = [cell.name for cell in study.cells]
    return {
        "study": study.name,
        **{key: getattr(study, key) for key in ("title", "paper", "table", "page", "note", "published_is", "layout")},
        "about": dict(study.about),
        "rounds": planned.rounds,
        "seeds": sorted({*planned.seeds, *before["seeds"]}) if before else list(planned.seeds),
        "cells": [noted[name] for name in order if name in noted],
        "tuned": {name: choice for name, choice in before.get("tuned", {}).items() if name not in anew},
    }
