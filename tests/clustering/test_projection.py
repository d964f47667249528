"""Clients as points in the plane."""

import numpy as np
import pytest

from tffcl.clustering.projection import project, project_directions
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


@pytest.mark.parametrize(
    "vectors", [np.ones((4, 8)), np.ones((5, 8)) * [[1], [2], [3], [4], [9]], np.zeros((12, 8)), np.ones((40, 1))]
)
def test_clients_of_one_direction_are_at_one_point(vectors):
    """t-SNE would divide by their deviation, and end the process."""
    np.testing.assert_array_equal(project_directions(vectors, seed=0), np.zeros((len(vectors), 2)))


@pytest.mark.parametrize("dimensions", [1, 2, 60])
def test_directions_of_any_number_of_dimensions_are_laid_out(dimensions):
    vectors = np.where(np.arange(12) % 2, 1.0, -1.0)[:, None] * np.eye(1, dimensions)
    points = project_directions(vectors + 1e-3 * np.random.default_rng(0).standard_normal(vectors.shape), seed=0)
    assert points.shape == (12, 2) and np.isfinite(points).all()
