"""k-means on a client against scikit-learn, and what holds for any points."""

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sklearn.cluster import KMeans

from tffcl.client_work import kmeans
from tffcl.client_work.kmeans import build_kmeans
from tffcl.errors import UserError

FEW = build_kmeans(4, restarts=3)
SEED = np.array([3, 0], np.int32)


def run(kmeans, points, seed=SEED):
    found = {key: value.numpy() for key, value in kmeans(np.asarray(points, np.float32), seed).items()}
    assert (found["mask"] == (found["counts"] > 0)).all()
    np.testing.assert_array_equal(found["centres"][~found["mask"]], 0)
    return found


def squared(points, centres):
    return ((np.asarray(points, float)[:, None] - np.asarray(centres, float)) ** 2).sum(axis=2)


@pytest.mark.parametrize(
    "num_centres, rows",
    [
        (10, slice(100, 400)),
        pytest.param(2, slice(0, 1797), marks=pytest.mark.slow),
        pytest.param(10, slice(0, 1797), marks=pytest.mark.slow),
    ],
)
def test_inertia_is_scikit_learns(digits, num_centres, rows):
    points = digits[0][rows].reshape(-1, 64).astype(np.float32) / 255
    expected = KMeans(num_centres, n_init=10, random_state=0).fit(points)
    found = run(build_kmeans(num_centres), points)
    assert found["inertia"] <= 1.02 * expected.inertia_
    distances = squared(points, found["centres"])
    assert found["inertia"] == pytest.approx(distances.min(axis=1).sum(), rel=1e-5)
    nearest = distances.argmin(axis=1)
    np.testing.assert_array_equal(np.bincount(nearest, minlength=num_centres), found["counts"])
    means = [points[nearest == centre].mean(axis=0) for centre in range(num_centres)]
    np.testing.assert_allclose(found["centres"], means, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 2, 5])
def test_a_client_may_make_fewer_centres_than_a_message_holds(digits, limit):
    points = digits[0][100:400].reshape(-1, 64).astype(np.float32) / 255
    found = {key: value.numpy() for key, value in build_kmeans(5)(points, SEED, limit).items()}
    np.testing.assert_array_equal(found["mask"], np.arange(5) < limit)
    assert not found["centres"][limit:].any() and found["counts"].sum() == 300
    assert found["inertia"] <= 1.02 * KMeans(limit, n_init=10, random_state=0).fit(points).inertia_


@pytest.mark.slow
def test_the_centres_of_scikit_learn_where_clusters_are_clear():
    rng = np.random.default_rng(0)
    points = np.repeat(10 * rng.standard_normal((5, 16)), 30, axis=0) + 0.1 * rng.standard_normal((150, 16))
    expected = KMeans(5, n_init=10, random_state=0).fit(points).cluster_centers_
    found = run(build_kmeans(5), points)
    order = squared(expected, found["centres"]).argmin(axis=1)
    np.testing.assert_allclose(found["centres"][order], expected, atol=1e-4)
    assert found["counts"].tolist() == [30] * 5


@pytest.mark.slow
@hypothesis.settings(deadline=None, max_examples=30)
@hypothesis.given(
    points=arrays.arrays(
        np.float32, st.tuples(st.integers(0, 30), st.integers(1, 3)),
        elements=st.one_of(st.sampled_from([0, 1, 2]), st.floats(-1e6, 1e6, width=32, allow_subnormal=False)),
    ),
    seed=st.integers(0, 2**31 - 1),
)  # fmt: skip
def test_any_points(points, seed):
    found = run(FEW, points, np.array([seed, 0], np.int32))
    assert np.isfinite(found["centres"]).all() and np.isfinite(found["inertia"])
    assert found["counts"].sum() == len(points)
    assert found["mask"].sum() == min(4, len(np.unique(points + 0.0, axis=0)))
    if len(points):
        least = squared(points, found["centres"][found["mask"]]).min(axis=1).sum()
        scale = np.square(points.astype(float)).sum()  # the centres that come back are rounded to float32
        assert found["inertia"] == pytest.approx(least, rel=1e-4, abs=1e-30 + 1e-10 * scale)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 4])
def test_at_most_k_different_points_are_the_centres(count):
    rng = np.random.default_rng(count)
    different = rng.standard_normal((count, 7)).astype(np.float32)
    found = run(FEW, rng.permutation(np.repeat(different, 9, axis=0)))
    assert found["inertia"] == 0 and found["mask"].sum() == count
    assert found["counts"].tolist() == [9] * count + [0] * (4 - count)
    np.testing.assert_array_equal(np.unique(found["centres"][:count], axis=0), np.unique(different, axis=0))


def test_neighbouring_floats_are_different_points():
    points = np.array([[1.0], [np.nextafter(np.float32(1), np.float32(2))], [1000.0]], np.float32)
    np.testing.assert_array_equal(np.sort(run(FEW, points)["centres"], axis=0)[1:], points)


def test_no_points():
    found = run(FEW, np.zeros((0, 5)))
    assert found["centres"].shape == (4, 5) and not found["mask"].any() and found["inertia"] == 0


def test_points_that_are_not_finite_are_left_out():
    points = np.random.default_rng(5).standard_normal((20, 3)).astype(np.float32)
    broken = np.concatenate([[[np.nan, 0, 0]], points[:9], [[0, np.inf, 0]], points[9:]])
    for key, value in run(FEW, points).items():
        np.testing.assert_array_equal(run(FEW, broken)[key], value)
    assert not run(FEW, np.full((3, 2), np.nan))["mask"].any()


def test_empty_centres_move_to_the_point_that_is_farthest_from_its_own(monkeypatch):
    """Lloyd's from a bad start, with centres that no point is nearest to; the first of them keeps the point."""
    points = tf.constant([[0.0], [1.0], [10.0], [11.0], [50.0]], tf.float64)
    start = tf.constant([[20.0], [100.0], [200.0]], tf.float64)
    for iterations, expected in ((1, [14.4, 50, 50]), (2, [5.5, 50, 0]), (1000, [10.5, 50, 0.5])):
        monkeypatch.setattr(kmeans, "_ITERATIONS", iterations)
        np.testing.assert_allclose(kmeans._lloyd(points, start)[:, 0], expected)


def test_each_further_centre_of_a_start_is_the_best_of_a_few_that_are_drawn():
    """By their squared distances from those before, as greedy k-means++ has it."""
    points = np.random.default_rng(0).normal(size=(60, 2))
    centres, nearest = kmeans._start(tf.constant(points), 8, SEED)
    weights, expected, after = np.ones(60), [], []
    for draws in tf.random.stateless_uniform([8, 4], SEED, dtype=tf.float64).numpy():  # 2 + log 8
        drawn = np.searchsorted(np.cumsum(weights), draws * weights.sum())[: None if expected else 1]
        tried = [np.sum((points - points[each]) ** 2, axis=1) for each in drawn]
        tried = [np.minimum(weights, each) for each in tried] if expected else tried
        best = int(np.argmin(np.sum(tried, axis=1)))
        expected.append(points[drawn[best]])
        after.append(weights := tried[best])
    np.testing.assert_allclose(centres, expected)
    np.testing.assert_allclose(nearest, after, atol=1e-12)


def test_the_seed_decides(digits):
    points = digits[0][:200].reshape(-1, 64).astype(np.float32)
    first, again, other = (run(FEW, points, np.array([seed, 0], np.int32)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first["centres"], again["centres"])
    assert first["inertia"] != other["inertia"]


@pytest.mark.slow
def test_more_restarts_are_never_worse(digits):
    points = digits[0][:300].reshape(-1, 64).astype(np.float32)
    inertia = [run(build_kmeans(5, restarts=restarts), points)["inertia"] for restarts in (1, 2, 4)]
    assert inertia == sorted(inertia, reverse=True)


def test_in_the_runtime(tff_worker, digits):
    points = digits[0][:50].reshape(-1, 64).astype(np.float32)

    @tff.tensorflow.computation(tff.TensorType(np.float32, [None, 64]), tff.TensorType(np.int32, [2]))
    def on_a_client(points, seed):
        return FEW(points, seed)

    assert str(on_a_client.type_signature.result["mask"]) == "bool[4]"
    expected = run(FEW, points)
    for key, value in on_a_client(points, SEED).items():
        np.testing.assert_allclose(value, expected[key], rtol=1e-5)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_centres": 0}, "num_centres is 0; it must be a whole number from 1"),
        ({"num_centres": 2, "restarts": 1.5}, "restarts is 1.5"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(UserError, match=message):
        build_kmeans(**options)
