"""PACFL on digits of which some are turned on their side: clusters, thresholds, newcomers."""

import dataclasses
import functools

import numpy as np
import pytest

import tffcl
from tests.short_runs import TRAINING, cohort_of, models_of, split
from tffcl.algorithms.parameters import PACFLParameters
from tffcl.algorithms.presets import build_pacfl
from tffcl.clients import cohort
from tffcl.clients.population import Population
from tffcl.errors import UserError
from tffcl.models.classifiers import build_mlp
from tffcl.rounds.traffic import Traffic
from tffcl.runs.checkpoints import pack, unpack

HOW = PACFLParameters(num_vectors=5, metric="angle_sum", num_clusters=2)


@functools.cache
def pacfl(model, how=HOW):
    return build_pacfl(model, TRAINING, how)


def test_it_finds_who_sees_digits_on_the_side(tff_worker, model, digit_clients):
    population = digit_clients([60] * 8, turns=[0, 1, 0, 1, 1, 0, 0, 1])
    state = pacfl(model).initialize(population)
    assert state.assignment.tolist() == [0, 1, 0, 1, 1, 0, 0, 1]
    assert state.models.shape == (2, model.size)
    np.testing.assert_array_equal(state.models, [model.initial] * 2)


@pytest.mark.slow  # as those of FLIS (HC)
def test_a_threshold_and_its_count_give_the_same_clusters(tff_worker, model, digit_clients):
    population = digit_clients([60] * 6, turns=[0, 1, 0, 1, 1, 0])
    by_count = pacfl(model).initialize(population)
    how = PACFLParameters(num_vectors=5, metric="angle_sum", threshold=float(by_count.threshold))
    by_threshold = pacfl(model, how).initialize(population)
    np.testing.assert_array_equal(by_count.assignment, by_threshold.assignment)
    suggested = pacfl(model, PACFLParameters(num_vectors=5, metric="angle_sum")).initialize(population)
    np.testing.assert_array_equal(suggested.assignment, by_count.assignment)


def test_newcomers_join_and_nobody_moves(tff_worker, model, digit_clients):
    everyone = digit_clients([60] * 8, turns=[0, 1, 0, 1, 1, 0, 0, 1])
    known, newcomers = split(everyone, [3, 6])
    method = pacfl(model)
    state = method.initialize(known)
    state, _ = method.next(state, cohort_of(known, known.client_ids, 1))
    admitted = method.admit(state, newcomers)
    assert admitted.client_ids.tolist() == list(range(8))
    assert admitted.assignment.tolist() == [0, 1, 0, 1, 1, 0, 0, 1]
    np.testing.assert_array_equal(admitted.models, state.models)
    whole = pacfl(model).initialize(everyone)
    np.testing.assert_allclose(admitted.proximity, whole.proximity, atol=1e-3)
    with pytest.raises(UserError, match="client 3 is no newcomer"):
        method.admit(admitted, newcomers)


def test_newcomers_that_are_like_nobody_found_a_cluster(tff_worker, model, digit_clients):
    everyone = digit_clients([60] * 6, turns=[0, 0, 0, 0, 1, 1])
    known, newcomers = split(everyone, [4, 5])
    how = PACFLParameters(num_vectors=5, metric="angle_sum", threshold=205.0)
    method = pacfl(model, how)
    state = method.initialize(known)
    assert state.assignment.tolist() == [0] * 4
    trained, _ = method.next(state, cohort_of(known, known.client_ids, 1))
    admitted = method.admit(trained, newcomers)
    assert admitted.assignment.tolist() == [0] * 4 + [1] * 2
    np.testing.assert_array_equal(admitted.models[1], model.initial)
    after, _ = method.next(admitted, cohort_of(everyone, everyone.client_ids, 2))
    assert (np.abs(after.models - admitted.models).max(axis=1) > 1e-3).all()


@pytest.mark.parametrize(
    "values, message",
    [
        ({"threshold": 3.0, "num_clusters": 2}, "threshold or num_clusters, not both"),
        ({"metric": "smalest_angle"}, "did you mean 'smallest_angle'"),
        ({"linkage": "ward"}, "unknown linkage 'ward'"),
    ],
)
def test_bad_parameters(values, message):
    with pytest.raises(UserError, match=message):
        PACFLParameters(**values)


def test_more_clusters_than_clients(tff_worker, model, digit_clients):
    method = pacfl(model, PACFLParameters(num_clusters=4))
    with pytest.raises(UserError, match="num_clusters is 4; it must be from 1 to the number of clients, 3"):
        method.initialize(digit_clients([20] * 3))


def test_copies_of_one_client_stay_together_whatever_number_of_clusters_is_asked_for(tff_worker, model, digits):
    """All merges have height 0: a second cluster would be cut by the clients' order."""
    x, y = digits
    first, second = (x[:30], y[:30]), (x[30:60], y[30:60])
    state = pacfl(model).initialize(Population.from_arrays(dict.fromkeys(range(4), first)))
    assert state.assignment.tolist() == [0] * 4 and len(state.models) == 1
    assert state.notes == (
        "num_clusters is 2, but signatures are of 1 kind: clients at 0 from each other stay together",
    )
    three = pacfl(model, dataclasses.replace(HOW, num_clusters=3))
    state = three.initialize(Population.from_arrays({0: first, 1: second, 2: first, 3: second}))
    assert state.assignment.tolist() == [0, 1, 0, 1] and "of 2 kinds" in state.notes[0]


def test_clients_are_clustered_as_they_join(tff_worker, model, digit_clients):
    """Alg. 1 lines 7 to 20: the first cohort is clustered, who comes later is placed, and trains its
    cluster's model.
    """
    turns = [0, 1, 0, 1, 1, 0, 0, 1]
    population = digit_clients([60] * 8, turns=turns)
    how = dataclasses.replace(HOW, when="as_they_join")
    method, before = pacfl(model, how), pacfl(model)
    state = method.initialize(population)
    np.testing.assert_array_equal(models_of(method, state, population), [model.initial] * 8)
    assert not method.views(state).known.any()
    first = [0, 1, 2, 3]
    state, metrics = method.next(state, cohort_of(population, first, 1))
    assert metrics.signatures.up == 4 * method.joining.up
    alone = population.restricted(first)
    expected, _ = before.next(before.initialize(alone), cohort_of(alone, first, 1))
    views = method.views(state)
    assert views.known.tolist() == [True] * 4 + [False] * 4 and views.metric is None
    np.testing.assert_array_equal(views.clusters[:4], expected.assignment)
    assert len(set(views.clusters)) == 2 + 4  # who has not come yet is alone
    models = models_of(method, state, population)
    np.testing.assert_array_equal(models[:4], models_of(before, expected, alone))
    np.testing.assert_array_equal(models[4:], [model.initial] * 4)
    state, metrics = method.next(state, cohort_of(population, [0, 4, 5], 2))
    expected = before.admit(expected, population.restricted([4, 5]))
    expected, plain = before.next(expected, cohort_of(population, [0, 4, 5], 2))
    assert metrics.traffic.up == plain.traffic.up + 2 * method.joining.up
    np.testing.assert_array_equal(
        models_of(method, state, population)[:6], models_of(before, expected, population.restricted(range(6)))
    )
    # Newcomers before the first clusters are as all others: the first cohort forms the clusters, and not they.
    everyone = method.admit(method.initialize(alone), population.restricted([4]))
    assert everyone.client_ids.tolist() == [0, 1, 2, 3, 4] and everyone.met is None
    with pytest.raises(UserError, match="nobody has taken part in this run"):
        method.exports().server_values(everyone)
    state, _ = method.next(state, cohort_of(population, [6, 7], 3))
    assert method.views(state).clusters.tolist() == turns and method.views(state).metric.proximity.shape == (8, 8)
    arrays, _ = pack({"state": state})
    again = unpack(arrays, {"state": method.state_class})["state"]
    np.testing.assert_array_equal(models_of(method, again, population), models_of(method, state, population))


def test_one_cluster_is_fedavg_for_newcomers_too(tff_worker, model, digit_clients, population):
    """Whoever comes is in it, however far its subspace is from those of the first, whose tree has a lower top."""
    turned = digit_clients([60] * 6, turns=[0, 0, 0, 2, 1, 3])
    method = pacfl(model, PACFLParameters(num_vectors=3, num_clusters=1))
    state = method.initialize(turned.restricted([0, 1, 2]))
    joined = method.admit(state, turned.restricted([3, 4, 5]))
    assert joined.proximity[:3, 3:].min() > 1.05 * joined.proximity[:3, :3].max()
    assert joined.assignment.tolist() == [0] * 6 and len(joined.models) == 1
    assert np.isfinite(joined.threshold)


def test_a_first_cohort_too_small_for_a_rule(tff_worker, model, digit_clients):
    """The cut is found once: of two clients it would put everyone who comes later in a cluster of its own, or
    all in one.
    """
    population = digit_clients([60] * 4)
    method = pacfl(model, PACFLParameters(num_vectors=3, when="as_they_join"))
    with pytest.raises(
        UserError, match="the first round has 2 clients, among which nothing tells clusters apart; it needs 4 clients"
    ):
        method.next(method.initialize(population), cohort_of(population, [0, 1], 1))


def test_a_first_cohort_with_fewer_clients_than_clusters(tff_worker, model, digit_clients):
    method = pacfl(model, dataclasses.replace(HOW, num_clusters=3, when="as_they_join"))
    population = digit_clients([60] * 4)
    with pytest.raises(UserError, match="num_clusters is 3; it must be from 1 to the number of clients, 2"):
        method.next(method.initialize(population), cohort_of(population, [0, 1], 1))


@pytest.mark.parametrize(
    "how, enough",
    [
        ({}, 4),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (({"threshold": "gap"}, 3), ({"threshold": 5.0}, 1))),
        ({"num_clusters": 2}, 2),
    ],
    ids=str,
)
def test_a_poisson_cohort_that_is_too_small_for_the_first_clusters_is_left_out(
    tff_worker, model, digit_clients, how, enough
):
    """A run does not end by chance, and does not form clusters of too few."""
    population = digit_clients([60] * 4)
    method = pacfl(model, PACFLParameters(num_vectors=3, when="as_they_join", **how))
    state = start = method.initialize(population)
    for number in range(1, enough):
        state, metrics = method.next(state, cohort_of(population, range(number), number, rate=0.5))
        assert state is start and not len(metrics.client_ids) and metrics.traffic == Traffic()
    state, metrics = method.next(state, cohort_of(population, range(enough), 5, rate=0.5))
    assert (
        method.views(state).known.tolist() == [client < enough for client in range(4)]
        and len(metrics.client_ids) == enough
    )


def test_a_run_whose_first_cohorts_are_too_small_for_clusters_goes_on(tff_worker, model, digit_clients, tmp_path):
    population = digit_clients([60] * 4)

    def drawn(seed):
        return [len(cohort.sample_cohort(population.client_ids, 2, seed, number, "poisson")) for number in (1, 2)]

    seed = next(seed for seed in range(99) if drawn(seed) in ([1, 3], [2, 3], [2, 4]))
    method = pacfl(model, PACFLParameters(num_vectors=3, num_clusters=3, when="as_they_join"))
    how = {"rounds": 2, "clients_per_round": 2, "sampling": "poisson", "evaluate_every": 1, "show_progress": False}
    run = tffcl.train(method, population, seed=seed, out=tmp_path / "run", **how)
    assert np.isnan(run.rounds["train_loss"]).tolist() == [True, False] and run.rounds["up_bytes"][0] == 0
    assert run.client_columns["rounds_trained"].sum() == drawn(seed)[1]


def by_itself(model, **how):
    return pacfl(model, PACFLParameters(num_vectors=3, **how))


NOISE = 4  # beside the turns by a right angle


@pytest.fixture(scope="module")
def shuffled(digits):
    """As `digit_clients`, of digits at random: in their order those of one client are of a few writers."""
    x, y = digits
    order = np.random.default_rng(0).permutation(len(y))

    def build(sizes, turns=None):
        ends, clients = np.cumsum(sizes), {}
        for client, (end, size) in enumerate(zip(ends, sizes, strict=True)):
            rows, turn = order[end - size : end], turns[client] if turns else 0
            noise = np.random.default_rng(1).integers(0, 256, (size, 8, 8, 1), np.uint8)
            images = noise if turn == NOISE else np.rot90(x[rows], turn, axes=(1, 2)).copy()
            clients[client] = (images, y[rows])
        return Population.from_arrays(clients)

    return build


def test_clients_that_do_not_differ_are_one_cluster_and_a_run_says_so(tff_worker, model, shuffled, tmp_path):
    population = shuffled([80] * 8)
    method = by_itself(model)
    state = method.initialize(population)
    assert not state.assignment.any() and state.notes[0].startswith("nothing differs:")
    assert by_itself(model, threshold="gap").initialize(population).assignment.any()
    assert "nothing differs" in repr(state)
    run = tffcl.train(method, population, rounds=1, clients_per_round=8, out=tmp_path / "run", show_progress=False)
    assert run.summary["notes"] == ["no client has test examples: no accuracy is known", *state.notes]
    assert np.load(tmp_path / "run" / "clustering.npz")["suggestion"] == state.notes[0]
    # Who comes later joins the one cluster, however odd; so says the rule, and not a threshold.
    known, newcomers = split(shuffled([80] * 8 + [60], turns=[0] * 8 + [1]), [8])
    assert method.admit(method.initialize(known), newcomers).assignment.tolist() == [0] * 9


def test_groups_are_found_and_newcomers_join_them_or_found_one(tff_worker, model, shuffled):
    turns = [0, 1, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, NOISE, 1]
    everyone = shuffled([80] * 10 + [80, 60, 80, 2], turns=turns)
    known, newcomers = split(everyone, [10, 11, 12, 13])
    method = by_itself(model)
    state = method.initialize(known)
    assert state.assignment.tolist() == turns[:10] and state.notes[0].startswith("2 groups:")
    view = method.views(state)
    assert view.metric.tree_unit == "self-distances" and view.metric.unit == "degrees" and view.notes == state.notes
    admitted = method.admit(state, newcomers)
    assert admitted.assignment[:12].tolist() == turns[:12]
    # Two examples tell too little to found one.
    assert admitted.assignment[12] == 2 and admitted.assignment[13] in (0, 1)
    assert admitted.examples.tolist() == [80] * 10 + [80, 60, 80, 2]
    arrays, _ = pack({"state": admitted})
    again = unpack(arrays, {"state": method.state_class})["state"]
    assert again.chance == admitted.chance and again.notes == admitted.notes
    np.testing.assert_array_equal(method.admit(state, newcomers).assignment, admitted.assignment)


def test_halves_are_traffic_and_private_signatures_have_none(tff_worker, model):
    plain = pacfl(model, PACFLParameters(num_vectors=3, threshold=1.0)).joining
    assert by_itself(model).joining == Traffic(down=8, up=3 * plain.up + 4)
    with pytest.raises(UserError, match='set threshold to a number or to "gap", or set num_clusters'):
        by_itself(model, signature_noise_multiplier=1.0)


@pytest.mark.parametrize("seed", range(3))
def test_with_a_number_of_clusters_newcomers_found_none(tff_worker, model, digit_clients, seed):
    """Alg. 3 gives each newcomer a cluster's model; a limit between two merges would leave some with the
    untrained one.
    """
    everyone = digit_clients([60] * 6 + [5] * 3 + [60], turns=[0, 1, 0, 1, 1, 0] + [seed % 2] * 3 + [2])
    known, newcomers = split(everyone, [6, 7, 8, 9])
    method = pacfl(model)
    admitted = method.admit(method.initialize(known), newcomers)
    assert len(admitted.models) == 2 and admitted.assignment.max() == 1


@pytest.mark.parametrize("how", [{}, {"threshold": "gap"}], ids=str)
def test_newcomers_join_a_single_client(tff_worker, model, digit_clients, how):
    known, newcomers = split(digit_clients([60] * 3), [1, 2])
    method = by_itself(model, **how)
    assert method.admit(method.initialize(known), newcomers).assignment.tolist() == [0, 0, 0]


@pytest.mark.slow
def test_odd_examples_are_noted(tff_worker):
    flat = build_mlp((30,), 2, normalization=None)
    rng, scales = np.random.default_rng(0), np.array([1000.0, *[0.1] * 29])
    clients = {f"c{client}": (rng.normal(1, 1, (50, 30)) * scales, rng.integers(0, 2, 50)) for client in range(6)}
    raw = build_pacfl(flat, TRAINING).initialize(population_of_arrays(clients))
    assert "columns hide the others" in raw.notes[-1] and 'preprocess = "centred"' in raw.notes[-1]
    even = {name: (x / scales, y) for name, (x, y) in clients.items()}
    assert len(build_pacfl(flat, TRAINING).initialize(population_of_arrays(even)).notes) == 1
    with pytest.raises(UserError, match='preprocess is \'normalized\'; .* it must be "raw" or "centred"'):
        build_pacfl(flat, TRAINING, PACFLParameters(preprocess="normalized"))


def population_of_arrays(clients):
    return tffcl.Population.from_arrays(
        {name: (x.astype(np.float32), y.astype(np.int32)) for name, (x, y) in clients.items()}
    )


@pytest.mark.slow
def test_newcomers_of_too_few_examples_to_tell_found_no_cluster(tff_worker, model, digits):
    """By self-distances; with enough of them the same kind of images founds one."""
    x, y = digits
    rows = np.random.default_rng(1).permutation(len(x))[:720].reshape(12, 60)
    known = {c: (np.rot90(x[own], 2 * (c % 2), (1, 2)), y[own]) for c, own in enumerate(rows)}
    strange = np.random.default_rng(0).integers(0, 255, (80, 8, 8, 1)).astype(np.uint8)
    newcomers = {12 + size: (strange[:size], y[:size]) for size in (4, 80)}
    whole = Population.from_arrays({**known, **newcomers})
    method = pacfl(model, PACFLParameters(num_vectors=3, threshold="self"))
    state = method.initialize(whole.restricted(range(12)))
    assert len(state.models) == 2
    for size, founded in ((4, False), (80, True)):
        joined = method.admit(state, whole.restricted([12 + size]))
        assert (joined.clusters([12 + size])[0] == 2) == founded, size
