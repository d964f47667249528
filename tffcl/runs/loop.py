"""The loop of one run: its first state, its rounds, and what is called after each."""

import contextlib
import json
import time
from collections.abc import Sequence

from tffcl.errors import Diverged, UserError
from tffcl.rounds.privacy_releases import release_measured
from tffcl.runs import method_checks
from tffcl.runs.callbacks import Callback, CallbackFailed
from tffcl.runs.checkpoints import Checkpoints
from tffcl.runs.privacy import NOTHING, BudgetSpent
from tffcl.runs.run import CLUSTERING, Run
from tffcl.runs.training_round import accounted, count_joining, evaluate, next_round


class SaveCheckpoints(Callback):
    """Saves the state and all that a resumed run needs: every so many rounds, and when the run ends, however it does.

    It is the last callback: what it saves is a round that the files of the others hold.
    """

    def __init__(self, checkpoints: Checkpoints):
        self._checkpoints, self._due = checkpoints, None

    def after_round(self, run: Run):
        """Saves the round if it is time."""
        run.totals.callback_states = json.dumps(run.callback_states)
        self._due = run.round_number, run.state, run.totals
        if run.round_number == run.last_round or run.round_number % run.protocol.checkpoint_every == 0:
            self._save()

    def end(self, run: Run):
        """Saves the last round that is not saved."""
        self._save()

    def _save(self):
        if self._due:
            self._checkpoints.save(*self._due)
            self._due = None


def restore_or_initialize(run: Run, checkpoints: Checkpoints, resume: bool):
    """Gives a run the state of its newest checkpoint, or the method's first one, which is saved."""
    if resume and checkpoints.latest() is not None:
        run.round_number, run.state, run.totals = checkpoints.load_newest(run.method.state_class, run.protocol.rounds)
        run.stage = run.stages.at(run.round_number)
        run.callback_states = json.loads(run.totals.callback_states)
        run.ledger.check_holds(run.totals.releases, f"the checkpoint of round {run.round_number}")
        _count_lost(run, run.totals.releases, f"after round {run.round_number}")
        return
    _count_lost(run, NOTHING, "before the first checkpoint")
    with run.progress.titled(" initialises"), run.timed(CLUSTERING), accounted(run.population):
        release_measured(run.population)
        run.state = run.method.initialize(run.population)
    method_checks.check_state(run.method, run.state, run.population.client_ids, run.method.model.size)
    run.totals.releases = run.ledger.as_array()
    count_joining(run, None, run.state)
    checkpoints.save(0, run.state, run.totals)


def _count_lost(run: Run, entries, when: str):
    """Keeps what was released after the state that the run goes on from, and that no seed repeats, in the ledger."""
    if lost := run.ledger.rewind(entries):
        run.progress.say(
            f"tffcl: {lost} private releases {when} came to nothing, and are told anew with other noise; they stay "
            f"counted: epsilon {run.ledger.epsilon:.4g}"
        )
    run.totals.releases = run.ledger.as_array()


def run_rounds(run: Run, callbacks: Sequence[Callback]):
    """Runs the rounds up to the run's last one, or to that with which a callback or the budget stops it, and evaluates
    the last.

    Raises:
      UserError: If a round fails; what was done before it is saved.
      KeyboardInterrupt: After Ctrl-C; what was done is saved.
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
                evaluate(run)
        except UserError as error:
            kind = Diverged if isinstance(error, Diverged) else UserError
            saved = f" (rounds 1 to {run.round_number} are saved)" if run.round_number else ""
            raise kind(f"{error}{saved}") from error.__cause__


def _one_round(run: Run, callbacks: Sequence[Callback]):
    """A round, and what is called after it: also where a user's callback fails, those behind it have the round."""
    start, failed = time.monotonic(), None
    try:
        next_round(run)
    except BudgetSpent as spent:
        if not run.round_number:
            raise
        run.stop(str(spent))
        run.budget_spent = True
        return
    run.metrics["seconds"] = time.monotonic() - start
    for each in callbacks:
        try:
            run.stop(each.after_round(run))
        except CallbackFailed as error:
            failed = failed or error
    if failed:
        raise failed
