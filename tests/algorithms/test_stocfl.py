"""StoCFL's rounds: what is found, merged, stored, sent, and inferred for newcomers."""

import copy
import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from scipy.spatial import distance

from tests.short_runs import TRAINING, assert_close, cohort_of, deployed_inputs, models_of, split
from tffcl.algorithms.each_round_parameters import StoCFLParameters
from tffcl.algorithms.fedavg import build_fedavg
from tffcl.algorithms.stocfl import (
    build_bilevel_round,
    build_data_signature,
    build_stocfl,
    group_stocfl,
    train_in_a_chain,
)
from tffcl.client_work.local_sgd import LocalTraining, build_local_sgd
from tffcl.clustering import stochastic
from tffcl.clustering.stochastic import KnownClients, Partition
from tffcl.errors import Diverged, UserError
from tffcl.rounds.client_queries import build_signing
from tffcl.rounds.traffic import Traffic, type_bytes
from tffcl.signatures.anchor_gradient import build_anchor_gradient

TURNS = [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
QUICK = dataclasses.replace(TRAINING, epochs=1, batch_size=0)
HOW = StoCFLParameters(threshold=0.5, proximal_weight=0.1)


@functools.cache
def stocfl(model, how=HOW):
    return build_stocfl(model, QUICK, how)


@pytest.fixture(scope="module")
def turned(digit_clients):
    return digit_clients([110] * 10, turns=TURNS)


def rounds(method, population, cohorts, state=None, first=1):
    state, told = state or method.initialize(population), []
    for number, clients in enumerate(cohorts, first):
        state, metrics = method.next(state, cohort_of(population, clients, number))
        told.append(metrics)
    return state, told


def assert_same(first, second):
    tf.nest.map_structure(np.testing.assert_array_equal, dataclasses.asdict(first), dataclasses.asdict(second))


def with_all_changed(state):
    """Every cluster counts as changed, so that the next round compares it."""
    partition = dataclasses.replace(state.known.partition, changed=np.ones(len(state.known.partition), bool))
    return dataclasses.replace(state, known=dataclasses.replace(state.known, partition=partition))


def test_it_finds_the_groups_as_clients_become_known(tff_worker, model, turned):
    method = stocfl(model)
    state, told = rounds(method, turned, [(0, 1, 2), (3, 4), (5, 0), (6, 7, 8, 9)])
    groups = {(turn, int(cluster)) for turn, cluster in zip(TURNS, state.assignment)}
    assert len(groups) == 3
    assert sorted(set(state.assignment)) == [0, 1, 2]
    known = [metrics.scalars["known_clients"] for metrics in told]
    assert known == [3, 5, 6, 10]
    assert [metrics.scalars["merges"] for metrics in told] == [0, 2, 1, 4]
    assert [metrics.scalars["known_clusters"] for metrics in told] == [3, 3, 3, 3]
    units = [state.known.signatures[state.assignment == each].mean(axis=0) for each in range(3)]
    units = [unit / np.linalg.norm(unit) for unit in units]
    expected = units[0] @ units[1] + units[0] @ units[2] + units[1] @ units[2]
    assert told[-1].scalars["objective"] == pytest.approx(expected, abs=1e-5)
    assert told[-1].scalars["mean_cosine"] == pytest.approx(expected / 3, abs=1e-5)
    np.testing.assert_array_equal(told[-1].clusters, state.assignment[[6, 7, 8, 9]])


def test_only_models_that_differ_are_stored(tff_worker, model, turned):
    """The global model, and one a cluster that has trained; whoever is not known yet has the global one."""
    method = stocfl(model)
    state, _ = rounds(method, turned, [(0, 1, 3), (1, 4)])
    assert state.models.shape == (3, model.size)
    models, keys = method.models_for(state, np.arange(10))
    assert keys.tolist() == [1, 2, 0, 1, 2, 0, 0, 0, 0, 0]
    np.testing.assert_array_equal(models[0], method.views(state).global_model)
    assert len(np.unique(models, axis=0)) == 3
    assert len(np.unique(state.assignment)) == 2 + 6


def test_a_cluster_that_nobody_of_the_cohort_belongs_to_keeps_its_model(tff_worker, model, turned):
    method = stocfl(model)
    before, _ = rounds(method, turned, [(0, 1, 2, 3)])
    after, _ = rounds(method, turned, [(0, 3, 2)], before, 2)
    moved = np.abs(models_of(method, after, turned) - models_of(method, before, turned)).max(axis=1) > 0
    assert moved[[0, 2, 3]].all() and not moved[1]


def test_merging_clusters_average_their_models_by_members_that_trained_them(
    tff_worker, model, digit_clients, monkeypatch
):
    """Two clusters that were apart merge when a third client joins them; who comes new has trained nothing."""
    population = digit_clients([60] * 5)
    method = stocfl(model, StoCFLParameters(threshold=1))
    apart, _ = rounds(method, population, [(0, 1, 2)])
    first = apart.models[apart.known.rows]
    together = stocfl(model, StoCFLParameters(threshold=-1))
    changed = with_all_changed(apart)
    merged = together.next(changed, cohort_of(population, [3], 2))[0]
    alone = build_fedavg(model, dataclasses.replace(QUICK, proximal_weight=0.0))
    start = dataclasses.replace(alone.initialize(population), models=first.mean(axis=0)[None])
    pulled = stocfl(model, StoCFLParameters(threshold=-1, proximal_weight=0.0))
    free = pulled.next(changed, cohort_of(population, [3], 2))[0]
    expected = alone.next(start, cohort_of(population, [3], 2))[0]
    assert_close(free.models[free.known.rows], expected.models)
    assert len(merged.models) == 2 and merged.known.rows.tolist() == [1]
    # Three members have trained, the fourth now, too: another cluster of one weighs a quarter.
    signatures = free.known.signatures
    again = dataclasses.replace(
        free,
        assignment=np.array([0, 0, 0, 0, 4], np.int32),
        models=np.concatenate([free.models, 2 * model.initial[None]]),
        known=KnownClients(
            mask=np.ones(5, bool),
            trained=np.ones(5, bool),
            signatures=np.concatenate([signatures, signatures[:1]]),
            partition=Partition(
                ids=np.array([0, 4], np.int32),
                sums=np.concatenate([free.known.partition.sums, signatures[:1]]),
                sizes=np.array([4, 1], np.int32),
                changed=np.ones(2, bool),
            ),
            rows=np.array([1, 2], np.int32),
        ),
    )
    after = pulled.next(again, cohort_of(population, [3], 3))[0]
    start = dataclasses.replace(start, models=((4 * free.models[1] + 2 * model.initial) / 5)[None])
    assert_close(after.models[after.known.rows], alone.next(start, cohort_of(population, [3], 3))[0].models)
    # By the authors' way the larger cluster's model goes on; and which clusters merge is by the linkage.
    merge, linkages = stochastic.merge, []
    monkeypatch.setattr(stochastic, "merge", lambda *given: linkages.append(given[2]) or merge(*given))
    how = {"model_merge": "larger", "linkage": "centroid"}
    larger = stocfl(model, StoCFLParameters(threshold=-1, proximal_weight=0.0, **how))
    after = larger.next(again, cohort_of(population, [3], 3))[0]
    start = dataclasses.replace(start, models=free.models[[1]])
    assert_close(after.models[after.known.rows], alone.next(start, cohort_of(population, [3], 3))[0].models)
    assert linkages == ["centroid"]


@pytest.mark.parametrize("start", ["initial", pytest.param("global", marks=pytest.mark.slow), "closest"])
def test_where_a_new_cluster_starts(tff_worker, model, turned, start):
    """A client that stays alone: its model after one round without the proximal term is SGD from its start."""
    how = StoCFLParameters(threshold=1, proximal_weight=0.0, start=start)
    method = stocfl(model, how)
    before, _ = rounds(method, turned, [(0, 1), (0, 1)])
    after, _ = rounds(method, turned, [(3,)], before, 3)
    expected = {"initial": model.initial, "global": before.models[0], "closest": models_of(method, before, turned)[0]}
    fedavg = build_fedavg(model, QUICK)
    begun = dataclasses.replace(fedavg.initialize(turned), models=expected[start][None])
    trained = fedavg.next(begun, cohort_of(turned, [3], 3))[0].models[0]
    assert_close(models_of(method, after, turned)[3], trained)


def test_a_new_cluster_starts_from_the_closest_of_those_that_have_trained(tff_worker, model, turned):
    """Whatever its place among them: client 1 comes before the others, and is turned as client 4 is."""
    method = stocfl(model, StoCFLParameters(threshold=1, proximal_weight=0.0, start="closest"))
    before, _ = rounds(method, turned, [(3, 4, 5)])
    after, _ = rounds(method, turned, [(1,)], before, 2)
    fedavg = build_fedavg(model, QUICK)
    begun = dataclasses.replace(fedavg.initialize(turned), models=models_of(method, before, turned)[4][None])
    trained = fedavg.next(begun, cohort_of(turned, [1], 2))[0].models[0]
    assert_close(models_of(method, after, turned)[1], trained)


@pytest.mark.slow
def test_a_rounds_scalars_are_of_the_clusters_after_it(tff_worker, model, turned):
    method = stocfl(model, StoCFLParameters(threshold=0.9999))
    state, (told,) = rounds(method, turned, [(0, 1, 2, 4, 5)])
    sums = state.known.partition.sums.astype(float)
    cosines = 1 - distance.pdist(sums, "cosine")
    assert told.scalars["known_clusters"] == len(sums) == 5 and told.scalars["merges"] == 0
    np.testing.assert_allclose(told.scalars["objective"], cosines.sum(), rtol=1e-4)
    np.testing.assert_allclose(told.scalars["mean_cosine"], cosines.mean(), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [HOW, dataclasses.replace(HOW, representation="cohort", model_merge="larger", linkage="single")]
)
def test_the_order_of_clients_does_not_matter(tff_worker, model, turned, how):
    method = stocfl(model, how)
    cohorts = [(0, 1, 2, 4), (3, 4, 6), (5, 0, 8)]
    first, _ = rounds(method, turned, cohorts)
    second, told = rounds(method, turned, [each[::-1] for each in cohorts])
    np.testing.assert_array_equal(first.assignment, second.assignment)
    assert_close(models_of(method, first, turned), models_of(method, second, turned))
    assert told[-1].client_ids.tolist() == [8, 0, 5]
    np.testing.assert_array_equal(told[-1].clusters, second.assignment[[8, 0, 5]])


def test_a_global_model_that_is_not_finite_ends_the_run(tff_worker, model, turned):
    """Though the clusters' models, which nothing pulls towards it, are finite."""
    method = stocfl(model, StoCFLParameters(threshold=-1, proximal_weight=0.0))
    state = method.initialize(turned)
    state = dataclasses.replace(state, models=np.full_like(state.models, np.nan))
    with pytest.raises(Diverged, match="client 0 trained a model that is not finite"):
        method.next(state, cohort_of(turned, [0, 1], 1))


def test_a_failing_round_changes_nothing_and_a_repeated_one_is_the_same(tff_worker, model, turned, monkeypatch):
    method = stocfl(model)
    state, _ = rounds(method, turned, [(0, 1, 3)])
    kept = copy.deepcopy(state)
    with monkeypatch.context() as failing:
        # After the new clients' signatures, before training.
        failing.setattr("tffcl.algorithms.stocfl.MESSAGE_BYTES", 0)
        with pytest.raises(UserError, match="too large for one message"):
            rounds(method, turned, [(0, 4, 5)], state, 2)
    assert_same(state, kept)
    once, _ = rounds(method, turned, [(0, 4, 5)], state, 2)
    twice, _ = rounds(method, turned, [(0, 4, 5)], state, 2)
    assert_same(state, kept)
    assert_same(once, twice)
    assert len(once.known.signatures) == 5


def test_admitted_clients_that_have_not_trained_weigh_nothing_when_clusters_merge(tff_worker, model, turned):
    """Client 0 and four newcomers, against client 1: half and half, not five to one."""
    known, newcomers = split(turned, [3, 6, 9])
    apart = stocfl(model, StoCFLParameters(threshold=0.5, proximal_weight=0.0))
    state, _ = rounds(apart, known, [(0, 1)])
    state = apart.admit(state, newcomers)
    assert np.bincount(state.assignment)[state.assignment[0]] == 4 and state.known.trained.sum() == 2
    together = stocfl(model, StoCFLParameters(threshold=-1, proximal_weight=0.0))
    merged, _ = together.next(with_all_changed(state), cohort_of(turned, [0], 2))
    fedavg = build_fedavg(model, QUICK)
    mean = state.models[state.known.rows].mean(axis=0)
    begun = dataclasses.replace(fedavg.initialize(turned), models=mean[None])
    expected, _ = fedavg.next(begun, cohort_of(turned, [0], 2))
    assert_close(merged.models[merged.known.rows], expected.models)


@pytest.mark.parametrize("newcomer", [pytest.param(3, marks=pytest.mark.slow), 4])
def test_a_newcomer_weighs_nothing_until_it_trains_itself(tff_worker, model, turned, newcomer):
    """Whether it has joined client 0's cluster, or founded one that has a copy of client 0's model: another's round
    does not make it one that has trained."""
    known, newcomers = split(turned, [newcomer])
    apart = stocfl(model, StoCFLParameters(threshold=0.5, proximal_weight=0.0))
    cohorts = [(0, 2)] if newcomer == 3 else [(0,)]
    state = apart.admit(rounds(apart, known, cohorts)[0], newcomers)
    assert (state.assignment[newcomer] == state.assignment[0]) == (newcomer == 3)
    state, _ = rounds(apart, turned, [(0,)], state, 2)
    assert np.flatnonzero(state.known.trained).tolist() == list(cohorts[0])
    mean = models_of(apart, state, turned)[list(cohorts[0])].mean(axis=0)
    together = stocfl(model, StoCFLParameters(threshold=-1, proximal_weight=0.0))
    merged, _ = together.next(with_all_changed(state), cohort_of(turned, [0], 3))
    fedavg = build_fedavg(model, QUICK)
    begun = dataclasses.replace(fedavg.initialize(turned), models=mean[None])
    assert_close(merged.models[merged.known.rows], fedavg.next(begun, cohort_of(turned, [0], 3))[0].models)


def test_newcomers_clusters_that_merge_before_anybody_has_trained_them(tff_worker, model, turned):
    """Two that were founded apart are one cluster now: they have copies of one model, and so has it."""
    known, newcomers = split(turned, [1, 2])
    method = stocfl(model, dataclasses.replace(HOW, threshold=0.9))
    state, _ = rounds(method, known, [(0, 3)])
    state = method.admit(state, newcomers)
    assert state.assignment[1] != state.assignment[2] and not state.known.trained[[1, 2]].any()
    together = stocfl(model, StoCFLParameters(threshold=-1, proximal_weight=0.0))
    merged, _ = together.next(state, cohort_of(turned, [1], 2))
    assert np.isfinite(merged.models).all() and len(merged.known.partition) == 1


def test_newcomers_join_the_closest_cluster_or_start_from_its_model(tff_worker, model, digit_clients):
    everyone = digit_clients([110] * 10, turns=[0, 1, 0, 1, 0, 1, 0, 1, 3, 3])
    known, newcomers = split(everyone, [1, 6, 8, 9])
    method = stocfl(model)
    state, _ = rounds(method, known, [(0, 2, 3, 4, 5, 7)])
    admitted = method.admit(state, newcomers)
    assert admitted.client_ids.tolist() == list(range(10))
    labels = admitted.assignment
    assert labels[1] == labels[3] and labels[6] == labels[0]
    assert labels[8] == labels[9] and labels[8] not in labels[:8]
    np.testing.assert_array_equal(labels[known.client_ids], state.assignment)
    # The newcomers' cluster has the model of the closest one, stored once.
    np.testing.assert_array_equal(admitted.models, state.models)
    models, keys = method.models_for(admitted, np.arange(10))
    partition = admitted.known.partition
    sums = partition.sums / np.linalg.norm(partition.sums, axis=1, keepdims=True)
    place = partition.ids.tolist().index(labels[8])
    near = np.argsort(sums @ sums[place])[-2]
    assert keys[8] == keys[9] == admitted.known.rows[near]
    for each, total in zip(partition.ids, partition.sums):
        np.testing.assert_allclose(total, admitted.known.signatures[labels == each].sum(axis=0), rtol=1e-4, atol=1e-6)
    # They go on with the others: their cluster gets a model of its own when it trains.
    trained, _ = rounds(method, everyone, [(8, 0)], admitted, 2)
    _, keys = method.models_for(trained, [0, 8, 9, 3])
    assert len(set(keys)) == 3 and keys[1] == keys[2]
    with pytest.raises(UserError, match="client 1 is no newcomer"):
        method.admit(admitted, newcomers)


def test_newcomers_before_the_first_round_are_as_all_others(tff_worker, model, turned):
    known, newcomers = split(turned, [2, 5])
    method = stocfl(model)
    admitted = method.admit(method.initialize(known), newcomers)
    assert len(set(admitted.assignment)) == 10
    state, _ = rounds(method, turned, [(0, 2, 5)], admitted)
    assert state.assignment[2] == state.assignment[5] != state.assignment[0]


@pytest.mark.slow  # every method's is in the conformance checks
def test_traffic_is_that_of_the_map_reduce_forms(tff_worker, model, turned):
    method = stocfl(model)
    made = method.exports().build()
    up = {
        name: type_bytes(
            tff.backends.mapreduce.get_map_reduce_form_for_computation(made[name]).work.type_signature.result
        )
        for name in ("signature", "training")
    }
    # The client's ID, 4 bytes, comes with a signature in simulation only.
    signed, trained = method.joining, Traffic(2 * 4 * model.size, up["training"])
    assert signed == Traffic(4 * model.size + 8, up["signature"] - 4)
    _, told = rounds(method, turned, [(0, 1), (1, 2)])
    assert [each.traffic for each in told] == [signed * 2 + trained * 2, signed + trained * 2]
    assert [each.signatures for each in told] == [signed * 2, signed]


@pytest.mark.slow
def test_the_round_rebuilt_from_its_map_reduce_form(tff_worker, through_map_reduce, model, turned):
    composed = build_bilevel_round(model, QUICK, QUICK)
    process = composed.process({"models": model.initial[np.newaxis], "global_model": model.initial})
    inputs = deployed_inputs(cohort_of(turned, np.arange(3), 1), key=np.array([0, 1, 0], np.int32))
    state = {**process.initialize(), "models": np.stack([model.initial, 2 * model.initial])}
    direct, _ = process.next(state, inputs)
    again, _ = through_map_reduce(process.next, state, inputs)
    for key in ("models", "global_model"):
        np.testing.assert_allclose(again[key], direct[key], atol=1e-6)
        assert np.abs(direct[key] - state[key]).max() > 1e-3


@pytest.mark.slow
def test_another_global_aggregation_is_another_global_objective(tff_worker, model, turned):
    uniform = tff.aggregators.MeanFactory(no_nan_division=True)
    clipped = tff.aggregators.clipping_factory(1e-3, uniform)
    plain, held = (build_stocfl(model, QUICK, HOW, global_aggregation=each) for each in (None, clipped))
    free, near = (rounds(each, turned, [(0, 1, 2)])[0] for each in (plain, held))
    assert np.linalg.norm(near.models[0] - model.initial) < 1.01e-3 < np.linalg.norm(free.models[0] - model.initial)
    assert_close(free.models[1:], near.models[1:])  # the centre was the same in the first round


@pytest.mark.slow
def test_the_authors_settings_run(tff_worker, model, turned, monkeypatch):
    monkeypatch.setattr(stochastic, "merge", None)  # which is of all members' representations
    how = StoCFLParameters(
        representation="cohort",
        model_merge="larger",
        start="global",
        form="displacement",
        anchor_epochs=3,
        projection=500,
    )
    method = stocfl(model, how)
    state, _ = rounds(method, turned, [(0, 1, 2, 3), (4, 5, 6), (7, 8, 9)])
    assert state.known.signatures.shape == (10, 500)
    assert len({(turn, int(cluster)) for turn, cluster in zip(TURNS, state.assignment)}) == len(set(state.assignment))
    assert len(set(state.assignment)) < 10


@pytest.mark.slow
@pytest.mark.parametrize("own", [{"anchor_learning_rate": 0.05}, {}])
def test_signatures_are_those_that_are_asked_for(tff_worker, model, turned, own):
    """Displacements by as many epochs, in such batches and at such a rate, which else is that of training; noised."""
    how = {"form": "displacement", "projection": 50}
    asked = StoCFLParameters(
        **how, anchor_epochs=2, anchor_batch_size=20, signature_noise_multiplier=0.01, signature_clip=0.2, **own
    )
    local = LocalTraining(epochs=2, batch_size=20, learning_rate=own.get("anchor_learning_rate", QUICK.learning_rate))
    expected = build_anchor_gradient(model, **how, local=local, seed=3, noise_multiplier=0.01, clip=0.2, noise_seed=4)
    signed = [build_signing(each)(turned.restricted([0, 1]))
              for each in (build_data_signature(model, QUICK, asked, 3, 4), expected)]  # fmt: skip
    np.testing.assert_array_equal(*signed)


def test_centroid_linkage_has_no_tree_to_draw(model):
    with pytest.raises(UserError, match="linkage is 'centroid', which has no tree .* the same with linkage=.single."):
        group_stocfl(model, QUICK, StoCFLParameters(linkage="centroid"))


@pytest.mark.slow
def test_a_signature_that_is_not_finite_names_the_client(tff_worker, model, turned):
    how = StoCFLParameters(form="displacement", anchor_learning_rate=1e30)
    method = build_stocfl(model, LocalTraining(), how)
    with pytest.raises(
        Diverged, match="client 0 has a signature that is not finite; .* anchor_learning_rate is too high"
    ):
        rounds(method, turned, [(3, 0)])


@pytest.mark.parametrize("form, why", [("gradient", "NaN$"), ("displacement", "NaN, or anchor_learning_rate is")])
def test_only_a_rate_that_is_used_is_named_where_a_signature_is_not_finite(model, turned, form, why):
    method = build_stocfl(model, TRAINING, StoCFLParameters(form=form))
    method._sign = lambda population: np.full([len(population), 2], np.nan, np.float32)
    with pytest.raises(Diverged, match=f"client 0 has a signature that is not finite; its data hold {why}"):
        method.next(method.initialize(turned), cohort_of(turned, (3, 0), 1))


@pytest.mark.parametrize(
    "values, message",
    [
        ({"threshold": 1.5}, "threshold is 1.5; it must be a cosine"),
        ({"linkage": "singel"}, "did you mean 'single'"),
        ({"linkage": "centroid", "representation": "cohort"}, "'cohort' knows linkage 'single' only, not 'centroid'"),
        (
            {"global_order": "sequential", "global_objective": "fedprox"},
            "'fedprox' goes with global_order 'parallel' only",
        ),
        ({"representation": "all"}, "unknown representation 'all'"),
        ({"start": "globl"}, "did you mean 'global'"),
        ({"model_merge": "larges"}, "did you mean 'larger'"),
        ({"form": "gradent"}, "did you mean 'gradient'"),
        ({"global_objective": "fedavgg"}, "did you mean 'fedavg'"),
    ],
)
def test_what_is_refused(values, message):
    with pytest.raises(UserError, match=message):
        StoCFLParameters(**values)


def test_a_cohort_in_too_many_clusters_for_one_message_is_refused(tff_worker, model, turned, monkeypatch):
    monkeypatch.setattr("tffcl.algorithms.stocfl.MESSAGE_BYTES", 4 * 4 * model.size)
    method = stocfl(model, StoCFLParameters(threshold=1))
    with pytest.raises(UserError, match=r"round 1 is in 3 clusters, .* \(at most 2\); a lower threshold"):
        rounds(method, turned, [(0, 1, 2)])


@pytest.mark.slow
def test_a_sequential_global_model_goes_through_the_clients_one_after_the_other(tff_worker, model, turned):
    """Two rounds by hand: the chain at each round's rate, its mean, and cluster models that are pulled at the model of
    before the round.
    """
    decaying = dataclasses.replace(QUICK, learning_rate_decay=0.5)
    method = build_stocfl(model, decaying, dataclasses.replace(HOW, global_order="sequential"))
    parallel, sgd = stocfl(model), build_local_sgd(model, decaying)
    pulled = build_local_sgd(model, dataclasses.replace(decaying, proximal_weight=HOW.proximal_weight))
    state, before = method.initialize(turned), parallel.initialize(turned)
    for number, clients in enumerate([(0, 3, 4), (0, 3)], 1):
        cohort = cohort_of(turned, clients, number)
        current, way, own, rate = state.models[0], [], [], {"rate_scale": tf.constant(0.5 ** (number - 1))}
        start = models_of(method, state, turned)[0]
        for client in clients:
            data = next(iter(turned.train(client).dataset.batch(1000)))
            examples, seed = (data["x"], data["y"]), tf.constant(cohort.client_seed(client))
            current = sgd(current, *examples, seed, **rate)[0].numpy()
            way.append(current)
            own.append(pulled(start, *examples, seed, state.models[0], **rate)[0].numpy())
        state, metrics = method.next(state, cohort)
        before, plain = parallel.next(before, cohort)
        assert_close(state.models[0], np.mean(way, axis=0))
        assert_close(models_of(method, state, turned)[0], np.mean(own[:2], axis=0))
        if number == 2:
            assert np.abs(state.models[0] - before.models[0]).max() > 1e-3
    # Each client receives the chain's model beside the two, and uploads it.
    assert metrics.traffic.down == plain.traffic.down + 2 * 4 * model.size
    with pytest.raises(UserError, match="takes no global_aggregation"):
        build_stocfl(
            model, QUICK, StoCFLParameters(global_order="sequential"), global_aggregation=tff.aggregators.MeanFactory()
        )


@pytest.mark.slow
def test_a_chain_of_clients_says_whose_model_is_not_finite(model, turned):
    cohort, wild = cohort_of(turned, (3, 1), 3), dataclasses.replace(QUICK, learning_rate=1e30, epochs=3)
    with pytest.raises(Diverged, match=r"client 3 trained a model that is not finite \(loss .*\) in round 3"):
        train_in_a_chain(model, wild, model.initial, cohort)
