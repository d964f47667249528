"""Several methods and seeds on one task, one after the other, in the layout of a comparison."""

import json
import pathlib
from collections.abc import Sequence

from tffcl.errors import UserError
from tffcl.program import run as single
from tffcl.program.config import RunConfig


def compare(
    configs: Sequence[RunConfig],
    out: str | pathlib.Path,
    *,
    data_dir: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    show_progress: bool = True,
) -> list[dict]:
    """Runs every configuration into `OUT/<algorithm>/seed-<n>/`.

    Args:
      configs: What to run; distinct in algorithm or seed.
      out: Directory of the comparison.
      data_dir: As in `run.run`.
      resume: Finished runs are kept, a started one goes on.
      overwrite: Runs that are there are deleted.
      show_progress: A bar a run.

    Returns:
      The summaries in the order of `configs`.

    Raises:
      UserError: If two configurations are the same run, or one of them fails; what is finished stays.
    """
    out = pathlib.Path(out)
    places = [out / config.algorithm / f"seed-{config.seed}" for config in configs]
    if len(set(places)) < len(places):
        raise UserError("a comparison needs each algorithm and each seed once")
    summaries = []
    for config, place in zip(configs, places):
        finished = place / "summary.json"
        if resume and finished.is_file():
            single.check_same(place, config)
            summaries.append(json.loads(finished.read_text(encoding="utf-8")))
            continue
        options = {"data_dir": data_dir, "resume": resume, "overwrite": overwrite, "show_progress": show_progress}
        summaries.append(single.run(config, place, **options))
    return summaries
