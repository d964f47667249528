"""WPGMA by the definition: a merged cluster's distances are the plain mean of its two parts' distances."""

import numpy as np


def wpgma(proximity, threshold):
    """Merges the nearest two clusters while they are within the threshold.

    Returns:
      The heights of the merges made, and the clusters as a set of frozensets of members.
    """
    table = np.array(proximity, np.float64)
    clusters = [frozenset([i]) for i in range(len(table))]
    heights = []
    while len(clusters) > 1:
        pairs = [(table[i, j], i, j) for i in range(len(clusters)) for j in range(i + 1, len(clusters))]
        height, i, j = min(pairs)
        if height > threshold:
            break
        heights.append(height)
        merged = (table[i] + table[j]) / 2
        table[i], table[:, i] = merged, merged
        table[i, i] = 0.0
        table = np.delete(np.delete(table, j, axis=0), j, axis=1)
        clusters[i] = clusters[i] | clusters[j]
        del clusters[j]
    return np.array(heights), set(clusters)
