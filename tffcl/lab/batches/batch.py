"""Several runs in one directory: jobs, the index that describes them, runs that exist already, and time estimates."""

import contextlib
import dataclasses
import functools
import json
import math
import pathlib
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence

import tomli_w

from tffcl import runtime
from tffcl.display import counted
from tffcl.errors import OVERWRITE, Diverged, UserError, argument, short_path, tell
from tffcl.files import inside, parse_toml, read_json, read_text, text_of_file
from tffcl.lab.batches.newcomers import NEWCOMERS, join_newcomers
from tffcl.lab.batches.run import ObjectRun, check_built, run
from tffcl.lab.reporting.batch_index import BESIDE, INDEX, KINDS, check_ours, read_index, write_index
from tffcl.lab.reporting.number_format import human_time
from tffcl.lab.tasks import task_file
from tffcl.lab.tasks.build import load_run
from tffcl.lab.tasks.resolve import RunConfig, load_run_config
from tffcl.runs.callbacks import Callback
from tffcl.runs.checkpoints import Checkpoints
from tffcl.runs.directory_lock import locked
from tffcl.runs.result import Result
from tffcl.runs.run_directory import BUILT_FROM, CHECKPOINTS, CONFIG, MARKER, SUMMARY, RunDirectory, State
from tffcl.runtime import RemoteWorkers
from tffcl.validation import check_label


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """One of several runs.

    Attributes:
      config: The configuration of the run: of a task, or of objects.
      place: The run's directory below that of the batch.
      title: The run's name in progress messages.
      newcomers: Whether held-out clients join the run at its end.
    """

    config: RunConfig | ObjectRun
    place: pathlib.PurePath
    title: str
    newcomers: bool = False


def settings_of(config: RunConfig | ObjectRun) -> dict:
    """Returns the settings of a run as read from a TOML file, without the description and source."""
    return task_file.settings_in(tomllib.loads(tomli_w.dumps(config.as_dict())))


def settings_there(place: pathlib.Path, own: RunConfig | ObjectRun | None) -> dict:
    """Returns the settings of the run in a directory; functions that the configuration `own` names are trusted."""
    try:
        return settings_of(load_run_config(place, trust_builders=own if isinstance(own, RunConfig) else False))
    except UserError:  # the run's own code is missing, or is not trusted
        return task_file.settings_in(RunDirectory(place).settings())


def settings_with_its_seed(place: pathlib.Path, config: RunConfig | ObjectRun) -> tuple[dict, dict]:
    """Returns the settings of the run in a directory, and those of a configuration with the seed of that run."""
    there, wanted = settings_there(place, config), settings_of(config)
    # If a method is made for each seed, the description of what it was built from has the seed, too.
    built, was = wanted.get(BUILT_FROM, {}), there.get(BUILT_FROM, {})
    if built.get("seed") == config.seed and was.get("seed") == there.get("seed"):
        wanted[BUILT_FROM] = {**built, "seed": was.get("seed")}
    return there, {**wanted, "seed": there.get("seed")}


def _has_kind(file: pathlib.Path) -> bool:
    """Whether a file is an index; UserError if it may be one but cannot be read."""
    text = text_of_file(file) if file.name == INDEX else ""
    try:
        return "kind" in json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return False


@dataclasses.dataclass(frozen=True)
class Options:
    """How the runs of a batch are made.

    Attributes:
      data_dir: Where data sets are; default as in `datasets`.
      resume: Whether runs that were started go on; runs that have ended are kept in any case.
      overwrite: Whether existing runs are deleted before the first run.
      show_progress: Whether to show the time for all runs, and a line and a bar for each run, on standard error.
      workers: As in `run.run`.
      callbacks: As in `run.run`; they are called for one run after the other.
    """

    data_dir: str | None = None
    resume: bool = False
    overwrite: bool = False
    show_progress: bool = True
    workers: RemoteWorkers | None = None
    callbacks: Sequence[Callback] = ()


class Batch:
    """Runs in one directory, one after the other.

    If a run diverges, it leaves `failed.json` with the reason, and the other runs go on. It is not run again when the
    batch is resumed.
    """

    def __init__(self, kind: str, out: str | pathlib.Path, options: Options, *, index: str = ""):
        """Checks that the directory is, or may become, that of such a batch.

        Args:
          kind: A name in `batch_index.KINDS`.
          out: The directory; it need not exist.
          options: How runs are made.
          index: The name of the directory in `out` that has the index; default `out` itself.

        Raises:
          UserError: If the directory has a run or another kind of batch, or a foreign file that would be overwritten.
        """
        self.kind, self.out, self.options = kind, pathlib.Path(out), options
        self._index = self.out / index
        try:
            self._check_place()
        except OSError as error:
            place = f"{argument('out')} {short_path(self.out)}"
            raise UserError(f"{place} cannot be used: {error.strerror or error}") from None
        try:
            self.index = read_index(self._index, kind)
        except UserError as error:
            raise UserError(f"{error}; without it, the same command goes on with the runs that are there") from None
        if self.index is None and self.index_file.exists():
            other = next(each for each in KINDS if read_index(self._index, each))
            raise UserError(f"{self._index} holds a {other} ({INDEX}); a {kind} needs another directory")

    def _check_place(self):
        if (self._index / MARKER).is_file() or (self._index / SUMMARY).is_file():
            raise UserError(f"{short_path(self._index)} holds a run; a {self.kind} needs another directory")
        if self.out.exists() and not self.out.is_dir():
            raise UserError(f"{self.out} is a file; {argument('out')} must be a directory")
        names = [INDEX] if self.index_file.exists() else BESIDE[self.kind]
        foreign = [self._index / name for name in names if (self._index / name).exists()]
        if foreign and self._has_lost_index():
            check_ours(self._index)
        elif foreign and not _has_kind(foreign[0]):
            raise UserError(
                f"{foreign[0]} is not of a {self.kind}, which would write over it; move it, or give another directory"
            )

    def _has_lost_index(self) -> bool:
        """Whether there is no index, but there are runs in the layout of a batch."""
        patterns = (f"*/seed-*/{CONFIG}", f"*/*/seed-*/{CONFIG}")
        return not self.index_file.exists() and any(any(self._index.glob(pattern)) for pattern in patterns)

    def place(self, job: Job) -> pathlib.Path:
        """Returns the directory of a run; UserError if a name leads out of the batch's directory, or to a link."""
        place = self.out
        for name in job.place.parts:
            check_label(name, "the name of a directory")
            place = place / name
            if place.is_symlink():
                raise UserError(
                    f"{place} is a link, and runs are written through none: remove it, or give another directory"
                )
        return place

    def check(self, jobs: Iterable[Job], *, resume: bool = False):
        """Checks that the jobs' directories have no runs that must not be changed.

        Args:
          jobs: The jobs to run.
          resume: Whether a run that has saved something goes on, and none is overwritten, independently of the options.

        Raises:
          UserError: If a run has other settings, or must be resumed or overwritten; the message names the first one.
        """
        overwrite = self.options.overwrite and not resume
        for job in jobs:
            directory = RunDirectory(self.place(job))
            begun = resume and directory.state is not State.EMPTY
            goes_on = begun or self.options.resume or bool(directory.ended) and not overwrite
            directory.check_claim(job.config.as_dict(), resume=goes_on, overwrite=overwrite)
            if goes_on and isinstance(job.config, ObjectRun):  # a task's settings decide the data
                job.config.check_same_data(directory)

    def _check_built(self, jobs: Sequence[Job]):
        """Builds what each job of a task runs, once for all its seeds, so that errors that only this shows are reported
        before other jobs have run. Runs of methods that were made in Python have been checked already."""
        to_do = [job for job in reversed(jobs) if self.options.overwrite or not self.done(job)]
        firsts = {job.place.parent: job.config for job in to_do if isinstance(job.config, RunConfig)}
        for config in firsts.values() if len(firsts) > 1 else ():
            check_built(config, self.options.data_dir, show_progress=self.options.show_progress)

    @contextlib.contextmanager
    def claimed(self, jobs: Iterable[Job], contents: Mapping, *, built: bool = False):
        """Checks the jobs, and locks the directory for the block; deletes runs that are overwritten, and writes the
        index.

        Args:
          jobs: The jobs that are known so far.
          contents: The contents of the index.
          built: Whether to build first what each job of a task runs, too.
        """
        jobs = list(jobs)
        self.check(jobs)
        if built:
            self._check_built(jobs)
        with locked(self.out):
            self.clear(jobs)
            self.note(contents)
            yield

    def clear(self, jobs: Iterable[Job]):
        """Deletes the runs in the jobs' directories, if the options say so."""
        if self.options.overwrite:
            for job in jobs:
                RunDirectory(self.place(job)).clear()

    @property
    def index_file(self) -> pathlib.Path:
        """The file of the index."""
        return self._index / INDEX

    def note(self, contents: Mapping):
        """Writes the index."""
        write_index(self._index, self.kind, contents)
        self.index = {"kind": self.kind, **contents}

    def say(self, line: str):
        """Writes a line to standard error, if progress is shown."""
        if self.options.show_progress:
            print(line, file=sys.stderr, flush=True)

    def done(self, job: Job, until: int | None = None) -> str:
        """Returns how a job has ended; "so far" if it has done `until` rounds; "" if neither."""
        place = self.place(job)
        directory = RunDirectory(place)
        state = directory.ended
        if state == "finished" and job.newcomers and not (place / NEWCOMERS).is_file():
            return ""
        return state or ("so far" if until is not None and directory.rounds_done >= until else "")

    def run(
        self,
        jobs: Sequence[Job],
        *,
        until: int | None = None,
        each: Callable[[Job], None] | None = None,
        after_each: Callable[[], None] = lambda: None,
        cheapest_first: bool = False,
    ) -> list[dict | None]:
        """Runs the jobs that have not ended; runs that have ended are kept.

        Args:
          jobs: The jobs in their order.
          until: The round after which runs stop, to go on later.
          each: Runs a job; default `self.run_or_note`.
          after_each: Called after each run.
          cheapest_first: Whether the runs of each seed are ordered by their estimated time.

        Returns:
          The summary of each job; None for a run that diverged or has not finished.

        Raises:
          UserError: If a run fails for another reason than diverging; finished runs are kept.
        """
        to_do = [job for job in jobs if not self.done(job, until)]
        if not to_do:
            there = "the run is" if len(jobs) == 1 else f"all {len(jobs)} runs are"
            self.say(f"nothing to do: {there} there; {OVERWRITE} runs {'it' if len(jobs) == 1 else 'them'} anew")
            return [RunDirectory(self.place(job)).summary() for job in jobs]
        saved = {job: Checkpoints(self.place(job) / CHECKPOINTS).latest() or 0 for job in to_do}
        left = {job: max((until or job.config.train.rounds) - saved[job], 1) for job in to_do}
        estimate = Estimate(left, [*earlier_places(to_do), self.out])
        known = estimate.of()
        order = list(jobs)
        if cheapest_first:
            seeds = list(dict.fromkeys(job.config.seed for job in jobs))
            order.sort(key=lambda job: (seeds.index(job.config.seed), estimate.seconds(job)))
        if len(jobs) > 1:
            self.say(
                f"{counted(len(jobs), 'run')}, {len(to_do)} to do{known}{', going by earlier runs' if known else ''}"
            )
        for number, job in enumerate(order, 1):
            state = self.done(job, until)
            about = f": {state} before" if state else estimate.of(job)
            if len(jobs) > 1:
                self.say(f"[{number}/{len(jobs)}] {job.title}{about}{estimate.of(before='; all that is left: ')}")
            if state:
                continue
            if len(estimate.left) < len(to_do) and not self.options.workers:
                runtime.renew_local_worker(above=runtime.LARGE_WORKER)
            each(job) if each else self.run_or_note(job, until)
            estimate.finished(job, RunDirectory(self.place(job)).summary())
            after_each()
        return [RunDirectory(self.place(job)).summary() for job in jobs]

    def start(self, job: Job, **how) -> Result | None:
        """Runs a job in its directory; further arguments and the result are those of `batches.run.run`."""
        start = job.config.run if isinstance(job.config, ObjectRun) else functools.partial(run, job.config)
        options = {name: getattr(self.options, name) for name in ("data_dir", "show_progress", "workers", "callbacks")}
        return start(self.place(job), **{**options, **how})

    def result(self, job: Job) -> Result:
        """Returns the result of a finished run; UserError if its files are missing or have changed."""
        config, place = job.config, self.place(job)
        if isinstance(config, ObjectRun):
            return Result.read(config.load(place), place)
        return Result.read(load_run(place, data_dir=self.options.data_dir, trust_builders=config), place)

    def run_or_note(self, job: Job, until: int | None = None):
        """Runs a job to its end, or to a round, and lets its newcomers join; if it diverges, writes failed.json."""
        config, place = job.config, self.place(job)
        # A run that has saved nothing begins anew, even if it was started with other settings.
        resume = self.options.resume or RunDirectory(place).state is not State.EMPTY
        how = {"data_dir": self.options.data_dir, "show_progress": self.options.show_progress}
        try:
            if not RunDirectory(place).ended:
                self.start(job, resume=resume, until=until)
        except Diverged as error:
            about = {"task": config.task, "algorithm": config.algorithm, "seed": config.seed, "reason": str(error)}
            RunDirectory(place).write_failure(about)
            tell(f"{config.algorithm} seed {config.seed} diverged: {error}")
        if job.newcomers and RunDirectory(place).ended == "finished":
            join_newcomers(place, trust_builders=config, **how)


class Estimate:
    """Estimates the time of runs from earlier runs with the same settings, and from this command's runs so far.

    Attributes:
      left: The number of rounds that are left for each job that has not ended.
    """

    def __init__(self, left: Mapping[Job, int], known: Iterable[pathlib.Path]):
        """Reads the times of earlier runs.

        Args:
          left: The number of rounds that are left for each job to run.
          known: Directories that contain earlier runs; later directories win.
        """
        self._known = earlier_runs(known, [job.config.as_dict() for job in left])
        self.left = dict(left)
        self._by_settings: dict[str, float] = {}  # seconds per round of this command's runs
        self._by_task: dict[str, float] = {}
        self._expected = self._took = 0.0  # of runs with an estimate from earlier ones, maybe on another machine

    def seconds(self, job: Job) -> float:
        """Returns the seconds that are left for a job; 0 if nothing is known."""
        settings, pace = settings_key(job.config.as_dict()), self._took / self._expected if self._expected else 1.0
        rate = self._by_settings.get(settings) or pace * self._known.get(settings, 0.0)
        rate = rate or self._by_task.get(job.config.task, 0.0)
        return rate * self.left.get(job, 0)

    def of(self, *jobs: Job, before: str = ": about ") -> str:
        """Returns in words the time that is left for jobs together, by default for all; "" if nothing is known."""
        seconds = sum(map(self.seconds, jobs or self.left))
        return f"{before}{human_time(seconds)}" if seconds else ""

    def finished(self, job: Job, summary: Mapping | None):
        """Notes that a job has ended, and its time if it has a summary."""
        settings, rounds = settings_key(job.config.as_dict()), self.left.pop(job)
        if not summary:
            return
        rate = seconds_a_round(summary)
        self._by_settings[settings] = self._by_task[job.config.task] = rate
        if settings in self._known:
            self._expected += self._known[settings] * rounds
            self._took += rate * rounds


# Files of another version, or damaged ones, are ignored: an estimate must not stop a run.
_DAMAGE = OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError


def earlier_places(jobs: Iterable[Job]) -> list[pathlib.Path]:
    """Directories where earlier runs of jobs may be, beside their own directory. Of the thousands of kept results, only
    those are included whose study's index has the task and the method."""
    asked, kept = {(job.config.task, job.config.algorithm) for job in jobs}, {}
    for file in sorted(task_file.results_directory().glob(f"*/{INDEX}")):
        with contextlib.suppress(*_DAMAGE):
            for cell in read_json(file)["cells"]:
                if cell["directory"] and (cell["task"], cell["method"]) in asked:
                    kept[file.parent / inside(cell["directory"])] = None
    return [*kept, *(pathlib.Path("runs") / task for task in sorted({task for task, _ in asked}))]


def seconds_a_round(summary: Mapping) -> float:
    """Returns the seconds per round of a finished run."""
    return summary["seconds"]["total"] / max(summary["rounds"], 1)


def settings_key(settings: Mapping) -> str:
    """The settings that two runs must share to take equally long per round, as text: no seed, rounds or checkpoints."""
    train = {key: value for key, value in settings["train"].items() if key != "rounds"}
    kept = {
        key: settings.get(key, {}) for key in ("task", "algorithm", "partition", "dataset", "model", "method", "base")
    }
    return json.dumps({**kept, "train": train}, sort_keys=True, default=str)


def earlier_runs(roots: Iterable[pathlib.Path], settings: Iterable[Mapping]) -> dict[str, float]:
    """Reads the seconds per round of finished runs with given settings.

    Args:
      roots: Directories that contain runs; later directories win.
      settings: The settings to look for; of other tasks and methods, runs are not parsed: there may be thousands.

    Returns:
      Seconds per round by `settings_key`, for those settings for which a run was found.
    """
    settings = list(settings)
    wanted = {settings_key(each) for each in settings}
    named = {
        (tomli_w.dumps({"task": each["task"]}), tomli_w.dumps({"algorithm": each["algorithm"]})) for each in settings
    }
    found = {}
    for root in roots:
        for file in sorted(root.glob(f"**/seed-*/{SUMMARY}")):
            with contextlib.suppress(*_DAMAGE):
                text = read_text(file.parent / CONFIG)
                if not any(task in text and algorithm in text for task, algorithm in named):
                    continue
                key = settings_key(parse_toml(text))
                if key in wanted and 0 <= (rate := seconds_a_round(json.loads(read_text(file)))) < math.inf:
                    found[key] = rate
    return found
