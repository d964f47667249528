"""Which clusters FLT finds, by the centres that a client sends, the distance of two clients, and the encoder.

    uv run python tests/benchmarks/flt_clusters.py [TASK] [--encoder E] [--encoder-epochs 25] [--examples N]
        [--fine-tune-epochs 5] [--seeds 0,1,2] [--data-dir DIR] [--keep CODES.npz]

The clients' images are encoded once, which is what takes long, and the rest of FLT's Alg. 2 follows for every variant:
k-means on the client, UMAP, distances, γ by the largest gap, clusters. Printed is the adjusted Rand index against the
true groups for each seed of k-means and map; the best fitting number of clusters, and the true number asked for.
Nothing is trained.
"""

import argparse
import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # k-means of few points: threads would wait for each other

import numpy as np
import tensorflow as tf
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score
from tqdm import tqdm

from tffcl.client_work.autoencoding import build_encode, build_fine_tune
from tffcl.clustering.relatedness_graph import GAP, ClientRelatedness
from tffcl.lab.tasks import build, resolve
from tffcl.lab.tasks.encoders import find_encoder

RATE = 0.01  # of SGD, the paper's
CENTRES = (1, 2, 3, 5, 10)
THRESHOLDS = (GAP, 1.0)


def codes_of(task: str, options) -> tuple[list[np.ndarray], np.ndarray]:
    """Each client's codes `float32 [n, e]`, and the true groups."""
    federated = build.load_data(resolve.resolve(task, "flt"), options.data_dir)
    autoencoder, vector = find_encoder(
        options.encoder, federated.train.x.shape[1:], epochs=options.encoder_epochs, examples=options.examples,
        data_dir=options.data_dir,
    )  # fmt: skip
    encode = build_encode(autoencoder)
    fine_tune = build_fine_tune(autoencoder, options.fine_tune_epochs, 10, RATE, "sgd")
    codes = []
    for client, own in enumerate(tqdm(federated.train_indices, "clients encode")):
        images = tf.constant(federated.train.x[own])
        tuned = fine_tune(vector, images, tf.constant([0, client])) if options.fine_tune_epochs else vector
        codes.append(encode(tuned, images).numpy())
    return codes, np.asarray(federated.true_groups)


def kept_codes(options) -> tuple[list[np.ndarray], np.ndarray]:
    """The same, from the file of an earlier call if there is one."""
    if options.keep and options.keep.exists():
        with np.load(options.keep) as file:
            return [file[f"client {client}"] for client in range(len(file["groups"]))], file["groups"]
    codes, groups = codes_of(options.task, options)
    if options.keep:
        np.savez(options.keep, groups=groups, **{f"client {client}": own for client, own in enumerate(codes)})
    return codes, groups


def centres_of(codes: list[np.ndarray], count: int, seed: int) -> np.ndarray:
    """k-means of each client's codes, `float32 [N, k, e]`."""
    return np.stack([KMeans(count, n_init=10, random_state=seed).fit(own).cluster_centers_ for own in codes]).astype(
        np.float32
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", nargs="?", default="flt_cifar10_scenario_1")
    parser.add_argument("--encoder", default="flt_cifar10_enc2")
    parser.add_argument("--encoder-epochs", type=int, default=25)
    parser.add_argument("--examples", type=int)
    parser.add_argument("--fine-tune-epochs", type=int, default=5)
    parser.add_argument("--seeds", type=lambda text: [int(each) for each in text.split(",")], default=[0, 1, 2])
    parser.add_argument("--data-dir", default=os.environ.get("TFFCL_DATA_DIR"))
    parser.add_argument("--keep", type=pathlib.Path, help="a file for the codes")
    options = parser.parse_args()
    codes, groups = kept_codes(options)
    asked = len(np.unique(groups))
    print(
        f"| centres | distance | γ | adjusted Rand index (clusters) | {asked} clusters asked for "
        "|\n|---|---|---|---|---|"
    )
    layout = {"num_components": 2, "num_neighbors": 15, "min_dist": 0.1}
    for count in CENTRES:
        sent = [centres_of(codes, count, seed) for seed in options.seeds]
        for metric in ("closest_pair", "matching"):
            for threshold in THRESHOLDS:
                cells = []
                for number in (None, asked):
                    found = [
                        ClientRelatedness(metric, threshold, number, layout, seed).form(
                            centres, np.ones(centres.shape[:2], bool)
                        )[0]
                        for seed, centres in zip(options.seeds, sent)
                    ]
                    cells.append(
                        ", ".join(f"{adjusted_rand_score(groups, each):.2f} ({each.max() + 1})" for each in found)
                    )
                print(f"| {count} | {metric} | {threshold} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
