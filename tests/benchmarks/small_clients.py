"""CPU seconds of a round of many small clients: the process and its worker together, the least of several rounds.

    uv run python tests/benchmarks/small_clients.py [--clients 500] [--examples 30] [--methods fedavg pacfl ifca] [--repeats 3]
    uv run python tests/benchmarks/small_clients.py --against OTHER_CHECKOUT

With `--against`, this checkout and another one, each by the Python of its own `.venv`, take turns, and the ratios are printed.
LeNet-5, one epoch of batches of 10, as in Fashion-MNIST's label skew; examples are random numbers.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
TURNS = 3
HERE = pathlib.Path(__file__).resolve()


def cpu_seconds(pids) -> float:
    total = 0.0
    for pid in pids:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def measure(clients: int, examples: int, methods: list[str], repeats: int) -> dict[str, float]:
    import time

    import numpy as np

    from tffcl import runtime
    from tffcl.algorithms.fedavg import build_fedavg
    from tffcl.algorithms.ifca import IFCAParameters, build_ifca
    from tffcl.algorithms.pacfl import PACFLParameters, build_pacfl
    from tffcl.client_work.local_sgd import LocalTraining
    from tffcl.clients.cohort import Cohort
    from tffcl.clients.population import Population
    from tffcl.models.lenet5 import build_lenet5

    rng = np.random.default_rng(0)
    data = {
        client: (
            rng.integers(0, 256, [examples, 28, 28, 1], np.uint8),
            rng.integers(0, 10, examples).astype(np.int32),
        )
        for client in range(clients)
    }
    population = Population.from_arrays(data)
    model = build_lenet5((28, 28, 1), 10, normalization=((0.28,), (0.35,)), seed=0)
    training = LocalTraining(epochs=1, batch_size=10, learning_rate=0.01, momentum=0.5)
    builders = {
        "fedavg": lambda: build_fedavg(model, training),
        "pacfl": lambda: build_pacfl(model, training, PACFLParameters(num_clusters=4)),
        "ifca": lambda: build_ifca(model, training, IFCAParameters(num_clusters=2)),
    }
    worker = runtime.use_local_worker().pid
    found = {}
    for name in methods:
        method = builders[name]()
        state = method.initialize(population)
        cohort = Cohort(population, population.client_ids, (0, 1))
        after, _ = method.next(state, cohort)  # traces
        spent = []
        for _ in range(repeats):
            before, start = cpu_seconds([os.getpid(), worker]), time.perf_counter()
            again, _ = method.next(state, cohort)
            spent.append((cpu_seconds([os.getpid(), worker]) - before, time.perf_counter() - start))
        np.testing.assert_array_equal(again.models, after.models)
        found[name] = min(spent)
        found[f"{name} models"] = float(np.abs(after.models).sum())
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--examples", type=int, default=30)
    parser.add_argument("--methods", nargs="+", default=["fedavg", "pacfl", "ifca"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--against", type=pathlib.Path)
    options = parser.parse_args()
    if options.against is None:
        print(json.dumps(measure(options.clients, options.examples, options.methods, options.repeats)))
        return
    arguments = [
        "--clients",
        options.clients,
        "--examples",
        options.examples,
        "--repeats",
        options.repeats,
        "--methods",
        *options.methods,
    ]
    runs = {"this": [], "other": []}
    for _ in range(TURNS):
        for name, checkout in (("other", options.against.resolve()), ("this", HERE.parents[2])):
            python = checkout / ".venv" / "bin" / "python"
            told = subprocess.run(
                [str(python), str(HERE), *map(str, arguments)],
                cwd=checkout, env={**os.environ, "PYTHONPATH": str(checkout)}, check=True, capture_output=True, text=True,
            )  # fmt: skip
            runs[name].append(json.loads(told.stdout.splitlines()[-1]))
    for method in options.methods:
        spent = {name: min(each[method][0] for each in found) for name, found in runs.items()}
        same = len({each[f"{method} models"] for found in runs.values() for each in found}) == 1
        print(
            f"{method}: {spent['this']:.2f} CPU seconds, the other {spent['other']:.2f}, ratio {spent['this'] / spent['other']:.3f}"
            f"{'' if same else '; the models differ'}"
        )


if __name__ == "__main__":
    sys.exit(main())
