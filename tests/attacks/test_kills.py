"""SIGKILL of a private run whose noise no seed repeats: whoever watches it learns no more than its ledger says, and its budget allows."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.oracles.privacy import epsilon_of_rounds

BUDGET, DELTA, CLIENTS = 3.0, 1e-3, 4

# Trains a private FedAvg of a few digits, and goes on with what is there. Before a round is computed, the aggregator, who is outside
# of the run and forgets nothing, notes that it is about to see one. Ends itself as `kill -9` would before that round of its own.
CHILD = """
import os, signal, sys
import numpy as np
import tffcl
from tests import digits
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.models.mlp import build_mlp
from tffcl.rounds import simulation

out, seen, noise, epsilon, delta, clients, rounds, last = sys.argv[1:]
ran, begun = simulation._run_whole, 0

def watched(*given):
    global begun
    begun += 1
    with open(seen, "a") as file:
        file.write("a round\\n")
    if begun == int(last):
        os.kill(os.getpid(), signal.SIGKILL)
    return ran(*given)

simulation._run_whole = watched
x, y = digits.load()
data = {client: (x[10 * client : 10 * client + 10], y[10 * client : 10 * client + 10]) for client in range(int(clients))}
population = tffcl.Population.from_arrays(data, data)
model = build_mlp((8, 8, 1), 10, hidden=4, seed=3)
aggregation = tffcl.aggregation("dp", clip=0.5, noise_multiplier=float(noise))
method = build_fedavg(model, tffcl.LocalTraining(epochs=1, batch_size=10, learning_rate=0.1), aggregation=aggregation)
print("begins", flush=True)
result = tffcl.train(
    method, population, rounds=int(rounds), clients_per_round=int(clients), out=out, resume=True, show_progress=False,
    privacy=tffcl.PrivacySettings(epsilon=float(epsilon), delta=float(delta)), checkpoint_every=10,
)
"""


class Watched:
    """A private run in a directory, and what somebody has seen of it who counts for himself."""

    def __init__(self, place, noise_multiplier: float, rounds: int):
        self.out, self.seen, self._noise = place / "run", place / "seen", noise_multiplier
        self.seen.touch()
        numbers = noise_multiplier, BUDGET, DELTA, CLIENTS, rounds
        self.command = [sys.executable, "-c", CHILD, self.out, self.seen, *map(str, numbers)]

    def start(self, last: int = 0):
        return subprocess.Popen([*self.command, str(last)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

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


def test_a_killed_run_has_counted_what_it_told(tmp_path):
    run = Watched(tmp_path, noise_multiplier=2.2, rounds=8)  # four rounds cost 2.8
    assert run.start(last=3).wait() == -signal.SIGKILL
    assert run.rounds_seen() == 3 and run.spent() == run.counted()
    child = run.start()
    assert child.wait() == 0, child.stderr.read()[-2000:]
    told = json.loads((run.out / "summary.json").read_text())
    assert told["rounds"] == 1 and told["privacy"]["releases"] == 4 == run.rounds_seen()
    assert run.spent() == pytest.approx(told["privacy"]["epsilon"], rel=1e-6) and run.spent() <= BUDGET


@pytest.mark.slow
def test_twenty_kills_at_random_moments_spend_no_more_than_the_budget(tmp_path):
    """Before a first round, within one, or while something is written; then the run goes on until its budget ends it."""
    rng = random.Random(37)
    run = Watched(tmp_path, noise_multiplier=18.0, rounds=1000)
    for _ in range(20):
        child, before = run.start(), run.rounds_seen()
        child.stdout.readline()
        while rng.random() < 0.99 and child.poll() is None and run.rounds_seen() == before:
            time.sleep(0.02)  # most of them have a round first
        time.sleep(0.4 * rng.random())
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
        assert run.spent() <= run.counted() <= BUDGET
    child = run.start()
    _, said = child.communicate()
    assert child.returncode == 0 and "stopped after round" in said, said[-2000:]
    told = json.loads((run.out / "summary.json").read_text())["privacy"]
    assert run.spent() <= told["epsilon"] <= BUDGET and told["epsilon"] == pytest.approx(run.counted(), rel=1e-6)
    assert run.rounds_seen() > json.loads((run.out / "summary.json").read_text())["rounds"]  # some were told again
