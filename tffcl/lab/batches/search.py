"""Choosing a setting: by accuracy on validation examples, over a grid or at random, with early stopping of bad ones."""

import dataclasses
import functools
import math
import pathlib
import re
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tffcl.errors import UserError
from tffcl.lab.batches import sweep
from tffcl.lab.batches.sweep import Axis, Plan, Point, contents_of, jobs_of
from tffcl.lab.tasks.method_settings import MethodSource
from tffcl.lab.tasks.resolve import method_key
from tffcl.runs.metrics import DOWN, Metric, of_column, on_validation
from tffcl.runs.run_directory import RunDirectory, State

if TYPE_CHECKING:
    from tffcl.lab.batches.batch import Batch, Job

_PICKED = "picked"
_RANGE = re.compile(r"\s*([^,]+?)\s*\.\.\s*([^,]+?)\s*")


@dataclasses.dataclass(frozen=True)
class SearchOptions:
    """How a setting is chosen.

    Attributes:
      select: Which metric on validation examples decides, see `runs.metrics.on_validation`.
      halving: η of successive halving: after a share of the rounds the best 1/η of the points go on, and so on up to
        all rounds; 0 runs all points to their end.
      fresh_seeds: How many seeds, none of them used in choosing, the picked point is tested with.
    """

    select: str
    halving: int = 0
    fresh_seeds: int = 3

    def __post_init__(self):
        if on_validation(self.select) is None:
            raise UserError(
                f"--select {self.select!r} must be cluster or global: local accuracy is taken on test examples only; "
                "by another metric e.g. cluster_auc"
            )
        if self.halving and self.halving < 2:
            raise UserError(f"--halving {self.halving} must be 2 or more: the best 1/η of the points go on")
        if self.fresh_seeds < 1:
            raise UserError(f"--fresh-seeds {self.fresh_seeds} must be 1 or more")


def random_axes(texts: Sequence[tuple[str, str]], algorithm: str | MethodSource, samples: int, seed: int):
    """Draws points at random.

    Args:
      texts: `(option, KEY=V1,V2,...)` for each setting; KEY=LOW..HIGH is a range, drawn from evenly, or evenly in its
        logarithm if it is positive and spans a factor of ten or more; whole numbers at both ends give whole numbers.
      algorithm: As in `sweep.parse_axis`.
      samples: How many points.
      seed: Decides them.

    Returns:
      `(axes, points)`: the points' values, distinct, in the order drawn; the axes have the values that occur.

    Raises:
      UserError: As `sweep.parse_axis`, or if there are fewer different points than samples.
    """
    if samples < 2:
        raise UserError(f"--samples {samples} must be 2 or more")
    rng, keys, draws = np.random.default_rng([seed, 0x5EA4C]), [], []
    for option, text in texts:
        key, equals, values = (part.strip() for part in text.partition("="))
        found = _RANGE.fullmatch(values) if equals else None
        if found:
            keys.append(method_key(key, algorithm))
            draws.append(_range(f"{option} {text!r}", *found.groups()))
        else:
            axis = sweep.parse_axis(text, algorithm, option)
            keys.append(axis.key)
            draws.append(lambda rng, values=axis.values: values[rng.integers(len(values))])
    points: list[tuple] = []
    for _ in range(100 * samples):
        drawn = tuple(draw(rng) for draw in draws)
        if drawn not in points:
            points.append(drawn)
        if len(points) == samples:
            break
    else:
        raise UserError(f"--samples {samples}: there are only {len(points)} different points")
    axes = [Axis(key, tuple(dict.fromkeys(point[place] for point in points))) for place, key in enumerate(keys)]
    return axes, points


def _range(said: str, low: str, high: str):
    try:
        ends = float(low), float(high)
    except ValueError:
        raise UserError(f"{said}: a range is LOW..HIGH, two numbers") from None
    if not ends[0] < ends[1] or not all(map(math.isfinite, ends)):
        raise UserError(f"{said}: the low end of a range must be below the high one")
    whole = all(re.fullmatch(r"[+-]?\d+", each) for each in (low, high))
    logarithmic = ends[0] > 0 and ends[1] / ends[0] >= 10

    def draw(rng):
        value = math.exp(rng.uniform(*map(math.log, ends))) if logarithmic else rng.uniform(*ends)
        return min(max(round(value), int(low)), int(high)) if whole else float(f"{value:.3g}")

    return draw


def rungs(points: int, rounds: int, every: int, halving: int) -> list[tuple[int, int]]:
    """Returns after which rounds how many points are compared, the last with all rounds.

    Args:
      points: How many there are.
      rounds: Of a whole run.
      every: Rounds between evaluations; bad points are stopped at evaluations only.
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
    planned: Plan,
    out: str | pathlib.Path,
    options: SearchOptions,
    *,
    data_dir: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    show_progress: bool = True,
) -> dict:
    """Picks the point with the best accuracy on validation examples, and tests that one alone, over fresh seeds.

    Args:
      planned: The points; each run must hold validation examples out (`dataset.validation`).
      out: Directory; runs are in `OUT/<key>-<value>/seed-<n>/` and `OUT/picked/seed-<n>/`, what was found, so far, in
        `OUT/batch.json`.
      options: How to choose.
      data_dir: As in `run.run`.
      resume: Go on with what is there.
      overwrite: Runs that are there are deleted.
      show_progress: A line and a bar a run.

    Returns:
      The contents of batch.json.

    Raises:
      UserError: If runs hold no validation examples out, a place holds another run, or all points diverge.
    """
    if any(not run.dataset.get("validation") for point in planned.points for run in point.runs):
        raise UserError(
            "--select needs validation examples, e.g. --set dataset.validation=0.1: a share of each client's "
            "training data"
        )
    metric = on_validation(options.select)
    name = metric.source[2] if metric.source[1] == "metrics" else "accuracy"
    if name != "accuracy" and any(name not in run.evaluation.metrics for point in planned.points for run in point.runs):
        raise UserError(f"--select {options.select} needs the metric: --set 'evaluation.metrics=[\"{name}\"]'")
    from tffcl.lab.batches import batch as batches  # which imports TensorFlow: a mistake is told before

    batch = batches.Batch("search", out, batches.Options(data_dir, resume, overwrite, show_progress))
    points = list(zip(planned.points, jobs_of(planned), strict=True))
    contents = {**contents_of(planned), "select": options.select, "rungs": [], "picked": None}
    with batch.begun([job for _, own in points for job in own], contents):
        if overwrite:
            for place in (batch.out / _PICKED).glob("seed-*"):
                RunDirectory(place).clear()
        first = planned.points[0].runs[0]
        for until, count in rungs(len(points), first.train.rounds, first.evaluation.every, options.halving):
            points = points[:count]
            found = scores(batch, [own for _, own in points], options.select, until)
            _check_scores(found, planned, options.select)
            order = sorted(range(len(points)), key=lambda place: _worst_last(found[place], metric))
            noted = [{"values": list(points[place][0].values), "score": _json(found[place])} for place in order]
            contents["rungs"].append({"rounds": until, "points": noted})
            batch.note(contents)
            points, best = [points[place] for place in order], found[order[0]]
        contents["picked"] = _tested(batch, planned, points[0][0], options) | {"validation": best}
        batch.note(contents)
    return batch.index


def scores(
    batch: "Batch", points: "Sequence[Sequence[Job]]", select: str, until: int | None = None, **how
) -> list[float]:
    """Runs what points lack, and takes their accuracies on validation examples.

    Args:
      batch: To which they belong.
      points: The jobs of each, one a seed.
      select: Which metric, as `SearchOptions.select`.
      until: The round after which it is taken; default the end.
      **how: Further arguments of `Batch.run`.

    Returns:
      The mean over its seeds for each point; minus infinity if a seed has diverged or failed, NaN if the method has no
      such accuracy, as a clustered one has no global model.
    """
    to_do = [job for own in points for job in own if not batch.done(job, until)]
    if to_do:
        batch.run(to_do, until=until, **how)
    return [statistics.fmean(validation(batch.place(job), select, until) for job in own) for own in points]


def validation(place: pathlib.Path, select: str, until: int | None = None) -> float:
    """Returns the accuracy on validation examples of the run in a directory, as of one job in `scores`."""
    directory, metric = RunDirectory(place), on_validation(select)
    column = metric.column
    if until is not None and until <= directory.rounds_done and directory.state is not State.DIVERGED:
        rounds = directory.rounds()
        return float(rounds.floats(column)[until - 1]) if column in rounds.names else math.nan
    summary = directory.summary()  # before that round where its budget of privacy was spent: what it has come to then
    if summary is None:
        return -math.inf
    value = functools.reduce(lambda found, key: found.get(key, {}), metric.source[:-1], summary).get("mean")
    return math.nan if value is None else value


def _worst_last(score: float, metric: Metric) -> float:
    """By what points are sorted; those that diverged, at minus infinity, come last."""
    return score if metric.better == DOWN and math.isfinite(score) else -score


def _check_scores(found: Sequence[float], planned: Plan, select: str):
    if any(map(math.isnan, found)):
        raise UserError(
            f"{planned.algorithm} has no {on_validation(select).column.removeprefix('validation_')} on validation "
            "examples; --select cluster is there for every method"
        )
    if not any(map(math.isfinite, found)):
        keys = " and ".join(axis.key for axis in planned.axes)
        raise UserError(f"all {len(found)} points diverged; give other values of {keys}")


def _json(score: float) -> float | None:
    return score if math.isfinite(score) else None


def _tested(batch: "Batch", planned: Plan, point: Point, options: SearchOptions) -> dict:
    """Runs the picked point to its end with seeds that chose nothing; returns what the index says of it."""
    from tffcl.lab.batches.batch import Job

    seeds = [max(planned.seeds) + 1 + number for number in range(options.fresh_seeds)]
    title = f"picked: {sweep.describe(planned.axes, point.values)}, fresh seed"
    jobs = [
        Job(dataclasses.replace(point.runs[0], seed=seed), pathlib.PurePath(_PICKED, f"seed-{seed}"), f"{title} {seed}")
        for seed in seeds
    ]
    batch.check(jobs, resume=True)
    summaries = batch.run(jobs)
    test = {
        kind: [each and each["accuracy"][kind]["mean"] for each in summaries]  # None where it diverged
        for kind in ("cluster", "local", "global")
    }
    metric = of_column(on_validation(options.select).column.removeprefix("validation_"))
    if metric.source[0] == "metrics":
        test[options.select] = [
            each and each["metrics"][metric.source[1]][metric.source[2]]["mean"] for each in summaries
        ]
    return {"values": list(point.values), "seeds": seeds, "test": test}
