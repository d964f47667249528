"""CLoVE and FedClust find groups, and their limits."""

import dataclasses

import numpy as np
import pytest

import tffcl
from tests.algorithms.conftest import same_groups
from tests.short_runs import TRAINING, assert_close, cohort_of, models_of, train
from tffcl.algorithms.clove import build_clove
from tffcl.algorithms.each_round_parameters import CLoVEParameters
from tffcl.algorithms.ifca import build_ifca
from tffcl.algorithms.parameters import FedClustParameters
from tffcl.algorithms.presets import build_fedclust
from tffcl.client_work.evaluation import build_mean_loss
from tffcl.errors import UserError
from tffcl.runs.run_files import read_run
from tffcl.signatures.partial_weights import build_partial_weights, layer_places


@pytest.fixture(scope="module")
def turned(digit_clients):
    """Two groups: upright digits, and digits upside down."""
    return digit_clients([120] * 6, turns=[0, 2, 0, 2, 0, 2])


@pytest.mark.slow  # as IFCA, whose rounds it has
def test_clove_with_one_model_is_fedavg(tff_worker, model, population, reference):
    one = build_clove(model, TRAINING, CLoVEParameters(num_clusters=1))
    assert_close(models_of(one, train(one, population), population), reference("fedavg")[1])
    assert one.joining.up == one.joining.down == 0


def test_clove_finds_who_holds_like_images(tff_worker, model, turned):
    clove = build_clove(model, TRAINING, CLoVEParameters(2), seed=1)
    state = clove.initialize(turned)
    for number in range(1, 4):
        state, metrics = clove.next(state, cohort_of(turned, turned.client_ids, number))
    assert len(set(zip(state.assignment.tolist(), [0, 1] * 3))) == len(set(state.assignment.tolist())) == 2
    vectors = 2 * 4 * model.size
    assert (metrics.signatures.down, metrics.signatures.up) == (6 * vectors, 6 * 2 * 4)
    assert metrics.traffic.down == 6 * (vectors + 4 * model.size)
    newcomers = clove.admit(clove.initialize(turned.restricted([0, 1])), turned.restricted([2, 3]))
    for client in (2, 3):  # a newcomer takes the model of least loss
        own = turned.train(client).stacked
        losses = [float(build_mean_loss(model)(row, own["x"], own["y"])) for row in newcomers.models]
        assert newcomers.assignment[client] == np.argmin(losses) and losses[0] != losses[1]


class Stops(tffcl.Callback):
    def after_round(self, run):
        return "enough" if run.round_number == 2 else None


@pytest.mark.slow
@pytest.mark.parametrize("build", [build_clove, build_ifca])
def test_a_round_says_the_same_of_clusters_whenever_others_are_evaluated(tff_worker, model, turned, tmp_path, build):
    """All clients are grouped anew at an evaluation; between two the labels that are known are of different rounds."""
    method, found = build(model, TRAINING), {}
    how = {"rounds": 3, "clients_per_round": 3, "show_progress": False}
    for every in (1, 3):
        result = tffcl.train(method, turned, evaluate_every=every, out=tmp_path / str(every), **how)
        found[every] = result.rounds["clusters"].to_numpy(), read_run(tmp_path / str(every), "method").history
    np.testing.assert_array_equal(found[3][0], [np.nan, np.nan, found[1][0][2]])
    assert set(found[3][1]) == {3} and np.isfinite(found[1][0]).all()
    np.testing.assert_array_equal(found[3][1][3], found[1][1][max(found[1][1])])
    stopped = tffcl.train(method, turned, evaluate_every=3, callbacks=[Stops()], out=tmp_path / "stopped", **how)
    assert stopped.rounds["clusters"].to_numpy()[-1] == found[1][0][1]  # evaluated after it was stopped
    np.testing.assert_array_equal(read_run(tmp_path / "stopped", "method").history[2], stopped.clients["cluster"])


@pytest.mark.slow
def test_clove_with_fewer_clients_than_models_leaves_the_others_as_they_are(tff_worker, model, population):
    clove = build_clove(model, TRAINING, CLoVEParameters(4))
    state = clove.initialize(population)
    after, _ = clove.next(state, cohort_of(population, [0, 1], 1))
    taken = set(after.assignment[:2].tolist())
    assert len(taken) == 2
    moved = np.flatnonzero((after.models != state.models).any(axis=1))
    assert set(moved.tolist()) == taken
    alone, _ = clove.next(state, cohort_of(population, [3], 1))
    x, y = population.train(3).x, population.train(3).y
    losses = [float(build_mean_loss(model)(row, x, y)) for row in state.models]
    assert alone.assignment[3] == np.argmin(losses)


def test_clove_compares_roots_of_losses_where_it_is_told(tff_worker, model, population):
    few, losses = population.restricted([0, 1, 2, 3]), np.array([[0.01, 10.0], [0.0, 8.0], [0.5, 10.0], [0.6, 8.2]])
    for root, pairs in [(True, [(0, 1), (2, 3)]), (False, [(0, 2), (1, 3)])]:
        clove = build_clove(model, TRAINING, CLoVEParameters(2, square_root=root))
        found = clove._grouped(clove.initialize(few), few, 1, losses).assignment
        assert len(set(found)) == 2 and all(found[one] == found[other] for one, other in pairs), root


@pytest.mark.parametrize(("clusters", "limit"), [pytest.param(1, "fedavg", marks=pytest.mark.slow), (5, "solo")])
def test_fedclust_with_one_cluster_is_fedavg_and_with_n_solo(tff_worker, model, population, reference, clusters, limit):
    method = build_fedclust(model, TRAINING, FedClustParameters(num_clusters=clusters))
    assert_close(models_of(method, train(method, population), population), reference(limit)[1])


@pytest.mark.slow
def test_fedclust_warms_up_for_as_many_epochs_as_it_is_told(tff_worker, model, population):
    def signatures(epochs):
        return build_fedclust(model, TRAINING, FedClustParameters(num_clusters=2, warm_up_epochs=epochs)).initialize(
            population
        )

    one, many = signatures(1), signatures(6)
    alone = build_partial_weights(model, training=dataclasses.replace(TRAINING, epochs=6), seed=0)
    found = alone.computation(alone.context, population.train(1).dataset)
    start = model.initial[layer_places(model, None)[0]]
    lengths = [np.linalg.norm(state.signatures["value"][1] - start) for state in (one, many)]
    assert lengths[1] == pytest.approx(np.linalg.norm(found - start), rel=0.1) and lengths[1] > 1.5 * lengths[0]


def test_fedclust_finds_who_holds_like_labels(tff_worker, model, grouped):
    method = build_fedclust(model, TRAINING)
    assert same_groups(method.initialize(grouped).assignment)  # by the largest gap, without a number


def test_partial_weights_are_what_local_training_leaves(tff_worker, model, population):
    """The last layer of the model that a client of FedAvg alone would have."""
    from tffcl.algorithms.solo import build_solo

    signature = build_partial_weights(model, training=TRAINING, layers=["output", "hidden"], seed=4)
    examples = population.train(1).dataset
    found = signature.computation(signature.context, examples)
    (last,), size = layer_places(model, None), 16 * 10 + 10
    found, hidden = found[:size], found[size:]
    assert found.shape == (16 * 10 + 10,) == (last.stop - last.start,)
    apart = np.abs(found - model.initial[last])
    assert 0.01 < apart.max() < 5
    solo = build_solo(model, TRAINING)
    trained = models_of(solo, train(solo, population.restricted([1]), [(1,)]), population.restricted([1]))[0]
    # The batches are others, so the weights are near and not equal.
    for part, place in ((found, last), (hidden, slice(0, last.start))):
        assert np.linalg.norm(part - trained[place]) < np.linalg.norm(part - model.initial[place])


def test_layers_are_named(model):
    both = layer_places(model, ["hidden", "output"])
    assert [each.start for each in both] == [0, 64 * 16 + 16]
    with pytest.raises(UserError, match="unknown layer of mlp 'hiden'; did you mean 'hidden'"):
        layer_places(model, ["hiden"])
    with pytest.raises(UserError, match="give threshold or num_clusters, not both"):
        FedClustParameters(threshold=1.0, num_clusters=2)
