"""FedSEM's steps of k-means against scikit-learn."""

import numpy as np
import pytest
from sklearn.cluster import KMeans

from tffcl.clustering import groupings
from tffcl.clustering.groupings import first_groups, nearest_centres, weighted_means


@pytest.mark.parametrize("size", [5, 300])  # below the number of clients, and in several blocks
def test_fedsems_k_means_is_scikit_learns_on_the_whole_models(size, monkeypatch):
    monkeypatch.setattr(groupings, "_AT_A_TIME", 100)
    rng = np.random.default_rng(3)
    truth = rng.integers(4, size=18)
    models = (0.1 + 0.01 * rng.normal(size=(18, size)) + 0.005 * rng.normal(size=(4, size))[truth]).astype(np.float32)
    first = KMeans(4, n_init=20, random_state=1).fit(models)
    for seed in (1, 2**32 + 1):  # scikit-learn takes seeds of 32 bits alone
        np.testing.assert_array_equal(first_groups(models, 4, seed), first.labels_)
    later = models + 0.003 * rng.normal(size=models.shape).astype(np.float32)
    np.testing.assert_array_equal(
        nearest_centres(later, first.cluster_centers_.astype(np.float32)), first.predict(later)
    )


def test_centres_move_to_the_means_by_examples_and_one_that_nobody_is_near_to_stays(monkeypatch):
    monkeypatch.setattr(groupings, "_AT_A_TIME", 2)
    before, trained = np.full([3, 5], 7, np.float32), np.arange(20, dtype=np.float32).reshape(4, 5)
    after = weighted_means(before, trained, np.array([2, 0, 2, 2]), np.array([1, 5, 2, 3], np.int32))
    mean = np.average(trained[[0, 2, 3]], axis=0, weights=[1, 2, 3])
    np.testing.assert_allclose(after, [trained[1], before[1], mean], rtol=1e-6)
    np.testing.assert_array_equal(before, 7)
