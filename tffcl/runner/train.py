"""One run: initialise or resume, rounds with a progress bar, evaluation, checkpoints, the files of the run."""

import contextlib
import dataclasses
import json
import pathlib
import sys
import time
from collections.abc import Mapping

import numpy as np

from tffcl import runtime
from tffcl.clients import kept, sampling
from tffcl.clients.cohort import Cohort
from tffcl.clients.population import Population
from tffcl.clients.sources import check_examples
from tffcl.errors import Diverged, UserError
from tffcl.reporting.marker import read_marker
from tffcl.rounds import releases, watching
from tffcl.runner import accuracies, checks, directory, fingerprint, needs, summary
from tffcl.runner.checkpoints import Checkpoints, unwritten
from tffcl.runner.clustering_error import clustering_error
from tffcl.runner.finishing import finish
from tffcl.runner.history import ClusterHistory
from tffcl.runner.interrupts import Interrupts, watch_for_interrupts
from tffcl.runner.lock import locked
from tffcl.runner.privacy import BudgetSpent, Ledger, PrivacySettings, warn_of_delta
from tffcl.runner.progress import go_on_from, progress_bar, say_once, show, show_clients
from tffcl.runner.result import Result
from tffcl.runner.round_metrics import Metrics
from tffcl.runner.stages import Stage, Stages
from tffcl.runtime import RemoteWorkers, remote_workers
from tffcl.runtime.memory import budget, budget_bytes, parse_bytes
from tffcl.validation import Count, Parameters, Whole, one_of

CLUSTERING, TRAINING, EVALUATION = range(3)  # places in progress["seconds"]
_BY_CLIENT = ("rounds_trained", "local_correct", "local_total")
_Sampling = one_of(sampling.KINDS)


class Interrupted(UserError):
    """The user stopped the run; what there is has been saved."""


@dataclasses.dataclass(frozen=True)
class Protocol(Parameters):
    """What decides a run beside method and clients.

    Attributes:
      rounds: Communication rounds.
      clients_per_round: Cohort size, sampled uniformly without replacement.
      seed: Decides sampling and shuffling.
      evaluate_every: Rounds between evaluations; the last round always has one.
      checkpoint_every: Rounds between checkpoints; the last round always has one.
      keep_checkpoints: How many of the newest checkpoints are kept.
      sampling: "fixed", or "poisson": each client takes part independently, `clients_per_round` of them on average.
    """

    rounds: Count
    clients_per_round: Count
    seed: Whole = 0
    evaluate_every: Count = 10
    checkpoint_every: Count = 10
    keep_checkpoints: Count = 2
    sampling: _Sampling = "fixed"


@dataclasses.dataclass
class _Run:
    """The parts of a run in progress, and what has been counted so far."""

    method: object
    protocol: Protocol
    stages: Stages
    stage: Stage
    progress: dict
    interrupts: Interrupts
    title: str
    place_unseen: bool
    ledger: Ledger
    stopped: str = ""  # why the run ended before its last round

    @contextlib.contextmanager
    def timed(self, which: int):
        start = time.monotonic()
        yield
        self.progress["seconds"][which] += time.monotonic() - start


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
      method: A method, see `tffcl.algorithms`; or an object of your own with the attributes of `algorithms.method.Method`.
      population: The clients, with their examples.
      rounds: Communication rounds.
      clients_per_round: Cohort size, sampled uniformly without replacement.
      seed: Decides sampling and shuffling.
      out: Directory of the run's files.
      evaluate_every: Rounds between evaluations; the last round always has one.
      checkpoint_every: Rounds between checkpoints; the last round always has one.
      keep_checkpoints: How many of the newest checkpoints are kept.
      later: Round to the population from then on, where newcomers join or data change in the middle, see `stages.Stages`.
      settings: What was set, nested tables for config.toml; `task` and `algorithm` name the run in tables. A run is resumed
        with the same settings only. Default: what is given here.
      resume: Go on from the newest checkpoint in `out`; from the start if there is none.
      overwrite: Delete the run that is in `out`.
      show_progress: A progress bar with an ETA on standard error.
      workers: Running TFF workers that share each round's clients; default one of this machine, started and ended here.
      memory: What the clients of a round may take at a time, "4GB" or bytes; default up to half of what is free. A larger
        cohort computes in blocks: the same numbers up to the order of sums.
      sample: "fixed", or "poisson": each client takes part independently, `clients_per_round` of them on average; in a round that
        nobody is drawn for nothing moves, but where rounds are private: then there is noise as always.
      privacy: Budget and δ of what private aggregations and signatures release; without a budget ε is told only.
      place_unseen: At evaluations, whether clients that the method has not met are placed without training, where it can.
      until: Stop after this round with a checkpoint, to go on later with `resume`.
      data: What the data are told by, see `runner.fingerprint`: a run is resumed with the same only. Default: the populations.

    Returns:
      What the run gave; None if it has stopped by `until` before its end.

    Raises:
      UserError: For anything that the user can mend. What was computed up to then is in the checkpoint.
      Interrupted: After Ctrl-C.
    """
    checks.check_method(method)
    most = None if memory is None else parse_bytes(memory)
    protocol = Protocol(rounds, clients_per_round, seed, evaluate_every, checkpoint_every, keep_checkpoints, sample)
    settings = settings or _default_settings(method, protocol, place_unseen)
    out = pathlib.Path(out)
    if workers:
        remote_workers.use_workers(workers)  # one that is not there is found before anything is written
    directory.check_claim(out, settings, resume=resume, overwrite=overwrite)
    for each in (population, *(later or {}).values()):
        check_examples(each, method.model.example_spec, method.model.num_classes)
    stages = Stages(method.model, population, later)
    sampling.sample_cohort(population.client_ids, clients_per_round, seed, 1)  # too large a cohort is told now
    taking_part = needs.who_takes_part(stages, protocol)
    needs.check_before(method, len(stages.populations[-1]), len(taking_part), out, most or budget_bytes())
    ledger = Ledger(privacy, len(population))
    if privacy.epsilon or privacy.delta:
        warn_of_delta(ledger, len(population))
    if not workers:
        runtime.use_local_worker()
    if data is None:
        data = fingerprint.of_populations({0: population, **(later or {})})
    title = f"{settings['algorithm']} seed {seed}"
    told = set()
    checkpoints = Checkpoints(out / directory.CHECKPOINTS, keep_checkpoints)
    try:
        # All that a user may have got wrong is known by now.
        with locked(out):
            directory.check_claim(out, settings, resume=resume, overwrite=overwrite, held=True)
            anew = not resume or checkpoints.latest() is None
            if not anew:
                fingerprint.check_same_data(out, (read_marker(out) or {}).get("data"), data)
            run = directory.claim(out, settings, data, anew=anew, name="" if anew else checkpoints.run_named())
            files = kept.stored_in(out / directory.KEPT)
            shown = progress_bar(rounds, title, "round", show=show_progress)
            watch = watching.Watch(lambda line: say_once(shown, line, told), lambda *counts: show_clients(shown, *counts))
            with (
                watch_for_interrupts() as interrupts,
                shown as bar,
                files as store,
                budget(most),
                watching.watched(watch),
                releases.accounted(ledger),
            ):
                none = _no_progress(len(population))
                job = _Run(method, protocol, stages, stages.at(0), none, interrupts, title, place_unseen, ledger)
                checkpoints = Checkpoints(out / directory.CHECKPOINTS, keep_checkpoints, store, run)
                round_number, state = _start(job, checkpoints, resume, bar)
                needs.check_state(method, state, taking_part)
                go_on_from(bar, round_number)
                noted = json.loads(str(job.progress.get("written", "{}")))  # none in a run of an earlier version
                written = Metrics(out, round_number, noted), ClusterHistory(out, round_number + 1, noted)
                last = min(rounds, until or rounds)
                state, accuracy, done = _rounds(job, state, round_number, last, checkpoints, *written, bar)
            about = {"task": settings["task"], "algorithm": settings["algorithm"], "seed": seed, "rounds": done}
            return None if accuracy is None else finish(job, out, about, state, accuracy)
    except (ConnectionError, TimeoutError):  # of workers, not of files
        raise
    except OSError as error:
        raise unwritten(error, out, checkpoints) from None


def _default_settings(method, protocol: Protocol, place_unseen: bool) -> dict:
    values = dataclasses.asdict(protocol) | ({"place_unseen": True} if place_unseen else {})
    return {"task": "train", "algorithm": method.name, "seed": values.pop("seed"), "train": values}


def _no_progress(clients: int) -> dict:
    counts = {key: np.zeros(clients, np.int64) for key in _BY_CLIENT}
    totals = {key: np.int64(0) for key in ("down_bytes", "up_bytes", "signature_bytes")}
    return {**counts, **totals, "seconds": np.zeros(3), "releases": np.zeros((0, 5)), "written": "{}"}


def _start(job: _Run, checkpoints: Checkpoints, resume: bool, bar) -> tuple[int, object]:
    """Returns the round that is done and the state after it: from a checkpoint, or 0 and the initial state."""
    if resume and checkpoints.latest() is not None:
        saved, state, job.progress = checkpoints.load_newest(job.method.state_class, job.protocol.rounds)
        job.stage = job.stages.at(saved)
        job.progress.setdefault("releases", np.zeros((0, 5)))  # of a run of an earlier version
        job.ledger.restore(job.progress["releases"])
        return saved, state
    bar.set_description(f"{job.title} initialises")
    population = job.stage.population
    with job.timed(CLUSTERING):
        state = job.method.initialize(population)
    checks.check_state(job.method, state, population.client_ids, job.method.model.size)
    job.progress["releases"] = job.ledger.as_array()
    bar.set_description(job.title)
    _count_joining(job, int(job.method.views(state).known_or_all.sum()))
    checkpoints.save(0, state, job.progress)
    return 0, state


def _count_joining(job: _Run, clients: int):
    exchanged = job.method.joining * clients
    job.progress["down_bytes"] += exchanged.down
    job.progress["up_bytes"] += exchanged.up
    job.progress["signature_bytes"] += exchanged.up + exchanged.down  # part of the two


def _enter_stage(job: _Run, state, number: int):
    """Lets newcomers join and data change before a round; returns the method's state with the newcomers."""
    before, job.stage, progress = job.stage, job.stages.at(number), dict(job.progress)
    population = job.stage.population
    known, job.progress = population.index(before.population.client_ids), progress
    for key in _BY_CLIENT:
        everyone = np.zeros(len(population), np.int64)
        everyone[known] = progress[key]
        progress[key] = everyone
    changed = np.isin(population.client_ids, job.stage.changed)
    # The last local test of these was on data that they hold no more.
    progress["local_correct"][changed] = progress["local_total"][changed] = 0
    if job.stage.arrivals is None:
        return state
    with job.timed(CLUSTERING):
        joined = job.method.admit(state, job.stage.arrivals)
    checks.check_state(job.method, joined, population.client_ids, job.method.model.size)
    met = (int(job.method.views(each).known_or_all.sum()) for each in (joined, state))
    _count_joining(job, next(met) - next(met))
    return joined


def _rounds(job: _Run, state, done: int, last: int, checkpoints: Checkpoints, metrics: Metrics, history: ClusterHistory, bar):
    """Runs the rounds up to the `last`, or those that the budget allows.

    Returns:
      The last state, the evaluation after the run's last round (None before), and the last round.
    """
    protocol, accuracy, shown = job.protocol, None, {}
    begun = saved = done

    def save():
        job.progress["written"] = json.dumps(metrics.written | history.written)
        checkpoints.save(done, state, job.progress)

    try:
        while done < last:
            job.interrupts.check()
            start = time.monotonic()
            try:
                state, row = _next_round(job, state, done + 1)
            except BudgetSpent as spent:
                if done == begun:
                    raise
                job.stopped, accuracy = f"stopped after round {done}: {spent}", None
                break
            done += 1
            if sampling.is_evaluation(done, protocol.rounds, protocol.evaluate_every):
                state, accuracy = _evaluate(job, state)
                row.update(accuracies.row(accuracy, job.progress))
                row.update(_cluster_row(job, state))
            metrics.release(done, {**row, "seconds": time.monotonic() - start})
            views = job.method.views(state)
            history.save(done, job.stage.population.shown_ids, views.clusters)
            show(bar, row, shown)
            if done == last or done % protocol.checkpoint_every == 0:
                save()
                saved = done
    except KeyboardInterrupt:
        if done > saved:
            save()
        raise Interrupted(f"stopped after round {done}; the same command with --resume goes on") from None
    except UserError as error:
        if done > saved:
            save()
        kind = Diverged if isinstance(error, Diverged) else UserError
        raise kind(f"{error} (rounds 1 to {done} are saved)" if done else str(error)) from None
    if job.stopped:
        save()
        bar.write(job.stopped, file=sys.stderr)
    elif last < protocol.rounds:
        return state, None, done
    return (*((state, accuracy) if accuracy else _evaluate(job, state)), done)


def _next_round(job: _Run, state, number: int) -> tuple[object, dict]:
    """A round, in its stage; one that fails leaves the run in the stage before."""
    stage, progress = job.stage, job.progress
    try:
        if job.stages.begins(number):
            state = _enter_stage(job, state, number)
        return _round(job, state, number)
    except BaseException:
        job.stage, job.progress = stage, progress
        job.ledger.restore(progress["releases"])
        raise


def _round(job: _Run, state, number: int) -> tuple[object, dict]:
    protocol, population = job.protocol, job.stage.population
    seed, size = protocol.seed, protocol.clients_per_round
    how = protocol.sampling
    clients = sampling.sample_cohort(population.client_ids, size, seed, number, how)
    # A budget may end the run at any round: nobody is sure to train again before the next evaluation.
    rounds, every = (number, number) if job.ledger.budget is not None else (protocol.rounds, protocol.evaluate_every)
    tested = sampling.needs_local_test(lambda at: job.stages.population(at).client_ids, size, seed, number, rounds, every, how)
    cohort = Cohort(
        population,
        clients,
        (sampling.stream(seed, "clients"), number),
        tested,
        size / len(population) if how == "poisson" else None,
    )
    if not len(cohort.client_ids) and not getattr(job.method, "hides_empty_rounds", lambda _: False)(state):
        return state, _row_of_nobody(job, state)
    with job.timed(TRAINING):
        state, metrics = job.method.next(state, cohort)
    where, progress = population.index(metrics.client_ids), job.progress
    progress["releases"] = job.ledger.as_array()
    progress["rounds_trained"][where] += 1
    progress["local_correct"][where] = metrics.test_correct
    progress["local_total"][where] = metrics.test_examples
    progress["down_bytes"] += metrics.traffic.down
    progress["up_bytes"] += metrics.traffic.up
    progress["signature_bytes"] += metrics.signatures.down + metrics.signatures.up
    weights = metrics.examples / max(metrics.examples.sum(), 1)
    # Where clients choose, all of them are asked at an evaluation only.
    clusters = dict.fromkeys(("clusters", "ari")) if job.method.clients_choose else _cluster_row(job, state)
    return state, {
        "seconds": 0.0,
        "train_loss": float(weights @ metrics.losses) if len(cohort.client_ids) else None,
        **clusters,
        **({} if metrics.relatedness is None else {"clustering_error": clustering_error(population, metrics)}),
        **metrics.scalars,
        **dict.fromkeys(accuracies.names(job.stage)),
        "down_bytes": int(metrics.traffic.down),
        "up_bytes": int(metrics.traffic.up),
        **({"epsilon": job.ledger.epsilon} if job.ledger.is_private else {}),
    }


def _row_of_nobody(job: _Run, state) -> dict:
    """The row of a round that no client was drawn for, and that need not be hidden: nothing is released, and nothing moves."""
    clusters = dict.fromkeys(("clusters", "ari")) if job.method.clients_choose else _cluster_row(job, state)
    accuracies = dict.fromkeys(("cluster_accuracy", "local_accuracy", "local_share", "global_accuracy"))
    epsilon = {"epsilon": job.ledger.epsilon} if job.ledger.is_private else {}
    return {"seconds": 0.0, "train_loss": None, **clusters, **accuracies, "down_bytes": 0, "up_bytes": 0, **epsilon}


def _evaluate(job: _Run, state) -> tuple[object, dict]:
    """Returns the state, in which clients that choose have chosen, and their accuracies."""
    with job.timed(EVALUATION):
        return accuracies.measure(job.method, job.stage, state, place_unseen=job.place_unseen)


def _cluster_row(job: _Run, state) -> dict:
    return summary.cluster_numbers(job.stage.population, job.method.views(state))
