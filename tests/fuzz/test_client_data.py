"""Client data as users bring them by mistake: the client is named before anything is trained."""

import numpy as np
import pytest
import tensorflow as tf

from tests.own_data import client_data
from tffcl.clients.example_types import check_examples
from tffcl.clients.population import Population
from tffcl.clustering.vector_distances import subspace_angles
from tffcl.errors import UserError
from tffcl.lab.datasets.loaders.own import load_npz

RNG = np.random.default_rng(0)
X, Y = RNG.random([20, 8, 8, 1], np.float32), RNG.integers(0, 3, 20).astype(np.int32)
SPEC = {"x": tf.TensorSpec([8, 8, 1]), "y": tf.TensorSpec([], tf.int32)}


@pytest.mark.parametrize("label", [-1, 3, 2**31 - 1])
def test_a_label_out_of_range_in_a_data_set_names_client_and_label(label):
    wrong = np.r_[Y[:-1], np.int32(label)].astype(np.int32)
    with pytest.raises(UserError, match=rf"client 7 has the label {label}"):
        check_examples(Population.from_client_data(client_data({"0": (X, Y), "7": (X, wrong)})), SPEC, 3)


def test_nan_in_a_data_set_names_the_client():
    with pytest.raises(UserError, match="client 7 have NaN"):
        check_examples(Population.from_client_data(client_data({"0": (X, Y), "7": (X * np.nan, Y)})), SPEC, 3)


def test_numbers_that_float32_does_not_hold_name_the_client():
    for x in (np.full([20, 2], 1e300), np.ones([20, 2], complex)):
        with pytest.raises(UserError, match="client me"):
            Population.from_arrays({"me": (x, Y)})


def save(path, **arrays):
    np.savez(path, **{"x_train": X, "y_train": Y, "x_test": X, "y_test": Y, **arrays})
    return str(path)


def test_a_label_of_two_thousand_millions_asks_for_no_memory(tmp_path):
    with pytest.raises(UserError, match="labels up to 2000000000; at most 100000 classes"):
        load_npz(path=save(tmp_path / "own.npz", y_train=np.r_[Y[:-1], 2 * 10**9]))


def test_flipped_bits_of_an_npz_file_are_told_or_mean_nothing(tmp_path):
    """What is accepted has the same numbers: ZIP's dates and doubled lengths are the only bytes without a checksum."""
    whole = open(save(tmp_path / "own.npz"), "rb").read()
    like, rng, told = load_npz(path=str(tmp_path / "own.npz")), np.random.default_rng(1), 0
    for _ in range(400):
        flipped = bytearray(whole)
        flipped[rng.integers(len(whole)) if rng.random() < 0.5 else rng.integers(200)] ^= 1 << int(rng.integers(8))
        (tmp_path / "flipped.npz").write_bytes(flipped)
        try:
            found = load_npz(path=str(tmp_path / "flipped.npz"))
        except UserError as error:
            told += 1
            assert "\n" not in str(error)
        else:
            np.testing.assert_array_equal(found.train.x, like.train.x)
            np.testing.assert_array_equal(found.train.y, like.train.y)
    assert told > 200


@pytest.mark.parametrize(
    "metric, far", [("smallest_angle", 90), ("trace", 270), ("angle_sum", 270), ("smallest_entry", 90)]
)
def test_all_zero_clients_are_far_from_others_and_near_each_other(metric, far):
    basis = np.linalg.qr(RNG.normal(size=[4, 9, 3]))[0].astype(np.float32)
    mask = np.ones([4, 3], bool)
    like = subspace_angles(metric, {"basis": basis[:2], "mask": mask[:2]}, None)
    basis[2:], mask[2:] = 0, False
    found = subspace_angles(metric, {"basis": basis, "mask": mask}, None)
    np.testing.assert_allclose(found[:2, :2], like, atol=1e-5)
    assert np.all(found[2:, :2] == far) and np.all(found[:2, 2:] == far) and not found[2:, 2:].any()
    across = subspace_angles(metric, {"basis": basis[:2], "mask": mask[:2]}, {"basis": basis[1:], "mask": mask[1:]})
    assert np.all(across[:, 1:] == far)
