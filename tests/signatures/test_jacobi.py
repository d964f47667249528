import numpy as np
import pytest
import tensorflow as tf

from tffcl.signatures.subspace import symmetric_eigenpairs


@pytest.mark.parametrize("size", [2, 4, 12, 20])
def test_pairs_are_lapacks(size):
    matrix = np.random.default_rng(size).standard_normal((size, size))
    matrix += matrix.T
    values, vectors = (part.numpy() for part in symmetric_eigenpairs(tf.constant(matrix)))
    np.testing.assert_allclose(values, np.linalg.eigvalsh(matrix)[::-1], atol=1e-12)
    np.testing.assert_allclose(matrix @ vectors, vectors * values, atol=1e-12)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(size), atol=1e-12)


@pytest.mark.parametrize("values", [[0.0] * 4, [3.0, 3, 3, 1], [1e-9, 1, 1e9, 2]])
def test_equal_and_far_values(values):
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((4, 4)))[0]
    matrix = turn * values @ turn.T
    found, vectors = (part.numpy() for part in symmetric_eigenpairs(tf.constant((matrix + matrix.T) / 2)))
    scale = max(max(values), 1e-30)
    np.testing.assert_allclose(found / scale, np.sort(values)[::-1] / scale, atol=1e-13)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(4), atol=1e-13)
