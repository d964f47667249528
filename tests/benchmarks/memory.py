"""Seconds and memory of rounds of a task: resident and at most, of this process and its worker.

    uv run python tests/benchmarks/memory.py [TASK] [METHOD] [--rounds 50] [--every 10] [--memory 1GB]
    [--set KEY=VALUE ...] [--data-dir D]

Without arguments FedAvg on FLT's scenario 4 on EMNIST letters: 2,400 clients, 480 a round, MLP-200. One local epoch
instead of the task's: what stays in memory does not depend on it.
"""

import argparse
import os
import statistics
import time

from process_memory import peak, resident

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", nargs="?", default="flt_emnist_letters_scenario_4_mlp")
    parser.add_argument("method", nargs="?", default="fedavg")
    parser.add_argument("--data-dir")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--every", type=int, default=10, help="rounds between two lines")
    parser.add_argument("--memory")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--evaluate", action="store_true", help="and the accuracies after the last round")
    options = parser.parse_args()

    from tffcl import runtime
    from tffcl.clients import cohort
    from tffcl.clients.cohort import Cohort
    from tffcl.clients.simulation_context import simulating
    from tffcl.lab.tasks import build, resolve
    from tffcl.lab.tasks.populations import build_population
    from tffcl.runs.evaluator import Evaluator
    from tffcl.runtime import memory

    overrides = resolve.parse_overrides(["train.local_epochs=1", *options.set])
    chosen = resolve.resolve(options.task, options.method, overrides=overrides)
    start = time.perf_counter()
    federated = build.load_data(chosen, options.data_dir)
    population = build_population(federated)
    print(f"{len(population):,} clients: {time.perf_counter() - start:.1f} s, process {resident():.0f} MB")
    method = build.build_method(chosen, build.build_model(chosen, federated), federated, options.data_dir)
    print(f"{method.model}, {chosen.train.clients_per_round} clients a round")
    worker = runtime.use_local_worker()
    said = set()

    def chose(line: str):
        if line not in said:
            print(line)
            said.add(line)

    with simulating(memory=memory.parse_bytes(options.memory) if options.memory else None, on_plan=chose):
        start = time.perf_counter()
        state = method.initialize(population)
        print(f"initialised in {time.perf_counter() - start:.1f} s")
        print("\n| rounds | s a round | process MB | at most | worker MB | at most |\n|---|---|---|---|---|---|")
        held = []
        for number in range(1, options.rounds + 1):
            clients = cohort.sample_cohort(population.client_ids, chosen.train.clients_per_round, 0, number)
            start = time.perf_counter()
            state, _ = method.next(state, Cohort(population, clients, (0, number)))
            held.append((time.perf_counter() - start, resident(), resident(worker.pid)))
            if number == 1 or number % options.every == 0:
                # Single rounds' numbers lie some percent beside each other.
                seconds, process, of_worker = (statistics.median(each) for each in zip(*held))
                first = number - len(held) + 1
                print(
                    f"| {first} to {number} | {seconds:.3f} | {process:.0f} | {peak():.0f} | {of_worker:.0f} | "
                    f"{peak(worker.pid):.0f} |",
                    flush=True,
                )
                held = []
        if options.evaluate:
            start = time.perf_counter()
            found = Evaluator(method.model, population).cluster_accuracy(
                *method.models_for(state, population.client_ids)
            )
            print(
                f"evaluated in {time.perf_counter() - start:.1f} s: {100 * found.mean():.2f} %, process {peak():.0f} "
                "MB at most"
            )


if __name__ == "__main__":
    main()
