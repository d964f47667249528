"""The signature of PCA+kM+HC against scikit-learn's PCA."""

import collections

import numpy as np
import pytest
import tensorflow as tf
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA

from tffcl.aggregators.collect import by_client
from tffcl.clients.population import Population
from tffcl.errors import UserError
from tffcl.rounds.client_queries import build_collection, build_signing
from tffcl.signatures.centres import build_pca_centres, principal_components

SPEC = collections.OrderedDict(x=tf.TensorSpec((8, 8, 1), tf.uint8), y=tf.TensorSpec((), tf.int32))


def rows(digits, count):
    return digits[0][:count].reshape(count, 64).astype(np.float32) / 255


def dataset(digits, count):
    return tf.data.Dataset.from_tensor_slices(collections.OrderedDict(x=digits[0][:count], y=digits[1][:count]))


@pytest.mark.parametrize("samples, count", [(200, 5), (40, 20), (30, 64)])
def test_components_are_scikit_learns(digits, samples, count):
    x = rows(digits, samples)
    found = principal_components(x, count).numpy()
    pca = PCA(min(count, samples), svd_solver="full").fit(x.astype(float))
    axes = pca.components_[: samples - 1]  # the centred rows have no more
    peaks = axes[range(len(axes)), np.abs(axes).argmax(axis=1)]
    expected = (x - pca.mean_) @ (axes * np.sign(peaks)[:, None]).T
    kept = min(expected.shape[1], count)
    np.testing.assert_allclose(found[:, :kept], expected[:, :kept], atol=2e-4)
    np.testing.assert_allclose(found[:, kept:], 0, atol=1e-6)


def test_signs_do_not_depend_on_the_order_of_examples(digits):
    x = rows(digits, 100)
    order = np.random.default_rng(0).permutation(100)
    np.testing.assert_allclose(principal_components(x[order], 6), principal_components(x, 6).numpy()[order], atol=1e-4)


@pytest.mark.slow
def test_the_collected_signatures_in_the_runtime(tff_worker, digits):
    signature = build_pca_centres(SPEC, num_components=10, num_centres=4, seed=1)
    assert str(signature.value_type) == "<centres=float32[4,10],mask=bool[4]>"
    cohort = [
        collections.OrderedDict(examples=dataset(digits, count), client_id=np.int32(client))
        for client, count in enumerate([60, 3, 0])
    ]
    value = by_client(build_collection(signature)(signature.context, cohort)[1], [0, 1, 2])
    assert value["mask"].sum(axis=1).tolist() == [4, 3, 0]
    assert np.isfinite(value["centres"]).all() and not value["centres"][2].any()
    x = PCA(10, svd_solver="full").fit_transform(rows(digits, 60))
    expected = KMeans(4, n_init=10, random_state=0).fit(x)
    flips = principal_components(rows(digits, 60), 10).numpy()
    least = ((flips[:, None] - value["centres"][0]) ** 2).sum(axis=2).min(axis=1).sum()
    assert least <= 1.02 * expected.inertia_
    np.testing.assert_allclose(np.abs(flips), np.abs(x), atol=1e-4)


def test_no_more_components_than_an_image_has_values():
    signature = build_pca_centres(SPEC)
    assert str(signature.value_type) == "<centres=float32[5,64],mask=bool[5]>"


@pytest.mark.slow
def test_equal_images_have_one_centre_at_the_origin(tff_worker, digits):
    signature = build_pca_centres(SPEC, num_components=3)
    found = signature.computation(signature.context, dataset(digits, 1).repeat(9))
    assert found["mask"].tolist() == [True] + [False] * 4
    np.testing.assert_allclose(found["centres"], 0, atol=1e-6)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_components": 0}, "num_components is 0; it must be a whole number from 1"),
        ({"num_centres": 2.5}, "num_centres is 2.5"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(UserError, match=message):
        build_pca_centres(SPEC, **options)


def test_a_client_whose_rows_overflow_is_seen(tff_worker):
    """k-means alone would leave its rows out, and describe it by nothing."""
    spec = collections.OrderedDict(x=tf.TensorSpec((8,), tf.float32), y=tf.TensorSpec((), tf.int32))
    x, y = np.random.default_rng(0).random((20, 8), np.float32), np.zeros(20, np.int32)
    population = Population.from_arrays({0: (x, y), 1: (x * np.float32(3e38), y)})
    value = build_signing(build_pca_centres(spec, num_centres=2))(population)
    assert np.isfinite(value["centres"]).all(axis=(1, 2)).tolist() == [True, False]
