"""What a round of many small clients costs, by number of clients, beside pfl-research or beside another checkout.

    uv run python tests/benchmarks/small_clients.py [--clients 500] [--examples 30] [--methods fedavg pacfl ifca]
    [--repeats 3] [--apart]
    uv run python tests/benchmarks/small_clients.py --clients 50 500 5000 50000
    uv run python tests/benchmarks/small_clients.py --pfl-python PYTHON [--fedjax-python PYTHON]
    uv run python tests/benchmarks/small_clients.py --pfl-python PYTHON --clients 50 --examples 2000 --model mlp
    uv run python tests/benchmarks/small_clients.py --against OTHER_CHECKOUT

Prints the medians of seconds, of CPU seconds (the process and its worker together) and of CPU milliseconds a client as
a table in Markdown; the methods take turns. With `--apart`, rounds whose clients are not put into shards (see
`rounds.shards`) take their turns too. With `--pfl-python`, the Python of an environment with `pfl[pytorch]`, pfl-
research's FedAvg takes its turn too, in as many processes as cores, and ratios to it are printed; with
`--fedjax-python` FedJAX's FedAvg and HypCluster (K = 2, what IFCA is); with any of them tff.learning. With `--against`,
this checkout and another one, each by the Python of its own `.venv`, take turns, and the ratios of the least CPU
seconds are printed. LeNet-5, or an MLP with 200 hidden units, one epoch of batches of 10, SGD of rate 0.01 and momentum
0.5, as in Fashion-MNIST's label skew; examples are random numbers.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
TURNS = 3
HERE = pathlib.Path(__file__).resolve()
PFL = "pfl-research"
PEERS = {
    "pfl": [(PFL, "pfl_round.py", "fedavg")],
    "fedjax": [("FedJAX FedAvg", "fedjax_round.py", "fedavg"), ("FedJAX HypCluster", "fedjax_round.py", "hyp_cluster")],
}
APART = ", no shards"


def build_clients(clients: int, examples: int) -> dict:
    """Random images and labels of each client."""
    import numpy as np

    rng = np.random.default_rng(0)
    return {
        client: (rng.integers(0, 256, [examples, 28, 28, 1], np.uint8), rng.integers(0, 10, examples).astype(np.int32))
        for client in range(clients)
    }


def local_training():
    from tffcl.client_work.local_sgd import LocalTraining

    return LocalTraining(epochs=1, batch_size=10, learning_rate=0.01, momentum=0.5)


def contestants(data: dict, methods: list[str], apart: bool = False, model: str = "lenet5"):
    """Returns timers of a method's round, which give seconds and CPU seconds, and what the models of each add up to."""
    import numpy as np

    from tffcl import runtime
    from tffcl.algorithms.each_round_parameters import IFCAParameters
    from tffcl.algorithms.fedavg import build_fedavg
    from tffcl.algorithms.ifca import build_ifca
    from tffcl.algorithms.parameters import PACFLParameters
    from tffcl.algorithms.presets import build_pacfl
    from tffcl.clients.cohort import Cohort
    from tffcl.clients.population import Population
    from tffcl.models.classifiers import build_lenet5, build_mlp

    population = Population.from_arrays(data)
    build = {"lenet5": build_lenet5, "mlp": build_mlp}[model]
    model = build((28, 28, 1), 10, normalization=((0.28,), (0.35,)), seed=0)
    training = local_training()
    builders = {
        "fedavg": lambda: build_fedavg(model, training),
        "pacfl": lambda: build_pacfl(model, training, PACFLParameters(num_clusters=4)),
        "ifca": lambda: build_ifca(model, training, IFCAParameters(num_clusters=2)),
    }
    from peers import cpu_seconds

    pids = [os.getpid(), runtime.use_local_worker().pid]

    def timer(name):
        method = builders[name.removesuffix(APART)]()
        state = method.initialize(population)
        cohort = Cohort(population, population.client_ids, (0, 1))

        def next_state():
            with not_in_shards() if name.endswith(APART) else contextlib.nullcontext():
                return method.next(state, cohort)[0]

        after = next_state()  # traces

        def run():
            before, start = cpu_seconds(pids), time.perf_counter()
            again = next_state()
            spent = time.perf_counter() - start, cpu_seconds(pids) - before
            moved = float(np.abs(again.models - after.models).max())
            if moved:
                # On stderr: `--against` reads stdout. More than another order of sums is a fault.
                print(
                    f"{name}, {len(data):,} clients: the same round again gave models {moved:.1e} apart",
                    file=sys.stderr,
                )
            np.testing.assert_allclose(again.models, after.models, rtol=0, atol=1e-6)
            return spent

        return run, float(np.abs(after.models).sum())

    names = [name + ending for name in methods for ending in ([APART, ""] if apart else [""])]
    built = {name: timer(name) for name in names}
    return {name: run for name, (run, _) in built.items()}, {name: models for name, (_, models) in built.items()}


def measure(options) -> dict[int, dict]:
    """Returns, by number of clients, the pairs of each contestant (seconds and CPU seconds a round) and the sums
    of models.
    """
    found = {}
    for clients in options.clients:
        data = build_clients(clients, options.examples)
        runs, models = contestants(data, options.methods, options.apart, options.model)
        runs |= peers(options, list(data.values()))
        spent = {name: [] for name in runs}
        for _ in range(options.repeats):
            for name, run in runs.items():
                spent[name].append(run())
        found[clients] = {"spent": spent, "models": models}
        if not options.json:
            print_table(clients, spent)
    return found


def peers(options, clients: list) -> dict:
    """Returns timers of a round of the peers that are asked for."""
    pythons = {name: getattr(options, f"{name}_python") for name in PEERS}
    if not any(pythons.values()):
        return {}
    from peers import peer, tff_learning

    training, processes = local_training(), len(os.sched_getaffinity(0))
    asked = [each for name, python in pythons.items() if python for each in [(python, *of) for of in PEERS[name]]]
    return {"tff.learning": tff_learning(clients, training, options.model)} | {
        name: peer(python, script, clients, training, processes, 2, options.model, method)
        for python, name, script, method in asked
    }


def print_table(clients: int, spent: dict):
    """Prints the lines of one number of clients."""
    medians = {name: [statistics.median(each) for each in zip(*pairs)] for name, pairs in spent.items()}
    base = medians.get(PFL)
    for name, (seconds, cpu) in medians.items():
        ratios = f" {seconds / base[0]:.2f} | {cpu / base[1]:.2f} |" if base else ""
        print(f"| {clients:,} | {name} | {seconds:.2f} | {cpu:.2f} | {1e3 * cpu / clients:.2f} |{ratios}", flush=True)


def compare(options):
    """Prints the ratios of this checkout's CPU seconds to another one's."""
    arguments = ["--json", "--clients", *options.clients, "--examples", options.examples, "--repeats", options.repeats]
    arguments += ["--methods", *options.methods, "--model", options.model]
    runs = {"this": [], "other": []}
    for _ in range(TURNS):
        for name, checkout in (("other", options.against.resolve()), ("this", HERE.parents[2])):
            python = checkout / ".venv" / "bin" / "python"
            told = subprocess.run(
                [str(python), str(HERE), *map(str, arguments)],
                cwd=checkout,
                env={**os.environ, "PYTHONPATH": str(checkout)},
                check=True,
                capture_output=True,
                text=True,
            )
            runs[name].append(json.loads(told.stdout.splitlines()[-1]))
    for clients in map(str, options.clients):
        for method in options.methods:
            spent = {
                name: min(cpu for each in found for _, cpu in each[clients]["spent"][method])
                for name, found in runs.items()
            }
            same = len({each[clients]["models"][method] for found in runs.values() for each in found}) == 1
            print(
                f"{clients} clients, {method}: {spent['this']:.2f} CPU seconds, the other {spent['other']:.2f}, "
                f"ratio {spent['this'] / spent['other']:.3f}{'' if same else '; the models differ'}"
            )


def not_in_shards():
    from tffcl.clients.simulation_context import simulating

    return simulating(shards=0)


def memory_budget():
    """As in a run, one budget for all rounds: what else the machine does then never changes how sums are ordered."""
    try:
        from tffcl.clients.simulation_context import current, simulating
    except ImportError:  # an older checkout that `--against` names
        return contextlib.nullcontext()
    return simulating(memory=current().memory_bytes)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[500])
    parser.add_argument("--examples", type=int, default=30)
    parser.add_argument(
        "--methods", nargs="+", default=["fedavg", "pacfl", "ifca"], choices=["fedavg", "pacfl", "ifca"]
    )
    parser.add_argument("--model", default="lenet5", choices=["lenet5", "mlp"])
    parser.add_argument("--repeats", type=int, default=3)
    other = parser.add_mutually_exclusive_group()
    other.add_argument(
        "--pfl-python", help="an interpreter with pfl[pytorch] (TFF's pins exclude PyTorch here), to compare with"
    )
    parser.add_argument("--fedjax-python", help="the same with fedjax")
    other.add_argument("--against", type=pathlib.Path, help="another checkout of this project, to compare with")
    parser.add_argument("--apart", action="store_true", help="also rounds whose clients are not put into shards")
    parser.add_argument("--json", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.against:
        compare(options)
        return
    if not options.json:
        ratios = " s to pfl's | CPU s to pfl's |" if options.pfl_python else ""
        print(f"| clients | a round of | s | CPU s | CPU ms a client |{ratios}")
        print("|---|---|---|---|---|" + ("---|---|" if ratios else ""))
    with memory_budget():
        found = measure(options)
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    sys.exit(main())
