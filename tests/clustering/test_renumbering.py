"""Clusters that are formed anew: their numbers, and the models that they start from."""

import numpy as np

from tffcl.clustering.reclustering import mean_of_members, renumbered


def test_clusters_keep_the_number_that_most_members_had():
    before = np.array([2, 2, 0, 0, 1, 1])
    for labels, numbers, moved, from_where in (
        ([0, 0, 1, 1, 2, 2], [2, 2, 0, 0, 1, 1], [], [0, 1, 2]),
        ([0, 0, 1, 1, 2, 1], [2, 2, 0, 0, 1, 0], [5], [0, 1, 2]),
        # no gaps: cluster 2 is number 1 now, and nobody has left it
        ([0, 0, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0], [4, 5], [0, 2]),
    ):
        found, gone, origins = renumbered(np.array(labels), before)
        np.testing.assert_array_equal(origins, from_where)
        np.testing.assert_array_equal(found, numbers)
        np.testing.assert_array_equal(np.flatnonzero(gone), moved)
    split_up, gone, origins = renumbered(np.array([0, 3, 1, 1, 2, 2]), before)
    assert origins.tolist() == [0, 1, 2, -1]
    assert sorted(set(split_up.tolist())) == [0, 1, 2, 3] and split_up[2] == 0 and split_up[4] == 1
    assert gone.sum() == 1 and gone[:2].any()


def test_a_new_cluster_starts_from_its_members_models():
    models = np.array([[1.0, 0], [0, 2], [5, 5]], np.float32)
    start = mean_of_members(models, np.array([0, 1, 2, 1]), np.array([0, 0, 1, 1]), np.array([3, 1, 4, 4]))
    np.testing.assert_allclose(start, [[0.75, 0.5], [2.5, 3.5]])
