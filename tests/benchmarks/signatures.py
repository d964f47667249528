"""Seconds of the clients' signatures, of the proximity and clustering of many clients, and of StoCFL's server beside
it.

    uv run python tests/benchmarks/signatures.py [--sizes 100x600 500x30] [--many 10000] [--repeats 3]

Clients have images of Fashion-MNIST at random (noise would take a subspace ten times as long); the model is LeNet-5. A
signature's first time traces and is not counted; its CPU seconds are those of the process and its worker. Proximity is
PACFL's smallest angle of three vectors of 784.
"""

import argparse
import os
import time

from peers import cpu_seconds
from process_memory import peak

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def load_images():
    """Returns `(start, count) -> (x, y)` of Fashion-MNIST's training images, shuffled."""
    import numpy as np

    from tffcl.lab.datasets.federated import load_dataset

    images = load_dataset({"name": "fashion_mnist"}, seed=0).train
    order = np.random.default_rng(0).permutation(len(images.y))

    def some(start: int, count: int):
        rows = order[np.arange(start, start + count) % len(order)]
        return images.x[rows], images.y[rows].astype(np.int32)

    return some


def sign(sizes: list[str], repeats: int):
    """Prints a line for each signature and size."""
    from tffcl import runtime
    from tffcl.clients.population import Population
    from tffcl.models.autoencoder import build_autoencoder
    from tffcl.models.classifiers import build_lenet5
    from tffcl.rounds.client_queries import build_signing
    from tffcl.signatures.anchor_gradient import build_anchor_gradient
    from tffcl.signatures.embedding import build_embedding
    from tffcl.signatures.subspace import build_subspace

    worker = runtime.use_local_worker().pid
    model, encoder = build_lenet5((28, 28, 1), 10, seed=0), build_autoencoder((28, 28, 1), seed=0)
    signatures = {
        "subspace": build_subspace(model.example_spec, 3),
        "anchor gradient": build_anchor_gradient(model, seed=0),
        "embedding": build_embedding(encoder, encoder.initial, model.example_spec, seed=0),
    }
    images_of = load_images()
    print("signature         clients  images  seconds  CPU seconds")
    for size in sizes:
        clients, images = map(int, size.split("x"))
        data = {client: images_of(client * images, images) for client in range(clients)}
        population = Population.from_arrays(data)
        for name, signature in signatures.items():
            ask, spent = build_signing(signature), []
            ask(population)
            for _ in range(repeats):
                start, before = time.perf_counter(), cpu_seconds([os.getpid(), worker])
                ask(population)
                spent.append((time.perf_counter() - start, cpu_seconds([os.getpid(), worker]) - before))
            print(
                f"{name:16}  {clients:7}  {images:6}  {min(spent)[0]:7.2f}  {min(cpu for _, cpu in spent):11.2f}",
                flush=True,
            )


def cluster(many: int):
    """Prints the seconds of the proximity and the clustering of many clients."""
    import numpy as np

    from tffcl.clustering import hierarchical, proximity

    rng = np.random.default_rng(0)
    bases = np.linalg.qr(rng.standard_normal([many, 784, 3], np.float32))[0]
    start = time.perf_counter()
    apart = proximity.principal_angles(bases)
    angles = time.perf_counter() - start
    hierarchical.group(apart, "average", None, 10)
    total = time.perf_counter() - start
    print(
        f"proximity of {many:,} clients {angles:.1f} s, with the clustering {total:.1f} s; process {peak():.0f} MB "
        "at most"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", default=["100x600", "500x30"])
    parser.add_argument("--many", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if options.many:
        cluster(options.many)
    sign(options.sizes, options.repeats)


if __name__ == "__main__":
    main()
