"""Directories of runs with genuine numbers: a small clustering of the digits that scikit-learn carries.

A client's signature is the span of its leading singular vectors and a model is the set of its class means, so that
proximities, merges, clusters and accuracies are all computed, and fast.
"""

import csv
import dataclasses
import functools
import json
import pathlib
import shutil

import numpy as np
import pytest
from scipy.cluster import hierarchy
from scipy.linalg import subspace_angles
from scipy.spatial.distance import squareform
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score

from tffcl.lab.reporting import batch_index, comparison_table

LABEL_GROUPS = ((0, 1, 2), (3, 4, 5), (6, 7, 8, 9))
CLIENTS_A_GROUP = 6
ROUNDS = 5
CONFIG = """\
task = {task}
algorithm = "{algorithm}"
seed = {seed}
description = "Digits, three groups of labels."
source = "made for the tests"

[dataset]
name = "digits"

[train]
rounds = 5
learning_rate = {learning_rate}

[versions]
numpy = "{numpy}"
"""


@dataclasses.dataclass
class Population:
    """Who holds what: for each client training and test examples; and the clustering of the clients."""

    truth: np.ndarray
    train: list
    test: list
    proximity: np.ndarray
    merges: np.ndarray
    threshold: float
    labels: np.ndarray


@functools.cache
def build_population(seed: int) -> Population:
    features, targets = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(targets))
    truth = np.repeat(np.arange(len(LABEL_GROUPS)), CLIENTS_A_GROUP)
    train, test = [], []
    for group, classes in enumerate(LABEL_GROUPS):
        own = shuffled[np.isin(targets[shuffled], classes)]
        for part in np.array_split(own, CLIENTS_A_GROUP):
            part = part[: len(part) - int(rng.integers(0, 30))]
            cut = int(0.7 * len(part))
            train.append((features[part[:cut]], targets[part[:cut]]))
            test.append((features[part[cut:]], targets[part[cut:]]))
        assert len(train) == CLIENTS_A_GROUP * (group + 1)
    proximity = subspace_distances([x for x, _ in train])
    merges = hierarchy.linkage(squareform(proximity, checks=False), "average")
    # Between the merge that leaves three clusters and the one that leaves two.
    threshold = float(merges[-3:-1, 2].mean())
    labels = hierarchy.fcluster(merges, threshold, "distance") - 1
    return Population(truth, train, test, proximity, merges, threshold, labels)


def subspace_distances(data: list) -> np.ndarray:
    bases = [np.linalg.svd(x.T, full_matrices=False)[0][:, :3] for x in data]
    angles = np.zeros((len(bases), len(bases)))
    for i, left in enumerate(bases):
        for j, right in enumerate(bases[:i]):
            angles[i, j] = angles[j, i] = np.degrees(subspace_angles(left, right)).sum()
    return angles


def class_means(data: list, share: float) -> np.ndarray:
    """The mean picture of each class over the first share of each client's examples; infinite for a class unseen."""
    parts = [(x[: max(2, int(share * len(x)))], y[: max(2, int(share * len(y)))]) for x, y in data]
    x, y = (np.concatenate(each) for each in zip(*parts, strict=True))
    return np.stack([x[y == k].mean(axis=0) if (y == k).any() else np.full(x.shape[1], 1e3) for k in range(10)])


def accuracy(means: np.ndarray, data: tuple) -> float:
    x, y = data
    return float((((x[:, None] - means) ** 2).sum(axis=2).argmin(axis=1) == y).mean())


def client_accuracies(people: Population, labels: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray, float]:
    """The cluster and the local accuracy of each client, and the global accuracy."""
    members = {k: [people.train[i] for i in np.flatnonzero(labels == k)] for k in np.unique(labels)}
    models = {k: class_means(own, share) for k, own in members.items()}
    cluster = [accuracy(models[k], test) for k, test in zip(labels, people.test, strict=True)]
    local = [accuracy(class_means([train], share), test) for train, test in zip(people.train, people.test, strict=True)]
    union = tuple(np.concatenate(each) for each in zip(*people.test, strict=True))
    return np.array(cluster), np.array(local), accuracy(class_means(people.train, share), union)


def spread(values: np.ndarray) -> dict:
    worst = np.sort(values)[: max(1, round(len(values) / 10))].mean()
    return {"mean": values.mean(), "std": values.std(), "variance": values.var(), "worst_decile": worst}


def write_csv(path: pathlib.Path, names: list, rows: list) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows([["" if cell is None else cell for cell in row] for row in rows])


def write_run(path: pathlib.Path, algorithm: str = "pacfl", seed: int = 0, task: str = "digits") -> dict:
    """Writes a run as the program does, and returns its summary.

    "fedavg" has one model for all and no clustering; all else is clustered, without a global model.
    """
    path.mkdir(parents=True)
    people = build_population(seed)
    one_model = algorithm == "fedavg"
    labels = np.zeros(len(people.truth), int) if one_model else people.labels
    cluster, local, union = client_accuracies(people, labels, 1.0)
    local[-2:] = np.nan  # two clients never trained
    config = CONFIG.format(
        task=json.dumps(task), algorithm=algorithm, seed=seed, numpy=np.__version__,
        learning_rate=0.1 if one_model else 0.05,
    )  # fmt: skip
    (path / "config.toml").write_text(config)
    write_rounds(path, people, labels, one_model)
    write_clients(path, people, labels, cluster, local)
    if not one_model:
        write_clustering(path, people)
    trained = local[~np.isnan(local)]
    summary = {
        "task": task, "algorithm": algorithm, "seed": seed, "rounds": ROUNDS,
        "accuracy": {
            "cluster": spread(cluster),
            "local": {**spread(trained), "share": len(trained) / len(local)},
            "global": {"mean": union if one_model else None, "std": None, "variance": None, "worst_decile": None},
        },
        "clusters": {
            "count": len(np.unique(labels)), "sizes": np.unique(labels, return_counts=True)[1].tolist(),
            "ari": adjusted_rand_score(people.truth, labels),
        },
        "traffic": {"down_bytes": 4_321_000, "up_bytes": 4_000_000, "signature_bytes": None if one_model else 9_216},
        "seconds": {
            "total": 12.5 + seed, "clustering": None if one_model else 0.25, "training": 10.0, "evaluation": 2.0,
        },
    }  # fmt: skip
    (path / "summary.json").write_text(json.dumps(summary))
    return summary


def write_rounds(path: pathlib.Path, people: Population, labels: np.ndarray, one_model: bool) -> None:
    names = [
        "round", "seconds", "train_loss", "clusters", "ari", "cluster_accuracy", "local_accuracy", "local_share",
        "global_accuracy", "down_bytes", "up_bytes",
    ]  # fmt: skip
    rows = []
    for number in range(1, ROUNDS + 1):
        accuracies = [None] * 4
        if number % 2:  # evaluated every second round
            cluster, local, union = client_accuracies(people, labels, number / ROUNDS)
            accuracies = [cluster.mean(), local.mean(), min(1.0, 0.3 * number), union if one_model else None]
        ari = adjusted_rand_score(people.truth, labels)
        rows.append([number, 2.5, 2.3 / number, len(np.unique(labels)), ari, *accuracies, 864_200, 800_000])
    write_csv(path / "rounds.csv", names, rows)


def write_clients(path: pathlib.Path, people: Population, labels, cluster, local) -> None:
    names = ["client_id", "true_cluster", "cluster", "examples", "test_examples", "rounds_trained"]
    names += ["cluster_accuracy", "local_accuracy", *(f"label_{each}" for each in range(10))]
    rows = []
    for i, ((_, y), (_, test_y)) in enumerate(zip(people.train, people.test, strict=True)):
        trained = not np.isnan(local[i])
        row = [f"client-{i:02}", people.truth[i], labels[i], len(y), len(test_y), ROUNDS * trained, cluster[i]]
        rows.append([*row, local[i] if trained else None, *np.bincount(y, minlength=10)])
    write_csv(path / "clients.csv", names, rows)


def write_clustering(path: pathlib.Path, people: Population) -> None:
    np.savez(
        path / "clustering.npz",
        client_ids=np.array([f"client-{i:02}" for i in range(len(people.truth))]),
        proximity=people.proximity.astype(np.float32),
        unit="degrees",
        merges=people.merges,
        threshold=people.threshold,
        labels=people.labels,
        suggestion=f"{people.threshold:.0f} degrees lies in the widest gap between merges: it leaves 3 clusters.",
        measure="sum of principal angles",
        linkage="average",
    )


@pytest.fixture(scope="session")
def population():
    return build_population(0)


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    """A run of PACFL; only read by tests."""
    path = tmp_path_factory.mktemp("finished") / "out"
    write_run(path)
    return path


@pytest.fixture
def run_path(finished_run, tmp_path):
    """A run of PACFL; tests may damage it."""
    return shutil.copytree(finished_run, tmp_path / "out")


@pytest.fixture
def make_run():
    return write_run


@pytest.fixture(scope="session")
def comparison_path(tmp_path_factory):
    """Two methods over seeds 0 and 10; only read by tests."""
    path = tmp_path_factory.mktemp("comparison")
    for algorithm in ("fedavg", "pacfl"):
        for seed in (0, 10):
            write_run(path / algorithm / f"seed-{seed}", algorithm, seed)
    return path


@pytest.fixture(scope="session")
def rows(comparison_path):
    """The rows of their table."""
    return comparison_table.comparison_rows(batch_index.find_runs(comparison_path))
