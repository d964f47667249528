"""What a run costs by the number of clients that there are, of which 1,000 take part in each round.

Made is a table in Markdown: CPU seconds of process and worker, which other work disturbs less than the clock.

    uv run python tests/benchmarks/many_clients.py [--clients 2000 20000 200000] [--methods fedavg ifca pacfl stocfl]
    [--a-round 1000] [--rounds 4] [--out DIR]

Clients are made when they are read, ten images of one of four groups each; FedAvg, IFCA with K = 2, PACFL with `when =
"as_they_join"` and StoCFL train an MLP with 50 hidden units on them. Each run has a process of its own. Start is from
the population to the first round, a round is the median but for the first, which traces; the evaluation after the last
one and the files of the end are apart. Read are the clients whose training examples were, test examples beside them.
"""

import argparse
import collections.abc
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
METHODS = ("fedavg", "ifca", "pacfl", "stocfl")
HERE = pathlib.Path(__file__).resolve()
HEADS = ("start", "a round", "the end", "a round, clock s", "process MB", "worker MB", "clients read", "files MB")


def made_examples(count: int, seed: int):
    """A mapping of clients to examples that are made when they are read, and how often that was."""
    import numpy as np

    centres = np.random.default_rng(0).integers(0, 256, [4, 28, 28, 1])

    class Made(collections.abc.Mapping):
        reads = 0

        def __getitem__(self, client: int):
            Made.reads += 1
            rng = np.random.default_rng([seed, client])
            x = (centres[client % 4] + rng.integers(0, 256, [10, 28, 28, 1])) // 2
            return x.astype(np.uint8), rng.integers(0, 10, 10).astype(np.int32)

        def __iter__(self):
            return iter(range(count))

        def __len__(self):
            return count

        def __contains__(self, client):
            return client in range(count)

    return Made()


def build(method: str, model, training):
    """Builds the method of this name."""
    from tffcl import algorithms

    if method == "fedavg":
        return algorithms.build_fedavg(model, training)
    if method == "ifca":
        return algorithms.build_ifca(model, training, algorithms.IFCAParameters(num_clusters=2))
    if method == "stocfl":
        return algorithms.build_stocfl(model, training, algorithms.StoCFLParameters(projection=256, threshold=0.2))
    return algorithms.build_pacfl(
        model, training, algorithms.PACFLParameters(when="as_they_join", threshold=10.0, num_vectors=3)
    )


def run(method: str, clients: int, a_round: int, rounds: int, out: str) -> dict:
    """Trains; returns what it has cost."""
    import numpy as np
    from peers import cpu_seconds
    from process_memory import peak

    import tffcl
    from tffcl import runtime
    from tffcl.models.classifiers import build_mlp

    worker = runtime.use_local_worker().pid

    class Clock(tffcl.Callback):
        stops_between_evaluations = False
        times = []

        def begin(self, run):
            Clock.times.append(spent())

        def after_round(self, run):
            Clock.times.append(spent())

    def spent():
        return np.array([cpu_seconds([os.getpid(), worker]), time.monotonic()])

    start = spent()
    examples, tests = made_examples(clients, 1), made_examples(clients, 2)
    population = tffcl.Population.from_arrays(examples, tests, lazy=True)
    model = build_mlp((28, 28, 1), 10, hidden=50, seed=0)
    training = tffcl.LocalTraining(epochs=1, batch_size=10, learning_rate=0.01)
    tffcl.train(
        build(method, model, training), population, rounds=rounds, clients_per_round=a_round, evaluate_every=rounds + 1,
        out=out, callbacks=[Clock()], show_progress=False, overwrite=True,
    )  # fmt: skip
    times = np.array([start, *Clock.times, spent()])
    before, _, *between, last, end = np.diff(times, axis=0)
    files = sum(path.stat().st_size for path in pathlib.Path(out).rglob("*") if path.is_file())
    each, clock = np.median(between, axis=0)
    memory = peak(), peak(worker)
    found = before[0], each, (last + end)[0], clock, *memory, type(examples).reads, files / 1e6
    return dict(zip(HEADS, map(float, found), strict=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[2_000, 20_000, 200_000])
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--a-round", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--out", help="where the runs stay; default nowhere")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        found = run(options.methods[0], options.clients[0], options.a_round, options.rounds, options.out)
        print(json.dumps(found))
        return
    print(f"| method | clients | {' | '.join(HEADS)} |\n|{'---|' * (len(HEADS) + 2)}")
    for method in options.methods:
        for clients in options.clients:
            with tempfile.TemporaryDirectory() as place:
                out = f"{options.out or place}/{method}-{clients}"
                given = [f"--methods={method}", f"--clients={clients}", f"--a-round={options.a_round}"]
                command = [sys.executable, str(HERE), "--one", f"--out={out}", *given]
                told = subprocess.run(
                    [*command, f"--rounds={options.rounds}"], stdout=subprocess.PIPE, check=True, text=True
                )
            found = json.loads(told.stdout.splitlines()[-1])
            shown = (f"{found[head]:.2f}" if found[head] < 100 else f"{found[head]:,.0f}" for head in HEADS)
            print(f"| {method} | {clients:,} | {' | '.join(shown)} |", flush=True)


if __name__ == "__main__":
    main()
