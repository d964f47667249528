"""Inference similarity: how alike models answer on the same images.

Source: FLIS (arXiv:2208.09754), section II-B and Alg. 2.
"""

import math

import numpy as np

from tffcl.choices import SIMILARITIES
from tffcl.errors import UserError, unknown


def largest_similarity(form: str, num_samples: int, num_classes: int | None) -> float:
    """Returns the largest value that a similarity can take.

    "agreement" reaches 1. "frobenius" does not: with one-hot answers to n images each norm is sqrt(n) and the numerator
    the root of the number of equal answers, so it is at most 1 / sqrt(n), which is 0.02 for the paper's 2,500 images:
    no threshold that the paper uses (0.3 to 0.5) is ever reached. With soft answers over C classes each squared answer
    is at most 1 and the squares of an image's answers sum to at least 1 / C, which bounds it by sqrt(C / n).

    Args:
      form: A name in `SIMILARITIES`.
      num_samples: n, images of the server.
      num_classes: C for soft answers, None for one-hot ones.

    Raises:
      UserError: If the form is unknown.
    """
    if form not in SIMILARITIES:
        raise unknown("similarity", form, SIMILARITIES)
    if form == "agreement":
        return 1.0
    return min(1.0, math.sqrt((num_classes or 1) / num_samples))


def check_threshold(
    beta: float, form: str, num_samples: int, num_classes: int | None, name: str = "threshold"
) -> float:
    """Returns the threshold β if a similarity can reach it.

    Raises:
      UserError: If it is below 0, no number, or above what the form can reach.
    """
    largest = largest_similarity(form, num_samples, num_classes)
    if not 0 <= beta <= 1:
        raise UserError(f"{name} is {beta}; it must be a similarity, from 0 to 1")
    if beta > largest:
        kind = "soft" if num_classes else "one-hot"
        raise UserError(
            f"{name} is {beta}, which no pair can reach: with the frobenius similarity and {kind} answers to "
            f"{num_samples} images it must be at most {largest:.4g}; agreement goes to 1"
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

    An answer that is none, of outputs that are not finite, is like no other: a class below 0, or probabilities of NaN.

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
