"""Several runs in one directory: jobs, the index that says what they are, what is there already, and how long
they take."""

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
      config: What is run: of a task, or of objects.
      place: Its directory below that of the batch.
      title: What progress calls it.
      newcomers: Whether held-out clients join it at its end.
    """

    config: RunConfig | ObjectRun
    place: pathlib.PurePath
    title: str
    newcomers: bool = False


def settings_of(config: RunConfig | ObjectRun) -> dict:
    """Returns the settings of a run as a TOML file gives them back, without what only describes them."""
    return task_file.settings_in(tomllib.loads(tomli_w.dumps(config.as_dict())))


def settings_there(place: pathlib.Path, own: RunConfig | ObjectRun | None) -> dict:
    """Returns the same of the run in a directory, whose functions are trusted as far as a configuration names them."""
    try:
        return settings_of(load_run_config(place, trust_builders=own if isinstance(own, RunConfig) else False))
    except UserError:  # its own code is not there any more, or another's
        return task_file.settings_in(RunDirectory(place).settings())


def settings_with_its_seed(place: pathlib.Path, config: RunConfig | ObjectRun) -> tuple[dict, dict]:
    """Returns the settings of the run in a directory, and those of a configuration with the seed of that run."""
    there, wanted = settings_there(place, config), settings_of(config)
    # Of a method that is made for each seed, the seed stands in what it was built from, too.
    built, was = wanted.get(BUILT_FROM, {}), there.get(BUILT_FROM, {})
    if built.get("seed") == config.seed and was.get("seed") == there.get("seed"):
        wanted[BUILT_FROM] = {**built, "seed": was.get("seed")}
    return there, {**wanted, "seed": there.get("seed")}


def _has_kind(file: pathlib.Path) -> bool:
    """Whether a file is an index; UserError if it may be one, and cannot be read."""
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
      resume: A started run goes on; one that has ended is kept in any case.
      overwrite: Runs that are there are deleted before the first is run.
      show_progress: What all runs will take, a line before each and a bar a run, on standard error.
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

    A run that diverges leaves `failed.json` with the reason, and the others go on; it is not met again when the batch
    is resumed.
    """

    def __init__(self, kind: str, out: str | pathlib.Path, options: Options, *, index: str = ""):
        """Checks that the directory may become, or is, that of such a batch.

        Args:
          kind: A name in `batch_index.KINDS`.
          out: The directory; it need not exist.
          options: How runs are made.
          index: Name of the directory in `out` that has the index; default `out` itself.

        Raises:
          UserError: If the directory is a run's or another kind of batch's, or a file there is somebody else's.
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
        """Whether there is no index, and runs are where a batch has them."""
        patterns = (f"*/seed-*/{CONFIG}", f"*/*/seed-*/{CONFIG}")
        return not self.index_file.exists() and any(any(self._index.glob(pattern)) for pattern in patterns)

    def place(self, job: Job) -> pathlib.Path:
        """Returns the directory of a run; UserError if a name leads out of the batch's, or to a link."""
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
        """Checks that no run is in the place of a job that may not be touched.

        Args:
          jobs: What shall be run.
          resume: Whether a run that has saved something goes on whatever the options say, and none is overwritten.

        Raises:
          UserError: Naming the first that is of other settings, or that must be resumed or overwritten.
        """
        overwrite = self.options.overwrite and not resume
        for job in jobs:
            directory = RunDirectory(self.place(job))
            begun = resume and directory.state is not State.EMPTY
            goes_on = begun or self.options.resume or bool(directory.ended) and not overwrite
            directory.check_claim(job.config.as_dict(), resume=goes_on, overwrite=overwrite)
            if goes_on and isinstance(job.config, ObjectRun):  # of a task, the settings tell which data
                job.config.check_same_data(directory)

    def _check_built(self, jobs: Sequence[Job]):
        """Builds what each job of a task runs, once for its seeds, so that what only that shows to be wrong is told
        before others have run. Of methods that were made in Python the runs are known to fit."""
        to_do = [job for job in reversed(jobs) if self.options.overwrite or not self.done(job)]
        firsts = {job.place.parent: job.config for job in to_do if isinstance(job.config, RunConfig)}
        for config in firsts.values() if len(firsts) > 1 else ():
            check_built(config, self.options.data_dir, show_progress=self.options.show_progress)

    @contextlib.contextmanager
    def claimed(self, jobs: Iterable[Job], contents: Mapping, *, built: bool = False):
        """Checks the jobs, and holds the directory for the block, with its index written and what is overwritten
        deleted.

        Args:
          jobs: As far as they are known.
          contents: Of the index.
          built: Whether what each job of a task runs is built first, too.
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
        """Deletes the runs that are in the places of jobs, if the options say that they are overwritten."""
        if self.options.overwrite:
            for job in jobs:
                RunDirectory(self.place(job)).clear()

    @property
    def index_file(self) -> pathlib.Path:
        """Where the index is."""
        return self._index / INDEX

    def note(self, contents: Mapping):
        """Writes the index."""
        write_index(self._index, self.kind, contents)
        self.index = {"kind": self.kind, **contents}

    def say(self, line: str):
        """Writes a line to standard error, if anything is to be said."""
        if self.options.show_progress:
            print(line, file=sys.stderr, flush=True)

    def done(self, job: Job, until: int | None = None) -> str:
        """Says how a job has ended; or, with `until`, that it has so many rounds. "" if neither."""
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
        """Runs what jobs lack; those that have ended are kept.

        Args:
          jobs: In their order.
          until: Runs stop after this round, to go on later.
          each: Runs a job, default `self.run_or_note`.
          after_each: Called after each run.
          cheapest_first: Whether the runs of each seed are put into the order of what they are known to take.

        Returns:
          The summary of each job, None for one that diverged or has not finished.

        Raises:
          UserError: If a run fails otherwise than by diverging; what is finished stays.
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
        """Runs a job in its place; further arguments and the result are those of `batches.run.run`."""
        start = job.config.run if isinstance(job.config, ObjectRun) else functools.partial(run, job.config)
        options = {name: getattr(self.options, name) for name in ("data_dir", "show_progress", "workers", "callbacks")}
        return start(self.place(job), **{**options, **how})

    def result(self, job: Job) -> Result:
        """Returns the result of a run that has finished; UserError if its files are not there as they were."""
        config, place = job.config, self.place(job)
        if isinstance(config, ObjectRun):
            return Result.read(config.load(place), place)
        return Result.read(load_run(place, data_dir=self.options.data_dir, trust_builders=config), place)

    def run_or_note(self, job: Job, until: int | None = None):
        """Runs a job to its end, or to a round, and lets its newcomers join; if it diverges, says so in failed.json."""
        config, place = job.config, self.place(job)
        # One that has saved nothing begins anew, also where it was to be of other settings.
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
    """What runs will take: by earlier runs of the same settings, and by what those of this command have
    taken so far.

    Attributes:
      left: How many rounds are left of each job that has not ended.
    """

    def __init__(self, left: Mapping[Job, int], known: Iterable[pathlib.Path]):
        """Looks up what is known.

        Args:
          left: How many rounds are left of each job that is to be run.
          known: Directories below which earlier runs are; later ones win.
        """
        self._known = earlier_runs(known, [job.config.as_dict() for job in left])
        self.left = dict(left)
        self._by_settings: dict[str, float] = {}  # seconds a round of this command's runs
        self._by_task: dict[str, float] = {}
        self._expected = self._took = 0.0  # of those that were known from earlier ones, which may be of another machine

    def seconds(self, job: Job) -> float:
        """Returns what is left of a job; 0 where nothing is known."""
        settings, pace = settings_key(job.config.as_dict()), self._took / self._expected if self._expected else 1.0
        rate = self._by_settings.get(settings) or pace * self._known.get(settings, 0.0)
        rate = rate or self._by_task.get(job.config.task, 0.0)
        return rate * self.left.get(job, 0)

    def of(self, *jobs: Job, before: str = ": about ") -> str:
        """Returns in words what is left of jobs together, by default of all; "" where nothing is known."""
        seconds = sum(map(self.seconds, jobs or self.left))
        return f"{before}{human_time(seconds)}" if seconds else ""

    def finished(self, job: Job, summary: Mapping | None):
        """Notes that a job has ended, with its summary if it has one, and what it took."""
        settings, rounds = settings_key(job.config.as_dict()), self.left.pop(job)
        if not summary:
            return
        rate = seconds_a_round(summary)
        self._by_settings[settings] = self._by_task[job.config.task] = rate
        if settings in self._known:
            self._expected += self._known[settings] * rounds
            self._took += rate * rounds


# What is of another version, or damaged, tells nothing; an estimate stops no run.
_DAMAGE = OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError


def earlier_places(jobs: Iterable[Job]) -> list[pathlib.Path]:
    """Where earlier runs of jobs may be, beside their own directory; kept results, of which there are thousands, where
    the index of a study has the task and the method."""
    asked, kept = {(job.config.task, job.config.algorithm) for job in jobs}, {}
    for file in sorted(task_file.results_directory().glob(f"*/{INDEX}")):
        with contextlib.suppress(*_DAMAGE):
            for cell in read_json(file)["cells"]:
                if cell["directory"] and (cell["task"], cell["method"]) in asked:
                    kept[file.parent / inside(cell["directory"])] = None
    return [*kept, *(pathlib.Path("runs") / task for task in sorted({task for task, _ in asked}))]


def seconds_a_round(summary: Mapping) -> float:
    """Returns what a round of a finished run took."""
    return summary["seconds"]["total"] / max(summary["rounds"], 1)


def settings_key(settings: Mapping) -> str:
    """What two runs must share to take equally long a round: all but seed, rounds and how often is saved."""
    train = {key: value for key, value in settings["train"].items() if key != "rounds"}
    kept = {
        key: settings.get(key, {}) for key in ("task", "algorithm", "partition", "dataset", "model", "method", "base")
    }
    return json.dumps({**kept, "train": train}, sort_keys=True, default=str)


def earlier_runs(roots: Iterable[pathlib.Path], settings: Iterable[Mapping]) -> dict[str, float]:
    """Reads the seconds a round of finished runs of some settings.

    Args:
      roots: Directories below which runs are; later ones win.
      settings: Those that are asked about; runs of other tasks and methods are not parsed: there may be thousands.

    Returns:
      Seconds a round by `settings_key`, of those settings of which a run was found.
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
