"""R-DPCFL: its limits, who is drawn and when clients begin to choose, what noised updates cost, and newcomers."""

import dataclasses

import numpy as np
import pytest

import tffcl
from tests.oracles.privacy import epsilon_of_rounds
from tests.short_runs import TRAINING, cohort_of, models_of, split, train
from tffcl.algorithms.each_round_parameters import RDPCFLParameters
from tffcl.algorithms.r_dpcfl import build_r_dpcfl
from tffcl.clients.simulation_context import simulating
from tffcl.errors import UserError
from tffcl.runs.privacy import Ledger, PrivacySettings


def built(model, aggregation=None, **how):
    return build_r_dpcfl(model, TRAINING, RDPCFLParameters(**how), seed=3, noise_seed=1, aggregation=aggregation)


@pytest.mark.slow  # as IFCA, whose rounds it has
def test_with_one_cluster_it_is_fedavg(tff_worker, model, population, reference):
    method = built(model, num_clusters=1, soft_rounds=2)
    np.testing.assert_array_equal(models_of(method, train(method, population), population), reference("fedavg")[1])


@pytest.mark.slow
def test_clusters_are_drawn_by_the_updates_and_then_clients_choose(tff_worker, model, grouped):
    """Nine clients in three groups of two digits, whose updates hardly overlap."""
    method = built(model, num_clusters=3, soft_rounds=2)
    state = method.initialize(grouped)
    assert state.overlap < 0.5 and int(state.soft_rounds) == max(1, int(2 * (1 - state.overlap)))
    np.testing.assert_array_equal(state.assignment.reshape(3, 3), np.tile(state.assignment[:3], (3, 1)))
    assert len(set(state.assignment)) == 3 and len(np.unique(state.models, axis=0)) == 1
    for number in range(1, int(state.soft_rounds) + 1):
        assert method.choose(state, grouped) is state
        state, metrics = method.next(state, cohort_of(grouped, range(9), number))
        np.testing.assert_array_equal(metrics.clusters, state.assignment)  # each is surely of one
        assert metrics.signatures.up == 0
    assert state.soft_rounds == 0 and len(np.unique(state.models, axis=0)) == 3
    chosen = method.choose(method.without_choices(state), grouped).assignment
    np.testing.assert_array_equal(chosen, state.assignment)
    after, metrics = method.next(state, cohort_of(grouped, range(9), 9))
    np.testing.assert_array_equal(metrics.clusters, chosen)
    assert method.views(after).notes[0].endswith("drawn for 0 more rounds")


@pytest.mark.slow  # as that of FedGroup
def test_its_pre_training_has_epochs_of_its_own_and_one_batch(tff_worker, model, grouped):
    how, few = RDPCFLParameters(num_clusters=2, pre_training_epochs=3), grouped.restricted([0, 1, 2, 3])
    overlaps = [
        build_r_dpcfl(model, dataclasses.replace(TRAINING, epochs=each, batch_size=9 * each), how, seed=3)
        .initialize(few)
        .overlap
        for each in (1, 3)
    ]
    assert overlaps[0] == overlaps[1] > 0


@pytest.mark.slow
def test_a_client_is_drawn_as_likely_as_its_update_says(tff_worker, model, grouped):
    method = built(model, num_clusters=2, soft_rounds=100)
    start = method.initialize(grouped)
    likely = np.tile([[0.25, 0.75]], (9, 1))
    likely[0] = [1, 0]
    state, drawn = dataclasses.replace(start, probabilities=likely, soft_rounds=np.int64(30)), []
    for number in range(1, 9):
        state, metrics = method.next(state, cohort_of(grouped, range(9), number))
        drawn.append(metrics.clusters)
    assert not np.any(drawn, axis=0)[0]
    assert len({tuple(each) for each in drawn}) > 4  # each round draws anew
    assert 0.6 < np.mean(drawn, axis=0)[1:].mean() < 0.9
    np.testing.assert_array_equal(state.assignment, start.assignment)


def test_newcomers_take_the_model_of_least_loss_and_stay_while_clusters_are_drawn(tff_worker, model, grouped):
    known, newcomers = split(grouped, [3, 4, 5])
    method = built(model, num_clusters=3, soft_rounds=40)
    state = train(method, known, [(0, 1, 2, 6, 7, 8)] * 2)
    ledger = Ledger(PrivacySettings(delta=1e-3), 9)
    with simulating(ledger=ledger):  # the coordinator is told which they choose
        joined = method.admit(state, newcomers)
    assert ledger.as_array()[:, 0].tolist() == [0] and np.isinf(ledger.epsilon)
    np.testing.assert_array_equal(joined.assignment[3:6], joined.assignment[:3])
    np.testing.assert_array_equal(joined.probabilities[3:6], np.eye(3)[joined.assignment[3:6]])
    np.testing.assert_array_equal(joined.probabilities[[0, 1, 2, 6, 7, 8]], state.probabilities)
    assert joined.soft_rounds and method.joined_traffic(state, joined).up == 0 < method.joined_traffic(None, state).up


@pytest.mark.slow
def test_noised_updates_and_private_rounds_are_both_counted(tff_worker, model, grouped, tmp_path):
    def privacy(name, z):
        method = built(
            model, tffcl.aggregation("dp", noise_multiplier=2.0, seed=5), soft_rounds=1, signature_noise_multiplier=z,
            projection=64,
        )  # fmt: skip
        run = tffcl.train(
            method, grouped, rounds=2, clients_per_round=9, seed=2, out=tmp_path / name, show_progress=False
        )
        return run.summary["privacy"], [note for note in run.summary["notes"] if "not private" in note]

    (with_noise, none), (_, told) = privacy("noised", 2.0), privacy("open", 0.0)
    assert with_noise["epsilon"] == pytest.approx(epsilon_of_rounds(2.0, 3, with_noise["delta"]), rel=2e-3) and not none
    assert told[0].startswith("not private: ")


def test_bad_parameters(tff_worker, model, population):
    with pytest.raises(UserError, match="soft_rounds is 0; it must be a whole number from 1"):
        RDPCFLParameters(soft_rounds=0)
    with pytest.raises(UserError, match="num_clusters is 9; it must be from 1 to the number of clients, 5"):
        built(model, num_clusters=9).initialize(population)
