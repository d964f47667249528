"""FedNova and SCAFFOLD: against NumPy, at their limits, inside clusters, and what they send."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import tffcl
from tests.oracles import corrected_averaging as oracle
from tests.short_runs import COHORTS, TRAINING, assert_close, batch_rows, cohort_of, models_of, train
from tffcl.algorithms.composed import build_composed
from tffcl.algorithms.fedavg import build_fedavg, build_fedprox
from tffcl.algorithms.fednova import build_fednova
from tffcl.algorithms.parameters import ComposedParameters
from tffcl.algorithms.scaffold import build_controlled_round, build_scaffold
from tffcl.algorithms.training_parameters import FedNovaParameters, FedProxParameters, ScaffoldParameters
from tffcl.client_work.local_sgd import LocalTraining, build_full_gradient, build_step_weight
from tffcl.clients.client_state import KeptStates
from tffcl.errors import UserError
from tffcl.models import flat, layer_weights, layers

FIVE = (*COHORTS, (2, 4), (0, 1, 3))
PLAIN = dataclasses.replace(TRAINING, momentum=0.0)
HEAVY = dataclasses.replace(TRAINING, momentum=0.9, learning_rate=0.03)
SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def data(population):
    """`{client: (features, labels)}`, features as the model has them."""
    found = {}
    for client in population.client_ids:
        examples = next(iter(population.train(client).dataset.batch(1000)))
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
@pytest.mark.parametrize("examples", [1, 31])
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


# With momentum and the proximal term; with neither it is slow.
@pytest.mark.parametrize("training, pull", [(HEAVY, 0.7), pytest.param(PLAIN, 0.0, marks=SLOW)])
def test_fednova_is_the_papers_in_numpy(tff_worker, model, population, by_hand, training, pull):
    state = train(build_fednova(model, training, FedNovaParameters(pull)), population, FIVE)
    np.testing.assert_allclose(state.models[0], by_hand(oracle.fednova, training, pull=pull), rtol=0, atol=2e-5)


@pytest.mark.slow
def test_fednovas_other_effective_steps_are_the_mean_number_of_local_steps(tff_worker, model, population):
    """With momentum ‖a‖₁ is several times τ, by which the authors' code moves the model."""
    moves = {}
    for counted in ("norm", "local_steps"):
        method = build_fednova(model, HEAVY, FedNovaParameters(0.7, counted))
        moves[counted] = train(method, population, FIVE[:1]).models[0] - model.initial
    sizes = np.array([31, 40, 25, 50, 12])
    steps = 2 * -(-sizes // 10)
    norms = [oracle.weights_of_steps(taken, 0.03, 0.9, 0.7).sum() for taken in steps]
    share = sizes @ steps / (sizes @ np.array(norms))
    assert share < 0.5
    np.testing.assert_allclose(moves["local_steps"], share * moves["norm"], rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_fednova_of_clients_with_as_many_steps_is_fedavg(tff_worker, model, digit_clients):
    equal = digit_clients([30, 30, 30, 30, 30])
    found, expected = (train(build(model, HEAVY), equal).models for build in (build_fednova, build_fedavg))
    assert_close(found, expected)


@pytest.mark.slow
def test_fednovas_proximal_form_holds_what_fedprox_holds(tff_worker, model, digit_clients):
    equal = digit_clients([30, 30, 30, 30, 30])
    held = train(build_fedprox(model, PLAIN, FedProxParameters(0.7)), equal).models
    assert_close(train(build_fednova(model, PLAIN, FedNovaParameters(0.7)), equal).models, held)


@pytest.mark.parametrize("training, option", [(PLAIN, "gradient"), pytest.param(HEAVY, "difference", marks=SLOW)])
def test_scaffold_is_the_papers_in_numpy(tff_worker, model, population, by_hand, training, option):
    state = train(build_scaffold(model, training, ScaffoldParameters(option)), population, FIVE)
    w, control, own = by_hand(oracle.scaffold, training, option=option, clients=5)
    np.testing.assert_allclose(state.models[0], w, rtol=0, atol=5e-5)
    np.testing.assert_allclose(state.server["control_sums"][0] / 5, control, rtol=0, atol=2e-4)
    for client, kept in enumerate(state.kept.of(range(5))):
        np.testing.assert_allclose(kept, own[client], rtol=0, atol=5e-4)
    assert np.abs(control).max() > 1e-2


@pytest.mark.slow
def test_scaffolds_options_of_the_server(tff_worker, model, population, by_hand):
    how = ScaffoldParameters(weighting="examples", server_learning_rate=0.5)
    w, control, _ = by_hand(oracle.scaffold, PLAIN, clients=5, server_rate=0.5, by_size=True)
    state = train(build_scaffold(model, PLAIN, how), population, FIVE)
    np.testing.assert_allclose(state.models[0], w, rtol=0, atol=5e-5)
    np.testing.assert_allclose(state.server["control_sums"][0] / 5, control, rtol=0, atol=2e-4)


@pytest.mark.slow
def test_scaffold_whose_control_variates_stay_zero_is_fedavg(tff_worker, model, population, reference):
    method = build_scaffold(model, TRAINING, ScaffoldParameters(weighting="examples"))
    state = method.initialize(population)
    for number, clients in enumerate(COHORTS, 1):
        state, _ = method.next(state, cohort_of(population, clients, number))
        assert np.abs(state.server["control_sums"]).max() > 1e-3
        zero = {"control_sums": np.zeros_like(state.server["control_sums"])}
        state = dataclasses.replace(state, server=zero, kept=KeptStates(np.zeros(model.size, np.float32)))
    assert_close(models_of(method, state, population), reference("fedavg")[1])


def apart(state) -> float:
    """How far c, the sum over N, is from the mean of all clients' c_i."""
    own = np.stack(state.kept.of(state.client_ids)).astype(float)
    return np.abs(state.server["control_sums"][0] / len(own) - own.mean(axis=0)).max()


@pytest.mark.parametrize("option", ["difference", pytest.param("gradient", marks=SLOW)])
def test_newcomers_leave_c_the_mean_of_all_control_variates(tff_worker, model, population, option):
    few, late = population.restricted([0, 1, 2]), population.restricted([3, 4])
    method = build_scaffold(model, PLAIN, ScaffoldParameters(option))
    state = train(method, few, [(0, 1, 2), (0, 2)] * 2)
    joined = method.admit(state, late)
    assert apart(joined) < 1e-6 < 1e-2 < np.abs(joined.server["control_sums"]).max() / 5
    assert apart(train(method, population, [(0, 3), (1, 3, 4), (0, 2)], joined)) < 1e-6


@pytest.mark.slow
def test_control_variates_of_who_has_left_count_again_when_it_is_back(tff_worker, model, population):
    """In between it is SCAFFOLD of the others, with the mean of their c_i."""
    method, here = build_scaffold(model, PLAIN), [0, 1, 3]
    left, before = population.restricted(here), train(method, population, [(0, 1, 2, 3, 4), (1, 2, 4)])
    alone = dataclasses.replace(
        before, client_ids=left.client_ids, assignment=np.zeros(3, np.int32),
        server={"control_sums": np.sum(before.kept.of(here), axis=0)[np.newaxis]},
    )  # fmt: skip
    after, expected = (method.next(state, cohort_of(left, [0, 3], 3))[0] for state in (before, alone))
    assert_close(after.models, expected.models)
    assert np.abs(method.next(before, cohort_of(population, [0, 3], 3))[0].models - after.models).max() > 1e-3
    assert apart(after) < 1e-6 and len(after.client_ids) == len(population)


@pytest.mark.slow  # as where c is averaged anew
def test_under_noise_c_stays_where_clients_leave(tff_worker, model, population):
    noisy = tffcl.aggregation("dp", noise_multiplier=0.1, clip=1.0, min_cluster_size=0.1, seed=1)
    method, left = build_scaffold(model, PLAIN, aggregation=noisy), population.restricted([0, 1, 3])
    state = train(method, population, [(0, 1, 2, 3, 4)] * 2)
    moved, _ = method.next(state, cohort_of(left, [0, 1, 3], 3))
    c, now = (each.server["control_sums"][0] / 5 for each in (state, moved))
    assert 0 < np.abs(now - c).max() < 3 * np.abs(c).max()


@pytest.mark.slow
def test_where_c_is_averaged_anew_clients_that_leave_do_not_change_it(tff_worker, model, population):
    """It is N c that the server has, and N of those who are there."""
    robust, here = tffcl.aggregation("robust", rule="median"), [0, 1, 3]
    method, left = build_scaffold(model, PLAIN, aggregation=robust), population.restricted(here)
    before = train(method, population, [(0, 1, 2, 3, 4)] * 2)
    c = before.server["control_sums"] / 5
    alone = dataclasses.replace(
        before, client_ids=left.client_ids, assignment=np.zeros(3, np.int32), server={"control_sums": 3 * c}
    )
    after, expected = (method.next(state, cohort_of(left, [0, 3], 3))[0] for state in (before, alone))
    assert_close(after.models, expected.models)
    assert_close(after.server["control_sums"] / 5, expected.server["control_sums"] / 3)
    assert np.abs(c).max() > 1e-2


def test_where_c_is_averaged_anew_it_moves_by_the_share_that_was_there_and_stays_where_a_cluster_waits(model):
    """Which noise may say to be more than there are; also of a cluster that is too small there is a noisy number."""
    step = build_controlled_round(model, PLAIN, ScaffoldParameters(), aggregation=tffcl.aggregation("dp")).server.step
    members, there = np.float32([[4], [4], [2]]), np.float32([1.5, 3, 2.7])
    control, told = np.random.default_rng(0).normal(size=(2, 3, model.size)).astype(np.float32)
    told[0], nothing = 0, np.zeros_like(told)
    state = {"models": nothing, "control_sums": control * members, "members": members[:, 0]}
    after = step(state, {"update": nothing, "control": told}, {"control": {"clients": there}})["control_sums"] / members
    expected = [control[0], control[1] / 4 + told[1] * 3 / 4, told[2]]
    np.testing.assert_allclose(after, expected, rtol=0, atol=1e-6)


@SLOW
def test_newcomers_that_join_clusters_and_found_one_leave_each_c_right(tff_worker, model, digit_clients):
    turned = digit_clients([40] * 6, turns=[0, 0, 0, 0, 1, 1])
    few, late = turned.restricted([0, 1, 2]), turned.restricted([3, 4, 5])
    method = build_composed(model, PLAIN, ComposedParameters(threshold=12, training="scaffold"))
    joined = method.admit(train(method, few, [(0, 1, 2)] * 3), late)
    assert list(joined.assignment) == [0, 0, 0, 0, 1, 1]
    for state in (joined, train(method, turned, [(0, 3, 4, 5), (1, 2, 5)], joined)):
        for cluster, summed in enumerate(state.server["control_sums"]):
            members = state.client_ids[state.assignment == cluster]
            np.testing.assert_allclose(summed, np.sum(state.kept.of(members), axis=0), rtol=0, atol=2e-6)


@pytest.fixture(scope="module")
def softmax():
    """Softmax regression, whose loss is convex."""

    def logits(tensors, features, seed):
        return layers.connect(tf.reshape(features, [-1, 64]), *tensors)

    of = {
        "input_shape": (8, 8, 1),
        "num_classes": 10,
        "normalization": (0.3, 0.4),
        "initialization": "torch_default",
        "seed": 3,
    }
    return flat.build_flat_model("softmax", layer_weights.dense("output", 64, 10), logits, **of)


@pytest.fixture(scope="module")
def turned_clients(digit_clients):
    return digit_clients([40] * 6, turns=[0, 0, 1, 1, 2, 2])


def gradient_at_the_end(build, population, model, rounds, aggregation=None):
    """The length of the gradient of the clients' mean loss at the model after so many rounds of everybody."""
    method = build(model, LocalTraining(epochs=4, batch_size=0, learning_rate=0.3), aggregation=aggregation)
    state = train(method, population, [range(6)] * rounds)
    slope = build_full_gradient(model, LocalTraining())
    batches = [next(iter(population.train(client).dataset.batch(1000))) for client in range(6)]
    return np.linalg.norm(np.mean([slope(state.models[0], each["x"], each["y"]) for each in batches], axis=0)), state


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            {"name": "dp", "noise_multiplier": 0, "clip": 0.5, "clipping": "adaptive", "secure": True}, marks=SLOW
        ),
        pytest.param({"name": "robust", "rule": "median"}, marks=SLOW),
    ],
    ids=lambda options: options["name"],
)
def test_clipped_control_variates_still_end_where_the_mean_loss_does(tff_worker, turned_clients, softmax, options):
    """What clients keep is what the server counts; a median is as far from the mean as FedAvg's is, and no farther."""
    options, rounds = dict(options), 100 if "rule" in options else 40
    aggregation = tffcl.aggregation(options.pop("name"), **options)
    found, state = gradient_at_the_end(build_scaffold, turned_clients, softmax, rounds, aggregation)
    expected, _ = gradient_at_the_end(build_fedavg, turned_clients, softmax, rounds, aggregation)
    assert found < (1 if "rule" in options else 2) * expected
    assert "rule" in options or apart(state) < 1e-6 < 1e-3 < np.abs(state.server["control_sums"]).max()


@SLOW
def test_the_noise_of_all_rounds_does_not_gather_in_c(tff_worker, turned_clients, softmax):
    """c is averaged anew: its distance to the mean of all c_i is that of the latest rounds' noise, after 20 rounds and
    after 80.
    """
    far = []
    for rounds in (20, 80):
        noisy = tffcl.aggregation("dp", noise_multiplier=0.3, clip=0.5, min_cluster_size=0.1, seed=1)
        far.append(apart(gradient_at_the_end(build_scaffold, turned_clients, softmax, rounds, noisy)[1]))
    assert far[1] < 1.5 * far[0]


@SLOW
def test_members_of_a_cluster_that_waits_keep_their_control_variates(tff_worker, model, population):
    method = build_scaffold(model, PLAIN, aggregation=tffcl.aggregation("secure_sum"))
    state = train(method, population, [(0, 1, 2), (3,), (0, 4), (2,), (1, 3)])
    assert apart(state) < 1e-6 < 1e-3 < np.abs(state.server["control_sums"]).max()


def test_scaffold_sends_two_vectors_each_way_and_keeps_one(tff_worker, model, population):
    method = build_scaffold(model, PLAIN)
    _, metrics = method.next(method.initialize(population), cohort_of(population, [0, 1], 1))
    vector, number = 4 * model.size, 4
    # Two keyed vectors with a weight each, the client's ID, and its report: examples, loss and a flag.
    up = 2 * (number + vector + number) + number + (number + number + 1)
    assert (metrics.traffic.down, metrics.traffic.up) == (2 * (2 * vector + number), 2 * up)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: ScaffoldParameters("third"), "unknown option 'third'.*difference, gradient"),
        (
            lambda: ScaffoldParameters(server_learning_rate=0.0),
            "server_learning_rate is 0.0; it must be a number above 0",
        ),
        (lambda: FedNovaParameters(effective_steps="tau"), "unknown effective_steps 'tau'.*local_steps, norm"),
        (lambda: FedNovaParameters(-1.0), "proximal_weight is -1.0; it must be a number from 0"),
    ],
)
def test_a_wrong_parameter_is_one_line(make, message):
    with pytest.raises(UserError, match=message):
        make()
