"""Distances of clients, computed from what they sent. Each function is `(metric, first, second or None) -> float32 [N,
M]` on the arrays of signatures by name, whose rows are clients; without `second`, distances are among the clients of
`first`. Also inference similarity: how alike models answer on the same images (FLIS, arXiv:2208.09754, section II-B,
Alg. 2)."""

import math
from collections.abc import Mapping

import numpy as np
from scipy.spatial import distance

from tffcl.choices import DECOMPOSED, SIMILARITIES
from tffcl.clustering import proximity, taskonomy
from tffcl.clustering.stochastic import cosine_distances
from tffcl.errors import UserError, unknown


def largest_similarity(form: str, num_samples: int, num_classes: int | None) -> float:
    """Returns the largest value that a similarity can take.

    "agreement" reaches 1. "frobenius" does not: with one-hot answers to n images each norm is sqrt(n) and the numerator
    the root of the number of equal answers, so it is at most 1 / sqrt(n), which is 0.02 for the paper's 2,500 images:
    no threshold that the paper uses (0.3 to 0.5) is ever reached. With soft answers over C classes each squared answer
    is at most 1 and the squares of an image's answers sum to at least 1 / C, which bounds it by sqrt(C / n).

    Args:
      form: A name in `SIMILARITIES`.
      num_samples: n, images of the server; of sequences the answers to them.
      num_classes: C for soft answers, None for one-hot ones.

    Raises:
      UserError: If the form is unknown.
    """
    if form not in SIMILARITIES:
        raise unknown("similarity", form, SIMILARITIES)
    if form == "agreement":
        return 1.0
    return min(1.0, math.sqrt((num_classes or 1) / num_samples))


def check_threshold(beta: float, form: str, num_samples: int, num_classes: int | None) -> float:
    """Returns the threshold β if a similarity can reach it.

    Raises:
      UserError: If it is below 0, no number, or above what the form can reach.
    """
    largest = largest_similarity(form, num_samples, num_classes)
    if not 0 <= beta <= 1:
        raise UserError(f"threshold is {beta}; it must be a similarity, from 0 to 1")
    if beta > largest:
        kind = "soft" if num_classes else "one-hot"
        raise UserError(
            f"threshold is {beta}, which no pair can reach: with the frobenius similarity of {num_samples} "
            f"{kind} answers it must be at most {largest:.4g}; agreement goes to 1"
        )
    return float(beta)


def inference_similarity(
    answers: np.ndarray, others: np.ndarray | None = None, *, form: str = "agreement"
) -> np.ndarray:
    """Computes how alike clients' models answer.

    Args:
      answers: `int32 [N, n]`, the most likely class of each of the server's n images (one-hot answers), or
        `float32 [N, n, C]`, soft answers. With several labels an example, as of sequences, `[N, n, L]` or `[N, n, L,
        C]`: each label is an answer.
      others: The same of other clients `[M, ...]`; default the same clients.
      form: A name in `SIMILARITIES`.

    An invalid answer, from outputs that are not finite, is like no other: a class below 0, or probabilities of NaN.

    Returns:
      `float32 [N, M]` in 0 to `largest_similarity`. With "frobenius" a client's similarity to itself is below 1 too.

    Raises:
      UserError: If the form is unknown, or the answers are of different images or kinds.
    """
    if form not in SIMILARITIES:
        raise unknown("similarity", form, SIMILARITIES)
    first, second = np.asarray(answers), np.asarray(answers if others is None else others)
    hard = first.dtype.kind in "iu"
    if first.shape[1:] != second.shape[1:] or first.ndim < (2 if hard else 3) or (second.dtype.kind in "iu") != hard:
        raise UserError(
            f"answers are {first.dtype} {list(first.shape)} and {second.dtype} {list(second.shape)}; they must be "
            "class numbers [N, n] or probabilities [N, n, C] on the same n images"
        )
    if hard:
        first, second = (each.reshape(len(each), -1) for each in (first, second))
        equal = np.stack([((second == row) & (row >= 0)).sum(axis=1) for row in first]).astype(np.float64)
        samples = first.shape[1]
        return ((equal if form == "agreement" else np.sqrt(equal)) / samples).astype(np.float32)
    one, two = (np.nan_to_num(each.reshape(len(each), -1).astype(np.float64)) for each in (first, second))
    products = one @ two.T if form == "agreement" else np.sqrt(one**2 @ (two**2).T)
    norms = np.outer(np.linalg.norm(one, axis=1), np.linalg.norm(two, axis=1))
    return np.divide(products, norms, out=np.zeros_like(products), where=norms > 0).astype(np.float32)


Arrays = Mapping[str, np.ndarray]
_ZERO = 0.1  # degrees; smaller angles are 0 up to rounding
_TELLING = 2.0  # degrees; smaller angles may come from one large column
_ROUNDING = 1e-10  # share of the largest squared singular value; smaller ones are no directions
_SUMS = ("angle_sum", "trace")  # metrics that add angles up


def subspace_angles(metric: str, first: Arrays, second: Arrays | None) -> np.ndarray:
    """Returns principal angles in degrees (PACFL Eq. 2 and 3).

    A client whose data span no direction, e.g. all-zero images, is at 90 degrees an angle from all others, as far as
    clients can be, and at 0 from others like it: the paper does not define its angles, and it must not stop the others.
    If one of two clients has fewer vectors than columns, metrics that add angles have fewer to add. The mean angle then
    counts for each missing one; otherwise a client with a single vector would be nearer to all clients than members of
    one group to each other.

    Args:
      metric: A name in `choices.ANGLES`.
      first: `basis float [N, d, q]` and `mask bool [N, q]`.
      second: The same of others, or None.
    """
    second_or_first = first if second is None else second
    nowhere, others_nowhere = without_direction(first), without_direction(second_or_first)
    given = (
        {} if second is None else dict(zip(("others", "others_mask"), _somewhere(second, others_nowhere), strict=True))
    )
    angles = proximity.principal_angles(*_somewhere(first, nowhere), metric=metric, **given)
    angles_summed, (dimensions, columns) = 1, first["basis"].shape[-2:]
    if metric in _SUMS:
        # The trace adds an angle for each column; there may be more columns than dimensions, e.g. one for each class.
        columns = min(columns, second_or_first["basis"].shape[-1])
        angles_summed = columns if metric == "trace" else min(columns, dimensions)
        angles *= angles_summed / np.maximum(_angles_added(metric, first["mask"], second_or_first["mask"]), 1)
    angles[nowhere[:, None] ^ others_nowhere[None, :]] = 90.0 * angles_summed
    angles[nowhere[:, None] & others_nowhere[None, :]] = 0.0
    return angles


def _angles_added(metric: str, mask: np.ndarray, others: np.ndarray) -> np.ndarray:
    """How many angles a sum adds, `[N, M]`: one for each common column, or for each dimension of the smaller
    subspace."""
    if metric == "trace":
        return np.asarray(mask, np.float32) @ np.asarray(others, np.float32).T
    return np.minimum.outer(np.sum(mask, axis=1), np.sum(others, axis=1)).astype(np.float32)


def scale_remark(signatures: Arrays, angles: np.ndarray) -> str:
    """Warns that angles between subspaces (as in `subspace_angles`) show little because columns have very different
    scales.

    This is so if all angles are below two degrees and the clients' first vectors lie along a few of the features.
    """
    first = np.asarray(signatures["basis"], np.float64)[:, :, 0]
    features = first.shape[1]
    along = 1 / np.maximum((first**4).sum(axis=1), 1 / features)  # the number of features if all entries are equal
    if len(angles) < 2 or angles.max() >= _TELLING or np.median(along) > features / 8:
        return ""
    return (
        f"the largest angle between clients is {angles.max():.2g} degrees, and their first vectors lie along "
        f"{np.median(along):.1f} "
        f'of {features} features: large columns hide the others; standardise the columns, or set preprocess = "centred"'
    )


def room_remark(signatures: Arrays, angles: np.ndarray, *, per_class: bool) -> str:
    """Warns that any two subspaces (as in `subspace_angles`) share a direction, whatever the data are, because two of
    them have more vectors than there are features: the smallest angle is 0. `per_class` says that each class has its
    vectors."""
    features, vectors = signatures["basis"].shape[1], np.sort(np.sum(signatures["mask"], axis=1))
    if len(vectors) < 2 or vectors[:2].sum() <= features or angles.max() >= _ZERO:
        return ""
    cure = f"set {'per_class = false and ' * per_class}num_vectors = {max(features // 2, 1)}"
    if vectors[0] < features:
        cure += ', or metric = "angle_sum"'
    return (
        f"any two subspaces of {vectors[0]} vectors of {features} features share a direction, so that the smallest "
        f"angle is 0 whatever the data are; {cure}"
    )


def without_direction(signatures: Arrays) -> np.ndarray:
    """Returns `bool [N]`, the clients whose subspaces (`basis [N, d, q]`, `mask [N, q]`) have no real column but
    zeros."""
    return ~(np.asarray(signatures["mask"], bool) & np.any(signatures["basis"] != 0, axis=1)).any(axis=1)


def _somewhere(signatures: Arrays, nowhere: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The bases and masks, in which clients without a direction get an arbitrary one in each column."""
    if not nowhere.any():
        return signatures["basis"], signatures["mask"]
    basis, mask = np.array(signatures["basis"]), np.array(signatures["mask"])
    basis[nowhere, 0], mask[nowhere] = 1, True
    return basis, mask


def answer_dissimilarities(metric: str, first: Arrays, second: Arrays | None) -> np.ndarray:
    """Returns 1 minus the inference similarity (FLIS section II-B).

    Args:
      metric: A name in `choices.SIMILARITIES`.
      first: `value`, the clients' answers.
      second: The same of others, or None.
    """
    others = None if second is None else second["value"]
    apart = 1 - inference_similarity(first["value"], others, form=metric)
    if second is None:
        np.fill_diagonal(apart, 0)
        apart = (apart + apart.T) / 2
    return np.maximum(apart, 0)


def centre_distances(metric: str, first: Arrays, second: Arrays | None) -> np.ndarray:
    """Returns distances of clients that sent centres (FLT Alg. 2 line 16).

    Args:
      metric: A name in `choices.CENTRE_METRICS`.
      first: `centres float [N, k, u]` and `mask bool [N, k]`.
      second: The same of others, or None.
    """
    others = () if second is None else (second["centres"], second["mask"])
    return taskonomy.client_distances(first["centres"], first["mask"], *others, distance=metric)


def centre_points(metric: str, first: Arrays, second: Arrays | None = None) -> np.ndarray:
    """Returns the centres of the clients of `second`, or of `first`, `float64 [N, k, u]`; NaN for a missing one.
    Arguments are as in `centre_distances`."""
    del metric
    whose = first if second is None else second
    return np.where(np.asarray(whose["mask"], bool)[..., np.newaxis], np.asarray(whose["centres"], np.float64), np.nan)


def sample_distances(metric: str, first: Arrays, second: Arrays | None) -> np.ndarray:
    """Returns the 1-Wasserstein distances of clients that each sent the same number of points (EMD-CFL).

    Args:
      metric: "wasserstein".
      first: `points float [N, n, u]`.
      second: The same of others, or None.
    """
    arrays = [(each["points"], np.ones(each["points"].shape[:2], bool)) for each in (first, second) if each is not None]
    return taskonomy.client_distances(*arrays[0], *(arrays[1] if second is not None else ()), distance=metric)


def vector_distances(metric: str, first: Arrays, second: Arrays | None, *, directions: int | None = None) -> np.ndarray:
    """Returns the distances of clients by the vectors that they sent.

    Args:
      metric: A name in `VECTOR_METRICS`.
      first: Arrays `[N, ...]` by name.
      second: Arrays `[M, ...]` by name, or None for the first's clients among each other.
      directions: See `vector_points`.

    Returns:
      `float32 [N, M]`, or `[N, N]` with a diagonal of 0.
    """
    if metric == DECOMPOSED:
        points = vector_points(metric, first, directions=directions)
        others = None if second is None else vector_points(metric, first, second, directions=directions)
    else:
        points, others = as_vectors(first), None if second is None else as_vectors(second)
    if metric == "cosine":
        return cosine_distances(points, others)
    if others is None:
        return distance.squareform(distance.pdist(points)).astype(np.float32)
    return distance.cdist(points, others).astype(np.float32)


def vector_points(
    metric: str, first: Arrays, second: Arrays | None = None, *, directions: int | None = None
) -> np.ndarray:
    """Returns a vector for each client of `second`, or of `first`, such that Euclidean distances are the metric: for
    "cosine" its root, up to a factor.

    With `DECOMPOSED` it contains the cosines of the client's signature with the first singular directions of the
    signatures of `first`, which are not centred (FedGroup, Duan et al. 2020, section III-B).

    Args:
      metric: A name in `VECTOR_METRICS`.
      first: Arrays `[N, ...]` by name.
      second: Arrays `[M, ...]` by name, or None.
      directions: With `DECOMPOSED`, the number of directions; fewer are used if signatures span fewer.

    Returns:
      `float64 [N or M, d]`.
    """
    known = as_vectors(first)
    points = known if second is None else as_vectors(second)
    if metric == "euclidean":
        return points
    lengths = np.linalg.norm(points, axis=1, keepdims=True)
    if metric == DECOMPOSED:
        squares, axes = np.linalg.eigh(known @ known.T)  # by clients, since entries are many more
        there = squares > _ROUNDING * squares[-1]
        shares = axes[:, there][:, ::-1][:, :directions] / np.sqrt(squares[there][::-1][:directions])
        points = points @ known.T @ shares
    return points / np.where(lengths > 0, lengths, 1.0)


def as_vectors(signatures: Mapping[str, np.ndarray]) -> np.ndarray:
    """Joins the arrays `[N, ...]` of each client's signature into one vector, `float64 [N, d]`."""
    return np.concatenate([np.asarray(each, np.float64).reshape(len(each), -1) for each in signatures.values()], axis=1)
