"""The rounds of one run: the state before the first, stages that begin, training, evaluation, and what is counted by the way."""

import contextlib
import dataclasses
import functools
import sys
import time

import numpy as np

from tffcl.clients import sampling
from tffcl.clients.cohort import Cohort
from tffcl.clients.simulation_context import current, simulating
from tffcl.errors import Diverged, UserError
from tffcl.rounds import privacy_releases
from tffcl.runs import accuracies, method_checks, summary
from tffcl.runs.checkpoints import Checkpoints
from tffcl.runs.history import ClusterHistory
from tffcl.runs.interrupts import Interrupts, stopped
from tffcl.runs.population_changes import Stage, Stages
from tffcl.runs.privacy import NOTHING, BudgetSpent, Ledger
from tffcl.runs.progress import show
from tffcl.runs.round_metrics import Metrics
from tffcl.runs.summary import clustering_error
from tffcl.validation import Count, Parameters, Whole, one_of

CLUSTERING, TRAINING, EVALUATION = range(3)  # places in progress["seconds"]
_BY_CLIENT = ("rounds_trained", "local_correct", "local_total")
_Sampling = one_of(sampling.KINDS)


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
class Job:
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
        """Adds the seconds that its block takes to those of training, evaluation or clustering."""
        start = time.monotonic()
        yield
        self.progress["seconds"][which] += time.monotonic() - start


def no_progress(clients: int) -> dict:
    """Returns what a run has counted before its first round: nothing yet, for so many clients."""
    counts = {key: np.zeros(clients, np.int64) for key in _BY_CLIENT}
    totals = {key: np.int64(0) for key in ("down_bytes", "up_bytes", "signature_bytes")}
    return {**counts, **totals, "seconds": np.zeros(3), "releases": NOTHING}


def first_state(job: Job, checkpoints: Checkpoints, resume: bool, bar) -> tuple[int, object]:
    """Returns the round that is done and the state after it: from a checkpoint, or 0 and the initial state."""
    if resume and checkpoints.latest() is not None:
        saved, state, job.progress = checkpoints.load_newest(job.method.state_class, job.protocol.rounds)
        job.stage = job.stages.at(saved)
        releases_then = job.progress["releases"]
        job.ledger.check_holds(releases_then, f"the checkpoint of round {saved}")
        _count_lost(job, releases_then, f"after round {saved}", bar)
        return saved, state
    _count_lost(job, NOTHING, "before the first checkpoint", bar)
    bar.set_description(f"{job.title} initialises")
    population = job.stage.population
    with job.timed(CLUSTERING), _accounted(population):
        state = job.method.initialize(population)
    method_checks.check_state(job.method, state, population.client_ids, job.method.model.size)
    job.progress["releases"] = job.ledger.as_array()
    bar.set_description(job.title)
    _count_joining(job, None, state)
    checkpoints.save(0, state, job.progress)
    return 0, state


def _count_lost(job: Job, entries, when: str, bar):
    """Keeps what was released after the state that the run goes on from, and that no seed repeats, in the ledger."""
    if lost := job.ledger.rewind(entries):
        bar.write(
            f"tffcl: {lost} private releases {when} came to nothing, and are told anew with other noise; they stay counted: "
            f"epsilon {job.ledger.epsilon:.4g}",
            file=sys.stderr,
        )
    job.progress["releases"] = job.ledger.as_array()


def _accounted(population):
    """A block in which a method that reads clients' examples itself, and not through a round, has released them without noise."""
    read = privacy_releases.of_all("what the method reads of the clients' examples itself", population, once=True)
    return simulating(on_reading=functools.cache(lambda: current().release(read)))  # once is enough


def _count_joining(job: Job, before, after):
    exchanged = job.method.joined_traffic(before, after)
    job.progress["down_bytes"] += exchanged.down
    job.progress["up_bytes"] += exchanged.up
    job.progress["signature_bytes"] += exchanged.up + exchanged.down  # part of the two


def _enter_stage(job: Job, state, number: int):
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
    with job.timed(CLUSTERING), _accounted(job.stage.arrivals):
        joined = job.method.admit(state, job.stage.arrivals)
    method_checks.check_state(job.method, joined, population.client_ids, job.method.model.size)
    _count_joining(job, state, joined)
    return joined


def run_rounds(job: Job, state, done: int, last: int, checkpoints: Checkpoints, metrics: Metrics, history: ClusterHistory, bar):
    """Runs the rounds up to the `last`, or those that the budget allows.

    Returns:
      The last state, the evaluation after the run's last round (None before), and the last round.
    """
    protocol, accuracy, shown, saved = job.protocol, None, {}, done

    def save():
        checkpoints.save(done, state, job.progress)

    try:
        while done < last:
            job.interrupts.check()
            start = time.monotonic()
            try:
                state, row = _next_round(job, state, done + 1)
            except BudgetSpent as spent:
                if not done:
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
        raise stopped(done) from None
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


def _next_round(job: Job, state, number: int) -> tuple[object, dict]:
    """A round, in its stage; one that fails leaves the run in the stage before."""
    stage, progress = job.stage, job.progress
    try:
        if job.stages.begins(number):
            state = _enter_stage(job, state, number)
        return _round(job, state, number)
    except BaseException:
        job.stage, job.progress = stage, progress
        job.ledger.rewind(progress["releases"])
        raise


def _round(job: Job, state, number: int) -> tuple[object, dict]:
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
    if not len(cohort.client_ids) and not job.method.hides_empty_rounds(state):
        return state, _row_of_nobody(job, state)
    with job.timed(TRAINING), _accounted(population):
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
        "train_loss": float(weights @ metrics.losses) if len(metrics.client_ids) else None,
        **clusters,
        **({} if metrics.relatedness is None else {"clustering_error": clustering_error(population, metrics)}),
        **metrics.scalars,
        **dict.fromkeys(accuracies.names(job.stage)),
        "down_bytes": int(metrics.traffic.down),
        "up_bytes": int(metrics.traffic.up),
        **({"epsilon": job.ledger.epsilon} if job.ledger.is_private else {}),
    }


def _row_of_nobody(job: Job, state) -> dict:
    """The row of a round that no client was drawn for, and that need not be hidden: nothing is released, and nothing moves."""
    job.progress["releases"] = job.ledger.as_array()  # newcomers may have told something when they joined
    clusters = dict.fromkeys(("clusters", "ari")) if job.method.clients_choose else _cluster_row(job, state)
    measured = dict.fromkeys(accuracies.names(job.stage))
    epsilon = {"epsilon": job.ledger.epsilon} if job.ledger.is_private else {}
    return {"seconds": 0.0, "train_loss": None, **clusters, **measured, "down_bytes": 0, "up_bytes": 0, **epsilon}


def _evaluate(job: Job, state) -> tuple[object, dict]:
    """Returns the state, in which clients that choose have chosen, and their accuracies."""
    with job.timed(EVALUATION):
        return accuracies.measure(job.method, job.stage, state, place_unseen=job.place_unseen)


def _cluster_row(job: Job, state) -> dict:
    return summary.cluster_numbers(job.stage.population, job.method.views(state))
