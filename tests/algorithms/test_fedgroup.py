"""FedGroup: groups by decomposed cosines of updates, which start from their members' pre-trained models."""

import dataclasses

import numpy as np
import pytest
from scipy.spatial import distance
from sklearn.cluster import KMeans

from tests.algorithms.conftest import OWNERS
from tests.short_runs import TRAINING, split
from tffcl.algorithms.fedgroup import build_fedgroup
from tffcl.algorithms.parameters import FedGroupParameters
from tffcl.errors import UserError


def test_its_groups_are_those_of_the_authors_way_and_start_from_pre_trained_models(tff_worker, model, turned):
    known, newcomers = split(turned, [3, 7])
    method = build_fedgroup(model, TRAINING, FedGroupParameters(pre_training_epochs=4))
    state = method.initialize(known)
    updates = -state.signatures["value"]
    for cluster, own in enumerate(state.models):
        mean = (model.initial + updates)[state.assignment == cluster].mean(axis=0)
        np.testing.assert_allclose(own, mean, atol=1e-6)
    left = np.linalg.svd(updates.T.astype(np.float64), full_matrices=False)[0][:, :3]
    cosines = updates @ left / np.linalg.norm(updates, axis=1, keepdims=True)
    theirs = KMeans(3, n_init=10, random_state=0).fit_predict(cosines)
    assert len({*zip(theirs.tolist(), state.assignment.tolist())}) == 3
    np.testing.assert_allclose(state.proximity, distance.squareform(distance.pdist(cosines)), atol=1e-4)
    joined = method.admit(state, newcomers)
    assert len({*zip(OWNERS, joined.assignment.tolist())}) == 3
    np.testing.assert_array_equal(joined.models, state.models)


def test_its_pre_training_has_epochs_of_its_own(tff_worker, model, turned):
    few, how = turned.restricted([0, 1, 2]), FedGroupParameters(num_clusters=2, pre_training_epochs=4)
    updates = [
        build_fedgroup(model, dataclasses.replace(TRAINING, epochs=epochs), how).initialize(few).signatures["value"]
        for epochs in (1, 4)
    ]
    np.testing.assert_array_equal(*updates)


def test_what_is_wrong_is_one_line(tff_worker, model, turned):
    with pytest.raises(UserError, match="pre_training_epochs is 0; it must be a whole number from 1"):
        FedGroupParameters(pre_training_epochs=0)
    with pytest.raises(UserError, match="num_clusters is 10; it must be from 1 to the number of clients, 9"):
        build_fedgroup(model, TRAINING, FedGroupParameters(num_clusters=10)).initialize(turned)
