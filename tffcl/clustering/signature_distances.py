"""How far clients are apart by what they sent: each function is `(metric, first, second or None) -> float32 [N, M]` on the arrays of
signatures by name, rows are clients; among the first's clients if there is no second."""

from collections.abc import Mapping

import numpy as np

from tffcl.clustering import client_relatedness, inference_similarity, proximity

Arrays = Mapping[str, np.ndarray]
_SUMS = ("angle_sum", "trace")  # metrics that add angles up


def subspace_angles(metric: str, first: Arrays, second: Arrays | None) -> np.ndarray:
    """Returns principal angles in degrees (PACFL Eq. 2 and 3).

    A client whose data span no direction, as all-zero images do, is as far from all others as clients can be, 90 degrees an
    angle, and at 0 from others like it: the paper's angles say nothing of it, and it must not stop the others.

    Args:
      metric: A name in `proximity.METRICS`.
      first: `basis float [N, d, q]` and `mask bool [N, q]`.
      second: The same of others, or None.
    """
    second_or_first = first if second is None else second
    nowhere, others_nowhere = without_direction(first), without_direction(second_or_first)
    given = {} if second is None else dict(zip(("others", "others_mask"), _somewhere(second, others_nowhere), strict=True))
    angles = proximity.principal_angles(*_somewhere(first, nowhere), metric=metric, **given)
    angles_summed = min(first["basis"].shape[-2:] + second_or_first["basis"].shape[-1:]) if metric in _SUMS else 1
    angles[nowhere[:, None] ^ others_nowhere[None, :]] = 90.0 * angles_summed
    angles[nowhere[:, None] & others_nowhere[None, :]] = 0.0
    return angles


def without_direction(signatures: Arrays) -> np.ndarray:
    """Returns `bool [N]`: whose subspaces (`basis [N, d, q]`, `mask [N, q]`) have no column that is real and not zero."""
    return ~(np.asarray(signatures["mask"], bool) & np.any(signatures["basis"] != 0, axis=1)).any(axis=1)


def _somewhere(signatures: Arrays, nowhere: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The bases and masks, with any direction at all for the clients that have none."""
    if not nowhere.any():
        return signatures["basis"], signatures["mask"]
    basis, mask = np.array(signatures["basis"]), np.array(signatures["mask"])
    basis[nowhere, 0, 0], mask[nowhere, 0] = 1, True
    return basis, mask


def answer_dissimilarities(metric: str, first: Arrays, second: Arrays | None) -> np.ndarray:
    """Returns 1 minus the inference similarity (FLIS section III-B).

    Args:
      metric: A name in `inference_similarity.FORMS`.
      first: `value`, the clients' answers.
      second: The same of others, or None.
    """
    others = None if second is None else second["value"]
    apart = 1 - inference_similarity.inference_similarity(first["value"], others, form=metric)
    if second is None:
        np.fill_diagonal(apart, 0)
        apart = (apart + apart.T) / 2
    return np.maximum(apart, 0)


def centre_distances(metric: str, first: Arrays, second: Arrays | None) -> np.ndarray:
    """Returns distances of clients that sent centres (FLT Alg. 2 line 16).

    Args:
      metric: A name in `client_relatedness.DISTANCES`.
      first: `centres float [N, k, u]` and `mask bool [N, k]`.
      second: The same of others, or None.
    """
    others = () if second is None else (second["centres"], second["mask"])
    return client_relatedness.client_distances(first["centres"], first["mask"], *others, distance=metric)
