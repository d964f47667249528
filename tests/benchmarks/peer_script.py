"""What the scripts of all peers share: their command line and what they print. It imports nothing but NumPy."""

import argparse
import json

import numpy as np

MODELS = ("lenet5", "mlp")


def parse_arguments(description: str) -> argparse.Namespace:
    """The command line that `peers.py` writes, the same for every peer."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("clients", help="an .npz file with x0, y0, x1, y1, ...: uint8 [n, 28, 28, 1] and integers [n]")
    parser.add_argument("processes", type=int)
    parser.add_argument("epochs", type=int)
    parser.add_argument("batch_size", type=int)
    parser.add_argument("learning_rate", type=float)
    parser.add_argument("momentum", type=float)
    parser.add_argument("rounds", type=int, help="rounds to measure, after one that is not")
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("method", nargs="?", default="fedavg", choices=["fedavg", "hyp_cluster"])
    return parser.parse_args()


def load_clients(path: str) -> list:
    """Examples of each client as normalised float32 [n, 28, 28, 1] and integers [n]."""
    with np.load(path) as arrays:
        clients = [(arrays[f"x{i}"], arrays[f"y{i}"]) for i in range(len(arrays.files) // 2)]
    return [((x.astype(np.float32) / 255 - 0.1307) / 0.3081, y) for x, y in clients]


def print_rounds(rounds):
    """Prints the last line that `peers.py` reads: seconds and CPU seconds (None where unknown) of each
    measured round.
    """
    print(json.dumps(rounds), flush=True)
