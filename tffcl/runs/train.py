"""One run: its checks, its directory, its start or resumption, its rounds, and the files that it writes."""

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from tffcl import runtime
from tffcl.algorithms.method import Method
from tffcl.clients.client_state import KeptStore
from tffcl.clients.cohort import sample_cohort
from tffcl.clients.population import Population
from tffcl.clients.simulation_context import current, simulating
from tffcl.errors import UserError, tell
from tffcl.models.from_keras import check_start
from tffcl.runs import checks, fingerprint
from tffcl.runs.callbacks import Callback, EarlyStopping, Progress, UsersCallback
from tffcl.runs.checkpoints import Checkpoints, unwritten
from tffcl.runs.cluster_history import ClusterHistory
from tffcl.runs.directory_lock import locked
from tffcl.runs.evaluator import check_metrics
from tffcl.runs.loop import SaveCheckpoints, restore_or_initialize, run_rounds
from tffcl.runs.population_changes import Stages, taken_by
from tffcl.runs.privacy import Ledger, PrivacySettings, warn_of_delta
from tffcl.runs.result import Result
from tffcl.runs.round_files import RoundsTable, TensorBoard
from tffcl.runs.run import Protocol, Run, stopped, watch_for_interrupts
from tffcl.runs.run_directory import BUILT_FROM, CHECKPOINTS, CLIENT_STATES, LEDGER, RunDirectory
from tffcl.runs.write_results import finish
from tffcl.runtime import RemoteWorkers, remote_workers
from tffcl.runtime.memory import parse_bytes
from tffcl.validation import Count, Whole, check_kind, check_value


def train(
    method: Method,
    population: Population,
    *,
    rounds: int,
    clients_per_round: int,
    seed: int = 0,
    sampling: str = "fixed",
    evaluate_every: int = 10,
    place_unseen: bool = False,
    checkpoint_every: int = 10,
    keep_checkpoints: int = 2,
    privacy: PrivacySettings = PrivacySettings(),
    later: Mapping[int, Population] | None = None,
    callbacks: Sequence[Callback] = (),
    out: str | pathlib.Path = "runs/train",
    resume: bool = False,
    overwrite: bool = False,
    until: int | None = None,
    workers: RemoteWorkers | None = None,
    memory: str | int | None = None,
    shards: int | None = None,
    show_progress: bool = True,
    settings: Mapping | None = None,
) -> Result | None:
    """Trains a method on clients and writes the files of a run. The report and figures are made by `write_report`.

    Args:
      method: A method, see `tffcl.algorithms`, or one of your own that derives from `tffcl.algorithms.Method`.
      population: The clients, with their examples. Numbers of another type than the model takes are converted where
        the conversion changes no value.
      rounds: Communication rounds.
      clients_per_round: Cohort size, sampled uniformly without replacement.
      seed: Decides sampling and shuffling.
      sampling: "fixed", or "poisson": each client takes part independently, `clients_per_round` of them on average. A
        round for which no client is drawn changes nothing, except that private rounds add their noise as always.
      evaluate_every: Rounds between evaluations; the last round always has one.
      place_unseen: Whether evaluations place clients that the method has not met yet, without training, where the
        method can do so.
      checkpoint_every: Rounds between checkpoints; the last round always has one.
      keep_checkpoints: How many of the newest checkpoints are kept.
      privacy: Budget and δ for what private aggregations and signatures release. Without a budget, ε is only reported.
      later: Maps a round to the population from that round on, for clients that join, leave, come back or get other
        data in the middle of the run; see `population_changes.Stages`.
      callbacks: Objects that are called after each round and may end the run, such as `tffcl.EarlyStopping`; see
        `tffcl.Callback`.
      out: Directory of the run's files.
      resume: Go on from the newest checkpoint in `out`, or start at the beginning if there is none. A run that was
        asked for fewer rounds, finished or not, goes on to `rounds`.
      overwrite: Delete the run that is in `out`.
      until: Stop after this round with a checkpoint, to go on later with `resume`.
      workers: Running TFF workers that share each round's clients; default one on this machine, which is started here
        and ends with the process. The workers become TFF's default context; one of your own is set again after
        the run.
      memory: How much memory the clients of a round may take at a time, "4GB" or bytes; default up to half of what is
        free. A larger cohort is computed in blocks, which gives the same numbers up to the order of sums.
      shards: The number of shards that the clients of a round are put into. TFF sees a shard as one client, and the
        shard computes its clients one after the other, which makes many small clients cheaper. The numbers are the
        same up to the order of sums. 0 uses no shards; by default many small clients are put into some. For a
        comparison or sweep, write `with tffcl.parts.simulating(shards=...)` around it.
      show_progress: Whether to show a progress bar with an ETA on standard error.
      settings: The settings, as nested tables for config.toml; `task` and `algorithm` in them name the run in tables. A
        run can only be resumed with the same settings; what they leave out is not compared. Default: what is given
        here, and what a builder of `tffcl.algorithms` was given.

    Returns:
      The result of the run; None if `until` stopped it before its end.

    Raises:
      UserError: For anything that the user can mend. What was computed before the error is in the checkpoint.
      Interrupted: After Ctrl-C, SIGTERM or SIGHUP.
    """
    protocol = Protocol(
        rounds, clients_per_round, seed, sampling, evaluate_every, place_unseen, checkpoint_every, keep_checkpoints,
        privacy,
    )  # fmt: skip
    return train_by(
        protocol, method, population, later=later, callbacks=callbacks, out=out, resume=resume, overwrite=overwrite,
        until=until, workers=workers, memory=memory, shards=shards, show_progress=show_progress,
        settings=settings,
    )  # fmt: skip


def train_by(
    protocol: Protocol,
    method: Method,
    population: Population,
    *,
    later: Mapping[int, Population] | None = None,
    callbacks: Sequence[Callback] = (),
    out: str | pathlib.Path,
    resume: bool = False,
    overwrite: bool = False,
    until: int | None = None,
    workers: RemoteWorkers | None = None,
    memory: str | int | None = None,
    shards: int | None = None,
    show_progress: bool = True,
    settings: Mapping | None = None,
    data: Mapping[str, str] | None = None,
    further: Callable[[Mapping, Mapping[str, np.ndarray], Population, np.ndarray], Mapping] | None = None,
) -> Result | None:
    """Does what `train` does, but takes the settings in one object.

    Args, Returns and Raises: As for `train`, and

    Args:
      protocol: The settings of the run beside the method and the clients.
      data: The fingerprint of the data, see `runs.fingerprint`; a run can only be resumed with the same data. Default:
        the fingerprint of the populations.
      further: `(summary, columns of clients.csv, clients at the end, bool [N]: who is in a cluster) -> further entries`
        of summary.json. It is called before summary.json is written, which marks the end of a run, so that its entries
        and files are complete by then.
    """
    runtime.check_process()
    checks.check_method(method)
    check_given(population, later, callbacks, settings, out)
    memory = current().memory_bytes if memory is None else parse_bytes(memory)
    shards = current().shards if shards is None else check_value("shards", shards, Whole)
    until = protocol.rounds if until is None else check_value("until", until, Count)
    directory = RunDirectory(out)
    settings = settings or default_settings(method, protocol)
    if workers:
        remote_workers.use_workers(workers)  # a missing worker is found before anything is written
    else:
        checks.check_processor(method.training)
    directory.check_claim(settings, resume=resume, overwrite=overwrite, longer=True)
    progress = Progress(protocol.rounds, f"{settings['algorithm']} seed {protocol.seed}", show=show_progress)
    run = _prepared(method, protocol, population, later, callbacks, directory, until, progress)
    taking_part = checks.who_takes_part(run.stages, protocol)
    checks.check_before(method, len(run.stages.client_ids), len(taking_part), directory.path, memory)
    if not workers:
        runtime.use_local_worker()
    data = fingerprint.of_populations({0: population, **(later or {})}) if data is None else data
    checkpoints = Checkpoints(directory / CHECKPOINTS, protocol.keep_checkpoints)
    try:
        # By now all errors in what the user gave have been found.
        with locked(directory.path):
            name = _claimed(run, settings, data, checkpoints, resume=resume, overwrite=overwrite)
            with _under_way(run, name, memory, shards) as store:
                checkpoints = Checkpoints(directory / CHECKPOINTS, protocol.keep_checkpoints, store, name)
                restore_or_initialize(run, checkpoints, resume)
                checks.check_models_fit(method, run.state, taking_part)
                files = [RoundsTable(), TensorBoard(), ClusterHistory(), run.progress]
                run_rounds(run, [*files, *map(UsersCallback, callbacks), SaveCheckpoints(checkpoints)])
                run.interrupts.check()
                return finish(run, settings, further) if run.is_over else None
    except KeyboardInterrupt:
        raise stopped(checkpoints.latest() or 0) from None
    except (ConnectionError, TimeoutError):  # these are of workers, not of files
        raise
    except OSError as error:
        raise unwritten(error, directory.path, checkpoints) from None


def check_given(population, later, callbacks=(), settings=None, out="."):
    """Raises UserError if an argument is of a wrong type or out of range."""
    check_kind("later", later or {}, Mapping, "a mapping of rounds to populations")
    check_kind("callbacks", callbacks, (list, tuple), "a list of callbacks")
    for each in callbacks:
        check_kind("one of callbacks", each, Callback, "an object of a class that derives from tffcl.Callback")
    check_kind("settings", settings or {}, Mapping, 'nested tables, {"task": ..., "algorithm": ...}')
    check_kind("out", out, (str, os.PathLike), "the name of a directory")
    if settings and not {"task", "algorithm"} <= settings.keys():
        raise UserError("settings lack task or algorithm, which name the run in tables")
    for start in later or {}:
        check_value("a round of later", start, Count)
    places = {"population": population, **{f"later[{start}]": each for start, each in (later or {}).items()}}
    for place, each in places.items():
        check_kind(place, each, Population, "a tffcl.Population, as Population.from_arrays makes one")


def check_fits(
    method: Method, protocol: Protocol, population: Population, later: Mapping[int, Population] | None
) -> Stages:
    """Returns the clients of each round as the method's model takes them.

    Raises:
      UserError: If they do not fit the model, or the protocol does not fit them.
    """
    population = taken_by(method.model, population)
    later = {start: taken_by(method.model, each) for start, each in (later or {}).items()}
    checks.check_own_settings(method.training, (population, *later.values()))
    check_metrics(method.model, population)
    stages = Stages(method.model.whole, population, later)
    if stages.starts[-1] > protocol.rounds:
        raise UserError(
            f"later is from round {stages.starts[-1]} on, and the run has {protocol.rounds}; until= stops a run "
            "before its end"
        )
    method.check_clients(len(stages.client_ids))
    for each in stages.populations:  # refuses too large a cohort now
        sample_cohort(each.client_ids, protocol.clients_per_round, protocol.seed, 1)
    return stages


def _prepared(
    method: Method,
    protocol: Protocol,
    population: Population,
    later,
    callbacks,
    directory: RunDirectory,
    until: int,
    progress: Progress,
) -> Run:
    """Makes a run whose clients fit the model and the cohort, before anything is computed."""
    stages = check_fits(method, protocol, population, later)
    clients = len(stages.client_ids)
    ledger = Ledger(protocol.privacy, clients)
    if protocol.privacy.epsilon or protocol.privacy.delta:
        warn_of_delta(ledger, clients)
    # A client that is drawn again may not train again: the run may end before, or too few of its cluster are drawn.
    # `may_wait` is always called: it refuses an aggregation that cannot be built, before anything is written.
    may_end = ledger.budget is not None or any(each.stops_between_evaluations for each in callbacks)
    tests_each_round = checks.may_wait(method) or may_end
    last = min(protocol.rounds, until)
    run = Run(method, protocol, directory, stages, stages.at(0), ledger, last, progress, tests_each_round)
    for each in callbacks:
        if isinstance(each, EarlyStopping):
            each.check_measured(run)
    return run


def _claimed(
    run: Run, settings: Mapping, data: Mapping, checkpoints: Checkpoints, *, resume: bool, overwrite: bool
) -> str:
    """Claims the directory, whose lock is held, for a run that starts or resumes; returns the run's name."""
    directory, ledger = run.directory, run.ledger
    directory.check_claim(settings, resume=resume, overwrite=overwrite, locked=True, longer=True)
    anew = not resume or checkpoints.latest() is None
    if anew:
        check_start(run.method.model)
    else:
        fingerprint.check_same_data(directory, data)
    ledger.file = directory / LEDGER
    if resume:
        ledger.read_file(directory.run_name)
    elif ledger.file.exists() or _was_private(directory):
        tell(f"{directory} held a private run; what it has released adds to what this one does, which counts its own")
    code = fingerprint.of_own_modules(run.method, settings)
    ledger.run = directory.claim(settings, data, code, anew=anew, resume=resume)
    return ledger.run


def _was_private(directory: RunDirectory) -> bool:
    """Whether the directory holds the summary of a private run; False if the summary is damaged."""
    try:
        return "privacy" in (directory.summary() or {})
    except UserError:
        return False


@contextlib.contextmanager
def _under_way(run: Run, name: str, memory: int, shards: int | None) -> Iterator[KeptStore]:
    """Holds open what a run needs while it computes; yields the files of client states."""
    progress = run.progress
    simulation = simulating(
        memory=memory,
        shards=shards,
        client_states=KeptStore(run.directory / CLIENT_STATES, run=name),
        ledger=run.ledger,
        on_plan=progress.say_once,
        on_progress=progress.show_clients,
    )
    with watch_for_interrupts() as run.interrupts, progress, simulation as context:
        yield context.client_states


def default_settings(method: Method, protocol: Protocol) -> dict:
    """Returns the settings of a run for which none are given: the protocol, and what the method was built from."""
    values = dataclasses.asdict(protocol)
    privacy = {name: value for name, value in values.pop("privacy").items() if value is not None}
    if not protocol.place_unseen:
        del values["place_unseen"]
    named = {"task": "train", "algorithm": method.name, "seed": values.pop("seed"), "train": values}
    named |= {"privacy": privacy} if privacy else {}
    return {**named, BUILT_FROM: fingerprint.of_method(method)}
