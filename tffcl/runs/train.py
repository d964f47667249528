"""One run: what is checked before it, its directory, initialise or resume, its rounds, the files that it leaves."""

import contextlib
import dataclasses
import functools
import os
import pathlib
from collections.abc import Mapping

from tffcl import runtime
from tffcl.clients import sampling
from tffcl.clients.client_state import KeptStore
from tffcl.clients.example_types import check_examples, fitted
from tffcl.clients.population import Population
from tffcl.clients.simulation_context import current, simulating
from tffcl.errors import UserError, tell
from tffcl.models.from_keras import check_start
from tffcl.runs import fingerprint, method_checks, resource_checks
from tffcl.runs.checkpoints import Checkpoints, unwritten
from tffcl.runs.evaluator import check_tokens
from tffcl.runs.history import ClusterHistory
from tffcl.runs.interrupts import Interrupts, stopped, watch_for_interrupts
from tffcl.runs.lock import locked
from tffcl.runs.loop import Job, Protocol, first_state, no_progress, run_rounds
from tffcl.runs.population_changes import Stages
from tffcl.runs.privacy import Ledger, PrivacySettings, warn_of_delta
from tffcl.runs.progress import go_on_from, progress_bar, say_once, show_clients
from tffcl.runs.result import Result
from tffcl.runs.round_metrics import Metrics
from tffcl.runs.run_directory import BUILT_FROM, CHECKPOINTS, KEPT, LEDGER, RunDirectory
from tffcl.runs.write_results import finish
from tffcl.runtime import RemoteWorkers, remote_workers
from tffcl.runtime.memory import parse_bytes
from tffcl.validation import Count, check_kind, check_value


def train(
    method,
    population: Population,
    *,
    rounds: int,
    clients_per_round: int,
    seed: int = 0,
    out: str | pathlib.Path = "runs/train",
    evaluate_every: int = 10,
    checkpoint_every: int = 10,
    keep_checkpoints: int = 2,
    later: Mapping[int, Population] | None = None,
    settings: Mapping | None = None,
    resume: bool = False,
    overwrite: bool = False,
    show_progress: bool = True,
    workers: RemoteWorkers | None = None,
    memory: str | int | None = None,
    sample: str = "fixed",
    privacy: PrivacySettings = PrivacySettings(),
    place_unseen: bool = False,
    until: int | None = None,
    data: Mapping[str, str] | None = None,
) -> Result | None:
    """Trains a method on clients and writes the files of a run but for report and figures.

    Args:
      method: A method, see `tffcl.algorithms`, or one of your own that derives from `tffcl.algorithms.Method`.
      population: The clients, with their examples; numbers of another type than the model takes become it where none of them
        changes.
      rounds: Communication rounds.
      clients_per_round: Cohort size, sampled uniformly without replacement.
      seed: Decides sampling and shuffling.
      out: Directory of the run's files.
      evaluate_every: Rounds between evaluations; the last round always has one.
      checkpoint_every: Rounds between checkpoints; the last round always has one.
      keep_checkpoints: How many of the newest checkpoints are kept.
      later: Round to the population from then on, where newcomers join or data change in the middle, see `population_changes.Stages`.
      settings: What was set, nested tables for config.toml; `task` and `algorithm` name the run in tables. A run is resumed
        with the same settings only. Default: what is given here, and what a builder of `tffcl.algorithms` was given.
      resume: Go on from the newest checkpoint in `out`; from the start if there is none. A run that was asked for fewer rounds,
        finished or not, goes on to `rounds`.
      overwrite: Delete the run that is in `out`.
      show_progress: A progress bar with an ETA on standard error.
      workers: Running TFF workers that share each round's clients; default one of this machine, started and ended here.
      memory: What the clients of a round may take at a time, "4GB" or bytes; default up to half of what is free. A larger
        cohort computes in blocks: the same numbers up to the order of sums.
      sample: "fixed", or "poisson": each client takes part independently, `clients_per_round` of them on average; in a round
        that nobody is drawn for nothing moves, but where rounds are private: then there is noise as always.
      privacy: Budget and δ of what private aggregations and signatures release; without a budget ε is told only.
      place_unseen: At evaluations, whether clients that the method has not met are placed without training, where it can.
      until: Stop after this round with a checkpoint, to go on later with `resume`.
      data: The fingerprint of the data, see `runs.fingerprint`; a run is resumed with the same data only. Default: the
        populations.

    Returns:
      What the run gave; None if it has stopped by `until` before its end.

    Raises:
      UserError: For anything that the user can mend. What was computed up to then is in the checkpoint.
      Interrupted: After Ctrl-C, SIGTERM or SIGHUP.
    """
    runtime.check_process()
    method_checks.check_method(method)
    _check_given(population, later, settings, out)
    most = current().memory_bytes if memory is None else parse_bytes(memory)
    protocol = Protocol(rounds, clients_per_round, seed, evaluate_every, checkpoint_every, keep_checkpoints, sample)
    settings, out = settings or _default_settings(method, protocol, place_unseen), pathlib.Path(out)
    if workers:
        remote_workers.use_workers(workers)  # one that is not there is found before anything is written
    RunDirectory(out).check_claim(settings, resume=resume, overwrite=overwrite, longer=True)
    job = _prepared(method, protocol, population, later, settings, place_unseen, privacy)
    taking_part = resource_checks.who_takes_part(job.stages, protocol)
    resource_checks.check_before(method, len(job.stages.populations[-1]), len(taking_part), out, most)
    if not workers:
        runtime.use_local_worker()
    data = fingerprint.of_populations({0: population, **(later or {})}) if data is None else data
    checkpoints = Checkpoints(out / CHECKPOINTS, keep_checkpoints)
    try:
        # All that a user may have got wrong is known by now.
        with locked(out):
            run = _claimed(job, out, settings, data, checkpoints, resume=resume, overwrite=overwrite)
            with _under_way(job, out, most, show=show_progress) as (bar, store):
                checkpoints = Checkpoints(out / CHECKPOINTS, keep_checkpoints, store, run)
                state, accuracy, done = _trained(job, out, checkpoints, taking_part, bar, resume=resume, until=until)
                about = {"task": settings["task"], "algorithm": settings["algorithm"], "seed": seed, "rounds": done}
                return None if accuracy is None else finish(job, out, about, state, accuracy)
    except KeyboardInterrupt:  # not in a round
        raise stopped(checkpoints.latest() or 0) from None
    except (ConnectionError, TimeoutError):  # of workers, not of files
        raise
    except OSError as error:
        raise unwritten(error, out, checkpoints) from None


def _check_given(population, later, settings, out):
    """Raises UserError if an argument is of another kind than it can be."""
    check_kind("later", later or {}, Mapping, "a mapping of rounds to populations")
    check_kind("settings", settings or {}, Mapping, 'nested tables, {"task": ..., "algorithm": ...}')
    check_kind("out", out, (str, os.PathLike), "the name of a directory")
    if settings and not {"task", "algorithm"} <= settings.keys():
        raise UserError("settings lack task or algorithm, which name the run in tables")
    for start in later or {}:
        check_value("a round of later", start, Count)
    for place, each in {"population": population, **{f"later[{start}]": each for start, each in (later or {}).items()}}.items():
        check_kind(place, each, Population, "a tffcl.Population, as Population.from_arrays makes one")


def _prepared(method, protocol: Protocol, population: Population, later, settings: Mapping, place_unseen: bool, privacy) -> Job:
    """The job of a run whose clients fit the model and the cohort; nothing has been computed."""
    spec = method.model.example_spec
    population, later = fitted(population, spec), {start: fitted(each, spec) for start, each in (later or {}).items()}
    for each in (population, *later.values()):
        check_examples(each, spec, method.model.num_classes)
        check_tokens(method.model, each)
    stages = Stages(method.model, population, later)
    if stages.starts[-1] > protocol.rounds:
        raise UserError(f"later is from round {stages.starts[-1]} on, and the run has {protocol.rounds}; until= stops a run before its end")
    sampling.sample_cohort(
        population.client_ids, protocol.clients_per_round, protocol.seed, 1
    )  # too large a cohort is told now
    clients = len(stages.populations[-1])
    ledger = Ledger(privacy, clients)
    if privacy.epsilon or privacy.delta:
        warn_of_delta(ledger, clients)
    title = f"{settings['algorithm']} seed {protocol.seed}"
    return Job(method, protocol, stages, stages.at(0), no_progress(len(population)), Interrupts(), title, place_unseen, ledger)


def _claimed(
    job: Job, out: pathlib.Path, settings: Mapping, data: Mapping, checkpoints: Checkpoints, *, resume: bool, overwrite: bool
) -> str:
    """Takes the directory, whose lock is held, for a run that begins or goes on; returns the run's name."""
    directory = RunDirectory(out)
    directory.check_claim(settings, resume=resume, overwrite=overwrite, locked=True, longer=True)
    marker = directory.marker() or {}
    anew = not resume or checkpoints.latest() is None
    if anew:
        check_start(job.method.model)
    else:
        fingerprint.check_same_data(out, marker.get("data"), data)
    job.ledger.file = directory / LEDGER
    if resume:
        job.ledger.read_file(marker.get("tffcl run", ""))
    elif job.ledger.file.exists():
        tell(f"{out} held a private run; what it has released adds to what this one does, which counts its own")
    job.ledger.run = directory.claim(settings, data, anew=anew, resume=resume)
    return job.ledger.run


@contextlib.contextmanager
def _under_way(job: Job, out: pathlib.Path, most: int, *, show: bool):
    """All that is open while a run computes; yields its progress bar and the files of client states."""
    told, bar = set(), progress_bar(job.protocol.rounds, job.title, "round", show=show)
    simulation = simulating(
        memory=most,
        client_states=KeptStore(out / KEPT),
        ledger=job.ledger,
        on_plan=lambda line: say_once(bar, line, told),
        on_progress=functools.partial(show_clients, bar),
    )
    with watch_for_interrupts() as job.interrupts, bar, simulation as context:
        yield bar, context.client_states


def _trained(job: Job, out: pathlib.Path, checkpoints: Checkpoints, taking_part, bar, *, resume: bool, until: int | None):
    """Runs what is left of the rounds; returns as `loop.run_rounds`."""
    round_number, state = first_state(job, checkpoints, resume, bar)
    resource_checks.check_state(job.method, state, taking_part)
    go_on_from(bar, round_number)
    written = Metrics(out, round_number), ClusterHistory(out, round_number + 1)
    last = min(job.protocol.rounds, until or job.protocol.rounds)
    return run_rounds(job, state, round_number, last, checkpoints, *written, bar)


def _default_settings(method, protocol: Protocol, place_unseen: bool) -> dict:
    values = dataclasses.asdict(protocol) | ({"place_unseen": True} if place_unseen else {})
    named = {"task": "train", "algorithm": method.name, "seed": values.pop("seed"), "train": values}
    return {**named, BUILT_FROM: fingerprint.of_method(method)}
