"""Clusters that are formed anew: their numbers, and the models that they start from."""

import numpy as np
import pytest

from tffcl.clustering.reclustering import Triggers, mean_of_members, renumbered


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


@pytest.mark.parametrize(
    "trigger, due, not_yet",
    [
        (Triggers(flags=1), {"standing": 2}, {"standing": 1}),  # more than one
        (Triggers(share=0.5), {"standing": 2, "clients": 4}, {"standing": 2, "clients": 5}),  # a half or more
        (Triggers(share=1e-9), {"standing": 1, "clients": 4}, {"standing": 0}),  # of nobody nobody is no share
        (Triggers(period=3), {"round_number": 6, "formed_in": 5}, {"round_number": 5, "formed_in": 3}),
        (Triggers(period=3), {"round_number": 7, "formed_in": 5}, {"round_number": 8, "formed_in": 7}),
        (Triggers(flags=0, period=3), {"standing": 1}, {"round_number": 2}),
    ],
)
def test_clusters_are_formed_anew_when_one_of_the_triggers_says_so(trigger, due, not_yet):
    nothing = {"standing": 0, "round_number": 1, "formed_in": 0}
    assert trigger and trigger.due(**{**nothing, **due}) and not trigger.due(**{**nothing, **not_yet})
    assert not Triggers() and not Triggers().due(9, 9, 0, 9)
