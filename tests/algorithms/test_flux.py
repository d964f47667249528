"""FLUX: its descriptors against NumPy, its groups, newcomers without labels, and its limit."""

import numpy as np
import pytest

import tffcl
from tests.algorithms.conftest import PAIRS, same_groups
from tests.short_runs import TRAINING, assert_close, cohort_of, models_of, split, train
from tffcl.algorithms.each_round_parameters import FLUXParameters
from tffcl.algorithms.flux import build_flux
from tffcl.clients.population import Population
from tffcl.errors import Diverged, UserError
from tffcl.rounds.client_queries import ask_all
from tffcl.signatures.predictions import build_descriptors


@pytest.fixture(scope="module")
def flux(model):
    """With a clip that nobody reaches, and that falls in every round for it."""
    clip = tffcl.aggregation("robust", rule="clipping", initial_clip=1e4)
    return build_flux(model, TRAINING, FLUXParameters(warm_up_rounds=2, neighbourhood="gap"), aggregation=clip)


@pytest.fixture(scope="module")
def found(flux, grouped, worker):
    worker.use_local_worker()
    state = flux.initialize(grouped)
    signatures = []
    for number in (1, 2, 3):
        state, metrics = flux.next(state, cohort_of(grouped, grouped.client_ids, number))
        signatures.append((metrics.signatures.down, metrics.signatures.up))
    return state, signatures


@pytest.mark.slow
def test_descriptors_are_moments_of_the_outputs(tff_worker, model, population):
    signature = build_descriptors(model)
    for client in (0, 4):
        examples = next(iter(population.train(client).dataset.batch(1000)))
        outputs = model.logits(model.unravel(model.initial), model.preprocess(examples["x"]), None).numpy()
        found = signature.computation(model.initial, population.train(client).dataset)
        np.testing.assert_allclose(found["marginal"], [outputs.mean(0), outputs.std(0)], atol=1e-5)
        for label, row in enumerate(found["conditional"]):
            own = outputs[examples["y"].numpy() == label]
            expected = [own.mean(0), own.std(0)] if len(own) > 1 else np.full([2, 10], -1.0)
            np.testing.assert_allclose(row, expected, atol=1e-5)


def test_a_class_with_one_example_counts_as_missing(tff_worker, model, digits):
    x, y = digits
    rows = np.concatenate([np.flatnonzero(y == 0)[:3], np.flatnonzero(y == 4)[:1]])
    alone = Population.from_arrays({0: (x[rows], y[rows])})
    found = build_descriptors(model).computation(model.initial, alone.train(0).dataset)["conditional"]
    assert (np.abs(found[0]) != 1).all() and (found[1:] == -1).all()


def test_descriptors_of_many_examples_are_taken_in_batches(tff_worker, model, digit_clients):
    clients = digit_clients([700])
    found = build_descriptors(model).computation(model.initial, clients.train(0).dataset)
    x = next(iter(clients.train(0).dataset.batch(1000)))["x"]
    outputs = model.logits(model.unravel(model.initial), model.preprocess(x), None).numpy()
    np.testing.assert_allclose(found["marginal"][0], outputs.mean(0), atol=1e-5)


def test_it_finds_the_groups_and_how_many_there_are(flux, found):
    state, signatures = found
    assert same_groups(state.assignment) and len(state.models) == 3
    clips = state.aggregators["update"]["clip"]
    np.testing.assert_allclose(clips, 1e4 * np.exp(3 * 0.2 * (0.8 - 1)), rtol=1e-4)  # of the warm-up's rounds, too
    vector = 4 * flux.model.size
    assert signatures == [(0, 0), (0, 0), (9 * vector, 9 * 4 * (20 + 10 * 20))]  # asked once, all clients
    metric = flux.views(state).metric
    assert metric.proximity.shape == (9, 9)
    assert flux.views(state).metric is metric, "all pairs are compared once, and not in every round"


def test_newcomers_are_placed_without_their_labels(flux, found, digits, tff_worker):
    state, _ = found
    x, y = digits
    for group, pair in enumerate(PAIRS):
        images = x[np.isin(y, pair)][:60]
        wrong = np.full(60, 9, np.int32)
        stranger = Population.from_arrays({9: (images, wrong)})
        joined = flux.admit(state, stranger)
        assert joined.assignment[-1] == state.assignment[group]
        np.testing.assert_allclose(joined.descriptors["marginal"][:9], state.descriptors["marginal"])


def test_a_client_whose_descriptors_are_not_finite_is_named(flux, found, grouped, monkeypatch, tff_worker):
    """It would be placed in the first cluster, and when clients are grouped scikit-learn would end the run."""

    def asked(query, model, population, **more):
        described = ask_all(query, model, population, **more)
        described["marginal"] = described["marginal"].copy()
        described["marginal"][population.client_ids == 4, 0] = np.inf
        return described

    monkeypatch.setattr("tffcl.algorithms.flux.ask_all", asked)
    known, newcomers = split(grouped, [4])
    told = "client 4 has a signature that is not finite"
    with pytest.raises(Diverged, match=told):
        flux.next(flux.initialize(grouped), cohort_of(grouped, [0, 1], 3))
    state, _ = flux.next(flux.initialize(known), cohort_of(known, [0, 1], 3))
    with pytest.raises(Diverged, match=told):
        flux.admit(state, newcomers)


def test_newcomers_send_what_their_labels_do_not_change(flux, found, grouped, tff_worker):
    """80 bytes for P(X), not 880; what the server then can compare everyone by is P(X), under the model of then."""
    (state, _), x = found, grouped.train(0).x
    joined = [flux.admit(state, Population.from_arrays({9: (x, np.full(len(x), label))})) for label in (3, 9)]
    assert flux.joined_traffic(state, joined[0]).up == 4 * 20
    assert joined[0].descriptors.keys() == {"marginal"} and len(joined[0].descriptors["marginal"]) == 10
    np.testing.assert_array_equal(joined[0].descriptors["marginal"], joined[1].descriptors["marginal"])
    np.testing.assert_allclose(*joined[0].descriptors["marginal"][[0, 9]], rtol=0, atol=1e-6)
    metric = flux.views(joined[0]).metric
    assert metric.proximity.shape == (10, 10) and metric.merges is None and metric.unit == "scaled descriptors of P(X)"


def test_the_distance_of_neighbours_is_scaled_as_it_is_asked_for(tff_worker, model, grouped, flux):
    wide = build_flux(model, TRAINING, FLUXParameters(warm_up_rounds=2, neighbourhood="gap", eps_scale=3.0))
    once, thrice = (
        method.next(method.initialize(grouped), cohort_of(grouped, [0, 1], 3))[0].eps for method in (flux, wide)
    )
    assert thrice == pytest.approx(3 * once) and once > 0


@pytest.mark.parametrize("neighbourhood", ["knee", "gap"])
def test_two_clients_show_no_distance_of_neighbours_and_views_say_so(tff_worker, model, grouped, neighbourhood):
    two = grouped.restricted([0, 4])
    method = build_flux(model, TRAINING, FLUXParameters(warm_up_rounds=2, neighbourhood=neighbourhood))
    state, _ = method.next(method.initialize(two), cohort_of(two, [0, 4], 3))
    (note,) = method.views(state).notes
    assert len(state.models) == 1 and "two clients" in note and note.endswith("stay together")


@pytest.mark.slow
def test_before_the_groups_it_is_fedavg(tff_worker, model, population, reference):
    method = build_flux(model, TRAINING, FLUXParameters(warm_up_rounds=9))
    assert_close(models_of(method, train(method, population), population), reference("fedavg")[1])


def test_a_run_that_ended_in_its_warm_up_says_so_and_is_not_exported(flux, population):
    assert flux.views(flux.initialize(population)).notes[0].startswith("for 2 rounds one model is trained")
    with pytest.raises(
        UserError, match="rounds? one model is trained .warm_up_rounds., and this run ended in that time"
    ):
        flux.exports().server_values(flux.initialize(population))
