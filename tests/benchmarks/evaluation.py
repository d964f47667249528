"""What the evaluation of personal models costs beside their bare forward passes.

    uv run python tests/benchmarks/evaluation.py [--repeats 5]

Prints medians of seconds and CPU seconds (the process and its worker together) as a table in Markdown. Each client has
a model and test images of its own, random numbers of 28 x 28. The forward passes are one function on all images of a
model, 250 at a time, in this process. To compare with another checkout, let it take turns:
`PYTHONPATH=OTHER_CHECKOUT uv run python tests/benchmarks/evaluation.py`.
"""

import argparse
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from peers import cpu_seconds

from tffcl import runtime
from tffcl.client_work.evaluation import build_predict
from tffcl.clients.population import Population
from tffcl.models.classifiers import build_lenet5, build_mlp
from tffcl.models.graph_function import session_function
from tffcl.runs.evaluator import Evaluator

SETTINGS = (("MLP-200", 100, 1000), ("LeNet-5", 100, 1000), ("MLP-200", 400, 10))
BUILDERS = {"MLP-200": lambda shape: build_mlp(shape, 10, hidden=200), "LeNet-5": lambda shape: build_lenet5(shape, 10)}
AT_A_TIME = 250


def contestants(name: str, clients: int, images: int):
    """Returns an evaluation and the forward passes of it; the former gives the accuracies."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, [clients, images, 28, 28, 1], np.uint8)
    y = rng.integers(0, 10, [clients, images]).astype(np.int32)
    model = BUILDERS[name]((28, 28, 1))
    models = (model.initial + rng.normal(0, 0.01, [clients, model.size])).astype(np.float32)
    own = dict(enumerate(zip(x, y, strict=True)))
    population = Population.from_arrays({client: (x[:1], y[:1]) for client, (x, y) in own.items()}, own)
    predict = session_function(build_predict(model, few=True), tf.TensorSpec([model.size]), model.x_spec)

    def evaluate():
        # A new one each time: an evaluator knows what it has answered.
        return Evaluator(model, population).cluster_accuracy(models, np.arange(clients))

    def forward():
        for vector, own in zip(models, x, strict=True):
            for start in range(0, images, AT_A_TIME):
                predict(vector, own[start : start + AT_A_TIME])

    return evaluate, forward


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    pids = [os.getpid(), runtime.use_local_worker().pid]
    print("| model | models | images each | s | CPU s | CPU s of forward passes | sum of accuracies |\n|" + "---|" * 7)
    for name, clients, images in SETTINGS:
        evaluate, forward = contestants(name, clients, images)
        total = evaluate().sum()  # traces
        forward()
        spent = []
        for _ in range(options.repeats):
            for work in (evaluate, forward):
                before, start = cpu_seconds(pids), time.perf_counter()
                work()
                spent.append((time.perf_counter() - start, cpu_seconds(pids) - before))
        (seconds, cpu), (_, bare) = (map(statistics.median, zip(*spent[which::2])) for which in (0, 1))
        print(f"| {name} | {clients} | {images:,} | {seconds:.2f} | {cpu:.2f} | {bare:.2f} | {total:.4f} |", flush=True)


if __name__ == "__main__":
    main()
