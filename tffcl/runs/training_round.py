"""One round of a run: a population that changes, the cohort, what the method makes of it, and the row of rounds.csv."""

import contextlib
import copy
import functools

import numpy as np

from tffcl.clients import sampling
from tffcl.clients.cohort import Cohort
from tffcl.clients.population import Population
from tffcl.clients.simulation_context import current, simulating
from tffcl.rounds import privacy_releases
from tffcl.rounds.traffic import RoundMetrics
from tffcl.runs import accuracies, method_checks
from tffcl.runs.metrics import COLUMNS
from tffcl.runs.run import CLUSTERING, EVALUATION, TRAINING, Run
from tffcl.runs.summary import cluster_numbers, clustering_error


def next_round(run: Run):
    """Moves a run on by a round, with the evaluation that is due after it; one that fails leaves the run as it was."""
    before = run.stage, run.state, run.totals, run.evaluation
    run.totals = copy.deepcopy(run.totals)
    try:
        number = run.round_number + 1
        if run.stages.begins(number):
            _enter_stage(run, number)
        row = _train(run, number)
        run.evaluation = None
        if sampling.is_evaluation(number, run.protocol.rounds, run.protocol.evaluate_every):
            evaluate(run)
            row |= accuracies.row(run.evaluation, run.totals) | cluster_numbers(run.population, run.views)
        run.round_number, run.metrics = number, row
    except BaseException:
        run.stage, run.state, run.totals, run.evaluation = before
        run.ledger.rewind(run.totals.releases)
        raise


def evaluate(run: Run):
    """Takes the accuracies of a run's state, in which clients that choose have chosen then."""
    with run.timed(EVALUATION):
        run.state, run.evaluation = accuracies.measure(
            run.method, run.stage, run.state, place_unseen=run.protocol.place_unseen
        )


def accounted(population: Population) -> contextlib.AbstractContextManager:
    """A block in which a method that reads clients' examples itself, and not through a round, has released them without noise."""
    read = privacy_releases.of_all("what the method reads of the clients' examples itself", population, once=True)
    return simulating(on_reading=functools.cache(lambda: current().release(read)))  # once is enough


def count_joining(run: Run, before: object, after: object):
    """Counts what joining has cost clients that are new in a state."""
    exchanged = run.method.joined_traffic(before, after)
    run.totals.down_bytes += exchanged.down
    run.totals.up_bytes += exchanged.up
    run.totals.signature_bytes += exchanged.up + exchanged.down  # part of the two


def _enter_stage(run: Run, number: int):
    """Lets newcomers join and data change before a round."""
    before, run.stage = run.stage, run.stages.at(number)
    run.totals = run.totals.moved(run.population.index(before.population.client_ids), len(run.population))
    # The last local test of these was on data that they hold no more.
    changed = np.isin(run.population.client_ids, run.stage.changed)
    run.totals.local_correct[changed] = run.totals.local_total[changed] = 0
    if run.stage.arrivals is None:
        return
    with run.timed(CLUSTERING), accounted(run.stage.arrivals):
        joined = run.method.admit(run.state, run.stage.arrivals)
    method_checks.check_state(run.method, joined, run.population.client_ids, run.method.model.size)
    count_joining(run, run.state, joined)
    run.state = joined


def _train(run: Run, number: int) -> dict:
    """The training of a round; returns its row of rounds.csv without accuracies."""
    cohort = _draw(run, number)
    if not len(cohort.client_ids) and not run.method.hides_empty_rounds(run.state):
        run.totals.releases = run.ledger.as_array()  # newcomers may have released something when they joined
        return _row(run)
    with run.timed(TRAINING), accounted(run.population):
        run.state, metrics = run.method.next(run.state, cohort)
    where, totals = run.population.index(metrics.client_ids), run.totals
    totals.releases = run.ledger.as_array()
    totals.rounds_trained[where] += 1
    totals.local_correct[where] = metrics.test_correct
    totals.local_total[where] = metrics.test_examples
    totals.down_bytes += metrics.traffic.down
    totals.up_bytes += metrics.traffic.up
    totals.signature_bytes += metrics.signatures.down + metrics.signatures.up
    return _row(run, metrics)


def _draw(run: Run, number: int) -> Cohort:
    protocol, population = run.protocol, run.population
    size, seed, how = protocol.clients_per_round, protocol.seed, protocol.sampling
    # Where the run may end with any round nobody is sure to train again before the next evaluation.
    rounds, every = (number, number) if run.tests_each_round else (protocol.rounds, protocol.evaluate_every)
    return Cohort(
        population,
        sampling.sample_cohort(population.client_ids, size, seed, number, how),
        (sampling.stream(seed, "clients"), number),
        sampling.needs_local_test(lambda at: run.stages.population(at).client_ids, size, seed, number, rounds, every, how),
        size / len(population) if how == "poisson" else None,
    )


def _row(run: Run, metrics: RoundMetrics | None = None) -> dict:
    """The row of a round; without metrics that of one which no client was drawn for, and in which nothing moved."""
    # Where clients choose, all of them are asked at an evaluation only.
    clusters = {} if run.method.clients_choose else cluster_numbers(run.population, run.views)
    row = {**dict.fromkeys((*COLUMNS, *accuracies.names(run.stage))), **clusters, "down_bytes": 0, "up_bytes": 0}
    if metrics is not None:
        if len(metrics.client_ids):
            row["train_loss"] = float(metrics.examples / max(metrics.examples.sum(), 1) @ metrics.losses)
        if metrics.relatedness is not None:
            row["clustering_error"] = clustering_error(run.population, metrics)
        row |= {**metrics.scalars, "down_bytes": int(metrics.traffic.down), "up_bytes": int(metrics.traffic.up)}
    return row | ({"epsilon": run.ledger.epsilon} if run.ledger.is_private else {})
