"""A paper's table or figure, run: each cell's method on its task for each seed, resumable at any point, cheapest first."""

import pathlib
import shutil
import sys
import traceback
from collections.abc import Mapping

from tffcl import runtime
from tffcl.errors import UserError, tell
from tffcl.json_files import write_json
from tffcl.lab.batches import compare, newcomers, study_tuning
from tffcl.lab.batches.run_time_estimate import Clock, Job, ended
from tffcl.lab.batches.study_plan import RESULTS, RUNS, SMALL_FILES, StudyPlan, StudyRun, kept, place_of, plan
from tffcl.lab.batches.study_record import claim
from tffcl.lab.tasks import task_file
from tffcl.regular_files import read_bytes, write_bytes
from tffcl.runs.interrupts import Interrupted
from tffcl.runs.lock import locked
from tffcl.runs.run_directory import CHECKPOINTS, FAILED, KEPT

TRIALS = "trials.json"
__all__ = ["StudyPlan", "StudyRun", "plan", "run_study"]


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
    how = {"data_dir": data_dir, "show_progress": show_progress, "workers": workers}
    with locked(out):
        claim(planned, out, overwrite)
        if not overwrite:
            _take_over(planned, out, show_progress)
        if any(cell.tune for cell in planned.cells):
            planned = study_tuning.tuned(planned, out, lambda trials: _run_all(trials, out, how, keep_checkpoints))
            claim(planned, out, overwrite=False)
            _take_over(planned, out, show_progress)
        return _run_all(planned, out, how, keep_checkpoints)


def _take_over(planned: StudyPlan, out: pathlib.Path, show: bool):
    """Copies what `tasks/results` has of these very runs, so that what one machine has computed another goes on from, and says so."""
    known = task_file.task_directory() / "results" / planned.study.name
    if (known / study_tuning.TUNED).is_file() and not (out / RESULTS / study_tuning.TUNED).is_file():
        (out / RESULTS).mkdir(parents=True, exist_ok=True)
        write_bytes(out / RESULTS / study_tuning.TUNED, read_bytes(known / study_tuning.TUNED))
    taken = [each for each in planned.runs if not ended(place_of(each, out)) and kept(each, known)]
    for each in taken:
        _copy(known / each.directory, out / RESULTS / each.directory)
    if taken and show:
        told = f"{len(taken)} of {len(planned.runs)} runs come from the kept results in tasks/results/{planned.study.name}"
        print(f"{told}, and were not made here; --overwrite makes them here", file=sys.stderr)


def _run_all(planned: StudyPlan, out: pathlib.Path, how: Mapping, keep_checkpoints: bool) -> int:
    """The runs of a study, in a directory whose lock is held; returns how many failed."""
    clock, order = _timed(planned, out, how)
    failed, ran = 0, False
    for each, job in order:
        state = ended(job.place)
        clock.announce(job, state)
        if state != "diverged":
            if ran and not state and not how["workers"]:
                runtime.renew_local_worker(above=runtime.LARGE_WORKER)
            failure = _run(each, out, how)
            ran |= not state
            if failure:
                tell(f"{each.title} failed: {failure}")
        _keep(each, out, keep_checkpoints)
        failed += not (out / RESULTS / each.directory / "summary.json").is_file()
        clock.finished(job)
    return failed


def _timed(planned: StudyPlan, out: pathlib.Path, how: Mapping) -> tuple[Clock, list[tuple[StudyRun, Job]]]:
    """The runs seed by seed, the cheapest of each seed first, and the clock that has said what they will take."""
    jobs = [Job(each.title, each.config, place_of(each, out)) for each in planned.runs]
    places = [task_file.task_directory() / "results", out / RESULTS]
    clock = Clock(jobs, places, show=how["show_progress"])
    clock.try_unknown(how["data_dir"], out / TRIALS, patient=True)
    pairs = list(zip(planned.runs, jobs, strict=True))
    order = sorted(pairs, key=lambda pair: (planned.seeds.index(pair[0].config.seed), clock.estimate(pair[1])))
    for reason, names in planned.missing.items():
        clock.say(f"not available: {', '.join(names)}: {reason}")
    clock.begin([job for _, job in order])
    return clock, order


def _run(each: StudyRun, out: pathlib.Path, how: Mapping) -> str:
    """Runs one run to its end, newcomers included; returns why it failed, "" if it has not."""
    place = out / RUNS / each.directory
    try:
        if not ended(place_of(each, out)):
            compare.run_or_note(each.config, place, resume=True, **how)
        joins = each.newcomers and ended(place) == "finished"
        if joins and not (place / "newcomers.json").is_file():
            newcomers.join_newcomers(
                place, data_dir=how["data_dir"], show_progress=how["show_progress"], trust_builders=each.config
            )
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
    write_json(results / FAILED, about)
    return reason


def _keep(each: StudyRun, out: pathlib.Path, keep_checkpoints: bool):
    """Copies the small files of a run that has ended to the results, and gives the room of the others back."""
    place, results = out / RUNS / each.directory, out / RESULTS / each.directory
    if not ended(place):
        return
    _copy(place, results)
    if (results / "summary.json").is_file():
        (results / FAILED).unlink(missing_ok=True)
    if not keep_checkpoints:
        for name in (CHECKPOINTS, KEPT):
            shutil.rmtree(place / name, ignore_errors=True)


def _copy(place: pathlib.Path, results: pathlib.Path):
    """Copies the small files of a run, each whole or not at all."""
    results.mkdir(parents=True, exist_ok=True)
    for name in SMALL_FILES:
        if (place / name).is_file():
            write_bytes(results / name, read_bytes(place / name))
