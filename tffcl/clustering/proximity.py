"""Proximity of clients: the angles between the subspaces that their signatures span.

Source: Vahidian et al., "Efficient Distribution Similarity Identification in Clustered Federated
Learning via Principal Angles Between Client Data Subspaces" (PACFL), AAAI 2023, Eq. 1-3.
Method: Björck and Golub, "Numerical methods for computing angles between linear subspaces",
Mathematics of Computation 27 (1973): the cosines of the principal angles between two subspaces are the
singular values of U'W, where U and W are orthonormal bases.
"""

import dataclasses
import math
from collections.abc import Callable
from concurrent import futures

import joblib
import numpy as np

from tffcl.choices import ANGLES
from tffcl.errors import UserError, unknown

# A column adds a dimension if its part outside the others' span is at least this long (columns have length
# 1). Dependent float32 columns leave about 1e-7 of rounding; real differences are far above 1e-5.
_RANK_TOLERANCE = 1e-5

# A squared cosine this near to 1 cannot be told from 1 after float64 sums of some thousand terms; it is
# reported as an angle of exactly 0. It stands for 8e-6 degrees.
_COSINE_SQUARED_OF_ZERO = 1.0 - 2e-14

# Larger blocks are not faster (the products are large enough, and the inputs of the eigenvalue routine leave the
# cache), and they spread less evenly over the threads.
_LARGEST_SIDE = 128

# The cosine of three times the angle of the trigonometric solution; it is -1 if the two largest of three eigenvalues
# are equal. Below this value its error is larger than that of the sums.
_NEARLY_EQUAL = -0.9

# Signatures are prepared in parts of about this size: memory that is used again is several times faster than
# memory that the system must first provide.
_PART_BYTES = 16 * 2**20


@dataclasses.dataclass(frozen=True)
class _Vectors:
    """Vectors of several clients, ready for one large product.

    Attributes:
      rows: Float64 [N, q, d]: the vectors, each of length 1, or zero for a missing one.
      real: Bool [N, q]: which vectors exist.
    """

    rows: np.ndarray
    real: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, clients: slice) -> "_Vectors":
        return _Vectors(self.rows[clients], self.real[clients])


def principal_angles(
    bases: np.ndarray,
    mask: np.ndarray | None = None,
    *,
    metric: str = "smallest_angle",
    others: np.ndarray | None = None,
    others_mask: np.ndarray | None = None,
    max_bytes: int = 256 * 2**20,
) -> np.ndarray:
    """Computes the proximity of all pairs of clients, in degrees (0: alike).

    Measures (columns are scaled to length 1 first, and zero columns count as absent):

    * "smallest_angle", PACFL Eq. 2: the smallest principal angle, i.e. arccos of the largest singular value
      of Ui'Uj. Between 0 and 90.
    * "angle_sum", the text under PACFL Table 1: the sum of all principal angles. There are as many as the
      smaller of the two subspaces has dimensions, so a client with fewer columns gets smaller sums.
    * "trace", PACFL Eq. 3: the sum over k of arccos|ui_k . uj_k|, the angle between corresponding columns in
      identical order. The absolute value is not in the paper; the sign of a singular vector is arbitrary.
      If the masks differ, only columns that are real in both clients count, so sums over different numbers
      of columns are compared. It depends on the order of the columns, not just on the subspaces.
    * "smallest_entry", the authors' released code: the minimum over all k, l of arccos|ui_k . uj_l|. Their
      code has no absolute value; it works there because the leading singular vector of non-negative images
      has entries of one sign, and one LAPACK build gives all clients the same sign. Another build, or
      centred data, need not; hence the absolute value here. Never below "smallest_angle".

    The first two are properties of the subspaces, so they need orthonormal bases: every client's columns are
    orthonormalised first (QR, then SVD of R with a rank decision), also those that are nearly orthonormal.
    The other two compare the columns as they are.

    Accuracy: everything runs in float64. Float32 products would leave 1e-7 in the cosine, which near 1 is
    0.03 degrees; a column whose length is wrong by 1e-4 would leave 0.8 degrees. In float64, with exactly
    orthonormal bases, an angle is right to about 1e-6 degrees for the float32 numbers that were given.
    Angles under 8e-6 degrees are reported as 0.

    Args:
      bases: Float [N, d, q]: one signature per client, its basis vectors as columns.
      mask: Bool [N, q]: which columns are real; None: all. Columns that are not real are ignored.
      metric: One of `ANGLES`.
      others: Float [M, d, q2]: a second set of clients; the result is then bases against others.
      others_mask: Bool [M, q2], the mask of `others`.
      max_bytes: Bound on the temporary arrays of all threads together. Besides them there are the result and
        a float64 copy of the bases.

    Returns:
      Float32 [N, N], symmetric with a diagonal of exactly 0; or [N, M] if `others` is given. Degrees.

    Raises:
      UserError: For an unknown metric, wrong shapes, a signature with NaN, infinity or no real column
        (the message gives the client's index), or, with "trace", two clients that share no real column.
    """
    if metric not in _METRICS:
        raise unknown("metric", metric, ANGLES)
    if max_bytes < 1:
        raise UserError(f"max_bytes is {max_bytes}; it must be at least 1")
    if others is None and others_mask is not None:
        raise UserError("others_mask is given without others")
    of_subspaces = metric in ("smallest_angle", "angle_sum")
    left = _prepare(bases, mask, "client", of_subspaces, max_bytes)
    right = left if others is None else _prepare(others, others_mask, "other client", of_subspaces, max_bytes)
    if left.rows.shape[2] != right.rows.shape[2]:
        raise UserError(
            f"bases have {left.rows.shape[2]} features and others {right.rows.shape[2]}; they must be equal"
        )
    if metric == "trace":
        _check_common_columns(left, right)
    return _all_pairs(left, right, _METRICS[metric], max_bytes)


def _prepare(bases, mask, who: str, orthonormal: bool, max_bytes: int) -> _Vectors:
    """Checks the signatures and returns unit (or orthonormal) float64 vectors, a bounded part at a time."""
    bases, mask = _checked(bases, mask, who)
    count, dimension, columns = bases.shape
    kept = min(dimension, columns) if orthonormal else columns
    result = _Vectors(np.zeros((count, kept, dimension)), np.zeros((count, kept), bool))
    # Five float64 copies of a part exist at once.
    step = max(1, min(max_bytes, _PART_BYTES) // max(1, 5 * 8 * dimension * columns))
    for start in range(0, count, step):
        part = slice(start, start + step)
        vectors, real = _unit_columns(bases[part], mask[part], who, start)
        if orthonormal:
            vectors, real = _orthonormal_columns(vectors)
        result.rows[part] = vectors.transpose(0, 2, 1)
        result.real[part] = real
    return result


def _checked(bases, mask, who: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the signatures and their mask as arrays of the right shapes and types."""
    bases = np.asarray(bases)
    if bases.ndim != 3 or bases.dtype.kind not in "fiu":
        raise UserError(
            f"signatures of the {who}s are {bases.dtype} of shape {bases.shape}; they must be numbers of "
            "shape [clients, features, columns]"
        )
    wanted = (bases.shape[0], bases.shape[2])
    mask = np.ones(wanted, bool) if mask is None else np.asarray(mask)
    if mask.shape != wanted or mask.dtype != bool:
        raise UserError(
            f"the mask of the {who}s is {mask.dtype} of shape {mask.shape}; it must be bool of shape {wanted}"
        )
    return bases, mask


def _unit_columns(bases: np.ndarray, mask: np.ndarray, who: str, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Scales columns to length 1 in float64; `first` is the index of the first client, for messages."""
    bad = ~np.isfinite(bases).all(axis=(1, 2))
    if bad.any():
        raise UserError(f"the signature of {who} {first + bad.argmax()} has NaN or infinite entries")
    columns = bases.astype(np.float64)
    lengths = np.sqrt(np.einsum("ndq,ndq->nq", columns, columns))
    real = mask & (lengths > 0)
    empty = ~real.any(axis=1)
    if empty.any():
        raise UserError(f"the signature of {who} {first + empty.argmax()} has no real, non-zero column")
    columns *= (real / np.where(real, lengths, 1.0))[:, None, :]
    return columns, real


def _orthonormal_columns(columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns orthonormal bases [n, d, min(d, q)] of the columns' spans and which of their columns exist."""
    q, r = np.linalg.qr(columns)
    rotation, lengths, _ = np.linalg.svd(r, full_matrices=False)
    real = lengths > _RANK_TOLERANCE * lengths[:, :1]
    return (q @ rotation) * real[:, None, :], real


def _check_common_columns(left: _Vectors, right: _Vectors) -> None:
    """Raises UserError if some pair has no column that is real in both (its sum would be an empty 0)."""
    common = min(left.real.shape[1], right.real.shape[1])
    # There are far fewer different masks than clients.
    ours, our_client = np.unique(left.real[:, :common], axis=0, return_index=True)
    theirs, their_client = np.unique(right.real[:, :common], axis=0, return_index=True)
    disjoint = np.argwhere(ours.astype(int) @ theirs.astype(int).T == 0)
    if len(disjoint):
        i, j = disjoint[0]
        raise UserError(
            f"client {our_client[i]} and client {their_client[j]} share no real column; "
            'metric "trace" needs one, the other metrics do not'
        )


def _all_pairs(left: _Vectors, right: _Vectors, metric: Callable, max_bytes: int) -> np.ndarray:
    """Runs `metric` on blocks of pairs, several at a time, and puts the matrix together.

    Every block writes its own part of the result, so the threads need no lock; NumPy releases the
    interpreter's lock in the products and in the eigenvalue routines.
    """
    symmetric = left is right
    result = np.zeros((len(left), len(right)), np.float32)
    workers = joblib.cpu_count()
    side = _block_side(left.rows.shape[1], right.rows.shape[1], max_bytes // workers)

    def fill(corner: tuple[int, int]) -> None:
        across, down = (slice(start, start + side) for start in corner)
        block = metric(left[across], right[down])
        if symmetric and corner[0] == corner[1]:
            block = np.triu(block, 1)
            block += block.T
        result[across, down] = block
        if symmetric:
            result[down, across] = block.T

    starts = range(0, len(left), side)
    corners = [(i, j) for i in starts for j in range(i if symmetric else 0, len(right), side)]
    with futures.ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(fill, corners):
            pass
    return result


def _block_side(q_left: int, q_right: int, budget: int) -> int:
    """Returns how many clients a block may have on each side to stay within `budget` bytes."""
    few = min(q_left, q_right)
    # Per pair: the product, its reordered copy, the Gram matrix, and vectors of eigenvalues and angles.
    pair_bytes = 8 * (2 * q_left * q_right + few * few + 4 * few + 4)
    return min(_LARGEST_SIDE, max(1, math.isqrt(budget // pair_bytes)))


def _products(left: _Vectors, right: _Vectors) -> np.ndarray:
    """Returns all dot products, [n, q, m, q2], as one large matrix product."""
    n, q, dimension = left.rows.shape
    m, q2, _ = right.rows.shape
    flat = left.rows.reshape(n * q, dimension) @ right.rows.reshape(m * q2, dimension).T
    return flat.reshape(n, q, m, q2)


def _squared_cosines(left: _Vectors, right: _Vectors) -> np.ndarray:
    """Returns the squared cosines of the principal angles, [n, m, min(q, q2)], ascending.

    They are the eigenvalues of the Gram matrix of U'W. Squaring costs accuracy only for cosines near 0, by
    1e-8 at most, and a symmetric eigenvalue problem costs about half of an SVD.
    """
    products = np.ascontiguousarray(_products(left, right).transpose(0, 2, 1, 3))
    swapped = products.swapaxes(-1, -2)
    gram = products @ swapped if products.shape[2] <= products.shape[3] else swapped @ products
    return np.linalg.eigvalsh(gram)


def _degrees(squared_cosines: np.ndarray) -> np.ndarray:
    """Returns the angles in degrees; see `_COSINE_SQUARED_OF_ZERO`."""
    rounded = np.where(squared_cosines >= _COSINE_SQUARED_OF_ZERO, 1.0, np.maximum(squared_cosines, 0.0))
    return np.degrees(np.arccos(np.sqrt(rounded)))


def _smallest_angle(left: _Vectors, right: _Vectors) -> np.ndarray:
    if left.rows.shape[1] == right.rows.shape[1] == 3:
        return _degrees(_largest_of_three(_products(left, right)))
    return _degrees(_squared_cosines(left, right)[:, :, -1])


def _largest_of_three(products: np.ndarray) -> np.ndarray:
    """Returns the largest squared singular value of all matrices 3 x 3, `products [n, 3, m, 3]`.

    It uses the trigonometric solution of the Gram matrix's cubic (Smith, "Eigenvalues of a symmetric 3 x 3 matrix",
    Communications of the ACM 4(4), 1961), which is a third of the time of an eigenvalue routine for each small matrix.
    It is exact to some 1e-15, except if the two largest values are nearly equal; then the routine is used.
    """
    column = [np.ascontiguousarray(products[:, :, :, place].swapaxes(0, 1)) for place in range(3)]
    a, b, c = (np.einsum("knm,knm->nm", each, each) for each in column)
    d, e, f = (np.einsum("knm,knm->nm", column[i], column[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    mean = (a + b + c) / 3
    a, b, c = a - mean, b - mean, c - mean
    spread = np.sqrt((a * a + b * b + c * c + 2 * (d * d + e * e + f * f)) / 6)
    determinant = a * (b * c - f * f) - d * (d * c - f * e) + e * (d * f - b * e)
    cubed = spread**3
    ratio = np.divide(determinant, 2 * cubed, out=np.ones_like(cubed), where=cubed > 0)
    found = mean + 2 * spread * np.cos(np.arccos(np.clip(ratio, -1, 1)) / 3)
    near = np.nonzero(ratio < _NEARLY_EQUAL)
    if len(near[0]):
        matrices = products[near[0], :, near[1]]
        found[near] = np.linalg.eigvalsh(matrices @ matrices.swapaxes(1, 2))[:, -1]
    return found


def _angle_sum(left: _Vectors, right: _Vectors) -> np.ndarray:
    angles = _degrees(_squared_cosines(left, right))
    dimensions = np.minimum(left.real.sum(axis=1)[:, None], right.real.sum(axis=1)[None, :])
    # Absent vectors give cosines of 0; they come first, since the cosines ascend.
    absent = np.arange(angles.shape[2]) < angles.shape[2] - dimensions[:, :, None]
    return np.where(absent, 0.0, angles).sum(axis=2)


def _trace(left: _Vectors, right: _Vectors) -> np.ndarray:
    total = np.zeros((len(left), len(right)))
    for k in range(min(left.rows.shape[1], right.rows.shape[1])):
        angles = _degrees((left.rows[:, k] @ right.rows[:, k].T) ** 2)
        total += np.where(left.real[:, k, None] & right.real[None, :, k], angles, 0.0)
    return total


def _smallest_entry(left: _Vectors, right: _Vectors) -> np.ndarray:
    # Absent vectors give products of 0, which never exceed the others.
    return _degrees(np.abs(_products(left, right)).max(axis=(1, 3)) ** 2)


_METRICS = {
    "smallest_angle": _smallest_angle,
    "angle_sum": _angle_sum,
    "trace": _trace,
    "smallest_entry": _smallest_entry,
}
