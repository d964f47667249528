"""FLT's flags of change: raised by clients, counted by the server, answered by new clusters."""

import dataclasses

import numpy as np
import pytest

from tests.algorithms.conftest import same_groups
from tests.short_runs import TRAINING, cohort_of, split
from tffcl.algorithms.flt import build_flt
from tffcl.algorithms.parameters import FLTParameters
from tffcl.clients.population import Population
from tffcl.errors import UserError

EVERYONE = np.arange(9)


def flt(model, encoder, **how):
    common = {"threshold": 1.5, "metric": "matching", "num_neighbors": 3, "num_centres": 2}
    how = {**common, "fine_tune_epochs": 0, "refine_epochs": 0, **how}
    return build_flt(model, TRAINING, FLTParameters(**how), encoder=encoder, seed=4)


def exchanged(population: Population, first: int, second: int) -> Population:
    """Two clients hold each other's data."""
    source = np.arange(len(population.client_ids))
    source[[first, second]] = second, first
    return Population(
        population.client_ids,
        {client: population.train(source[client]) for client in population.client_ids},
        {client: population.test(source[client]) for client in population.client_ids},
        versions=(source != np.arange(len(source))).astype(np.int32),
    )


def round_of(method, state, population, clients, number):
    return method.next(state, cohort_of(population, clients, number))


@pytest.mark.parametrize("clusters", ["joint", pytest.param("disjoint", marks=pytest.mark.slow)])
def test_a_client_whose_data_change_is_clustered_anew_after_its_flag(tff_worker, model, encoder, grouped, clusters):
    method = flt(model, encoder, clusters=clusters, change_flags=1)
    state = method.initialize(grouped)
    before = state.assignment.copy()
    state, metrics = round_of(method, state, grouped, EVERYONE, 1)
    assert dict(metrics.scalars) == {"change_flags": 0, "formed_anew": 0}
    plain_bytes = metrics.traffic.up
    after = exchanged(grouped, 0, 8)
    # Nobody knows of the change before the clients take part; one flag is not more than one.
    state, metrics = round_of(method, state, after, [1, 2], 2)
    assert metrics.scalars["change_flags"] == 0
    state, metrics = round_of(method, state, after, [0, 1], 3)
    assert dict(metrics.scalars) == {"change_flags": 1, "formed_anew": 0}
    np.testing.assert_array_equal(state.assignment, before)
    models = method.models_for(state, EVERYONE)[0].copy()
    state, metrics = round_of(method, state, after, [8, 2], 4)
    assert dict(metrics.scalars) == {"change_flags": 2, "formed_anew": 1}
    # Two trained, and all nine sent centres again.
    assert metrics.traffic.up == 2 * plain_bytes // 9 + 9 * method.joining.up
    moved = before.copy()
    moved[[0, 8]] = before[[8, 0]]
    np.testing.assert_array_equal(state.assignment, moved)
    np.testing.assert_array_equal(state.flags.moved_in, np.where(np.isin(EVERYONE, [0, 8]), 4, 0))
    np.testing.assert_array_equal(state.flags.flagged_in, [3, 0, 0, 0, 0, 0, 0, 0, 4])
    assert not state.flags.raised.any()
    # All have told; nobody raises a flag again.
    state, metrics = round_of(method, state, after, EVERYONE, 5)
    assert dict(metrics.scalars) == {"change_flags": 0, "formed_anew": 0}
    assert metrics.traffic.up == plain_bytes and np.isfinite(models).all()


@pytest.mark.slow
@pytest.mark.parametrize("clusters", ["disjoint", "joint"])
def test_clusters_formed_anew_of_unchanged_clients_change_nothing(tff_worker, model, encoder, grouped, clusters):
    methods = flt(model, encoder, clusters=clusters), flt(model, encoder, clusters=clusters, period=2)
    states = [each.initialize(grouped) for each in methods]
    for number in (1, 2, 3):
        states = [round_of(each, state, grouped, [0, 4, 5, 8], number)[0] for each, state in zip(methods, states)]
    np.testing.assert_array_equal(states[0].assignment, states[1].assignment)
    models = [each.models_for(state, EVERYONE) for each, state in zip(methods, states)]
    np.testing.assert_allclose(models[0][0][models[0][1]], models[1][0][models[1][1]], rtol=1e-5, atol=1e-7)


def test_new_clusters_start_from_the_means_of_their_members_models(tff_worker, model, encoder, grouped):
    """Weighted as in the rounds."""
    rng, labels = np.random.default_rng(0), np.array([0, 0, 1, 1, 1, 2, 2, 2, 2])
    state = flt(model, encoder, clusters="disjoint").initialize(grouped)
    state = dataclasses.replace(state, models=rng.normal(size=state.models.shape).astype(np.float32))
    own = state.models[state.assignment]
    for weighting in ("examples", "uniform"):
        method = flt(model, encoder, clusters="disjoint", period=1, weighting=weighting)
        found = method._carry(state, labels, grouped)["models"]
        for cluster in range(3):
            of, sizes = labels == cluster, grouped.sizes if weighting == "examples" else np.ones(9)
            np.testing.assert_allclose(found[cluster], np.average(own[of], axis=0, weights=sizes[of]), atol=1e-6)


@pytest.mark.slow
def test_a_period_forms_clusters_without_flags(tff_worker, model, encoder, grouped):
    method = flt(model, encoder, clusters="disjoint", period=3)
    state, after = method.initialize(grouped), exchanged(grouped, 2, 3)
    assert not any("changed" in str(each.type_signature) for each in method.exports().build().values())
    anew = []
    for number in range(1, 5):
        state, metrics = round_of(method, state, after, [0, 1], number)
        anew.append(metrics.scalars["formed_anew"])
    assert anew == [0, 0, 1, 0]
    np.testing.assert_array_equal(np.flatnonzero(state.flags.moved_in), [2, 3])


@pytest.mark.slow
def test_a_formation_that_is_due_in_a_round_of_nobody_comes_in_the_next(tff_worker, model, encoder, grouped):
    method = flt(model, encoder, clusters="disjoint", period=2)
    state, anew = method.initialize(grouped), []
    for number in (1, 3, 4, 5, 9):  # a run leaves out the rounds that nobody was drawn for
        state, metrics = round_of(method, state, grouped, [0, 1], number)
        anew.append(metrics.scalars["formed_anew"])
    assert anew == [0, 1, 1, 0, 1] and state.flags.formed_in == 9


@pytest.mark.slow
def test_newcomers_are_flags_too_and_are_part_of_the_new_clusters(tff_worker, model, encoder, grouped):
    known, newcomers = split(grouped, [4, 8])
    method = flt(model, encoder, clusters="disjoint", change_flags=1)
    state = method.admit(method.initialize(known), newcomers)
    np.testing.assert_array_equal(state.flags.raised, np.isin(EVERYONE, [4, 8]))
    state, metrics = round_of(method, state, grouped, [0, 1], 1)
    assert dict(metrics.scalars) == {"change_flags": 2, "formed_anew": 1}
    assert same_groups(state.assignment)
    # Formed by all nine: as if they had been there from the beginning.
    whole = flt(model, encoder, clusters="disjoint").initialize(grouped)
    np.testing.assert_allclose(state.proximity, whole.proximity, rtol=1e-5)


def test_a_newcomers_own_flag_counts_from_when_it_raises_it(tff_worker, model, encoder, grouped):
    known, newcomers = split(grouped, [4, 8])
    method = flt(model, encoder, clusters="disjoint", change_flags=3)
    state = method.admit(method.initialize(known), newcomers)
    state, _ = round_of(method, state, exchanged(grouped, 0, 8), [0, 1, 8], 5)
    np.testing.assert_array_equal(state.flags.flagged_in, np.where(np.isin(EVERYONE, [0, 8]), 5, 0))


def test_a_round_of_a_part_of_the_clients_cannot_form_clusters_anew(tff_worker, model, encoder, grouped):
    known, _ = split(grouped, [4, 8])
    method = flt(model, encoder, clusters="disjoint", period=1)
    state = method.initialize(grouped)
    with pytest.raises(UserError, match="population must be all that were admitted"):
        round_of(method, state, known, [0, 1], 1)


@pytest.mark.parametrize(
    "values, message", [({"change_flags": -1}, "change_flags is -1"), ({"period": 0}, "period is 0")]
)
def test_impossible_triggers(values, message):
    with pytest.raises(UserError, match=message):
        FLTParameters(**values)


@pytest.mark.slow
def test_clients_go_on_from_the_encoder_that_they_made(tff_worker, model, encoder, grouped):
    """The normal mode before the first round, then the fine-tune mode, each time from the latest state (Alg. 3
    lines 2, 25).
    """
    autoencoder, vector = encoder
    method = flt(model, encoder, period=1, refine_epochs=2, fine_tune_optimizer="adam")
    state = method.initialize(grouped)
    np.testing.assert_array_equal(state.centres, flt(model, encoder).initialize(grouped).centres)
    assert len(state.encoders) == 0
    errors, kept = [], [[vector] * 9]
    for number in (1, 2):
        state, metrics = round_of(method, state, grouped, [0, 1], number)
        kept.append(state.encoders.of(EVERYONE))
        # The whole autoencoder travels, and only the centres come back.
        assert metrics.signatures.down >= 9 * 4 * autoencoder.size and metrics.signatures.up == 9 * method.joining.up
    for vectors in kept:
        images = [next(iter(grouped.train(client).dataset.batch(500)))["x"] for client in (0, 4, 8)]
        own = [vectors[client] for client in (0, 4, 8)]
        errors.append(
            [float(autoencoder.loss(autoencoder.unravel(v), autoencoder.preprocess(x))) for v, x in zip(own, images)]
        )
    assert (np.diff(errors, axis=0) < 0).all()


@pytest.mark.slow
def test_newcomers_go_on_from_the_encoder_that_they_made(tff_worker, model, encoder, grouped):
    known, newcomers = split(grouped, [4, 8])
    dynamic = flt(model, encoder, period=1, fine_tune_epochs=1, refine_epochs=1)
    admitted = dynamic.admit(dynamic.initialize(known), newcomers)
    assert admitted.encoders.has(EVERYONE).all()
    own = admitted.encoders.of([4, 8])
    after, _ = round_of(dynamic, admitted, grouped, [0, 1], 1)
    assert all(np.abs(after.encoders.value(client) - was).max() > 0 for client, was in zip([4, 8], own))


@pytest.mark.slow
def test_a_newcomer_makes_an_encoder_where_the_others_have(tff_worker, model, encoder, grouped):
    """In the normal mode nobody fine-tunes before the first round; whoever joins after a formation is in the
    others' space.
    """
    known, newcomers = split(grouped, [4, 8])
    method = flt(model, encoder, period=1, refine_epochs=2, fine_tune_optimizer="adam")
    before = method.initialize(known)
    early = method.admit(before, newcomers)
    assert len(early.encoders) == 0 and method.joined_traffic(before, early) == method.joining * 2
    formed, _ = round_of(method, before, known, [0, 1], 1)
    late = method.admit(formed, newcomers)
    assert late.encoders.has(EVERYONE).all() and np.abs(late.encoders.value(8) - encoder[1]).max() > 0
    assert method.joined_traffic(formed, late).down == 2 * (4 * encoder[1].size + 8)


@pytest.mark.slow
def test_newcomers_encode_with_the_encoder_of_their_admission(tff_worker, model, encoder, grouped):
    """Nobody trains an encoder when clusters are formed anew: centres of unchanged data stay where they are,
    newcomers' too.
    """
    known, newcomers = split(grouped, [4, 8])
    method = flt(model, encoder, period=1, fine_tune_epochs=3)
    admitted = method.admit(method.initialize(known), newcomers)
    after, metrics = round_of(method, admitted, grouped, [0, 1], 1)
    assert metrics.scalars["formed_anew"] == 1
    np.testing.assert_allclose(np.sort(after.centres, axis=1), np.sort(admitted.centres, axis=1), atol=1e-4)
