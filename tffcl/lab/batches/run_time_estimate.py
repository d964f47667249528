"""How long several runs will take, said before they start and kept right by what they took."""

import dataclasses
import json
import pathlib
import sys
from collections.abc import Iterable, Sequence

from tffcl.clients.sampling import sample_cohort
from tffcl.errors import Diverged, UserError
from tffcl.json_files import read_json, write_json
from tffcl.lab.batches import study_pace
from tffcl.lab.reporting.number_format import human_time
from tffcl.lab.tasks import build, task_file
from tffcl.lab.tasks.populations import build_populations
from tffcl.lab.tasks.resolve import RunConfig
from tffcl.runs.checkpoints import Checkpoints
from tffcl.runs.interrupts import Interrupted
from tffcl.runs.run_directory import CHECKPOINTS, RunDirectory

WORTH_A_TRIAL = 4000  # passes of a client over its data, in all runs: some ten seconds of the smallest task


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """One of several runs.

    Attributes:
      title: What progress calls it.
      config: What is run.
      place: Its directory.
    """

    title: str
    config: RunConfig
    place: pathlib.Path


def ended(place: pathlib.Path) -> str:
    """Says how the run in a directory has ended, "finished" or "diverged"; "" if it has not."""
    return RunDirectory(place).ended


class Clock:
    """Estimates of runs, from earlier runs of the same setting or else a short trial of the task."""

    def __init__(self, jobs: Sequence[Job], known: Iterable[pathlib.Path], *, anew: bool = False, show: bool = True):
        """Looks up what is known.

        Args:
          jobs: All runs.
          known: Directories below which earlier runs are.
          anew: Whether runs that have ended are run again.
          show: Whether anything is said, on standard error.
        """
        self._jobs, self._anew, self._show = list(jobs), anew, show
        self._known = study_pace.earlier_runs(known, [job.config.as_dict() for job in self._jobs])
        self._paces: dict[str, study_pace.Pace | None] = {}
        self._ratios: list[float] = []
        self._left: dict[Job, float] = {}  # of runs that have not ended, what they take from their first round on
        self._shares: dict[Job, float] = {}  # of these, what is left of their rounds: looked up once, not before every run

    def try_unknown(self, data_dir: str | None, keep: pathlib.Path | None = None, *, patient: bool = False):
        """Tries each task out of which no earlier run is known.

        Args:
          data_dir: Where data sets are.
          keep: A file of trials that is read first and written after each: who resumes need not try again.
          patient: Go on where a trial cannot be run, and say so; else that is raised, as no run could be, either.

        Raises:
          UserError: If the data or the model of a task cannot be made.
        """
        self._paces = _kept_paces(keep) if keep and keep.is_file() else {}
        for job in self._jobs:
            key = _task(job.config)
            if key in self._paces or self._done(job) or study_pace.fingerprint(job.config.as_dict()) in self._known:
                continue
            if not patient:
                _check(job.config, data_dir)
            self.say(f"a short trial of {job.config.task} ...")
            try:
                self._paces[key] = study_pace.try_out(job.config, data_dir)
            except Interrupted:
                raise Interrupted("stopped in a trial, before the first run; the same command tries again") from None
            except UserError as error:
                if not patient and not isinstance(error, Diverged):
                    raise
                self.say(f"no trial of {job.config.task}: {error}")
                self._paces[key] = None
            if keep:
                values = {name: pace and dataclasses.asdict(pace) for name, pace in self._paces.items() if pace}
                write_json(keep, values)

    @property
    def worth_a_trial(self) -> bool:
        """Whether the runs that are to do are so long that a trial of seconds is little beside them."""
        passes = 0
        for job in self._jobs:
            train = job.config.train
            if self._done(job):
                continue
            if train.participation is not None:  # a share of clients that have not been counted yet
                return True
            passes += train.rounds * train.clients_per_round * train.local_epochs
        return passes >= WORTH_A_TRIAL

    def estimate(self, job: Job) -> float:
        """Returns the seconds that a run takes from its start to its end, 0 where nothing is known."""
        rate = self._known.get(study_pace.fingerprint(job.config.as_dict()))
        if rate is not None:
            return rate * job.config.train.rounds
        pace = self._paces.get(_task(job.config))
        return pace.seconds(job.config) if pace else 0.0

    def begin(self, order: Sequence[Job] | None = None):
        """Says what all runs will take; `order` is that in which they will run, default the one that was given."""
        self._jobs = list(order or self._jobs)
        self._left = {job: 0.0 if self._done(job) else self.estimate(job) for job in self._jobs}
        self._shares = {job: self._share_left(job) for job in self._jobs if not self._done(job)}
        to_do = sum(not self._done(job) for job in self._jobs)
        seconds = self._seconds_left()
        about = f": about {human_time(seconds)}{self._going_by}" if seconds else ""
        count = f"{len(self._jobs)} runs, {to_do} to do" if len(self._jobs) > 1 else "1 run"
        if about or len(self._jobs) > 1:
            self.say(f"{count}{about}")

    def announce(self, job: Job, state: str):
        """Says which run is next and what is left."""
        seconds, left = self._left[job] * self._shares.get(job, 1.0) * self._ratio, self._seconds_left() * self._ratio
        said = f": {state} before" if state else f": about {human_time(seconds)}" if seconds else ""
        remaining = f"; all that is left: {human_time(left)}" if left else ""
        self.say(f"[{self._jobs.index(job) + 1}/{len(self._jobs)}] {job.title}{said}{remaining}")

    def finished(self, job: Job):
        """Notes that a run has ended, and by how much its estimate was wrong."""
        expected = self._left.pop(job)
        summary = RunDirectory(job.place).summary()
        if not summary:
            return
        if expected:
            self._ratios.append(summary["seconds"]["total"] / expected)
            return
        # Without an estimate the first run of a task is the trial of the others.
        rounds = job.config.train.rounds
        for other, seconds in self._left.items():
            if not seconds and not self._done(other):
                self._left[other] = summary["seconds"]["total"] / rounds * other.config.train.rounds / self._ratio

    def _seconds_left(self) -> float:
        return sum(seconds * self._shares.get(job, 1.0) for job, seconds in self._left.items())

    def _share_left(self, job: Job) -> float:
        """The share of a run's rounds that come after its newest checkpoint."""
        saved = None if self._anew else Checkpoints(job.place / CHECKPOINTS).latest()
        return 1 - min((saved or 0) / job.config.train.rounds, 1)

    @property
    def _going_by(self) -> str:
        """What the estimates are from: kept runs may be of another machine."""
        known = any(study_pace.fingerprint(job.config.as_dict()) in self._known for job in self._jobs if not self._done(job))
        return ", going by earlier runs" if known else " on this machine as it is now"

    @property
    def _ratio(self) -> float:
        return sum(self._ratios) / len(self._ratios) if self._ratios else 1.0

    def _done(self, job: Job) -> str:
        return "" if self._anew else ended(job.place)

    def say(self, line: str):
        """Writes a line to standard error, if anything is to be said."""
        if self._show:
            print(line, file=sys.stderr, flush=True)


def started(jobs: Sequence[Job], data_dir: str | None, *, anew: bool, trial: bool = True) -> Clock:
    """Returns a clock that has said what the runs will take.

    Args:
      jobs: In their order.
      data_dir: Where data sets are.
      anew: Whether runs that have ended are run again.
      trial: Whether runs that are long, and not known from earlier ones of the comparison or below `runs/TASK/`, get a trial.
    """
    around = {pathlib.Path("runs") / job.config.task for job in jobs}
    # Beside a run of its own stand whoever's files; what is around one of a comparison is the comparison's.
    around |= {job.place.parent.parent for job in jobs if job.place.name.startswith("seed-")}
    clock = Clock(jobs, [task_file.task_directory() / "results", *sorted(around)], anew=anew)
    if trial and clock.worth_a_trial:
        clock.try_unknown(data_dir)
    clock.begin()
    return clock


def _kept_paces(file: pathlib.Path) -> dict:
    """What earlier trials found; nothing where the file is damaged, since trials are made again in seconds."""
    try:
        return {key: study_pace.Pace(**value) for key, value in read_json(file).items()}
    except (UserError, TypeError):
        return {}


def _check(config: RunConfig, data_dir: str | None):
    """Raises what the data of a run rule out, before anything is said of it; what was loaded is kept for the trial."""
    population, _ = build_populations(config, build.load_data(config, data_dir))
    sample_cohort(population.client_ids, config.train.cohort_size(len(population)), config.seed, 1)


def _task(config: RunConfig) -> str:
    return json.dumps([config.task, dict(config.dataset), dict(config.partition), dict(config.model)], default=str)
