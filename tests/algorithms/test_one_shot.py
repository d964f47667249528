"""What all methods share that cluster once, before training: what decides without a number, and newcomers with one."""

import numpy as np
import pytest

from tests.short_runs import TRAINING, split
from tffcl.algorithms.composed import build_composed
from tffcl.algorithms.parameters import ComposedParameters, FedClustParameters, FLISHCParameters, PCAKMHCParameters
from tffcl.algorithms.presets import build_fedclust, build_flis_hc, build_pca_km_hc
from tffcl.choices import SELF
from tffcl.clients.population import Population

METHODS = ["flis_hc", "fedclust", "pca_km_hc", "label_histogram", "descriptors"]


@pytest.fixture(scope="module")
def build(model, digits):
    """Builds a method by name, with `threshold` or `num_clusters`."""

    def built(name, **how):
        if name == "flis_hc":
            return build_flis_hc(model, TRAINING, FLISHCParameters(**how), server_images=digits[0][-100:])
        if name == "fedclust":
            return build_fedclust(model, TRAINING, FedClustParameters(warm_up_epochs=2, **how))
        if name == "pca_km_hc":
            return build_pca_km_hc(model, TRAINING, PCAKMHCParameters(num_components=8, num_centres=2, **how))
        return build_composed(model, TRAINING, ComposedParameters(signature=name, **how))

    return built


@pytest.mark.parametrize("name", METHODS)
def test_clients_that_are_alike_are_one_cluster_by_default(tff_worker, build, digits, name):
    """Whatever shuffling, k-means and a warm-up make of equal data."""
    x, y = digits
    same = (x[:60], y[:60])
    method = build(name)
    assert method.clustering.threshold == SELF
    state = method.initialize(Population.from_arrays(dict.fromkeys(range(6), same)))
    assert not state.assignment.any() and state.notes[0].startswith("nothing differs:")


@pytest.mark.parametrize("name", METHODS)
def test_newcomers_to_a_number_of_clusters_found_none(tff_worker, build, digit_clients, name):
    known, newcomers = split(digit_clients([40] * 6 + [2, 1], turns=[0, 1, 0, 1, 0, 1, 2, 3]), [6, 7])
    method = build(name, num_clusters=2)
    state = method.initialize(known)
    admitted = method.admit(state, newcomers)
    assert len(admitted.models) == len(state.models) == 2
    np.testing.assert_array_equal(admitted.models, state.models)


def test_groups_of_labels_are_found_by_any_signature_that_sees_them(tff_worker, build, digits):
    x, y = digits
    clients = {}
    for client in range(9):
        rows = np.flatnonzero(np.isin(y, [(0, 1, 2), (3, 4, 5), (6, 7, 8)][client % 3]))
        rows = np.random.default_rng(client % 3).permutation(rows)[client // 3 :: 3][:120]
        clients[client] = (x[rows], y[rows])
    state = build("label_histogram").initialize(Population.from_arrays(clients))
    assert state.assignment.tolist() == [0, 1, 2] * 3 and state.notes[0].startswith("3 groups:")
