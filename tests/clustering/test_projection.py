"""Clients as points in the plane."""

import numpy as np
import pytest

from tffcl.clustering import projection, taskonomy
from tffcl.clustering.projection import new_reducer, project, project_directions
from tffcl.errors import UserError


def two_groups(count):
    groups = np.arange(count) % 2
    rng = np.random.default_rng(0)
    noise = rng.uniform(0, 5, (count, count))
    distances = np.where(groups[:, None] == groups, 10.0, 80.0) + noise + noise.T
    np.fill_diagonal(distances, 0)
    return groups, distances


@pytest.mark.slow
def test_what_is_near_stays_near_and_the_seed_decides():
    groups, distances = two_groups(40)
    points = project(distances, seed=0)
    assert points.shape == (40, 2) and points.dtype == np.float32
    gaps = np.linalg.norm(points[:, None] - points, axis=-1) + 1e9 * np.eye(40)
    np.testing.assert_array_equal(groups[gaps.argmin(axis=1)], groups)
    np.testing.assert_array_equal(points, project(distances, seed=0))
    assert not np.array_equal(points, project(distances, seed=1))


@pytest.mark.slow
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


@pytest.mark.parametrize("shape, kept, perplexity", [((12, 60), 12, 11 / 3), ((120, 80), 50, 30), ((200, 3), 3, 30)])
def test_directions_are_laid_out_of_their_principal_components(monkeypatch, shape, kept, perplexity):
    asked = []

    class Layout:
        def __init__(self, **how):
            asked.append(how)

        def fit_transform(self, reduced):
            asked.append(reduced)
            return reduced[:, :2]

    monkeypatch.setattr(projection, "TSNE", Layout)
    project_directions(np.random.default_rng(0).normal(size=shape), seed=7)
    how, reduced = asked
    assert (how["random_state"], how["init"], how["n_jobs"]) == (7, "pca", 1)
    assert how["perplexity"] == pytest.approx(perplexity) and reduced.shape == (shape[0], kept)


def test_a_reducer_has_as_many_neighbours_as_there_are_and_a_start_that_so_few_points_have():
    reducer = new_reducer(30, 5, num_components=3, num_neighbors=40, min_dist=0.3)
    assert (reducer.n_neighbors, reducer.n_components, reducer.random_state) == (29, 3, 5)
    assert (reducer.n_jobs, reducer.min_dist, reducer.init) == (1, 0.3, "spectral")
    plain = new_reducer(30, 0)
    assert (plain.n_neighbors, plain.n_components) == (15, 2)
    for count, components, start in ((7, 2, "random"), (8, 2, "spectral"), (10, 9, "random"), (10, 8, "spectral")):
        assert new_reducer(count, 0, num_components=components).init == start


def test_how_a_map_is_laid_out_reaches_its_reducer(monkeypatch):
    def asked(*given, **how):
        raise RuntimeError(given, how)

    for module in (projection, taskonomy):
        monkeypatch.setattr(module, "new_reducer", asked)
    with pytest.raises(RuntimeError) as told:
        project(two_groups(20)[1], seed=7)
    assert told.value.args == ((20, 7), {"metric": "precomputed"})
    with pytest.raises(RuntimeError) as told:
        made = np.arange(20.0).reshape(10, 1, 2)
        taskonomy.fit_map(made, np.ones((10, 1), bool), seed=7, num_components=3, num_neighbors=6, min_dist=0.4)
    options = {"num_components": 3, "num_neighbors": 6, "min_dist": 0.4, "transform_seed": 7}
    assert told.value.args == ((10, 7), options)
