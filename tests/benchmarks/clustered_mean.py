"""Seconds and the worker's peak memory of one mean per cluster, by number of clusters, beside TFF's mean over everyone.

    uv run python tests/benchmarks/clustered_mean.py [--clients 40] [--size 1600000] [--clusters 1,4,20,40]

Every client uploads a vector of `size` numbers that it draws, so that nothing else is measured. Each line is of a
process of its own, whose worker ends with it; the first call, which also traces, is not counted.
"""

import argparse
import collections
import os
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def measure(clients: int, size: int, clusters: int):
    """Prints the line of one number of clusters; 0 is TFF's mean."""
    import numpy as np
    import tensorflow as tf
    import tensorflow_federated as tff
    from process_memory import peak

    from tffcl import runtime
    from tffcl.aggregators.clustered_mean import ClusteredMeanFactory

    worker = runtime.use_local_worker()

    @tff.tensorflow.computation(np.int32)
    def upload(key):
        value = tf.random.stateless_normal([size], [key, 0])
        return collections.OrderedDict(key=key, value=value) if clusters else value

    @tff.tensorflow.computation(np.int32)
    def weight(key):
        return tf.cast(key + 1, tf.float32)

    factory = ClusteredMeanFactory() if clusters else tff.aggregators.MeanFactory()
    process = factory.create(upload.type_signature.result, weight.type_signature.result)

    @tff.tensorflow.computation(process.next.type_signature.result.result.member)
    def total(means):
        return tf.reduce_sum(means)

    @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
    def aggregate(keys):
        output = process.next(process.initialize(), tff.federated_map(upload, keys), tff.federated_map(weight, keys))
        return tff.federated_map(total, output.result)

    seconds = []
    for _ in range(4):
        start = time.perf_counter()
        aggregate([client % max(1, clusters) for client in range(clients)])
        seconds.append(time.perf_counter() - start)
    print(f"{clusters or 'TFF':>8}  {min(seconds[1:]):7.2f}  {peak(worker.pid):9.0f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--size", type=int, default=1_600_000)
    parser.add_argument("--clusters", default="1,4,20,40")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        measure(options.clients, options.size, options.one)
        return
    print("clusters  seconds  worker MB", flush=True)
    given = ["--clients", str(options.clients), "--size", str(options.size)]
    for clusters in ["0", *options.clusters.split(",")]:
        subprocess.run([sys.executable, __file__, "--one", clusters, *given], check=True)


if __name__ == "__main__":
    main()
