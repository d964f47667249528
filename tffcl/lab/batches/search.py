"""Choosing a setting: by accuracy on validation examples, over a grid or at random, with early stopping of bad ones."""

import dataclasses
import math
import pathlib
import re
import statistics
import sys
from collections.abc import Mapping, Sequence

import numpy as np

from tffcl import runtime
from tffcl.errors import UserError
from tffcl.json_files import write_json
from tffcl.lab.batches import compare, sweep
from tffcl.lab.batches.run_time_estimate import ended
from tffcl.lab.batches.sweep import Axis, Plan, Point
from tffcl.lab.reporting.search_table import CONTENTS
from tffcl.lab.tasks.method_settings import MethodSource
from tffcl.lab.tasks.resolve import method_key
from tffcl.runs.lock import locked
from tffcl.runs.run_directory import FAILED, ROUNDS, RunDirectory, check_no_run, place_in

SELECTABLE = ("cluster", "global")  # `local` is measured on the clients, on their test examples
_PICKED = "picked"
_RANGE = re.compile(r"\s*([^,]+?)\s*\.\.\s*([^,]+?)\s*")


@dataclasses.dataclass(frozen=True)
class SearchOptions:
    """How a setting is chosen.

    Attributes:
      select: Which accuracy on validation examples decides, one of `SELECTABLE`.
      halving: η of successive halving: after a share of the rounds the best 1/η of the points go on, and so on up to all
        rounds; 0 runs all points to their end.
      fresh_seeds: How many seeds, none of them used in choosing, the picked point is tested with.
    """

    select: str
    halving: int = 0
    fresh_seeds: int = 3

    def __post_init__(self):
        if self.select not in SELECTABLE:
            raise UserError(
                f"--select {self.select!r} must be cluster or global: local accuracy is taken on test examples only"
            )
        if self.halving and self.halving < 2:
            raise UserError(f"--halving {self.halving} must be 2 or more: the best 1/η of the points go on")
        if self.fresh_seeds < 1:
            raise UserError(f"--fresh-seeds {self.fresh_seeds} must be 1 or more")


def random_axes(texts: Sequence[tuple[str, str]], algorithm: str | MethodSource, samples: int, seed: int):
    """Draws points at random.

    Args:
      texts: `(option, KEY=V1,V2,...)` for each setting; KEY=LOW..HIGH is a range, drawn from evenly, or evenly in its logarithm
        if it is positive and spans a factor of ten or more; whole numbers at both ends give whole numbers.
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
      out: Directory; runs are in `OUT/<key>-<value>/seed-<n>/` and `OUT/picked/seed-<n>/`, what was found in `OUT/search.json`.
      options: How to choose.
      data_dir: As in `run.run`.
      resume: Go on with what is there.
      overwrite: Runs that are there are deleted.
      show_progress: A line and a bar a run.

    Returns:
      The contents of search.json.

    Raises:
      UserError: If runs hold no validation examples out, a place holds another run, or all points diverge.
    """
    out = pathlib.Path(out)
    if any(not run.dataset.get("validation") for point in planned.points for run in point.runs):
        raise UserError(
            "--select needs validation examples, e.g. --set dataset.validation=0.1: a share of each client's training data"
        )
    picked_seeds = [max(planned.seeds) + 1 + number for number in range(options.fresh_seeds)]
    for point in planned.points:
        for run in point.runs:
            place = place_in(out, *point.directory.parts, f"seed-{run.seed}")
            RunDirectory(place).check_claim(run.as_dict(), resume=resume, overwrite=overwrite)
    check_no_run(out, "a search", CONTENTS, ["task", "picked"], [])
    with locked(out):
        return _pick(planned, out, options, picked_seeds, {"data_dir": data_dir, "show_progress": show_progress}, overwrite)


def _pick(planned: Plan, out: pathlib.Path, options: SearchOptions, picked_seeds, how: Mapping, overwrite: bool) -> dict:
    """The search itself, in a directory whose lock is held."""
    first = planned.points[0].runs[0]
    if overwrite:
        for place in [*(out / point.directory for point in planned.points), out / _PICKED]:
            for run in place.glob("seed-*/config.toml"):
                RunDirectory(run.parent).clear()
    job = _Search(planned, out, options, how)
    noted = []
    left: list[Point] = list(planned.points)
    for until, count in rungs(len(left), first.train.rounds, first.evaluation.every, options.halving):
        left = left[:count]
        scores = {place: job.score(point, until) for place, point in enumerate(left)}
        order = sorted(scores, key=lambda place: -scores[place])
        noted.append(
            {
                "rounds": until,
                "points": [{"values": list(left[place].values), "score": _json(scores[place])} for place in order],
            }
        )
        if not math.isfinite(scores[order[0]]):
            raise UserError(
                f"all {len(left)} points diverged; give other values of {' and '.join(axis.key for axis in planned.axes)}"
            )
        left, best = [left[place] for place in order], scores[order[0]]
    tests = [job.test(left[0], seed) for seed in picked_seeds]
    contents = {
        "task": planned.task,
        "algorithm": planned.algorithm,
        "keys": [axis.key for axis in planned.axes],
        "labels": [axis.label for axis in planned.axes],
        "select": options.select,
        "seeds": list(planned.seeds),
        "rungs": noted,
        "picked": {"values": list(left[0].values), "validation": best, "seeds": picked_seeds, "test": _tested(tests)},
    }
    write_json(out / CONTENTS, contents)
    return contents


def _json(score: float) -> float | None:
    return score if math.isfinite(score) else None


def _tested(summaries: Sequence[Mapping | None]) -> dict:
    """The test accuracies of the picked point for each fresh seed, None where it diverged."""
    kinds = ("cluster", "local", "global")
    return {kind: [each and each["accuracy"][kind]["mean"] for each in summaries] for kind in kinds}


@dataclasses.dataclass
class _Search:
    """Runs, as far as they must go."""

    planned: Plan
    out: pathlib.Path
    options: SearchOptions
    how: Mapping
    ran: bool = False

    def score(self, point: Point, until: int) -> float:
        """The mean over seeds of the validation accuracy after so many rounds; minus infinity if a seed diverges."""
        values = []
        for run in point.runs:
            place = self.out / point.directory / f"seed-{run.seed}"
            done = _rounds_done(place)
            if done < until and not ended(place):  # one that has ended early has spent its budget of privacy
                self._say(f"{sweep.describe(self.planned.axes, point.values)}, seed {run.seed}: rounds {done + 1} to {until}")
                self._run(run, place, until)
            values.append(-math.inf if (place / FAILED).is_file() else _validation(place, self.options.select, until))
        return statistics.fmean(values)

    def test(self, point: Point, seed: int) -> Mapping | None:
        """Runs the picked point with a fresh seed to its end; returns its summary."""
        place, config = place_in(self.out, _PICKED, f"seed-{seed}"), dataclasses.replace(point.runs[0], seed=seed)
        RunDirectory(place).check_claim(config.as_dict(), resume=True, overwrite=False)
        if not ended(place):
            self._say(f"picked: {sweep.describe(self.planned.axes, point.values)}, fresh seed {seed}")
            self._run(config, place, config.train.rounds)
        return RunDirectory(place).summary()

    def _run(self, config, place: pathlib.Path, until: int):
        if self.ran:
            runtime.renew_local_worker(above=runtime.LARGE_WORKER)
        compare.run_or_note(config, place, resume=True, until=until, **self.how)
        self.ran = True

    def _say(self, line: str):
        if self.how["show_progress"]:
            print(line, file=sys.stderr, flush=True)


def _rounds_done(place: pathlib.Path) -> int:
    """How many rounds of a run stand in its files; those after its checkpoint are done again, with the same numbers."""
    return len(RunDirectory(place).rounds().rows) if (place / ROUNDS).is_file() else 0


def _validation(place: pathlib.Path, select: str, until: int) -> float:
    """The validation accuracy that a run noted after a round.

    Raises:
      UserError: If the method has none, as a clustered one has no global model.
    """
    directory, column = RunDirectory(place), f"validation_{select}_accuracy"
    rounds = directory.rounds()
    if until <= len(rounds.rows):
        value = rounds.floats(column)[until - 1] if column in rounds.names else math.nan
    else:  # its budget of privacy was spent before: what it has come to then
        value = ((directory.summary() or {}).get("validation", {}).get(select) or {}).get("mean")
    if value is None or math.isnan(value):
        raise UserError(f"{place} has no {select} accuracy on validation examples; --select cluster is there for every method")
    return float(value)
