"""Mixtures of Gaussians, fitted to a vector of each client."""

import dataclasses

import numpy as np
from scipy.spatial import distance
from scipy.stats import norm
from sklearn.mixture import GaussianMixture

from tffcl.clustering.model_kmeans import without_dimensions
from tffcl.clustering.threads import single_thread

_STARTS = 10  # of the fit, by k-means
_FLOOR = 1e-6  # least variance of a component, as a share of that of all points along their longest axis


@dataclasses.dataclass(frozen=True, eq=False)
class Mixture:
    """A fitted mixture of K Gaussians.

    Attributes:
      labels: `int32 [N]`, the component that each point most likely comes from.
      probabilities: `float64 [N, K]`, rows sum to one: how likely it comes from each.
      variances: `float64 [K]`, of each component in each direction in which the points differ.
    """

    labels: np.ndarray
    probabilities: np.ndarray
    variances: np.ndarray


def fit_mixture(points: np.ndarray, num_components: int, seed: int = 0) -> Mixture:
    """Fits a mixture of spherical Gaussians by expectation maximisation.

    A component has one variance for all directions, as noise that makes vectors private has, and as few vectors of many
    entries leave no other choice.

    Args:
      points: Numbers `[N, d]`.
      num_components: K; where fewer points differ there are as many components as these.
      seed: Of the starts.
    """
    number = min(num_components, len(np.unique(points, axis=0)))
    if number == 1:
        spread = np.var(points, axis=0).mean(keepdims=True)
        return Mixture(np.zeros(len(points), np.int32), np.ones([len(points), 1]), spread)
    axes = without_dimensions(np.asarray(points, np.float64))
    spreads = axes.var(axis=0)
    axes, spread = axes[:, spreads > _FLOOR * spreads.max()], spreads.max()  # along the others there is rounding only
    mixture = GaussianMixture(
        number, covariance_type="spherical", n_init=_STARTS, random_state=seed % 2**32, reg_covar=_FLOOR
    )
    with single_thread():
        probabilities = mixture.fit(axes / np.sqrt(spread)).predict_proba(axes / np.sqrt(spread))
    return Mixture(probabilities.argmax(axis=1).astype(np.int32), probabilities, mixture.covariances_ * spread)


def largest_overlap(points: np.ndarray, mixture: Mixture) -> float:
    """Returns by how much the two components overlap that overlap most, from 0 for none to 1.

    It is 2 Q(d / (2 σ)) of two components whose means are d apart, σ the larger standard deviation and Q the tail of
    the standard normal distribution (the MPO of R-DPCFL, Malekmohammadi et al., TMLR 2025).

    Args:
      points: Numbers `[N, d]`, those that the mixture was fitted to.
      mixture: From `fit_mixture`; one of a single component overlaps nothing.
    """
    shares = mixture.probabilities / np.maximum(mixture.probabilities.sum(axis=0), np.finfo(float).tiny)
    apart = distance.pdist(shares.T @ points)
    if not len(apart):
        return 0.0
    spreads = np.sqrt(mixture.variances)
    larger = np.maximum.outer(spreads, spreads)[np.triu_indices(len(spreads), 1)]
    return float(2 * norm.sf(apart / (2 * larger)).max())
