"""Whether groups are found where there are some, and none where there are none: by self-distances, the largest gap, the
true number.

    uv run python tests/benchmarks/self_distance.py [--only iid,groups,none] [--seeds 20] [--data-dir DIR]

Every setting's clients sign all of their examples and two halves, and the tree of average linkage is cut in the three
ways. Printed is a Markdown table: of so many seeds, how often self-distances say that nothing differs, groups, or
differences without groups; the mean number of clusters, and the mean adjusted Rand index against the true groups.
Signatures are computed by NumPy,
which takes minutes for all of it: PACFL's vectors as `signatures.subspace` gives them, labels' shares, and gradients at
a fixed linear model; distances and cuts are the library's.
"""

import argparse
import collections
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from sklearn.metrics import adjusted_rand_score

from tffcl.choices import GAP
from tffcl.clustering import self_distance
from tffcl.clustering.hierarchical import group
from tffcl.clustering.self_distance import Halves, able, judge
from tffcl.clustering.vector_distances import subspace_angles, vector_distances
from tffcl.lab.datasets.federated import load_federated
from tffcl.lab.tasks.populations import build_population

VECTORS = 3


def subspace(x, y, classes):
    """The first left singular vectors of the examples, as columns of `basis`."""
    rows = x.reshape(len(x), -1) / 255.0
    values, right = np.linalg.eigh(rows @ rows.T if len(rows) < rows.shape[1] else rows.T @ rows)
    vectors = right[:, ::-1][:, :VECTORS]
    vectors = rows.T @ vectors if len(rows) < rows.shape[1] else vectors
    return {"basis": vectors / np.linalg.norm(vectors, axis=0), "mask": np.ones(VECTORS, bool)}


def labels(x, y, classes):
    return {"value": np.bincount(y, minlength=classes) / len(y)}


def gradient(x, y, classes):
    """Of the mean cross-entropy of a linear model with small random weights."""
    rows = np.c_[x.reshape(len(x), -1) / 255.0, np.ones(len(x))]
    outputs = rows @ (np.random.default_rng(5).normal(size=(rows.shape[1], classes)) / 20)
    answers = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    answers /= answers.sum(axis=1, keepdims=True)
    return {"value": rows.T @ (answers - np.eye(classes)[y]) / len(y)}


SIGNATURES = {
    "angles": (subspace, subspace_angles, "smallest_angle"),
    "angle sums": (subspace, subspace_angles, "angle_sum"),
    "labels": (labels, vector_distances, "euclidean"),
    "gradients": (gradient, vector_distances, "cosine"),
}


def data(source: str, clients: int, each: int, **partition):
    """A setting: name of the data set, clients, training examples of each, and the partition."""
    dataset = {"name": source} if source == "digits" else {"name": source, "subset": clients * each, "test_subset": 500}
    return f"{source}, {clients} clients of {each}", dataset, {"clients": clients, **partition}


IID = [
    *(
        data(source, clients, each, name="iid")
        for source in ("fashion_mnist", "mnist")
        for clients, each in [(40, 30), (30, 83), (30, 166), (30, 300), (20, 1500)]
    ),
    data("digits", 40, 35, name="iid"),
]
SHIFTS = [
    ("shift_features", 3),
    ("shift_labels", 4),
    ("shift_labels", 5),
    ("shift_class_features", 4),
    ("shift_class_features", 6),
]
GROUPS = [
    *(data("fashion_mnist", 30, each, name=name, level=level) for name, level in SHIFTS for each in (83, 166, 600)),
    data("mnist", 40, 166, name="rotated", rotations=4, reuse=False),
    data("digits", 40, 35, name="rotated", rotations=4, reuse=False),
]
NONE = [
    *(
        data("fashion_mnist", clients, each, name="dirichlet", alpha=alpha)
        for alpha in (0.1, 1.0)
        for clients, each in [(100, 120), (40, 300)]
    ),
    *(
        data("fashion_mnist", clients, each, name="label_skew", classes_per_client=2)
        for clients, each in [(100, 120), (40, 300)]
    ),
    ("LEAF FEMNIST, 60 writers", {"name": "femnist"}, {"name": "by_owner", "clients": 60}),
]


def signed(clients, sign, classes) -> dict:
    found = [sign(x, y, classes) for x, y in clients]
    return {name: np.array([each[name] for each in found]) for name in found[0]}


def measured(dataset, partition, seed: int, data_dir) -> dict:
    """By signature: the verdict, and of the cuts the clusters and their Rand indices."""
    federated = load_federated(dataset, partition, seed=seed, data_dir=data_dir)
    population, rng = build_population(federated), np.random.default_rng(seed)
    whole = [tuple(population.train(client).stacked.values()) for client in population.client_ids]
    sizes = np.array([len(y) for _, y in whole])
    rows = able(sizes, VECTORS)
    orders = [rng.permutation(sizes[client]) for client in rows]
    parts = [
        [(whole[client][0][own], whole[client][1][own]) for client, own in zip(rows, halves, strict=True)]
        for halves in ([each[: len(each) // 2] for each in orders], [each[-(len(each) // 2) :] for each in orders])
    ]
    truth, found = federated.true_groups, {}
    for name, (sign, distances, metric) in SIGNATURES.items():
        everything, first, second = (signed(clients, sign, federated.num_classes) for clients in (whole, *parts))
        apart = distances(metric, everything, None)
        halves = Halves(
            distances(metric, first, None), distances(metric, second, None), distances(metric, first, second)
        )
        verdict = judge(apart, halves, sizes, least=VECTORS, linkage="average")
        cuts = [verdict.labels, group(apart, "average", GAP, None)[0]]
        cuts += [] if truth is None else [group(apart, "average", None, len(np.unique(truth)))[0]]
        indices = [None if truth is None else adjusted_rand_score(truth, cut) for cut in cuts]
        found[name] = verdict.kind, [int(cut.max()) + 1 for cut in cuts], indices
    return found


def row(title: str, name: str, found: list, several: bool) -> str:
    verdicts = collections.Counter(each[0] for each in found)
    said = [verdicts[kind] for kind in (self_distance.ALIKE, self_distance.GROUPS, self_distance.DIFFER)]
    numbers = [f"{np.mean([each[1][way] for each in found]):.1f}" for way in (0, 1)]
    indices = [f"{np.mean([each[2][way] for each in found]):.2f}" if several else "" for way in range(3)]
    return "| " + " | ".join([title, name, *map(str, said), *numbers, *indices]) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="iid,groups,none")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--data-dir", default=os.environ.get("TFFCL_DATA_DIR"))
    options = parser.parse_args()
    heads = (
        "setting | signature | nothing differs | groups | differ | clusters, self | gap | ARI, self | gap | true number"
    )
    print(f"| {heads} |\n|{'---|' * 10}", flush=True)
    for kind, settings in (("iid", IID), ("groups", GROUPS), ("none", NONE)):
        for title, dataset, partition in settings if kind in options.only.split(",") else ():
            seeds = [measured(dataset, partition, seed, options.data_dir) for seed in range(options.seeds)]
            level = f", {partition['name']}" + (
                f" {partition['level']}" if "level" in partition else f" {partition.get('alpha', '')}"
            )
            for name in SIGNATURES:
                print(row(title + level.rstrip(), name, [each[name] for each in seeds], kind == "groups"), flush=True)


if __name__ == "__main__":
    main()
