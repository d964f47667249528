"""Seconds and memory of StoCFL's clustering on the server, a round at a time.

    uv run python tests/benchmarks/stochastic_clustering.py [--clients 400 1200 4800 100000] [--linkage single]

Signatures are synthetic: random directions of a group with noise, so that cosines within a group are about 0.6. A tenth
of the clients take part in each round. NumPy alone: no training, no TensorFlow.
"""

import argparse
import time
import tracemalloc

import numpy as np

from tffcl import choices
from tffcl.clustering import stochastic


def signatures(count: int, groups: int, dimensions: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Signatures float32 [count, dimensions], and the group of each."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(groups, size=count)
    centres = rng.standard_normal([groups, dimensions], np.float32)
    noise = rng.standard_normal([count, dimensions], np.float32)
    noise *= 0.8
    noise += centres[truth]
    return noise, truth


def measure(count: int, options):
    """Prints the seconds of each round with `count` clients."""
    rng = np.random.default_rng(1)
    vectors, truth = signatures(count, options.groups, options.dimensions, 0)
    labels, known = np.arange(count), np.zeros(count, bool)
    nothing = np.zeros(0, np.int32)
    partition = stochastic.Partition(nothing, vectors[:0], nothing, np.zeros(0, bool))
    seconds = []
    tracemalloc.start()
    for _ in range(options.rounds):
        cohort = np.sort(rng.choice(count, count // 10, replace=False))
        fresh = cohort[~known[cohort]]
        start = time.perf_counter()
        known[fresh] = True
        partition = stochastic.with_singletons(partition, fresh, vectors[fresh])
        merging = stochastic.merge(partition, options.threshold, options.linkage)
        labels[known] = merging.partition.ids[merging.places[np.searchsorted(partition.ids, labels[known])]]
        partition = merging.partition
        stochastic.objective(partition.sums)
        seconds.append(time.perf_counter() - start)
    beside = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    right = len(np.unique(np.stack([labels, truth])[:, known], axis=1).T) == len(partition) == options.groups
    print(
        f"{count:9,}  {seconds[0]:9.3f}  {np.median(seconds):9.3f}  {max(seconds):9.3f}  {len(partition):8}  "
        f"{right!s:5}  "
        f"{vectors.nbytes / 1e6:13.0f}  {beside / 1e6:9.0f}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[400, 1200, 4800, 100_000])
    parser.add_argument("--dimensions", type=int, default=1024)
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--threshold", type=float, default=0.4)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--linkage", default="single", choices=choices.MERGE_RULES)
    options = parser.parse_args()
    print("  clients  round 1 s   median s      most s  clusters  right  signatures MB  beside MB")
    for count in options.clients:
        measure(count, options)


if __name__ == "__main__":
    main()
