"""What methods with mixtures of models promise, on real data."""

import dataclasses

import numpy as np
import pytest

import tffcl
from tffcl.algorithms.each_round_parameters import FedEMParameters, FedRCParameters, IFCAParameters
from tffcl.algorithms.fedem import build_fedem
from tffcl.algorithms.fedrc import build_fedrc
from tffcl.algorithms.ifca import build_ifca
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
                method, population, rounds=25, clients_per_round=CLIENTS, seed=seed, out=tmp_path / f"{name}-{seed}",
                evaluate_every=25, show_progress=False,
            )  # fmt: skip
            found.setdefault(name, []).append(run.summary["accuracy"]["cluster"]["mean"])
            rand.setdefault(name, []).append(run.summary["clusters"]["ari"])
    print(found, rand)
    assert rand["fedrc"] == [1, 1] and min(rand["fedem"]) < 1
    assert min(found["fedrc"]) > min(found["fedem"]) + 0.05
    assert all(np.array(found["fedrc"]) > np.array(found["ifca"]) + 0.05)


def two_turns(digits, seed: int) -> Population:
    """Ten clients of whose digits none, a quarter, half, three quarters or all lie on their side."""
    x, y = digits
    rng = np.random.default_rng(seed)
    held = {}, {}, {}
    for each, rows, count in zip(held, np.split(rng.permutation(len(x)), [1100, 1400]), (100, 150, 150)):
        for client in range(10):
            own, aside = rng.choice(rows, count, replace=False), rng.random(count) < client % 5 / 4
            images = x[own].copy()
            images[aside] = np.rot90(images[aside], 1, (1, 2))
            each[client] = images, y[own]
    train, validation, test = held
    chosen_by = Population.from_arrays(train, validation).test_examples
    return dataclasses.replace(Population.from_arrays(train, test), validation_examples=chosen_by)


@pytest.mark.slow
def test_fedem_serves_clients_that_are_mixtures_of_two_rotations_better_than_ifca(digits, tmp_path):
    """Each with the learning rate that is best on validation examples; no test example has a say in it."""
    population, found = two_turns(digits, 0), {}
    model = build_mlp((8, 8, 1), 10, hidden=16, normalization=(0.3, 0.4), seed=0)
    for rate in (0.15, 0.3):
        local = LocalTraining(epochs=2, batch_size=20, learning_rate=rate)
        for method in (
            build_ifca(model, local, IFCAParameters(num_clusters=2), seed=0),
            build_fedem(model, local, FedEMParameters(num_clusters=2), seed=0),
        ):
            run = tffcl.train(
                method, population, rounds=40, clients_per_round=10, evaluate_every=40,
                out=tmp_path / f"{method.name}-{rate}", show_progress=False,
            )  # fmt: skip
            by, tested = (run.summary[each]["cluster"]["mean"] for each in ("validation", "accuracy"))
            found.setdefault(method.name, []).append((by, tested))
    assert max(found["fedem"])[1] > max(found["ifca"])[1] + 0.005, found
