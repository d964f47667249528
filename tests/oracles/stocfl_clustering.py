"""StoCFL's Alg. 1 lines 3 to 17 as printed: dictionaries of clusters, every pair in every round."""

import itertools

import numpy as np

from tests.oracles.cfl import cosine


class Server:
    """Clusters are lists of client numbers; only those of known clients are compared."""

    def __init__(self, clients, signatures, threshold):
        self.clusters = [[client] for client in range(clients)]
        self.signatures = np.asarray(signatures, float)
        self.known, self.threshold = set(), threshold

    def round(self, cohort):
        self.known |= set(cohort)
        present = [cluster for cluster in self.clusters if set(cluster) <= self.known]
        means = [self.signatures[cluster].mean(axis=0) for cluster in present]
        joined = [{place} for place in range(len(present))]
        for i, j in itertools.combinations(range(len(present)), 2):
            if cosine(means[i], means[j]) > self.threshold:
                one = next(group for group in joined if i in group)
                other = next(group for group in joined if j in group)
                if one is not other:
                    one |= other
                    joined.remove(other)
        unknown = [cluster for cluster in self.clusters if not set(cluster) <= self.known]
        self.clusters = unknown + [sorted(sum((present[place] for place in group), [])) for group in joined]

    def means(self):
        return [self.signatures[cluster].mean(axis=0) for cluster in self.clusters if set(cluster) <= self.known]

    def objective(self):
        return sum(cosine(one, other) for one, other in itertools.combinations(self.means(), 2))


def greedy(signatures, threshold):
    """The most similar pair first, one merge at a time, means computed anew."""
    clusters = [[client] for client in range(len(signatures))]
    while len(clusters) > 1:
        means = [np.asarray(signatures, float)[cluster].mean(axis=0) for cluster in clusters]
        best = max(
            itertools.combinations(range(len(clusters)), 2), key=lambda pair: cosine(means[pair[0]], means[pair[1]])
        )
        if cosine(means[best[0]], means[best[1]]) <= threshold:
            break
        clusters[best[0]] += clusters.pop(best[1])
    return sorted(sorted(cluster) for cluster in clusters)
