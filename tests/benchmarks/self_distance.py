"""Whether groups are found where there are some, and none where there are none: by self-distances, the largest gap, the true number.

    uv run python tests/benchmarks/self_distance.py [--only iid,groups,none] [--seeds 20] [--signatures angles,...] [--data-dir DIR]

Every setting's clients sign once, with halves, and the tree of average linkage is cut in the three ways. Printed is a Markdown table:
how often self-distances say that nothing differs, groups, or differences without groups; the adjusted Rand index against the true
groups, and the mean number of clusters. Nothing is trained but for signatures of weights.
"""

import argparse
import collections
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from sklearn.metrics import adjusted_rand_score

import tffcl
from tffcl import runtime
from tffcl.algorithms.composed import ComposedParameters, build_clustering
from tffcl.algorithms.one_shot import Signed
from tffcl.clustering.hierarchical import GAP, group
from tffcl.clustering.self_distance import SELF
from tffcl.datasets.federated import load_federated
from tffcl.experiments.populations import build_population
from tffcl.models.mlp import build_mlp

SIGNATURES = {
    "angles": {"signature": "subspace"},
    "angle sums": {"signature": "subspace", "metric": "angle_sum"},
    "labels": {"signature": "label_histogram"},
    "gradients": {"signature": "anchor_gradient"},
    "weights": {"signature": "partial_weights"},
}
TRAINING = tffcl.LocalTraining(epochs=2, batch_size=20, learning_rate=0.05)


def data(source: str, clients: int, each: int, **partition):
    """A setting: name of the data set, clients, training examples of each, and the partition."""
    dataset = {"name": source} if source == "digits" else {"name": source, "subset": clients * each, "test_subset": 500}
    return f"{source}, {clients} clients of {each}", dataset, {"clients": clients, **partition}


IID = [
    *(data(source, clients, each, name="iid") for source in ("fashion_mnist", "mnist") for clients, each in [(40, 30), (30, 83), (30, 166), (30, 300), (20, 1500)]),
    data("digits", 40, 35, name="iid"),
]  # fmt: skip
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
    *(data("fashion_mnist", clients, each, name="dirichlet", alpha=alpha) for alpha in (0.1, 1.0) for clients, each in [(100, 120), (40, 300)]),
    *(data("fashion_mnist", clients, each, name="label_skew", classes_per_client=2) for clients, each in [(100, 120), (40, 300)]),
    ("LEAF FEMNIST, 60 writers", {"name": "femnist"}, {"name": "by_owner", "clients": 60}),
]  # fmt: skip


def measured(dataset, partition, seed: int, signatures, data_dir) -> dict:
    """By signature: the verdict's first words, and of the three cuts the clusters and their Rand index."""
    federated = load_federated(dataset, partition, seed=seed, data_dir=data_dir)
    population = build_population(federated)
    model = build_mlp(federated.train.x.shape[1:], federated.num_classes, hidden=50, seed=seed)
    truth, found = federated.true_groups, {}
    for name in signatures:
        how = build_clustering(model, TRAINING, ComposedParameters(**SIGNATURES[name], threshold=SELF), seed=seed)
        signed = how.build_signing()(population)
        by_itself = how.form(signed)
        apart = how.distances(Signed(signed.whole).whole, None)
        number = None if truth is None else len(np.unique(truth))
        cuts = [by_itself.labels, group(apart, "average", GAP, None, unit="")[0]]
        cuts += [] if number is None else [group(apart, "average", None, number, unit="")[0]]
        indices = [None if truth is None else adjusted_rand_score(truth, cut) for cut in cuts]
        found[name] = by_itself.notes[0].split(":")[0], [int(cut.max()) + 1 for cut in cuts], indices
    return found


def row(title: str, name: str, found: list, several: bool) -> str:
    verdicts = collections.Counter(
        "groups" if each[0].endswith("groups") and each[0][0].isdigit() else each[0] for each in found
    )
    said = [verdicts["nothing differs"], verdicts["groups"], verdicts["clients differ, but not in groups"]]
    numbers = [f"{np.mean([each[1][way] for each in found]):.1f}" for way in (0, 1)]
    indices = [f"{np.mean([each[2][way] for each in found]):.2f}" if several else "" for way in range(3)]
    return "| " + " | ".join([title, name, *map(str, said), *numbers, *indices]) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="iid,groups,none")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--signatures", default=",".join(SIGNATURES))
    parser.add_argument("--data-dir", default=os.environ.get("TFFCL_DATA_DIR"))
    options = parser.parse_args()
    runtime.use_local_worker()
    signatures = options.signatures.split(",")
    heads = "setting | signature | nothing differs | groups | differ | clusters, self | gap | ARI, self | gap | true number"
    print(f"| {heads} |\n|{'---|' * 10}", flush=True)
    for kind, settings in (("iid", IID), ("groups", GROUPS), ("none", NONE)):
        for title, dataset, partition in settings if kind in options.only.split(",") else ():
            seeds = [measured(dataset, partition, seed, signatures, options.data_dir) for seed in range(options.seeds)]
            level = f", {partition['name']}" + (
                f" {partition['level']}" if "level" in partition else f" {partition.get('alpha', '')}"
            )
            for name in signatures:
                print(row(title + level.rstrip(), name, [each[name] for each in seeds], kind == "groups"), flush=True)


if __name__ == "__main__":
    main()
