"""Peers as timers of rounds: tff.learning, and those that need an environment of their own, whose scripts stand beside
this file."""

import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

import numpy as np


def peer(python, script, clients, training, processes, rounds=1, model="lenet5", method="fedavg"):
    """A timer of a peer's round over all `clients`.

    Args:
      python: The interpreter of the environment that has the peer's packages.
      script: The name of the peer's script, e.g. "pfl_round.py".
      clients: Pairs of arrays, each client's x uint8 [n, 28, 28, 1] and y [n].
      training: The `LocalTraining` of every client.
      processes: How many processes of one thread the peer trains in.
      rounds: How many rounds a call measures, after one of warming up.
      model: Its name in `peer_script.MODELS`.
      method: What the peer is asked for.

    Returns:
      A function without arguments that starts the peer anew and returns the medians of its rounds' seconds and CPU
      seconds, the latter None where the peer does not tell.
    """
    folder = tempfile.TemporaryDirectory()
    path = pathlib.Path(folder.name) / "clients.npz"
    np.savez(path, **{f"{name}{i}": array for i, pair in enumerate(clients) for name, array in zip("xy", pair)})
    given = [training.epochs, training.batch_size, training.learning_rate, training.momentum, rounds, model, method]
    command = [python, str(pathlib.Path(__file__).with_name(script)), str(path), str(processes), *map(str, given)]

    def run(_keep=folder):
        told = subprocess.run(command, capture_output=True, text=True, check=False)
        if told.returncode:
            raise SystemExit(f"{script} failed:\n{told.stderr[-2000:]}")
        seconds, cpu = zip(*json.loads(told.stdout.splitlines()[-1]))
        return statistics.median(seconds), None if None in cpu else statistics.median(cpu)

    return run


def cpu_seconds(pids=None) -> float:
    """CPU seconds of processes; default this one and its children, as TFF's workers."""
    total = 0.0
    for pid in pids or [os.getpid(), *map(int, _children())]:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def _children():
    return [pid for path in pathlib.Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]


def tff_learning(clients, training, model="lenet5"):
    """As `peer`, TFF's own FedAvg: its worker as it comes, the same model as Keras layers, float32 batches."""
    import tensorflow as tf
    import tensorflow_federated as tff

    from tffcl import runtime

    layers = tf.keras.layers

    def build_model():
        networks = {
            "lenet5": lambda: [
                layers.Conv2D(6, 5, activation="relu", input_shape=(28, 28, 1)), layers.MaxPool2D(),
                layers.Conv2D(16, 5, activation="relu"), layers.MaxPool2D(), layers.Flatten(),
                layers.Dense(120, "relu"), layers.Dense(84, "relu"), layers.Dense(10),
            ],
            "mlp": lambda: [layers.Flatten(input_shape=(28, 28, 1)), layers.Dense(200, "relu"), layers.Dense(10)],
        }  # fmt: skip
        spec = (tf.TensorSpec((None, 28, 28, 1)), tf.TensorSpec((None,), tf.int32))
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return tff.learning.models.from_keras_model(tf.keras.Sequential(networks[model]()), loss=loss, input_spec=spec)

    process = tff.learning.algorithms.build_weighted_fed_avg(
        build_model, client_optimizer_fn=tff.learning.optimizers.build_sgdm(training.learning_rate, training.momentum)
    )

    def dataset(x, y):
        x = (x.astype(np.float32) / 255 - 0.1307) / 0.3081
        examples = tf.data.Dataset.from_tensor_slices((x, y.astype(np.int32)))
        return examples.shuffle(len(y)).repeat(training.epochs).batch(training.batch_size)

    datasets = [dataset(*client) for client in clients]
    context = tff.backends.native.create_sync_local_cpp_execution_context()

    def run():
        tff.framework.set_default_context(context)
        before, start = cpu_seconds(), time.perf_counter()
        process.next(state, datasets)
        spent = time.perf_counter() - start, cpu_seconds() - before
        runtime.use_local_worker()
        return spent

    tff.framework.set_default_context(context)
    state = process.initialize()
    run()
    return run
