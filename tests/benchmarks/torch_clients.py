"""What the peers on PyTorch share: their command line, the clients' examples, models and local training.

TFF's pins exclude PyTorch from this project's environment, so the scripts that import this file (`torch_round.py`,
`pfl_round.py`, `flower_round.py`) are run by the Python of an environment of their own, and import nothing of tffcl.
"""

import argparse
import functools
import json

import numpy as np
import torch

nn = torch.nn


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
    parser.add_argument("model", choices=LAYERS)
    return parser.parse_args()


def print_rounds(rounds):
    """Prints the last line that `peers.py` reads: seconds and CPU seconds (None where unknown) of each
    measured round.
    """
    print(json.dumps(rounds), flush=True)


@functools.lru_cache(maxsize=1)
def load_clients(path: str):
    """Examples of each client as normalised float32 [n, 1, 28, 28] and int64 [n]; read once in a process."""
    with np.load(path) as arrays:
        return [_tensors(arrays[f"x{i}"], arrays[f"y{i}"]) for i in range(len(arrays.files) // 2)]


def _tensors(x, y):
    x = (torch.from_numpy(x).permute(0, 3, 1, 2).float() / 255 - 0.1307) / 0.3081
    return x.contiguous(), torch.from_numpy(y).long()


def lenet5_layers():
    """The layers of LeNet-5 as in `classifiers.build_lenet5`."""
    return [
        nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    ]  # fmt: skip


def mlp_layers():
    """The layers of the MLP with 200 hidden units as in `classifiers.build_mlp`."""
    return [nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10)]


LAYERS = {"lenet5": lenet5_layers, "mlp": mlp_layers}


def train(model, x, y, options):
    """Trains the model by plain SGD in place, each epoch in a new random order."""
    optimizer = torch.optim.SGD(model.parameters(), options.learning_rate, options.momentum)
    for _ in range(options.epochs):
        for batch in torch.randperm(len(y)).split(options.batch_size):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
