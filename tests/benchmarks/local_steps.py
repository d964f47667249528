"""CPU milliseconds of a step of local training, in float32 and in bfloat16, in this process and in TFF's worker.

    uv run python tests/benchmarks/local_steps.py [--models resnet9 leaf_cnn lenet5] [--batch-size 10] [--steps 40]
        [--repeats 5] [--torch-python PYTHON]

Images and labels are random, SGD has momentum, one thread computes. Contestants take turns, and CPU time is counted, so
that other work on the machine matters little. `torch_steps.py` is the peer, by the Python of an environment of its own.
"""

import argparse
import collections
import os
import statistics
import subprocess
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tffcl import runtime
from tffcl.choices import PRECISIONS
from tffcl.client_work.local_sgd import LocalTraining, build_local_sgd
from tffcl.models.classifiers import build_leaf_cnn, build_lenet5, build_resnet9

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
MODELS = {
    "resnet9": (build_resnet9, (32, 32, 3), 100),
    "leaf_cnn": (build_leaf_cnn, (28, 28, 1), 62),
    "lenet5": (build_lenet5, (28, 28, 1), 10),
}


def cpu_of(pid: int) -> float:
    """Seconds of a processor that the threads of a process have taken, by the scheduler's clock of nanoseconds."""
    return sum(int(file.read_text().split()[0]) for file in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def summed(local_sgd, seed):
    """A training that gives one number back, so that the way of a model is not counted."""
    return lambda vector, x, y: tf.reduce_sum(local_sgd(vector, x, y, seed)[0])


def contestants(name: str, options, worker):
    """Yields what is called, and a function that trains once and returns CPU seconds."""
    build, shape, classes = MODELS[name]
    model, rng, seed = build(shape, classes), np.random.default_rng(0), np.array([1, 2], np.int32)
    examples = options.steps * options.batch_size
    x, y = (
        rng.integers(0, 256, (examples, *shape)).astype(np.uint8),
        rng.integers(0, classes, examples).astype(np.int32),
    )
    for precision in PRECISIONS:
        training = LocalTraining(batch_size=options.batch_size, momentum=0.9, precision=precision)
        local_sgd = build_local_sgd(model, training)
        types = [tff.types.to_type((np.dtype(each.dtype).type, each.shape)) for each in (model.initial, x, y)]
        remote = tff.tensorflow.computation(summed(local_sgd, seed), types)

        def here(train=local_sgd):
            start = time.process_time()
            train(model.initial, x, y, seed)[1].numpy()
            return time.process_time() - start

        def there(computation=remote):
            start = cpu_of(worker.pid)
            computation(model.initial, x, y)
            return cpu_of(worker.pid) - start

        yield f"{precision}, in the process", here
        yield f"{precision}, in TFF's worker", there
    if options.torch_python:
        script = Path(__file__).with_name("torch_steps.py")
        command = [options.torch_python, str(script), name, str(options.batch_size), str(options.steps)]
        yield (
            "PyTorch, float32",
            lambda: float(subprocess.run(command, capture_output=True, check=True, text=True).stdout),
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--torch-python", help="an interpreter with PyTorch, to compare with")
    options = parser.parse_args()
    worker = runtime.use_local_worker(runtime.WorkerSettings(cores=1))
    for name in options.models:
        seconds, made = collections.defaultdict(list), dict(contestants(name, options, worker))
        for _ in range(1 + options.repeats):  # the first turn traces
            for what, train in made.items():
                seconds[what].append(train())
        first = None
        for what, taken in seconds.items():
            step = 1e3 * statistics.median(taken[1:]) / options.steps
            first = first or step
            print(f"{name:10} {what:28} {step:8.2f} CPU ms a step {step / first:6.2f}", flush=True)


if __name__ == "__main__":
    main()
