"""Which test examples the accuracies of a run are of: as clients change theirs, wait, share them, or leave."""

import numpy as np
import pandas as pd
import pytest
import tensorflow_federated as tff

import tffcl
from tests import own_data
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.algorithms.parameters import PACFLParameters
from tffcl.algorithms.presets import build_pacfl
from tffcl.algorithms.solo import build_solo
from tffcl.runs.result import Result

TRAINING = tffcl.LocalTraining(epochs=2, batch_size=10, learning_rate=0.1)


def run(method, clients, out, **how):
    protocol = {"rounds": 2, "clients_per_round": 3, "seed": 1, "show_progress": False}
    return tffcl.train(method, tffcl.Population.from_arrays(*clients), out=out, **{**protocol, **how})


@pytest.mark.slow
def test_a_local_accuracy_is_of_the_test_examples_that_there_are(tmp_path):
    """All have others in the last round, in which two of them train: SOLO's models are both."""
    train, test = own_data.clinics()
    x, y = test["clinic_0"]
    later = {6: tffcl.Population.from_arrays(train, {name: (x, 1 - y) for name in test})}
    solo = build_solo(own_data.perceptron().with_metrics(["accuracy", "log_loss"]), TRAINING)
    found = run(solo, (train, test), tmp_path / "run", rounds=6, clients_per_round=2, later=later)
    known = np.isfinite(found.clients["local_accuracy"])
    assert found.summary["accuracy"]["local"]["share"] > known.mean() > 0  # who has trained before, and in the last
    for metric in ("accuracy", "log_loss"):
        local, cluster = (found.clients[f"{kind}_{metric}"] for kind in ("local", "cluster"))
        np.testing.assert_array_equal(local, cluster.where(known))


@pytest.mark.slow
@pytest.mark.parametrize("whose", ["ours", "TFF's"])
def test_secure_sums_in_which_clusters_wait_lose_no_local_accuracy(whose, tmp_path):
    """A client is tested when it trains, though it is drawn again: it may then not be asked."""
    secure = tffcl.aggregation("secure_sum", min_cluster_size=2)
    if whose == "TFF's":
        sums = tff.aggregators.SecureSumFactory(4.0, -4.0)
        secure = tff.aggregators.MeanFactory(sums, tff.aggregators.SecureSumFactory(100.0, 0.0))
    method = build_pacfl(own_data.perceptron(), TRAINING, PACFLParameters(num_clusters=2), aggregation=secure)
    often, once = (
        run(method, own_data.clinics(), tmp_path / str(every), rounds=4, evaluate_every=every).clients
        for every in (1, 4)
    )
    trained = often["rounds_trained"] > 0
    assert np.isfinite(once["local_accuracy"][trained]).all() and once["rounds_trained"].sum() < 12
    np.testing.assert_array_equal(often["local_accuracy"], once["local_accuracy"])


@pytest.mark.slow
def test_where_nobody_is_tested_it_is_said(tmp_path):
    found = run(build_fedavg(own_data.perceptron(), TRAINING), own_data.clinics()[:1], tmp_path / "run").summary
    assert "no client has test examples: no accuracy is known" in found["notes"]


@pytest.mark.slow
def test_clients_with_the_same_test_examples_are_told(tmp_path):
    train, test = own_data.clinics()
    x, y = test["clinic_0"]
    test |= {"clinic_2": (x.copy(), y.copy()), "clinic_3": (x + 1, y), "clinic_4": (x[:0], y[:0])}
    found = run(build_fedavg(own_data.perceptron(), TRAINING), (train, test), tmp_path / "run")
    assert found.clients["test_set"].tolist() == [0, 1, 0, 3, 4, 5]
    apart = run(build_solo(own_data.perceptron(), TRAINING), (train, test), tmp_path / "solo")
    with np.load(apart.out / "confusion.npz") as counts:  # no picture of a cluster without test examples
        assert 4 not in counts["clusters"] and counts["counts"].sum(axis=(1, 2)).all()
    apart = run(build_fedavg(own_data.perceptron(), TRAINING), own_data.clinics(), tmp_path / "apart")
    assert "test_set" not in apart.clients


def test_the_result_of_a_run_that_clients_have_left_is_read(tmp_path):
    everyone = tffcl.Population.from_arrays(*own_data.clinics())
    left = {2: everyone.restricted([f"clinic_{each}" for each in range(5)])}
    back = {3: everyone}
    found = run(build_fedavg(own_data.perceptron(), TRAINING), own_data.clinics(), tmp_path / "run", rounds=4,
                seed=3, evaluate_every=4, later=left | back)  # fmt: skip
    again = Result.read(found.trained, found.out).clients
    assert again["rounds_there"].tolist() == found.clients["rounds_there"].tolist() == 5 * ["1-4"] + ["1-1 3-4"]
    # Of those, too, who would be drawn in a later round if the same clients were there as in theirs.
    assert np.isfinite(found.clients["local_accuracy"][found.clients["rounds_trained"] > 0]).all()
    pd.testing.assert_frame_equal(pd.DataFrame(again), pd.DataFrame(found.clients), check_dtype=False, atol=1e-8)
