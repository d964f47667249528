import collections

import numpy as np
import pytest
import scipy.linalg
import tensorflow as tf
import tensorflow_federated as tff

from tffcl.aggregators.collect import by_client
from tffcl.clients.population import Population
from tffcl.errors import UserError
from tffcl.rounds.client_queries import build_collection, build_signing
from tffcl.signatures.subspace import METHODS, build_subspace, class_singular_vectors, left_singular_vectors

SPEC = collections.OrderedDict(x=tf.TensorSpec((8, 8, 1), tf.uint8), y=tf.TensorSpec((), tf.int32))


def matrix(digits, count, start=0):
    return digits[0][start : start + count].reshape(count, 64).T.astype(np.float32) / 255


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("count", [150, *(pytest.param(each, marks=pytest.mark.slow) for each in (5, 40, 64, 1000))])
def test_the_vectors_of_digits_are_numpys(digits, method, count):
    data = matrix(digits, count)
    basis, mask = left_singular_vectors(data, 4, method)
    expected = np.linalg.svd(data.astype(float), full_matrices=False)[0][:, :4]
    assert mask.numpy().all()
    np.testing.assert_allclose(np.abs((expected * basis.numpy()).sum(axis=0)), 1, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["power", "gram"])
def test_noise_without_a_leading_subspace(method):
    """A flat spectrum, where power iteration does not converge: the vectors are right all the same."""
    data = np.random.default_rng(0).standard_normal((300, 200)).astype(np.float32)
    basis, _ = left_singular_vectors(data, 3, method)
    expected = np.linalg.svd(data.astype(float), full_matrices=False)[0][:, :3]
    assert scipy.linalg.subspace_angles(expected, basis.numpy()).max() < 1e-5


def test_signs_are_fixed(digits):
    data = matrix(digits, 50)
    first, second = (left_singular_vectors(sign * data, 3)[0].numpy() for sign in (1, -1))
    np.testing.assert_allclose(first, second, atol=1e-6)
    peaks = first[np.abs(first).argmax(axis=0), range(3)]
    assert (peaks > 0).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("count", [0, 2])
def test_fewer_samples_than_vectors_are_masked(digits, method, count):
    basis, mask = left_singular_vectors(matrix(digits, count), 3, method)
    assert mask.numpy().tolist() == [j < count for j in range(3)]
    np.testing.assert_array_equal(basis.numpy()[:, count:], 0)
    np.testing.assert_allclose(basis.numpy().T @ basis.numpy(), np.diag(mask.numpy().astype(float)), atol=1e-6)


def test_repeated_samples_have_rank_one(digits):
    data = np.repeat(matrix(digits, 1), 9, axis=1)
    assert left_singular_vectors(data, 3)[1].numpy().tolist() == [True, False, False]


def test_directions_far_below_the_largest_are_found_down_to_rounding():
    data = np.diag([1.0, 1e-5, 1e-7])
    basis, mask = left_singular_vectors(data, 3)
    assert mask.numpy().tolist() == [True, True, False]
    np.testing.assert_allclose(basis, np.diag([1.0, 1.0, 0.0]), atol=1e-5)


def test_per_class(digits):
    """Each class has vectors of its own, as many as hold the energy."""
    x, y = digits
    chosen = np.flatnonzero(np.isin(y[:200], [3, 7]))
    data = x[chosen].reshape(-1, 64).T.astype(np.float32)
    basis, mask = class_singular_vectors(data, y[chosen], 2, 10, 3, "gram", 0.88)
    assert mask.numpy().tolist() == [True, False] + [True] * 2 + [False] * 2
    for slot, label in enumerate((3, 7)):
        of_label = data[:, y[chosen] == label].astype(float)
        expected, values, _ = np.linalg.svd(of_label, full_matrices=False)
        assert (values[0] ** 2 < 0.88 * np.sum(values**2)) == (slot == 1)
        found = basis.numpy()[:, 2 * slot : 2 * slot + 2]
        np.testing.assert_allclose(np.abs((expected[:, :2] * found).sum(axis=0)), [1, slot], atol=1e-6)


@pytest.mark.slow
def test_more_classes_than_room_keeps_the_largest(digits):
    """In the order of their labels, and not of their sizes: some metrics compare columns one by one."""
    x, y = digits
    chosen = np.concatenate([np.flatnonzero(y == label)[:count] for label, count in ((1, 4), (5, 7), (8, 9))])
    data = x[chosen].reshape(-1, 64).T.astype(np.float32)
    basis, mask = class_singular_vectors(data, y[chosen], 1, 10, 2)
    expected = np.stack([np.linalg.svd(data[:, y[chosen] == label])[0][:, 0] for label in (5, 8)], axis=1)
    assert mask.numpy().all()
    np.testing.assert_allclose(np.abs((expected * basis.numpy()).sum(axis=0)), 1, atol=1e-5)


def clients(digits, sizes):
    x, y = digits
    return [
        collections.OrderedDict(
            examples=tf.data.Dataset.from_tensor_slices(collections.OrderedDict(x=x[:size], y=y[:size])),
            client_id=np.int32(i),
        )
        for i, size in enumerate(sizes)
    ]


def test_the_collected_signatures_in_the_runtime(tff_worker, digits):
    signature = build_subspace(SPEC, 3)
    _, collected = build_collection(signature)(signature.context, clients(digits, [20, 2, 30]))
    rows = by_client(collected, [0, 1, 2])
    assert rows["mask"].tolist() == [[True] * 3, [True, True, False], [True] * 3]
    expected = np.linalg.svd(matrix(digits, 30))[0][:, :3]
    assert scipy.linalg.subspace_angles(expected, rows["basis"][2]).max() < 1e-3


@pytest.mark.slow
def test_the_collection_as_map_reduce_form(tff_worker, worker, digits):
    """The computation rebuilt from its MapReduceForm gives the same signatures."""
    signature = build_subspace(SPEC, 2, per_class=True, num_classes=10, max_classes=4)
    computation = build_collection(signature)
    cohort = clients(digits, [25, 40])
    direct = by_client(computation(signature.context, cohort)[1], [0, 1])
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(computation)
    rebuilt = tff.backends.mapreduce.get_computation_for_map_reduce_form(form)
    tff.backends.test.set_sync_test_cpp_execution_context()
    try:
        again = by_client(rebuilt(signature.context, cohort)[1], [0, 1])
    finally:
        worker.use_local_worker()
    np.testing.assert_allclose(again["basis"], direct["basis"], atol=1e-6)
    np.testing.assert_array_equal(again["mask"], direct["mask"])


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_vectors": 0}, "num_vectors is 0; it must be from 1 to the number of features, 64"),
        ({"num_vectors": 65}, "from 1 to the number of features, 64"),
        ({"method": "grem"}, "did you mean 'gram'"),
        ({"per_class": True}, "needs num_classes"),
        ({"per_class": True, "num_classes": 10, "max_classes": 11}, "max_classes is 11"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(UserError, match=message):
        build_subspace(SPEC, **options)


def signed(digits, rows=slice(0, 90), **options):
    signature = build_subspace(SPEC, 6, **options)
    examples = collections.OrderedDict(x=digits[0][rows], y=digits[1][rows])
    found = signature.stacked()(signature.context, examples)
    return np.asarray(found["basis"]), np.asarray(found["mask"])


def same_space(first, second) -> bool:
    return scipy.linalg.subspace_angles(first, second).max() < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("energy", [0.9, 0.5, 0.8, 0.95, 1.0])
def test_as_many_vectors_as_hold_the_energy(digits, method, energy):
    data = matrix(digits, 80).astype(float)
    squares = np.linalg.svd(data, compute_uv=False) ** 2
    held = np.cumsum(squares) / squares.sum()
    count = min(8, 1 + int(np.argmax(held >= energy - 1e-12)))
    basis, mask = left_singular_vectors(data, 8, method, energy)
    assert mask.numpy().tolist() == [place < count for place in range(8)]
    np.testing.assert_array_equal(basis.numpy()[:, count:], 0)


@pytest.mark.slow
def test_vectors_of_centred_and_of_normalised_data(tff_worker, digits):
    from tffcl.models.classifiers import build_mlp

    data = matrix(digits, 90).astype(float)
    model = build_mlp((8, 8, 1), 10, hidden=4, normalization=(0.3, 0.4))
    for preprocess, expected in (
        (None, data), ("raw", data), ("centred", data - data.mean(axis=1, keepdims=True)),
        (model.preprocess, (data - 0.3) / 0.4),
    ):  # fmt: skip
        basis, _ = signed(digits, preprocess=preprocess)
        assert same_space(basis, np.linalg.svd(expected, full_matrices=False)[0][:, :6])


@pytest.mark.slow
def test_a_signature_of_some_of_the_examples(tff_worker, digits):
    few, mask = signed(digits, samples=4)
    assert mask.tolist() == [True] * 4 + [False] * 2  # the rank of four images
    np.testing.assert_array_equal(few, signed(digits, samples=4)[0])
    images = matrix(digits, 90)
    inside = np.linalg.norm(few @ (few.T @ images) - images, axis=0) < 1e-3
    assert inside.sum() == 4
    whole, mask = signed(digits)
    np.testing.assert_array_equal(signed(digits, samples=90)[1], mask)
    assert same_space(signed(digits, samples=500)[0], whole)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_the_basis_of_data_that_are_not_finite_is_not_either(digits, method, value):
    """An eigenvalue decomposition of it would stop the worker, with an error that names no client."""
    for count in (50, 150):
        data = matrix(digits, count)
        data[3, 7] = value
        basis, mask = left_singular_vectors(data, 3, method)
        assert np.isnan(basis).all() and not mask.numpy().any()


@pytest.mark.parametrize("options", [{}, {"noise_multiplier": 0.1, "noise_seed": 1}])
def test_examples_that_overflow_are_seen_unless_noise_hides_what_clients_hold(tff_worker, options):
    """Single numbers are finite, and their mean is not."""
    spec = collections.OrderedDict(x=tf.TensorSpec((8,), tf.float32), y=tf.TensorSpec((), tf.int32))
    signature = build_subspace(spec, 2, preprocess="centred", **options)
    x, y = np.random.default_rng(0).random((20, 8), np.float32), np.zeros(20, np.int32)
    value = build_signing(signature)(Population.from_arrays({0: (x, y), 1: (x * np.float32(3e38), y)}))
    assert np.isfinite(value["basis"]).all(axis=(1, 2)).tolist() == [True, bool(options)]
