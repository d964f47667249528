"""Seconds of a training round and of what surrounds it, ours and others', measured in one run on the same cores.

    uv run python tests/benchmarks/rounds.py [--data-dir D] [--repeats 5] [--clients 100 1000 4800] [--torch-python
    PYTHON]
        [--flower-python PYTHON] [--pfl-python PYTHON] [--fedjax-python PYTHON]

The task is `pacfl_fmnist_label_skew_20`: 10 clients a round, 10 local epochs, batch 10, LeNet-5. Machines are noisy, so
contestants take turns and the ratio of medians is what counts. Peers on PyTorch run by the Python of an environment of
their own, in as many processes of one thread as there are cores; their start is not counted. `torch_round.py`,
`flower_round.py`, `pfl_round.py` and `fedjax_round.py` say which packages it needs.
"""

import argparse
import collections
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from peers import peer, tff_learning

from tffcl import runtime
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.algorithms.parameters import PACFLParameters
from tffcl.algorithms.presets import build_pacfl
from tffcl.client_work.local_sgd import build_local_sgd
from tffcl.clients import cohort
from tffcl.clients.cohort import Cohort
from tffcl.clustering import hierarchical, proximity
from tffcl.lab.tasks import build, resolve
from tffcl.lab.tasks.populations import build_population
from tffcl.rounds.client_queries import build_signing
from tffcl.runs.evaluator import Evaluator
from tffcl.signatures.subspace import build_subspace

CORES = len(os.sched_getaffinity(0))
# The bare step is one core's. Not by environment variables: TFF's own worker would inherit them.
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)


def timed(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


class Setting:
    """Data, model and cohort that all contestants share."""

    def __init__(self, data_dir):
        self.config = resolve.resolve("pacfl_fmnist_label_skew_20", "pacfl")
        self.federated = build.load_data(self.config, data_dir)
        self.model = build.build_model(self.config, self.federated)
        self.training = self.config.train.local
        self.population = build_population(self.federated)
        self.clients = cohort.sample_cohort(self.population.client_ids, 10, 0, 1)
        self.cohort = Cohort(self.population, self.clients, (0, 1))
        sizes = self.population.sizes[self.clients]
        self.steps = int(sum(-(-size // self.training.batch_size) for size in sizes) * self.training.epochs)

    def arrays(self, client):
        rows = self.federated.train_indices[client]
        return self.federated.train.x[rows], self.federated.train.y[rows]


def ours(setting, method):
    state = method.initialize(setting.population)
    method.next(state, setting.cohort)  # tracing
    return lambda: method.next(state, setting.cohort)


def bare_step(setting):
    """The client's tf.function alone, one core; returns a timer of seconds a step."""
    local_sgd = build_local_sgd(setting.model, setting.training)
    x, y = setting.arrays(setting.clients[0])
    x, y, vector = tf.constant(x), tf.constant(y), tf.constant(setting.model.initial)
    seed = tf.constant([1, 2])
    steps = -(-len(y) // setting.training.batch_size) * setting.training.epochs
    local_sgd(vector, x, y, seed)
    return lambda: timed(lambda: local_sgd(vector, x, y, seed)[1].numpy()) / steps


def peers(setting, options):
    """Timers of a round of tff.learning and of those peers whose interpreter was given."""
    scripts = {
        f"PyTorch loop, {CORES} processes, round": ("torch_round.py", options.torch_python),
        f"Flower, {CORES} clients at a time, round": ("flower_round.py", options.flower_python),
        f"pfl-research, {CORES} processes, round": ("pfl_round.py", options.pfl_python),
        "FedJAX, round": ("fedjax_round.py", options.fedjax_python),
    }
    clients = [setting.arrays(client) for client in setting.clients]
    return {"tff.learning FedAvg, round": tff_learning(clients, setting.training)} | {
        name: peer(python, script, clients, setting.training, CORES)
        for name, (script, python) in scripts.items()
        if python
    }


def evaluation(setting, state, method):
    models, rows = method.models_for(state, setting.population.client_ids)
    # A new one each time: an evaluator knows what it has answered.
    return lambda: Evaluator(setting.model, setting.population).cluster_accuracy(models, rows)


def clustering_times(counts):
    rng = np.random.default_rng(0)
    for count in counts:
        bases = np.linalg.qr(rng.standard_normal((count, 784, 6)))[0].astype(np.float32)
        result = {}
        seconds = timed(lambda: result.update(angles=proximity.principal_angles(bases)))
        tree = timed(lambda: hierarchical.build_dendrogram(result["angles"]))
        yield f"proximity matrix, {count} clients of 784x6", seconds
        yield f"hierarchical clustering, {count} clients", tree


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--torch-python", help="an interpreter with PyTorch (TFF's pins exclude it here), to compare with"
    )
    parser.add_argument("--flower-python", help="the same with Flower and PyTorch")
    parser.add_argument("--pfl-python", help="the same with pfl-research and PyTorch")
    parser.add_argument("--fedjax-python", help="the same with FedJAX")
    parser.add_argument("--clients", type=int, nargs="*", default=[100, 1000, 4800])
    options = parser.parse_args()
    setting = Setting(options.data_dir)
    runtime.use_local_worker()
    pacfl = build_pacfl(setting.model, setting.training, PACFLParameters(num_clusters=4))
    state = pacfl.initialize(setting.population)
    pacfl.next(state, setting.cohort)
    bare_one = bare_step(setting)
    contestants = collections.OrderedDict(
        {
            "tffcl FedAvg, round": ours(setting, build_fedavg(setting.model, setting.training)),
            "tffcl PACFL, round": lambda: pacfl.next(state, setting.cohort),
            "evaluation of all 100 clients, PACFL": evaluation(setting, state, pacfl),
        }
    )
    contestants["evaluation of all 100 clients, PACFL"]()
    others = peers(setting, options)
    seconds, bare = collections.defaultdict(list), []
    for _ in range(options.repeats):
        bare.append(bare_one() * setting.steps / CORES)
        for name, function in contestants.items():
            seconds[name].append(timed(function))
        for name, function in others.items():
            seconds[name].append(function()[0])
    ideal = statistics.median(bare)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    own = medians["tffcl FedAvg, round"]
    print(f"{CORES} cores; {setting.steps} steps a round; medians of {options.repeats}, in turns\n")
    print("| what | s | to the bare step | tffcl FedAvg to it |\n|---|---|---|---|")
    step = f"{1e3 * ideal * CORES / setting.steps:.3f} ms a step"
    print(f"| bare tf.function on one core, {step}, x steps / cores | {ideal:.2f} | 1 | {own / ideal:.2f} |")
    for name, took in medians.items():
        ratio = f"{own / took:.2f}" if name in others else ""
        print(f"| {name} | {took:.2f} | {took / ideal:.2f} | {ratio} |")
    sign = build_signing(build_subspace(setting.model.example_spec, 3))
    sign(setting.population)
    print(f"| signatures of 100 clients (p = 3) | {timed(lambda: sign(setting.population)):.2f} | | |")
    for name, took in clustering_times(options.clients):
        print(f"| {name} | {took:.2f} | | |")


if __name__ == "__main__":
    main()
