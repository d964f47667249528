"""A round of the clients' training as a plain PyTorch loop, without a server. Run by `rounds.py --torch-python`.

    PYTHON torch_round.py CLIENTS.npz PROCESSES EPOCHS BATCH_SIZE LEARNING_RATE MOMENTUM ROUNDS MODEL

PYTHON needs torch. Clients are shared out over a pool of processes of one thread each, the largest first.
"""

import multiprocessing
import time

import torch
from peer_script import parse_arguments, print_rounds
from torch_clients import LAYERS, load_clients, train


def train_client(options, client):
    """Trains one client; returns its parameters."""
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*LAYERS[options.model]())
    train(model, *load_clients(options.clients)[client], options)
    return [parameter.detach().numpy() for parameter in model.parameters()]


def main():
    options = parse_arguments(__doc__.splitlines()[0])
    sizes = [len(y) for _, y in load_clients(options.clients)]
    jobs = [(options, client) for client in sorted(range(len(sizes)), key=lambda client: -sizes[client])]
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        seconds = []
        for _ in range(1 + options.rounds):
            start = time.perf_counter()
            pool.starmap(train_client, jobs, chunksize=1)
            seconds.append(time.perf_counter() - start)
    print_rounds([(each, None) for each in seconds[1:]])


if __name__ == "__main__":
    main()
