"""Tests for the angles between signatures."""

import subprocess
import sys

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from scipy import linalg

from tests.oracles import angles as oracle
from tffcl.choices import ANGLES as METRICS
from tffcl.clustering import proximity
from tffcl.clustering.proximity import principal_angles
from tffcl.clustering.vector_distances import room_remark, scale_remark, subspace_angles
from tffcl.errors import UserError

# float32 keeps about 7e-6 degrees near 90; sums of several angles a few times that.
CLOSE = 1e-3

metrics = st.sampled_from(sorted(METRICS))


def orthonormal(rng, count, dimension, columns):
    return np.linalg.qr(rng.normal(size=(count, dimension, columns)))[0].astype(np.float32)


def related(rng, count, dimension, columns, noise):
    """Signatures that are noisy copies of one subspace, so that the angles spread below 90 degrees."""
    common = rng.normal(size=(dimension, columns))
    noisy = common + noise * rng.normal(size=(count, dimension, columns))
    return np.linalg.qr(noisy)[0].astype(np.float32)


def some_mask(rng, count, columns):
    mask = np.arange(columns) < rng.integers(1, columns + 1, size=count)[:, None]
    mask[0] = True
    mask[1] = np.arange(columns) == 0
    return mask


def reference(bases, mask, summary):
    """SciPy's angles, pair by pair, in degrees."""
    result = np.zeros((len(bases), len(bases)))
    for i in range(len(bases)):
        for j in range(len(bases)):
            if i != j:
                ours, theirs = (bases[k][:, mask[k]].astype(np.float64) for k in (i, j))
                result[i, j] = summary(np.degrees(linalg.subspace_angles(ours, theirs)))
    return result


@pytest.mark.parametrize(("metric", "summary"), [("smallest_angle", np.min), ("angle_sum", np.sum)])
@pytest.mark.parametrize("columns", [1, 2, 3, 6, 9])
def test_subspace_metrics_agree_with_scipy(metric, summary, columns):
    rng = np.random.default_rng(columns)
    far, near = orthonormal(rng, 4, 30, columns), related(rng, 5, 30, columns, 0.3)
    bases = np.concatenate([far, near, related(rng, 4, 30, columns, 0.01)])
    mask = np.ones((len(bases), columns), bool)
    got = principal_angles(bases, metric=metric)
    np.testing.assert_allclose(got, reference(bases, mask, summary), atol=CLOSE)


@pytest.mark.parametrize(("metric", "summary"), [("smallest_angle", np.min), ("angle_sum", np.sum)])
def test_subspace_metrics_with_different_counts(metric, summary):
    rng = np.random.default_rng(1)
    bases = related(rng, 12, 25, 5, 0.5)
    mask = some_mask(rng, 12, 5)
    expected = reference(bases, mask, summary)
    zeroed = bases * mask[:, None, :]
    np.testing.assert_allclose(principal_angles(zeroed, mask, metric=metric), expected, atol=CLOSE)
    # What stands in a masked column does not matter, and a zero column is absent even without a mask.
    np.testing.assert_allclose(principal_angles(bases, mask, metric=metric), expected, atol=CLOSE)
    np.testing.assert_allclose(principal_angles(zeroed, metric=metric), expected, atol=CLOSE)


@pytest.mark.parametrize(("metric", "summary"), [("smallest_angle", np.min), ("angle_sum", np.sum)])
def test_columns_that_are_not_orthonormal(metric, summary):
    rng = np.random.default_rng(2)
    bases = (rng.normal(size=(8, 40, 4)) + 2.0).astype(np.float32)
    got = principal_angles(bases, metric=metric)
    np.testing.assert_allclose(got, reference(bases, np.ones((8, 4), bool), summary), atol=CLOSE)


def test_dependent_columns_count_once():
    rng = np.random.default_rng(3)
    bases = related(rng, 2, 30, 2, 1.0)
    doubled = np.concatenate([bases, bases[:, :, :1] + bases[:, :, 1:]], axis=2)
    nearly = np.array([[[1, 1], [0, 1e-4], [0, 0]]])  # which are two all the same
    assert principal_angles(nearly, others=np.eye(3)[np.newaxis, :, 1:2]) < 1e-3
    full = related(rng, 3, 30, 3, 1.0)
    expected = principal_angles(bases, metric="angle_sum", others=full)
    got = principal_angles(doubled, metric="angle_sum", others=full)
    np.testing.assert_allclose(got, expected, atol=CLOSE)
    assert expected.max() > 90  # two angles each: a third would have shown


@pytest.mark.parametrize("degrees", [0.01, 0.03, 0.1, 1.0, 45.0, 89.99])
@pytest.mark.parametrize("columns", [1, 3, 6])
def test_small_angles_are_right(degrees, columns):
    rng = np.random.default_rng(4)
    frame = np.linalg.qr(rng.normal(size=(784, 2 * columns)))[0]
    angle = np.radians(degrees)
    turned = np.cos(angle) * frame[:, :columns] + np.sin(angle) * frame[:, columns:]
    bases = np.stack([frame[:, :columns], turned]).astype(np.float32)
    got = {metric: principal_angles(bases, metric=metric)[0, 1] for metric in METRICS}
    expected = np.degrees(linalg.subspace_angles(*bases.astype(np.float64)))
    assert expected.min() == pytest.approx(degrees, abs=1e-4)
    assert got["smallest_angle"] == pytest.approx(expected.min(), abs=1e-4)
    assert got["angle_sum"] == pytest.approx(expected.sum(), abs=CLOSE)
    assert got["trace"] == pytest.approx(columns * degrees, abs=CLOSE)
    assert got["smallest_entry"] == pytest.approx(degrees, abs=1e-4)


def test_small_angles_survive_columns_that_are_slightly_off():
    # Lengths and angles off by 5e-5: the subspaces are the same, so the angle is still 0.
    rng = np.random.default_rng(5)
    basis = np.linalg.qr(rng.normal(size=(100, 3)))[0]
    other = basis @ (np.eye(3) + 5e-5 * rng.normal(size=(3, 3)))
    got = principal_angles(np.stack([basis, other]).astype(np.float32))
    assert got[0, 1] < 1e-4
    # What is given in float64 is told apart further down.
    turned = np.cos(np.radians(1e-4)) * basis[:, :1] + np.sin(np.radians(1e-4)) * basis[:, 1:2]
    assert principal_angles(np.stack([basis[:, :1], turned]))[0, 1] == pytest.approx(1e-4, rel=1e-2)


def test_small_angles_of_two_directions_of_three_are_right():
    """Where the two largest of three cosines are equal, their closed form has half the digits."""
    frames = np.linalg.qr(np.random.default_rng(6).normal(size=(40, 50, 6)))[0]
    turned = np.cos(np.radians(1e-3)) * frames[:, :, :2] + np.sin(np.radians(1e-3)) * frames[:, :, 2:4]
    others = np.concatenate([turned, frames[:, :, 5:]], axis=2)
    angles = np.diagonal(principal_angles(frames[:, :, [0, 1, 4]], others=others))
    np.testing.assert_allclose(angles, 1e-3, rtol=1e-2)


def test_shared_directions_are_at_zero():
    rng = np.random.default_rng(6)
    frame = np.linalg.qr(rng.normal(size=(50, 5)))[0].astype(np.float32)
    bases = np.stack([frame[:, :3], frame[:, 2:]])
    assert principal_angles(bases)[0, 1] < 1e-4
    assert principal_angles(bases, metric="smallest_entry")[0, 1] == 0
    assert principal_angles(bases, metric="angle_sum")[0, 1] == pytest.approx(180, abs=CLOSE)
    assert principal_angles(bases, metric="trace")[0, 1] == pytest.approx(270, abs=CLOSE)


@pytest.mark.parametrize("metric", METRICS)
def test_copies_are_at_exactly_zero(metric):
    rng = np.random.default_rng(7)
    bases = orthonormal(rng, 3, 784, 6)
    got = principal_angles(np.concatenate([bases, bases]), metric=metric)
    assert got[:3, 3:].diagonal().tolist() == [0, 0, 0]
    assert got[0, 1] > 1


@pytest.mark.parametrize("metric", ["trace", "smallest_entry"])
def test_column_metrics_agree_with_double_loop(metric):
    rng = np.random.default_rng(8)
    bases = np.concatenate([related(rng, 6, 20, 4, 0.3), orthonormal(rng, 4, 20, 4)])
    mask = some_mask(rng, 10, 4)
    for each in (mask, np.ones_like(mask)):
        expected = getattr(oracle, metric)(bases, each)
        np.testing.assert_allclose(principal_angles(bases, each, metric=metric), expected, atol=CLOSE)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("max_bytes", [1, 3_000, 100_000])
def test_blocks_do_not_change_the_matrix(metric, max_bytes):
    rng = np.random.default_rng(9)
    bases = related(rng, 23, 12, 3, 0.7)
    mask = some_mask(rng, 23, 3)
    whole = principal_angles(bases, mask, metric=metric)
    got = principal_angles(bases, mask, metric=metric, max_bytes=max_bytes)
    np.testing.assert_allclose(got, whole, atol=1e-4)
    assert whole[np.triu_indices(23, 1)].min() > 0


def test_tiny_max_bytes_makes_small_blocks():
    assert proximity._block_side(6, 6, 1) == 1
    assert proximity._block_side(6, 6, 100_000) == 9
    assert proximity._block_side(6, 6, 2**40) == proximity._LARGEST_SIDE


@pytest.mark.parametrize("metric", METRICS)
def test_symmetric_with_zero_diagonal(metric):
    bases = related(np.random.default_rng(10), 150, 12, 3, 0.7)
    got = principal_angles(bases, metric=metric)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, got.T)
    np.testing.assert_array_equal(got.diagonal(), 0)
    assert (got[np.triu_indices(150, 1)] > 0).all()


@pytest.mark.parametrize("metric", METRICS)
def test_others_are_the_off_diagonal_block(metric):
    rng = np.random.default_rng(11)
    bases = related(rng, 15, 12, 4, 0.7)
    mask = some_mask(rng, 15, 4)
    whole = principal_angles(bases, mask, metric=metric)
    got = principal_angles(bases[:9], mask[:9], metric=metric, others=bases[9:], others_mask=mask[9:])
    assert got.shape == (9, 6)
    np.testing.assert_allclose(got, whole[:9, 9:], atol=1e-4)


@pytest.mark.parametrize("metric", METRICS)
def test_others_may_have_other_column_counts(metric):
    rng = np.random.default_rng(12)
    bases = related(rng, 8, 12, 4, 0.7)
    mask = np.ones((8, 4), bool)
    mask[5:, 2:] = False
    expected = principal_angles(bases, mask, metric=metric)[:5, 5:]
    got = principal_angles(bases[:5], metric=metric, others=bases[5:, :, :2])
    np.testing.assert_allclose(got, expected, atol=1e-4)
    swapped = principal_angles(bases[5:, :, :2], metric=metric, others=bases[:5])
    np.testing.assert_allclose(swapped.T, expected, atol=1e-4)


def test_more_columns_than_features():
    bases = np.random.default_rng(13).normal(size=(3, 2, 4)).astype(np.float32)
    # Each signature spans the whole plane.
    np.testing.assert_array_equal(principal_angles(bases, metric="angle_sum"), 0)


@hypothesis.settings(deadline=None, max_examples=30)
@hypothesis.given(seed=st.integers(0, 2**32 - 1), columns=st.integers(1, 5), extra=st.integers(0, 8))
def test_rotating_a_basis_leaves_its_subspace(seed, columns, extra):
    rng = np.random.default_rng(seed)
    bases = related(rng, 4, columns + extra + 1, columns, 0.5)
    rotations = np.linalg.qr(rng.normal(size=(4, columns, columns)))[0]
    rotated = (bases.astype(np.float64) @ rotations).astype(np.float32)
    for metric in ("smallest_angle", "angle_sum"):
        before = principal_angles(bases, metric=metric)
        np.testing.assert_allclose(principal_angles(rotated, metric=metric), before, atol=CLOSE)


@hypothesis.settings(deadline=None, max_examples=30)
@hypothesis.given(seed=st.integers(0, 2**32 - 1), columns=st.integers(1, 5), metric=metrics)
def test_signs_do_not_matter(seed, columns, metric):
    rng = np.random.default_rng(seed)
    bases = related(rng, 5, 10, columns, 0.5)
    flipped = bases * rng.choice([-1.0, 1.0], size=(5, 1, columns)).astype(np.float32)
    expected = principal_angles(bases, metric=metric)
    np.testing.assert_allclose(principal_angles(flipped, metric=metric), expected, atol=1e-4)


@hypothesis.settings(deadline=None, max_examples=30)
@hypothesis.given(seed=st.integers(0, 2**32 - 1), noise=st.floats(0.01, 3.0))
def test_order_and_bounds_of_the_metrics(seed, noise):
    rng = np.random.default_rng(seed)
    bases = related(rng, 5, 15, 3, noise)
    got = {metric: principal_angles(bases, metric=metric) for metric in METRICS}
    assert (got["smallest_angle"] <= got["smallest_entry"] + 1e-4).all()
    assert (3 * got["smallest_angle"] <= got["angle_sum"] + 1e-3).all()
    assert (got["smallest_entry"] <= got["trace"] / 3 + 1e-3).all()
    assert (got["smallest_angle"] >= 0).all()
    assert (got["trace"] <= 270 + 1e-3).all()


def test_column_order_matters_for_trace_only():
    bases = related(np.random.default_rng(14), 4, 15, 3, 0.5)
    turned = np.concatenate([bases[:2], bases[2:, :, ::-1]])
    for metric in METRICS:
        same = np.allclose(principal_angles(bases, metric=metric), principal_angles(turned, metric=metric), atol=CLOSE)
        assert same == (metric != "trace")


def test_one_client_and_none():
    one = orthonormal(np.random.default_rng(15), 1, 5, 2)
    np.testing.assert_array_equal(principal_angles(one), [[0]])
    assert principal_angles(one[:0]).shape == (0, 0)
    assert principal_angles(one, others=one[:0]).shape == (1, 0)


def test_unknown_metric():
    with pytest.raises(UserError, match="did you mean 'trace'"):
        principal_angles(np.ones((2, 3, 1)), metric="trce")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("metric", METRICS)
def test_not_finite_names_the_client(value, metric):
    bases = orthonormal(np.random.default_rng(16), 300, 100, 3)
    bases[217, 4, 1] = value
    with pytest.raises(UserError, match=r"client 217 .*NaN or infinite"):
        principal_angles(bases, metric=metric, max_bytes=2**20)


@pytest.mark.parametrize("metric", METRICS)
def test_empty_signature_names_the_client(metric):
    bases = orthonormal(np.random.default_rng(17), 6, 10, 3)
    mask = np.ones((6, 3), bool)
    mask[4] = False
    with pytest.raises(UserError, match="client 4 has no real"):
        principal_angles(bases, mask, metric=metric)
    with pytest.raises(UserError, match="other client 1 has no real"):
        principal_angles(bases[:3], metric=metric, others=bases[3:], others_mask=mask[3:])
    bases[2] = 0
    with pytest.raises(UserError, match="client 2 has no real"):
        principal_angles(bases, metric=metric)


def test_trace_needs_a_common_column():
    bases = orthonormal(np.random.default_rng(18), 3, 10, 2)
    mask = np.array([[True, True], [True, False], [False, True]])
    with pytest.raises(UserError, match="client 2 and client 1|client 1 and client 2"):
        principal_angles(bases, mask, metric="trace")
    assert principal_angles(bases, mask, metric="smallest_entry")[1, 2] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bases": np.ones((4, 3))}, r"shape \[clients, features, columns\]"),
        ({"bases": np.full((1, 2, 2), "a")}, "must be numbers"),
        ({"mask": np.ones((4, 3), bool)}, r"bool of shape \(4, 2\)"),
        ({"mask": np.ones((4, 2))}, "must be bool"),
        ({"max_bytes": 0}, "max_bytes"),
        ({"others": np.ones((1, 7, 2))}, "5 features and others 7"),
        ({"others_mask": np.ones((4, 2), bool)}, "without others"),
    ],
)
def test_bad_arguments(arguments, message):
    good = {"bases": orthonormal(np.random.default_rng(19), 4, 5, 2)}
    with pytest.raises(UserError, match=message):
        principal_angles(**{**good, **arguments})


def test_metrics_and_functions_have_the_same_names():
    assert set(METRICS) == set(proximity._METRICS)


def test_tensorflow_is_never_imported():
    code = (
        "import sys; from tffcl.clustering import hierarchical, newcomers, proximity; "
        "sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("metric", ["angle_sum", "trace"])
def test_clients_with_fewer_vectors_are_not_nearer_to_everybody(metric):
    """A sum of one angle is as much as three of that size: a client of one example would be each other's nearest."""
    bases, mask = related(np.random.default_rng(3), 4, 12, 3, 0.7), np.ones((4, 3), bool)
    whole = subspace_angles(metric, {"basis": bases, "mask": mask}, None)
    np.testing.assert_array_equal(whole, principal_angles(bases, mask, metric=metric))
    mask[3, 1:] = False
    few = subspace_angles(metric, {"basis": bases, "mask": mask}, None)
    np.testing.assert_array_equal(few[:3, :3], whole[:3, :3])
    np.testing.assert_allclose(few[3], 3 * principal_angles(bases, mask, metric=metric)[3], rtol=1e-6)
    newcomers = subspace_angles(metric, {"basis": bases[:3], "mask": mask[:3]}, {"basis": bases[3:], "mask": mask[3:]})
    np.testing.assert_allclose(newcomers[:, 0], few[:3, 3], rtol=1e-6)


@pytest.mark.parametrize("metric", ["angle_sum", "trace"])
def test_sums_of_more_columns_than_dimensions_stay_as_they_are(metric):
    """A few columns of each class are more than a table has features; Eq. 3 adds an angle for each of them."""
    columns = np.random.default_rng(3).normal(size=(3, 4, 6)).astype(np.float32)
    signatures = {"basis": columns / np.linalg.norm(columns, axis=1, keepdims=True), "mask": np.ones((3, 6), bool)}
    whole = principal_angles(signatures["basis"], signatures["mask"], metric=metric)
    np.testing.assert_array_equal(subspace_angles(metric, signatures, None), whole)
    signatures["basis"][2] = 0
    far = 90 * (6 if metric == "trace" else 4)
    np.testing.assert_array_equal(subspace_angles(metric, signatures, None)[2], [far, far, 0])


def test_a_client_without_direction_stops_nobody_whatever_columns_others_have():
    """As with a class that the others lack: the columns of "trace" are those of classes."""
    columns, mask = np.random.default_rng(3).normal(size=(3, 4, 2)).astype(np.float32), np.ones((3, 2), bool)
    columns[2], mask[:2, 0] = 0, False
    found = subspace_angles("trace", {"basis": columns * mask[:, np.newaxis], "mask": mask}, None)
    np.testing.assert_array_equal(found[2], [180, 180, 0])


def test_of_vectors_of_each_class_the_cure_for_too_many_is_not_more_of_them():
    """Three classes, two vectors each, of eight features: four vectors of each class would be twelve."""
    columns = np.random.default_rng(3).normal(size=(3, 8, 6)).astype(np.float32)
    signatures = {"basis": columns, "mask": np.ones((3, 6), bool)}
    angles = subspace_angles("smallest_angle", signatures, None)
    assert "; set num_vectors = 4, or" in room_remark(signatures, angles, per_class=False)
    assert "; set per_class = false and num_vectors = 4, or" in room_remark(signatures, angles, per_class=True)


def test_angles_that_large_columns_hide_are_told_and_small_angles_of_all_features_are_not():
    def remark(basis, angle=1.9):
        return scale_remark({"basis": np.asarray(basis)[..., np.newaxis]}, np.array([[0.0, angle], [angle, 0]]))

    rng = np.random.default_rng(0)
    large = np.eye(1, 32) + 0.02 * rng.normal(size=(2, 32))
    large /= np.linalg.norm(large, axis=1, keepdims=True)
    assert "1.9 degrees, and their first vectors lie along 1.0 of 32 features: large columns hide" in remark(large)
    assert not remark(large, angle=2.1) and not remark(large[:, :3])
    even = np.sign(rng.normal(size=(2, 32))) / np.sqrt(32)  # along all of them
    for features, told in ((3, True), (5, False), (32, False)):  # an eighth of them is 4
        some = np.where(np.arange(32) < features, even, 0) * np.sqrt(32 / features)
        assert bool(remark(some)) == told
