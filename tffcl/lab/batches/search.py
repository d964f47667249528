"""Searches: chooses settings by a metric on validation examples, from a grid or at random, with successive halving."""

import dataclasses
import functools
import math
import pathlib
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tffcl.display import counted
from tffcl.errors import Option, UserError, argument
from tffcl.files import finite
from tffcl.lab.batches import sweep
from tffcl.lab.batches.sweep import Axis, Plan, Point, contents_of, jobs_of
from tffcl.lab.tasks.method_settings import MethodSource
from tffcl.lab.tasks.resolve import method_key
from tffcl.runs.metrics import ACCURACIES, DOWN, Metric, check_measured, on_test, on_validation
from tffcl.runs.run_directory import CONFIG, RunDirectory, State, first_difference

if TYPE_CHECKING:
    from tffcl.algorithms.method import Method
    from tffcl.clients.population import Population
    from tffcl.lab.batches.batch import Batch, Job
    from tffcl.lab.batches.run import ObjectRun
    from tffcl.lab.batches.summaries import Found
    from tffcl.lab.tasks.resolve import RunConfig
    from tffcl.runs.callbacks import Callback
    from tffcl.runtime import RemoteWorkers

_PICKED = "picked"
_RANGE = re.compile(r"\s*([^,]+?)\s*\.\.\s*([^,]+?)\s*")


@dataclasses.dataclass(frozen=True)
class SearchOptions:
    """How a setting is chosen.

    Attributes:
      select: The metric on validation examples that decides, see `runs.metrics.on_validation`.
      halving: η of successive halving: after a share of the rounds the best 1/η of the points go on, and so on up to
        all rounds; 0 runs all points to their end.
      fresh_seeds: The number of seeds with which the picked point is tested; none of them was used for the choice.
    """

    select: str
    halving: int = 0
    fresh_seeds: int = 3

    def __post_init__(self):
        if on_validation(self.select) is None:
            raise UserError(
                f"{argument('select')} {self.select!r} must be cluster or global: local accuracy is taken on test "
                "examples only; by another metric e.g. cluster_auc"
            )
        if self.halving and self.halving < 2:
            raise UserError(f"{argument('halving')} {self.halving} must be 2 or more: the best 1/η of the points go on")
        if self.fresh_seeds < 1:
            raise UserError(f"{argument('fresh-seeds')} {self.fresh_seeds} must be 1 or more")


def random_axes(texts: Sequence[tuple[str, str]], algorithm: str | MethodSource, samples: int, seed: int):
    """Draws points at random.

    Args:
      texts: `(option, KEY=V1,V2,...)` for each setting. KEY=LOW..HIGH is a range with uniform draws, or log-uniform
        draws if it is positive and spans a factor of ten or more. Whole numbers at both ends give whole numbers.
      algorithm: As in `sweep.parse_axis`.
      samples: The number of points.
      seed: Decides which points are drawn.

    Returns:
      `(axes, points)`: the points' values, distinct, in the order of the draws; the axes have the values that occur.

    Raises:
      UserError: As in `sweep.parse_axis`, or if there are fewer different points than `samples`.
    """
    choices: list[tuple] = []
    for option, text in texts:
        key, equals, values = (part.strip() for part in text.partition("="))
        if equals and _RANGE.fullmatch(values):
            choices.append((method_key(key, algorithm), values))
        else:
            axis = sweep.parse_axis(text, algorithm, option)
            choices.append((axis.key, axis.values))
    return drawn(choices, samples, seed)


def drawn(choices: Sequence[tuple[str, Sequence]], samples: int, seed: int) -> tuple[list[Axis], list[tuple]]:
    """Draws points at random.

    Args:
      choices: Pairs of a key and its values, or the text of a range, as in `random_axes`.
      samples: As in `random_axes`, like `seed`, the result and the errors.
      seed: As in `random_axes`.
    """
    if samples < 2:
        raise UserError(f"{argument('samples')} {samples} must be 2 or more")
    rng = np.random.default_rng([seed, 0x5EA4C])
    draws = [
        _range(f"{key} {values!r}", values)
        if isinstance(values, str)
        else lambda rng, values=values: values[rng.integers(len(values))]
        for key, values in choices
    ]
    points: list[tuple] = []
    for _ in range(100 * samples):
        point = tuple(draw(rng) for draw in draws)
        if point not in points:
            points.append(point)
        if len(points) == samples:
            break
    else:
        there = f"{argument('over')} gives only {counted(len(points), 'different point')}"
        raise UserError(f"{argument('samples')} {samples}: {there}")
    axes = [Axis(key, tuple(dict.fromkeys(point[n] for point in points))) for n, (key, _) in enumerate(choices)]
    return axes, points


def _range(option: str, text: str) -> Callable:
    low, high = _RANGE.fullmatch(text).groups()  # type: ignore[union-attr]  # the caller has checked the match
    try:
        ends = float(low), float(high)
    except ValueError:
        raise UserError(f"{option}: a range is LOW..HIGH, two numbers") from None
    if not ends[0] < ends[1] or not all(map(math.isfinite, ends)):
        raise UserError(f"{option}: the low end of a range must be below the high one")
    whole = all(re.fullmatch(r"[+-]?\d+", each) for each in (low, high))
    logarithmic = ends[0] > 0 and ends[1] / ends[0] >= 10
    if whole:  # so that the two ends are as likely as each number between them
        ends = ends[0] - 0.5, ends[1] + 0.5

    def draw(rng):
        value = math.exp(rng.uniform(*map(math.log, ends))) if logarithmic else rng.uniform(*ends)
        return min(max(round(value), int(low)), int(high)) if whole else float(f"{value:.3g}")

    return draw


def rungs(points: int, rounds: int, every: int, halving: int) -> list[tuple[int, int]]:
    """Returns pairs: a round after which points are compared, and their number; the last pair has all rounds.

    Args:
      points: The number of points at the start.
      rounds: The number of rounds of a whole run.
      every: Rounds between evaluations; bad points are stopped only at evaluations.
      halving: η; 0 for one rung.
    """
    found, left = [], points
    steps = math.floor(math.log(points, halving) + 1e-9) if halving else 0
    for step in range(steps, 0, -1):
        until = min(rounds, every * math.ceil(rounds / halving**step / every))
        if until < rounds and (not found or until > found[-1][0]):
            found.append((until, left))
            left = math.ceil(left / halving)
    return [*found, (rounds, left)]


def search(
    method: "str | Method | Callable[..., Method]",
    over: Mapping[str, Sequence],
    population: "Population | None" = None,
    out: str | pathlib.Path = "runs/search",
    *,
    select: str = "cluster",
    samples: int | None = None,
    halving: int = 0,
    fresh_seeds: int = 3,
    task: str | None = None,
    seeds: Iterable[int] = (0,),
    later: "Mapping[int, Population] | None" = None,
    memory: str | int | None = None,
    overrides: Mapping | None = None,
    data_dir: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    show_progress: bool = True,
    workers: "RemoteWorkers | None" = None,
    callbacks: "Sequence[Callback]" = (),
    **protocol,
) -> "Found":
    """Picks the values of a setting, or of two, by a metric on validation examples, and tests only the picked ones.

        build = lambda learning_rate: build_fedavg(model, tffcl.LocalTraining(learning_rate=learning_rate))
        found = tffcl.search(build, {"learning_rate": [0.01, 0.03, 0.1]}, clients.with_validation(0.1), rounds=50,
                             clients_per_round=10, select="cluster")
        found.picked, found.frame, found.tests, found.result()

    Runs are in `OUT/<key>-<value>[/<key>-<value>]/seed-<n>/`, those of the picked values in `OUT/picked/seed-<n>/`.

    Args:
      method: As in `sweep`.
      over: As in `sweep`. With `samples` also a range as text: "0.001..0.1", or "1..10" for whole numbers.
      population: As in `sweep`; its clients hold validation examples, see `Population.with_validation`.
      out: Directory of the search.
      select: The metric that decides: "cluster" or "global" accuracy, or another that the model has, e.g.
        "cluster_auc".
      samples: How many points are drawn at random; default all combinations.
      halving: After a share of the rounds, only the best 1/halving of the points go on; after more rounds, the best of
        these, and so on. 0 runs all points to the end.
      fresh_seeds: The number of seeds with which the picked values are tested; none of them was used for the choice.
      seeds: The seeds of the runs that choose.
      task: As in `sweep`, like all arguments that are not described here.
      **protocol: As in `sweep`. Points are compared only at evaluations, see `evaluate_every`.

    Raises:
      UserError: For errors that the user can correct, mostly before anything runs. Finished runs are kept.
    """
    options, seeds = SearchOptions(select, halving, fresh_seeds), list(seeds)
    planned = sweep.plan_given(
        method, over, population, task=task, seeds=seeds, later=later, memory=memory, overrides=overrides,
        protocol=protocol, draw=None if samples is None else functools.partial(drawn, samples=samples, seed=seeds[0]),
    )  # fmt: skip
    return run_search(
        planned, out, options, data_dir=data_dir, resume=resume, overwrite=overwrite, show_progress=show_progress,
        workers=workers, callbacks=callbacks,
    )  # fmt: skip


def run_search(planned: Plan, out: str | pathlib.Path, options: SearchOptions, **how) -> "Found":
    """Does what `search` does.

    The results so far are in `OUT/batch.json`.

    Args:
      planned: The points; each run must hold out validation examples.
      out: Directory of the search.
      options: How to choose.
      **how: As in `batch.Options`.

    Raises:
      UserError: If runs hold out no validation examples, a run's directory has another run, or all points diverge.
    """
    steps = _checked_rungs(planned, options)
    metric = on_validation(options.select)
    from tffcl.lab.batches import batch as batches  # this imports TensorFlow; mistakes are reported before
    from tffcl.lab.batches.summaries import Found

    batch = batches.Batch("search", out, batches.Options(**how))
    points = list(zip(planned.points, jobs_of(planned), strict=True))
    contents = {**contents_of(planned), "select": options.select, "rungs": [], "picked": None}
    with batch.claimed([job for _, own in points for job in own], contents, built=True):
        if batch.options.overwrite:
            for place in (batch.out / _PICKED).glob("seed-*"):
                RunDirectory(place).clear()
        for until, count in steps:
            points = points[:count]
            # At the end, each run has its own number of rounds, which may be the setting that is searched.
            end = None if until == steps[-1][0] else until
            found = scores(batch, [own for _, own in points], options.select, end)
            _check_scores(found, planned, options.select)
            order = sorted(range(len(points)), key=lambda place: worst_last(found[place], metric))
            noted = [
                {
                    "values": list(points[place][0].values),
                    "rounds": end or points[place][0].runs[0].train.rounds,
                    "score": finite(found[place]),
                }
                for place in order
            ]
            contents["rungs"].append({"points": noted})
            batch.note(contents)
            points, best = [points[place] for place in order], found[order[0]]
        picked = points[0][0]
        jobs = _fresh(planned, picked, options)
        _clear_other_points(batch, jobs)
        batch.check(jobs, resume=True)
        summaries = batch.run(jobs)
        contents["picked"] = _tested(summaries, picked, jobs, metric, options.select) | {"validation": best}
        batch.note(contents)
    return Found(summaries, batch, jobs, [picked.values for _ in jobs])


def _checked_rungs(planned: Plan, options: SearchOptions) -> list[tuple[int, int]]:
    """The rungs of a search; UserError if its runs lack the metric by which it chooses."""
    first = planned.points[0].runs[0]
    found = rungs(len(planned.points), first.train.rounds, first.evaluate_every, options.halving)
    for run in [run for point in planned.points for run in point.runs]:
        if not run.has_validation:
            raise UserError(
                f"{Option('--select', 'select')} needs validation examples, a share of each client's training data: "
                f"{Option('--set dataset.validation=0.1', 'clients.with_validation(0.1)')}"
            )
        check_select(options.select, run, f"{argument('select')} {options.select}")
        if len(found) > 1 and run.last_change > found[0][0]:
            raise UserError(
                f"{argument('halving')} {options.halving} compares points after {counted(found[0][0], 'round')}, and "
                f"clients join or data change from round {run.last_change} on: the points would be chosen for other "
                "data than the runs'; leave halving out"
            )
    return found


def check_select(select: str, run: "RunConfig | ObjectRun", option: str):
    """Raises UserError if a run does not measure the metric by which a setting is chosen; `option` names it."""
    known = run.measured
    named = known and {name.removeprefix("validation_"): known[name] for name in known if "validation_" in name}
    check_measured(option, on_test(on_validation(select)).column, named)  # type: ignore[union-attr]


def scores(batch: "Batch", points: "Sequence[Sequence[Job]]", select: str, until: int | None) -> list[float]:
    """Runs the jobs of points that have not ended, and returns the points' metric on validation examples.

    Args:
      batch: The batch of the points.
      points: The jobs of each point, one for each seed.
      select: The metric, as `SearchOptions.select`.
      until: The round after which the metric is taken; None for the end.

    Returns:
      The mean over seeds for each point; minus infinity if a seed has diverged or failed, NaN if the method has no such
      accuracy, e.g. no global model.
    """

    def run(job: "Job"):
        batch.run_or_note(job, until)
        _check_there([validation(batch.place(job), select, until)], job.config.algorithm, select)  # at once

    to_do = [job for own in points for job in own if not batch.done(job, until)]
    if to_do:
        batch.run(to_do, until=until, each=run)
    return [statistics.fmean(validation(batch.place(job), select, until) for job in own) for own in points]


def validation(place: pathlib.Path, select: str, until: int | None = None) -> float:
    """Returns the metric on validation examples of the run in a directory, as for one job in `scores`."""
    directory, metric = RunDirectory(place), on_validation(select)
    column = metric.column
    if until is not None and until <= directory.rounds_done and directory.state is not State.DIVERGED:
        rounds = directory.rounds()
        return float(rounds.floats(column)[until - 1]) if column in rounds.names else math.nan
    summary = directory.summary()  # a run may end before that round, e.g. at its privacy budget: its final value
    if summary is None:
        return -math.inf
    value = functools.reduce(lambda found, key: found.get(key, {}), metric.source[:-1], summary).get("mean")
    return math.nan if value is None else value


def worst_last(score: float, metric: Metric) -> float:
    """Returns the key by which points are sorted; points that diverged, with minus infinity, come last."""
    return score if metric.better == DOWN and math.isfinite(score) else -score


def _check_there(found: Sequence[float], algorithm: str, select: str):
    if any(map(math.isnan, found)):
        column = on_validation(select).column.removeprefix("validation_")  # type: ignore[union-attr]
        cure = f"{argument('select')} {select.replace('global', 'cluster', 1)} is there for every method"
        if select == "cluster":
            cure = f"where labels are numbers to predict there is a metric's, e.g. {argument('select')} cluster_mae"
        elif select.startswith("cluster"):
            cure = "it is defined for no client"
        raise UserError(f"{algorithm} has no {column} on validation examples; {cure}")


def _check_scores(found: Sequence[float], planned: Plan, select: str):
    _check_there(found, planned.algorithm, select)
    if not any(map(math.isfinite, found)):
        keys = " and ".join(axis.key for axis in planned.axes)
        raise UserError(f"training diverged at each of {counted(len(found), 'point')}; give other values of {keys}")


def _fresh(planned: Plan, point: Point, options: SearchOptions) -> "list[Job]":
    """The runs of the picked point with fresh seeds, which were not used for the choice."""
    from tffcl.lab.batches.batch import Job

    seeds = [max(planned.seeds) + 1 + number for number in range(options.fresh_seeds)]
    title = f"picked: {sweep.describe(planned.axes, point.values)}, fresh seed"
    runs = planned.runs_of(point.values, seeds)
    return [Job(run, pathlib.PurePath(_PICKED, f"seed-{run.seed}"), f"{title} {run.seed}") for run in runs]


def _clear_other_points(batch: "Batch", jobs: "Sequence[Job]"):
    """Deletes the fresh runs of a point that was picked earlier. Their settings are those of a run that was used for
    the choice, and differ from those of the jobs."""

    def but_seed(settings: Mapping) -> dict:
        return {name: value for name, value in settings.items() if name != "seed"}

    runs = [RunDirectory(path.parent) for path in sorted(batch.out.glob(f"**/seed-*/{CONFIG}"))]
    fresh = [run for run in runs if run.path.parent == batch.out / _PICKED]
    tried = [but_seed(run.settings()) for run in runs if run not in fresh]
    now = but_seed(jobs[0].config.as_dict())
    for run in fresh:
        before = but_seed(run.settings())
        if first_difference(before, now) and before in tried:
            batch.say(f"{run} is deleted: it was of other values, which were picked before")
            run.clear()


def _tested(
    summaries: Sequence[Mapping | None], point: Point, jobs: "Sequence[Job]", metric: Metric, select: str
) -> dict:
    """The entry of the picked point in the index."""
    test = {
        kind: [each and each["accuracy"][kind]["mean"] for each in summaries]  # None where it diverged
        for kind in ACCURACIES
    }
    own = on_test(metric)
    if own.source[0] == "metrics":
        test[select] = [each and each["metrics"][own.source[1]][own.source[2]]["mean"] for each in summaries]
    return {"values": list(point.values), "seeds": [job.config.seed for job in jobs], "test": test}
