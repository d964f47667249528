"""Sweeps: one method with each value of a setting, or of two settings; a run for each value and seed."""

import dataclasses
import itertools
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tffcl.display import counted
from tffcl.errors import Option, UserError, tell
from tffcl.lab.reporting import report
from tffcl.lab.reporting.number_format import show_value
from tffcl.lab.tasks import resolve as configs
from tffcl.lab.tasks import task_file
from tffcl.lab.tasks.method_settings import MethodSource
from tffcl.lab.tasks.resolve import RunConfig
from tffcl.validation import check_kind, check_value, each_once

if TYPE_CHECKING:
    from tffcl.algorithms.method import Method
    from tffcl.clients.population import Population
    from tffcl.lab.batches.batch import Batch, Job
    from tffcl.lab.batches.run import ObjectRun
    from tffcl.lab.batches.summaries import Summaries
    from tffcl.runs.callbacks import Callback
    from tffcl.runtime import RemoteWorkers

_RANGE = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?\.\.[-+]?[\d.]+(e[-+]?\d+)?")  # a range, from which `search` draws values
_LONGEST_NAME = 80  # characters of a directory's name; file systems allow 255 bytes


@dataclasses.dataclass(frozen=True)
class Axis:
    """A setting and the values that it takes.

    Attributes:
      key: The key of the setting with its section, e.g. "train.local_epochs".
      values: Two or more values.
    """

    key: str
    values: tuple

    @property
    def name(self) -> str:
        """The key without its section, as in names of directories."""
        return self.key.rpartition(".")[2]

    @property
    def label(self) -> str:
        """The name in tables and figures, e.g. "local epochs" or "partition clients"."""
        parts = self.key.split(".")
        known = 2 if parts[0] == "algorithms" else parts[0] == "train"
        return " ".join(parts[known:]).replace("_", " ")


@dataclasses.dataclass(frozen=True)
class Point:
    """One value of each axis, and the runs with it.

    Attributes:
      values: One value for each axis.
      directory: The point's directory in that of the sweep.
      runs: One run for each seed.
    """

    values: tuple
    directory: pathlib.PurePath
    runs: "tuple[RunConfig | ObjectRun, ...]"


@dataclasses.dataclass(frozen=True)
class Plan:
    """A sweep before it runs.

    Attributes:
      task: The name of the task.
      algorithm: The label of a method's table; by default the method's name.
      axes: One or two axes; the first is the x axis of the figure, the second has a line for each value.
      seeds: The seeds of each point's runs.
      points: All or some combinations of the axes' values.
      runs_of: Returns the runs of a point's values with given seeds.
    """

    task: str
    algorithm: str
    axes: tuple[Axis, ...]
    seeds: tuple[int, ...]
    points: tuple[Point, ...]
    runs_of: "Callable[[tuple, Sequence[int]], tuple[RunConfig | ObjectRun, ...]]"


def parse_axis(text: str, algorithm: str | MethodSource, option: str = "--over") -> Axis:
    """Turns "local_epochs=1,5,10" into an axis.

    Args:
      text: KEY=V1,V2,...; the values are TOML, or else text, as in `resolve.parse_overrides`.
      algorithm: The method whose parameters can be named without "algorithms.NAME." before them.
      option: The option that had the text, for messages.

    Raises:
      UserError: If `text` has another form, the key is unknown, or there are not two or more values, all different.
    """
    key, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not key or not values:
        raise UserError(f"{option} {text!r} is not KEY=VALUE,VALUE,..., e.g. train.local_epochs=1,5,10")
    key = configs.method_key(key, algorithm)
    # A TOML list keeps commas within quotes or brackets.
    listed = _parsed(key, f"[{values}]")
    if not isinstance(listed, list):  # some values are bare words
        listed = [_parsed(key, value.strip()) for value in _split(values)]
    if values.endswith(",") or any(value == "" or value is task_file.UNSET for value in listed):
        raise UserError(f"{option} {text!r} has an empty value between two commas or at an end")
    return _checked_axis(key, listed, option)


def _split(values: str) -> list[str]:
    """The parts between commas that are not within brackets or quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in values:
        if letter == "," and not depth and not quote:
            parts.append("")
            continue
        parts[-1] += letter
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        else:
            depth += (letter in "[{") - (letter in "]}")
    return parts


def _parsed(key: str, value: str):
    found = configs.parse_overrides([f"{key}={value}"])
    for part in key.split("."):
        found = found[part]
    return found


def _checked_axis(key: str, values: Sequence, option: str) -> Axis:
    each_once(f"{option} {key}", values)
    ranges = [value for value in values if isinstance(value, str) and _RANGE.fullmatch(value)]
    if ranges:
        needed = Option("stands alone and needs --samples N and --select cluster or global", "is for tffcl.search")
        raise UserError(f"{option} {key}: a range, {ranges[0]}, {needed}")
    if len(values) < 2:
        raise UserError(f"{option} {key} has {counted(len(values), 'value')}; a sweep needs two or more")
    return Axis(key, tuple(values))


def plan(
    task: str | pathlib.Path,
    algorithm: str,
    axes: Sequence[Axis],
    *,
    seeds: Sequence[int] = (0,),
    overrides: Mapping | None = None,
    points: Sequence[tuple] | None = None,
) -> Plan:
    """Makes the configurations of all runs, so that a wrong value is refused before anything runs.

    Args:
      task: A task file or a name in `tasks/`.
      algorithm: The label of a method's table; by default the method's name.
      axes: One or two axes.
      seeds: The seeds, all different.
      overrides: Nested tables that replace the file's values, for all runs.
      points: The values of each point; default all combinations of the axes' values.

    Raises:
      UserError: As in `resolve.resolve`, or if two runs would be the same, or a key is given twice.
    """
    _check_axes(axes, overrides or {})

    def runs_of(values: tuple, seeds: Sequence[int]) -> tuple[RunConfig, ...]:
        changed = overrides or {}
        for axis, value in zip(axes, values, strict=True):
            changed = task_file.merged(changed, nested(axis.key, value))
        return tuple(configs.resolve(task, algorithm, seed=seed, overrides=changed) for seed in seeds)

    return _planned(algorithm, axes, seeds, points, runs_of)


def _planned(algorithm: str, axes: Sequence[Axis], seeds: Sequence[int], points, runs_of: Callable) -> Plan:
    """A plan of the given points, or of all combinations of the axes' values."""
    wanted = itertools.product(*(axis.values for axis in axes)) if points is None else points
    found = [Point(values, _directory(axes, values), runs_of(values, seeds)) for values in wanted]
    _check_different(axes, found)
    first = found[0].runs[0]
    return Plan(first.task, algorithm or first.algorithm, tuple(axes), tuple(seeds), tuple(found), runs_of)


def _check_axes(axes: Sequence[Axis], overrides: Mapping):
    if len(axes) not in (1, 2):
        raise UserError(f"a sweep is over one setting or two, not {len(axes)}")
    if len(axes) == 2 and axes[0].key == axes[1].key:
        raise UserError(f"--over and --and name the same key {axes[0].key}; give another second one")
    for axis in axes:
        found = overrides
        for part in axis.key.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        if found is not None:
            raise UserError(f"{axis.key} is swept over and set to {show_value(found)}, too; leave one of the two out")


def nested(key: str, value) -> dict:
    """Puts a value into the tables of its key: `nested("train.rounds", 3)` is `{"train": {"rounds": 3}}`."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def _directory(axes: Sequence[Axis], values: Sequence) -> pathlib.PurePath:
    parts = (f"{axis.name}-{show_value(value)}" for axis, value in zip(axes, values, strict=True))
    return pathlib.PurePath(*(re.sub(r"[^\w.+-]+", "_", part, flags=re.ASCII)[:_LONGEST_NAME] for part in parts))


def _check_different(axes: Sequence[Axis], points: Sequence[Point]):
    """Raises UserError if two points are the same run, which would show a flat line for a setting without effect."""
    for place, point in enumerate(points):
        for other in points[:place]:
            names = f"{describe(axes, other.values)} and {describe(axes, point.values)}"
            if other.runs[0].as_dict() == point.runs[0].as_dict():
                algorithm = point.runs[0].algorithm
                raise UserError(f"{names} are the same run of {algorithm}: another value wins, or it has no such key")
            if other.directory == point.directory:
                raise UserError(f"{names} would go into one directory, {point.directory}; give values that differ more")


def describe(axes: Sequence[Axis], values: Sequence) -> str:
    """Returns a point in words: "threshold 210, local epochs 5"."""
    return ", ".join(f"{axis.label} {show_value(value)}" for axis, value in zip(axes, values, strict=True))


def sweep(
    method: "str | Method | Callable[..., Method]",
    over: Mapping[str, Sequence],
    population: "Population | None" = None,
    out: str | pathlib.Path = "runs/sweep",
    *,
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
) -> "Summaries":
    """Runs one method with each value of a setting, or of two settings, on clients made in Python or on a task.

        build = lambda num_clusters, seed: build_pacfl(model, training, PACFLParameters(num_clusters=num_clusters))
        swept = tffcl.sweep(build, {"num_clusters": [2, 3, 4]}, clients, rounds=50, clients_per_round=10, seeds=[0, 1])
        swept.frame, swept.summary_frame, swept.result(3, seed=1)

    Every run is written to `OUT/<key>-<value>[/<key>-<value>]/seed-<n>/`. Beside the runs are `sweep.csv`, which is
    rewritten after each run, and `report.html`.

    Args:
      method: A function that returns a method; it is called with the settings by name, and with `seed` if it has such a
        parameter. If the settings are the protocol's, the method itself. With a task, the label of a method there.
      over: Maps one or two settings to two or more values each: numbers, text or bools. With a method made in Python
        the settings are parameters of the function, or of the protocol, such as clients_per_round. With a task they are
        keys as `tffcl sweep --over` takes them.
      population: The clients; None with a task.
      out: Directory of the sweep.
      task: A task file, or a name in `tasks/`. With a population, the name of clients and protocol together in tables.
      seeds: The seeds of each point's runs.
      later: As in `tffcl.train`.
      memory: As in `tffcl.train`.
      overrides: With a task, nested tables that replace the file's values, for all runs.
      data_dir: The directory with the data sets of tasks.
      resume: Go on with runs that were started; runs that have ended are kept in any case, so that values and seeds can
        be added.
      overwrite: Delete the runs that are there.
      show_progress: Whether to print a line and a bar for each run.
      workers: As in `tffcl.train`.
      callbacks: Objects that are called in each run and may end it, see `tffcl.Callback`.
      **protocol: As in `tffcl.compare`.

    Raises:
      UserError: For errors that the user can correct, mostly before anything runs. Finished runs are kept.
    """
    planned = plan_given(
        method, over, population, task=task, seeds=seeds, later=later, memory=memory, overrides=overrides,
        protocol=protocol,
    )  # fmt: skip
    found = run_plan(
        planned, out, data_dir=data_dir, resume=resume, overwrite=overwrite, show_progress=show_progress,
        workers=workers, callbacks=callbacks,
    )  # fmt: skip
    if any(found):
        if show_progress:
            report.say_drawing(len(found))
        report.write_report(found.out)
    return found


def plan_given(
    method: "str | Method | Callable[..., Method]",
    over: Mapping[str, Sequence],
    population: "Population | None",
    *,
    task: str | None,
    seeds: Iterable[int],
    later: "Mapping[int, Population] | None",
    memory: str | int | None,
    overrides: Mapping | None,
    protocol: Mapping,
    draw: Callable[[Sequence[tuple]], tuple[list[Axis], list[tuple] | None]] | None = None,
) -> Plan:
    """Makes the plan of a call of `sweep` or `search` in Python; arguments as in `sweep`, and

    Args:
      draw: Maps keys, each with its values or with a range as text, to axes and points; default all points.

    Raises:
      UserError: As in `plan`, or if runs do not fit the clients.
    """
    from tffcl.lab.batches.run import PROTOCOL, Clients, ObjectRun, built, check_runs_fit, check_seeds, protocols

    check_kind("over", over, Mapping, 'a dict of settings to their values, {"num_clusters": [2, 3, 4]}')
    seeds = check_seeds(seeds)
    for key, values in over.items():
        is_range = draw and isinstance(values, str) and _RANGE.fullmatch(values)
        if not is_range and (isinstance(values, (str, Mapping)) or not isinstance(values, Iterable)):
            ranges = ', or a range, "0.001..0.1"' if draw else ""
            raise UserError(f"over[{key!r}] is {str(values)[:100]!r}; it must be a list of values{ranges}")
    choices = [(key, values if isinstance(values, str) else list(values)) for key, values in over.items()]
    draw = draw or (lambda choices: ([_checked_axis(*each, "over") for each in choices], None))
    if isinstance(method, str):
        if task is None or population is not None or protocol:
            raise UserError(f"method is the label {method!r} of a task: give task=, and neither clients nor protocol")
        source = configs.find_source(task, method, overrides)
        axes, points = draw([(configs.method_key(key, source), values) for key, values in choices])
        return plan(task, method, axes, seeds=seeds, overrides=overrides, points=points)
    for place, (key, values) in enumerate(choices):
        if not isinstance(values, str):
            values = [check_value(f"a value of over[{key!r}]", each, bool | int | float | str) for each in values]
        choices[place] = f"train.{key}" if key in PROTOCOL else key, values
    axes, points = draw(choices)
    _check_axes(axes, {"train": protocol})
    clients = Clients(population, later or {}, task or "train", memory)  # type: ignore[arg-type]  # which checks it

    def runs_of(values: tuple, seeds: Sequence[int]) -> tuple[ObjectRun, ...]:
        of_protocol, of_method = dict(protocol), {}
        for axis, value in zip(axes, values, strict=True):
            (of_protocol if axis.key.startswith("train.") else of_method)[axis.name] = value
        made = zip(built("method", method, of_method, seeds), protocols(seeds, of_protocol), strict=True)
        return tuple(ObjectRun(own.name, own, each, clients, of_method) for own, each in made)

    planned = _planned("", axes, seeds, points, runs_of)
    runs = [run for point in planned.points for run in point.runs]
    check_runs_fit(runs)
    _tell_of_equal_methods(planned)
    return planned


def _tell_of_equal_methods(planned: Plan):
    """Warns if a function makes methods from different values that are equal in config.toml. They may still differ,
    because config.toml does not note everything about a user's own objects."""
    seen: list[tuple[Point, dict]] = []
    for point in planned.points:
        made = {name: value for name, value in point.runs[0].as_dict().items() if name != "method"}
        equal = next((other for other, known in seen if known == made), None)
        if equal:
            names = f"{describe(planned.axes, equal.values)} and {describe(planned.axes, point.values)}"
            tell(
                f"{names} make the same method, as far as config.toml notes it: if the function does not use what is "
                "swept over, their rows are equal for that"
            )
            return
        seen.append((point, made))


def run_plan(planned: Plan, out: str | pathlib.Path, **how) -> "Summaries":
    """Does what `sweep` does, except for the page.

    `OUT/batch.json` lists all runs before the first one starts; values and seeds of earlier calls stay in it.

    Args:
      planned: The plan to run.
      out: Directory of the sweep.
      **how: As in `batch.Options`.

    Returns:
      The summaries, point by point, and seed by seed for each point.

    Raises:
      UserError: As in `compare.compare_runs`, or if the directory has a sweep of something else.
    """
    from tffcl.lab.batches import batch as batches  # this imports TensorFlow; mistakes are reported before
    from tffcl.lab.batches.summaries import Summaries

    batch = batches.Batch("sweep", out, batches.Options(**how))
    jobs = jobs_of(planned)
    # Only one data set is kept from run to run, so all points of a seed come before the next seed.
    order = [own[number] for number in range(len(planned.seeds)) for own in jobs]
    with batch.claimed(order, contents_of(_with_earlier(planned, order, batch)), built=True):
        found = dict(zip(order, batch.run(order, after_each=lambda: report.write_table(batch.out))))
    names = [point.values for point in planned.points for _ in point.runs]
    jobs = [job for own in jobs for job in own]
    return Summaries([found[job] for job in jobs], batch, jobs, names)


def _with_earlier(planned: Plan, asked_for: "Sequence[Job]", batch: "Batch") -> Plan:
    """Appends the values and seeds of a sweep's earlier calls to those of a plan.

    Raises:
      UserError: If the sweep is of something else, or a run that has ended has other settings than in the plan.
    """
    there, asked = batch.index, contents_of(planned)
    if there is None:
        return planned
    if any(there[key] != asked[key] for key in ("task", "algorithm", "keys")):
        what = " over ".join([there["algorithm"], " and ".join(there["keys"])])
        raise UserError(f"{batch.out} has a sweep of {what}, task {there['task']}; give another directory")
    values = [point.values for point in planned.points]
    values += [each for each in (tuple(point["values"]) for point in there["points"]) if each not in values]
    seeds = list(dict.fromkeys([*planned.seeds, *there["seeds"]]))
    whole = _planned(planned.algorithm, planned.axes, seeds, values, planned.runs_of)
    places = {job.place for job in asked_for}
    earlier = [job for own in jobs_of(whole) for job in own if job.place not in places and batch.done(job)]
    batch.check(earlier, resume=True)
    return whole


def jobs_of(planned: Plan) -> "list[list[Job]]":
    """Returns the jobs of each point, one for each seed, in `<key>-<value>[/<key>-<value>]/seed-<n>/`."""
    from tffcl.lab.batches.batch import Job

    names = [describe(planned.axes, point.values) for point in planned.points]
    return [
        [Job(run, point.directory / f"seed-{run.seed}", f"{name}, seed {run.seed}") for run in point.runs]
        for name, point in zip(names, planned.points, strict=True)
    ]


def contents_of(planned: Plan) -> dict:
    """Returns the entries of a plan in the index of a batch."""
    return {
        "task": planned.task,
        "algorithm": planned.algorithm,
        "seeds": list(planned.seeds),
        "keys": [axis.key for axis in planned.axes],
        "labels": [axis.label for axis in planned.axes],
        "points": [{"values": list(point.values), "directory": point.directory.as_posix()} for point in planned.points],
    }
