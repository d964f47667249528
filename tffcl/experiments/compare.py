"""Several methods and seeds on one task, one after the other, in the layout of a comparison."""

import contextlib
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence

import tomli_w

from tffcl import runtime
from tffcl.errors import Diverged, UserError, tell
from tffcl.experiments.clock import Job, ended, started
from tffcl.experiments.comparable import check_comparable
from tffcl.experiments.config import RunConfig, check_config
from tffcl.experiments.run import run
from tffcl.regular_files import write_text
from tffcl.reporting import report
from tffcl.reporting.comparisons import COMPARISON, read_order
from tffcl.reporting.json_files import write_json
from tffcl.reporting.marker import check_summary
from tffcl.reporting.targets import Target, read_targets
from tffcl.runner.directory import FAILED, check_claim, check_no_run, place_in
from tffcl.runner.lock import locked
from tffcl.runtime import RemoteWorkers
from tffcl.validation import check_kind


def compare(
    configs: Sequence[RunConfig],
    out: str | pathlib.Path,
    *,
    data_dir: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    show_progress: bool = True,
    workers: RemoteWorkers | None = None,
    targets: Sequence[Target] = (),
    others: Callable[[str], RunConfig] | None = None,
) -> list[dict | None]:
    """Runs every configuration into `OUT/<algorithm>/seed-<n>/`, and writes `OUT/table.csv` anew after each.

    Args:
      configs: What to run; distinct in algorithm or seed. Tables have the methods in this order.
      out: Directory of the comparison.
      data_dir: As in `run.run`.
      resume: A started run goes on; one that has ended is kept in any case.
      overwrite: Runs that are there are deleted.
      show_progress: What all runs will take, and a line and a bar a run.
      workers: As in `run.run`.
      targets: Accuracies to which rounds and bytes are counted in the report, beside those of an earlier call.
      others: Returns what a method that is there already, but not among `configs`, would be run with, see `check_comparable`.

    Returns:
      The summaries in the order of `configs`; None for a run that diverged.

    Raises:
      UserError: As `run_all`, or if two configurations are the same run, or one that is there already has other settings.
    """
    check_kind("configs", configs, (list, tuple), "a list of what tffcl.resolve(task, algorithm) returns")
    for each in configs:
        check_config("one of configs", each)
    out = pathlib.Path(out)
    check_no_run(out, "a comparison", COMPARISON, ["algorithms"], ["report.html", "table.csv", "targets.csv"])
    places = [place_in(out, config.algorithm, f"seed-{config.seed}") for config in configs]
    if len(set(places)) < len(places):
        raise UserError("a comparison needs each algorithm and each seed once")
    check_comparable(out, configs, overwrite=overwrite, others=others)
    return run_all(
        configs,
        places,
        data_dir=data_dir,
        resume=resume,
        overwrite=overwrite,
        show_progress=show_progress,
        workers=workers,
        hold=locked(out),
        begun=lambda: _write_asked(out, configs, targets),
        after_each=lambda: report.write_table(out),
    )


def _write_asked(out: pathlib.Path, configs: Sequence[RunConfig], targets: Sequence[Target]):
    """Writes which methods and targets were asked for, those of an earlier command in this directory behind them."""
    asked = dict.fromkeys([*(config.algorithm for config in configs), *read_order(out)])
    wanted = dict.fromkeys(map(str, [*targets, *read_targets(out)]))
    contents = {"algorithms": list(asked), **({"targets": list(wanted)} if wanted else {})}
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / COMPARISON, tomli_w.dumps(contents))


def run_all(
    configs: Sequence[RunConfig],
    places: Sequence[pathlib.Path],
    *,
    titles: Sequence[str] = (),
    data_dir: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    show_progress: bool = True,
    workers: RemoteWorkers | None = None,
    hold: contextlib.AbstractContextManager | None = None,
    begun: Callable[[], None] = lambda: None,
    after_each: Callable[[], None] = lambda: None,
) -> list[dict | None]:
    """Runs every configuration into its place, one after the other; those that have ended, with the same settings, are kept.

    A run that diverges leaves `failed.json` with the reason, and the others go on; it is not met again when the runs are
    resumed.

    Args:
      configs: What to run.
      places: A directory for each.
      titles: What progress calls each, by default algorithm and seed.
      data_dir: As in `run.run`.
      resume: A started run goes on.
      overwrite: Runs that are there are deleted.
      show_progress: With several runs a line on what all will take, and one before each; a bar a run.
      workers: As in `run.run`.
      hold: Entered for the runs when all places have been found free, a lock on what they are written into.
      begun: Called when all places have been found free, before the first run.
      after_each: Called after each run.

    Returns:
      The summaries in the order of `configs`; None for a run that diverged.

    Raises:
      UserError: If a place holds a run that may not be touched, which is found before anything runs, or a run fails
        otherwise than by diverging; what is finished stays.
    """
    for config, place in zip(configs, places, strict=True):  # after hours of work would be too late
        kept = bool(ended(place)) and not overwrite
        check_claim(place, config.as_dict(), resume=resume or kept, overwrite=overwrite)
    titles = titles or [f"{config.algorithm}, seed {config.seed}" for config in configs]
    jobs = [Job(*each) for each in zip(titles, configs, places, strict=True)]
    options = {
        "data_dir": data_dir,
        "resume": resume,
        "overwrite": overwrite,
        "show_progress": show_progress,
        "workers": workers,
    }
    with hold or contextlib.nullcontext():
        begun()
        return _run_each(jobs, after_each, not overwrite, options)


def _run_each(jobs: Sequence[Job], after_each: Callable[[], None], keeps: bool, options: Mapping) -> list[dict | None]:
    """The runs of `run_all`, where all places are free; those that have ended are kept if `keeps`."""
    clock = None
    if keeps and all(ended(job.place) for job in jobs):
        if options["show_progress"]:
            print(f"nothing to do: all {len(jobs)} runs are there; --overwrite runs them anew", file=sys.stderr)
    elif len(jobs) > 1 and options["show_progress"]:
        clock = started(jobs, options["data_dir"], anew=not keeps, trial=not options["workers"])
    summaries, ran = [], False
    for job in jobs:
        known = keeps and ended(job.place)
        if clock:
            clock.announce(job, known or "")
        if not known:
            if ran and not options["workers"]:
                runtime.renew_local_worker(above=runtime.LARGE_WORKER)
            run_or_note(job.config, job.place, **options)
            ran = True
            after_each()
        if clock:
            clock.finished(job)
        summaries.append(check_summary(job.place))
    return summaries


def run_or_note(config: RunConfig, place: pathlib.Path, **options):
    """Runs a configuration into its place with the options of `run.run`; if it diverges, says so in failed.json."""
    try:
        run(config, place, **options)
    except Diverged as error:
        about = {"task": config.task, "algorithm": config.algorithm, "seed": config.seed, "reason": str(error)}
        write_json(place / FAILED, about)
        tell(f"{config.algorithm} seed {config.seed} diverged: {error}")
