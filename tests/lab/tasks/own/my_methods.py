"""Clusters by k-means of label histograms: a method of one's own in one file."""

import dataclasses

import numpy as np
from sklearn.cluster import KMeans

from tffcl.algorithms import ClusteredState, EngineMethod, build_clustered_training
from tffcl.parts import check_newcomers, extended, joined_order


@dataclasses.dataclass(frozen=True, eq=False)
class HistogramState(ClusteredState):
    """Adds the clients' shares of labels `[N, C]`, and the clusters' centres `[K, C]`."""

    shares: np.ndarray | None = None
    centres: np.ndarray | None = None


class Histograms(EngineMethod):
    """Clients with like labels train a model together."""

    state_class = HistogramState

    def __init__(self, engine, num_clusters: int, seed: int):
        super().__init__("histograms", engine)
        self.num_clusters, self.seed = num_clusters, seed

    def shares(self, population):
        labels = [population.train(client).y for client in population.client_ids]
        counts = np.stack([np.bincount(each, minlength=self.model.num_classes) for each in labels])
        return counts / counts.sum(axis=1, keepdims=True)

    def initialize(self, population):
        shares = self.shares(population)
        found = KMeans(self.num_clusters, n_init=10, random_state=self.seed).fit(shares)
        start = self.engine.start(population, found.labels_.astype(np.int32))
        return HistogramState(**start, shares=shares, centres=found.cluster_centers_)

    def admit(self, state, newcomers):
        check_newcomers(state, newcomers)
        shares, order = self.shares(newcomers), joined_order(state, newcomers)
        nearest = ((shares[:, None] - state.centres[None]) ** 2).sum(axis=2).argmin(axis=1)
        together = np.concatenate([state.shares, shares])[order]
        return dataclasses.replace(state, shares=together, **extended(state, newcomers, nearest))


def build_mine(model, training, *, num_clusters: int = 4, seed: int = 0):
    """Builds the method.

    Args:
      num_clusters: How many clusters.
    """
    return Histograms(build_clustered_training(model, training), num_clusters, seed)
