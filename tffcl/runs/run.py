"""A run in progress: its protocol, its state and its totals so far. No request to end it is lost: Ctrl-C, SIGTERM (from
SLURM, Kubernetes and `timeout`) and SIGHUP (from a closed terminal)."""

import contextlib
import dataclasses
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping

import numpy as np

from tffcl.algorithms.method import Method, Views
from tffcl.clients.cohort import SAMPLINGS
from tffcl.clients.population import Population
from tffcl.errors import RESUME, UserError
from tffcl.runs.callbacks import Progress
from tffcl.runs.cluster_history import NO_CLUSTER
from tffcl.runs.population_changes import Stage, Stages
from tffcl.runs.privacy import NOTHING, Ledger, PrivacySettings
from tffcl.runs.run_directory import RunDirectory
from tffcl.validation import Count, Parameters, Whole, one_of

# The signals that ask a process to end, and Python's default handlers. Other handlers are kept, because somebody has
# set them: `nohup` ignores SIGHUP, a script's background jobs ignore SIGINT, a program may have its own.
_ASKING = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}


class Interrupted(UserError):
    """The user stopped the run; its progress has been saved."""

    exit_code = 130  # a shell's code for a process that Ctrl-C has ended


def stopped(done: int) -> Interrupted:
    """Returns the error for a run that was asked to end after the given number of saved rounds."""
    when = f"after round {done}" if done else "before the first round"
    return Interrupted(f"stopped {when}; {RESUME} goes on")


class Interrupts:
    """Whether the process has been asked to end.

    Python raises KeyboardInterrupt wherever the main thread happens to be. In a destructor, a callback of the garbage
    collector or a callback from C++, Python prints or drops it, and the program goes on as if nobody had asked.

    Attributes:
      requested: True from the first signal on.
    """

    def __init__(self):
        self.requested = False

    def check(self):
        """Raises KeyboardInterrupt if an earlier one was lost."""
        if self.requested:
            raise KeyboardInterrupt

    def handle(self, number, frame):
        """A signal handler: remembers the request, then raises KeyboardInterrupt as Python's own handler does.

        A second Ctrl-C comes from an impatient user. `timeout` sends its signal twice; the second must not interrupt
        saving.
        """
        if self.requested and number != signal.SIGINT:
            return
        self.requested = True
        signal.default_int_handler(number, frame)


@contextlib.contextmanager
def watch_for_interrupts():
    """Yields an `Interrupts` that notes each Ctrl-C, SIGTERM and SIGHUP inside the block.

    A request that Python loses in a destructor is remembered instead of being printed with a traceback. A signal that
    is ignored or that has a handler of the program stays as it is. Outside the main thread no handler can be set.
    """
    interrupts = Interrupts()
    main = threading.current_thread() is threading.main_thread()
    ours = [number for number, pythons in _ASKING.items() if main and signal.getsignal(number) is pythons]
    if not ours:
        yield interrupts
        return
    before = sys.unraisablehook
    for number in ours:
        signal.signal(number, interrupts.handle)
    sys.unraisablehook = lambda lost: None if issubclass(lost.exc_type, KeyboardInterrupt) else before(lost)
    try:
        yield interrupts
    finally:
        sys.unraisablehook = before
        for number in ours:
            signal.signal(number, _ASKING[number])


def chooses_at_evaluations(method: Method) -> bool:
    """Returns whether clients choose their clusters at an evaluation: either because they themselves choose
    (`Method.clients_choose`), or because the server groups all of them anew for it, as CLoVE does."""
    return type(method).choose is not Method.choose


def shown_views(method: Method, state, population: Population, asked: np.ndarray) -> Views:
    """Returns what a method shows of the clients of a population.

    If clients choose and there are too many to ask all of them, those not `asked` at the evaluation are unknown and in
    no cluster.
    """
    views = method.views(state).of(population.client_ids)
    known = np.isin(views.client_ids, asked)
    if known.all() or not chooses_at_evaluations(method):
        return views
    known &= views.known_or_all
    mixture = None if views.mixture is None else np.where(known[:, np.newaxis], views.mixture, np.nan)
    clusters = np.where(known, views.clusters, NO_CLUSTER)
    return dataclasses.replace(views, clusters=clusters, known=known, mixture=mixture)


CLUSTERING, TRAINING, EVALUATION = range(3)  # indices in `Totals.seconds`
_BY_CLIENT = ("rounds_trained", "local_correct", "local_total")


@dataclasses.dataclass(frozen=True)
class Protocol(Parameters):
    """The settings of a run beside the method and the clients: the parameters of `tffcl.train` with these names."""

    rounds: Count
    clients_per_round: Count
    seed: Whole = 0
    sampling: one_of(SAMPLINGS) = "fixed"
    evaluate_every: Count = 10
    place_unseen: bool = False
    checkpoint_every: Count = 10
    keep_checkpoints: Count = 2
    privacy: PrivacySettings = PrivacySettings()


@dataclasses.dataclass
class Totals:
    """The counts of a run, for each of N clients and in total.

    Attributes:
      rounds_trained: `int64 [N]`, rounds that each client has trained in.
      local_correct: `int64 [N]`, how many own test examples a client's model predicts right after its last local
        training.
      local_total: `int64 [N]`, how many of these examples there are; 0 for a client that has never trained, or not
        since its data changed.
      local_metrics: `float64 [N, M]`, the model's further metrics of the same models on the same examples; NaN where
        one is undefined.
      down_bytes: Bytes from the server to all clients.
      up_bytes: Bytes from all clients to the server.
      signature_bytes: The part of these bytes that signatures took.
      seconds: `float64 [3]`, seconds of clustering, training and evaluation.
      releases: `float64 [E, 8]`, the releases of the clients' data, see `Ledger.as_array`.
      callback_states: The states of callbacks, in JSON.
      left: The first four attributes of clients that have left and may come back, with their `client_ids`, by name.
    """

    rounds_trained: np.ndarray
    local_correct: np.ndarray
    local_total: np.ndarray
    local_metrics: np.ndarray
    down_bytes: int = 0
    up_bytes: int = 0
    signature_bytes: int = 0
    seconds: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(3))
    releases: np.ndarray = dataclasses.field(default_factory=NOTHING.copy)
    callback_states: str = "{}"
    left: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @classmethod
    def of_nobody(cls, clients: int, metrics: int = 0) -> "Totals":
        """The totals before the first round, for the given numbers of clients and of further metrics."""
        counts = {name: np.zeros(clients, np.int64) for name in _BY_CLIENT}
        return cls(**counts, local_metrics=np.full([clients, metrics], np.nan))

    def moved(self, before: np.ndarray, after: np.ndarray) -> "Totals":
        """The totals for another set of client IDs; the counts of a client that has left are kept until it comes
        back."""
        names = (*_BY_CLIENT, "local_metrics")
        known = {name: getattr(self, name) for name in names} | {"client_ids": before}
        if self.left:
            known = {name: np.concatenate([rows, self.left[name]]) for name, rows in known.items()}
        there = np.isin(known["client_ids"], after)
        now = Totals.of_nobody(len(after), self.local_metrics.shape[1])
        for name in names:
            getattr(now, name)[np.searchsorted(after, known["client_ids"][there])] = known[name][there]
        left = {} if there.all() else {name: rows[~there] for name, rows in known.items()}
        return dataclasses.replace(self, **{name: getattr(now, name) for name in names}, left=left)

    @property
    def local_accuracies(self) -> np.ndarray:
        """Accuracy of each client's own model after its last local training, `float64 [N]`.

        NaN for clients that never trained, that have not trained since their data changed, or that have no test
        examples.
        """
        total = self.local_total
        return np.divide(self.local_correct, total, out=np.full(len(total), np.nan), where=total > 0)

    @property
    def share_trained(self) -> float:
        """The share of clients that have trained in some round, whether or not their accuracy is known."""
        return float((self.rounds_trained > 0).mean())


@dataclasses.dataclass
class Run:
    """A run under way, as callbacks see it.

    Attributes:
      method: The method that is trained.
      protocol: The settings of the run.
      directory: The directory of the run's files.
      stages: Which population there is from which round on.
      stage: The stage of this round.
      ledger: Counts what was released of the clients' data.
      last_round: The round to stop after; less than `protocol.rounds` if the run goes on later.
      progress: The progress bar.
      tests_each_round: Whether all clients of a cohort test their own models in every round, because the run may end
        after any round, or because clients that are drawn may wait.
      interrupts: Whether the process has been asked to end.
      totals: The counts up to this round.
      round_number: The number of rounds that are done.
      state: The method's state after this round.
      metrics: This round's row of rounds.csv; None for what was not measured. Empty before the first round.
      evaluation: The evaluation of this round, if there is one: accuracies `cluster float [N]`, `global float | None`,
        `untrained float [N]` (of the initial model), and `labels float [N]`, how many labels of each client count, NaN
        for clients whose accuracies are not taken; `metrics`, which maps the name of each further metric to its
        `cluster`, `global` and `clusters` (cluster to value); `confusion`, a function that counts confusions, see
        `Evaluator.confusion`; and with validation examples `validation`, the `cluster`, `global` and `metrics` on
        these.
      stopped: Why the run ends before its last round; "" if it does not.
      budget_spent: Whether it ends because the privacy budget allows no further round.
      callback_states: What callbacks keep between rounds, JSON values by a name of their own. Every checkpoint has it.
    """

    method: Method
    protocol: Protocol
    directory: RunDirectory
    stages: Stages
    stage: Stage
    ledger: Ledger
    last_round: int
    progress: Progress
    tests_each_round: bool
    interrupts: Interrupts = dataclasses.field(default_factory=Interrupts)
    totals: Totals = None  # type: ignore[assignment]
    round_number: int = 0
    state: object = None
    metrics: Mapping[str, float | None] = dataclasses.field(default_factory=dict)
    evaluation: Mapping | None = None
    stopped: str = ""
    budget_spent: bool = False
    callback_states: dict = dataclasses.field(default_factory=dict)
    _viewed: tuple[object, Stage, Views] | None = None

    def __post_init__(self):
        self.totals = self.totals or Totals.of_nobody(len(self.population), len(self.method.model.metrics_of_outputs))

    @property
    def population(self) -> Population:
        """The population of this round."""
        return self.stage.population

    @property
    def views(self) -> Views:
        """What the method shows of its state for the clients of this round's population."""
        if self._viewed is None or self._viewed[0] is not self.state or self._viewed[1] is not self.stage:
            asked = self.population.evaluated.client_ids
            self._viewed = self.state, self.stage, shown_views(self.method, self.state, self.population, asked)
        return self._viewed[2]

    @property
    def is_over(self) -> bool:
        """Whether no round will follow, now or later."""
        return bool(self.stopped) or self.round_number == self.protocol.rounds

    @property
    def chooses_at_evaluations(self) -> bool:
        """Whether all clients choose their clusters only at an evaluation, so that between evaluations their choices
        are older."""
        return chooses_at_evaluations(self.method)

    def stop(self, reason: str | None):
        """Ends the run after this round, if there is a reason and none was given before."""
        if reason and not self.is_over:
            self.stopped = f"stopped after round {self.round_number}: {reason}"
            self.progress.say(self.stopped)

    @contextlib.contextmanager
    def timed(self, which: int) -> Iterator[None]:
        """Adds the block's seconds to those of training, evaluation or clustering."""
        start = time.monotonic()
        yield
        self.totals.seconds[which] += time.monotonic() - start
