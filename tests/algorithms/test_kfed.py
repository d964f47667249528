"""k-FED: groups by the means of clients' examples, and newcomers by theirs."""

import numpy as np
import pytest
from sklearn.cluster import KMeans

from tests.algorithms.conftest import OWNERS
from tests.short_runs import TRAINING, split
from tffcl.algorithms.parameters import KFedParameters
from tffcl.algorithms.presets import build_kfed
from tffcl.errors import UserError


def test_it_groups_by_means_and_places_newcomers_by_theirs(tff_worker, model, turned):
    known, newcomers = split(turned, [3, 7])
    method = build_kfed(model, TRAINING, KFedParameters(num_clusters=3))
    state = method.admit(method.initialize(known), newcomers)
    assert len({*zip(OWNERS, state.assignment.tolist())}) == 3
    means = np.stack([turned.train(client).x.reshape(-1, 64).mean(axis=0) / 255 for client in turned.client_ids])
    np.testing.assert_allclose(state.signatures["centres"][:, 0], means, atol=1e-5)
    theirs = KMeans(3, init=means[[0, 1, 2]], n_init=1).fit_predict(means)
    assert len({*zip(theirs.tolist(), state.assignment.tolist())}) == 3


def test_what_is_wrong_is_one_line(tff_worker, model, turned):
    with pytest.raises(UserError, match="num_centres is 0; it must be a whole number from 1"):
        KFedParameters(num_centres=0)
    with pytest.raises(UserError, match="num_clusters is 10; it must be from 1 to the number of clients, 9"):
        build_kfed(model, TRAINING, KFedParameters(num_clusters=10)).initialize(turned)
