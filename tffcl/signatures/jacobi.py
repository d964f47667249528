"""Eigenvectors of a small symmetric matrix by Jacobi's rotations, for devices, whose runtimes have no such operation."""

import numpy as np
import tensorflow as tf

_SWEEPS = 20
_TOLERANCE = 1e-14


def _next_partners(size: int) -> np.ndarray:
    """The permutation that, again and again, brings every pair of `size` numbers to neighbouring places (a round robin)."""
    upper, lower = list(range(0, size, 2)), list(range(1, size, 2))
    turned_upper = [upper[0], lower[0], *upper[1:-1]] if size > 2 else upper
    turned_lower = [*lower[1:], upper[-1]] if size > 2 else lower
    return np.stack([turned_upper, turned_lower], axis=1).ravel().astype(np.int32)


def _rotate(columns, cosine, sine):
    """Rotates neighbouring columns in their planes."""
    first, second = columns[:, 0::2], columns[:, 1::2]
    turned = tf.stack([cosine * first - sine * second, sine * first + cosine * second], axis=-1)
    return tf.reshape(turned, tf.shape(columns))


def symmetric_eigenpairs(matrix):
    """Computes all eigenpairs of a symmetric matrix by the cyclic Jacobi method, all disjoint planes at a time.

    Golub and Van Loan, Matrix Computations, section 8.5 (symmetric Schur decomposition, parallel ordering).

    Args:
      matrix: `float64 [n, n]`; n is known and even.

    Returns:
      `(values [n] in descending order, vectors [n, n] in columns)`.
    """
    size = matrix.shape[0]
    partners = tf.constant(_next_partners(size))
    scale = tf.norm(matrix)

    def turn(number, matrix, vectors):
        diagonal = tf.linalg.diag_part(matrix)
        beside = tf.linalg.diag_part(matrix[0::2, 1::2])
        tau = tf.math.divide_no_nan(diagonal[1::2] - diagonal[0::2], 2 * beside)
        sign = tf.where(tau < 0, -tf.ones_like(tau), tf.ones_like(tau))
        tangent = tf.where(tf.equal(beside, 0), tf.zeros_like(tau), sign / (tf.abs(tau) + tf.sqrt(1 + tau * tau)))
        cosine = tf.math.rsqrt(1 + tangent * tangent)
        sine = tangent * cosine
        both = tf.gather(_rotate(tf.concat([matrix, vectors], 0), cosine, sine), partners, axis=1)
        matrix = tf.gather(_rotate(tf.transpose(both[:size]), cosine, sine), partners, axis=1)
        return number + 1, tf.ensure_shape(tf.transpose(matrix), [size, size]), tf.ensure_shape(both[size:], [size, size])

    def sweep(number, matrix, vectors, off):
        del off
        _, matrix, vectors = tf.while_loop(
            lambda stage, *_: stage < size - 1, turn, (0, matrix, vectors), parallel_iterations=1
        )
        return number + 1, matrix, vectors, tf.norm(matrix - tf.linalg.diag(tf.linalg.diag_part(matrix)))

    _, matrix, vectors, _ = tf.while_loop(
        lambda number, _, __, off: tf.logical_and(number < _SWEEPS, off > _TOLERANCE * scale),
        sweep,
        (0, matrix, tf.eye(size, dtype=matrix.dtype), scale),
        parallel_iterations=1,
    )
    values, order = tf.math.top_k(tf.linalg.diag_part(matrix), size)
    return values, tf.gather(vectors, order, axis=1)
