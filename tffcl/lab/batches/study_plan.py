"""A study before it runs: the configurations of all of its runs, and where each of them is kept."""

import dataclasses
import json
import math
import pathlib
import tomllib
from collections.abc import Mapping, Sequence

import tomli_w

from tffcl.errors import UserError
from tffcl.json_files import read_json
from tffcl.lab.batches.run_time_estimate import ended
from tffcl.lab.batches.study_files import Cell, Study, chosen, slug
from tffcl.lab.tasks import resolve as configs
from tffcl.lab.tasks import task_file
from tffcl.lab.tasks.resolve import RunConfig
from tffcl.runs.run_directory import FAILED

RUNS, RESULTS = "runs", "results"
SMALL_FILES = ("rounds.csv", "summary.json", "config.toml", "newcomers.json", FAILED)


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
      overrides: Nested tables over those of the tasks, for all runs.
      runs: All of them, without their order.
    """

    study: Study
    cells: tuple[Cell, ...]
    places: tuple[pathlib.PurePath | None, ...]
    seeds: tuple[int, ...]
    rounds: float
    overrides: Mapping
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
      UserError: For a pattern that fits no cell, a wrong number of rounds, or as `resolve.resolve`.
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
        resolved = [resolve(cell, seed, rounds, overrides or {}) for seed in seeds]
        # Cells of one setting, as an accuracy and its variance, are of the same runs.
        place = known.setdefault(_identity(resolved[0]), _free(pathlib.PurePath(slug(cell.column), slug(cell.row)), known))
        places.append(place)
        for config in resolved:
            joins = (
                cell.measure in ("unseen_cluster", "unseen_local")
                or (place, config.seed) in runs
                and runs[place, config.seed].newcomers
            )
            title = f"{cell.column} / {cell.row}, seed {config.seed}"
            before = runs.get((place, config.seed))
            runs[place, config.seed] = StudyRun(place, config, before.title if before else title, joins)
    return StudyPlan(study, tuple(cells), tuple(places), seeds, rounds, overrides or {}, tuple(runs.values()))


def _free(place: pathlib.PurePath, known: Mapping[str, pathlib.PurePath]) -> pathlib.PurePath:
    """The place, with a number behind it if cells of other settings have a name that directories cannot tell from this one's."""
    same = sum(
        each == place or each.name.startswith(f"{place.name}~") and each.parent == place.parent for each in known.values()
    )
    return place.with_name(f"{place.name}~{same + 1}") if same else place


def _identity(config: RunConfig) -> str:
    return json.dumps(config.as_dict(), sort_keys=True, default=str)


def resolve(cell: Cell, seed: int, rounds: float, overrides: Mapping) -> RunConfig:
    """Returns the configuration of a cell's run with a seed, with a share of its task's rounds, or with so many."""
    changed = task_file.merged(cell.overrides, overrides)
    config = configs.resolve(cell.task, cell.method, seed=seed, overrides=changed)
    if rounds == 1:
        return config
    fewer = int(rounds) if rounds >= 2 else max(1, math.ceil(config.train.rounds * rounds - 1e-9))
    train = dataclasses.replace(config.train, rounds=fewer)
    # Where fewer rounds are run than lie between two evaluations there is one at the end.
    return dataclasses.replace(config, train=train)


def plain(tables: Mapping) -> dict:
    """Returns nested tables as a TOML file gives them back."""
    return tomllib.loads(tomli_w.dumps(tables)) if tables else {}


def place_of(each: StudyRun, out: pathlib.Path) -> pathlib.Path:
    """Returns the directory of a study's run, or that of its results where it was run elsewhere and these alone are here."""
    place, results = out / RUNS / each.directory, out / RESULTS / each.directory
    return results if not ended(place) and kept(each, out / RESULTS) else place


def kept(each: StudyRun, results: pathlib.Path) -> bool:
    """Whether a directory of results has a run of these very settings that has finished or diverged."""
    place = results / each.directory
    if not (place / "config.toml").is_file() or each.newcomers and not (place / "newcomers.json").is_file():
        return False
    try:
        # With the defaults of keys that an earlier version had not.
        before = configs.load_run_config(place, trust_builders=each.config)
    except UserError:
        return False
    diverged = (place / FAILED).is_file() and read_json(place / FAILED).get("task")
    return settings_of(before) == settings_of(each.config) and bool((place / "summary.json").is_file() or diverged)


def settings_of(config: RunConfig) -> dict:
    """Returns the settings of a run as nested tables, without what only tells about them: runs of the same ones are the same."""
    return {key: value for key, value in plain(config.as_dict()).items() if key not in ("description", "source")}
