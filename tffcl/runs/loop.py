"""The loop of one run: its first state, its rounds, and what is called after each."""

import contextlib
import copy
import functools
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tffcl.algorithms.method import Method
from tffcl.clients.cohort import Cohort, is_evaluation, needs_local_test, sample_cohort, stream
from tffcl.clients.population import Population
from tffcl.clients.simulation_context import current, simulating
from tffcl.display import counted
from tffcl.errors import Diverged, UserError
from tffcl.models.model_rows import assigned
from tffcl.references import in_a_line, raised_in
from tffcl.rounds import privacy_releases
from tffcl.rounds.traffic import RoundMetrics, Traffic
from tffcl.runs import checks, summary
from tffcl.runs.callbacks import Callback, CallbackFailed
from tffcl.runs.checkpoints import Checkpoints
from tffcl.runs.evaluator import own_metrics
from tffcl.runs.metrics import COLUMNS, METRICS, rows_of
from tffcl.runs.privacy import NOTHING, BudgetSpent
from tffcl.runs.run import CLUSTERING, EVALUATION, TRAINING, Run, Totals


def next_round(run: Run):
    """Trains one round, and evaluates if an evaluation is due after it. A round that fails leaves the run as it was."""
    before = run.stage, run.state, run.totals, run.evaluation
    run.totals = copy.deepcopy(run.totals)
    try:
        number = run.round_number + 1
        joined = _enter_stage(run, number) if run.stages.begins(number) else Traffic()
        row = _train(run, number)
        row |= {"down_bytes": row["down_bytes"] + joined.down, "up_bytes": row["up_bytes"] + joined.up}
        run.evaluation = None
        if is_evaluation(number, run.protocol.rounds, run.protocol.evaluate_every):
            row |= evaluate(run)
        run.round_number, run.metrics = number, row
    except BaseException as error:
        run.stage, run.state, run.totals, run.evaluation = before
        if isinstance(error, BudgetSpent):  # earlier releases of the round, such as signatures, have happened
            run.totals.releases = run.ledger.as_array()
        else:
            run.ledger.rewind(run.totals.releases)
        raise


def evaluate(run: Run) -> dict:
    """Lets clients choose their clusters, if the method does so, and evaluates a run's state; see `Run.evaluation`.

    Returns:
      The cells of rounds.csv that an evaluation fills.
    """
    with run.timed(EVALUATION), _told_by(run.method):
        method, population, stage = run.method, run.population, run.stage
        tested = population.evaluated
        run.state = method.choose(run.state, tested)
        placed = method.place(run.state, tested) if run.protocol.place_unseen else run.state
        models, rows = method.used_models(placed, tested.client_ids)
        checks.check_models(method.name, models, rows, len(tested), method.model.whole.size)
        views = method.views(placed).of(tested.client_ids)
        # If clients keep a part of the model, no model for everyone is complete.
        everyones = views.global_model if method.model.own is None else None
        # A client that is placed only for the test stays, in the results, in the cluster that the method has for it.
        clusters = np.asarray(run.views.of(tested.client_ids).clusters)
        used = assigned(rows)
        if everyones is None and used.weights is None and len(np.unique(used.rows)) == 1:
            everyones = models[used.rows[0]]

        def of(evaluator) -> dict:
            found = {"cluster": stage.of_all(evaluator.cluster_accuracy(models, rows))}
            found |= {"metrics": evaluator.cluster_metrics(models, rows, clusters)}
            for values in found["metrics"].values():
                values["cluster"] = stage.of_all(values["cluster"])
            shared = None if everyones is None else evaluator.global_accuracy(everyones)
            for name, value in ({} if everyones is None else evaluator.global_metrics(everyones)).items():
                found["metrics"][name]["global"] = value
            return {**found, "global": shared}

        run.evaluation = of(stage.evaluator) | {"untrained": stage.untrained}
        run.evaluation["labels"] = stage.of_all(stage.evaluator.counts)
        # Confusions are counted on request: only the results at the end ask for them.
        run.evaluation["confusion"] = functools.partial(stage.evaluator.confusion, models, rows, clusters)
        if stage.validator is not None:
            run.evaluation["validation"] = of(stage.validator)
    return _accuracies(run.evaluation, run.totals) | summary.cluster_numbers(run.population, run.views)


def accounted(population: Population) -> contextlib.AbstractContextManager:
    """Counts a release without noise if the method itself reads clients' examples in the block, not through a round."""
    read = privacy_releases.of_all("what the method reads of the clients' examples itself", population, once=True)
    return simulating(on_reading=functools.cache(lambda: current().release(read)))  # it counts once


@contextlib.contextmanager
def _told_by(method: Method, when: str = "") -> Iterator[None]:
    """Wraps calls of a method. Like errors of builders and callbacks, an error of a user's own method is reported in
    one line that says `when` it happened."""
    try:
        yield
    except Exception as error:
        file = getattr(sys.modules.get(type(method).__module__), "__file__", None)
        # Errors of the machine are reported elsewhere; an error in this package keeps its whole traceback.
        if isinstance(error, UserError | OSError | MemoryError) or not raised_in(error, file):
            raise
        raise UserError(f"{method.name} failed{when}: {in_a_line(error, file)}") from error


def count_joining(run: Run, before: object, after: object) -> Traffic:
    """Counts and returns the traffic of the clients that are new in a state, which joining has cost."""
    exchanged = run.method.joined_traffic(before, after)
    run.totals.down_bytes += exchanged.down
    run.totals.up_bytes += exchanged.up
    run.totals.signature_bytes += exchanged.up + exchanged.down  # it is a part of both
    return exchanged


def _enter_stage(run: Run, number: int) -> Traffic:
    """Lets newcomers join and data change before a round; returns the cost of joining."""
    before, run.stage = run.stage, run.stages.at(number)
    run.totals = run.totals.moved(before.population.client_ids, run.population.client_ids)
    # The last local test of these clients was on data that they no longer hold.
    changed = np.isin(run.population.client_ids, run.stage.retested)
    run.totals.local_correct[changed] = run.totals.local_total[changed] = 0
    run.totals.local_metrics[changed] = np.nan
    privacy_releases.release_measured(run.population)
    if run.stage.arrivals is None:
        return Traffic()
    with run.timed(CLUSTERING), accounted(run.stage.arrivals), _told_by(run.method):
        joined = checks.admitted(run.method, run.state, run.stage.arrivals)
    exchanged = count_joining(run, run.state, joined)
    run.state = joined
    return exchanged


def _train(run: Run, number: int) -> dict:
    """Trains a round; returns its row of rounds.csv without accuracies."""
    cohort = _draw(run, number)
    if not len(cohort.client_ids) and not run.method.hides_empty_rounds(run.state):
        run.totals.releases = run.ledger.as_array()  # newcomers may have released something when they joined
        return _row(run)
    when = "" if len(cohort.client_ids) else " with the empty cohort of a private round that nobody was drawn for"
    with run.timed(TRAINING), accounted(run.population), _told_by(run.method, when):
        found = run.method.next(run.state, cohort)
        run.state, metrics = checks.check_round(run.method, found, run.state, cohort)
    if len(metrics.client_ids):
        checks.check_own(run.method, run.state)
    where, totals = run.population.index(metrics.client_ids), run.totals
    totals.releases = run.ledger.as_array()
    totals.rounds_trained[where] += 1
    totals.local_correct[where] = metrics.test_correct
    totals.local_total[where] = metrics.test_examples
    if metrics.test_outputs is not None:
        tested = metrics.client_ids, metrics.test_outputs
        totals.local_metrics[where] = own_metrics(run.method.model, run.population, *tested)
    totals.down_bytes += metrics.traffic.down
    totals.up_bytes += metrics.traffic.up
    totals.signature_bytes += metrics.signatures.down + metrics.signatures.up
    return _row(run, metrics)


def _draw(run: Run, number: int) -> Cohort:
    protocol, population = run.protocol, run.population
    size, seed, how = protocol.clients_per_round, protocol.seed, protocol.sampling
    # If the run may end after any round, no client is sure to train again before the next evaluation.
    rounds, every = (number, number) if run.tests_each_round else (protocol.rounds, protocol.evaluate_every)
    return Cohort(
        population,
        sample_cohort(population.client_ids, size, seed, number, how),
        (stream(seed, "clients"), number),
        needs_local_test(lambda at: run.stages.population(at).client_ids, size, seed, number, rounds, every, how),
        size / len(population) if how == "poisson" else None,
    )


def _row(run: Run, metrics: RoundMetrics | None = None) -> dict:
    """The row of a round. Without metrics it is the row of a round that drew no client and changed nothing."""
    clusters = {} if run.chooses_at_evaluations else summary.cluster_numbers(run.population, run.views)
    row = {**dict.fromkeys((*COLUMNS, *_names(run))), **clusters, "down_bytes": 0, "up_bytes": 0}
    if metrics is not None:
        if len(metrics.client_ids):
            row["train_loss"] = float(metrics.examples / max(metrics.examples.sum(), 1) @ metrics.losses)
        if metrics.relatedness is not None:
            row["clustering_error"] = summary.clustering_error(run.population, metrics)
        row |= {**metrics.scalars, "down_bytes": int(metrics.traffic.down), "up_bytes": int(metrics.traffic.up)}
    return row | ({"epsilon": run.ledger.epsilon} if run.ledger.is_private else {})


def _names(run: Run) -> tuple[str, ...]:
    """The columns of rounds.csv that an evaluation fills."""
    kinds = {"accuracy", "validation"} if run.stage.validator else {"accuracy"}
    further = [each for metric in run.method.model.metrics_of_outputs for each in rows_of(metric.name)]
    known = [each for each in METRICS if kinds.intersection(each.source[:1])]
    known += [each for each in further if run.stage.validator or not each.column.startswith("validation_")]
    return tuple(each.column for each in known if each.column)


def _accuracies(accuracy: Mapping, totals: Totals) -> dict:
    """The cells of a round with an evaluation."""

    def mean(values: np.ndarray) -> float | None:
        return summary.spread(values)["mean"]

    cells = {
        "local_accuracy": mean(totals.local_accuracies),
        "local_share": totals.share_trained,
        "cluster_accuracy_participants": mean(accuracy["cluster"][totals.rounds_trained > 0]),
        "local_accuracy_all": mean(summary.local_of_all(accuracy, totals)),
        **{f"local_{name}": mean(totals.local_metrics[:, place]) for place, name in enumerate(accuracy["metrics"])},
    }
    for before, found in (("", accuracy), ("validation_", accuracy.get("validation"))):
        for name, each in ({"accuracy": found, **found["metrics"]} if found else {}).items():
            cells |= {f"{before}cluster_{name}": mean(each["cluster"]), f"{before}global_{name}": each["global"]}
    return cells


class SaveCheckpoints(Callback):
    """Saves the state and all that a resumed run needs: every so many rounds, and when the run ends, however it ends.

    It is the last callback, so the files of the other callbacks already hold the round that it saves.
    """

    def __init__(self, checkpoints: Checkpoints):
        self._checkpoints, self._due = checkpoints, None

    def after_round(self, run: Run):
        """Saves the round if it is time."""
        run.totals.callback_states = json.dumps(run.callback_states)
        self._due = run.round_number, run.state, run.totals
        if run.round_number == run.last_round or run.round_number % run.protocol.checkpoint_every == 0:
            self._save(run)

    def end(self, run: Run):
        """Saves the last round if it is not saved, or if it has released more since, as when the budget refuses one."""
        if run.budget_spent:
            self._due = run.round_number, run.state, run.totals
        self._save(run)

    def _save(self, run: Run):
        if self._due:
            self._checkpoints.save(*self._due)
            run.directory.drop_result(self._due[0])
            self._due = None


def restore_or_initialize(run: Run, checkpoints: Checkpoints, resume: bool):
    """Restores the state of a run's newest checkpoint, or initializes the method's first state and saves it."""
    if resume and checkpoints.latest() is not None:
        run.round_number, run.state, run.totals = checkpoints.load_newest(run.method.state_class, run.protocol.rounds)
        run.stage = run.stages.at(run.round_number)
        run.callback_states = json.loads(run.totals.callback_states)
        run.ledger.check_holds(run.totals.releases, f"the checkpoint of round {run.round_number}")
        _count_lost(run, run.totals.releases, f"after round {run.round_number}")
        return
    _count_lost(run, NOTHING, "before the first checkpoint")
    with run.progress.titled(" initialises"), run.timed(CLUSTERING), accounted(run.population), _told_by(run.method):
        privacy_releases.release_measured(run.population)
        run.state = run.method.initialize(run.population)
    checks.check_state(run.method, run.state, run.population.client_ids, run.method.model.size)
    run.totals.releases = run.ledger.as_array()
    count_joining(run, None, run.state)
    checkpoints.save(0, run.state, run.totals)


def _count_lost(run: Run, entries, when: str):
    """Keeps the releases in the ledger that came after the state that the run resumes from, if no seed repeats them."""
    if lost := run.ledger.rewind(entries):
        run.progress.say(
            f"tffcl: {counted(lost, 'private release')} {when} came to nothing; what was released is told anew "
            f"with other noise, and stays counted: epsilon {run.ledger.epsilon:.4g}"
        )
    run.totals.releases = run.ledger.as_array()


def run_rounds(run: Run, callbacks: Sequence[Callback]):
    """Runs the rounds up to the run's last one, or until a callback or the budget stops it, and evaluates the last.

    Raises:
      UserError: If a round fails; the rounds before it are saved.
      KeyboardInterrupt: After Ctrl-C; the rounds that were done are saved.
    """
    with contextlib.ExitStack() as ends:
        for each in callbacks:
            run.stop(each.begin(run))
            ends.callback(each.end, run)
        try:
            while run.round_number < run.last_round and not run.stopped:
                run.interrupts.check()
                _one_round(run, callbacks)
            if run.is_over and run.evaluation is None:
                found = evaluate(run)
                run.metrics = {**run.metrics, **found}
                for each in callbacks if run.stopped else ():
                    each.after_late_evaluation(run, found)
        except UserError as error:
            kind = Diverged if isinstance(error, Diverged) else UserError
            saved = f" (rounds 1 to {run.round_number} are saved)" if run.round_number else ""
            raise kind(f"{error}{saved}") from error.__cause__


def _one_round(run: Run, callbacks: Sequence[Callback]):
    """Trains a round and calls the callbacks. If a user's callback fails, those after it still see the round."""
    start, failed = time.monotonic(), None
    try:
        next_round(run)
    except BudgetSpent as spent:
        if not run.round_number:
            raise
        run.stop(str(spent))
        run.budget_spent = True
        return
    run.metrics["seconds"] = round(time.monotonic() - start, 3)
    for each in callbacks:
        try:
            run.stop(each.after_round(run))
        except CallbackFailed as error:
            failed = failed or error
    if failed:
        raise failed
