"""scikit-learn's loops run in one thread: they neither wait for busy cores nor depend on how many there are."""

import numpy as np
import pytest
import threadpoolctl

from tffcl.clustering import groupings, projection
from tffcl.clustering.groupings import single_thread

VECTORS = np.random.default_rng(0).normal(size=(60, 20)).astype(np.float32)
STEPS = {
    "project_directions": (projection.TSNE, "fit_transform", lambda: projection.project_directions(VECTORS, seed=0)),
    "group_by_losses": (groupings.KMeans, "fit_predict", lambda: groupings.group_by_losses(VECTORS[:, :4], seed=0)),
    "first_groups": (groupings.KMeans, "fit_predict", lambda: groupings.first_groups(VECTORS, 3, seed=0)),
}


def threads() -> set[int]:
    """How many threads the loops would have."""
    return {each["num_threads"] for each in threadpoolctl.threadpool_info() if each["user_api"] == "openmp"}


def test_it_holds_inside_only():
    with threadpoolctl.threadpool_limits(3, user_api="openmp"):
        with single_thread():
            assert threads() == {1}
        assert threads() == {3}


@pytest.mark.parametrize("name", STEPS)
def test_what_is_fitted_has_one_thread_whatever_there_are(monkeypatch, name):
    estimator, method, step = STEPS[name]
    fit, seen = getattr(estimator, method), []

    def watched(self, *arguments, **named):
        seen.append(threads())
        return fit(self, *arguments, **named)

    monkeypatch.setattr(estimator, method, watched)
    with threadpoolctl.threadpool_limits(3, user_api="openmp"):
        step()
    assert seen == [{1}]
