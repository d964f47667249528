"""A study before it runs: the jobs of its cells."""

import dataclasses
import json
import math
import pathlib
from collections.abc import Mapping, Sequence

from tffcl.errors import UserError
from tffcl.lab.batches.batch import Job
from tffcl.lab.batches.study_file import Cell, Study, chosen, slug
from tffcl.lab.tasks import resolve as configs
from tffcl.lab.tasks import task_file
from tffcl.lab.tasks.resolve import RunConfig


@dataclasses.dataclass(frozen=True)
class StudyPlan:
    """A study before it runs.

    Attributes:
      study: What it is.
      cells: Those that were asked for.
      places: For each of them where its runs are, without the seed's directory; None where it cannot be run.
      seeds: Of the runs.
      rounds: What was asked for: a share of each task's rounds, or their number.
      overrides: Nested tables over those of the tasks, for all runs.
      jobs: All runs, each of which gives a number to one cell or more, below the directory of all runs and of all
        results.
    """

    study: Study
    cells: tuple[Cell, ...]
    places: tuple[pathlib.PurePath | None, ...]
    seeds: tuple[int, ...]
    rounds: float
    overrides: Mapping
    jobs: tuple[Job, ...]

    @property
    def missing(self) -> dict[str, list[str]]:
        """The cells that cannot be run, by why."""
        reasons: dict[str, list[str]] = {}
        for cell in self.cells:
            if cell.missing:
                reasons.setdefault(cell.missing, []).append(cell.name)
        return reasons

    @property
    def decided(self) -> list[Job]:
        """The runs whose settings have not to be chosen first."""
        waiting = {place for cell, place in zip(self.cells, self.places, strict=True) if cell.tune}
        return [job for job in self.jobs if job.place.parent not in waiting]


def plan(
    study: Study,
    *,
    only: Sequence[str] = (),
    seeds: Sequence[int] = (),
    rounds: float = 1,
    overrides: Mapping | None = None,
) -> StudyPlan:
    """Puts the configurations of all runs together, so that a wrong value is refused before anything runs.

    Args:
      study: What `study_file.load_study` gave.
      only: Which cells, see `study_file.chosen`; default all.
      seeds: Default the study's.
      rounds: Up to 1 a share of each task's rounds, from 2 on their number.
      overrides: Nested tables that replace the tasks' values, for all runs.

    Raises:
      UserError: For a pattern that fits no cell, a wrong number of rounds, or as `resolve.resolve`.
    """
    if not (0 < rounds <= 1 or (rounds >= 2 and float(rounds).is_integer())):
        raise UserError(
            f"--rounds {rounds:g} must be a share of each task's rounds, above 0 to 1, or a whole number from 2"
        )
    seeds = tuple(seeds) or study.seeds
    if len(set(seeds)) < len(seeds):
        raise UserError(f"{study.name}: seeds names one twice; give each once")
    cells, places, jobs, known = chosen(study, only), [], {}, {}
    for cell in cells:
        if cell.missing:
            places.append(None)
            continue
        resolved = [resolve(cell, seed, rounds, overrides or {}) for seed in seeds]
        # Cells of one setting, as an accuracy and its variance, are of the same runs.
        identity = json.dumps(resolved[0].as_dict(), sort_keys=True, default=str)
        place = known.setdefault(identity, _free(pathlib.PurePath(slug(cell.column), slug(cell.row)), known))
        places.append(place)
        for config in resolved:
            own = place / f"seed-{config.seed}"
            job = jobs.setdefault(own, Job(config, own, f"{cell.column} / {cell.row}, seed {config.seed}"))
            if cell.measure in ("unseen_cluster", "unseen_local"):
                jobs[own] = dataclasses.replace(job, newcomers=True)
    return StudyPlan(study, tuple(cells), tuple(places), seeds, rounds, overrides or {}, tuple(jobs.values()))


def _free(place: pathlib.PurePath, known: Mapping[str, pathlib.PurePath]) -> pathlib.PurePath:
    """The place, with a number behind it if cells of other settings have a name that directories cannot tell from
    this one's.
    """
    same = sum(
        each == place or each.name.startswith(f"{place.name}~") and each.parent == place.parent
        for each in known.values()
    )
    return place.with_name(f"{place.name}~{same + 1}") if same else place


def resolve(cell: Cell, seed: int, rounds: float, overrides: Mapping) -> RunConfig:
    """Returns the configuration of a cell's run with a seed, with a share of its task's rounds, or with so many."""
    changed = task_file.merged(cell.overrides, overrides)
    config = configs.resolve(cell.task, cell.method, seed=seed, overrides=changed)
    if rounds == 1:
        return config
    fewer = int(rounds) if rounds >= 2 else max(1, math.ceil(config.train.rounds * rounds - 1e-9))
    # Where fewer rounds are run than lie between two evaluations there is one at the end.
    return dataclasses.replace(config, train=dataclasses.replace(config.train, rounds=fewer))
