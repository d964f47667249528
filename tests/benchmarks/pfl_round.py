"""Rounds of FedAvg by pfl-research over all clients. Run by `small_clients.py` and `rounds.py` with `--pfl-python`.

    PYTHON pfl_round.py CLIENTS.npz PROCESSES EPOCHS BATCH_SIZE LEARNING_RATE MOMENTUM ROUNDS MODEL

PYTHON needs `pfl[pytorch]`. The processes are what pfl gets from torchrun, joined by torch.distributed's gloo on
loopback; each has one thread. Central evaluation is off. As pfl does by itself, examples stay tensors and batches stay
as they were cut: there is no shuffling. Clients are weighted by their examples, as in tffcl.
"""

import json
import os
import socket
import subprocess
import sys
import time

import torch
from peer_script import parse_arguments, print_rounds
from torch_clients import LAYERS, load_clients

RANK = "RANK"  # torchrun's variable, set in the processes that train


def start_processes(options):
    """Runs this script once a process, as torchrun would; rounds' seconds are the slowest process', CPU seconds
    their sum.
    """
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        # torchrun's own store would listen on every address of the machine.
        store = torch.distributed.TCPStore(
            "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=os.dup(listening.fileno())
        )
        started = [
            subprocess.Popen(
                [sys.executable, *sys.argv],
                env=environment(rank, options.processes, port),
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(options.processes)
        ]
        told = [process.communicate()[0] for process in started]
        del store
    failed = [process.returncode for process in started if process.returncode]
    if failed:
        sys.exit(failed[0])
    of_processes = [json.loads(each.splitlines()[-1]) for each in told]
    print_rounds([(max(seconds), sum(cpu)) for seconds, cpu in (zip(*rounds) for rounds in zip(*of_processes))])


def environment(rank, processes, port):
    found = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    found |= {
        RANK: str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
    }
    return found | {"TORCHELASTIC_RUN_ID": "pfl_round", "TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": "1"}


class Model(torch.nn.Sequential):
    """Layers with the two methods that pfl asks of a model."""

    def loss(self, x, y):
        return torch.nn.functional.cross_entropy(self(x), y)

    def metrics(self, x, y):
        from pfl.metrics import Weighted

        return {"loss": Weighted(self.loss(x, y).item() * len(y), len(y))}


def run_rounds(options):
    """Returns seconds and this process' CPU seconds of each round after the first, which also evaluates, and
    the model.
    """
    import numpy as np
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import MinimizeReuseUserSampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    class Clock(TrainingProcessCallback):
        times = []

        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            self.times.append((time.perf_counter(), time.process_time()))
            return False, type(aggregate_metrics)()

    torch.set_num_threads(1)
    # The processes draw the same cohort and start from the same model.
    np.random.seed(0)
    torch.manual_seed(0)
    clients = [PyTorchTensorDataset(each) for each in load_clients(options.clients)]
    data = FederatedDataset(clients.__getitem__, MinimizeReuseUserSampler(range(len(clients))))
    torch_model = Model(*LAYERS[options.model]())
    model = PyTorchModel(
        torch_model,
        lambda parameters, lr: torch.optim.SGD(parameters, lr, options.momentum),
        torch.optim.SGD(torch_model.parameters(), 1.0),
    )
    backend = SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()])
    rounds = 1 + options.rounds
    # Rounds whose number is a multiple of the frequency evaluate: the first alone.
    params = NNAlgorithmParams(
        central_num_iterations=rounds, evaluation_frequency=rounds, train_cohort_size=len(clients), val_cohort_size=None
    )
    training = NNTrainHyperParams(
        local_num_epochs=options.epochs, local_learning_rate=options.learning_rate, local_batch_size=options.batch_size
    )
    clock = Clock()
    FederatedAveraging().run(params, backend, model, training, callbacks=[clock], send_metrics_to_platform=False)
    times = clock.times
    return [
        tuple(now - then for now, then in zip(after, before)) for before, after in zip(times, times[1:])
    ], torch_model


def main():
    options = parse_arguments(__doc__.splitlines()[0])
    if len(load_clients(options.clients)) % options.processes:
        sys.exit("pfl's processes draw every client once a round only if they share the number of clients evenly")
    if RANK in os.environ:
        print_rounds(run_rounds(options)[0])
        sys.stdout.flush()
        os._exit(0)  # gloo's threads abort the process now and then when the interpreter ends
    else:
        start_processes(options)


if __name__ == "__main__":
    main()
