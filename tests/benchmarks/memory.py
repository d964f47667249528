"""Seconds and memory of holding 2,400 clients, and resident memory over 50 rounds, of this process and its worker.

    uv run python tests/benchmarks/memory.py [--data-dir D] [--rounds 50]

FLT's scenario 4 on EMNIST letters, MLP-200, 480 clients a round.
"""

import argparse
import os
import time

from process_memory import resident

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir")
    parser.add_argument("--rounds", type=int, default=50)
    options = parser.parse_args()

    from tffcl import runtime
    from tffcl.clients import sampling
    from tffcl.clients.cohort import Cohort
    from tffcl.experiments import config, prepare
    from tffcl.experiments.populations import build_population

    # One local epoch instead of the task's: what stays in memory does not depend on it.
    overrides = {"dataset": {"name": "emnist_letters"}, "partition": {"test": "all"}, "train": {"local_epochs": 1}}
    chosen = config.resolve("flt_emnist_scenario_4_mlp", "fedavg", overrides=overrides)
    before, start = resident(), time.perf_counter()
    federated = prepare.load_data(chosen, options.data_dir)
    population = build_population(federated)
    print(
        f"building 2,400 clients: {time.perf_counter() - start:.1f} s, {resident() - before:.0f} MB (process {resident():.0f} MB)"
    )
    model = prepare.build_model(chosen, federated)
    method = prepare.build_method(chosen, model, federated)
    worker = runtime.use_local_worker()
    state = method.initialize(population)
    print("round  seconds  process MB  worker MB")
    for number in range(1, options.rounds + 1):
        clients = sampling.sample_cohort(population.client_ids, chosen.train.clients_per_round, 0, number)
        start = time.perf_counter()
        state, _ = method.next(state, Cohort(population, clients, (0, number)))
        if number in (1, 2, 5) or number % 10 == 0:
            print(
                f"{number:5}  {time.perf_counter() - start:7.2f}  {resident():10.0f}  {resident(worker.pid):9.0f}", flush=True
            )


if __name__ == "__main__":
    main()
