"""StoCFL's rounds: what is found, merged, stored, sent, and inferred for newcomers."""

import copy
import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms.test_limits import TRAINING, assert_close, models_of
from tests.algorithms.test_pacfl import split
from tffcl.algorithms.bilevel_training import build_bilevel_process
from tffcl.algorithms.clustered_training import cohort_inputs
from tffcl.algorithms.contracts import Cohort, type_bytes
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.algorithms.stocfl import StochasticClustering, build_clustering, build_stocfl
from tffcl.client_work.local_sgd import LocalTraining
from tffcl.errors import UserError

TURNS = [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
QUICK = dataclasses.replace(TRAINING, epochs=1, batch_size=0)
HOW = StochasticClustering(threshold=0.5, proximal_weight=0.1)


@pytest.fixture
def turned(digit_clients):
    return digit_clients([110] * 10, turns=TURNS)


def rounds(algorithm, population, cohorts, state=None, first=1):
    state, told = state or algorithm.initialize(population), []
    for number, clients in enumerate(cohorts, first):
        state, metrics = algorithm.next(state, Cohort(population, np.array(clients), (7, number)))
        told.append(metrics)
    return state, told


def assert_same(first, second):
    tf.nest.map_structure(np.testing.assert_array_equal, first.as_structure(), second.as_structure())


def test_it_finds_the_groups_as_clients_become_known(tff_worker, model, turned):
    algorithm = build_stocfl(model, QUICK, HOW)
    state, told = rounds(algorithm, turned, [(0, 1, 2), (3, 4), (5, 0), (6, 7, 8, 9)])
    groups = {(turn, int(cluster)) for turn, cluster in zip(TURNS, state.assignment)}
    assert len(groups) == 3
    assert sorted(set(state.assignment)) == [0, 1, 2]
    known = [metrics.scalars["known_clients"] for metrics in told]
    assert known == [3, 5, 6, 10]
    assert [metrics.scalars["merges"] for metrics in told] == [0, 2, 1, 4]
    assert [metrics.scalars["known_clusters"] for metrics in told] == [3, 3, 3, 3]
    units = [state.extra["signatures"][state.assignment == each].mean(axis=0) for each in range(3)]
    units = [unit / np.linalg.norm(unit) for unit in units]
    expected = units[0] @ units[1] + units[0] @ units[2] + units[1] @ units[2]
    assert told[-1].scalars["objective"] == pytest.approx(expected, abs=1e-5)
    assert told[-1].scalars["mean_cosine"] == pytest.approx(expected / 3, abs=1e-5)
    np.testing.assert_array_equal(told[-1].clusters, state.assignment[[6, 7, 8, 9]])


def test_only_models_that_differ_are_stored(tff_worker, model, turned):
    """The global model, and one a cluster that has trained; whoever is not known yet has the global one."""
    algorithm = build_stocfl(model, QUICK, HOW)
    state, _ = rounds(algorithm, turned, [(0, 1, 3), (1, 4)])
    assert state.models.shape == (3, model.size)
    models, keys = algorithm.assign(state, np.arange(10))
    assert keys.tolist() == [1, 2, 0, 1, 2, 0, 0, 0, 0, 0]
    np.testing.assert_array_equal(models[0], algorithm.global_model(state))
    assert len(np.unique(models, axis=0)) == 3
    assert len(np.unique(state.assignment)) == 2 + 6


def test_a_cluster_that_nobody_of_the_cohort_belongs_to_keeps_its_model(tff_worker, model, turned):
    algorithm = build_stocfl(model, QUICK, HOW)
    before, _ = rounds(algorithm, turned, [(0, 1, 2, 3)])
    after, _ = rounds(algorithm, turned, [(0, 3, 2)], before, 2)
    moved = np.abs(models_of(algorithm, after, turned) - models_of(algorithm, before, turned)).max(axis=1) > 0
    assert moved[[0, 2, 3]].all() and not moved[1]


def test_merging_clusters_average_their_models_by_members_that_trained_them(tff_worker, model, digit_clients):
    """Two clusters that were apart merge when a third client joins them; who comes new has trained nothing."""
    population = digit_clients([60] * 5)
    algorithm = build_stocfl(model, QUICK, StochasticClustering(threshold=1))
    apart, _ = rounds(algorithm, population, [(0, 1, 2)])
    first = apart.models[apart.extra["rows"]]
    together = build_stocfl(model, QUICK, StochasticClustering(threshold=-1))
    # Everything that is known counts as changed, so that the next round compares it.
    changed = dataclasses.replace(apart, extra={**apart.extra, "changed": np.ones(3, bool)})
    merged = together.next(changed, Cohort(population, np.array([3]), (7, 2)))[0]
    alone = build_fedavg(model, dataclasses.replace(QUICK, proximal_weight=0.0))
    start = dataclasses.replace(alone.initialize(population), models=first.mean(axis=0)[None])
    pulled = build_stocfl(model, QUICK, StochasticClustering(threshold=-1, proximal_weight=0.0))
    free = pulled.next(changed, Cohort(population, np.array([3]), (7, 2)))[0]
    expected = alone.next(start, Cohort(population, np.array([3]), (7, 2)))[0]
    assert_close(free.models[free.extra["rows"]], expected.models)
    assert len(merged.models) == 2 and merged.extra["rows"].tolist() == [1]
    # Three members have trained, the fourth now, too: another cluster of one weighs a quarter.
    again = dataclasses.replace(
        free,
        assignment=np.array([0, 0, 0, 0, 4], np.int32),
        models=np.concatenate([free.models, 2 * model.initial[None]]),
        extra={
            "known": np.ones(5, bool),
            "trained": np.ones(5, bool),
            "signatures": np.concatenate([free.extra["signatures"], free.extra["signatures"][:1]]),
            "clusters": np.array([0, 4], np.int32),
            "sums": np.concatenate([free.extra["sums"], free.extra["signatures"][:1]]),
            "changed": np.ones(2, bool),
            "rows": np.array([1, 2], np.int32),
        },
    )
    after = pulled.next(again, Cohort(population, np.array([3]), (7, 3)))[0]
    start = dataclasses.replace(start, models=((4 * free.models[1] + 2 * model.initial) / 5)[None])
    assert_close(after.models[after.extra["rows"]], alone.next(start, Cohort(population, np.array([3]), (7, 3)))[0].models)


@pytest.mark.parametrize("start", ["initial", "global", "closest"])
def test_where_a_new_cluster_starts(tff_worker, model, turned, start):
    """A client that stays alone: its model after one round without the proximal term is SGD from its start."""
    how = StochasticClustering(threshold=1, proximal_weight=0.0, start=start)
    algorithm = build_stocfl(model, QUICK, how)
    before, _ = rounds(algorithm, turned, [(0, 1), (0, 1)])
    after, _ = rounds(algorithm, turned, [(3,)], before, 3)
    expected = {"initial": model.initial, "global": before.models[0], "closest": models_of(algorithm, before, turned)[0]}
    fedavg = build_fedavg(model, QUICK)
    begun = dataclasses.replace(fedavg.initialize(turned), models=expected[start][None])
    trained = fedavg.next(begun, Cohort(turned, np.array([3]), (7, 3)))[0].models[0]
    assert_close(models_of(algorithm, after, turned)[3], trained)


@pytest.mark.parametrize(
    "how", [HOW, dataclasses.replace(HOW, representation="cohort", model_merge="larger", linkage="single")]
)
def test_the_order_of_clients_does_not_matter(tff_worker, model, turned, how):
    algorithm = build_stocfl(model, QUICK, how)
    cohorts = [(0, 1, 2, 4), (3, 4, 6), (5, 0, 8)]
    first, _ = rounds(algorithm, turned, cohorts)
    second, told = rounds(algorithm, turned, [each[::-1] for each in cohorts])
    np.testing.assert_array_equal(first.assignment, second.assignment)
    assert_close(models_of(algorithm, first, turned), models_of(algorithm, second, turned))
    assert told[-1].client_ids.tolist() == [8, 0, 5]
    np.testing.assert_array_equal(told[-1].clusters, second.assignment[[8, 0, 5]])


def test_a_failing_round_changes_nothing_and_a_repeated_one_is_the_same(tff_worker, model, turned, monkeypatch):
    algorithm = build_stocfl(model, QUICK, HOW)
    state, _ = rounds(algorithm, turned, [(0, 1, 3)])
    kept = copy.deepcopy(state)
    with monkeypatch.context() as failing:
        failing.setattr("tffcl.algorithms.stocfl.MESSAGE_BYTES", 0)  # after the new clients' signatures, before training
        with pytest.raises(UserError, match="too large for one message"):
            rounds(algorithm, turned, [(0, 4, 5)], state, 2)
    assert_same(state, kept)
    once, _ = rounds(algorithm, turned, [(0, 4, 5)], state, 2)
    twice, _ = rounds(algorithm, turned, [(0, 4, 5)], state, 2)
    assert_same(state, kept)
    assert_same(once, twice)
    assert len(once.extra["signatures"]) == 5


def test_admitted_clients_that_have_not_trained_weigh_nothing_when_clusters_merge(tff_worker, model, turned):
    """Client 0 and four newcomers, against client 1: half and half, not five to one."""
    known, newcomers = split(turned, [3, 6, 9])
    apart = build_stocfl(model, QUICK, StochasticClustering(threshold=0.5, proximal_weight=0.0))
    state, _ = rounds(apart, known, [(0, 1)])
    state = apart.admit(state, newcomers)
    assert np.bincount(state.assignment)[state.assignment[0]] == 4 and state.extra["trained"].sum() == 2
    together = build_stocfl(model, QUICK, StochasticClustering(threshold=-1, proximal_weight=0.0))
    state = dataclasses.replace(state, extra={**state.extra, "changed": np.ones(2, bool)})
    merged, _ = together.next(state, Cohort(turned, np.array([0]), (7, 2)))
    fedavg = build_fedavg(model, QUICK)
    mean = state.models[state.extra["rows"]].mean(axis=0)
    begun = dataclasses.replace(fedavg.initialize(turned), models=mean[None])
    expected, _ = fedavg.next(begun, Cohort(turned, np.array([0]), (7, 2)))
    assert_close(merged.models[merged.extra["rows"]], expected.models)


def test_newcomers_clusters_that_merge_before_anybody_has_trained_them(tff_worker, model, turned):
    """Two that were founded apart are one cluster now: they have copies of one model, and so has it."""
    known, newcomers = split(turned, [1, 2])
    algorithm = build_stocfl(model, QUICK, dataclasses.replace(HOW, threshold=0.9))
    state, _ = rounds(algorithm, known, [(0, 3)])
    state = algorithm.admit(state, newcomers)
    assert state.assignment[1] != state.assignment[2] and not state.extra["trained"][[1, 2]].any()
    together = build_stocfl(model, QUICK, StochasticClustering(threshold=-1, proximal_weight=0.0))
    merged, _ = together.next(state, Cohort(turned, np.array([1]), (7, 2)))
    assert np.isfinite(merged.models).all() and len(merged.extra["clusters"]) == 1


def test_newcomers_join_the_closest_cluster_or_start_from_its_model(tff_worker, model, digit_clients):
    everyone = digit_clients([110] * 10, turns=[0, 1, 0, 1, 0, 1, 0, 1, 3, 3])
    known, newcomers = split(everyone, [1, 6, 8, 9])
    algorithm = build_stocfl(model, QUICK, HOW)
    state, _ = rounds(algorithm, known, [(0, 2, 3, 4, 5, 7)])
    admitted = algorithm.admit(state, newcomers)
    assert admitted.client_ids.tolist() == list(range(10))
    labels = admitted.assignment
    assert labels[1] == labels[3] and labels[6] == labels[0]
    assert labels[8] == labels[9] and labels[8] not in labels[:8]
    np.testing.assert_array_equal(labels[known.client_ids], state.assignment)
    # The newcomers' cluster has the model of the closest one, stored once.
    np.testing.assert_array_equal(admitted.models, state.models)
    models, keys = algorithm.assign(admitted, np.arange(10))
    sums = admitted.extra["sums"] / np.linalg.norm(admitted.extra["sums"], axis=1, keepdims=True)
    place = admitted.extra["clusters"].tolist().index(labels[8])
    near = np.argsort(sums @ sums[place])[-2]
    assert keys[8] == keys[9] == admitted.extra["rows"][near]
    for each, total in zip(admitted.extra["clusters"], admitted.extra["sums"]):
        np.testing.assert_allclose(total, admitted.extra["signatures"][labels == each].sum(axis=0), rtol=1e-4, atol=1e-6)
    # They go on with the others: their cluster gets a model of its own when it trains.
    trained, _ = rounds(algorithm, everyone, [(8, 0)], admitted, 2)
    _, keys = algorithm.assign(trained, [0, 8, 9, 3])
    assert len(set(keys)) == 3 and keys[1] == keys[2]
    with pytest.raises(UserError, match="client 1 is no newcomer"):
        algorithm.admit(admitted, newcomers)


def test_newcomers_before_the_first_round_are_as_all_others(tff_worker, model, turned):
    known, newcomers = split(turned, [2, 5])
    algorithm = build_stocfl(model, QUICK, HOW)
    admitted = algorithm.admit(algorithm.initialize(known), newcomers)
    assert len(set(admitted.assignment)) == 10
    state, _ = rounds(algorithm, turned, [(0, 2, 5)], admitted)
    assert state.assignment[2] == state.assignment[5] != state.assignment[0]


def test_traffic_and_the_map_reduce_forms(tff_worker, through_map_reduce, model, turned):
    algorithm = build_stocfl(model, QUICK, HOW)
    made = algorithm.computations()
    # The client's ID, 4 bytes, comes with a signature in simulation only.
    for name, transfer, more in (("signature", "representation", 4), ("training", "training", 0)):
        form = tff.backends.mapreduce.get_map_reduce_form_for_computation(made[name])
        assert algorithm.transfers[transfer].up_bytes == type_bytes(form.work.type_signature.result) - more
    assert algorithm.transfers["training"].down_bytes == 2 * 4 * model.size
    assert algorithm.transfers["representation"].down_bytes == 4 * model.size + 8
    _, told = rounds(algorithm, turned, [(0, 1), (1, 2)])
    signed, trained = algorithm.transfers["representation"], algorithm.transfers["training"]
    assert [each.up_bytes for each in told] == [
        2 * signed.up_bytes + 2 * trained.up_bytes,
        signed.up_bytes + 2 * trained.up_bytes,
    ]
    assert told[1].down_bytes == signed.down_bytes + 2 * trained.down_bytes
    assert [each.signature_bytes for each in told] == [n * (signed.up_bytes + signed.down_bytes) for n in (2, 1)]
    process = build_bilevel_process(model, QUICK, QUICK)
    inputs = cohort_inputs(Cohort(turned, np.arange(3), (7, 1)), key=np.array([0, 1, 0], np.int32))
    for each in inputs:
        del each["test_examples"]
    state = {**process.initialize(), "models": np.stack([model.initial, 2 * model.initial])}
    direct, _ = process.next(state, inputs)
    again, _ = through_map_reduce(process.next, state, inputs)
    for key in ("models", "global_model"):
        np.testing.assert_allclose(again[key], direct[key], atol=1e-6)
        assert np.abs(direct[key] - state[key]).max() > 1e-3


def test_another_global_aggregation_is_another_global_objective(tff_worker, model, turned):
    uniform = tff.aggregators.MeanFactory(no_nan_division=True)
    clipped = tff.aggregators.clipping_factory(1e-3, uniform)
    plain, held = (build_stocfl(model, QUICK, HOW, global_aggregation=each) for each in (None, clipped))
    free, near = (rounds(each, turned, [(0, 1, 2)])[0] for each in (plain, held))
    assert np.linalg.norm(near.models[0] - model.initial) < 1.01e-3 < np.linalg.norm(free.models[0] - model.initial)
    assert_close(free.models[1:], near.models[1:])  # the centre was the same in the first round


def test_the_authors_settings_run(tff_worker, model, turned):
    how = StochasticClustering(
        representation="cohort", model_merge="larger", start="global", form="displacement", anchor_epochs=3, projection=500
    )
    algorithm = build_stocfl(model, QUICK, how)
    state, _ = rounds(algorithm, turned, [(0, 1, 2, 3), (4, 5, 6), (7, 8, 9)])
    assert state.extra["signatures"].shape == (10, 500)
    assert len({(turn, int(cluster)) for turn, cluster in zip(TURNS, state.assignment)}) == len(set(state.assignment))
    assert len(set(state.assignment)) < 10


def test_centroid_linkage_has_no_tree_to_draw(model):
    with pytest.raises(UserError, match="linkage is 'centroid', which has no tree .* algorithms.stocfl.linkage=single"):
        build_clustering(model, QUICK, StochasticClustering(linkage="centroid"))


def test_a_signature_that_is_not_finite_names_the_client(tff_worker, model, turned):
    how = StochasticClustering(form="displacement", anchor_learning_rate=1e30)
    algorithm = build_stocfl(model, LocalTraining(), how)
    with pytest.raises(UserError, match="client 0 has a signature that is not finite; .* anchor_learning_rate is too high"):
        rounds(algorithm, turned, [(3, 0)])


@pytest.mark.parametrize(
    "values, message",
    [
        ({"threshold": 1.5}, "threshold is 1.5; it must be a cosine"),
        ({"linkage": "singel"}, "did you mean 'single'"),
        ({"linkage": "centroid", "representation": "cohort"}, "'cohort' knows linkage 'single' only, not 'centroid'"),
        ({"representation": "all"}, "unknown representation 'all'"),
        ({"start": "globl"}, "did you mean 'global'"),
        ({"model_merge": "larges"}, "did you mean 'larger'"),
        ({"form": "gradent"}, "did you mean 'gradient'"),
        ({"global_objective": "fedavgg"}, "did you mean 'fedavg'"),
    ],
)
def test_what_is_refused(values, message):
    with pytest.raises(UserError, match=message):
        StochasticClustering(**values)


def test_a_cohort_in_too_many_clusters_for_one_message_is_refused(tff_worker, model, turned, monkeypatch):
    monkeypatch.setattr("tffcl.algorithms.stocfl.MESSAGE_BYTES", 4 * 4 * model.size)
    algorithm = build_stocfl(model, QUICK, StochasticClustering(threshold=1))
    with pytest.raises(UserError, match=r"round 1 is in 3 clusters, .* \(at most 2\); a lower threshold"):
        rounds(algorithm, turned, [(0, 1, 2)])
