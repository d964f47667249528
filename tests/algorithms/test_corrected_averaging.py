"""FedNova and SCAFFOLD: against NumPy, at their limits, inside clusters, and what they send."""

import dataclasses

import numpy as np
import pytest

from tests.oracles import corrected_averaging as oracle
from tests.short_runs import COHORTS, TRAINING, assert_close, batch_rows, cohort_of, models_of, train
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.algorithms.fednova import FedNovaParameters, build_fednova
from tffcl.algorithms.fedprox import FedProxParameters, build_fedprox
from tffcl.algorithms.scaffold import ScaffoldParameters, build_scaffold
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.client_work.step_weights import build_step_weight
from tffcl.clients.kept import KeptStates
from tffcl.errors import UserError

FIVE = (*COHORTS, (2, 4), (0, 1, 3))
PLAIN = dataclasses.replace(TRAINING, momentum=0.0)
HEAVY = dataclasses.replace(TRAINING, momentum=0.9, learning_rate=0.03)
SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def data(population):
    """`{client: (features, labels)}`, features as the model has them."""
    found = {}
    for client in population.client_ids:
        examples = next(iter(population.examples(int(client)).batch(1000)))
        features = (examples["x"].numpy().reshape(-1, 64) / 255 - 0.3) / 0.4
        found[int(client)] = features, examples["y"].numpy()
    return found


@pytest.fixture(scope="module")
def by_hand(model, population, data):
    """Runs an oracle on the batches that our clients visit: `(oracle, training, **more)`."""

    def run(method, training, **more):
        def batches(number, client):
            return batch_rows(population, cohort_of(population, FIVE[number - 1], number), client)

        return method(
            model.functional.initial_weights[0], FIVE, data, batches, training.learning_rate, training.momentum, **more
        )

    return run


@pytest.mark.parametrize("momentum, pull", [(0.0, 0.0), (0.5, 0.0), (0.9, 0.0), (0.0, 0.4), (0.9, 0.4)])
@pytest.mark.parametrize("examples", [1, 10, 31])
def test_the_weight_of_steps_is_the_sum_of_what_each_gradient_counts(momentum, pull, examples):
    training = dataclasses.replace(TRAINING, momentum=momentum, proximal_weight=pull)
    steps = 2 * -(-examples // 10)
    found = float(build_step_weight(training)(examples))
    assert found == pytest.approx(oracle.weights_of_steps(steps, 0.1, momentum, pull).sum(), rel=1e-5)
    if not pull and momentum:
        closed = (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
        assert found == pytest.approx(closed, rel=1e-5)
    if pull and not momentum:
        assert found == pytest.approx((1 - (1 - 0.1 * pull) ** steps) / (0.1 * pull), rel=1e-5)


def test_the_weight_of_steps_of_whole_batches_and_of_no_example():
    assert float(build_step_weight(LocalTraining(epochs=3, batch_size=0))(17)) == 3
    assert float(build_step_weight(TRAINING)(0)) == 0


# With and without momentum and the proximal term; the other combinations are slow.
@pytest.mark.parametrize(
    "training, pull", [(PLAIN, 0.0), pytest.param(HEAVY, 0.0, marks=SLOW), pytest.param(PLAIN, 0.7, marks=SLOW), (HEAVY, 0.7)]
)
def test_fednova_is_the_papers_in_numpy(tff_worker, model, population, by_hand, training, pull):
    state = train(build_fednova(model, training, FedNovaParameters(pull)), population, FIVE)
    np.testing.assert_allclose(state.models[0], by_hand(oracle.fednova, training, pull=pull), rtol=0, atol=2e-5)


def test_fednova_of_clients_with_as_many_steps_is_fedavg(tff_worker, model, digit_clients):
    equal = digit_clients([30, 30, 30, 30, 30])
    found, expected = (train(build(model, HEAVY), equal).models for build in (build_fednova, build_fedavg))
    assert_close(found, expected)


def test_fednova_of_unequal_clients_is_not_fedavg(tff_worker, model, population, reference):
    found = train(build_fednova(model, TRAINING), population).models[0]
    assert np.abs(found - reference("fedavg")[1][0]).max() > 1e-3


def test_fednovas_proximal_form_holds_what_fedprox_holds(tff_worker, model, digit_clients):
    equal = digit_clients([30, 30, 30, 30, 30])
    held = train(build_fedprox(model, PLAIN, FedProxParameters(0.7)), equal).models
    assert_close(train(build_fednova(model, PLAIN, FedNovaParameters(0.7)), equal).models, held)


@pytest.mark.parametrize(
    "training, option",
    [
        (PLAIN, "gradient"),
        (HEAVY, "difference"),
        pytest.param(PLAIN, "difference", marks=SLOW),
        pytest.param(HEAVY, "gradient", marks=SLOW),
    ],
)
def test_scaffold_is_the_papers_in_numpy(tff_worker, model, population, by_hand, training, option):
    state = train(build_scaffold(model, training, ScaffoldParameters(option)), population, FIVE)
    w, control, own = by_hand(oracle.scaffold, training, option=option, clients=5)
    np.testing.assert_allclose(state.models[0], w, rtol=0, atol=5e-5)
    np.testing.assert_allclose(state.server["controls"][0], control, rtol=0, atol=2e-4)
    for client, kept in enumerate(state.kept.of(range(5))):
        np.testing.assert_allclose(kept, own[client], rtol=0, atol=5e-4)
    assert np.abs(control).max() > 1e-2


def test_scaffolds_options_of_the_server(tff_worker, model, population, by_hand):
    how = ScaffoldParameters(weighting="examples", server_learning_rate=0.5)
    w, control, _ = by_hand(oracle.scaffold, PLAIN, clients=5, server_rate=0.5, by_size=True)
    state = train(build_scaffold(model, PLAIN, how), population, FIVE)
    np.testing.assert_allclose(state.models[0], w, rtol=0, atol=5e-5)
    np.testing.assert_allclose(state.server["controls"][0], control, rtol=0, atol=2e-4)


def test_scaffold_whose_control_variates_stay_zero_is_fedavg(tff_worker, model, population, reference):
    method = build_scaffold(model, TRAINING, ScaffoldParameters(weighting="examples"))
    state = method.initialize(population)
    for number, clients in enumerate(COHORTS, 1):
        state, _ = method.next(state, cohort_of(population, clients, number))
        assert np.abs(state.server["controls"]).max() > 1e-3
        zero = {"controls": np.zeros_like(state.server["controls"])}
        state = dataclasses.replace(state, server=zero, kept=KeptStates(np.zeros(model.size, np.float32)))
    assert_close(models_of(method, state, population), reference("fedavg")[1])


def test_scaffold_divides_by_everyone_who_is_there_and_newcomers_count(tff_worker, model, population):
    few, late = population.restricted([0, 1, 2]), population.restricted([3, 4])
    method = build_scaffold(model, PLAIN)
    alone, _ = method.next(method.initialize(few), cohort_of(few, [0, 1], 1))
    joined, _ = method.next(method.admit(method.initialize(few), late), cohort_of(population, [0, 1], 1))
    np.testing.assert_allclose(joined.server["controls"] * 5, alone.server["controls"] * 3, rtol=1e-5, atol=1e-7)
    assert np.abs(alone.server["controls"]).max() > 1e-3


def test_scaffold_sends_two_vectors_each_way_and_keeps_one(tff_worker, model, population):
    method = build_scaffold(model, PLAIN)
    _, metrics = method.next(method.initialize(population), cohort_of(population, [0, 1], 1))
    vector, number = 4 * model.size, 4
    # Two keyed vectors with a weight each, the client's ID, and its report: examples, loss and a flag.
    up = 2 * (number + vector + number) + number + (number + number + 1)
    assert (metrics.traffic.down, metrics.traffic.up) == (2 * 2 * vector, 2 * up)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: ScaffoldParameters("third"), "unknown option 'third'.*difference, gradient"),
        (lambda: ScaffoldParameters(server_learning_rate=0.0), "server_learning_rate is 0.0; it must be a number above 0"),
        (lambda: FedNovaParameters(-1.0), "proximal_weight is -1.0; it must be a number from 0"),
    ],
)
def test_a_wrong_parameter_is_one_line(make, message):
    with pytest.raises(UserError, match=message):
        make()
