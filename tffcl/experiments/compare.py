"""Several methods and seeds on one task, one after the other, in the layout of a comparison."""

import json
import pathlib
import sys
from collections.abc import Sequence

from tffcl import runtime
from tffcl.errors import UserError
from tffcl.experiments.config import RunConfig
from tffcl.experiments.run import run
from tffcl.runner.directory import check_claim
from tffcl.runtime import RemoteWorkers


def compare(
    configs: Sequence[RunConfig],
    out: str | pathlib.Path,
    *,
    data_dir: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    show_progress: bool = True,
    workers: RemoteWorkers | None = None,
) -> list[dict]:
    """Runs every configuration into `OUT/<algorithm>/seed-<n>/`.

    Args:
      configs: What to run; distinct in algorithm or seed.
      out: Directory of the comparison.
      data_dir: As in `run.run`.
      resume: Finished runs are kept, a started one goes on.
      overwrite: Runs that are there are deleted.
      show_progress: A bar a run.
      workers: As in `run.run`.

    Returns:
      The summaries in the order of `configs`.

    Raises:
      UserError: If two configurations are the same run, or one of them fails; what is finished stays.
    """
    out = pathlib.Path(out)
    places = [out / config.algorithm / f"seed-{config.seed}" for config in configs]
    if len(set(places)) < len(places):
        raise UserError("a comparison needs each algorithm and each seed once")
    return run_all(
        configs, places, data_dir=data_dir, resume=resume, overwrite=overwrite, show_progress=show_progress, workers=workers
    )


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
) -> list[dict]:
    """Runs every configuration into its place, one after the other.

    Args:
      configs: What to run.
      places: A directory for each.
      titles: With `show_progress`, a line for each on standard error before its bar, which does not say all.
      workers: As in `run.run`.
      data_dir: As in `run.run`.
      resume: Finished runs are kept, a started one goes on.
      overwrite: Runs that are there are deleted.
      show_progress: A bar a run.
      workers: As in `run.run`.

    Returns:
      The summaries in the order of `configs`.

    Raises:
      UserError: If a place holds a run that may not be touched, which is found before anything runs, or a run
        fails; what is finished stays.
    """
    for config, place in zip(configs, places, strict=True):  # after hours of work would be too late
        check_claim(place, config.as_dict(), resume=resume, overwrite=overwrite)
    options = {
        "data_dir": data_dir,
        "resume": resume,
        "overwrite": overwrite,
        "show_progress": show_progress,
        "workers": workers,
    }
    summaries, ran = [], False
    for number, (config, place) in enumerate(zip(configs, places, strict=True)):
        finished = place / "summary.json"
        kept = resume and finished.is_file()
        if titles and show_progress:
            state = ": finished before" if kept else ""
            print(f"[{number + 1}/{len(configs)}] {titles[number]}{state}", file=sys.stderr)
        if kept:
            summaries.append(json.loads(finished.read_text(encoding="utf-8")))
        else:
            if ran and not workers:
                runtime.renew_local_worker()
            summaries.append(run(config, place, **options).summary)
            ran = True
    return summaries
