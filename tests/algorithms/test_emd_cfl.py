"""EMD-CFL: groups after a warm-up, by what its model makes of the clients' examples."""

import numpy as np
import pytest
from scipy.spatial import distance

from tests.short_runs import TRAINING, cohort_of
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.algorithms.parameters import EMDCFLParameters
from tffcl.algorithms.presets import build_emd_cfl
from tffcl.clients.population import Population
from tffcl.errors import UserError

TURNS = [0, 1, 2, 0, 1, 2, 0, 1, 2]


def test_it_groups_after_a_warm_up_by_what_its_model_makes_of_the_data(tff_worker, model, digits):
    x, y = digits
    rows = np.random.default_rng(0).permutation(len(x))[:900].reshape(9, 100)
    turned = Population.from_arrays(
        {c: (np.rot90(x[rows[c]], turn, axes=(1, 2)), y[rows[c]]) for c, turn in enumerate(TURNS)}
    )
    method = build_emd_cfl(model, TRAINING, EMDCFLParameters(num_clusters=3))
    state, plain = method.initialize(turned), build_fedavg(model, TRAINING)
    warm, _ = plain.next(plain.initialize(turned), cohort_of(turned, turned.client_ids, 1))
    for number in (1, 2):
        state, metrics = method.next(state, cohort_of(turned, turned.client_ids, number))
    assert len({*zip(TURNS, method.views(state).clusters.tolist())}) == 3
    assert metrics.signatures.up == 9 * 64 * 10 * 4
    points = state.met.signatures["points"]
    outputs = model.logits(model.unravel(warm.models[0]), model.preprocess(turned.train(0).x), None).numpy()
    apart = distance.cdist(points[0], outputs)
    assert (apart.min(axis=1) < 1e-3).all()  # each is one of the client's examples
    assert apart.argmin(axis=1).max() >= 64  # and not of its first ones
    assert len(np.unique(points[0].round(4), axis=0)) == 64


@pytest.mark.slow
def test_a_client_with_few_examples_sends_each_as_often_as_it_takes(tff_worker, model, digit_clients):
    few = digit_clients([5, 30, 30, 1])
    method = build_emd_cfl(model, TRAINING, EMDCFLParameters(num_clusters=2, samples=15, when="before_training"))
    points = method.initialize(few).signatures["points"]
    counts = [np.unique(each.round(4), axis=0, return_counts=True)[1].tolist() for each in points]
    assert counts == [[3] * 5, [1] * 15, [1] * 15, [15]]


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"samples": 1000}, "samples is 1000; it must be a whole number from 1 to 512"),
        ({"threshold": 1.0, "num_clusters": 2}, "give threshold or num_clusters, not both"),
        ({"metric": "euclidean"}, "metric .*euclidean.*wasserstein"),
    ],
)
def test_what_is_wrong_is_one_line(wrong, message):
    with pytest.raises(UserError, match=message):
        EMDCFLParameters(**wrong)
