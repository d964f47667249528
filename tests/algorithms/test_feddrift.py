"""FedDrift against NumPy, its limits, and recovery after a drift."""

import dataclasses

import numpy as np
import pytest
import tensorflow_federated as tff

import tffcl
from tests.algorithms.conftest import as_arrays
from tests.oracles.feddrift import FedDrift
from tests.short_runs import TRAINING, assert_close, cohort_of, models_of, train
from tffcl.algorithms.each_round_parameters import FedDriftParameters
from tffcl.algorithms.feddrift import build_feddrift, cross_losses, find_concepts, merged_clusters, merged_models
from tffcl.client_work.evaluation import build_mean_loss
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.clients.population import Population
from tffcl.errors import UserError
from tffcl.export.dry_run import rehearse, synthetic_examples
from tffcl.rounds.traffic import Traffic

WHOLE = LocalTraining(epochs=3, batch_size=0, learning_rate=0.2, momentum=0.5)
NEVER = 1e9


def swapped(population, clients):
    """The population after the labels of some clients became others."""
    data = {c: population.train(c).stacked for c in population.client_ids.tolist()}
    tests = {c: population.test(c).stacked for c in population.client_ids.tolist()}

    def of(each, c):
        return each["x"], (each["y"] + 3 * (c in clients)) % 10

    return Population.from_arrays(
        {c: of(each, c) for c, each in data.items()}, {c: of(each, c) for c, each in tests.items()}
    )


@pytest.mark.parametrize(("start", "eager"), [pytest.param("one", True, marks=pytest.mark.slow), ("each", False)])
def test_it_is_plain_feddrift(tff_worker, convex, digit_clients, start, eager):
    """Six rounds of some clients each, with a drift in the middle, against NumPy in float64."""
    before = digit_clients([31, 40, 25, 50, 12, 33])
    after = swapped(before, (1, 2, 5))
    method = build_feddrift(convex, WHOLE, FedDriftParameters(0.7, eager=eager, start=start))
    state = method.initialize(before)
    first = [tuple(tensor.numpy().astype(float) for tensor in convex.unravel(row)) for row in state.models]
    plain = FedDrift(first, state.assignment.tolist(), np.flatnonzero(state.untrained), 0.7, eager)
    numbers = []
    for number, clients in enumerate([(0, 1, 2, 3, 4, 5), (0, 2, 4), (0, 1, 2), (1, 3, 5), (2, 3, 1), (0, 1, 5)], 1):
        population = before if number < 3 else after
        data = {c: as_arrays(population, c) for c in sorted(clients)}
        state, metrics = method.next(state, cohort_of(population, clients, number))
        plain.check(data)
        plain.train(data, steps=3, learning_rate=0.2, momentum=0.5)
        assert state.assignment.tolist() == plain.owned
        np.testing.assert_allclose(state.models, [convex.ravel(each) for each in plain.models], rtol=0, atol=1e-5)
        np.testing.assert_allclose(state.losses, plain.losses, rtol=1e-4)
        numbers.append(len(plain.models))
    opens = {"one": numbers[1] == 1 and max(numbers) > 1, "each": numbers[1] > 3}[start]
    assert opens and (eager or numbers[-1] < max(numbers))
    flagged = method.views(state).moves.flagged_in
    assert flagged[[0, 3, 4]].tolist() == [0, 0, 0] and flagged.max() >= 3


def test_with_a_threshold_that_no_loss_reaches_it_is_fedavg(tff_worker, model, population, reference):
    method = build_feddrift(model, TRAINING, FedDriftParameters(NEVER))
    state = train(method, population)
    assert_close(models_of(method, state, population), reference("fedavg")[1])
    rarely = build_feddrift(model, TRAINING, FedDriftParameters(NEVER, check_every=2))
    asked, told = rarely.next(rarely.initialize(population), cohort_of(population, [0, 1], 1))
    assert (told.signatures.down, told.signatures.up) == (2 * 4 * model.size, 2 * 4)
    _, silent = rarely.next(asked, cohort_of(population, [0, 1], 2))
    assert silent.signatures.down == silent.signatures.up == 0


def test_models_for_each_client_merge(tff_worker, model, population, reference):
    method = build_feddrift(model, TRAINING, FedDriftParameters(NEVER, start="each"))
    everyone = [tuple(range(5))]
    alone = train(method, population, everyone)
    assert_close(models_of(method, alone, population), reference("solo", tuple(everyone))[1])
    state, _ = method.next(alone, cohort_of(population, range(5), 2))
    assert len(state.models) == 1 and not state.untrained.any()


def test_a_model_is_untrained_until_somebody_trains_it(tff_worker, model, population, monkeypatch):
    method = build_feddrift(model, TRAINING, FedDriftParameters(1e-9, start="each"))
    state, _ = method.next(method.initialize(population), cohort_of(population, [0, 1], 1))
    assert state.untrained.tolist() == [False, False, True, True, True]
    # Who was never asked has the best of those that are trained, or its own.
    placed = method.place(state, population)
    assert all(row in (0, 1, client) for client, row in enumerate(placed.assignment.tolist()))
    # Of the three clients the model of client 3 has the least loss of all for the first two, that of 4 for none.
    losses = np.array([[3, 2, 9, 1, 9], [3, 2, 9, 1, 9], [2, 3, 9, 1, 9]], np.float32)
    monkeypatch.setattr(method, "tried", lambda *_, **__: losses)
    assert method.place(state, population).assignment.tolist() == [0, 1, 1, 3, 0]


def test_a_client_whose_own_model_is_untrained_opens_no_other():
    """The losses of both have risen by more than the threshold; the first had a model opened when it was last asked,
    and its cluster has waited since."""
    losses, owners, untrained = np.array([[2.0, 1.5], [2.0, 3.0]]), np.array([1, 0]), np.array([False, True])
    sizes, before = np.array([10, 10]), np.array([0.1, 0.1])
    for eager in (False, True):
        found = find_concepts(losses, owners, before, untrained, sizes, threshold=0.5, eager=eager)
        assert found.drifted.tolist() == [False, True] and found.chosen.tolist() == [1, 2]
        assert found.origins.tolist() == [0, 1, 0] and found.untrained.tolist() == [False, True, True]


def test_clusters_merge_as_plain_loops_merge_them():
    losses = np.array([[0.1, 0.5, 2.0], [0.3, 0.2, 2.0], [0.2, 0.3, 1.0], [2.0, 2.0, 0.1]])
    apart = cross_losses(losses, np.array([0, 1, 1, 2]), np.array([10, 10, 30, 5]), np.zeros(3, bool))
    np.testing.assert_allclose(apart, [[0.1, 0.225, 2.0], [0.5, 0.275, 2.0], [2.0, 1.25, 0.1]])
    for threshold, labels in [(0.1, [0, 1, 2]), (0.23, [0, 0, 1]), (5, [0, 0, 0])]:
        assert merged_clusters(apart, threshold).tolist() == labels
    row = np.abs(np.subtract.outer([0.0, 0.1, 0.25], [0.0, 0.1, 0.25]))  # complete linkage: its ends are 0.25 apart
    assert merged_clusters(row, 0.2).tolist() == [0, 0, 1] and merged_clusters(row, 0.25).tolist() == [0, 0, 0]
    apart[:, 1] = np.nan  # nobody of the second cluster was asked
    assert merged_clusters(apart, 5).tolist() == [0, 1, 0]
    assert merged_clusters(np.full([2, 2], np.nan), 5).tolist() == [0, 1]
    models = np.array([[1.0, 2.0], [5.0, 6.0], [3.0, 4.0]], np.float32)
    merged = merged_models(models, np.arange(3), np.array([0, 1, 0]), np.array([0, 0, 0, 2, 1]))
    np.testing.assert_array_equal(merged, [[1.5, 2.5], [5, 6]])


def test_losses_that_are_not_finite_merge_nobody():
    apart = np.array([[0.1, np.inf, 0.1], [np.inf, np.inf, 1.0], [0.2, 0.1, 0.1]])
    assert merged_clusters(apart, 1e30).tolist() == [0, 1, 0]
    apart[0, 2] = np.inf
    assert merged_clusters(apart, 1e30).tolist() == [0, 1, 2]


@pytest.mark.slow
def test_the_rehearsal_of_an_export_keeps_the_number_of_models(tff_worker, model, population):
    """Examples that are drawn for it are not what any model was trained on, and the computations are for so many."""
    private = tffcl.aggregation("dp", noise_multiplier=0.1, seed=1, min_cluster_size=1)
    method = build_feddrift(model, TRAINING, FedDriftParameters(0.01), aggregation=private)
    state, context = train(method, population), tff.framework.get_context_stack().current
    state = dataclasses.replace(state, losses=np.zeros(5, np.float32))
    given = rehearse(method, method.exports().computations(state), state, synthetic_examples(model, 0), context)
    assert len(given["training"][0]["models"]) == len(given["losses"][0]) == len(state.models)


def test_bad_parameters(tff_worker, model, population, monkeypatch):
    with pytest.raises(UserError, match="threshold is 0.0; it must be a number above 0"):
        FedDriftParameters(threshold=0.0)
    with pytest.raises(UserError, match="did you mean 'error'"):
        FedDriftParameters(measure="eror")
    method = build_feddrift(model, TRAINING, FedDriftParameters(0.1))
    state = train(method, population)
    state = dataclasses.replace(state, losses=np.full(5, -1, np.float32))  # everyone's loss has risen
    monkeypatch.setattr("tffcl.runtime.memory.free_bytes", lambda: 5 * model.initial.nbytes)
    with pytest.raises(UserError, match="^6 models × 1,210 parameters need .* of memory; .* are free"):
        method.next(state, cohort_of(population, range(5), 4))


@pytest.mark.slow
def test_newcomers_before_any_round_have_a_model_each_as_all_others(tff_worker, model, digit_clients):
    clients = digit_clients([30] * 5, turns=[0, 1, 0, 1, 0])
    method = build_feddrift(model, TRAINING, FedDriftParameters(start="each"))
    whole, joined = method.initialize(clients), method.initialize(clients.restricted([0, 1, 3]))
    known, joined = joined, method.admit(joined, clients.restricted([2, 4]))
    assert method.joined_traffic(known, joined) == Traffic()
    assert len(set(joined.assignment)) == len(joined.models) == 5 and joined.untrained.all()
    after, expected = (method.next(each, cohort_of(clients, range(5), 1))[0] for each in (joined, whole))
    assert_close(models_of(method, after, clients), models_of(method, expected, clients))
    # After it a newcomer takes the model of least loss, above which its own must rise before it opens one.
    late = Population.from_arrays({7: (clients.train(1).x, clients.train(1).y)})
    losses = [float(build_mean_loss(model)(row, *late.train(7).stacked.values())) for row in after.models]
    admitted = method.admit(after, late)
    assert admitted.assignment[5] == np.argmin(losses)
    np.testing.assert_allclose(admitted.losses[5], min(losses), rtol=1e-5)
