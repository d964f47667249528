"""Rounds of FedAvg by Flower's simulation over all clients. Run by `rounds.py --flower-python`.

    PYTHON flower_round.py CLIENTS.npz PROCESSES EPOCHS BATCH_SIZE LEARNING_RATE MOMENTUM ROUNDS MODEL

PYTHON needs `flwr[simulation]` and torch. As many clients train at a time as there are processes, each with one core
and one thread. A round lasts from the server's choice of its clients to the end of its aggregation; the first, in which
Ray's actors start, is left out. Actors keep the clients' examples after they have read them.
"""

import os
import time

# Nothing is told to anybody, and Ray's servers take the loopback address instead of the machine's.
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"

import flwr
import torch
from flwr.client import NumPyClient
from flwr.server import ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import start_simulation
from peer_script import parse_arguments, print_rounds
from torch_clients import LAYERS, load_clients, train


def parameters_of(model):
    return [parameter.detach().numpy() for parameter in model.parameters()]


class Client(NumPyClient):
    """Trains one client's model on its examples."""

    def __init__(self, options, number):
        self.options, self.number = options, number

    def fit(self, parameters, config):
        torch.set_num_threads(1)
        x, y = load_clients(self.options.clients)[self.number]
        model = torch.nn.Sequential(*LAYERS[self.options.model]())
        with torch.no_grad():
            for variable, value in zip(model.parameters(), parameters):
                variable.copy_(torch.from_numpy(value))
        train(model, x, y, self.options)
        return parameters_of(model), len(y), {}


class TimedFedAvg(FedAvg):
    """FedAvg over all clients without evaluation that keeps the seconds of its rounds."""

    def __init__(self, clients, model):
        initial = flwr.common.ndarrays_to_parameters(parameters_of(model))
        super().__init__(
            fraction_fit=1.0,
            fraction_evaluate=0.0,
            min_fit_clients=clients,
            min_available_clients=clients,
            initial_parameters=initial,
            accept_failures=False,
        )
        self.clients, self.seconds = clients, []

    def configure_fit(self, *args, **kwargs):
        self.start = time.perf_counter()
        return super().configure_fit(*args, **kwargs)

    def aggregate_fit(self, server_round, results, failures):
        if failures or len(results) != self.clients:
            raise RuntimeError(f"{len(failures)} of {self.clients} clients failed: {failures[:1]}")
        after = super().aggregate_fit(server_round, results, failures)
        self.seconds.append(time.perf_counter() - self.start)
        return after


def main():
    options = parse_arguments(__doc__.splitlines()[0])
    clients = len(load_clients(options.clients))
    strategy = TimedFedAvg(clients, torch.nn.Sequential(*LAYERS[options.model]()))
    start_simulation(
        client_fn=lambda context: Client(options, int(context.node_config["partition-id"])).to_client(),
        num_clients=clients,
        client_resources={"num_cpus": 1},
        config=ServerConfig(num_rounds=1 + options.rounds),
        strategy=strategy,
        ray_init_args={"num_cpus": options.processes, "include_dashboard": False},
    )
    print_rounds([(seconds, None) for seconds in strategy.seconds[1:]])


if __name__ == "__main__":
    main()
