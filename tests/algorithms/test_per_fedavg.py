"""Per-FedAvg: its limit, rounds against plain NumPy, the local test after adaptation, and any grouping with it."""

import dataclasses

import numpy as np
import pytest

from tests.oracles import local_training, meta_steps
from tests.short_runs import COHORTS, TRAINING, assert_close, cohort_of, models_of, train
from tffcl.algorithms.composed import build_composed
from tffcl.algorithms.parameters import ComposedParameters
from tffcl.algorithms.per_fedavg import build_adapt, build_per_fedavg
from tffcl.algorithms.training_parameters import PerFedAvgParameters
from tffcl.client_work.evaluation import build_count_correct
from tffcl.errors import UserError

HOW = PerFedAvgParameters(alpha=0.2, beta=0.05)  # another rate than that of all


def averaged(model, population, weights_of, update):
    """Federated averaging of what `update(cohort, client, model)` gives, in NumPy."""
    server = model.initial.astype(float)
    for number, ids in enumerate(COHORTS, 1):
        cohort = cohort_of(population, ids, number)
        server = np.average([update(cohort, client, server) for client in ids], axis=0, weights=weights_of(list(ids)))
    return server


def test_without_adaptation_it_is_fedavg_on_the_second_batches(tff_worker, model, population):
    """α = 0; the client of 12 examples has two batches of 6, as one of 10 would leave the second with 2."""

    def update(cohort, client, server):
        size = min(TRAINING.batch_size, population.sizes[client] // 2)
        training = dataclasses.replace(TRAINING, batch_size=int(size))
        return local_training.trained(
            model, population, cohort, client, server, training, lambda batches: batches[1::2]
        )

    expected = averaged(model, population, lambda ids: population.sizes[ids], update)
    how = PerFedAvgParameters(alpha=0, weighting="examples")  # without a β of its own it is the rate of all
    state = train(build_per_fedavg(model, TRAINING, how), population)
    np.testing.assert_allclose(state.models[0], expected, rtol=0, atol=1e-5)
    assert np.abs(expected - model.initial).max() > 0.05


@pytest.mark.parametrize("gradient", [pytest.param("first_order", marks=pytest.mark.slow), "hessian_free"])
def test_rounds_are_those_of_numpy(tff_worker, model, population, gradient):
    """The paper's mean, the same for all clients whatever they have."""
    needed = 2 if gradient == "first_order" else 3

    def update(cohort, client, server):
        x, y = local_training.client_data(model, population, client)
        size = min(TRAINING.batch_size, len(y) // needed)
        groups = [
            batches[i : i + needed]
            for batches in local_training.epochs_of(cohort, client, len(y), size, TRAINING.epochs)
            for i in range(0, len(batches) - needed + 1, needed)
        ]
        tensors, _ = meta_steps.train(
            local_training.tensors_of(model, server), x, y, groups, alpha=HOW.alpha, beta=HOW.beta,
            momentum=TRAINING.momentum, delta=0.01 if needed == 3 else None,
        )  # fmt: skip
        return np.concatenate([np.ravel(tensor) for tensor in tensors])

    expected = averaged(model, population, lambda ids: None, update)
    how = dataclasses.replace(HOW, gradient=gradient, **({"delta": 0.01} if needed == 3 else {}))
    state = train(build_per_fedavg(model, TRAINING, how), population)
    np.testing.assert_allclose(state.models[0], expected, rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("tried", [(3,), (0, 1, 3)])
def test_the_local_test_is_after_the_adaptation(tff_worker, model, population, tried):
    """With a step that changes answers; the model of a round of one client is that client's."""
    correct = {}
    for steps in tried:
        how = dataclasses.replace(HOW, alpha=1.5, adaptation_steps=steps)
        method = build_per_fedavg(model, TRAINING, how)
        cohort = cohort_of(population, [3], 1, local_test=np.ones(1, bool))
        state, metrics = method.next(method.initialize(population), cohort)
        data, test = (next(iter(each(3).dataset.batch(1000))) for each in (population.train, population.test))
        adapt = build_adapt(model, TRAINING, rate=1.5, steps=steps)
        own = adapt(state.models[0], data["x"], data["y"], cohort.client_seed(3))
        assert metrics.test_correct[0] == build_count_correct(model)(own, test["x"], test["y"])[0]
        without = build_count_correct(model)(state.models[0], test["x"], test["y"])[0]
        correct |= {steps: int(metrics.test_correct[0]), "without": int(without)}
        assert_close(state.models, correct.setdefault("models", state.models))  # the adaptation is not sent
    assert len({correct[steps] for steps in (*tried, "without")}) > 1


@pytest.mark.slow  # test_composed has each training with a grouping
def test_any_grouping_takes_it(tff_worker, model, population):
    own = {"name": "per_fedavg", "alpha": HOW.alpha, "beta": HOW.beta}
    composed = build_composed(model, TRAINING, ComposedParameters(num_clusters=1, training=own))
    alone = build_per_fedavg(model, TRAINING, HOW)
    assert_close(*(models_of(each, train(each, population), population) for each in (composed, alone)))
    pairs = build_composed(model, TRAINING, ComposedParameters(num_clusters=2, training=own))
    assert len(train(pairs, population).models) == 2


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"alpha": -0.1}, "alpha is -0.1; it must be a number from 0"),
        ({"beta": 0}, "beta is 0; it must be a number above 0"),
        ({"delta": 0}, "delta is 0; it must be a number above 0"),
        ({"gradient": "second_order"}, "unknown gradient 'second_order'; did you mean 'first_order'?"),
        ({"velocity": "both"}, "unknown velocity 'both' (allowed: outer, shared)"),
        ({"adaptation_steps": -1}, "adaptation_steps is -1; it must be a whole number from 0"),
    ],
)
def test_wrong_values_are_told(wrong, message):
    with pytest.raises(UserError) as refused:
        PerFedAvgParameters(**wrong)
    assert str(refused.value).startswith(message)
