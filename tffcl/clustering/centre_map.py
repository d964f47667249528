"""The map of k-means centres that the clients sent: UMAP in FLT, fitted once, with a place for newcomers.

Source: Jamali-Rad, Abdizadeh and Singh, "Federated Learning With Taskonomy for Non-IID Data" (FLT), IEEE TNNLS 2022,
Alg. 2 (FCR) lines 12 to 14. Method: McInnes, Healy and Melville, arXiv:1802.03426 (2018).
"""

import dataclasses
import warnings

import numpy as np

from tffcl.clustering.umap_learn import load_umap
from tffcl.errors import UserError

_LEAST = 4  # UMAP has no neighbourhoods to keep among fewer
_SPREAD = 1.0  # UMAP's default, the largest min_dist it takes


@dataclasses.dataclass(frozen=True, eq=False)
class CentreMap:
    """Centres laid out by UMAP, and the fitted reducer that lays out more of them.

    The reducer is no set of arrays, so it is not for a checkpoint. Keep the centres and the options instead: `fit_map`
    of the same centres with the same seed gives the same map on the same machine.

    Attributes:
      points: Float32 [N, k, u]: where the centres lie; masked ones are zero.
      num_features: e, of the centres.
      reducer: The fitted `umap.UMAP`.
    """

    points: np.ndarray
    num_features: int
    reducer: object

    def place(self, centres: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Lays the centres of newcomers out in the same map, which stays as it is.

        UMAP's transform weighs the centres of a batch against each other. Each client is transformed alone, as in the
        authors' code, so its points do not depend on who came with it.

        Args:
          centres: Float [B, k, e]; k may differ from the k of the clients before.
          mask: Bool [B, k], which centres exist.

        Returns:
          Float32 [B, k, u]; masked entries are zero.

        Raises:
          UserError: For arrays that do not fit, or a client without centres or with some that are not finite.
        """
        centres, mask = checked_centres(centres, mask, "newcomer")
        if centres.shape[2] != self.num_features:
            raise UserError(f"centres of newcomers have {centres.shape[2]} features; the map was made of {self.num_features}")
        points = np.zeros((*mask.shape, self.points.shape[2]), np.float32)
        for place, (own, real) in enumerate(zip(centres, mask, strict=True)):
            points[place, real] = self.reducer.transform(np.ascontiguousarray(own[real], np.float32))
        return points


def fit_map(
    centres: np.ndarray,
    mask: np.ndarray,
    *,
    seed: int,
    num_components: int = 2,
    num_neighbors: int = 15,
    min_dist: float = 0.1,
) -> CentreMap:
    """Lays the centres of all clients out by UMAP (McInnes et al. 2018, arXiv:1802.03426), FLT Alg. 2 line 14.

    The defaults are umap-learn's and the authors'. Equal centres count once and come to the same point: UMAP scatters
    copies if there are more of them than neighbours. The centres are sorted before the fit, so the map does not depend
    on the order of the clients or of a client's centres.

    Args:
      centres: Float [N, k, e]: each client's k-means centres in the encoder's latent space.
      mask: Bool [N, k], which centres exist.
      seed: Decides the layout.
      num_components: u, dimensions of the map; 2 or 3 in the paper.
      num_neighbors: How many neighbours of a centre are kept near; all others where there are fewer.
      min_dist: How near points may lie in the map, 0 to 1; its unit is the unit of gamma.

    Raises:
      UserError: If there are fewer than 4 different centres, for arrays that do not fit, a client without centres or
        with some that are not finite, or an option out of range.
    """
    if num_components < 1 or num_neighbors < 2 or not 0 <= min_dist <= _SPREAD:
        raise UserError(
            f"num_components is {num_components}, num_neighbors {num_neighbors} and min_dist {min_dist}; they must be "
            f"at least 1, at least 2 and from 0 to {_SPREAD:g}"
        )
    centres, mask = checked_centres(centres, mask, "client")
    # Adding 0 turns -0 into 0, which sorts otherwise.
    distinct, place = np.unique(centres[mask].astype(np.float32) + np.float32(0), axis=0, return_inverse=True)
    if len(distinct) < _LEAST:
        raise UserError(f"a map of centres needs at least {_LEAST} different ones; there are {len(distinct)}")
    reducer = _new_reducer(len(distinct), seed, num_components, num_neighbors, min_dist)
    with warnings.catch_warnings():
        # Where the spectral layout fails, UMAP says so and starts from a random one.
        warnings.simplefilter("ignore")
        reducer.fit(distinct)
    points = np.zeros((*mask.shape, num_components), np.float32)
    points[mask] = reducer.embedding_[place.reshape(-1)]
    return CentreMap(points, centres.shape[2], reducer)


def checked_centres(centres, mask, who: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns centres [n, k, e] and their mask [n, k] as arrays, if every client has a centre and all are finite.

    Raises:
      UserError: If not; the message names the client by `who` and its place.
    """
    centres, mask = np.asarray(centres), np.asarray(mask)
    if centres.ndim != 3 or centres.dtype.kind not in "fiu":
        raise UserError(
            f"centres of the {who}s are {centres.dtype} of shape {centres.shape}; they must be numbers of shape "
            "[clients, centres, features]"
        )
    if mask.shape != centres.shape[:2] or mask.dtype != bool:
        raise UserError(
            f"the mask of the {who}s is {mask.dtype} of shape {mask.shape}; it must be bool of shape {centres.shape[:2]}"
        )
    empty = ~mask.any(axis=1)
    if empty.any():
        raise UserError(f"{who} {empty.argmax()} has no centre, as one whose encoder diverges in fine-tuning; each must have one at least")
    bad = (~np.isfinite(centres).all(axis=2) & mask).any(axis=1)
    if bad.any():
        raise UserError(f"the centres of {who} {bad.argmax()} have NaN or infinite entries")
    return centres, mask


def _new_reducer(count: int, seed: int, num_components: int, num_neighbors: int, min_dist: float):
    """Returns an unfitted `umap.UMAP` for `count` points."""
    few = count < 2 * _LEAST or count <= num_components + 1
    return load_umap().UMAP(
        n_components=num_components,
        n_neighbors=min(num_neighbors, count - 1),
        min_dist=min_dist,
        init="random" if few else "spectral",
        random_state=seed,
        transform_seed=seed,
        n_jobs=1,  # the same seed gives the same points in one thread only
    )
