"""Seconds and bytes of a round on one worker of two cores and on two workers of one core each, as clients and model
grow.

    uv run python tests/benchmarks/workers.py [--repeats 3] [--clients 10 20 40] [--hidden 50 200 1000] [--epochs 1]

A round is FedAvg's: clients of 200 random 28x28 images, batch 10, a perceptron with one hidden layer. Bytes are those
of the gRPC messages between the coordinator and its workers, the clients' examples included, since in a simulation the
coordinator holds them.
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

from tffcl import runtime
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clients.cohort import Cohort
from tffcl.clients.population import Population
from tffcl.models.classifiers import build_mlp
from tffcl.runtime.remote_workers import use_workers

EXAMPLES = 200


def build_population(clients):
    rng = np.random.default_rng(0)
    sets = {}
    for client in range(clients):
        x = rng.integers(0, 256, [EXAMPLES, 28, 28, 1], np.uint8)
        sets[client] = (x, rng.integers(0, 10, EXAMPLES, np.int32))
    return Population.from_arrays(sets)


def measure(context, clients, hidden, repeats, epochs=1):
    """Returns seconds and megabytes to and from the workers of a round, and the number of parameters."""
    model = build_mlp((28, 28, 1), 10, hidden=hidden, normalization=(0.5, 0.5))
    method = build_fedavg(model, LocalTraining(epochs=epochs, learning_rate=0.01))
    population = build_population(clients)
    state = method.initialize(population)
    cohort = Cohort(population, population.client_ids, (0, 1))
    method.next(state, cohort)  # compiles
    seconds, before = [], traffic(context)
    for _ in range(repeats):
        start = time.perf_counter()
        method.next(state, cohort)
        seconds.append(time.perf_counter() - start)
    sent, received = (now - then for now, then in zip(traffic(context), before))
    return statistics.median(seconds), sent / repeats / 1e6, received / repeats / 1e6, model.size


def traffic(context):
    return [sum(getattr(worker, name) for worker in context.workers) for name in ("sent_bytes", "received_bytes")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 20, 40])
    parser.add_argument("--hidden", type=int, nargs="+", default=[50, 200, 1000])
    parser.add_argument("--epochs", type=int, default=1)
    options = parser.parse_args()
    started = [runtime.Worker(runtime.WorkerSettings(cores=cores)).start() for cores in (2, 1, 1)]
    try:
        for worker in started:
            runtime.connect(worker.target, alive=worker.alive)
        middle = options.clients[len(options.clients) // 2], options.hidden[len(options.hidden) // 2]
        points = {(clients, middle[1]) for clients in options.clients} | {
            (middle[0], hidden) for hidden in options.hidden
        }
        print(
            "| clients | parameters | workers | s a round | MB to workers | MB from workers "
            "|\n|---|---|---|---|---|---|"
        )
        for clients, hidden in sorted(points):
            for workers in (started[:1], started[1:]):
                context = use_workers(runtime.RemoteWorkers.parse(",".join(each.target for each in workers)))
                seconds, sent, received, size = measure(context, clients, hidden, options.repeats, options.epochs)
                print(
                    f"| {clients} | {size:,} | {len(workers)} | {seconds:.2f} | {sent:.1f} | {received:.1f} |",
                    flush=True,
                )
    finally:
        for worker in started:
            worker.stop()


if __name__ == "__main__":
    main()
