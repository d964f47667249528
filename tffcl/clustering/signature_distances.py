"""How far clients are apart by what they sent: each function is `(metric, first, second or None) -> float32 [N, M]` on the arrays of
signatures by name, rows are clients; among the first's clients if there is no second."""

from collections.abc import Mapping

import numpy as np

from tffcl.clustering import client_relatedness, inference_similarity, proximity

Arrays = Mapping[str, np.ndarray]


def subspace_angles(metric: str, first: Arrays, second: Arrays | None) -> np.ndarray:
    """Returns principal angles in degrees (PACFL Eq. 2 and 3).

    Args:
      metric: A name in `proximity.METRICS`.
      first: `basis float [N, d, q]` and `mask bool [N, q]`.
      second: The same of others, or None.
    """
    others = {} if second is None else {"others": second["basis"], "others_mask": second["mask"]}
    return proximity.principal_angles(first["basis"], first["mask"], metric=metric, **others)


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
