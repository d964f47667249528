"""SIGKILL of a private run whose noise no seed repeats: whoever watches it learns no more than its ledger says, and
its budget allows.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

import tffcl
from tests.oracles.privacy import epsilon_of_rounds
from tests.short_runs import TRAINING
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.rounds import simulation

BUDGET, DELTA, CLIENTS = 3.0, 1e-3, 4

# For each line of input a process that trains a private FedAvg on a few digits, or goes on with what is there; its
# number and its end are printed. Before a round is computed, the aggregator, who is outside of the run and forgets
# nothing, notes that it is about to see one.
PROCESSES = """
import os, sys
import tffcl
from tests import digits
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.models.classifiers import build_mlp
from tffcl.rounds import simulation

out, seen, noise, epsilon, delta, clients, rounds = sys.argv[1:]

def train():
    ran = simulation._run_whole

    def watched(*given):
        with open(seen, "a") as file:
            file.write("a round\\n")
        return ran(*given)

    simulation._run_whole = watched
    x, y = digits.load()
    parts = [slice(10 * client, 10 * client + 10) for client in range(int(clients))]
    held = {client: (x[part], y[part]) for client, part in enumerate(parts)}
    model = build_mlp((8, 8, 1), 10, hidden=4, seed=3)
    training = tffcl.LocalTraining(epochs=1, batch_size=10, learning_rate=0.1)
    method = build_fedavg(model, training, aggregation=tffcl.aggregation("dp", clip=0.5, noise_multiplier=float(noise)))
    tffcl.train(
        method, tffcl.Population.from_arrays(held, held), rounds=int(rounds), clients_per_round=int(clients),
        out=out, resume=True, privacy=tffcl.PrivacySettings(epsilon=float(epsilon), delta=float(delta)),
        checkpoint_every=10, show_progress=False,
    )

for _ in sys.stdin:
    process = os.fork()  # what has been imported is all that they share
    if not process:
        train()
        os._exit(0)
    print(process, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""


class Watched:
    """A private run in a directory, and what somebody has seen of it who counts for himself."""

    def __init__(self, place, noise_multiplier: float):
        self.out, self.seen, self._noise = place / "run", place / "seen", noise_multiplier
        self.seen.touch()

    def rounds_seen(self) -> int:
        return len(self.seen.read_text().splitlines())

    def spent(self) -> float:
        """ε of all that was seen."""
        return epsilon_of_rounds(self._noise, self.rounds_seen(), DELTA)

    def counted(self) -> float:
        """ε that the run's own file says."""
        if not (self.out / "ledger.json").exists():
            return 0.0
        rows = json.loads((self.out / "ledger.json").read_text())["releases"]
        return epsilon_of_rounds(self._noise, sum(int(row[4]) for row in rows), DELTA)

    def summary(self) -> dict:
        return json.loads((self.out / "summary.json").read_text())


class InProcesses(Watched):
    """The same of a run in processes of its own."""

    def __init__(self, place, noise_multiplier: float, rounds: int):
        super().__init__(place, noise_multiplier)
        numbers = noise_multiplier, BUDGET, DELTA, CLIENTS, rounds
        command = [sys.executable, "-c", PROCESSES, self.out, self.seen, *map(str, numbers)]
        with open(place / "said", "w") as said:
            self.starter = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True
            )

    def start(self) -> int:
        """Starts a process of the run; returns its number."""
        self.starter.stdin.write("\n")
        self.starter.stdin.flush()
        return int(self.starter.stdout.readline())

    def ended(self) -> int:
        """Waits for its end; returns its exit code."""
        return int(self.starter.stdout.readline())


@contextlib.contextmanager
def watched(*how, **more):
    run = InProcesses(*how, **more)
    try:
        yield run
    finally:
        run.starter.stdin.close()
        run.starter.wait()


class Killed(BaseException):
    """What no part of a run catches."""


def test_a_killed_run_has_counted_what_it_told(tff_worker, model, digit_clients, tmp_path, monkeypatch):
    """By what stands in its directory when a kill would meet it, in the third round."""
    run, clients, ran = Watched(tmp_path, noise_multiplier=2.2), digit_clients([10] * CLIENTS), simulation._run_whole
    dp = tffcl.aggregation("dp", clip=0.5, noise_multiplier=2.2)

    def watched(*given):
        with open(run.seen, "a") as file:
            file.write("a round\n")
        if run.rounds_seen() == 3:
            shutil.copytree(run.out, tmp_path / "left")
            raise Killed
        return ran(*given)

    def train():
        tffcl.train(
            build_fedavg(model, TRAINING, aggregation=dp), clients, rounds=8, clients_per_round=CLIENTS, out=run.out,
            resume=True, privacy=tffcl.PrivacySettings(epsilon=BUDGET, delta=DELTA), checkpoint_every=10,
            show_progress=False,
        )  # fmt: skip

    monkeypatch.setattr(simulation, "_run_whole", watched)
    with pytest.raises(Killed):
        train()
    run.out = tmp_path / "left"
    assert run.rounds_seen() == 3 and run.spent() == run.counted()
    train()  # four rounds cost 2.8
    told = run.summary()
    assert told["rounds"] == 1 and told["privacy"]["releases"] == 4 == run.rounds_seen()
    assert run.spent() == pytest.approx(told["privacy"]["epsilon"], rel=1e-6) and run.spent() <= BUDGET


@pytest.mark.slow
def test_kills_at_random_moments_spend_no_more_than_the_budget(tmp_path):
    """Before a first round, within one, or while something is written; then the run goes on until its
    budget ends it.
    """
    rng, in_rounds = random.Random(37), 0
    with watched(tmp_path, noise_multiplier=12.0, rounds=1000) as run:
        for rounds in (0, 1, 12, 3):  # that it sees at least; the first checkpoint is after ten
            before, process = run.rounds_seen(), run.start()
            while run.rounds_seen() < before + rounds:
                time.sleep(0.01)
            time.sleep(0.5 * rng.random())
            os.kill(process, signal.SIGKILL)
            assert run.ended() == -signal.SIGKILL
            in_rounds += run.rounds_seen() > before
            assert run.spent() <= run.counted() <= BUDGET
        run.start()
        assert run.ended() == 0, (tmp_path / "said").read_text()[-2000:]
    told = run.summary()
    assert run.spent() <= told["privacy"]["epsilon"] <= BUDGET and "stopped after round" in told["privacy"]["stopped"]
    assert told["privacy"]["epsilon"] == pytest.approx(run.counted(), rel=1e-6)
    assert in_rounds >= 3 and run.rounds_seen() > told["rounds"]  # some were told again
