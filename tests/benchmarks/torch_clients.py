"""What the peers on PyTorch share: the clients' examples, models and local training.

TFF's pins exclude PyTorch from this project's environment, so the scripts that import this file (`torch_round.py`,
`pfl_round.py`, `flower_round.py`) are run by the Python of an environment of their own, and import nothing of tffcl.
"""

import functools

import peer_script
import torch

nn = torch.nn


@functools.lru_cache(maxsize=1)
def load_clients(path: str):
    """Examples of each client as normalised float32 [n, 1, 28, 28] and int64 [n]; read once in a process."""
    clients = peer_script.load_clients(path)
    return [(torch.from_numpy(x).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(y).long()) for x, y in clients]


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
