#!/bin/sh
# A researcher adds a method in one file, compares it, and computes a cell of a paper's table.
set -eu

cat > mean_images.py <<'END'
"""Clients with like mean images train a model together."""
import numpy as np
from sklearn.cluster import AgglomerativeClustering

from tffcl.algorithms import EngineMethod, build_clustered_training


class MeanImages(EngineMethod):
    def __init__(self, engine, num_clusters):
        super().__init__("mean_images", engine)
        self.num_clusters = num_clusters

    def initialize(self, population):
        means = [population.train(client).x.mean(axis=0).ravel() for client in population.client_ids]
        labels = AgglomerativeClustering(self.num_clusters).fit_predict(np.stack(means))
        return self.state_class(**self.engine.start(population, labels.astype(np.int32)))


def build(model, training, *, num_clusters: int = 4):
    return MeanImages(build_clustered_training(model, training), num_clusters)
END
cat > mine.toml <<'END'
extends = "demo_digits"

[algorithms.mean_images]
builder = "mean_images:build"
num_clusters = 4
END

tffcl compare mine.toml --algorithms fedavg,pacfl,mean_images --rounds 3 --out compared
tffcl study pacfl_table_1 --only FMNIST/PACFL --rounds 0.01
