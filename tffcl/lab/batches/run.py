"""Does one run with `runs.train`: of what a task file builds, with the task's published numbers, or of objects.

Objects are a method and clients that were made in Python, instead of a task's configuration.
"""

import dataclasses
import functools
import inspect
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tffcl import runtime
from tffcl.algorithms.method import Method
from tffcl.clients.client_state import KeptStore
from tffcl.clients.population import Population
from tffcl.clients.simulation_context import simulating
from tffcl.errors import UserError, unknown
from tffcl.lab.batches.study_file import Cell, Study, load_study, study_directory
from tffcl.lab.reporting.comparison_table import flatten
from tffcl.lab.reporting.study_table import PUBLISHED
from tffcl.lab.tasks import build
from tffcl.lab.tasks import resolve as configs
from tffcl.lab.tasks.populations import build_populations
from tffcl.lab.tasks.resolve import RunConfig, check_config
from tffcl.lab.tasks.settings import note_of, outcome_of
from tffcl.lab.tasks.task_file import settings_in
from tffcl.references import is_reference
from tffcl.runs import fingerprint
from tffcl.runs.callbacks import Callback, waiting
from tffcl.runs.checkpoints import Checkpoints
from tffcl.runs.metrics import Metric, measured
from tffcl.runs.population_changes import Stages
from tffcl.runs.result import Result, Trained
from tffcl.runs.run import Protocol
from tffcl.runs.run_directory import CHECKPOINTS, CLIENT_STATES, RunDirectory
from tffcl.runs.train import check_fits, check_given, default_settings, train_by
from tffcl.runtime import RemoteWorkers, remote_workers
from tffcl.validation import Whole, check_kind, check_value


def run(
    config: RunConfig,
    out: str | pathlib.Path,
    *,
    data_dir: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    show_progress: bool = True,
    workers: RemoteWorkers | None = None,
    until: int | None = None,
    callbacks: Sequence[Callback] = (),
) -> Result | None:
    """Runs one method on one task and writes the files of a run (see `tffcl/docs/experiments.md`). `write_report` makes
    the report and the figures.

    Args:
      config: The run's configuration, see `resolve.resolve`.
      out: The directory for the run's files.
      data_dir: The directory of data sets, to read or to download to; default as in `datasets`.
      resume: Go on from the newest checkpoint in `out`, or start at the beginning if there is none. A run with fewer
        rounds than `config` asks for goes on to the rounds of `config`.
      overwrite: Delete the run that is in `out`.
      show_progress: Whether to show a progress bar with an ETA on standard error.
      workers: Running TFF workers that share each round's clients; default one of this machine, started and ended here.
      until: Stop after this round with a checkpoint, to go on later with `resume`; then there is no result yet.
      callbacks: Objects that are called after each round and may end the run, see `tffcl.Callback`.

    Raises:
      UserError: For errors that the user can correct. The checkpoint has the rounds before the error.
      Interrupted: After Ctrl-C, SIGTERM or SIGHUP.
    """
    check_config("config", config)
    settings = config.as_dict()
    if workers:
        remote_workers.use_workers(workers)  # a missing worker is noticed before the data are read
    directory = RunDirectory(out)
    directory.check_claim(settings, resume=resume, overwrite=overwrite, longer=True)
    method, population, later, federated = _built(config, data_dir, show_progress)
    stopping = config.train.early_stopping
    malicious = config.attack.malicious(config.participants(federated.num_clients), config.seed)

    def beside(summary: Mapping, columns: Mapping, clients: Population, known: Any) -> dict:
        write_published(config, directory)
        if not len(malicious):
            return {}
        outcome = outcome_of(config.attack, malicious, columns, clients.client_ids, clients.shown_groups, known)
        note = note_of(outcome, users=is_reference(config.base))
        return {"attack": outcome, "notes": [*summary["notes"], note]}

    return train_by(
        _protocol(config, len(population)), method, population, later=later,
        callbacks=[*([stopping] if stopping else []), *callbacks], out=out, resume=resume, overwrite=overwrite,
        until=until, workers=workers, show_progress=show_progress, settings=settings,
        data=build.data_fingerprint(federated), further=beside,
    )  # fmt: skip


def _built(config: RunConfig, data_dir: str | None, show_progress: bool) -> tuple[Method, Population, Mapping, Any]:
    """Returns a task's method, its clients before the first round, its clients in later rounds, and its data."""
    with waiting(f"{config.task}: reads and parts the data", show=show_progress):
        federated = build.load_data(config, data_dir)
        population, later = build_populations(config, federated)
    method = build.build_method(config, build.build_model(config, federated), federated, data_dir, simulated=True)
    return method, population, later, federated


def check_built(config: RunConfig, data_dir: str | None, *, show_progress: bool):
    """Raises UserError for errors that only a task's data, its model or a user's own function can show."""
    method, population, later, _ = _built(config, data_dir, show_progress)
    check_fits(method, _protocol(config, len(population)), population, later)


def _protocol(config: RunConfig, clients: int) -> Protocol:
    return Protocol(
        rounds=config.train.rounds, clients_per_round=config.train.cohort_size(clients), seed=config.seed,
        sampling=config.train.sampling, evaluate_every=config.evaluation.every,
        place_unseen=config.evaluation.place_unseen, checkpoint_every=config.checkpoint.every,
        keep_checkpoints=config.checkpoint.keep, privacy=config.privacy,
    )  # fmt: skip


def write_published(config: RunConfig, directory: RunDirectory) -> None:
    """Writes `published.json` into the directory of a run: the numbers to expect, and which settings differ. Without
    such numbers no file is written."""
    cells = list(_cells(config))
    if cells:
        directory.write_result(PUBLISHED, {"cells": cells})


def _cells(config: RunConfig) -> Iterator[dict]:
    asked = config.task, config.algorithm
    for path in sorted(study_directory().glob("*.toml")):
        text = path.read_text(encoding="utf-8")
        # A league has no published numbers, and takes long to read.
        if f'"{config.task}"' in text and re.search(r"\bpublished\b", text):
            study = load_study(path.stem)
            for cell in study.cells if study.paper else ():
                if (cell.task, cell.method) == asked and not cell.missing and cell.published[0] is not None:
                    yield _noted(study, cell, config)


def _noted(study: Study, cell: Cell, config: RunConfig) -> dict:
    """Describes a published number as `lab.reporting.study_table` reads it."""
    wanted = configs.resolve(cell.task, cell.method, seed=config.seed, overrides=cell.overrides)
    return {
        "study": study.name,
        "where": ", ".join(filter(None, [study.paper, study.table])),
        "column": cell.column,
        "row": cell.row,
        **cell.compared_with(),
        "published_is": study.published_is,
        "rounds": wanted.train.rounds,
        "differs": _differences(wanted.as_dict(), config.as_dict()),
    }


def _differences(wanted: Mapping, found: Mapping) -> list[str]:
    """The names of the settings that differ, such as "train.rounds"."""
    first, second = (flatten(settings_in(each)) for each in (wanted, found))
    return sorted(name for name in {*first, *second} if first.get(name) != second.get(name))


PROTOCOL = tuple(field.name for field in dataclasses.fields(Protocol) if field.name != "seed")


@dataclasses.dataclass(frozen=True, eq=False)
class Clients:
    """The clients of runs of objects.

    Attributes:
      population: The clients.
      later: Maps a round to the population from that round on, as in `tffcl.train`.
      task: The name of clients and protocol together in tables.
      memory: As in `tffcl.train`.
    """

    population: Population
    later: Mapping[int, Population] = dataclasses.field(default_factory=dict)
    task: str = "train"
    memory: str | int | None = None

    def __post_init__(self):
        check_kind("task", self.task, str, "text, what tables call these runs")
        check_given(self.population, self.later)

    @functools.cached_property
    def data(self) -> dict[str, str]:
        """The fingerprint of the clients' data, which is computed once for all runs."""
        return fingerprint.of_populations({0: self.population, **self.later})


@dataclasses.dataclass(frozen=True, eq=False)
class ObjectRun:
    """A run of a batch from objects that were made in Python, like a `RunConfig` for a task.

    Attributes:
      algorithm: The name of the method in tables.
      method: The method.
      train: The protocol, with the seed.
      clients: The clients.
      values: The values of a sweep's settings; otherwise empty.
    """

    algorithm: str
    method: Method
    train: Protocol
    clients: Clients
    values: Mapping[str, object] = dataclasses.field(default_factory=dict)

    @property
    def task(self) -> str:
        """The name of clients and protocol together in tables."""
        return self.clients.task

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.train.seed

    @property
    def evaluate_every(self) -> int:
        """Rounds between evaluations."""
        return self.train.evaluate_every

    @property
    def has_validation(self) -> bool:
        """Whether clients hold validation examples, in all rounds."""
        populations = self.clients.population, *self.clients.later.values()
        return all(each.validation_examples is not None for each in populations)

    @property
    def measured(self) -> Mapping[str, Metric]:
        """The metrics of the run, by column of rounds.csv."""
        model, validation = self.method.model, self.has_validation
        names = [each.name for each in model.metrics]
        return measured(names, has_accuracy=model.objective.has_accuracy, validation=validation)

    @property
    def last_change(self) -> int:
        """The last round in which clients or their data change; 0 for none."""
        return max(self.clients.later, default=0)

    @functools.cached_property
    def _settings(self) -> dict:
        named = {"task": self.task, "algorithm": self.algorithm}
        values = {"method": dict(self.values)} if self.values else {}
        return {**default_settings(self.method, self.train), **named, **values}

    def as_dict(self) -> dict:
        """Returns the contents of config.toml."""
        return dict(self._settings)

    def check(self) -> Stages:
        """Returns the clients of all rounds; UserError if they do not fit the method's model or the protocol."""
        return check_fits(self.method, self.train, self.clients.population, self.clients.later)

    def load(self, out: str | pathlib.Path) -> Trained:
        """Returns the method with the state of the finished run in a directory; UserError if the state is missing."""
        directory, method = RunDirectory(out), self.method
        directory.check_same(self._settings)
        self.check_same_data(directory)
        checkpoints = Checkpoints(directory / CHECKPOINTS, run=directory.run_name)
        last = (directory.summary() or {})["rounds"]
        stages = self.check()
        population = stages.at(last).population
        runtime.use_local_worker()
        with simulating(client_states=KeptStore(directory / CLIENT_STATES, run=directory.run_name)):
            state, _ = checkpoints.load(last, method.state_class)
        return Trained(method, method.choose(state, population.evaluated), population, last, stages.names())

    def check_same_data(self, directory: RunDirectory):
        """Raises UserError if the run in a directory had other data."""
        fingerprint.check_same_data(directory, self.clients.data)

    def run(
        self,
        out: str | pathlib.Path,
        *,
        resume: bool = False,
        until: int | None = None,
        show_progress: bool = True,
        workers: RemoteWorkers | None = None,
        callbacks: Sequence[Callback] = (),
        data_dir: str | None = None,
    ) -> Result | None:
        """Does the run; arguments and result are those of `batches.run.run`."""
        del data_dir
        return train_by(
            self.train, self.method, self.clients.population, later=self.clients.later, callbacks=callbacks, out=out,
            resume=resume, until=until, workers=workers, memory=self.clients.memory, show_progress=show_progress,
            settings=self.as_dict(), data=self.clients.data,
        )  # fmt: skip


def check_runs_fit(runs: Sequence[ObjectRun]):
    """Raises UserError if the clients, which all runs share, do not fit one of the runs. Clients are checked once for
    each model and cohort size."""
    for run in {(id(run.method.model), run.train.clients_per_round): run for run in runs}.values():
        stages = run.check()
    for run in runs:
        run.method.check_clients(len(stages.client_ids))


def check_seeds(seeds: Iterable[int]) -> list[int]:
    """Returns seeds as a list; UserError if they are not different whole numbers, one or more."""
    if isinstance(seeds, (str, bytes, Mapping)) or not isinstance(seeds, Iterable):
        raise UserError(f"seeds is {repr(seeds)[:100]}; it must be a list of whole numbers, e.g. [0, 1, 2]")
    found = [check_value("one of seeds", each, Whole) for each in seeds]
    if not found or len({*found}) < len(found):
        raise UserError(f"seeds are {found}; give one or more, each once")
    return found


def protocols(seeds: Sequence[int], given: Mapping) -> list[Protocol]:
    """Makes the protocol of each seed.

    Args:
      seeds: The seeds.
      given: The caller's values, by the names of `Protocol`.

    Raises:
      UserError: If a name is not one of `Protocol`, or a name without default is missing.
    """
    for name in given:
        if name not in PROTOCOL:
            raise unknown("argument", name, [*PROTOCOL, "seeds"])
    for name in ("rounds", "clients_per_round"):
        if name not in given:
            raise UserError(f"{name} is missing; give it as to tffcl.train, e.g. {name}=10")
    return [Protocol(seed=seed, **given) for seed in seeds]


def built(what: str, build: object, values: Mapping, seeds: Sequence[int]) -> list[Method]:
    """Returns a method for each seed.

    Args:
      what: The name of `build` in messages.
      build: A method, which serves all seeds; or a function that returns one. The function is called with the values
        by name, and with `seed` if it has such a parameter: once for each seed, otherwise once for all seeds.
      values: The values of a sweep's settings.
      seeds: The seeds.

    Raises:
      UserError: If `build` is neither, has other parameters, or returns something else.
    """
    if isinstance(build, Method) and not values:
        return [build] * len(seeds)
    if isinstance(build, type) or isinstance(build, Method) or not callable(build):
        named = f"the class {build.__name__}" if isinstance(build, type) else f"of {type(build).__name__}"
        wanted = f"a function of {', '.join(values)} that returns a method" if values else (
            "a method, as tffcl.algorithms.build_pacfl(model, training) makes one, or a function of the seed that "
            "returns one"
        )  # fmt: skip
        raise UserError(f"{what} is {named}; it must be {wanted}")
    seeded = _check_parameters(what, build, values)
    found = [build(**values, **({"seed": seed} if seeded else {})) for seed in (seeds if seeded else seeds[:1])]
    for method in found:
        if not isinstance(method, Method):
            raise UserError(f"{what} returned {type(method).__name__}; it must return a tffcl.algorithms.Method")
    return found if seeded else found * len(seeds)


def _check_parameters(what: str, build: Callable, values: Mapping) -> bool:
    """Whether a function has a parameter `seed`; UserError if it does not take the values, or needs other arguments."""
    parameters = inspect.signature(build).parameters.values()
    named = {each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)}
    any_name = any(each.kind == each.VAR_KEYWORD for each in parameters)
    variadic = [each.name for each in parameters if each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
    given = {*values, "seed", *variadic}
    if "seed" in values:
        raise UserError("over names seed, which is no setting: seeds= says with which seeds each value runs")
    lacking = [] if any_name else [name for name in values if name not in named]
    if lacking:
        raise UserError(f"{what} has no parameter {lacking[0]}, which the sweep is over")
    needed = [each.name for each in parameters if each.default is each.empty and each.name not in given]
    if needed:
        function = getattr(build, "__name__", type(build).__name__)
        arguments = ", ".join([*values, "seed"])
        raise UserError(
            f"{what} is the function {function}, which needs {', '.join(needed)}, and is called with {arguments} "
            f"alone: lambda {arguments}: {function}(...), with seed or without"
        )
    return "seed" in named or any_name
