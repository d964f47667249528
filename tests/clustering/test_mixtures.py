"""Mixtures of Gaussians on a vector of each client."""

import numpy as np
import pytest

from tffcl.clustering.groupings import Mixture, fit_mixture, largest_overlap


def _points(dimensions, scale):
    """Twelve points about each of three centres, 4 apart, of deviation 0.3."""
    rng = np.random.default_rng(1)
    centres = 4 * np.eye(3, dimensions)
    return scale * (np.repeat(centres, 12, axis=0) + 0.3 / np.sqrt(dimensions) * rng.normal(size=(36, dimensions)))


@pytest.mark.parametrize("dimensions, scale", [(3, 1.0), (5_000, 1e-4)])
def test_a_mixture_finds_groups_and_their_variance_in_any_unit(dimensions, scale):
    found = fit_mixture(_points(dimensions, scale), 3)
    assert len({tuple(found.labels[start : start + 12]) for start in (0, 12, 24)}) == 3
    assert all(len(set(found.labels[start : start + 12])) == 1 for start in (0, 12, 24))
    np.testing.assert_allclose(found.probabilities.sum(axis=1), 1, rtol=1e-6)
    assert (found.probabilities.max(axis=1) > 0.99).all()


def test_points_that_do_not_differ_are_one_component():
    found = fit_mixture(np.ones([5, 4]), 3)
    assert found.labels.tolist() == [0] * 5 and found.probabilities.shape == (5, 1)
    two = fit_mixture(np.repeat([[0.0, 0.0], [3.0, 1.0]], 3, axis=0), 4)
    assert two.labels[0] != two.labels[3] and two.probabilities.shape == (6, 2)


def test_the_largest_overlap_is_that_of_the_two_nearest_components():
    points = np.array([[0.0, 0], [0, 0], [4, 0], [4, 0], [4, 9], [4, 9]])
    mixture = Mixture(np.repeat([0, 1, 2], 2), np.repeat(np.eye(3), 2, axis=0), np.array([1.0, 4.0, 0.25]))
    np.testing.assert_allclose(largest_overlap(points, mixture), 0.3173105, rtol=1e-6)  # beyond one deviation of 2
    one = fit_mixture(points, 1)
    assert largest_overlap(points, one) == 0


def test_the_unit_of_the_points_is_that_of_the_variances():
    """And changes no overlap."""
    points = np.random.default_rng(0).normal(size=(30, 4)) + 2 * np.repeat([[0], [1]], 15, axis=0)
    small, large = (fit_mixture(unit * points, 2) for unit in (1, 10))
    np.testing.assert_allclose(large.variances, 100 * small.variances, rtol=1e-3)
    np.testing.assert_allclose(small.variances, 1, atol=0.4)
    np.testing.assert_allclose(fit_mixture(points[:15], 1).variances, 1, atol=0.4)
    overlap = largest_overlap(points, small)
    assert 1e-4 < overlap == pytest.approx(largest_overlap(10 * points, large), rel=1e-3)
