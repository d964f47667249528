"""CLoVE's groups: k-means on losses, and the matching of clusters to models against all permutations."""

import itertools

import numpy as np
import pytest

from tffcl.clustering.groupings import group_by_losses


def test_clusters_take_the_models_of_least_total_loss():
    """Group 1 is best under model 2, group 0 is nearly as good under it, and so has to give way."""
    losses = np.array(
        [[1.0, 3.0, 0.9], [1.1, 3.1, 1.0], [2.0, 3.0, 0.1], [2.1, 3.0, 0.2], [4.0, 0.5, 4.0], [4.1, 0.4, 4.2]]
    )
    assert group_by_losses(losses).tolist() == [0, 0, 2, 2, 1, 1]


def test_a_group_of_many_clients_weighs_more_in_the_matching_than_one_client():
    """Both are best under model 1: the one gives way, which would lose 1.0 by it, and not the three, who would lose 0.5
    each."""
    assert group_by_losses(np.array([[1.0, 0.0], [0.9, 0.4], [0.9, 0.4], [0.9, 0.4]])).tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize("square_root", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_no_other_matching_of_the_same_groups_has_less_loss(seed, square_root):
    rng = np.random.default_rng(seed)
    losses = rng.uniform(0.1, 5, [12, 4])
    found = group_by_losses(losses, square_root=square_root, seed=seed)
    points = np.sqrt(losses) if square_root else losses
    total = points[np.arange(12), found].sum()
    others = [points[np.arange(12), np.array(order)[found]].sum() for order in itertools.permutations(range(4))]
    assert total == pytest.approx(min(others))


def test_clients_of_equal_losses_are_in_one_group():
    assert len(set(group_by_losses(np.tile([0.5, 0.2, 0.9], [6, 1])).tolist())) == 1
    assert group_by_losses(np.tile([0.5, 0.2, 0.9], [6, 1])).tolist() == [1] * 6


def test_fewer_clients_than_models_take_the_best_of_them():
    losses = np.array([[1.0, 3.0, 0.9, 4.0], [1.1, 3.1, 0.2, 0.1]])
    assert group_by_losses(losses[:1]).tolist() == [2]
    assert group_by_losses(losses).tolist() == [2, 3]  # 0.9 + 0.1 is less than 1.0 + 0.2


def test_roots_give_large_losses_less_weight():
    losses = np.array([[0.01, 10.0], [0.0, 8.0], [0.5, 10.0], [0.6, 8.2]])
    pairs = [group_by_losses(losses, square_root=each) for each in (False, True)]
    assert pairs[0][0] != pairs[0][1]  # by the second column
    assert pairs[1][0] == pairs[1][1] != pairs[1][2] == pairs[1][3]  # by the first


def test_a_loss_that_is_not_finite_is_the_worst():
    losses = np.array([[0.1, 2.0], [0.2, np.nan], [2.0, 0.1], [np.inf, 0.3]])
    assert group_by_losses(losses).tolist() == [0, 0, 1, 1]
    assert group_by_losses(np.full((3, 2), np.inf)).tolist() == [0, 0, 0]
    assert group_by_losses(np.array([[4.0, 4.0], [4.0, np.nan]])).tolist() == [1, 0]  # worse than the worst that is
    assert group_by_losses(losses, square_root=True).tolist() == [0, 0, 1, 1]
