"""Seconds and peak memory of a round in which every client gets its own mix (FLT case I), by number of clients.

    uv run python tests/benchmarks/relatedness.py [--data-dir D] [--rounds 3] [--clients 600,1200,2400] [--memory 1GB]

EMNIST letters, MLP-200, 20 % of the clients a round, each related to a tenth of the others at random, so that no two
mixes are equal. Each size runs in a process of its own, whose worker ends with it.
"""

import argparse
import os
import subprocess
import sys
import time

from process_memory import peak

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def measure(clients: int, rounds: int, data_dir: str | None, budget: str | None):
    """Prints the line of one size."""
    import dataclasses

    import numpy as np

    from tffcl import runtime
    from tffcl.algorithms.method import ClusteredState
    from tffcl.algorithms.related_training import build_related_training
    from tffcl.clients import cohort
    from tffcl.clients.cohort import Cohort
    from tffcl.clients.large_rows import joined
    from tffcl.clients.simulation_context import simulating
    from tffcl.lab.tasks import build, resolve
    from tffcl.lab.tasks.populations import build_population
    from tffcl.runtime import memory

    @dataclasses.dataclass(frozen=True, eq=False)
    class State(ClusteredState):
        relatedness: np.ndarray | None = None
        rows: np.ndarray | None = None

    overrides = {"partition": {"clients": clients, "test": "classes"}, "train": {"clients_per_round": clients // 5}}
    chosen = resolve.resolve("flt_emnist_letters_scenario_4_mlp", "fedavg", overrides=overrides)
    federated = build.load_data(chosen, data_dir)
    population = build_population(federated)
    model = build.build_model(chosen, federated)
    worker = runtime.use_local_worker()
    training = build_related_training(model, chosen.train.local)
    relatedness = np.random.default_rng(0).random((clients, clients)) < 0.1
    relatedness = np.maximum(relatedness | relatedness.T, np.eye(clients)).astype(np.float32)
    # As after many rounds: a model for every client.
    start = training.start(population, np.zeros(clients, np.int32))
    models = joined((model.initial[np.newaxis] for _ in range(clients)), (clients, model.size))
    start |= {"models": models, "rows": np.arange(clients, dtype=np.int32)}
    state = State(**start, relatedness=relatedness)
    before, seconds, most = peak(), [], memory.parse_bytes(budget) if budget else None
    for number in range(1, rounds + 1):
        ids = cohort.sample_cohort(population.client_ids, clients // 5, 0, number)
        start = time.perf_counter()
        with simulating(memory=most, on_plan=lambda line: print(f"  {line}")):
            state, _ = training.next(state, Cohort(population, ids, (0, number)))
        seconds.append(time.perf_counter() - start)
    models = state.models.nbytes / 2**20
    print(
        f"{clients:7}  {min(seconds):13.2f}  {models:9.0f}  {before:9.0f}  {peak():10.0f}  {peak(worker.pid):9.0f}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", default="600,1200,2400")
    parser.add_argument("--memory")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        measure(options.one, options.rounds, options.data_dir, options.memory)
        return
    print("clients  s a round     models MB  before MB  process MB  worker MB", flush=True)
    for clients in options.clients.split(","):
        given = ["--data-dir", options.data_dir] if options.data_dir else []
        given += ["--memory", options.memory] if options.memory else []
        subprocess.run(
            [sys.executable, __file__, "--one", clients, "--rounds", str(options.rounds), *given], check=True
        )


if __name__ == "__main__":
    main()
