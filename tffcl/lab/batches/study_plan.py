"""The plan of a study: the jobs of its cells, and the trials by which cells choose their settings."""

import collections
import dataclasses
import functools
import hashlib
import itertools
import json
import math
import pathlib
import shutil
from collections.abc import Callable, Mapping, Sequence

from tffcl.display import counted
from tffcl.errors import UserError
from tffcl.files import finite
from tffcl.lab.batches import search, sweep
from tffcl.lab.batches.batch import Batch, Job
from tffcl.lab.batches.study_file import RESULTS, RUNS, Cell, Study, chosen, slug
from tffcl.lab.reporting.batch_index import read_index
from tffcl.lab.tasks import resolve as configs
from tffcl.lab.tasks import task_file
from tffcl.lab.tasks.resolve import RunConfig, find_source, method_key
from tffcl.runs.metrics import BY_MEASURE, check_measured, on_validation
from tffcl.validation import each_once

TRIAL_FAILED = "a trial failed, and the same command tries it again"


@dataclasses.dataclass(frozen=True)
class StudyPlan:
    """A study before it runs.

    Attributes:
      study: The study.
      cells: The requested cells.
      places: The directory of each cell's runs, above the seed's directory; None if the cell cannot be run.
      seeds: The seeds of the runs.
      rounds: The requested share of each task's rounds, or their number.
      overrides: Nested tables that replace the tasks' values, for all runs.
      jobs: All runs, with their places below the directories of runs and of results. Each run gives a number to one or
        more cells.
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
        """Maps each reason to the cells that cannot be run because of it."""
        reasons: dict[str, list[str]] = {}
        for cell in self.cells:
            if cell.missing:
                reasons.setdefault(cell.missing, []).append(cell.name)
        return reasons

    @property
    def decided(self) -> list[Job]:
        """The runs whose settings need not be chosen first."""
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
    """Makes the configurations of all runs, so that a wrong value is refused before anything runs.

    Args:
      study: The study, from `study_file.load_study`.
      only: Patterns of cells, see `study_file.chosen`; default all cells.
      seeds: The seeds; default those of the study.
      rounds: Up to 1, a share of each task's rounds; from 2 on, the number of rounds.
      overrides: Nested tables that replace the tasks' values, for all runs.

    Raises:
      UserError: For a pattern that fits no cell, a wrong number of rounds, or as in `resolve.resolve`.
    """
    if not (0 < rounds <= 1 or (rounds >= 2 and float(rounds).is_integer())):
        raise UserError(
            f"--rounds {rounds:g} must be a share of each task's rounds, above 0 to 1, or a whole number from 2"
        )
    seeds = each_once(f"{study.name}: seeds", tuple(seeds) or study.seeds)
    cells, places, jobs = list(chosen(study, only)), [], {}
    own_places = _own_places(study.cells)
    known: dict[str, pathlib.PurePath] = {}
    if len(cells) < len(study.cells):
        known = _shared_places(study, own_places, cells, lambda cell: resolve(cell, seeds[0], rounds, overrides or {}))
    for number, cell in enumerate(cells):
        cells[number] = cell = _without_set(cell, overrides or {})
        resolved = [] if cell.missing else [resolve(cell, seed, rounds, overrides or {}) for seed in seeds]
        if resolved and (error := configs.never_happens(resolved[0])):  # with so few rounds
            cells[number] = cell = dataclasses.replace(cell, missing=str(error))
        if cell.missing:
            places.append(None)
            continue
        _check_measured(cell, resolved[0])
        places.append(place := known.setdefault(_identity(resolved[0]), own_places[cell.name]))
        for config in resolved:
            own = place / f"seed-{config.seed}"
            job = jobs.setdefault(own, Job(config, own, f"{cell.column} / {cell.row}, seed {config.seed}"))
            if cell.measure.startswith("unseen_"):
                jobs[own] = dataclasses.replace(job, newcomers=True)
    return StudyPlan(study, tuple(cells), tuple(places), seeds, rounds, overrides or {}, tuple(jobs.values()))


def _without_set(cell: Cell, overrides: Mapping) -> Cell:
    """The cell without choices of settings that the command sets; it would note a value that no run has."""
    own = [overrides.get("train", {}), overrides.get("algorithms", {}).get(cell.method, {})]

    def is_set(key: str) -> bool:
        section, _, name = key.rpartition(".")
        of_method = section in ("", "train", f"algorithms.{cell.method}")
        return any(name in table for table in (own if of_method else [overrides.get(section, {})]))

    return dataclasses.replace(cell, tune={key: values for key, values in cell.tune.items() if not is_set(key)})


def _check_measured(cell: Cell, config: RunConfig):
    """Raises UserError if a run does not measure the metric that its cell compares."""
    compared = BY_MEASURE.get(cell.accuracy if cell.measure.endswith("_to") else cell.measure)
    if compared and (compared.column or compared.source[0] == "accuracy"):
        column = compared.column or BY_MEASURE["cluster"].column  # for a variance of accuracies
        check_measured(f"measure {compared.measure} of {cell.name}", column, config.measured)
    every = config.evaluation.every
    if cell.measure.endswith("_to") and every != 1:
        raise UserError(
            f"{cell.name}: {cell.measure} is read off evaluated rounds, which are every {every}; it needs "
            "set.evaluation.every = 1"
        )
    if cell.measure.startswith("unseen_") and not config.newcomers.any:
        raise UserError(
            f"{cell.name}: {cell.measure} is of clients that are held out; its task holds none: it needs "
            "set.newcomers.clients"
        )
    if cell.measure in ("benign", "benign_worst") and not config.attack.share:
        raise UserError(
            f"{cell.name}: {cell.measure} is of those who do not attack; in its task nobody does: it needs "
            "set.attack.share"
        )


def _identity(config: RunConfig) -> str:
    return json.dumps(config.as_dict(), sort_keys=True, default=str)


def _shared_places(
    study: Study,
    own_places: Mapping[str, pathlib.PurePath],
    cells: Sequence[Cell],
    resolved: Callable[[Cell], RunConfig],
) -> dict[str, pathlib.PurePath]:
    """The directories of cells that share their runs, e.g. those of an accuracy and of its variance: the directory of
    the first such cell in the study, even if only others of them are requested."""
    alike = collections.defaultdict(list)
    for cell in study.cells:
        if not cell.missing:
            alike[cell.task, cell.method, repr(cell.tune)].append(cell)
    found: dict[str, pathlib.PurePath] = {}
    for key in dict.fromkeys((cell.task, cell.method, repr(cell.tune)) for cell in cells):
        for cell in alike[key] if len(alike[key]) > 1 else ():
            try:
                found.setdefault(_identity(resolved(cell)), own_places[cell.name])
            except UserError:
                pass  # this is reported when the cell itself is requested
    return found


def _own_places(cells: Sequence[Cell]) -> dict[str, pathlib.PurePath]:
    """The directory of each cell, with a number added if different names would give the same directory."""
    found: dict[str, pathlib.PurePath] = {}
    taken: collections.Counter[pathlib.PurePath] = collections.Counter()
    for cell in cells:
        place = pathlib.PurePath(slug(cell.column), slug(cell.row))
        taken[place] += 1
        found[cell.name] = place.with_name(f"{place.name}~{taken[place]}") if taken[place] > 1 else place
    return found


def resolve(cell: Cell, seed: int, rounds: float, overrides: Mapping) -> RunConfig:
    """Returns the configuration of a cell's run with a seed; `rounds` is a share of its task's rounds, or a number."""
    changed = task_file.overridden(cell.overrides, overrides, cell.task)
    config = configs.resolve(cell.task, cell.method, seed=seed, overrides=changed)
    if rounds == 1:
        return config
    fewer = int(rounds) if rounds >= 2 else max(1, math.ceil(config.train.rounds * rounds - 1e-9))
    # If there are fewer rounds than between two evaluations, there is one evaluation at the end.
    return dataclasses.replace(config, train=dataclasses.replace(config.train, rounds=fewer))


_TRIALS = "trials"
_RATE = "train.learning_rate"


def tuned(
    planned: StudyPlan, batch: Batch, elsewhere: pathlib.Path | None, run_trial: Callable[[Job], None]
) -> StudyPlan:
    """Chooses the settings of the cells that list values to choose from.

    Each point of a cell is run once, with the seed and the share of rounds in `Cell.tuning`. The point with the best
    value on validation examples wins, and the first of equal ones. Test examples are not used. The index keeps the
    choice and every point's value, so that nothing is run twice, even if another machine continues the study.

    Args:
      planned: The study.
      batch: The runs of the study.
      elsewhere: A directory of results of this study whose choices are used; None for no such directory.
      run_trial: Runs a trial, and notes the reason if it fails.

    Returns:
      The study with the chosen values in its cells. A cell is missing, with the reason, if all of its points diverged.
      If one of its trials failed for another reason, it is missing until the same command has made that trial.

    Raises:
      UserError: If a cell's runs hold out no validation examples, trials end before a round in which clients join or
        data change, or a value is wrong.
    """
    cells = [cell for cell in planned.cells if cell.tune and not cell.missing]
    own = _own_places(planned.study.cells)  # separate directories, even for names that look alike
    jobs = {
        cell.name: [
            _trial(cell, values, own[cell.name] / f"{each}", planned) for each, values in enumerate(points(cell))
        ]
        for cell in cells
    }
    marks = {cell.name: mark(cell, planned) for cell in cells}
    known = dict(batch.index["tuned"])
    there = elsewhere and read_index(elsewhere, "study") or {"tuned": {}}
    for name, choice in there["tuned"].items():
        if choice["mark"] == marks.get(name) != known.get(name, {}).get("mark"):
            known[name] = choice
    wanted = [cell for cell in cells if known.get(cell.name, {}).get("mark") != marks[cell.name]]
    trials = [job for cell in wanted for job in jobs[cell.name]]
    batch.check(trials)  # there may be trials of another grid
    batch.clear(trials)
    to_do = [job for job in trials if not batch.done(job)]
    if to_do:
        batch.run(to_do, each=run_trial)
    # A trial that failed for another reason than diverging, e.g. a full disk, shows nothing about its settings.
    waiting = {cell.name for cell in wanted if not all(map(batch.done, jobs[cell.name]))}
    wanted = [cell for cell in wanted if cell.name not in waiting]
    for cell in wanted:
        scores = [search.validation(batch.place(job), cell.tuning.select) for job in jobs[cell.name]]
        tried = [
            {"values": values, "validation": finite(score)} for values, score in zip(points(cell), scores, strict=True)
        ]
        known[cell.name] = {"mark": marks[cell.name], "points": tried}
    batch.note({**batch.index, "tuned": dict(sorted(known.items()))})
    # The index has all that readers need of the trials.
    shutil.rmtree(batch.out / RESULTS / _TRIALS, ignore_errors=True)
    chosen = {
        cell.name: dataclasses.replace(cell, tune={}, missing=TRIAL_FAILED)
        if cell.name in waiting
        else _with_best(cell, known[cell.name]["points"])
        for cell in cells
    }
    changed = dataclasses.replace(
        planned.study, cells=tuple(chosen.get(cell.name, cell) for cell in planned.study.cells)
    )
    names = [cell.name for cell in planned.cells]
    return plan(changed, only=names, seeds=planned.seeds, rounds=planned.rounds, overrides=planned.overrides)


def points(cell: Cell) -> list[dict]:
    """Returns the settings from which a cell chooses: all combinations of its values, by keys with their section.

    Raises:
      UserError: For a key that is neither the method's nor of [train].
    """
    source = find_source(cell.task, cell.method, cell.overrides)  # the row's method may be a label in the task
    keys = [method_key(key, source) for key in cell.tune]
    return [dict(zip(keys, values, strict=True)) for values in itertools.product(*cell.tune.values())]


def mark(cell: Cell, planned: StudyPlan) -> str:
    """Returns a short hash of all that a choice depends on: the settings in the task, the study and the command,
    without defaults.
    """
    task = task_file.settings_in(task_file.load_task(cell.task).contents)
    task["algorithms"] = task.get("algorithms", {}).get(cell.method, {})
    tuning, rounds = dataclasses.asdict(cell.tuning), float(planned.rounds)
    overrides = [_of_method(each, cell.method) for each in (cell.overrides, planned.overrides)]
    settings = [task, cell.method, overrides[0], cell.tune, tuning, rounds, overrides[1]]
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _of_method(overrides: Mapping, method: str) -> dict:
    """The overrides without those of other methods, so that a further method in a study changes no other choice."""
    own = {name: table for name, table in overrides.get("algorithms", {}).items() if name == method}
    return {**overrides, "algorithms": own}


def gentler(choice: Mapping, diverged: Mapping) -> dict | None:
    """Returns the choice of a cell whose runs diverged although the trial had not. The values are marked as diverged;
    `tuned` no longer chooses them, or a learning rate that is at least as high. None if no other values are left.
    """
    tried = [{**point, "diverged": True} if point["values"] == diverged else point for point in choice["points"]]
    return {**choice, "points": tried} if _able(tried) else None


def _able(tried: Sequence[Mapping]) -> list[Mapping]:
    """The points from which a cell's settings can be chosen."""
    wild = [point["values"] for point in tried if point.get("diverged")]

    def as_wild(values: Mapping) -> bool:
        return any(values == each or _RATE in values and values[_RATE] >= each[_RATE] for each in wild)

    return [point for point in tried if point["validation"] is not None and not as_wild(point["values"])]


def _trial(cell: Cell, values: Mapping, own: pathlib.PurePath, planned: StudyPlan) -> Job:
    """The run of one point of a cell, in its own directory below that of trials."""
    tuning = cell.tuning
    changed = task_file.overridden(planned.overrides, _nested(values), cell.task)
    config = resolve(cell, tuning.seed, planned.rounds, changed)
    if not config.has_validation:
        raise UserError(f"{cell.name} is tuned, which needs validation examples, e.g. set.dataset.validation = 0.1")
    search.check_select(tuning.select, config, f"select of [tuning], in {cell.name},")
    rounds = max(1, math.ceil(config.train.rounds * tuning.rounds - 1e-9))
    every = dataclasses.replace(config.evaluation, every=rounds)  # only its end decides
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, rounds=rounds), evaluation=every)
    if error := configs.never_happens(config):
        raise UserError(f"{cell.name} is tuned with a share of its rounds, {tuning.rounds:g} of [tuning]: {error}")
    title = f"{cell.column} / {cell.row}, trial {', '.join(f'{key} = {value}' for key, value in values.items())}"
    return Job(config, pathlib.PurePath(RUNS, _TRIALS, own, f"seed-{tuning.seed}"), title)


def _nested(values: Mapping) -> Mapping:
    return functools.reduce(task_file.merged, (sweep.nested(key, value) for key, value in values.items()), {})


def _with_best(cell: Cell, tried: Sequence[Mapping]) -> Cell:
    able, metric = _able(tried), on_validation(cell.tuning.select)
    if not able:
        lacking = f"failed, diverged or had no {metric.column} with each of {counted(len(tried), 'setting')}"
        return dataclasses.replace(cell, tune={}, missing=lacking)
    best = min(able, key=lambda point: search.worst_last(point["validation"], metric))
    changed = task_file.overridden(cell.overrides, _nested(best["values"]), cell.task)
    return dataclasses.replace(cell, tune={}, tuned=best["values"], overrides=changed)
