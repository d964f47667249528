"""PACFL's signature: the first left singular vectors of a client's data matrix (PACFL §2, "truncated SVD")."""

import collections
import functools

import numpy as np
import tensorflow as tf

from tffcl.client_work.client_work import as_features, feature_rows, num_features, stack, visiting_order
from tffcl.errors import UserError, unknown
from tffcl.models.graph_function import traced_once
from tffcl.signatures.signature import Signature, build_signature, noised, own_noise

METHODS = ("gram", "power")

# Singular values below this share of the largest are rounding errors: their directions are not the data's.
_RANK_TOLERANCE = 1e-6

# The relative residual at which an iteration has found a pair, and the number of checks after which it gives up.
_RESIDUAL = 1e-10
_LOOKS = 60
_DEPTH, _RESTARTS = 10, 6  # blocks in a Krylov space, and the number of such spaces


def _by_gram(data, num_vectors):
    """Leading singular vectors: without a Gram matrix if they are few among many, else with one."""

    def leading():
        values, basis, converged = _krylov_iteration(data, num_vectors)
        return tf.cond(converged, lambda: (values, basis), all_vectors)

    def all_vectors():
        return _by_gram_matrix(data, num_vectors, _largest)

    # A Krylov space is worth its cost if it is a small part of the whole space.
    small = max(_few(num_vectors), 2 * _DEPTH * (num_vectors + 1))
    if data.shape[0] is not None and data.shape[0] <= small:
        return all_vectors()
    return tf.cond(tf.reduce_min(tf.shape(data)) > small, leading, all_vectors)


def _by_gram_matrix(data, num_vectors, largest):
    """Singular vectors from the eigenvectors of the smaller of D D' and D' D, in float64 (a Gram matrix squares
    errors)."""

    def from_samples():  # fewer samples than features: u = D v / sigma
        values, right = largest(tf.matmul(data, data, transpose_a=True), num_vectors)
        return values, tf.math.divide_no_nan(tf.matmul(data, right), values)

    def from_features():
        return largest(tf.matmul(data, data, transpose_b=True), num_vectors)

    return tf.cond(tf.shape(data)[1] < tf.shape(data)[0], from_samples, from_features)


def _largest(gram, count):
    """The `count` largest eigenpairs of a Gram matrix `[m, m]`: square roots of the values, and vectors `[m,
    count]`."""

    def all_pairs():
        squares, vectors = tf.linalg.eigh(gram)  # ascending
        return squares[::-1][:count], vectors[:, ::-1][:, :count]

    def leading_pairs():
        squares, vectors, converged = _subspace_iteration(gram, count)
        return tf.cond(converged, lambda: (squares, vectors), all_pairs)

    if gram.shape[0] is not None:
        squares, vectors = leading_pairs() if gram.shape[0] > _few(count) else all_pairs()
    else:
        squares, vectors = tf.cond(tf.shape(gram)[0] > _few(count), leading_pairs, all_pairs)
    return tf.sqrt(tf.maximum(squares, 0)), vectors


def _few(count: int) -> int:
    """The number of samples or features up to which all eigenpairs are found as fast as the leading ones."""
    return 100 + count


def _eigenpairs(matrix):
    """All eigenpairs of a small symmetric matrix, largest first."""
    values, vectors = tf.linalg.eigh(matrix)
    return values[::-1], vectors[:, ::-1]


def _subspace_iteration(gram, count, block=None, *, eigenpairs=_eigenpairs, steps=1, looks=_LOOKS):
    """Leading eigenpairs by block power iteration with Rayleigh-Ritz, an order of magnitude faster than all pairs.

    Images' spectra fall steeply, so a few iterations suffice; for others (noise), `converged` is False.

    Args:
      gram: `[m, m]`.
      count: The number of pairs.
      block: The number of columns, above `count`: convergence depends on the ratio to the first one left out.
      eigenpairs: Computes the eigenpairs of a matrix `[block, block]`, largest first.
      steps: Iterations between two checks of the residual.
      looks: The number of checks after which it gives up.

    Returns:
      `(squares [count], vectors [m, count], converged bool)`.
    """
    block = block or count + 8

    def improve(columns):
        for _ in range(steps):
            columns = tf.ensure_shape(tf.linalg.qr(tf.matmul(gram, tf.matmul(gram, columns))).q, [None, block])
        image = tf.matmul(gram, columns)
        values, turn = eigenpairs(tf.ensure_shape(tf.matmul(columns, image, transpose_a=True), [block, block]))
        values, vectors = tf.ensure_shape(values, [block]), tf.ensure_shape(tf.matmul(columns, turn), [None, block])
        return vectors, values, tf.matmul(image, turn)

    return _until_found(improve, count, tf.shape(gram)[0], block, gram.dtype, looks)


def _krylov_iteration(data, count):
    """Leading left singular vectors by a block Krylov method with restarts.

    The space of K = [Q, A Q, A^2 Q, ...], A = D D', contains far better vectors than the last of its powers (Musco and
    Musco, "Randomized block Krylov methods", 2015, Alg. 2), and A, the costly product, is never formed. Rayleigh-Ritz
    on K finds the best vectors, which start the next space.

    Args:
      data: D `[d, n]`.

    Returns:
      `(values [count], vectors [d, count], converged bool)`.
    """
    block = count + 1

    def improve(columns):
        spaces = [columns]
        for _ in range(_DEPTH - 1):
            image = tf.matmul(data, tf.matmul(data, spaces[-1], transpose_a=True))
            spaces.append(tf.ensure_shape(tf.linalg.qr(image).q, [None, block]))
        basis = tf.linalg.qr(tf.concat(spaces, 1)).q
        seen = tf.matmul(data, basis, transpose_a=True)
        values, turn = _eigenpairs(tf.matmul(seen, seen, transpose_a=True))
        values, turn = tf.ensure_shape(values[:block], [block]), turn[:, :block]
        vectors = tf.ensure_shape(tf.matmul(basis, turn), [None, block])
        return vectors, values, tf.matmul(data, tf.matmul(seen, turn))

    squares, vectors, converged = _until_found(improve, count, tf.shape(data)[0], block, data.dtype, _RESTARTS)
    return tf.sqrt(tf.maximum(squares, 0)), vectors, converged


def _until_found(improve, count: int, size, block: int, dtype, looks: int):
    """Improves random columns until the leading ones are eigenvectors.

    Args:
      improve: Maps columns `[size, block]` to better ones, their Rayleigh quotients `[block]`, largest first, and their
        images.
      count: How many of them must be found.
      size: m.
      block: The number of columns.
      dtype: Their type.
      looks: The number of checks after which it gives up.

    Returns:
      `(squares [count], vectors [m, count], converged bool)`.
    """
    start = tf.random.stateless_normal([size, block], seed=[1, 2], dtype=dtype)

    def look(number, columns, squares, error):
        del squares, error
        vectors, values, image = improve(columns)
        residual = tf.norm(image - vectors * values, axis=0)[:count]
        return number + 1, vectors, values, tf.math.divide_no_nan(tf.reduce_max(residual), values[0])

    _, vectors, values, error = tf.while_loop(
        lambda number, columns, squares, error: tf.logical_and(number < looks, error > _RESIDUAL),
        look,
        (0, start, tf.zeros([block], dtype), tf.constant(1.0, dtype)),
        shape_invariants=(
            tf.TensorShape([]),
            tf.TensorShape([None, block]),
            tf.TensorShape([block]),
            tf.TensorShape([]),
        ),
        parallel_iterations=1,
    )
    return values[:count], vectors[:, :count], error <= _RESIDUAL


def _largest_by_power(gram, count):
    """As `_largest`, but by block power iteration alone and without a fallback. It uses only operations that device
    runtimes have: matrix products, QR, and Jacobi rotations for a small matrix."""
    block = count + 8 + count % 2  # even, as Jacobi rotations need
    missing = tf.maximum(block - tf.shape(gram)[0], 0)  # more zero eigenvalues, whose vectors are not used
    padded = tf.pad(gram, [[0, missing], [0, missing]])
    squares, vectors, _ = _subspace_iteration(
        padded, count, block, eigenpairs=symmetric_eigenpairs, steps=2, looks=10 * _LOOKS
    )
    return tf.sqrt(tf.maximum(squares, 0)), vectors[: tf.shape(gram)[0]]


_PAIRS = {"gram": _largest, "power": _largest_by_power}
_BY = {"gram": _by_gram, "power": functools.partial(_by_gram_matrix, largest=_largest_by_power)}


@traced_once
def left_singular_vectors(data, num_vectors: int, method: str = "gram", energy: float = 1.0):
    """Computes the `num_vectors` most significant left singular vectors of `data`.

    Each vector's sign is fixed so that its entry of largest magnitude is positive.

    Args:
      data: `float [d, n]`, samples in columns; n may be 0 or smaller than `num_vectors`.
      num_vectors: p.
      method: "gram" (leading eigenvectors of D D', whole or by Krylov spaces, whichever is faster) or "power" (by
        operations that a device's runtime has).
      energy: Returns only as many vectors as this share of the data's sum of squares needs; 1: all p.

    Returns:
      `(basis float32 [d, p], mask bool [p])`; columns beyond the rank of the data, or the energy, are zero and masked.
      Of data that are not finite the basis is NaN.
    """
    data = tf.cast(data, tf.float64)
    finite = tf.reduce_all(tf.math.is_finite(data))
    # Otherwise, as after an overflow, the decomposition would stop the worker with an error that names no client.
    data = tf.where(finite, data, tf.zeros_like(data))
    values, basis = _BY[method](data, num_vectors)
    missing = num_vectors - tf.shape(values)[0]
    values, basis = tf.pad(values, [[0, missing]]), tf.pad(basis, [[0, 0], [0, missing]])
    mask = values > _RANK_TOLERANCE * tf.reduce_max(tf.pad(values, [[0, 1]]))
    if energy < 1.0:
        before = tf.math.cumsum(tf.square(values), exclusive=True)
        mask = tf.logical_and(mask, before < energy * tf.reduce_sum(tf.square(data)))
    basis = tf.where(finite, _with_signs(tf.where(mask, basis, tf.zeros_like(basis))), np.nan)
    return tf.ensure_shape(basis, [data.shape[0], num_vectors]), tf.ensure_shape(mask, [num_vectors])


@traced_once
def class_singular_vectors(
    data, labels, num_vectors: int, num_classes: int, max_classes: int, method: str = "gram", energy: float = 1.0
):
    """Computes left singular vectors class by class and puts them side by side, in order of the labels.

    Args:
      data: `float [d, n]`, samples in columns.
      labels: `int [n]`.
      num_vectors: p per class.
      num_classes: Labels are 0 to `num_classes - 1`.
      max_classes: The largest number of classes; a client with more uses those with most examples.
      method: As in `left_singular_vectors`.
      energy: As in `left_singular_vectors`, for each class.

    Returns:
      `(basis float32 [d, max_classes * p], mask bool [max_classes * p])`. Columns are orthonormal within a class only.
    """
    counts = tf.math.bincount(labels, minlength=num_classes, maxlength=num_classes)
    most = tf.math.top_k(counts, max_classes).indices
    present = tf.sort(tf.where(tf.gather(counts, most) > 0, most, num_classes))  # absent ones last

    def of_class(label):
        members = tf.boolean_mask(data, tf.equal(labels, label), axis=1)
        return left_singular_vectors(members, num_vectors, method, energy)

    bases, masks = tf.map_fn(of_class, present, fn_output_signature=(tf.float32, tf.bool), parallel_iterations=1)
    features = data.shape[0]
    basis = tf.reshape(tf.transpose(bases, [1, 0, 2]), [features, max_classes * num_vectors])
    return basis, tf.reshape(masks, [max_classes * num_vectors])


def _noised_gram(data, clip: float, noise_multiplier: float, seed):
    """The mean of x x' `float64 [d, d]` with symmetric noise, shifted so that no eigenvalue is below zero."""
    # Numbers that are not finite count as zero: an answer of NaN would tell of the data, whatever the noise.
    data = tf.cast(tf.where(tf.math.is_finite(data), data, tf.zeros_like(data)), tf.float64)
    scaled = data / tf.maximum(tf.norm(data, axis=0, keepdims=True), tf.cast(clip, tf.float64))
    gram = tf.math.divide_no_nan(tf.matmul(scaled, scaled, transpose_b=True), tf.cast(tf.shape(data)[1], tf.float64))
    # the lower half repeats the upper one
    upper = tf.linalg.band_part(noised(gram, noise_multiplier, seed), 0, -1)
    symmetric = upper + tf.linalg.matrix_transpose(upper) - tf.linalg.diag(tf.linalg.diag_part(upper))
    return symmetric + tf.norm(symmetric) * tf.eye(tf.shape(gram)[0], dtype=gram.dtype)


def _with_signs(basis):
    """The columns `float32`, each with the sign that makes its entry of largest magnitude positive."""
    peak = tf.gather(tf.transpose(basis), tf.argmax(tf.abs(basis), axis=0), axis=1, batch_dims=1)
    return tf.cast(tf.where(peak < 0, -basis, basis), tf.float32)


def _centred(x):
    features = as_features(x)
    return features - tf.reduce_mean(features, axis=0)


def _grey(x):
    """Makes the three channels of an image equal (ITU-R BT.601); all else stays unchanged."""
    features = as_features(x)
    coloured = features.shape.rank == 4 and features.shape[-1] == 3
    return tf.image.grayscale_to_rgb(tf.image.rgb_to_grayscale(features)) if coloured else features


_PREPROCESSING = {None: as_features, "raw": as_features, "centred": _centred, "grey": _grey}


def build_subspace(
    example_spec,
    num_vectors: int = 3,
    *,
    per_class: bool = False,
    num_classes: int | None = None,
    max_classes: int | None = None,
    preprocess=None,
    samples: int | None = None,
    energy: float = 1.0,
    method: str = "gram",
    noise_multiplier: float = 0.0,
    clip: float = 1.0,
    noise_seed: int | None = None,
) -> Signature:
    """Builds the signature `V = <basis=float32[d,q],mask=bool[q]>` of a client's data subspace.

    Args:
      example_spec: `tf.TensorSpec` structure of one example, `x` and `y`; the features are the numbers of all inputs.
      num_vectors: p, singular vectors over all data (the paper), or per class; with `energy` at most this many.
      per_class: Whether to use one truncated SVD per class, side by side (the authors' code): q = p * `max_classes`;
        else q = p.
      num_classes: Number of labels; needed with `per_class`.
      max_classes: The largest number of classes; default `num_classes`. Unused room is padding, which is sent all the
        same.
      preprocess: Turns raw examples `[n, ...]` into features; or a name in `PREPROCESSING` except "normalized", for
        which give the model's `preprocess`; default "raw".
      samples: How many of a client's examples to use, drawn at random but always the same; default all.
      energy: As in `left_singular_vectors`.
      method: A name in `METHODS`.
      noise_multiplier: z: the vectors are those of the noised Gram matrix (Dwork et al. 2014, "Analyze Gauss"), the
        mean of x x' over the examples, each scaled to norm `clip` at most, in units of clip². Its norm is 1 at most,
        and each of its coordinates gets Gaussian noise of this standard deviation, symmetrically. This hides the whole
        client; with d features the noise has singular values of about 2 z √d. 0 is neither noise nor clipping.
      clip: The largest norm of an example, with noise.
      noise_seed: See `build_signature`.

    Raises:
      UserError: If p is below 1 or above the number of features, or the class counts are missing or contradictory.
    """
    features = num_features(example_spec)
    if not 1 <= num_vectors <= features:
        raise UserError(f"num_vectors is {num_vectors}; it must be from 1 to the number of features, {features}")
    if method not in METHODS:
        raise unknown("SVD method", method, METHODS)
    if per_class and len(example_spec["y"].shape):
        raise UserError("per_class needs one label for each example; these have a sequence of labels")
    if per_class and not num_classes:
        raise UserError("per_class needs num_classes, the number of labels")
    if noise_multiplier and (per_class or energy < 1):
        raise UserError(
            "noise_multiplier is of a fixed number of vectors of all data; with per_class or energy it must be 0"
        )
    max_classes = max_classes or num_classes
    if per_class and not 1 <= max_classes <= num_classes:
        raise UserError(f"max_classes is {max_classes}; it must be from 1 to the number of classes, {num_classes}")

    whole = preprocess if callable(preprocess) else lambda x: tf.nest.map_structure(_PREPROCESSING[preprocess], x)

    @tf.function(autograph=False)
    def compute(context, examples):
        local = stack(examples)
        if samples is not None:
            count = tf.shape(local["y"])[0]
            chosen = visiting_order(count, tf.stack([count, samples]))[:samples]
            local = tf.nest.map_structure(lambda leaf: tf.gather(leaf, chosen), local)
        data = tf.transpose(feature_rows(example_spec, whole(local["x"])))
        if noise_multiplier:
            gram = _noised_gram(data, clip, noise_multiplier, own_noise(context))
            # Its eigenvectors with the largest eigenvalues: as it is shifted, they are left singular vectors of a
            # matrix.
            _, vectors = _PAIRS[method](gram, num_vectors)
            basis = tf.ensure_shape(_with_signs(vectors), [features, num_vectors])
            mask = tf.ones([num_vectors], tf.bool)
        elif per_class:
            basis, mask = class_singular_vectors(
                data, local["y"], num_vectors, num_classes, max_classes, method, energy
            )
        else:
            basis, mask = left_singular_vectors(data, num_vectors, method, energy)
        return collections.OrderedDict(basis=basis, mask=mask)

    key = num_vectors, per_class, num_classes, max_classes, preprocess, samples, energy, method, noise_multiplier, clip
    key = None if callable(preprocess) else key
    private = {"noise_multiplier": noise_multiplier, "noise_seed": noise_seed}
    return build_signature("subspace", example_spec, compute, key=key, least_examples=num_vectors, **private)


_SWEEPS = 20
_TOLERANCE = 1e-14


def _next_partners(size: int) -> np.ndarray:
    """The permutation that, when it is repeated, brings every pair of `size` numbers to neighbouring places (a round
    robin)."""
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
        return (
            number + 1,
            tf.ensure_shape(tf.transpose(matrix), [size, size]),
            tf.ensure_shape(both[size:], [size, size]),
        )

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
