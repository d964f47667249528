"""FedProx and Ditto: their limits, TFF's own FedProx, and what they send."""

import dataclasses

import numpy as np
import pytest
import tensorflow_federated as tff

import tffcl
from tests.algorithms.conftest import PULL
from tests.short_runs import COHORTS, TRAINING, assert_close, cohort_of, learned_by_tff, models_of, split, train
from tffcl.algorithms.ditto import build_ditto
from tffcl.algorithms.fedavg import build_fedavg, build_fedprox
from tffcl.algorithms.solo import build_solo
from tffcl.algorithms.training_parameters import DittoParameters, FedProxParameters
from tffcl.clients.client_state import KeptStates
from tffcl.errors import UserError
from tffcl.rounds.traffic import Traffic, type_bytes


def test_fedprox_without_its_term_is_fedavg(tff_worker, model, population, reference):
    fedprox = build_fedprox(model, TRAINING, FedProxParameters(0.0))
    assert_close(models_of(fedprox, train(fedprox, population), population), reference("fedavg")[1])


@pytest.mark.slow  # FedAvg is held against TFF's
def test_fedprox_is_tff_learnings_fedprox_but_for_its_sign(tff_worker, model, population):
    """The same batches in the same order give the same model as `build_weighted_fed_prox` with our term reversed.

    TFF 0.87 adds μ (w_t - w) to the gradient (`templates/proximal_client_work.py`), which drives clients away from the
    global model; FedProx adds μ (w - w_t). `test_local_sgd` holds our sign against NumPy.
    """
    process = tff.learning.algorithms.build_weighted_fed_prox(
        model.functional,
        proximal_strength=0.7,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(TRAINING.learning_rate, TRAINING.momentum),
        server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
    )
    away = dataclasses.replace(TRAINING)
    object.__setattr__(away, "proximal_weight", -0.7)  # no user can ask for it
    ours = train(build_fedavg(model, away), population)
    assert_close(ours.models[0], learned_by_tff(process, model, population))


@pytest.mark.slow  # FedSoft is held against NumPy with it
def test_the_term_holds_clients_near_the_global_model(tff_worker, model, population, reference):
    def moved(models):
        return np.linalg.norm(models[0] - model.initial)

    first = COHORTS[:1]
    strong = train(build_fedprox(model, TRAINING, FedProxParameters(2.0)), population, first).models
    distances = [moved(models) for models in (reference("fedavg", first)[1], reference("fedprox", first)[1], strong)]
    assert distances[0] > 1.1 * distances[1] > 1.1 * 1.1 * distances[2] > 0


@pytest.mark.slow
def test_ditto_without_its_term_is_solo_and_its_global_model_is_fedavgs(tff_worker, model, population, reference):
    ditto = build_ditto(model, TRAINING, DittoParameters(0.0))
    personal = train(ditto, population)
    assert_close(models_of(ditto, personal, population), reference("solo")[1])
    assert_close(ditto.views(personal).global_model, reference("fedavg")[1][0])
    assert_close(reference("ditto")[0].global_model, reference("fedavg")[1][0])  # which the term does not hold


@pytest.mark.slow
def test_a_strong_term_holds_personal_models_at_the_global_one_of_the_rounds_start(tff_worker, model, population):
    """λ = 1 / learning rate: every step sets the model to the centre minus a gradient step."""
    still = dataclasses.replace(TRAINING, epochs=1, batch_size=0, momentum=0.0)
    ditto = build_ditto(model, still, DittoParameters(10.0))
    before = train(ditto, population, [(0, 1, 2, 3, 4), (0, 1)])
    cohort = cohort_of(population, [0, 2], 3)
    after, _ = ditto.next(before, cohort)
    # One full-batch step from v by the gradient at v plus 10 (v - w) at rate 0.1 is w minus 0.1 times the gradient at
    # v.
    moved = models_of(ditto, after, population)[[0, 2]] - before.models[0]
    own = models_of(ditto, before, population)[[0, 2]]
    solo = build_solo(model, still)
    alone = dataclasses.replace(solo.initialize(population), kept=KeptStates(model.initial).updated([0, 2], own))
    trained, _ = solo.next(alone, cohort)
    assert_close(moved, models_of(solo, trained, population)[[0, 2]] - own)


def test_a_client_without_a_personal_model_has_the_global_one(tff_worker, model, population):
    known, newcomers = split(population, [4])
    ditto = build_ditto(model, TRAINING, DittoParameters(PULL))
    state = train(ditto, known, [(0, 1, 2)])
    admitted = ditto.admit(state, newcomers)
    models, keys = ditto.models_for(admitted, [0, 3, 4])
    assert keys[0] > 0 and keys[1:].tolist() == [0, 0]
    np.testing.assert_array_equal(models[0], ditto.views(state).global_model)
    assert len(np.unique(ditto.views(admitted).clusters)) == 5


@pytest.mark.slow  # traffic is in the conformance checks
def test_ditto_sends_what_fedavg_sends(tff_worker, model, population):
    ditto, fedavg = build_ditto(model, TRAINING, DittoParameters(PULL)), build_fedavg(model, TRAINING)
    cohort = cohort_of(population, [1, 4], 1)
    sent, expected = (each.next(each.initialize(population), cohort)[1].traffic for each in (ditto, fedavg))
    assert sent == expected and ditto.joining == fedavg.joining == Traffic()
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(ditto.exports().build()["training"])
    assert sent == Traffic(2 * 4 * model.size, 2 * type_bytes(form.work.type_signature.result))


@pytest.mark.parametrize("parameters", [FedProxParameters, DittoParameters])
def test_a_negative_weight_is_refused(parameters):
    with pytest.raises(UserError, match="proximal_weight is -0.1; it must be a number from 0"):
        parameters(-0.1)


@pytest.mark.parametrize("name", ["fedprox", "ditto", "fednova", "stocfl", "fedsoft"])
def test_a_weight_of_the_training_beside_the_methods_own_is_refused(model, name):
    """It would be overridden without a word."""
    pulled = dataclasses.replace(TRAINING, proximal_weight=2.0)
    with pytest.raises(UserError, match="the training's proximal_weight is 2, and the method's own is 0"):
        getattr(tffcl.algorithms, f"build_{name}")(model, pulled)


@pytest.mark.slow
def test_a_weight_of_the_training_pulls_where_the_method_has_none(tff_worker, model, population):
    pulled = build_fedavg(model, dataclasses.replace(TRAINING, proximal_weight=PULL))
    own = build_fedprox(model, TRAINING, FedProxParameters(PULL))
    assert_close(*(models_of(each, train(each, population), population) for each in (pulled, own)))
