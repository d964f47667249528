"""Peers that need an environment of their own, as timers of rounds: their scripts stand beside this file."""

import json
import pathlib
import statistics
import subprocess
import tempfile

import numpy as np


def peer(python, script, clients, training, processes, rounds=1, model="lenet5"):
    """A timer of a peer's round over all `clients`.

    Args:
      python: The interpreter of the environment that has the peer's packages.
      script: The name of the peer's script, e.g. "pfl_round.py".
      clients: Pairs of arrays, each client's x uint8 [n, 28, 28, 1] and y [n].
      training: The `LocalTraining` of every client.
      processes: How many processes of one thread the peer trains in.
      rounds: How many rounds a call measures, after one of warming up.
      model: Its name in `torch_clients.LAYERS`.

    Returns:
      A function without arguments that starts the peer anew and returns the medians of its rounds' seconds and CPU
      seconds, the latter None where the peer does not tell.
    """
    folder = tempfile.TemporaryDirectory()
    path = pathlib.Path(folder.name) / "clients.npz"
    np.savez(path, **{f"{name}{i}": array for i, pair in enumerate(clients) for name, array in zip("xy", pair)})
    given = [training.epochs, training.batch_size, training.learning_rate, training.momentum, rounds, model]
    command = [python, str(pathlib.Path(__file__).with_name(script)), str(path), str(processes), *map(str, given)]

    def run(_keep=folder):
        told = subprocess.run(command, capture_output=True, text=True, check=False)
        if told.returncode:
            raise SystemExit(f"{script} failed:\n{told.stderr[-2000:]}")
        seconds, cpu = zip(*json.loads(told.stdout.splitlines()[-1]))
        return statistics.median(seconds), None if None in cpu else statistics.median(cpu)

    return run
