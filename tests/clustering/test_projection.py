"""Clients as points in the plane."""

import numpy as np
import pytest

from tffcl.clustering.projection import project
from tffcl.errors import UserError


def two_groups(count):
    groups = np.arange(count) % 2
    rng = np.random.default_rng(0)
    noise = rng.uniform(0, 5, (count, count))
    distances = np.where(groups[:, None] == groups, 10.0, 80.0) + noise + noise.T
    np.fill_diagonal(distances, 0)
    return groups, distances


def test_what_is_near_stays_near_and_the_seed_decides():
    groups, distances = two_groups(40)
    points = project(distances, seed=0, neighbors=8)
    assert points.shape == (40, 2) and points.dtype == np.float32
    gaps = np.linalg.norm(points[:, None] - points, axis=-1) + 1e9 * np.eye(40)
    np.testing.assert_array_equal(groups[gaps.argmin(axis=1)], groups)
    np.testing.assert_array_equal(points, project(distances, seed=0, neighbors=8))
    assert not np.array_equal(points, project(distances, seed=1, neighbors=8))


def test_few_clients():
    assert np.isfinite(project(two_groups(4)[1], seed=0)).all()
    with pytest.raises(UserError, match="a map of clients needs at least 4 of them; there are 3"):
        project(two_groups(3)[1], seed=0)


def test_no_distances():
    with pytest.raises(UserError, match="must be a square matrix"):
        project(np.zeros((5, 3)), seed=0)
