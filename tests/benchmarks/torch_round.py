"""One round of the clients' training as a plain PyTorch loop; prints its seconds. Run by `rounds.py --torch-python`.

python torch_round.py CLIENTS.npz PROCESSES EPOCHS BATCH_SIZE LEARNING_RATE MOMENTUM
"""

import multiprocessing
import sys
import time

import numpy as np
import torch


def train(arguments):
    """Trains one client; returns its parameters."""
    torch.set_num_threads(1)
    x, y, epochs, batch_size, learning_rate, momentum = arguments
    nn = torch.nn
    model = nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip
    x = (torch.from_numpy(x).permute(0, 3, 1, 2).float() / 255 - 0.1307) / 0.3081
    y = torch.from_numpy(y).long()
    optimizer = torch.optim.SGD(model.parameters(), learning_rate, momentum)
    for _ in range(epochs):
        for batch in torch.randperm(len(y)).split(batch_size):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    return [parameter.detach().numpy() for parameter in model.parameters()]


def main():
    path, processes, epochs, batch_size, learning_rate, momentum = sys.argv[1:]
    options = int(epochs), int(batch_size), float(learning_rate), float(momentum)
    with np.load(path) as arrays:
        jobs = [(arrays[f"x{i}"], arrays[f"y{i}"], *options) for i in range(len(arrays.files) // 2)]
    jobs.sort(key=lambda job: -len(job[1]))
    with multiprocessing.get_context("spawn").Pool(int(processes)) as pool:
        pool.map(train, [(job[0][:20], job[1][:20], *options) for job in jobs], chunksize=1)  # imports and caches
        start = time.perf_counter()
        pool.map(train, jobs, chunksize=1)
        print(time.perf_counter() - start)


if __name__ == "__main__":
    main()
