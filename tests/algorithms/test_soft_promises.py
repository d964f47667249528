"""What methods with mixtures of models promise, on real data."""

import dataclasses

import numpy as np
import pytest

import tffcl
from tffcl.algorithms.each_round_parameters import IFCAParameters
from tffcl.algorithms.fedem import build_fedem
from tffcl.algorithms.fedrc import build_fedrc
from tffcl.algorithms.ifca import build_ifca
from tffcl.algorithms.soft_parameters import FedEMParameters, FedRCParameters
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clients.population import Population
from tffcl.models.classifiers import build_mlp

CLIENTS, TRAINED, TESTED = 12, 100, 50
TRAINING = LocalTraining(epochs=3, batch_size=20, learning_rate=0.1)


def concepts(digits, seed: int) -> Population:
    """Clients with four labels each, drawn anew for every one; every other client calls each digit by the next one."""
    x, y = digits
    rng = np.random.default_rng(seed)
    parts = np.split(rng.permutation(len(x)), [1300])
    train, test = {}, {}
    for client in range(CLIENTS):
        labels = rng.choice(10, 4, replace=False)
        for held, rows, count in zip((train, test), parts, (TRAINED, TESTED)):
            own = rows[np.isin(y[rows], labels)]
            own = own[(client * count + np.arange(count)) % len(own)]
            held[client] = x[own], (y[own] + client % 2) % 10
    groups = np.arange(CLIENTS, dtype=np.int32) % 2
    return dataclasses.replace(Population.from_arrays(train, test), groups=groups)


def build(model, seed: int) -> dict:
    return {
        "ifca": build_ifca(model, TRAINING, IFCAParameters(num_clusters=2), seed=seed),
        "fedem": build_fedem(model, TRAINING, FedEMParameters(num_clusters=2), seed=seed),
        "fedrc": build_fedrc(model, TRAINING, FedRCParameters(num_clusters=2), seed=seed),
    }


@pytest.mark.slow
def test_fedrc_parts_clients_by_what_labels_mean_and_not_by_which_they_have(digits, tmp_path):
    """FedEM finds the two concepts from one start, and from another it parts clients by their labels."""
    found, rand = {}, {}
    for seed in (0, 1):
        population = concepts(digits, seed)
        model = build_mlp((8, 8, 1), 10, hidden=32, normalization=(0.3, 0.4), seed=seed)
        for name, method in build(model, seed).items():
            run = tffcl.train(
                method, population, rounds=60, clients_per_round=CLIENTS, seed=seed, out=tmp_path / f"{name}-{seed}",
                evaluate_every=60, show_progress=False,
            )  # fmt: skip
            found.setdefault(name, []).append(run.summary["accuracy"]["cluster"]["mean"])
            rand.setdefault(name, []).append(run.summary["clusters"]["ari"])
    print(found, rand)
    assert rand["fedrc"] == [1, 1] and min(rand["fedem"]) < 1
    assert min(found["fedrc"]) > min(found["fedem"]) + 0.05
    assert all(np.array(found["fedrc"]) > np.array(found["ifca"]) + 0.05)
